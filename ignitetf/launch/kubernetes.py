"""A job as Kubernetes objects: an Indexed Job with a headless service, or a RayJob.

spec -> **kubernetes** -> manifests -> `kubectl apply -f -`

Each pod of the Indexed Job runs `python -m ignitetf.launch.pod`, which derives its environment from
the index of the pod. The service gives the pods their names. The RayJob runs
`ignitetf launch --engine ray` inside its own Ray cluster.

Secrets are not in the manifests: login and TLS files are taken from a secret with a fixed name.

Source: `batch/v1` Job (`completionMode: Indexed`) and `ray.io/v1` RayJob of KubeRay 1.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.launch.engine import LaunchSpec
from ignitetf.launch.roles import Role, roles_of
from ignitetf.settings import VARIABLES, Settings

__all__ = [
    "COORDINATOR_PORT",
    "GROUP_PORT",
    "SECRET",
    "Target",
    "indexed_job",
    "ray_job",
    "to_yaml",
]

GROUP_PORT: Final = 2222
COORDINATOR_PORT: Final = 2223
SECRET: Final = "ignitetf"
_SECRET_FOLDER: Final = "/etc/ignitetf"
_SCRIPT_FOLDER: Final = "/job"
# Settings that are files or texts of the secret, and the names of the texts in it.
_FILES: Final = ("ca", "cert", "key")
_SECRETS: Final = {
    "username": "username",
    "password": "password",
    "key_password": "key-password",
}
_MOST_SCRIPT_BYTES: Final = 900_000  # a ConfigMap holds 1 MiB
_NAME: Final = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """Name, image and Kubernetes settings of a job.

    Attributes:
        job: Id of the job, which names all objects.
        image: The image of the pods: Python, ignitetf, and what the script imports.
        settings: Connection settings of the pods to Ignite; addresses as they are inside the Kubernetes cluster.
    """

    job: str
    image: str
    settings: Settings

    def __post_init__(self) -> None:
        """Refuse a name that Kubernetes would refuse."""
        if not _NAME.fullmatch(self.job):
            raise ConfigError(
                f"{self.job!r} cannot name a job of Kubernetes",
                hint="a script whose name begins with a letter",
            )


def indexed_job(spec: LaunchSpec, target: Target) -> list[Manifest]:
    """Return a ConfigMap with the script, a headless Service, and an Indexed Job.

    Raises:
        SourceError: The script cannot be read.
        ConfigError: It is too large for a ConfigMap.
    """
    roles = roles_of(spec.workers, spec.parameter_servers)
    hosts = [f"{target.job}-{role.number}.{target.job}" for role in roles]
    environment = [
        *_environment(spec, target.settings),
        _value("IGNITETF_JOB", target.job),
        _value("IGNITETF_JOB_DIR", f"igfs:///jobs/{target.job}"),
        _value("IGNITETF_PARAMETER_SERVERS", str(spec.parameter_servers)),
        _value("IGNITETF_GROUP", ",".join(f"{host}:{GROUP_PORT}" for host in hosts)),
        _value("IGNITETF_COORDINATOR", f"{hosts[0]}:{COORDINATOR_PORT}"),
    ]
    path = f"{_SCRIPT_FOLDER}/{Path(spec.script).name}"
    command = ["python", "-m", "ignitetf.launch.pod", path, *spec.arguments]
    container = {
        **_container(target.image, "worker", command, environment),
        "ports": [
            {"name": "group", "containerPort": GROUP_PORT},
            {"name": "coordinator", "containerPort": COORDINATOR_PORT},
        ],
    }
    pod = {**_pod(target, container), "restartPolicy": "Never", "subdomain": target.job}
    job = _object("batch/v1", "Job", target.job) | {
        "spec": {
            "completionMode": "Indexed",
            "completions": len(roles),
            "parallelism": len(roles),
            # A member that loses another member ends, too, so a restart restarts every pod.
            "backoffLimit": spec.restarts * len(roles),
            "ttlSecondsAfterFinished": 86_400,
            "template": {"metadata": {"labels": _labels(target.job)}, "spec": pod},
        }
        | _ended_with_the_chief(roles)
    }
    return [_script_map(spec, target.job), _service(target.job), job]


def ray_job(spec: LaunchSpec, target: Target) -> list[Manifest]:
    """Return a ConfigMap with the script, and a RayJob that launches it in a Ray cluster.

    Raises:
        SourceError: The script cannot be read.
        ConfigError: It is too large for a ConfigMap.
    """
    path = f"{_SCRIPT_FOLDER}/{Path(spec.script).name}"
    launch = ["ignitetf", "launch", "--engine", "ray", *_launch_options(spec), path]
    environment = _environment(spec, target.settings)

    def group(name: str) -> Manifest:
        container = _container(target.image, name, None, environment)
        return {"rayStartParams": {}, "template": {"spec": _pod(target, container)}}

    count = spec.workers + spec.parameter_servers
    job = _object("ray.io/v1", "RayJob", target.job) | {
        "spec": {
            "entrypoint": shlex.join([*launch, *spec.arguments]),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 86_400,
            "rayClusterSpec": {
                "headGroupSpec": group("ray-head"),
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": count,
                        "minReplicas": count,
                        "maxReplicas": count,
                        **group("ray-worker"),
                    }
                ],
            },
        }
    }
    return [_script_map(spec, target.job), job]


def to_yaml(manifests: list[Manifest]) -> str:
    """Format manifests as one YAML stream, as `kubectl apply -f -` reads it."""
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra.of("manifests need PyYAML", "kubernetes", error) from error

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Writes a script unchanged, line by line."""

    def text(dumper: Any, value: str) -> Any:
        style = "|" if "\n" in value else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, explicit_start=True))


