"""The engine of Ray: an actor for each worker, near the partitions that it reads.

spec -> **ray engine** (placement group, actors) -> group

The actors belong to the launcher: when it ends, the actors and their workers end, too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from ignitetf import Client
from ignitetf.errors import ConfigError, MissingExtra
from ignitetf.explore.cluster import find_data_set
from ignitetf.launch.engine import LaunchSpec, Place, Show
from ignitetf.launch.environment import job_environment
from ignitetf.launch.group import Group
from ignitetf.launch.member import Member, WorkerReport, script_of
from ignitetf.launch.roles import Role, cluster_environment, roles_of
from ignitetf.settings import Settings

__all__ = ["LABEL", "RayEngine"]

log = logging.getLogger(__name__)

# This label of a Ray node has the address, written HOST_PORT, of the Ignite node on its machine.
LABEL: Final = "ignitetf/owner"
_NO_LABEL: Final = re.compile(r"[^a-zA-Z0-9.-]+")
_QUIET: Final[dict[str, Any]] = {"log_to_driver": False, "logging_level": "WARNING"}
_PLACED_S: Final = 20.0
_READY_S: Final = 300.0
_ANSWER_S: Final = 30.0
_CLOSE_S: Final = 10.0


class RayEngine:
    """Starts groups in the Ray cluster of `RAY_ADDRESS`, or of this machine, or in a new one.

    Args:
        settings: Connection settings of the workers.
    """

    def __init__(self, settings: Settings) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtra.of("--engine ray", "ray", error) from error
        self._ray = ray
        self._settings = settings

    def begin(self, spec: LaunchSpec, place: Place, show: Show) -> Group:
        """Start a group, with one actor on each bundle of a placement group."""
        self.connect()
        roles = roles_of(spec.workers, spec.parameter_servers)
        group = self._placed(self._selectors(spec, len(roles)))
        try:
            actors = self._actors(group, len(roles))
            places = self._ray.get([actor.place.remote() for actor in actors], timeout=_READY_S)
            addresses = self._ray.get([actor.address.remote() for actor in actors])
        except self._ray.exceptions.RayError as error:
            self._ray.util.remove_placement_group(group)
            raise ConfigError(
                f"Ray has not started the workers: {error}",
                hint="are there enough CPUs, and is ignitetf installed on its nodes?",
            ) from error
        ports = _RayPorts(self._ray, group, [found[1] for found in places])
        own = [f"{a}:{found[1][0]}" for a, found in zip(addresses, places, strict=True)]
        coordinator = f"{addresses[0]}:{places[0][1][1]}"
        common = job_environment(spec, self._settings, place)
        script = script_of(spec.script)

        def start(role: Role) -> RemoteWorker:
            environment = {
                **common,
                "IGNITETF_WORKER": str(role.number),
                **cluster_environment(roles, role, own, coordinator),
            }
            actor = actors[role.number]
            actor.start.remote(role, script, spec.arguments, environment)
            return RemoteWorker(self._ray, actor, role, places[role.number][0], show)

        starts = [functools.partial(start, role) for role in roles]
        return Group(spec, place, starts, ports, show)

    def connect(self) -> None:
        """Join the Ray cluster, unless this process has already joined one."""
        if not self._ray.is_initialized():
            with contextlib.suppress(ConnectionError):
                self._ray.init(os.environ.get("RAY_ADDRESS", "auto"), **_QUIET)
        if not self._ray.is_initialized():
            self._ray.init(include_dashboard=False, **_QUIET)

    def _selectors(self, spec: LaunchSpec, count: int) -> list[dict[str, str]]:
        """Return the labels of the Ray node for each member; empty for any node."""
        owners = owners_of(self._settings, spec.data, spec.workers)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        found = [_selector(owner, nodes) for owner in owners]
        # The chief and the parameter servers read nothing, so they may run on any node.
        before: list[dict[str, str]] = [{}] * (1 if spec.parameter_servers else 0)
        return [*before, *found, *[{}] * (count - len(before) - len(found))]

    def _placed(self, selectors: Sequence[dict[str, str]]) -> Any:
        """Return a placement group with a bundle for each member, on any nodes if necessary."""
        from ray.util import placement_group, remove_placement_group

        bundles = [{"CPU": 1} for _ in selectors]
        if any(selectors):
            group = placement_group(bundles, bundle_label_selector=list(selectors))
            if group.wait(timeout_seconds=_PLACED_S):
                return group
            remove_placement_group(group)
            log.warning("the Ray nodes near the data have no room: workers run on any node")
        group = placement_group(bundles, strategy="SPREAD")
        if not group.wait(timeout_seconds=_READY_S):
            remove_placement_group(group)
            raise ConfigError(
                f"Ray has no room for {len(bundles)} workers of a CPU each",
                hint="see 'ray status'",
            )
        return group

    def _actors(self, group: Any, count: int) -> list[Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        kind = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        return [
            kind.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=index
                )
            ).remote()
            for index in range(count)
        ]


def _selector(owner: str | None, nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the label of the Ray node on the machine of an Ignite node, `HOST:PORT`."""
    if owner is None:
        return {}
    label = _NO_LABEL.sub("_", owner).strip("_")
    if any(node.get("Labels", {}).get(LABEL) == label for node in nodes):
        return {LABEL: label}
    host = owner.rpartition(":")[0].strip("[]")
    there = [node for node in nodes if node["NodeManagerAddress"] == host]
    # Several Ray nodes on one machine can be distinguished only by the label.
    return {"ray.io/node-id": there[0]["NodeID"]} if len(there) == 1 else {}


