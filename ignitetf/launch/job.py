"""A job from its first record to its last.

spec, client -> **job** (supervisor, recorder) -> record
"""

from __future__ import annotations

import getpass
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ignitetf import Client
from ignitetf.errors import ConfigError
from ignitetf.explore.cluster import find_data_set
from ignitetf.jobs.record import Job
from ignitetf.jobs.store import JobStore, new_id, utc_now
from ignitetf.launch.engine import Engine, LaunchSpec, Place, Show
from ignitetf.launch.group import LocalEngine
from ignitetf.launch.ray_engine import RayEngine
from ignitetf.launch.recorder import Recorder
from ignitetf.launch.signals import Requests
from ignitetf.launch.supervisor import Supervisor
from ignitetf.settings import Settings

__all__ = [
    "ENGINES",
    "check_launch",
    "check_spec",
    "job_of",
    "place_of",
    "run_job",
]

# The engines that start processes, by the value of the option.
ENGINES: Final[dict[str, Callable[[Settings], Engine]]] = {
    "local": LocalEngine,
    "ray": RayEngine,
}


def job_of(spec: LaunchSpec) -> Job:
    """Return the first record of a new job."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return Job(
        id=new_id(spec.script),
        script=spec.script,
        args=spec.arguments,
        workers=spec.workers,
        ps=spec.parameter_servers,
        data=spec.data,
        engine=spec.engine,
        restarts=spec.restarts,
        elastic=spec.elastic,
        keras=spec.keras,
        host=platform.node(),
        pid=os.getpid(),
        user=user,
        created=utc_now(),
        running=spec.workers,
    )


def place_of(job: Job) -> Place:
    """Return the place of a job: its id and its directory."""
    return Place(job.id, f"igfs:///jobs/{job.id}")


def check_launch(spec: LaunchSpec, client: Client) -> Engine:
    """Return the engine of a launch.

    Raises:
        ConfigError: The script or the group cannot be run.
        CacheNotFound: The data set does not exist.
    """
    if spec.engine not in ENGINES:
        raise ConfigError(
            f"this version has no engine {spec.engine!r}", hint=f"--engine {' or '.join(ENGINES)}"
        )
    check_spec(spec)
    check_data(spec, client)
    return ENGINES[spec.engine](_with_all_nodes(client))


def _with_all_nodes(client: Client) -> Settings:
    """Return the client's settings with all known nodes, since the given one may stop early."""
    seeds = client.settings.addresses
    others = (node.addresses[0] for node in client.nodes() if node.addresses)
    known = dict.fromkeys((*seeds, *others))
    return client.settings.replace(addresses=tuple(known))


def run_job(
    spec: LaunchSpec,
    job: Job,
    client: Client,
    *,
    show: Show,
    note: Callable[[str], None],
    found_by_record: bool = False,
) -> Job:
    """Run a job to its end; no process of it remains.

    Args:
        spec: The script and its group, checked by `check_launch`.
        job: The first record of the job.
        client: The cluster that stores the data and the record.
        show: Called with each line of output.
        note: Called with messages for the user.
        found_by_record: True if the job can only be found by its record.

    Returns:
        The last record; its `exit_code` is that of the first failure, otherwise of the chief.

    Raises:
        ClusterReadOnly: The cluster cannot record a job that needs its record.
    """
    engine = ENGINES[spec.engine](client.settings)
    recorder = Recorder(JobStore(client), job, note, needed=found_by_record)
    try:
        # Only after the record exists: until then Ctrl-C ends this command like any other.
        with Requests(lambda: recorder.stop_by is not None) as requests:
            looks = f"; 'ignitetf attach {job.id}' shows it" if recorder.recorded else ""
            note(f"job {job.id}: {_group(spec)}{looks}")
            supervisor = Supervisor(
                spec, engine, client.settings, place_of(job), recorder, show=show, note=note
            )
            outcome = supervisor.run(requests)
    except BaseException as error:
        recorder.change(state="failed", exit_code=1, cause=str(error), ended=utc_now())
        raise
    finally:
        recorder.close()
    how = outcome.reason if outcome.kind == "stopped" else outcome.kind
    if outcome.kind == "failed":
        how += f": {outcome.reason}"
    note(f"job {job.id} {how}")
    return recorder.job


def _group(spec: LaunchSpec) -> str:
    workers = f"{spec.workers} worker{'s' if spec.workers > 1 else ''}"
    servers = spec.parameter_servers
    return workers if not servers else f"{workers}, a chief, parameter servers: {servers}"


# Checks before anything starts

_MOST: Final = 1024


def check_spec(spec: LaunchSpec) -> None:
    """Raise ConfigError for a script or a group that cannot be run."""
    if sys.platform == "win32":
        raise ConfigError("ignitetf launch needs process groups, which Windows does not have")
    path = Path(spec.script)
    if not path.exists():
        raise ConfigError(f"no script {spec.script!r}", hint=f"the folder is {Path.cwd()}")
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ConfigError(f"{spec.script!r} is not a file that can be read")
    if not 1 <= spec.workers <= _MOST or not 0 <= spec.parameter_servers <= _MOST:
        raise ConfigError(f"1 to {_MOST} workers, 0 to {_MOST} parameter servers")
    if spec.elastic is not None and not spec.elastic[0] <= spec.workers <= spec.elastic[1]:
        least, largest = spec.elastic
        raise ConfigError(
            f"{spec.workers} workers are outside --elastic {least}:{largest}",
            hint="-n is the number at the start",
        )


def check_data(spec: LaunchSpec, client: Client) -> None:
    """Raise an error unless the data set exists and has a row for each worker."""
    if spec.data is None:
        return
    cache, manifest = find_data_set(client, spec.data)
    is_blocks = manifest is not None and manifest.layout == "blocks"
    rows = manifest.rows if manifest is not None and is_blocks else client.cache_size(cache)
    if rows < spec.workers:
        raise ConfigError(
            f"{spec.data} has {rows} rows for {spec.workers} workers",
            hint="start fewer workers, or load more rows",
        )
