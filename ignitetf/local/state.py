"""What is known of an embedded node between two commands: its state file.

`IGNITETF_HOME/nodes/NAME/node.json` is written whole or not at all, and says which processes make
up the node and how they are reached. Where there is no file, no node runs. This module is read by
every command that connects, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ignitetf.errors import ConfigError
from ignitetf.home import ignitetf_home
from ignitetf.local.process import ProcessId, is_alive, write_private

__all__ = [
    "Member",
    "NodeOptions",
    "NodeState",
    "Store",
    "all_states",
    "node_directory",
    "read_state",
    "read_store",
    "remove_state",
    "running_addresses",
    "write_state",
    "write_store",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FILE = "node.json"
_STORE = "store.json"


@dataclass(frozen=True)
class NodeOptions:
    """How a node was started; a second start must not ask for anything else."""

    port: int
    nodes: int
    memory_bytes: int
    persist: bool
    template_partitions: tuple[int, ...]
    secure: bool = False


@dataclass(frozen=True)
class Member:
    """One JVM of a node: a node of the cluster, in Ignite's words."""

    name: str
    directory: str
    process: ProcessId
    client_port: int
    discovery_port: int
    communication_port: int

    @property
    def address(self) -> str:
        """Where thin clients reach it."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return is_alive(self.process)


@dataclass(frozen=True)
class NodeState:
    """A node that was started and not yet stopped.

    Attributes:
        name: Its name.
        version: Version of Ignite.
        phase: "starting" until every member answered a query, then "running".
        started: Time of the start, ISO 8601 with offset.
        java: The Java program.
        options: How it was started.
        members: Its processes, in the order of their ports.
        ports: All its ports, those of members that are still to be started included.
        trains: File into which the first member writes a start-up cache when it ends, if any.
    """

    name: str
    version: str
    phase: str
    started: str
    java: str
    options: NodeOptions
    members: tuple[Member, ...]
    ports: tuple[int, ...]
    trains: str | None = None

    @property
    def alive(self) -> bool:
        """Whether any member runs."""
        return any(member.alive for member in self.members)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the members that run."""
        return tuple(member.address for member in self.members if member.alive)


@dataclass(frozen=True)
class Store:
    """Data on disk: of how many members, and whether clients must log in."""

    members: int
    secure: bool


def node_directory(name: str) -> Path:
    """Folder of the node; it need not exist.

    Raises:
        ConfigError: The name is no plain name.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for a node",
            hint="use letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return ignitetf_home() / "nodes" / name


def read_state(name: str) -> NodeState | None:
    """The state of the node; None when there is no file, or one that cannot be read."""
    try:
        data = json.loads((node_directory(name) / _FILE).read_text(encoding="utf-8"))
        return _from_json(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(state: NodeState) -> None:
    """Replace the state file."""
    write_private(node_directory(state.name) / _FILE, json.dumps(asdict(state), indent=1))


def remove_state(name: str) -> None:
    """Forget the node; its data and logs stay."""
    (node_directory(name) / _FILE).unlink(missing_ok=True)


def all_states() -> list[NodeState]:
    """The states of all nodes of this home, by name."""
    files = (ignitetf_home() / "nodes").glob(f"*/{_FILE}")
    states = (read_state(file.parent.name) for file in sorted(files))
    return [state for state in states if state is not None]


def running_addresses(name: str = "default") -> tuple[str, ...]:
    """Addresses of the running embedded node; empty when it does not run."""
    state = read_state(name)
    return () if state is None or state.phase != "running" else state.addresses


def read_store(name: str) -> Store | None:
    """What the data kept on disk belong to; None when there are none."""
    try:
        data = json.loads((node_directory(name) / _STORE).read_text(encoding="utf-8"))
        return Store(int(data["members"]), bool(data["secure"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_store(name: str, store: Store | None) -> None:
    """Note what the data on disk belong to; None when there are no data any more."""
    path = node_directory(name) / _STORE
    if store is None:
        path.unlink(missing_ok=True)
    else:
        write_private(path, json.dumps(asdict(store)))


def _from_json(data: dict[str, Any]) -> NodeState:
    options = dict(data["options"])
    options["template_partitions"] = tuple(options["template_partitions"])
    members = tuple(
        Member(**{**member, "process": ProcessId(**member["process"])})
        for member in data["members"]
    )
    ports = tuple(data["ports"])
    changed = {"options": NodeOptions(**options), "members": members, "ports": ports}
    return NodeState(**{**data, **changed})
