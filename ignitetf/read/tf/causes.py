"""Errors of reading, past TensorFlow: kept where they arise, raised where they are looked for.

**causes** -> iteration -> dataset

TensorFlow makes an error of its own of each exception in Python, of which it keeps the text alone.
So the exception is kept here, and found again by that text, which the steps of a pipeline hand on
whole. No TensorFlow here.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Final

from ignitetf.errors import IgniteTFError

__all__ = ["cause_of", "for_tensorflow", "own_errors"]

# More iterations than this do not fail at once and are all looked at later.
_kept: Final[deque[IgniteTFError]] = deque(maxlen=64)


def for_tensorflow(error: IgniteTFError) -> IgniteTFError:
    """Keep an error; gives a copy for TensorFlow, whose text has no traceback of what led to it."""
    if error.__traceback__ is not None:
        # Without the caller's frame, which is still running and cannot be cleared.
        error.__traceback__ = error.__traceback__.tb_next
    found: BaseException | None = error
    while found is not None:
        # Lines and names stay; what the frames held were pages.
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
    _kept.append(error)
    return type(error)(error.message, hint=error.hint, **error.fields)


def cause_of(error: BaseException) -> IgniteTFError | None:
    """The kept error that TensorFlow's was made of; None where that has another cause."""
    text = str(error)
    # The longest, since one text can begin like another; of the same ones the latest.
    found = [kept for kept in reversed(_kept) if _text(kept) in text]
    return max(found, key=lambda kept: len(_text(kept)), default=None)


def _text(error: IgniteTFError) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise ignitetf's own errors in place of what TensorFlow makes of them.

        with own_errors():
            model.fit(dataset.batch(128).prefetch(2), epochs=10)

    TensorFlow knows no classes of exceptions but its own: an error of a dataset comes out of
    `fit`, `reduce`, a `tf.function` or a step after the dataset as `tf.errors.UnknownError` or
    `InvalidArgumentError`. Within this context it has its class, its `hint` and its fields.
    Iterating an `IgniteDataset`, or what its `batch` gives, in Python raises it without.

    Raises:
        IgniteTFError: A dataset of ignitetf failed; other errors pass as they are.
    """
    try:
        yield
    except IgniteTFError:
        raise
    except Exception as error:
        cause = cause_of(error)
        if cause is None:
            raise
        raise cause from (cause.__cause__ or error)
