"""`Node`: start, stop and look at an embedded node by name.

`IGNITETF_HOME/nodes/NAME/` has the state file and a folder for each member (a JVM): its Spring
XML, its options, its logs, and its data if they are kept on disk. One lock for each name keeps
two commands from starting or stopping the same node at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from ignitetf.errors import ConfigError, IgniteTFError, NodeError
from ignitetf.node.config import DEFAULT_PARTITION_COUNTS, MAX_PARTITION_COUNT
from ignitetf.node.jars import IGNITE_VERSION, Progress, ensure_jars
from ignitetf.node.java import find_java
from ignitetf.node.jvm import adopt_training
from ignitetf.node.launcher import Launch
from ignitetf.node.memory import check_memory, parse_memory
from ignitetf.node.process import (
    end_at_signals,
    kill,
    private_directory,
    terminate,
    wait_gone,
)
from ignitetf.node.readiness import answers
from ignitetf.node.security import Security
from ignitetf.node.state import (
    NodeOptions,
    NodeState,
    all_states,
    node_directory,
    read_state,
    read_store,
    remove_state,
)
from ignitetf.settings import Settings, ignitetf_home

__all__ = ["Node", "NodeStatus", "Note", "node_names", "node_status", "stop_node"]

Note = Callable[[str], None]

DEFAULT_PORT = 10_800
DEFAULT_MEMORY = "2g"
MAX_NODES = 32
_KILL_TIMEOUT_S = 10


@dataclass(frozen=True)
class NodeStatus:
    """A node as it is now.

    Attributes:
        name: Its name.
        state: "stopped", "starting", "running", "not responding" (processes run, no answer),
            "incomplete" (some members are gone) or "crashed" (all are gone).
        address: Addresses of the running members, separated by commas; None when there is none.
        pids: Process ids of the running members.
        nodes: Number of running members.
        version: Version of Ignite.
        persist: Whether data are kept on disk.
        secure: Whether clients need TLS, a certificate and a login.
        java: The Java program; None when stopped.
        started: Time of the start, ISO 8601; None when stopped.
        directory: Folder of its files.
    """

    name: str
    state: str
    address: str | None
    pids: list[int]
    nodes: int
    version: str
    persist: bool
    secure: bool
    java: str | None
    started: str | None
    directory: str

    def as_dict(self) -> dict[str, object]:
        """The attributes by name."""
        return asdict(self)


class Node:
    """An embedded node that runs.

    As a context manager it stops the node at the end of the block, unless the node already ran
    when it was asked for.

    Attributes:
        name: Its name.
        already_running: Whether it ran before `start` was called.
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
        jars: str | Path | None = None,
        note: Note | None = None,
        progress: Progress | None = None,
    ) -> Node:
        """Start a node and wait until it answers a query, or give the one that runs already.

        Args:
            name: Name of the node.
            port: Thin client port of the first member (None: 10800); the others follow.
            nodes: Number of members, a real cluster on the loopback interface (None: 1).
            memory: Memory for the data of each member, such as "512m" (None: "2g").
            persist: Whether data are kept on disk and come back at the next start.
            secure: Whether the node speaks TLS only, asks for a client certificate and a login,
                and writes a profile with all that clients need; includes `persist`.
            template_partitions: Partition counts for cache templates, beside 1, 2, 4, ... 1024.
            timeout_s: Limit for the start, without the time to fetch jars.
            jars: Folder with the jars, for machines without a network.
            note: Takes lines for the user.
            progress: Takes the progress of a download: what, bytes done, bytes in all.

        Raises:
            ConfigError: An option is unusable.
            NodeError: It cannot be started, or runs with other options; nothing is left behind.
        """
        note = note or _silent
        options = _options(name, port, nodes, memory, persist, secure, template_partitions)
        with end_at_signals(), _locked(name, timeout_s):
            if (state := read_state(name)) is not None:
                if state.phase == "running" and state.alive:
                    given = {
                        "port": port,
                        "nodes": nodes,
                        "memory": memory and options.memory_bytes,
                        "persist": persist,
                        "secure": secure,
                    }
                    _check_same(state, given, template_partitions)
                    return cls(_completed(state, timeout_s, note), already_running=True)
                _clear(state, note)
            _check_store(options, name)
            check_memory(options.memory_bytes, options.nodes)
            java = find_java()
            found = ensure_jars(ignitetf_home(), Path(jars) if jars else None, progress)
            return cls(Launch(name, options, java, found, timeout_s).run(), already_running=False)

    @classmethod
    def attach(cls, name: str = "default") -> Node:
        """The node of this name, which runs already; raises NodeError when it does not."""
        state = read_state(name)
        if state is None or state.phase != "running" or not state.alive:
            raise NodeError(
                f"node {name!r} does not run", hint="start it with 'ignitetf node start'"
            )
        return cls(state, already_running=True)

    @property
    def address(self) -> str:
        """Where to connect: `HOST:PORT`, or several separated by commas."""
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
        """How to connect to it; for a secured node with its certificates and its user."""
        return _settings(self._state, self.addresses)

    @property
    def security(self) -> Security:
        """Users and certificates; raises NodeError when the node is not secured."""
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
        """The node as it is now."""
        return node_status(self.name)

    def stop(self) -> None:
        """Stop the node; data that are not kept on disk are gone then."""
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
        timeout_s: Time it gets to end by itself; then it is killed.
        note: Takes lines for the user.

    Returns:
        Whether a process was there to be stopped.
    """
    note = note or _silent
    if read_state(name) is None and not node_directory(name).exists():
        note(f"node {name!r} does not run")
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


def node_status(name: str = "default") -> NodeStatus:
    """The node as it is now; asks it a query when its processes run."""
    state = read_state(name)
    stored = read_store(name)
    running = [member for member in state.members if member.alive] if state else []
    return NodeStatus(
        name=name,
        state=_word(state, len(running)),
        address=",".join(member.address for member in running) or None,
        pids=[member.process.pid for member in running],
        nodes=len(running),
        version=state.version if state else IGNITE_VERSION,
        persist=state.options.persist if state else stored is not None,
        secure=state.options.secure if state else stored is not None and stored.secure,
        java=state.java if state else None,
        started=state.started if state else None,
        directory=str(node_directory(name)),
    )


def node_names() -> list[str]:
    """Names of all nodes that were started and not stopped."""
    return [state.name for state in all_states()]


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
            "a secured node keeps its data on disk, because its users are among them",
            hint="leave persist out",
        )
    stored = read_store(name) if persist or secure else None
    count = (stored.members if stored else 1) if nodes is None else nodes
    if not 1 <= count <= MAX_NODES:
        raise ConfigError(f"--nodes {count}: expected 1 to {MAX_NODES}")
    for partitions in template_partitions:
        if not 1 <= partitions <= MAX_PARTITION_COUNT:
            raise ConfigError(
                f"--template-partitions {partitions}: expected 1 to {MAX_PARTITION_COUNT}"
            )
    return NodeOptions(
        port=DEFAULT_PORT if port is None else port,
        nodes=count,
        memory_bytes=parse_memory(DEFAULT_MEMORY if memory is None else memory),
        persist=bool(persist or secure),
        secure=bool(secure),
        template_partitions=tuple(sorted(set(template_partitions))),
    )


def _check_same(
    state: NodeState, given: Mapping[str, object], template_partitions: Sequence[int]
) -> None:
    """Raise NodeError when something else is asked for than what runs."""
    running = asdict(state.options)
    running["memory"] = running["memory_bytes"]
    different = [
        f"--{option}"
        for option, value in given.items()
        if value is not None and value != running[option]
    ]
    if not _templates_of(state.options.template_partitions).issuperset(template_partitions):
        different.append("--template-partitions")
    if different:
        raise NodeError(
            f"node {state.name!r} already runs at {','.join(state.addresses)} with another"
            f" {', '.join(different)}",
            hint=f"stop it first (ignitetf node stop --name {state.name}), or give another --name",
        )


def _templates_of(asked: Sequence[int]) -> set[int]:
    return {*DEFAULT_PARTITION_COUNTS, *asked}


def _check_store(options: NodeOptions, name: str) -> None:
    """Raise NodeError when the data on disk belong to another kind of node."""
    stored = read_store(name)
    if stored is None:
        return
    other = f"another --name, or remove {node_directory(name)}"
    if not options.persist:
        # An empty node of the same name would look as if the data were lost.
        raise NodeError(
            f"node {name!r} keeps data on disk, a node without --persist does not read them",
            hint=f"give {'--secure' if stored.secure else '--persist'}, {other}",
        )
    if stored.members != options.nodes:
        raise NodeError(
            f"node {name!r} keeps data of {stored.members} member{'s' if stored.members > 1 else ''}"
            f" on disk, --nodes {options.nodes} cannot read them",
            hint=f"give --nodes {stored.members}, {other}",
        )
    if stored.secure != options.secure:
        kept = "with --secure" if stored.secure else "without --secure"
        raise NodeError(
            f"node {name!r} keeps data on disk that were written {kept}",
            hint=f"start it {kept}, give {other}",
        )


def _settings(state: NodeState, addresses: Sequence[str]) -> Settings:
    if state.options.secure:
        return Security(state.name, node_directory(state.name)).settings(addresses)
    return Settings(addresses=tuple(addresses))


def _forget(state: NodeState) -> None:
    """Remove the state of a node that has ended, and its profile."""
    if state.options.secure:
        Security(state.name, node_directory(state.name)).remove_profile()
    remove_state(state.name)


def _word(state: NodeState | None, running: int) -> str:
    if state is None:
        return "stopped"
    if not running:
        return "crashed"
    if state.phase == "starting":
        return "starting"
    if running < len(state.members):
        return "incomplete"
    try:
        for address in state.addresses:
            settings = _settings(state, [address])
            answers(settings.replace(connect_timeout_s=2, request_timeout_s=5))
    except IgniteTFError:
        return "not responding"
    return "running"


def _completed(state: NodeState, timeout_s: float, note: Note) -> NodeState:
    """The state once members of a cluster that have ended run again."""
    gone = [member.name for member in state.members if not member.alive]
    if not gone:
        return state
    note(f"node {state.name!r}: starting {', '.join(gone)} again")
    # The members' files name the Java options and jars already; only the program is needed here.
    launch = Launch(state.name, state.options, find_java(), [], timeout_s)
    return launch.complete(state)


def _clear(state: NodeState, note: Note) -> None:
    """End and remove what a crash or a killed start left."""
    for member in state.members:
        kill(member.process)
        wait_gone(member.process, _KILL_TIMEOUT_S)
    if state.trains:
        adopt_training(Path(state.trains), complete=False)
    _forget(state)
    pids = ", ".join(str(member.process.pid) for member in state.members)
    what = "an interrupted start" if state.phase == "starting" else "a node that had ended"
    note(f"node {state.name!r}: removed what was left of {what} (process {pids})")


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
            hint="wait for it, or give more time",
        ) from error


def _silent(line: str) -> None:
    """Take a line and say nothing."""
