"""Parts of the embedded node that need no JVM: memory, ports, state, processes, JVM options."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ignitetf.errors import ConfigError, ConnectError, NodeError, ServerOverloaded
from ignitetf.local.logs import failure_cause, follow, last_lines, member_directories
from ignitetf.local.process import (
    ProcessId,
    end_at_signals,
    identify,
    is_alive,
    is_ending,
    kill,
    launch,
    terminate,
    total_memory_bytes,
    wait_gone,
    write_private,
)
from ignitetf.local.state import (
    Member,
    NodeOptions,
    NodeState,
    Store,
    node_directory,
    read_state,
    remove_state,
    write_state,
    write_store,
)
from ignitetf.net.client import connect
from ignitetf.net.failures import server_error
from ignitetf.node import memory, running_addresses
from ignitetf.node.checks import check_disk
from ignitetf.node.jvm import (
    JavaRuntime,
    StartCache,
    adopt_training,
    argument_file,
    clean_environment,
    logging_properties,
    start_cache,
)
from ignitetf.node.memory import check_memory, heap_mib, parse_memory
from ignitetf.node.ports import client_ports, free_ports, is_free
from ignitetf.node.status import node_status


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("IGNITETF_HOME", str(tmp_path))
    return tmp_path


# Memory


@pytest.mark.parametrize(
    ("text", "size"),
    [("64m", 64 << 20), ("2g", 2 << 30), ("1.5G", 3 << 29), ("512MiB", 512 << 20), (1 << 30,) * 2],
)
def test_sizes(text, size):
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "g", "2x", "-1g", "1 2g", "63m", "1024", "0"])
def test_bad_sizes_name_the_option(text):
    with pytest.raises(ConfigError, match="--memory"):
        parse_memory(text)


def test_more_than_the_machine_has_is_refused_with_a_size_that_fits():
    with pytest.raises(NodeError, match="too little memory") as caught:
        check_memory(total_memory_bytes(), 1)
    advised = caught.value.hint.split()[2]
    check_memory(parse_memory(advised), 1)


@pytest.mark.parametrize(
    ("cores", "gib", "nodes", "mib"),
    [
        (2, 24, 1, 2048), (2, 24, 3, 819), (16, 24, 1, 2457), (16, 128, 1, 4096),
        (16, 128, 3, 4096), (64, 1000, 1, 16384), (64, 8, 1, 819), (2, 4, 8, 512),
    ],
)  # fmt: skip
def test_heap_is_shared_by_the_members_and_grows_with_the_cores(
    monkeypatch, cores, gib, nodes, mib
):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(memory, "total_memory_bytes", lambda: gib << 30)
    assert heap_mib(nodes) == mib


# Ports


def test_a_taken_port_names_the_option():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(NodeError, match=rf"port {port} \(--port {port}\) is taken by another"):
            client_ports(port, 1, {})
        with pytest.raises(NodeError, match=f"--port {port - 1} with --nodes 2"):
            client_ports(port - 1, 2, {port - 2: "x"})
        assert port not in [p for p, _ in zip(free_ports(port, ()), range(3), strict=False)]


def test_a_port_of_another_node_is_taken_though_nothing_listens_yet():
    port = next(free_ports(12_900, ()))
    with pytest.raises(NodeError, match="node 'other'"):
        client_ports(port, 1, {port: "other"})


@pytest.mark.parametrize(("first", "count"), [(0, 1), (-5, 1), (65_536, 1), (65_535, 2)])
def test_ports_out_of_range(first, count):
    with pytest.raises(NodeError, match="out of range"):
        client_ports(first, count, {})


# Processes


def sleeper(tmp_path, code="import time; time.sleep(60)"):
    return launch(
        [sys.executable, "-c", code], directory=tmp_path, log=tmp_path / "log", environment={}
    )


def test_a_process_is_recognised_by_number_and_birth(tmp_path):
    process = sleeper(tmp_path)
    found = identify(process.pid)
    assert found is not None and is_alive(found)
    assert not is_alive(ProcessId(found.pid, "another birth"))
    terminate(ProcessId(found.pid, "another birth"))
    assert not wait_gone(found, 0.3)
    terminate(found)
    assert wait_gone(found, 10)
    assert identify(found.pid) is None


def test_a_dead_child_that_nobody_collected_is_not_alive(tmp_path):
    process = sleeper(tmp_path)
    found = identify(process.pid)
    kill(found)
    assert wait_gone(found, 10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_a_killed_process_is_ending_until_it_is_gone(tmp_path):
    """From the kill on, at every moment: there is no time at which it passes for a living one."""
    many = """