class _Actor(Member):
    """A member in an actor of Ray."""

    def __init__(self) -> None:
        import ray

        self._address = str(ray.util.get_node_ip_address())
        super().__init__(self._address)

    def address(self) -> str:
        """Return the address of this node."""
        return self._address


class _RayPorts:
    """The ports of members on several machines, which the actors hold."""

    def __init__(self, ray: Any, group: Any, ports: Sequence[Sequence[int]]) -> None:
        self._ray, self._group = ray, group
        self.numbers = [*(pair[0] for pair in ports), ports[0][1]]

    def allow_listening(self) -> None:
        """Do nothing: each actor hands over its ports when it starts its worker."""

    def close(self) -> None:
        """Remove the placement group of the actors."""
        self._ray.util.remove_placement_group(self._group)


class RemoteWorker:
    """A worker in an actor; no call waits for the actor, except `close`.

    Args:
        ray: The module.
        actor: The actor.
        role: Which member it is.
        host: Name of its machine.
        show: Called with each line of output.
    """

    def __init__(self, ray: Any, actor: Any, role: Role, host: str, show: Show) -> None:
        self.role, self.host = role, host
        self.pid = 0
        self.code: int | None = None
        self.arrived = self.left = self.started = False
        self.polled_at = 0.0
        self.usage: dict[str, Any] = {}
        self.error = ""
        self._ray, self._actor, self._show = ray, actor, show
        self._asked = actor.report.remote()
        self._connected: Any = None

    @property
    def open_pipes(self) -> list[int]:
        """See `Worker`; empty, because output arrives with the report."""
        return []

    def read(self, descriptor: int) -> Iterator[tuple[str, str]]:
        """Yield nothing: output arrives with the report."""
        yield from ()

    def poll(self) -> bool:
        """Process the report if it has arrived; return whether the worker has ended."""
        if self.code is None and self._is_here(self._asked):
            self._take(self._asked, _ANSWER_S)
            if self.code is None:
                self._asked = self._actor.report.remote()
        return self.code is not None

    def _is_here(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])

    def _take(self, answer: Any, limit_s: float) -> None:
        try:
            report: WorkerReport = self._ray.get(answer, timeout=limit_s)
        except self._ray.exceptions.RayError as error:
            self.code = 1
            self.error = f"its actor has ended: {str(error).strip().splitlines()[0]}"
            return
        for stream, line in report.lines:
            self._show(self.role, stream, line)
        self.pid, self.code, self.usage = report.pid, report.code, report.usage
        self.arrived, self.left = report.arrived, report.left
        self.started, self.error = report.started, report.error

    def release(self) -> None:
        """See `Worker`."""
        self._actor.release.remote()

    def terminate(self) -> None:
        """Request all processes of the worker to end."""
        self._actor.terminate.remote()

    def kill(self) -> None:
        """End all processes of the worker by force."""
        if self.code is None:
            self._actor.kill.remote()

    def is_connected(self, port: int, shared: Collection[int]) -> bool:
        """Return whether the last answer of the actor said that it has joined its group."""
        if self._connected is not None and self._is_here(self._connected):
            with contextlib.suppress(self._ray.exceptions.RayError):
                if self._ray.get(self._connected):
                    return True
            self._connected = None
        if self._connected is None:
            self._connected = self._actor.is_connected.remote(port, list(shared))
        return False

    def close(self) -> None:
        """End the actor."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(self._actor.close.remote(), timeout=_CLOSE_S)
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(self._actor)


# The Ignite node near which each worker should run: the one with most of its rows


def owners_of(settings: Settings, data: str | None, workers: int) -> list[str | None]:
    """Return `HOST:PORT` of a node for each worker; None if no node is known.

    Nodes get workers in proportion to their partitions; a node with few partitions may get none.

    Args:
        settings: Connection settings.
        data: Name of the data set; None if it was not named.
        workers: Number of workers.
    """
    if data is None:
        return [None] * workers
    with Client(settings) as client:
        cache, _ = find_data_set(client, data)
        owners = client.partition_map(cache).owners
        addresses = {node.node_id: node.addresses for node in client.nodes()}
    # Highest averages: each worker goes to the node with most partitions per worker, itself
    # included.
    partitions = Counter(owners.values())
    given: Counter[object] = Counter()
    found: list[str | None] = []
    for _ in range(workers):
        node = max(sorted(partitions), key=lambda n: partitions[n] / (given[n] + 1), default=None)
        given[node] += 1
        known = addresses.get(node, ()) if node is not None else ()
        found.append(known[0] if known else None)
    return found
