"""`docker/`: what can be told of it without a Docker engine."""

import importlib.util
import re

import pytest
from helpers.paths import ROOT

import ignitetf

yaml = pytest.importorskip("yaml")
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
PINNED = re.compile(r"[a-z0-9/-]+:[0-9]+\.[0-9]+(\.[0-9]+)?(-[a-z0-9.-]+)?")


def script(name):
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def services():
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            if "extends" in service:
                base = yaml.safe_load((DOCKER / service["extends"]["file"]).read_text())
                service = {**base["services"][service["extends"]["service"]], **service}
            yield pytest.param(service, id=f"{path.stem}-{name}")


def test_the_configurations_are_those_of_the_generator():
    from ignitetf.node.config import spring_xml

    made = {n: spring_xml(c) for n, c in script("generate").configurations().items()}
    found = {p.name: p.read_text(encoding="utf-8") for p in (DOCKER / "config").iterdir()}
    assert found == made


@pytest.mark.parametrize("service", list(services()))
def test_a_service_is_pinned_limited_and_private(service):
    assert PINNED.fullmatch(service["image"])
    assert service["mem_limit"] and service["cpus"] and service["pids_limit"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "privileged" not in service
    assert not [k for k in service.get("environment", {}) if "PASSWORD" in k]
    serves = service["command"][0] in ("node", "secure")
    assert ("healthcheck" in service) == serves
    if serves:
        assert service["stop_grace_period"] and service["restart"] == "unless-stopped"


@pytest.mark.parametrize("service", list(services()))
def test_what_a_service_runs_exists(service):
    command = service["command"]
    known = ("node", "secure", "establish", "listening", "activate", "mnist")
    assert command[0] in known
    if command[0] == "node":
        assert (DOCKER / "config" / command[1].rsplit("/", 1)[1]).is_file()
    waits = service.get("depends_on", {})
    assert all(w["condition"] == "service_healthy" for w in waits.values())


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.stem)
def test_volumes_and_dependencies_are_declared(path):
    found = yaml.safe_load(path.read_text())
    for service in found["services"].values():
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in found["volumes"]
        for other in service.get("depends_on", {}):
            assert other in found["services"]


def test_the_image_is_pinned_and_runs_as_a_user():
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    (default,) = [line.partition("=")[2] for line in lines if line.startswith("ARG PYTHON_IMAGE")]
    assert set(bases) == {"${PYTHON_IMAGE}"} and PINNED.fullmatch(default)
    assert lines.index("USER ignite") > max(i for i, x in enumerate(lines) if x.startswith("FROM"))
    # `load mnist` downloads to there as that user.
    home = next(x for x in lines[::-1] if "IGNITETF_HOME=" in x).split("=", 1)[1].rstrip(" \\")
    assert lines.index(f"RUN chown ignite {home}") < lines.index("USER ignite")
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            assert all((ROOT / source).exists() for source in line.split()[1:-1])


def test_the_stateful_set_fits_to_its_service_and_its_configurations():
    found = {d["kind"]: d for d in yaml.safe_load_all((DOCKER / "k8s/ignite.yaml").read_text())}
    service, pods = found["Service"], found["StatefulSet"]["spec"]
    assert pods["serviceName"] == service["metadata"]["name"]
    labels = pods["template"]["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == pods["selector"]["matchLabels"]
    assert labels == found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    (container,) = pods["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["memory"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert ports == {p["name"]: p["port"] for p in service["spec"]["ports"]}
    for number in range(pods["replicas"]):
        text = (DOCKER / f"config/k8s-{number}.xml").read_text()
        assert f"ignite-{number}.ignite:{ports['discovery']}" in text


def pod():
    documents = yaml.safe_load_all((DOCKER / "k8s/ignite.yaml").read_text())
    (found,) = [d for d in documents if d["kind"] == "StatefulSet"]
    return found["spec"]["template"]


def test_the_image_of_the_pods_has_to_be_given_by_its_digest():
    (container,) = pod()["spec"]["containers"]
    # In capitals it is no reference to an image, so nothing runs until it is replaced.
    assert container["image"] == "IGNITETF_IMAGE"
    for text in (DOCKER / "README.md", DOCKER / "k8s/ignite.yaml"):
        said = text.read_text()
        assert 'sed "s|IGNITETF_IMAGE|$image|"' in said and "RepoDigests" in said


def test_the_pods_spread_over_hosts():
    labels = pod()["metadata"]["labels"]
    spread = {c["topologyKey"]: c for c in pod()["spec"]["topologySpreadConstraints"]}
    host = spread["kubernetes.io/hostname"]
    assert (host["maxSkew"], host["whenUnsatisfiable"]) == (1, "DoNotSchedule")
    assert all(c["labelSelector"]["matchLabels"] == labels for c in spread.values())


def test_the_pods_may_do_nothing_but_their_work():
    spec = pod()["spec"]
    (container,) = spec["containers"]
    outer, inner = spec["securityContext"], container["securityContext"]
    assert outer["runAsNonRoot"] and outer["runAsUser"] == outer["fsGroup"] == 10800
    assert outer["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["automountServiceAccountToken"]
    assert inner["readOnlyRootFilesystem"] and not inner["allowPrivilegeEscalation"]
    assert inner["capabilities"] == {"drop": ["ALL"]}
    # What is written must be mounted: the entry point's folder, and /tmp.
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    writable = {path for path, m in mounts.items() if not m.get("readOnly")}
    assert writable == {script("entrypoint").NODE_DIRECTORY, "/tmp"}
    declared = {v["name"] for v in spec["volumes"]} | {"data"}
    assert {m["name"] for m in mounts.values()} == declared


def test_images_and_changelog_have_the_version_of_the_package():
    files = [path for path in DOCKER.rglob("*") if path.is_file()]
    texts = [path.read_text(encoding="utf-8") for path in files]
    named = {found for text in texts for found in re.findall(r"ignitetf:(\d[\w.]*\w)", text)}
    assert named == {ignitetf.__version__}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == ignitetf.__version__