def _launch_options(spec: LaunchSpec) -> list[str]:
    options = ["-n", str(spec.workers), "--keras", spec.keras, "--restarts", str(spec.restarts)]
    if spec.parameter_servers:
        options += ["--ps", str(spec.parameter_servers)]
    if spec.data is not None:
        options += ["--data", spec.data]
    if spec.elastic is not None:
        options += ["--elastic", "{}:{}".format(*spec.elastic)]
    return options


def _ended_with_the_chief(roles: list[Role]) -> Manifest:
    """Return the rule that a job with parameter servers is done when its chief is done."""
    if not any(role.serves for role in roles):
        return {}
    return {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}


def _environment(spec: LaunchSpec, settings: Settings) -> list[Manifest]:
    given = settings.environment()
    # Files and secrets have other paths in a pod, and the pod may be in another data center.
    elsewhere = {VARIABLES[name] for name in (*_FILES, *_SECRETS, "data_center")}
    found = [_value(name, value) for name, value in given.items() if name not in elsewhere]
    found.append(_value("IGNITETF_KERAS", spec.keras))
    if spec.keras == "legacy":
        found.append(_value("TF_USE_LEGACY_KERAS", "1"))
    if spec.data is not None:
        found.append(_value("IGNITE_DATASET_CACHE_NAME", spec.data))
    found += [_secret(VARIABLES[n], key) for n, key in _SECRETS.items() if VARIABLES[n] in given]
    found += [
        _value(VARIABLES[name], f"{_SECRET_FOLDER}/{name}.pem")
        for name in _FILES
        if VARIABLES[name] in given
    ]
    return found


def _value(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _secret(name: str, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET, "key": key}}}


def _object(version: str, kind: str, job: str) -> Manifest:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": job, "labels": _labels(job)},
    }


def _labels(job: str) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "ignitetf", "ignitetf/job": job}


def _script_map(spec: LaunchSpec, job: str) -> Manifest:
    path = Path(spec.script)
    text = path.read_text(encoding="utf-8")
    if len(text.encode()) > _MOST_SCRIPT_BYTES:
        raise ConfigError(
            f"{spec.script}: {len(text.encode()):,} bytes are too many for a ConfigMap",
            hint="put the code into the image, and launch a short script that imports it",
        )
    return _object("v1", "ConfigMap", job) | {"data": {path.name: text}}


def _service(job: str) -> Manifest:
    return _object("v1", "Service", job) | {
        "spec": {
            "clusterIP": "None",
            # The members resolve each other's names before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {"ignitetf/job": job},
            "ports": [
                {"name": "group", "port": GROUP_PORT},
                {"name": "coordinator", "port": COORDINATOR_PORT},
            ],
        }
    }


def _container(
    image: str, name: str, command: list[str] | None, environment: list[Manifest]
) -> Manifest:
    container: Manifest = {"name": name, "image": image}
    if command is not None:
        container["command"] = command
    return container | {
        "env": environment,
        "volumeMounts": [
            {"name": "script", "mountPath": _SCRIPT_FOLDER, "readOnly": True},
            {"name": "secret", "mountPath": _SECRET_FOLDER, "readOnly": True},
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _pod(target: Target, container: Manifest) -> Manifest:
    return {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        # Workers share a host only if there are not enough hosts.
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"ignitetf/job": target.job}},
            }
        ],
        "containers": [container],
        "volumes": [
            {"name": "script", "configMap": {"name": target.job}},
            {"name": "secret", "secret": {"secretName": SECRET, "optional": True}},
        ],
    }