import threading, time
held = bytearray(100 << 20)
for _ in range(40):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(flush=True)
time.sleep(60)
"""
    seen = rounds = 0
    while rounds < 5 or (not seen and rounds < 30):
        rounds += 1
        process = sleeper(tmp_path, many)
        found = identify(process.pid)
        while not (tmp_path / "log").read_bytes():
            time.sleep(0.01)
        os.kill(found.pid, signal.SIGSTOP)
        assert is_alive(found) and not is_ending(found)
        os.kill(found.pid, signal.SIGCONT)
        assert is_alive(found) and not is_ending(found)
        os.kill(found.pid, signal.SIGKILL)
        while (ending := is_ending(found)) or is_alive(found):
            assert ending or not is_alive(found)
            seen += ending
        assert not is_ending(found)
    assert seen > 0


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_launched_process_gets_none_of_our_signals(tmp_path):
    process = sleeper(tmp_path)
    try:
        assert os.getpgid(process.pid) == process.pid != os.getpgid(0)
    finally:
        kill(identify(process.pid))


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_request_to_end_is_an_interrupt_within_the_block():
    with pytest.raises(KeyboardInterrupt), end_at_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_signals_are_left_alone_in_other_threads():
    failures = []

    def run():
        try:
            with end_at_signals():
                pass
        except ValueError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == []


# State


def state_of(pid, phase="running", name="default"):
    found = identify(pid) or ProcessId(pid, "gone")
    member = Member(name, "/nowhere", found, 12_345, 1, 2)
    options = NodeOptions(12_345, 1, 1 << 30, False, (12,))
    return NodeState(name, "2.17.0", phase, "now", "java", options, (member,), (12_345, 1, 2))


def test_state_round_trip():
    assert read_state("default") is None
    state = state_of(os.getpid())
    node_directory("default").mkdir(parents=True)
    write_state(state)
    assert read_state("default") == state
    assert running_addresses() == ("127.0.0.1:12345",)
    assert running_addresses("other") == ()
    remove_state("default")
    assert running_addresses() == ()


def test_a_node_that_starts_or_is_gone_has_no_address():
    node_directory("default").mkdir(parents=True)
    write_state(state_of(os.getpid(), phase="starting"))
    assert running_addresses() == ()
    write_state(state_of(2**22 + 1))
    assert running_addresses() == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": 1}', "\x00"])
def test_a_damaged_state_file_is_no_node(text):
    node_directory("default").mkdir(parents=True)
    (node_directory("default") / "node.json").write_text(text)
    assert read_state("default") is None
    assert running_addresses() == ()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\\b", ".hidden", "a b", "x" * 65])
def test_names_that_are_paths_are_refused(name):
    with pytest.raises(ConfigError, match="is not a name"):
        node_directory(name)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
def test_private_files_are_private(tmp_path):
    write_private(tmp_path / "f", "one")
    write_private(tmp_path / "f", "two")
    assert (tmp_path / "f").read_text() == "two"
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_running_addresses_imports_nothing_heavy():
    code = (
        "import sys; from ignitetf.node import running_addresses; running_addresses();"
        "print([m for m in ('numpy', 'pyignite', 'psutil', 'filelock') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert sys.platform != "linux" or done.stdout.strip() == "[]"


# JVM options


def arguments(major, cache=None):
    java = JavaRuntime(Path("/j/bin/java"), major, "test")
    return argument_file(java, [Path("/a b/x.jar")], Path('/d "q"'), 512, cache).splitlines()


def test_options_that_a_java_does_not_know_are_left_out():
    unsafe, native = "--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED"
    assert unsafe not in arguments(21) and native not in arguments(23)
    assert unsafe in arguments(23) and {unsafe, native} <= set(arguments(25))


def test_paths_are_quoted():
    lines = arguments(25, StartCache(Path("/c d/x.aot"), write=False))
    assert '"/a b/x.jar"' in lines and '"-XX:AOTCache=/c d/x.aot"' in lines
    assert lines[-1] == '"/d \\"q\\"/node.xml"'


def test_options_of_the_user_come_after_ours(monkeypatch):
    monkeypatch.setenv("IGNITETF_JVM_OPTIONS", "-Xmx4g\n -Da='b c'")
    lines = arguments(25, StartCache(Path("/c/x.aot"), write=False))
    assert lines[lines.index("-cp") - 2 : lines.index("-cp")] == ['"-Xmx4g"', '"-Da=b c"']


@pytest.mark.parametrize(
    ("options", "told"),
    [("-Da='b", "No closing quotation"), ("-Xmx4g Xms1g", "'Xms1g' is not an option")],
)
def test_what_is_no_option_is_told(monkeypatch, options, told):
    monkeypatch.setenv("IGNITETF_JVM_OPTIONS", options)
    with pytest.raises(NodeError, match=f"IGNITETF_JVM_OPTIONS: {told}"):
        arguments(25)


def test_the_log_folder_is_written_as_java_properties_are_read():
    text = logging_properties(Path("/ü 100%/\U0001f600"))
    assert "pattern=/\\u00fc 100%%/\\ud83d\\ude00/log/ignite-%g.log\n" in text
    assert text.isascii()


def test_the_environment_keeps_no_secret_and_no_java_option():
    given = {"PATH": "/bin", "IGNITETF_PASSWORD": "s", "JAVA_TOOL_OPTIONS": "x", "IGNITE_HOME": "y"}
    assert clean_environment(given) == {
        "PATH": "/bin",
        "LC_ALL": "C.UTF-8",
        "MALLOC_ARENA_MAX": "2",
    }


def test_start_cache_is_written_once_and_belongs_to_its_files(home, tmp_path, monkeypatch):
    monkeypatch.delenv("IGNITETF_AOT", raising=False)
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"1")
    java = JavaRuntime(jar, 25, "test")
    first = start_cache(home, java, [jar])
    assert first is not None and first.write
    first.path.write_bytes(b"half")
    adopt_training(first.path, complete=False)
    assert not first.path.exists()
    first.path.write_bytes(b"whole")
    adopt_training(first.path, complete=True)
    second = start_cache(home, java, [jar])
    assert second is not None and not second.write and second.path.read_bytes() == b"whole"
    jar.write_bytes(b"22")
    third = start_cache(home, java, [jar])
    assert third is not None and third.write
    monkeypatch.setenv("IGNITETF_JVM_OPTIONS", "-XX:+UseSerialGC")
    other = start_cache(home, java, [jar])
    assert other is not None and other.path.name.partition("-")[0] not in third.path.name
    assert start_cache(home, JavaRuntime(jar, 21, "test"), [jar]) is None
    monkeypatch.setenv("IGNITETF_AOT", "off")
    assert start_cache(home, java, [jar]) is None


# Logs


def test_the_cause_of_a_death_is_found_in_the_log(tmp_path):
    (tmp_path / "log").mkdir()
    (tmp_path / "out.log").write_text(
        "class org.apache.ignite.IgniteException: Failed to start\n\tat x.Y.z(Y.java:1)\n"
        "Caused by: class a.B: outer\n\tat x\nCaused by: java.io.E: the disk is full\n\tat y\n"
    )
    assert failure_cause(tmp_path) == "the disk is full"
    (tmp_path / "out.log").write_text("Unrecognized option: --x\nError: A fatal exception\n")
    assert failure_cause(tmp_path) == "Unrecognized option: --x"
    (tmp_path / "out.log").write_text("first\nlast words\n\n")
    assert failure_cause(tmp_path) == "last words"


def test_follow_goes_on_after_rotation(tmp_path):
    log = tmp_path / "f.log"
    log.write_text("a\nb\nc\n")
    lines = follow(log, 2)
    assert [next(lines), next(lines)] == ["b", "c"]
    threading.Timer(0.3, lambda: append(log, "d\n")).start()
    assert next(lines) == "d"
    threading.Timer(0.3, lambda: rotate(log, "longer than what was there before\n")).start()
    assert next(lines) == "longer than what was there before"


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def rotate(path, text):
    path.replace(path.with_suffix(".1"))
    path.write_text(text)


def test_last_lines_and_nodes_without_logs(tmp_path):
    assert last_lines(tmp_path / "none", 3) == []
    with pytest.raises(NodeError, match="never started"):
        member_directories(tmp_path)


def test_state_file_is_json_for_programs():
    node_directory("default").mkdir(parents=True)
    write_state(state_of(os.getpid()))
    data = json.loads((node_directory("default") / "node.json").read_text())
    assert data["members"][0]["process"]["pid"] == os.getpid()


# A full disk


@pytest.mark.parametrize(
    ("persist", "stored", "least"),
    [(False, False, 16 << 20), (True, False, 256 << 20), (True, True, 80 << 20)],
)
def test_a_node_is_not_started_on_a_disk_that_has_no_room_for_it(
    monkeypatch, persist, stored, least
):
    options = NodeOptions(1, 3, 1 << 30, persist, ())
    node_directory("n").mkdir(parents=True)
    if stored:
        write_store("n", Store(3, False))
    usage = shutil.disk_usage(node_directory("n"))
    free = 3 * least
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    check_disk(options, "n")
    free -= 1
    with pytest.raises(NodeError, match=r"the disk of .* MB free") as caught:
        check_disk(options, "n")
    assert "IGNITETF_HOME" in caught.value.hint


@pytest.fixture
def ended():
    """A node whose process is no more, and the folder of its files."""
    directory = node_directory("n") / "n"
    (directory / "log").mkdir(parents=True)
    member = Member("n", str(directory), ProcessId(2**22 + 1, "ticks 1"), 1, 2, 3)
    options = NodeOptions(1, 1, 1 << 30, True, ())
    write_state(NodeState("n", "2", "running", "now", "java", options, (member,), (1, 2, 3)))
    return directory


REQUEST = "Failed to execute SQL query\nCaused by: class o.h2.X: Column not found\n"
FATAL = "[SEVERE] Critical system error detected. Will be handled [hnd=StopNodeOrHalt]\n"
MEMORY = (
    "[SEVERE] JVM will be halted immediately due to the failure: [failureCtx=FailureContext"
    " [type=CRITICAL_ERROR, err=class o.a.i.IgniteOutOfMemoryException: Out of memory in data region"
    " [name=default]]]\n"
)
JAVA = "java.lang.InternalError: a fault occurred in an unsafe memory access operation"


@pytest.mark.parametrize(
    ("log", "free", "words"),
    [
        (JAVA, 1 << 30, "was full"),
        ("Caused by: java.io.IOException: No space left on device", 1 << 30, "was full"),
        ("", 1 << 10, "is full"),
        (f"{REQUEST}{MEMORY}\tat x\nThread [name=sys]\n", 1 << 30, "Out of memory in data region"),
        (f"{REQUEST}{FATAL}Caused by: class o.a.i.X: the reason", 1 << 30, "the reason"),
        (f"{REQUEST}[INFO][shutdown-hook][G] Invoking shutdown hook...", 1 << 30, "was stopped"),
        # What a request did wrong is no reason.
        (REQUEST, 1 << 30, "gives no reason"),
        ("", 1 << 30, "gives no reason"),
    ],
)
def test_whoever_finds_nobody_is_told_why_the_node_ended(monkeypatch, ended, log, free, words):
    usage = shutil.disk_usage(ended)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    (ended / "out.log").write_text(log)
    assert words in node_status("n").cause and node_status("n").state == "crashed"
    with pytest.raises(ConnectError, match=words) as caught:
        connect("127.0.0.1:1")
    assert "node 'n' has ended" in str(caught.value) and "node logs" in caught.value.hint
    remove_state("n")
    with pytest.raises(ConnectError) as caught:
        connect("127.0.0.1:1")
    assert "ended" not in str(caught.value)


@pytest.mark.parametrize("text", [JAVA, "Failed to write: No space left on device"])
def test_the_words_of_java_for_a_full_disk_are_translated(text):
    error = server_error(1, text)
    assert isinstance(error, ServerOverloaded) and "disk is full" in str(error)
    assert error.server_message == text


def test_a_cache_that_could_not_be_made_is_told_with_what_to_do():
    error = server_error(1, "class o.a.i.X: Failed to complete exchange process.")
    assert isinstance(error, ServerOverloaded) and "--memory" in error.hint
