"""Datasets that raise ignitetf's own errors when iterated in Python.

errors, elements -> **iteration** -> tensors, dataset, training

TensorFlow converts every Python exception to one of its own classes and keeps only the text. So
this module stores the exception and finds it again by its text. The steps of a pipeline do not
change the text.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NoReturn

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.read.shown import fields_html
from ignitetf.read.tf.library import tf

__all__ = ["OwnDataset", "Steps", "for_tensorflow", "own_errors"]

# A function that begins an iteration in eager mode.
Eager = Callable[[], Generator[Any, None, None]]


class OwnDataset(tf.data.Dataset):  # type: ignore[misc]
    """A dataset that reads from Ignite.

    Args:
        variant: TensorFlow's tensor of the dataset.
        eager: Begins an iteration in Python; None if it needs TensorFlow's iterators.
    """

    def __init__(self, variant: tf.Tensor, eager: Eager | None = None) -> None:
        """Wrap a pipeline."""
        self._eager_elements = eager
        super().__init__(variant)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the elements that raises ignitetf's own errors."""
        if not tf.executing_eagerly():
            return super().__iter__()  # type: ignore[no-any-return]
        # Only functions that TensorFlow compiles can use arrays without a copy.
        eager = None if tf.config.functions_run_eagerly() else self._eager_elements
        return _iterator_kind()(self, eager)  # type: ignore[no-any-return]

    def prefetch(self, buffer_size: Any, name: str | None = None) -> tf.data.Dataset:
        """As `tf.data.Dataset.prefetch`; ignored by a loop in Python, as the reader reads ahead."""
        return Steps(super().prefetch(buffer_size, name), self._eager_elements)

    def take(self, count: Any, name: str | None = None) -> tf.data.Dataset:
        """As `tf.data.Dataset.take`; a loop in Python stops reading after the last element."""
        return Steps(super().take(count, name), _first(self._eager_elements, count))

    def _repr_html_(self) -> str:
        return fields_html(self.element_spec)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raise an error: a dataset cannot be pickled."""
        raise ConfigError(
            f"{type(self).__name__} cannot be pickled: it has connections and memory of this process",
            hint="give the other process the arguments, and have it make the dataset there",
        )


def _first(eager: Eager | None, count: Any) -> Eager | None:
    """Return a function that yields the first `count` elements; None if TensorFlow must do it."""
    if eager is None or (tf.is_tensor(count) and tf.is_symbolic_tensor(count)):
        return None
    number = int(count)

    def elements() -> Generator[Any, None, None]:
        if number:
            with contextlib.closing(eager()) as found:
                yield from itertools.islice(found, number if number > 0 else None)

    return elements


class Steps(OwnDataset):
    """The result of pipeline steps after an `OwnDataset`."""

    def __init__(self, dataset: tf.data.Dataset, eager: Eager | None = None) -> None:
        """Wrap the last step."""
        self._dataset = dataset
        super().__init__(dataset._variant_tensor, eager)

    def _inputs(self) -> list[Any]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one element."""
        return self._dataset.element_spec

    def __copy__(self) -> Steps:
        return type(self)(self._dataset, self._eager_elements)

    def __deepcopy__(self, memo: Any) -> Steps:
        return self.__copy__()


