"""Make Ctrl-C and SIGTERM end a command even if a library would lose them.

A signal raises KeyboardInterrupt in the code that is running. Optional imports inside a bare
`except:` (TensorFlow has some) treat it as a missing package. Python ignores errors raised in a
`__del__` or in the callback of a weak reference. The command would continue, so the
KeyboardInterrupt is raised again.
"""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final, NamedTuple

__all__ = ["end_at_request"]

_RETRY_S: Final = 0.02
# The function of importlib that imports one module; its local `name` is the module's.
_IMPORTING: Final = "_find_and_load"
_IMPORTLIB: Final = "<frozen importlib._bootstrap>"


class _Raised(NamedTuple):
    """A request to end that was raised in code that may discard it."""

    number: int
    # The outermost import in progress; None if the interrupt is known to be lost.
    during: FrameType | None


_raised: _Raised | None = None


def end_at_request() -> None:
    """Make SIGINT, SIGTERM and SIGHUP end a command by a KeyboardInterrupt, so that it cleans up.

    Its argument is the number of the signal.
    """
    for name, default in _DEFAULTS.items():
        number = getattr(signal, name, None)
        # nohup and a shell's background jobs ignore signals deliberately.
        if number is not None and signal.getsignal(number) is default:
            signal.signal(number, _end)
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _retry_interrupt)
        # Python removes its handlers as it ends; the alarm would then kill it.
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
        sys.unraisablehook = _handle_unraisable


_DEFAULTS: Final = {
    "SIGINT": signal.default_int_handler,
    "SIGTERM": signal.SIG_DFL,
    "SIGHUP": signal.SIG_DFL,
}


def _end(number: int, frame: FrameType | None) -> None:
    if (during := _outermost_import(frame)) is not None:
        _retry_later(_Raised(number, during))
    raise KeyboardInterrupt(number)


def _handle_unraisable(what: Any) -> None:
    """Report an error that Python cannot raise; raise a request to end elsewhere."""
    if issubclass(what.exc_type, KeyboardInterrupt):
        number = what.exc_value.args[0] if what.exc_value.args else signal.SIGINT
        _retry_later(_Raised(number, None))
    else:
        sys.__unraisablehook__(what)


def _retry_later(raised: _Raised) -> None:
    global _raised
    if hasattr(signal, "setitimer"):
        _raised = raised
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)


def _retry_interrupt(_: int, frame: FrameType | None) -> None:
    global _raised
    raised, _raised = _raised, None
    if raised is not None and (raised.during is None or _import_succeeds(raised.during, frame)):
        _end(raised.number, frame)


def _import_succeeds(importing: FrameType, frame: FrameType | None) -> bool:
    """True if an import is still running, or has succeeded."""
    return importing in _callers(frame) or importing.f_locals.get("name") in sys.modules


def _outermost_import(frame: FrameType | None) -> FrameType | None:
    imports = [
        caller
        for caller in _callers(frame)
        if caller.f_code.co_name == _IMPORTING and caller.f_code.co_filename == _IMPORTLIB
    ]
    return imports[-1] if imports else None


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
