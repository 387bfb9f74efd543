"""`python -m ignitetf.launch.worker SCRIPT [ARGS...]`: runs a script as one process of a group.

The script runs as if started by hand: it gets its arguments, its folder is the first in `sys.path`,
it is `__main__`, and a traceback has only its own frames. When the script has ended without an
error, the process waits for all others, because TensorFlow aborts workers that still need one that
has exited. All leave JAX at the same time, because JAX waits for everyone. After the exit functions
have run, the process waits once more: TensorFlow reports a worker as crashed if it has been gone
for some seconds while another worker still runs its exit functions. The first worker ends last,
because TensorFlow's other workers need it.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING

from ignitetf.launch.link import WorkerLink, start_guard
from ignitetf.launch.steps import watch_optimizers
from ignitetf.post_import import when_imported

if TYPE_CHECKING:
    from ignitetf.launch.reading import ReadingReporter

__all__ = ["main"]


def main() -> None:
    """Run the script; never returns normally if it fails."""
    link = WorkerLink()
    start_guard(link.life)
    ended = _End(link)
    # Exit functions run in the reverse order of their registration, so this is the last one.
    atexit.register(ended.leave)
    for stream in (sys.stdout, sys.stderr):
        # The launcher shows whole lines, and a killed process loses no complete line.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    reporters: list[ReadingReporter] = []
    when_imported("ignitetf.read.usage", lambda module: reporters.append(_reporter(link)))
    watch_optimizers()
    if os.environ.get("IGNITETF_KERAS") == "repair" and "TF_CONFIG" in os.environ:
        from ignitetf.train import repair_keras

        repair_keras()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))  # noqa: PTH120
    try:
        _run(script)
    except SystemExit as end:
        if end.code not in (None, 0):
            if isinstance(end.code, str):
                link.report(error=" ".join(end.code.split()))
            raise
    except BaseException as error:
        _show(error, link)
        raise SystemExit(1) from None
    if not ended.is_mine:
        return
    for reporter in reporters:
        reporter.report(last=True)
    link.arrive()
    ended.well = True
    _leave_jax()


class _End:
    """The last exit function of a worker.

    Attributes:
        well: True if the scripts of this worker and all others have ended without an error.
    """

    def __init__(self, link: WorkerLink) -> None:
        self.well = False
        self._link = link
        self._pid = os.getpid()
        self._last = os.environ["IGNITETF_WORKER"] == "0"

    @property
    def is_mine(self) -> bool:
        """True if this process is the worker itself, not one that the script has forked."""
        return os.getpid() == self._pid

    def leave(self) -> None:
        """Wait for the other workers."""
        if self.well and self.is_mine:
            self._link.leave(last=self._last)


def _leave_jax() -> None:
    """Leave the JAX group if the script has joined one."""
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.distributed.shutdown()


def _reporter(link: WorkerLink) -> ReadingReporter:
    from ignitetf.launch.reading import ReadingReporter

    return ReadingReporter(link)


def _run(script: str) -> None:
    """Run a file as `__main__`."""
    path = os.path.abspath(script)  # noqa: PTH100
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    exec(_compiled(path), module.__dict__)  # nosec B102


def _show(error: BaseException, link: WorkerLink) -> None:
    """Print an exception as Python does, and report it to the launcher in one line."""
    trace = _from_script(error.__traceback__)
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    link.report(error=_one_line(error))


def _one_line(error: BaseException) -> str:
    """Return the class of an exception and the most informative line of its text."""
    kind = type(error).__name__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return kind
    text = lines[0]
    if text.endswith(":"):
        # TensorFlow begins with "in user code:" or "Graph execution error:", and ends with the
        # cause, after which it may name the node and the operation.
        text = next(one for one in reversed(lines) if not one.startswith(("[[", "[Op")))
    return text if text.startswith(f"{kind}: ") else f"{kind}: {text}"


def _compiled(path: str) -> CodeType:
    with open(path, "rb") as file:  # noqa: PTH123
        return compile(file.read(), path, "exec", dont_inherit=True)


def _from_script(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main()
