"""Every public operation against a peer that says nothing, or next to nothing.

The law: with the limits set, each operation ends with the documented error, within the limits, and
drops its connections. The limits come from the settings alone, as a user would give them.
"""

import contextlib
import errno
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.command_tree import leaves
from helpers.needs import needs_native_io
from typer.main import get_command
from typer.testing import CliRunner

from ignitetf._core import UNIT, Landing
from ignitetf.cli.main import app
from ignitetf.errors import ConnectError, IgniteTFError, RequestTimeout, TlsError
from ignitetf.net import channel
from ignitetf.net.client import Client, connect
from ignitetf.net.flow import Flow, Plan, requests_of
from ignitetf.read.landing import RowLayout
from ignitetf.settings import Settings
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.requests import scan_requests
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.types import TypeRegistry
from ignitetf.wire.zones import UTC

sys.path.insert(0, str(Path(__file__).parent))
from silent import KINDS, Silent

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]

LIMIT_S = 0.1
LIMITS = dict.fromkeys(("connect_timeout_s", "request_timeout_s", "idle_timeout_s"), LIMIT_S)
# A limit to connect, one for a request, one without progress, the last try; a loaded machine.
LONGEST_S = 4 * LIMIT_S + 2.0


def ends_in_time(peer, operation):
    """The error of an operation, which came in time, and after which no connection is held."""
    begin = time.monotonic()
    with pytest.raises(Exception) as caught:
        operation()
    assert time.monotonic() - begin < LONGEST_S, caught.value
    assert peer.held_after(2) == 0 and peer.connections > 0, caught.value
    return caught.value


def is_time_out(error):
    return isinstance(error, RequestTimeout) or (
        isinstance(error, OSError) and error.errno == errno.ETIMEDOUT
    )


# The command line


def arguments(folder):
    """What each command is given, by its words; {path} stands for a local file or folder."""
    sources = {
        "jsonl": folder / "a.jsonl", "npz": folder / "a.npz", "csv": folder / "a.csv", "idx": folder / "a-idx1-ubyte",
        "folder": folder / "images", "parquet": folder / "a.parquet",
        "tfrecord": folder / "a.tfrecord", "voc": folder / "voc", "table": folder / "t.sql", "script": folder / "train.py",
    }  # fmt: skip
    return sources, {
        "demo": (),
        "table create": (str(sources["table"]),),
        "table ls": (),
        "table describe": ("T",),
        "table drop": ("T", "--yes"),
        "cache create": ("C",),
        "cache ls": (),
        "cache describe": ("C",),
        "cache clear": ("C", "--yes"),
        "cache drop": ("C", "--yes"),
        "load digits": (),
        "load npz": (str(sources["npz"]), "--cache", "C"),
        "load csv": (str(sources["csv"]), "--cache", "C"),
        "load jsonl": (str(sources["jsonl"]), "--cache", "C"),
        "load idx": (str(sources["idx"]), "--cache", "C"),
        "load images": (str(sources["folder"]), "--cache", "C"),
        "load sql": ("SELECT 1 AS X", "--cache", "C"),
        "export": ("C", str(folder / "exported"), "--format", "parquet"),
        "verify": ("C",),
        "split": ("C",),
        "head": ("C",),
        "stats": ("C",),
        "preview": ("C", "--out", str(folder / "sheet.png")),
        "query": ("SELECT 1",),
        "ui": ("--no-browser",),
        "fs ls": ("/",),
        "fs cat": ("/a",),
        "fs put": (str(sources["csv"]), "/a"),
        "fs get": ("/a", str(folder / "got")),
        "fs cp": ("/a", "/b"),
        "fs mv": ("/a", "/b"),
        "fs rm": ("/a",),
        "fs mkdir": ("/a",),
        "fs du": ("/",),
        "fs stat": ("/a",),
        "fs check": (),
        "checkpoint push": (str(folder / "images"), "/a"),
        "checkpoint pull": ("/a", str(folder / "pulled")),
        "checkpoint ls": ("/a",),
        "checkpoint prune": ("/a", "--keep", "1", "--yes"),
        "launch": (str(sources["script"]),),
        "ps": (),
        "describe": ("J",),
        "attach": ("J",),
        "logs": ("J",),
        "stop": ("J",),
        "bench read": (),
        "bench write": (),
        "bench storage": ("--workload", "cosmoflow", "--accelerators", "1"),
        "plan": ("--workload", "cosmoflow", "--accelerators", "1"),
        "bench fs": (),
    }


