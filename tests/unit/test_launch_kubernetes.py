"""Manifests of jobs: what Kubernetes accepts, without secrets, and the group that the pods form."""

import importlib.util
import json
import subprocess
import sys

import pytest

from ignitetf.errors import ConfigError
from ignitetf.launch.engine import LaunchSpec
from ignitetf.launch.kubernetes import Target, indexed_job, ray_job
from ignitetf.settings import Settings

yaml = pytest.importorskip("yaml")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "my train.py"
    path.write_text("print('ä')\n", encoding="utf-8")
    return str(path)


def target(**options):
    return Target("my-train-3f2a", "img@sha256:1", Settings(("ignite-0.ignite:10800",), **options))


def by_kind(manifests):
    return {manifest["kind"]: manifest for manifest in manifests}


def environment(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


@pytest.mark.parametrize(("workers", "servers"), [(1, 0), (2, 0), (3, 2)])
def test_every_pod_finds_the_others_by_its_index(script, workers, servers):
    spec = LaunchSpec(script, ("--a", "b c"), workers, servers, "D", restarts=2)
    found = by_kind(indexed_job(spec, target()))
    job, service, texts = found["Job"]["spec"], found["Service"], found["ConfigMap"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    variables = environment(container)
    members = variables["IGNITETF_GROUP"].split(",")
    count = workers + servers + bool(servers)
    assert job["completions"] == job["parallelism"] == len(members) == count
    assert job["completionMode"] == "Indexed" and job["backoffLimit"] == 2 * count
    # The host name of a pod of an Indexed Job is the job's name and its index.
    name = pod["subdomain"]
    assert name == service["metadata"]["name"] == found["Job"]["metadata"]["name"]
    assert members == [f"{name}-{index}.{name}:2222" for index in range(count)]
    labels = job["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["clusterIP"] == "None"
    assert container["command"][3:] == ["/job/my train.py", "--a", "b c"]
    assert texts["data"] == {"my train.py": "print('ä')\n"}
    assert variables["IGNITE_DATASET_CACHE_NAME"] == "D"
    assert ("successPolicy" in job) == bool(servers)


def test_no_secret_is_in_a_manifest(script):
    secret = target(
        username="me-myself", password="s3cret", tls=True, ca="/x/ca.pem", key_password="k3y"
    )
    for manifests in (indexed_job(LaunchSpec(script), secret), ray_job(LaunchSpec(script), secret)):
        text = json.dumps(manifests)
        assert not any(word in text for word in ("s3cret", "k3y", "me-myself", "/x/"))
        assert "/etc/ignitetf/ca.pem" in text and "secretKeyRef" in text


def test_a_ray_job_launches_the_same(script):
    spec = LaunchSpec(script, ("--a", "b c"), 3, data="D", restarts=1, elastic=(1, 3), engine="ray")
    job = by_kind(ray_job(spec, target()))["RayJob"]["spec"]
    words = job["entrypoint"]
    assert words.startswith("ignitetf launch --engine ray -n 3 ") and words.endswith(
        "'/job/my train.py' --a 'b c'"
    )
    for option in ("--restarts 1", "--data D", "--elastic 1:3"):
        assert option in words
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == 3


@pytest.mark.parametrize("servers", [0, 1])
def test_the_schemas_of_kubernetes_accept_them(script, servers):
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    import kubernetes_validate

    spec = LaunchSpec(script, (), 2, servers, "D")
    for manifest in indexed_job(spec, target(username="u", password="p", tls=True, ca="c")):
        kubernetes_validate.validate(manifest, "1.33", strict=True)


def test_what_cannot_be_named_or_held_is_refused(script, tmp_path):
    with pytest.raises(ConfigError, match="name"):
        Target("3-x", "img", Settings())
    big = tmp_path / "big.py"
    big.write_text("#" * 1_000_000)
    with pytest.raises(ConfigError, match="ConfigMap"):
        indexed_job(LaunchSpec(str(big)), target())


@pytest.mark.parametrize("engine", ["kubernetes", "ray"])
def test_the_command_prints_yaml_and_needs_no_cluster(script, engine):
    words = ["launch", "-n", "2", "--engine", engine, "--dry-run", "--address", "ignite:1"]
    done = subprocess.run(
        [sys.executable, "-m", "ignitetf", *words, script, "--x"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert kinds[-1] == ("RayJob" if engine == "ray" else "Job")
    done = subprocess.run(
        [sys.executable, "-m", "ignitetf", "launch", "--engine", "kubernetes", script],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "kubectl apply" in done.stderr
