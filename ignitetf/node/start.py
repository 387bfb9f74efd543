"""One start of a node: files, ports, processes, readiness; all or nothing.

options -> folders and files -> processes -> state "starting" -> ready -> state "running"

Any failure in between, including Ctrl-C, ends the processes and removes the state.
"""

from __future__ import annotations

import datetime
import secrets
import shutil
import subprocess
import time
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from filelock import FileLock

from ignitetf.errors import NodeError
from ignitetf.home import ignitetf_home
from ignitetf.local.logs import log_tail
from ignitetf.local.process import (
    ProcessId,
    identify,
    kill,
    launch,
    private_directory,
    wait_gone,
    write_private,
)
from ignitetf.local.state import (
    Member,
    NodeOptions,
    NodeState,
    Store,
    all_states,
    node_directory,
    remove_state,
    write_state,
    write_store,
)
from ignitetf.node.config import DEFAULT_PARTITION_COUNTS, NodeConfig, spring_xml
from ignitetf.node.jars import IGNITE_VERSION
from ignitetf.node.jvm import (
    JavaRuntime,
    StartCache,
    adopt_training,
    argument_file,
    clean_environment,
    logging_properties,
    start_cache,
)
from ignitetf.node.memory import heap_mib
from ignitetf.node.ports import LOOPBACK, client_ports, free_ports, wait_free
from ignitetf.node.readiness import wait_active, wait_answer, wait_started
from ignitetf.node.security import Security
from ignitetf.settings import Settings
from ignitetf.trust import check_trust

__all__ = ["Launch"]

# Ports between members, below the range that Linux and macOS use for outgoing connections. Each
# start begins at a random port, so that two homes that start nodes at once are unlikely to collide.
_FIRST_MEMBER_PORT, _LAST_MEMBER_PORT = 20_000, 32_000
_PORTS_LOCK_TIMEOUT_S = 60
_CONNECT_TIMEOUT_S = 2.0
_KILL_TIMEOUT_S = 10


@dataclass(frozen=True)
class _Ports:
    client: int
    discovery: int
    communication: int


