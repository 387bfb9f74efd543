"""The state file of an embedded node, which connects one command with the next.

`IGNITETF_HOME/nodes/NAME/node.json` is written atomically. It says which processes belong to the
node and how to reach them; if the file is missing, no node runs. Every command that connects reads
this module, so it imports nothing heavy.
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
from ignitetf.trust import check_trust

__all__ = [
    "Member",
    "NodeOptions",
    "NodeState",
    "Store",
    "all_states",
    "kept_nodes",
    "node_directory",
    "read_state",
    "read_store",
    "remove_state",
    "running_addresses",
    "running_nodes",
    "write_state",
    "write_store",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FILE = "node.json"
_STORE = "store.json"


@dataclass(frozen=True)
class NodeOptions:
    """Start options of a node; starting it again must use the same options."""

    port: int
    nodes: int
    memory_bytes: int
    persist: bool
    template_partitions: tuple[int, ...]
    secure: bool = False
    data_center: tuple[str, ...] = ()  # of each member; empty for none


@dataclass(frozen=True)
class Member:
    """One JVM of a node, which Ignite itself calls a node of the cluster."""

    name: str
    directory: str
    process: ProcessId
    client_port: int
    discovery_port: int
    communication_port: int

    @property
    def address(self) -> str:
        """Address for thin clients."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def alive(self) -> bool:
        """True if its process runs."""
        return is_alive(self.process)


@dataclass(frozen=True)
class NodeState:
    """A node that was started and not yet stopped.

    Attributes:
        name: Its name.
        version: Version of Ignite.
        phase: "starting" until every member has answered a query, then "running".
        started: Time of the start, ISO 8601 with offset.
        java: The Java program.
        options: Its start options.
        members: Its processes, in the order of their ports.
        ports: All its ports, including those of members that are not started yet.
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
        """True if any member runs."""
        return any(member.alive for member in self.members)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the running members."""
        return tuple(member.address for member in self.members if member.alive)


@dataclass(frozen=True)
class Store:
    """Data on disk: the number of members they belong to, and whether clients must log in."""

    members: int
    secure: bool


def node_directory(name: str) -> Path:
    """Return the folder of the node, which need not exist.

    Raises:
        ConfigError: The name contains forbidden characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a name for a node",
            hint="use letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return ignitetf_home() / "nodes" / name


def read_state(name: str) -> NodeState | None:
    """Return the state of the node; None if the file is missing or unreadable.

    Raises:
        ConfigError: Another user could have written it.
    """
    path = node_directory(name) / _FILE
    check_trust(path, "the state of a node")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return _from_json(data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(state: NodeState) -> None:
    """Replace the state file."""
    write_private(node_directory(state.name) / _FILE, json.dumps(asdict(state), indent=1))


def remove_state(name: str) -> None:
    """Remove the state file of the node; its data and logs remain."""
    (node_directory(name) / _FILE).unlink(missing_ok=True)


def all_states() -> list[NodeState]:
    """Return the states of all nodes in this home, sorted by name."""
    files = (ignitetf_home() / "nodes").glob(f"*/{_FILE}")
    states = (read_state(file.parent.name) for file in sorted(files))
    return [state for state in states if state is not None]


def running_addresses(name: str = "default") -> tuple[str, ...]:
    """Return the addresses of the running embedded node; empty if it does not run."""
    state = read_state(name)
    return () if state is None or state.phase != "running" else state.addresses


def running_nodes() -> list[str]:
    """Return the names of the embedded nodes that run, sorted."""
    return [state.name for state in all_states() if state.phase == "running" and state.alive]


def kept_nodes() -> list[str]:
    """Return the names of the embedded nodes that run or have data on disk, sorted."""
    folders = (ignitetf_home() / "nodes").glob("*/")
    names = (folder.name for folder in folders if _NAME.fullmatch(folder.name))
    return sorted(name for name in names if read_state(name) or read_store(name))


def read_store(name: str) -> Store | None:
    """Return the store's members and login, as recorded; None without data."""
    try:
        data = json.loads((node_directory(name) / _STORE).read_text(encoding="utf-8"))
        return Store(int(data["members"]), bool(data["secure"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_store(name: str, store: Store | None) -> None:
    """Record the store's members and login; None without data."""
    path = node_directory(name) / _STORE
    if store is None:
        path.unlink(missing_ok=True)
    else:
        write_private(path, json.dumps(asdict(store)))


def _from_json(data: dict[str, Any]) -> NodeState:
    options = dict(data["options"])
    options["template_partitions"] = tuple(options["template_partitions"])
    options["data_center"] = tuple(options.get("data_center", ()))
    members = tuple(
        Member(**{**member, "process": ProcessId(**member["process"])})
        for member in data["members"]
    )
    ports = tuple(data["ports"])
    changed = {"options": NodeOptions(**options), "members": members, "ports": ports}
    return NodeState(**{**data, **changed})
