"""The attempts of a job: starts a group, and after a failure another one, up to a limit.

spec, engine -> **supervisor** (attempts) -> outcome, record
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ignitetf.jobs.logs import LogWriter
from ignitetf.jobs.store import BEAT_S, utc_now
from ignitetf.launch.engine import Attempt, Engine, LaunchSpec, Outcome, Place, Show
from ignitetf.launch.recorder import Recorder
from ignitetf.launch.roles import Role
from ignitetf.launch.signals import Requests
from ignitetf.settings import Settings

__all__ = ["Supervisor"]


class Supervisor:
    """Runs a job to its end.

    Args:
        spec: The script and its group.
        engine: Starts the groups.
        settings: Connection settings of the cluster that stores the output.
        place: The job and its directory.
        recorder: Keeps the record of the job.
        show: Called with each line of output.
        note: Called with messages for the user.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        engine: Engine,
        settings: Settings,
        place: Place,
        recorder: Recorder,
        *,
        show: Show,
        note: Callable[[str], None],
    ) -> None:
        self._spec = spec
        self._engine = engine
        self._settings = settings
        self._place = place
        self._recorder = recorder
        self._show = show
        self._note = note
        self._number = 0

    def run(self, requests: Requests) -> Outcome:
        """Run the job to its end; no process remains, and its record says how it ended."""
        spec, left = self._spec, self._restarts()
        while True:
            outcome = self._attempt(spec, requests)
            if outcome.kind != "failed" or not left or requests.stopping:
                break
            left -= 1
            if spec.elastic is not None:
                spec = replace(spec, workers=max(spec.elastic[0], spec.workers - outcome.lost))
            self._recorder.change(state="restarting", cause=outcome.reason)
            self._note(
                f"{outcome.reason}; started again, workers: {spec.workers}, restarts left: {left}"
            )
        if outcome.kind == "stopped":
            outcome = replace(
                outcome, code=128 + requests.signal, reason=self._stop_reason(requests)
            )
        self._recorder.change(
            state=outcome.kind, exit_code=outcome.code, cause=outcome.reason, ended=utc_now()
        )
        return outcome

    def _restarts(self) -> int:
        """Return how often the group may be restarted; `elastic` implies a number of restarts."""
        spec = self._spec
        if spec.elastic is None or spec.restarts:
            return spec.restarts
        return spec.workers - spec.elastic[0]

    def _stop_reason(self, requests: Requests) -> str:
        """Return why the job was stopped."""
        if requests.number is None:
            return f"stopped by {self._recorder.stop_by}"
        return f"stopped by {requests.name}"

    def _attempt(self, spec: LaunchSpec, requests: Requests) -> Outcome:
        self._number += 1
        place = replace(self._place, attempt=self._number)
        self._recorder.change(state="starting", attempt=self._number, running=spec.workers)
        logs = LogWriter(self._settings, self._place.job, self._number)

        def show(role: Role, stream: str, line: str) -> None:
            logs.write(role.name, line)
            self._show(role, stream, line)

        try:
            attempt = self._engine.begin(spec, place, show)
            outcome = attempt.run(requests, _Ticks(attempt, self._recorder))
            self._recorder.statuses(attempt.statuses())
        finally:
            if not logs.close():
                self._note("the last output of the workers could not be kept")
        return outcome


class _Ticks:
    """Records the status of the workers of an attempt, as often as the recorder writes."""

    def __init__(self, attempt: Attempt, recorder: Recorder) -> None:
        self._attempt = attempt
        self._recorder = recorder
        self._next = 0.0
        self._running = False

    def __call__(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BEAT_S
        self._recorder.statuses(self._attempt.statuses())
        if not self._running and self._attempt.all_started:
            self._running = True
            self._recorder.change(state="running")
