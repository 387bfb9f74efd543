"""A launcher that continues after the command that started it has ended.

spec, settings -> **background** -> process -> record

`python -m ignitetf.launch.background` is that process. The settings are passed in its environment,
because they may contain secrets; all other settings are its argument.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Final

from ignitetf import Client, connect
from ignitetf.errors import ConfigError, IgniteTFError, JobNotFound
from ignitetf.jobs.record import Job
from ignitetf.jobs.store import JobStore
from ignitetf.launch.engine import LaunchSpec
from ignitetf.launch.environment import launcher_environment
from ignitetf.launch.job import run_job
from ignitetf.launch.roles import Role

__all__ = ["main", "run_in_background"]

_BEGIN_S: Final = 60.0
_POLL_S: Final = 0.1


def run_in_background(spec: LaunchSpec, job: Job, client: Client) -> Job:
    """Start a launcher for a job, wait for its record, and return it.

    Raises:
        ConfigError: The launcher ended without a record, or did not start in time.
    """
    if spec.engine == "ray":
        from ignitetf.launch.ray_background import start_launcher

        ray_message = start_launcher(spec, job, client.settings)
        try:
            return _record(job.id, client, ray_message)
        except ConfigError as error:
            raise error.at(line) if (line := ray_message()) else error from None
    argument = json.dumps({"spec": asdict(spec), "job": job.to_json()})
    # Only this process reads the output, and only if the launcher does not start.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ignitetf.launch.background", argument],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=launcher_environment(client.settings),
            start_new_session=True,
        )
        try:
            return _record(job.id, client, process.poll)
        except ConfigError as error:
            process.kill()
            process.wait()
            log.seek(0)
            output = log.read().decode("utf-8", "replace").strip().splitlines()
            raise error.at(output[-1]) if output else error from None


def _record(job: str, client: Client, poll: Callable[[], object | None]) -> Job:
    store, deadline = JobStore(client), time.monotonic() + _BEGIN_S
    while True:
        ended = poll() is not None
        try:
            return store.get(job)
        except JobNotFound:
            if ended or time.monotonic() > deadline:
                raise ConfigError(f"the launcher of job {job} did not start") from None
        time.sleep(_POLL_S)


def main() -> None:
    """Run the job in the command-line argument."""
    given = json.loads(sys.argv[1])
    spec = LaunchSpec.from_json(given["spec"])
    job = replace(Job.from_json(given["job"]), pid=os.getpid())
    with connect() as client:
        run_job(spec, job, client, show=_discard_line, note=print, found_by_record=True)


def _discard_line(role: Role, stream: str, line: str) -> None:
    """Show nothing: the output is stored in the cluster."""


if __name__ == "__main__":
    try:
        main()
    except IgniteTFError as error:
        sys.exit(str(error))
