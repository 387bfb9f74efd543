"""Push what a training run writes, while it runs.

**watch** -> push, checkpoints
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from ignitetf.fs.checkpoints import prune
from ignitetf.fs.folders import LocalFolder
from ignitetf.fs.push import push_once
from ignitetf.fs.store import Store
from ignitetf.fs.sync import SyncReport

__all__ = ["watch"]


def watch(
    store: Store,
    local: Path,
    remote: str,
    *,
    interval_s: float = 2.0,
    delete: bool = False,
    keep: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    on_push: Callable[[SyncReport], None] = lambda report: None,
) -> SyncReport:
    """Push whatever changes in a local directory until `stopped`, then once more.

    Waits for a directory that does not exist yet, and for a checkpoint that is still incomplete. If
    the cluster cannot be reached, the next round tries again.

    Returns:
        The report of the last push.
    """
    seen: object = None
    while True:
        last, report = stopped(), SyncReport()
        present = LocalFolder(local).signature()
        if present and (present != seen or last):
            with contextlib.ExitStack() as stack:
                if not last:
                    stack.enter_context(contextlib.suppress(ConnectionError, TimeoutError))
                begin = time.monotonic()
                push_once(store, local, remote, report, delete=delete, keep=keep)
                report.seconds = round(time.monotonic() - begin, 3)
                seen = None if report.unsettled else present
                if report.copied:
                    if keep is not None:
                        prune(store, remote, keep)
                    on_push(report)
        if last:
            return report
        time.sleep(interval_s)
