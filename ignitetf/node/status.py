"""`NodeStatus`: the present status of an embedded node, from state file, processes and a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ignitetf.errors import IgniteTFError
from ignitetf.local.logs import cause_of_end
from ignitetf.local.state import NodeState, all_states, node_directory, read_state, read_store
from ignitetf.node.jars import IGNITE_VERSION
from ignitetf.node.readiness import answers
from ignitetf.node.security import Security
from ignitetf.settings import Settings

__all__ = ["NodeStatus", "node_names", "node_status", "settings_of"]


@dataclass(frozen=True)
class NodeStatus:
    """The present status of a node.

    Attributes:
        name: Its name.
        state: "stopped", "starting", "running", "not responding" (processes run but do not
            answer), "incomplete" (some members have ended) or "crashed" (all have ended).
        address: Addresses of the running members, separated by commas; None if none runs.
        pids: Process ids of the running members.
        nodes: Number of running members.
        version: Version of Ignite.
        persist: True if data are kept on disk.
        secure: True if clients need TLS, a certificate and a login.
        java: The Java program; None when stopped.
        started: Time of the start, ISO 8601; None when stopped.
        directory: Folder of its files.
        cause: Reason for the end of the first missing member, from its log and disk. None if all
            run.
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
    cause: str | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the attributes by name."""
        return asdict(self)


def node_status(name: str = "default") -> NodeStatus:
    """Return the present status of a node; sends a query if its processes run."""
    state = read_state(name)
    stored = read_store(name)
    running = [member for member in state.members if member.alive] if state else []
    gone = [member for member in state.members if member not in running] if state else []
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
        cause=cause_of_end(gone[0]) if gone else None,
    )


def node_names() -> list[str]:
    """Return the names of all nodes that were started and not stopped."""
    return [state.name for state in all_states()]


def settings_of(state: NodeState, addresses: Sequence[str]) -> Settings:
    """Return the settings to connect to members of a node at these addresses."""
    if state.options.secure:
        return Security(state.name, node_directory(state.name)).settings(addresses)
    return Settings(addresses=tuple(addresses))


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
            settings = settings_of(state, [address])
            answers(settings.replace(connect_timeout_s=2, request_timeout_s=5))
    except IgniteTFError:
        return "not responding"
    return "running"
