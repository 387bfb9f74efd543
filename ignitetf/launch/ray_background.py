"""`--detach` with Ray: the launcher itself runs in a detached actor.

launch -> **ray background** (detached actor) -> launcher -> record
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ignitetf.jobs.record import Job
from ignitetf.launch.engine import LaunchSpec
from ignitetf.launch.environment import machine_environment
from ignitetf.launch.member import Script, placed_script, script_of
from ignitetf.launch.ray_engine import RayEngine
from ignitetf.settings import Settings

__all__ = ["start_launcher"]

_NAMESPACE: Final = "ignitetf"
_START_S: Final = 120.0


class Launcher:
    """Runs a launcher as a process of this machine; the actor ends when the launcher has ended."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="ignitetf-"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        given: dict[str, Any],
        script: Script,
        environment: Mapping[str, str],
    ) -> None:
        """Start the launcher.

        Args:
            given: Spec and record of the job, as JSON objects.
            script: See `placed_script`.
            environment: Variables in addition to the environment of this process.
        """
        given["spec"]["script"] = str(placed_script(script, self._folder))
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ignitetf.launch.background", json.dumps(given)],
                env=machine_environment(environment),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._end, name="ignitetf-launcher", daemon=True).start()

    def last_line(self) -> str | None:
        """Return the last line of output of a launcher that has ended; None while it runs."""
        assert self._process is not None
        if self._process.poll() is None:
            return None
        lines = (self._folder / "log").read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "the launcher has ended")

    def _end(self) -> None:
        assert self._process is not None
        self._process.wait()
        # The command that started it may still ask why it ended immediately.
        threading.Event().wait(10.0)
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(0)


def start_launcher(spec: LaunchSpec, job: Job, settings: Settings) -> Callable[[], str | None]:
    """Start the launcher of a job in the Ray cluster; it continues when this process ends.

    Returns:
        A function that returns the last line of the launcher if it has ended, otherwise None.
    """
    import ray

    engine = RayEngine(settings)
    engine.connect()
    kind: Any = ray.remote(num_cpus=0, max_restarts=0)(Launcher)
    actor = kind.options(name=job.id, namespace=_NAMESPACE, lifetime="detached").remote()
    given = {"spec": asdict(spec), "job": replace(job, script=spec.script).to_json()}
    environment = {
        **settings.environment(),
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
    }
    ray.get(actor.start.remote(given, script_of(spec.script), environment), timeout=_START_S)

    def last_line() -> str | None:
        return str(found) if (found := ray.get(actor.last_line.remote(), timeout=30)) else None

    return last_line