class Launch:
    """Starts the processes of one node.

    Args:
        name: Name of the node.
        options: Its start options.
        java: The Java to use.
        jars: The class path.
        timeout_s: Limit until all members answer a query.
    """

    def __init__(
        self,
        name: str,
        options: NodeOptions,
        java: JavaRuntime,
        jars: list[Path],
        timeout_s: float,
    ) -> None:
        self.name = name
        self.options = options
        self._java = java
        self._jars = jars
        self._timeout_s = timeout_s
        self._home = ignitetf_home()
        check_trust(node_directory(name), "the folder of a node")
        self._directory = private_directory(node_directory(name))
        self._new_stores: list[Path] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._cache: StartCache | None = None
        self._security = Security(name, self._directory) if options.secure else None

    def run(self) -> NodeState:
        """Start, and wait until every member answers.

        Raises:
            NodeError: A port is taken, a member ended, or time ran out.
        """
        deadline = time.monotonic() + self._timeout_s
        self._cache = start_cache(self._home, self._java, self._jars)
        if self._security:
            self._security.prepare()
        try:
            # Two nodes that start at once must not pick the same free ports.
            with FileLock(self._home / "nodes" / "ports.lock", timeout=_PORTS_LOCK_TIMEOUT_S):
                ports = self._choose_ports()
                self._write_files(ports)
                if self._new_stores:
                    write_store(self.name, Store(self.options.nodes, self.options.secure))
                state = self._add_members(None, ports, 1)
            wait_started(state.members, deadline)
            if len(ports) > 1:
                state = self._add_members(state, ports, len(ports))
                wait_started(state.members, deadline)
            self._wait_ready(state, deadline)
            if self._security:
                self._security.write_profile([member.address for member in state.members])
            state = replace(state, phase="running")
            write_state(state)
            return state
        except BaseException:
            self._undo()
            raise

    def complete(self, state: NodeState) -> NodeState:
        """Restart the members of a running cluster that have ended, on their old ports.

        Raises:
            NodeError: As in `run`; running members are not changed.
        """
        deadline = time.monotonic() + self._timeout_s
        missing = [index for index, member in enumerate(state.members) if not member.alive]
        try:
            for index in missing:
                wait_free(state.members[index].client_port)
                # Called only to raise its error if another program has taken the port.
                client_ports(state.members[index].client_port, 1, {})
                self._work_directory(self._member_directory(index))
                member = replace(state.members[index], process=self._spawn(index))
                members = [*state.members[:index], member, *state.members[index + 1 :]]
                state = replace(state, members=tuple(members))
                write_state(state)
            started = tuple(state.members[index] for index in missing)
            wait_started(started, deadline)
            for member in started:
                wait_answer(member, self._settings(member), deadline)
            return state
        except BaseException:
            self._end_processes()
            raise

    def _choose_ports(self) -> list[_Ports]:
        others = [state for state in all_states() if state.name != self.name and state.alive]
        owners = {port: state.name for state in others for port in state.ports}
        clients = client_ports(self.options.port, self.options.nodes, owners)
        first = _FIRST_MEMBER_PORT + secrets.randbelow(_LAST_MEMBER_PORT - _FIRST_MEMBER_PORT)
        free = free_ports(first, {*owners, *clients})
        return [_Ports(client, next(free), next(free)) for client in clients]

    def _member_name(self, index: int) -> str:
        return self.name if self.options.nodes == 1 else f"{self.name}-{index + 1}"

    def _member_directory(self, index: int) -> Path:
        return self._directory / self._member_name(index)

    def _write_files(self, ports: list[_Ports]) -> None:
        discovery = tuple(f"{LOOPBACK}:{each.discovery}" for each in ports)
        counts = tuple(sorted({*DEFAULT_PARTITION_COUNTS, *self.options.template_partitions}))
        for index, own in enumerate(ports):
            directory = private_directory(self._member_directory(index))
            for folder in ("log", "tmp"):
                (directory / folder).mkdir(exist_ok=True)
            config = NodeConfig(
                name=self._member_name(index),
                work_directory=str(self._work_directory(directory)),
                client_port=own.client,
                discovery_port=own.discovery,
                communication_port=own.communication,
                discovery_addresses=discovery,
                region_bytes=self.options.memory_bytes,
                persist=self.options.persist,
                partition_counts=counts,
                tls=self._security.stores if self._security else None,
                authentication=self._security is not None,
                data_center=self.options.data_center[index] if self.options.data_center else None,
            )
            cache = self._cache
            if cache is not None and cache.write and index:
                cache = None  # only one process writes the file
            arguments = argument_file(
                self._java, self._jars, directory, heap_mib(self.options.nodes), cache
            )
            write_private(directory / "node.xml", spring_xml(config))
            write_private(directory / "jvm.args", arguments)
            write_private(directory / "logging.properties", logging_properties(directory))

    def _work_directory(self, directory: Path) -> Path:
        """Return the folder of Ignite's files: new at each start, or kept with persistence."""
        if not self.options.persist:
            shutil.rmtree(directory / "memory", ignore_errors=True)
            return directory / "memory"
        if not (directory / "store").exists():
            self._new_stores.append(directory / "store")
        return directory / "store"

    def _spawn(self, index: int) -> ProcessId:
        directory = self._member_directory(index)
        log = directory / "out.log"
        if log.exists():
            log.replace(directory / "out.log.1")
        process = launch(
            [str(self._java.path), f"@{directory / 'jvm.args'}"],
            directory=directory,
            log=log,
            environment=clean_environment(),
        )
        self._processes.append(process)
        found = identify(process.pid)
        if found is None:
            raise NodeError(
                f"{self._java.path} ended at once (exit code {process.wait()})",
                hint="check that this java runs, or set IGNITETF_JAVA to another",
                log_tail=log_tail(directory),
            )
        return found

    def _add_members(self, state: NodeState | None, ports: list[_Ports], count: int) -> NodeState:
        """Spawn members until there are `count`, and record them in the state."""
        members = list(state.members) if state else []
        for index in range(len(members), count):
            own = ports[index]
            members.append(
                Member(
                    name=self._member_name(index),
                    directory=str(self._member_directory(index)),
                    process=self._spawn(index),
                    client_port=own.client,
                    discovery_port=own.discovery,
                    communication_port=own.communication,
                )
            )
        state = NodeState(
            name=self.name,
            version=IGNITE_VERSION,
            phase="starting",
            started=datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            java=str(self._java.path),
            options=self.options,
            members=tuple(members),
            ports=tuple(port for each in ports for port in astuple(each)),
            trains=str(self._cache.path) if self._cache and self._cache.write else None,
        )
        write_state(state)
        return state

    def _wait_ready(self, state: NodeState, deadline: float) -> None:
        first = state.members[0]
        if self.options.persist:
            wait_active(first, lambda: self._admin_settings(first), deadline)
        if self._security:
            self._security.establish([first.address])
        for member in state.members:
            wait_answer(member, self._settings(member), deadline)

    def _admin_settings(self, member: Member) -> Settings:
        """Return settings that may activate the cluster; tries both passwords."""
        if self._security is None:
            return self._settings(member)
        return self._security.admin_settings([member.address])

    def _settings(self, member: Member) -> Settings:
        if self._security:
            return self._security.settings([member.address])
        return Settings(addresses=(member.address,), connect_timeout_s=_CONNECT_TIMEOUT_S)

    def _undo(self) -> None:
        """End the started processes; remove the state, and a store that this start created."""
        self._end_processes()
        if self._cache is not None and self._cache.write:
            adopt_training(self._cache.path, complete=False)
        for store in self._new_stores:
            shutil.rmtree(store, ignore_errors=True)
        if self._new_stores:
            write_store(self.name, None)
        if self._security:
            self._security.remove_profile()
        remove_state(self.name)

    def _end_processes(self) -> None:
        for process in self._processes:
            if found := identify(process.pid):
                kill(found)
                wait_gone(found, _KILL_TIMEOUT_S)
