"""`Node`: start, stop and inspect an embedded node by name.

`IGNITETF_HOME/nodes/NAME/` holds the state file and one folder per member (a JVM) with its Spring
XML, options and logs, and its data if they are kept on disk. A lock per name prevents two commands
from starting or stopping the same node at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from ignitetf.errors import ConfigError, NodeError
from ignitetf.home import ignitetf_home
from ignitetf.local.process import (
    end_at_signals,
    is_ending,
    kill,
    private_directory,
    terminate,
    wait_gone,
)
from ignitetf.local.state import (
    NodeOptions,
    NodeState,
    node_directory,
    read_state,
    read_store,
    remove_state,
    running_nodes,
)
from ignitetf.node.checks import check_disk, check_same, check_store
from ignitetf.node.jars import Progress, ensure_jars
from ignitetf.node.jvm import adopt_training, find_java
from ignitetf.node.memory import check_memory, parse_memory
from ignitetf.node.ports import wait_free
from ignitetf.node.readiness import use_views
from ignitetf.node.security import Security
from ignitetf.node.start import Launch
from ignitetf.node.status import NodeStatus, node_names, node_status, settings_of
from ignitetf.partitions import MAX_PARTITIONS
from ignitetf.settings import Settings
from ignitetf.spelling import did_you_mean

__all__ = ["Node", "NodeStatus", "Note", "node_names", "node_status", "stop_node"]

Note = Callable[[str], None]

DEFAULT_PORT = 10_800
DEFAULT_MEMORY = "2g"
MAX_NODES = 32
_KILL_TIMEOUT_S = 10


class Node:
    """A running embedded node.

    As a context manager it stops the node at the end of the block, unless the node was already
    running.

    Attributes:
        name: Its name.
        already_running: True if it was running before `start` was called.
    """

    def __init__(self, state: NodeState, *, already_running: bool) -> None:
        self.name = state.name
        self.already_running = already_running
        self._state = state

    @classmethod
    def start(
        cls,
        name: str = "default",
        port: int | None = None,
        nodes: int | None = None,
        memory: str | int | None = None,
        persist: bool | None = None,
        secure: bool | None = None,
        template_partitions: Sequence[int] = (),
        timeout_s: float = 120,
        *,
        data_center: str | Sequence[str] | None = None,
        jars: str | Path | None = None,
        note: Note | None = None,
        progress: Progress | None = None,
    ) -> Node:
        """Start a node and wait until it answers a query, or return the one that already runs.

        Args:
            name: Name of the node.
            port: Thin client port of the first member (None: 10800); the others use the next ones.
            nodes: Number of members, a real cluster on the loopback interface (None: 1).
            memory: Memory for the data of each member, such as "512m" (None: "2g").
            persist: True if data are kept on disk and available after the next start.
            secure: True if the node accepts only TLS with a client certificate and a login, and
                writes a profile with everything clients need; includes `persist`.
            template_partitions: Partition counts for cache templates, besides 1, 2, 4, ... 1024.
            timeout_s: Limit for the start, not counting the download of jars.
            data_center: The node attribute `data_center`, by which clients find the nearest copies:
                one for all members, or one for each.
            jars: Folder with the jars, for machines without a network.
            note: Called with messages for the user.
            progress: Called with the progress of a download: label, bytes done, total bytes.

        Raises:
            ConfigError: An option is invalid.
            NodeError: The node cannot be started, or runs with other options; a failed start is
                undone.
        """
        note = note or _discard_note
        options = _options(name, port, nodes, memory, persist, secure, template_partitions)
        options = replace(options, data_center=_data_centers(data_center, options.nodes))
        with end_at_signals(), _locked(name, timeout_s):
            if (state := read_state(name)) is not None:
                for member in state.members:
                    # A process that was just killed still appears to run.
                    if is_ending(member.process):
                        wait_gone(member.process, _KILL_TIMEOUT_S)
                if state.phase == "running" and state.alive:
                    given = {
                        "port": port,
                        "nodes": nodes,
                        "memory": memory and options.memory_bytes,
                        "persist": persist,
                        "secure": secure,
                        "data-center": options.data_center or None,
                    }
                    check_same(state, given, template_partitions)
                    return cls(_completed(state, timeout_s, note), already_running=True)
                _clear(state, note)
            check_store(options, name)
            check_disk(options, name)
            check_memory(options.memory_bytes, options.nodes)
            java = find_java()
            found = ensure_jars(ignitetf_home(), Path(jars) if jars else None, progress)
            node = cls(Launch(name, options, java, found, timeout_s).run(), already_running=False)
        if not options.secure:
            note(
                f"node {name!r} has no login: every user of this machine can read and change its"
                " data; --secure starts a node with a login"
            )
        return node

    @classmethod
    def attach(cls, name: str = "default") -> Node:
        """Return the running node of this name; raises NodeError if it does not run."""
        state = read_state(name)
        if state is None or state.phase != "running" or not state.alive:
            raise NodeError(f"node {name!r} does not run", hint=_others(name))
        return cls(state, already_running=True)

    @property
    def address(self) -> str:
        """Address to connect to: `HOST:PORT`, or several separated by commas."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the members."""
        return tuple(member.address for member in self._state.members)

    @property
    def pids(self) -> list[int]:
        """Process ids of the members."""
        return [member.process.pid for member in self._state.members]

    @property
    def version(self) -> str:
        """Version of Apache Ignite."""
        return self._state.version

    @property
    def settings(self) -> Settings:
        """Settings to connect with; for a secured node including its certificates and user."""
        return settings_of(self._state, self.addresses)

    @property
    def security(self) -> Security:
        """Users and certificates; raises NodeError if the node is not secured."""
        if not self._state.options.secure:
            raise NodeError(
                f"node {self.name!r} has no users, it was started without --secure",
                hint="ignitetf node start --name NEW --secure starts a node with login",
            )
        return Security(self.name, node_directory(self.name))

    @property
    def xml_files(self) -> list[Path]:
        """The Spring XML of each member."""
        return [Path(member.directory) / "node.xml" for member in self._state.members]

    def status(self) -> NodeStatus:
        """Return the present status of the node."""
        return node_status(self.name)

    def stop(self) -> None:
        """Stop the node; data that are not kept on disk are lost."""
        stop_node(self.name)

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.already_running:
            self.stop()

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.address}>"