# They share the code of the commands above; a source of theirs is no small file. `config` and `profile` connect
# to nothing, `watch` is meant to outlast a cluster that is away, and for `doctor` that is a finding.
NOT_RUN = {
    "load mnist", "load voc", "load parquet", "load tfrecord", "config", "checkpoint watch", "doctor",
    "load webdataset", "load coco", "load yolo", "load arrow", "profile add",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("limits")
    sources, words = arguments(folder)
    np.savez(sources["npz"], X=np.arange(10))
    sources["script"].write_text("print(1)")
    sources["csv"].write_text("A,B\n1,2\n3,4\n")
    sources["jsonl"].write_text('{"A": 1}\n{"A": 2}\n')
    sources["idx"].write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 6]))
    sources["table"].write_text("CREATE TABLE T (ID BIGINT PRIMARY KEY, V BIGINT)")
    (sources["folder"] / "cat").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(sources["folder"] / "cat" / "1.png")
    return words


def commands_that_connect():
    for path, command in leaves(get_command(app)):
        if any(option.name == "address" for option in command.params):
            yield " ".join(path)


COMMANDS = [name for name in commands_that_connect() if name not in NOT_RUN]


def test_every_command_that_connects_is_here(files):
    assert set(files) == set(COMMANDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_ends_in_time(kind, files, monkeypatch, tmp_path):
    """Exit code 1 and a line that says so; the limits from the options and the environment."""
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    monkeypatch.setenv("IGNITETF_CONNECT_TIMEOUT", str(LIMIT_S))
    # A peer that goes on talking is not listened to for a whole second at the end of each command.
    monkeypatch.setattr(channel, "_PARTING_S", LIMIT_S)
    for name in COMMANDS:
        limits = ("--timeout", str(LIMIT_S), "--idle-timeout", str(LIMIT_S))
        with Silent(kind) as peer:
            words = [*name.split(), "--address", peer.address, *limits, *files[name]]
            run_in_time(peer, name, words)


def run_in_time(peer, name, words):
    begin = time.monotonic()
    done = CliRunner().invoke(app, words, prog_name="ignitetf")
    seconds = time.monotonic() - begin
    told = (name, peer.kind, round(seconds, 2), done.stderr)
    assert done.exit_code == 1, told
    assert "no answer" in done.stderr and f"within {LIMIT_S:g} s" in done.stderr, told
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr, told
    # The first command of a kind imports what it needs.
    assert seconds < LONGEST_S + 20, told
    assert peer.held_after(2) == 0 and peer.connections > 0, told
    if seconds >= LONGEST_S:
        again = time.monotonic()
        assert CliRunner().invoke(app, words, prog_name="ignitetf").exit_code == 1
        assert time.monotonic() - again < LONGEST_S, told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("words", [("add",), ("password",), ("drop",)], ids=lambda w: w[0])
def test_users_of_a_node_that_says_nothing(kind, words, monkeypatch, tmp_path):
    """Its connections have fixed settings: the limits come from the environment."""
    from ignitetf.node.security import Security

    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    for name in ("CONNECT", "REQUEST", "IDLE"):
        monkeypatch.setenv(f"IGNITETF_{name}_TIMEOUT", str(LIMIT_S))
    security = Security("silent", tmp_path / "node")
    security.prepare()
    with Silent(kind) as peer:
        act = {
            "add": lambda: security.add_user([peer.address], "reader", "word"),
            "password": lambda: security.change_password([peer.address], "reader", "word"),
            "drop": lambda: security.drop_user([peer.address], "reader"),
        }[words[0]]
        # What does not speak TLS is refused as such, or not waited for any longer.
        assert isinstance(ends_in_time(peer, act), TlsError)


# Python


def without_handshake(settings):
    """A client that has not connected yet, as one is whose connections were lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Client, "channel", lambda self: contextlib.nullcontext())
        return Client(settings)


def open_dataset(client):
    from ignitetf.read.tf.dataset import IgniteDataset

    IgniteDataset("C", settings=client.settings)


def load(client):
    from ignitetf.load.loader import load_dataset

    load_dataset({"X": np.arange(4)}, "C", client=client)


def scan(client):
    class Sink:
        """Never asked."""

    units = np.zeros(3, UNIT)
    units["lane"], units["base"], units["rows"], units["expected"] = -1, -1, -1, 1
    units["base"][0] = 0
    key = Field("key", TypeCode.LONG, np.dtype("<i8"))
    layout = RowLayout(Schema("", key, ()), TypeRegistry(UTC), 64, 8.0)
    landing = Landing(
        layout.native, units, None, None, None, -1, 8, 512, 10, True, 0, OpCode.QUERY_SCAN_PAGE
    )
    requests = requests_of(OpCode.QUERY_SCAN, scan_requests(1, 10, [0, 1, 2]))
    retry_s = client.settings.idle_timeout_s
    plan = Plan(units, requests, np.arange(3), lambda refresh: {})
    flow = Flow(client, "C", plan, landing, Sink(), retry_s=retry_s)
    list(flow.groups())


def filesystem(client):
    from ignitetf.fs.filesystem import IgniteFileSystem

    return IgniteFileSystem(settings=client.settings, skip_instance_cache=True)


def put(client):
    with filesystem(client).open("/a", "wb") as file:
        file.write(b"x" * 100_000)


def store(client):
    from ignitetf.fs.store import Store

    return Store(client, "F")


def push(client):
    from ignitetf.fs.push import push as run

    run(store(client), Path(__file__).parent, "/a")


def background(client):
    from ignitetf.explore.verify import verify

    verify(client, "C")


def stats(client):
    from ignitetf.explore.stats import dataset_stats

    dataset_stats(client, "C")


def first_rows(client):
    from ignitetf.explore.head import first_rows as run

    list(run(client, "C", 3))


PYTHON = {
    "connect and list": lambda c: connect(settings=c.settings).cache_names(),
    "sql": lambda c: c.sql("SELECT 1").fetchall(),
    "cache names": lambda c: c.cache_names(),
    "cache size": lambda c: c.cache_size("C"),
    "drop": lambda c: c.destroy_cache("C"),
    "nodes or map": lambda c: c.partition_map("C"),
    "dataset": open_dataset,
    "scan": scan,
    "load": load,
    "verify": background,
    "stats": stats,
    "head": first_rows,
    "fsspec ls": lambda c: filesystem(c).ls("/"),
    "fsspec open": lambda c: filesystem(c).open("/a"),
    "fsspec put": put,
    "fsspec get": lambda c: filesystem(c).cat("/a"),
    "store": store,
    "push": push,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PYTHON)
def test_every_operation_ends_in_time(kind, name):
    if name == "dataset":
        pytest.importorskip("tensorflow")
    with Silent(kind) as peer:
        client = without_handshake(Settings(addresses=(peer.address,), **LIMITS))
        error = ends_in_time(peer, lambda: PYTHON[name](client))
        assert is_time_out(error), repr(error)
        assert f"{LIMIT_S:g} s" in str(error) and peer.address in str(error)
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_several_addresses_are_each_given_their_time(kind):
    with Silent(kind) as peer, Silent(kind) as other:
        settings = Settings(addresses=(peer.address, other.address), **LIMITS)
        client = without_handshake(settings)
        error = ends_in_time(peer, client.cache_names)
        assert isinstance(error, (RequestTimeout, ConnectError))
        assert other.connections == (1 if kind in ("accepts", "trickles at once") else 0)


def test_tls_to_a_silent_peer(tmp_path):
    for kind in ("accepts", "trickles at once"):
        with Silent(kind) as peer:
            settings = Settings(addresses=(peer.address,), tls=True, **LIMITS)
            assert isinstance(ends_in_time(peer, lambda s=settings: Client(s)), TlsError)


def test_a_peer_that_reads_nothing():
    """A request that does not fit into the buffers of the system is given up, too."""
    from ignitetf.net.channel import Channel

    with Silent("reads nothing") as peer:
        settings = Settings(addresses=(peer.address,), **LIMITS)
        channel = Channel(peer.address, settings)
        error = ends_in_time(peer, lambda: channel.receive(channel.send(1, bytes(64 << 20))))
        assert is_time_out(error)


def test_tensorflow_is_told():
    tf = pytest.importorskip("tensorflow")
    needs_native_io()
    from ignitetf.fs import gfile

    for kind in KINDS:
        with Silent(kind) as peer:
            gfile.configure(Settings(addresses=(peer.address,), **LIMITS))
            for act in (
                # What TensorFlow itself asks with `is_directory` it takes for "no" at any error.
                lambda: tf.io.gfile.stat("igfs:///a"),
                lambda: tf.io.gfile.GFile("igfs:///a").read(),
                lambda: tf.io.gfile.copy(__file__, "igfs:///a"),
                lambda: tf.io.gfile.rename("igfs:///a", "igfs:///b"),
            ):
                error = ends_in_time(peer, act)
                assert isinstance(error, tf.errors.UnavailableError) and "no answer" in str(error)


def test_the_limits_are_settings(monkeypatch):
    monkeypatch.setenv("IGNITETF_IDLE_TIMEOUT", "7")
    found = Settings.resolve(address="127.0.0.1:1", request_timeout_s=3)
    assert (found.idle_timeout_s, found.request_timeout_s) == (7, 3)
    with pytest.raises(IgniteTFError):
        Settings.resolve(address="127.0.0.1:1", idle_timeout_s=0)
