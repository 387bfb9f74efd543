"""Reports to the launcher, every second, how much a worker has read and trained.

ignitetf.read.usage, steps -> **reading** (thread) -> link -> status of the worker
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any, Final

from ignitetf.launch.link import WorkerLink
from ignitetf.launch.steps import steps_made
from ignitetf.read.usage import Snapshot, snapshot

__all__ = ["ReadingReporter"]

_EVERY_S: Final = 1.0


class ReadingReporter:
    """Reports until the process ends.

    Args:
        link: The link to the launcher.
    """

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._before, self._at = Snapshot(), time.monotonic()
        self._begin, self._over = self._at, False
        threading.Thread(target=self._run, name="ignitetf-usage", daemon=True).start()

    def report(self, *, last: bool = False) -> None:
        """Report the rows read, and the speed since the previous report; if `last`, overall."""
        with self._lock:
            if self._over:
                return
            now, at = snapshot(), time.monotonic()
            if last:
                self._before, self._at, self._over = Snapshot(), self._begin, True
            seconds = max(at - self._at, 1e-9)
            usage = {"step": steps_made(), **_facts(now)}
            usage["rows_per_s"] = round((now.rows - self._before.rows) / seconds, 1)
            waited = (now.wait_s - self._before.wait_s) / seconds
            usage["wait"] = round(min(1.0, max(0.0, waited)), 3)
            self._before, self._at = now, at
            self._link.report(usage=usage)

    def _run(self) -> None:
        while not self._over:
            self.report()
            time.sleep(_EVERY_S)


def _facts(now: Snapshot) -> dict[str, Any]:
    """Return the totals under the names used in the status of a worker."""
    return {
        "rows": now.rows,
        "retries": now.retries,
        "skipped": {
            f"{usage.name}: {one.error}": one.rows
            for usage in now.data_sets
            for one in usage.skipped
        },
        "places": {place: amount.nbytes for place, amount in now.places.items()},
        "epochs": [
            {**asdict(one.of), "rows": one.rows, "checksum": one.checksum, "ended": one.ended}
            for one in now.iterations
        ],
    }