def stop_node(name: str = "default", *, timeout_s: float = 60, note: Note | None = None) -> bool:
    """Stop a node.

    Args:
        name: Name of the node.
        timeout_s: Time to shut down by itself before it is killed.
        note: Called with messages for the user.

    Returns:
        Whether a process was running.
    """
    note = note or _discard_note
    if read_state(name) is None and not node_directory(name).exists():
        near = _near(name)
        note(f"node {name!r} does not run" + (f"\nhint: {near}" if near else ""))
        return False
    with _locked(name, timeout_s):
        state = read_state(name)
        if state is None:
            note(f"node {name!r} does not run")
            return False
        if not state.alive:
            _clear(state, note)
            return False
        _end(state, timeout_s, note)
        _forget(state)
    note(f"node {name!r} has stopped")
    return True


def _options(
    name: str,
    port: int | None,
    nodes: int | None,
    memory: str | int | None,
    persist: bool | None,
    secure: bool | None,
    template_partitions: Sequence[int],
) -> NodeOptions:
    if secure and persist is False:
        raise ConfigError(
            "a secured node keeps its data on disk, because its users are stored there, too",
            hint="omit persist",
        )
    stored = read_store(name) if persist or secure else None
    count = (stored.members if stored else 1) if nodes is None else nodes
    if not 1 <= count <= MAX_NODES:
        raise ConfigError(f"--nodes {count}: expected 1 to {MAX_NODES}")
    for partitions in template_partitions:
        if not 1 <= partitions <= MAX_PARTITIONS:
            raise ConfigError(f"--template-partitions {partitions}: expected 1 to {MAX_PARTITIONS}")
    return NodeOptions(
        port=DEFAULT_PORT if port is None else port,
        nodes=count,
        memory_bytes=parse_memory(DEFAULT_MEMORY if memory is None else memory),
        persist=bool(persist or secure),
        secure=bool(secure),
        template_partitions=tuple(sorted(set(template_partitions))),
    )


def _data_centers(given: str | Sequence[str] | None, members: int) -> tuple[str, ...]:
    """Return the data center of each member; empty for none."""
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if len(names) == 1:
        names *= members
    if len(names) not in (0, members) or not all(names):
        raise ConfigError(
            f"{len(names)} data centers for {members} members",
            hint="give one name for all members, or one for each",
        )
    return names


def _forget(state: NodeState) -> None:
    """Remove the state and the profile of a node that has ended."""
    if state.options.secure:
        Security(state.name, node_directory(state.name)).remove_profile()
    remove_state(state.name)


def _completed(state: NodeState, timeout_s: float, note: Note) -> NodeState:
    """Return the state after restarting the members that have ended."""
    gone = [member.name for member in state.members if not member.alive]
    if not gone:
        return state
    note(f"node {state.name!r}: starting {', '.join(gone)} again")
    # The members' files already name the Java options and jars, so only the program is needed.
    launch = Launch(state.name, state.options, find_java(), [], timeout_s)
    state = launch.complete(state)
    for member in state.members:
        if member.name in gone:
            use_views(settings_of(state, [member.address]))
    return state


def _clear(state: NodeState, note: Note) -> None:
    """Clean up after a crash or an interrupted start."""
    for member in state.members:
        kill(member.process)
        wait_gone(member.process, _KILL_TIMEOUT_S)
        wait_free(member.client_port)
    if state.trains:
        adopt_training(Path(state.trains), complete=False)
    _forget(state)
    pids = ", ".join(str(member.process.pid) for member in state.members)
    what = "an interrupted start" if state.phase == "starting" else "an ended node"
    note(f"node {state.name!r}: cleaned up after {what} (process {pids})")


def _end(state: NodeState, timeout_s: float, note: Note) -> None:
    for member in state.members:
        terminate(member.process)
    if state.trains:
        note("writing the start-up cache, once; this takes a few seconds")
    complete = True
    for member in state.members:
        if not wait_gone(member.process, timeout_s):
            note(f"{member.name} did not end within {timeout_s:g} s and is killed")
            kill(member.process)
            complete = wait_gone(member.process, _KILL_TIMEOUT_S) and False
    if state.trains:
        adopt_training(Path(state.trains), complete=complete)


@contextmanager
def _locked(name: str, timeout_s: float) -> Iterator[None]:
    directory = private_directory(node_directory(name))
    try:
        with FileLock(directory / "lock", timeout=timeout_s):
            yield
    except Timeout as error:
        raise NodeError(
            f"node {name!r} is being started or stopped by another process for {timeout_s:g} s",
            hint="wait for it, or raise the time limit",
        ) from error


def _near(name: str) -> str | None:
    """Return the hint for a mistyped name; None if no running node has a similar one."""
    return did_you_mean(name, running_nodes(), form="--name {}".format)


def _others(name: str) -> str:
    """Return the hint for a node that does not run: other running nodes, or how to start it."""
    if (near := _near(name)) is not None:
        return near
    if running := running_nodes():
        return f"these run: {', '.join(running)} (ignitetf node ls)"
    return f"start it with 'ignitetf node start{'' if name == 'default' else f' --name {name}'}'"


def _discard_note(line: str) -> None:
    """Ignore a message."""
