"""Carries ignitetf's own errors past TensorFlow: kept when raised there, raised again outside.

**causes** -> iteration -> dataset

TensorFlow turns every Python exception into one of its own and keeps only the text. So the
exception is stored here, and found again by its text, which the steps of a pipeline pass on
unchanged. No TensorFlow here.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import deque
from collections.abc import Iterator
from typing import Final

from ignitetf.errors import IgniteTFError

__all__ = ["cause_of", "for_tensorflow", "let_go", "own_errors"]

# More iterations than this hardly fail at the same time and are all looked at only later.
_kept: Final[deque[IgniteTFError]] = deque(maxlen=64)


def for_tensorflow(error: IgniteTFError) -> IgniteTFError:
    """Keep an error, and return a copy for TensorFlow, whose text then shows no traceback."""
    let_go(error)
    _kept.append(error)
    return type(error)(error.message, hint=error.hint, **error.fields)


def let_go(error: BaseException) -> None:
    """Free what the frames of an error keep alive, such as pages; its lines and names stay."""
    if error.__traceback__ is not None:
        # Skip the caller's frame: it is still running and cannot be cleared.
        error.__traceback__ = error.__traceback__.tb_next
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def cause_of(error: BaseException) -> IgniteTFError | None:
    """Return the kept error behind one of TensorFlow's; None if there is none."""
    text = str(error)
    # The longest match, because one text can start like another; among equal ones the latest.
    found = [kept for kept in reversed(_kept) if _text(kept) in text]
    return max(found, key=lambda kept: len(_text(kept)), default=None)


def _text(error: IgniteTFError) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise ignitetf's own errors instead of TensorFlow's versions of them.

        with own_errors():
            model.fit(dataset.batch(128).prefetch(2), epochs=10, shuffle=False)

    TensorFlow only knows its own exception classes. An error of a dataset comes out of `fit`,
    `reduce`, a `tf.function` or a step after the dataset as `tf.errors.UnknownError` or
    `InvalidArgumentError`. Within this context it keeps its class, its `hint` and its fields. It is
    not needed to iterate an `IgniteDataset`, the result of its `batch`, or a `prefetch` or `take` of these, in
    Python.

    Raises:
        IgniteTFError: A dataset of ignitetf failed; other errors pass unchanged.
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