@functools.cache
def _iterator_kind() -> Any:
    """Return a subclass of TensorFlow's iterator that makes the elements itself if it can."""
    sample = iter(tf.data.Dataset.range(1))
    kind: Any = type(sample)
    # Only TensorFlow reads these attributes. It then needs its own kind of iterator.
    wanted: Final = frozenset(vars(sample))

    class OwnIterator(kind):  # type: ignore[misc]
        """An iterator that raises errors with their own class.

        It becomes an iterator of TensorFlow only when that is needed, for example when it is passed
        into a function. TensorFlow then receives the remaining elements.
        """

        def __init__(self, dataset: OwnDataset, eager: Eager | None) -> None:
            self._own_dataset, self._begin, self._process = dataset, eager, os.getpid()
            self._elements: _Elements | None = None
            self._lock = threading.RLock()
            if eager is None:
                kind.__init__(self, dataset)

        def __getattr__(self, name: str) -> Any:
            if name not in wanted or self.__dict__.get("_begin") is None:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            self._give_to_tensorflow()
            return getattr(self, name)

        def _give_to_tensorflow(self) -> None:
            with self._lock, tf.init_scope():
                if not tf.executing_eagerly():
                    raise ConfigError(
                        "an iterator that began in eager mode cannot go into a graph",
                        hint="make it in the graph, with tf.compat.v1.data.make_one_shot_iterator",
                    )
                dataset, self._begin = self._own_dataset, None
                if (elements := self._elements) is not None:
                    spec = dataset.element_spec
                    dataset = tf.data.Dataset.from_generator(
                        lambda: _for_tensorflow(elements), output_signature=spec
                    )
                kind.__init__(self, dataset)

        @property
        def element_spec(self) -> Any:
            """The structure, shapes and dtypes of one element."""
            return self._own_dataset.element_spec

        def __next__(self) -> Any:
            _check_process(self)
            with self._lock:
                if self._begin is not None and tf.executing_eagerly():
                    if self._elements is None:
                        self._elements = _Elements(self._begin())
                    return next(self._elements)
            with own_errors():
                return super().__next__()

        def get_next(self) -> Any:
            try:
                return next(self)
            except StopIteration:
                raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

        def get_next_as_optional(self) -> Any:
            _check_process(self)
            with own_errors():
                return super().get_next_as_optional()

    return OwnIterator


class _Elements:
    """The elements of an iteration; after a failure or an interruption it does not just end.

    A plain generator that has raised an exception, Ctrl-C for example, ends at the next step as if
    it had yielded all elements.
    """

    def __init__(self, elements: Generator[Any, None, None]) -> None:
        self._elements = elements
        self._failure: IgniteTFError | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        try:
            return next(self._elements)
        except StopIteration:
            raise
        except IgniteTFError as error:
            _clear_frames(error)
            self._failure = error
            raise
        except BaseException as error:
            self._failure = ConfigError(
                f"this iteration was ended by {type(error).__name__} before its last element",
                hint="iterate the dataset again",
            )
            raise

    def close(self) -> None:
        """Return the connections to the pool."""
        self._elements.close()


def _for_tensorflow(elements: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from elements
    except IgniteTFError as error:
        raise for_tensorflow(error) from None


def _check_process(iterator: Any) -> None:
    """Raise an error in a forked child: TensorFlow would wait for threads that do not exist."""
    if os.getpid() != iterator._process:
        raise ConfigError(
            "the process was forked since this iteration began, and TensorFlow's threads are its"
            " parent's",
            hint="iterate the dataset again, or start the process with multiprocessing's 'spawn'",
        )


# Limit on kept errors: it is very unlikely that more iterations fail before their errors are found.
_kept: Final[deque[IgniteTFError]] = deque(maxlen=64)


def for_tensorflow(error: IgniteTFError) -> IgniteTFError:
    """Keep an error, and return a copy for TensorFlow without a traceback in its text."""
    _clear_frames(error)
    _kept.append(error)
    return type(error)(error.message, hint=error.hint, **error.fields)


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of an error, to free pages, for example; keeps its lines and names."""
    if error.__traceback__ is not None:
        # Skip the caller's frame: it is still running and cannot be cleared.
        error.__traceback__ = error.__traceback__.tb_next
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__


def _cause_of(error: BaseException) -> IgniteTFError | None:
    """Return the kept error that caused an error of TensorFlow; None if none did."""
    text = str(error)
    # Use the longest match, because one text can begin like another; among equal texts the latest.
    found = [kept for kept in reversed(_kept) if _text(kept) in text]
    return max(found, key=lambda kept: len(_text(kept)), default=None)


def _text(error: IgniteTFError) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Raise ignitetf's own errors instead of TensorFlow's versions of them.

        with own_errors():
            model.fit(dataset.batch(128).prefetch(2), epochs=10, shuffle=False)

    TensorFlow only knows its own exception classes. It raises an error of a dataset from `fit`,
    `reduce`, a `tf.function` or a step after the dataset as `tf.errors.UnknownError` or
    `InvalidArgumentError`. Within this context the error keeps its class, its `hint` and its
    fields. The context is not needed for a Python loop over an `IgniteDataset`, over the result of
    its `batch`, or over a `prefetch` or `take` of these.

    Raises:
        IgniteTFError: A dataset of ignitetf failed; other errors pass unchanged.
    """
    try:
        yield
    except IgniteTFError:
        raise
    except Exception as error:
        cause = _cause_of(error)
        if cause is None:
            raise
        raise cause from (cause.__cause__ or error)
