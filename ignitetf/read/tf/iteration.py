"""Datasets that raise ignitetf's own errors when iterated in Python.

causes, reduction -> **iteration** -> dataset, training
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import tensorflow as tf

from ignitetf.errors import ConfigError
from ignitetf.read.tf.causes import own_errors
from ignitetf.read.tf.reduction import NOT_INLINE, inline_reduce

__all__ = ["OwnDataset", "Steps"]


class OwnDataset(tf.data.Dataset):  # type: ignore[misc]
    """A dataset that reads from Ignite."""

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the elements that raises ignitetf's own errors."""
        found = super().__iter__()
        if tf.executing_eagerly():
            kind: Any = type(found)
            found.__class__ = _raising(kind)
            found._process = os.getpid()
        return found  # type: ignore[no-any-return]

    def reduce(
        self, initial_state: Any, reduce_func: Callable[..., Any], name: str | None = None
    ) -> Any:
        """As `tf.data.Dataset.reduce`; small functions run without a change of threads."""
        found = inline_reduce(self, initial_state, reduce_func)
        if found is NOT_INLINE:
            found = super().reduce(initial_state, reduce_func, name)
        return found

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled."""
        raise ConfigError(
            f"{type(self).__name__} cannot be pickled: it has connections and memory of this process",
            hint="give the other process the arguments, and have it make the dataset there",
        )


class Steps(OwnDataset):
    """The result of pipeline steps that follow such a dataset."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        """Wrap the last step."""
        self._dataset = dataset
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[Any]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one element."""
        return self._dataset.element_spec

    def __copy__(self) -> Steps:
        return type(self)(self._dataset)

    def __deepcopy__(self, memo: Any) -> Steps:
        return self.__copy__()


@functools.cache
def _raising(kind: Any) -> Any:
    """Return a subclass of a TensorFlow iterator that raises ignitetf's own errors."""

    class RaisingIterator(kind):  # type: ignore[misc]
        """An iterator that raises errors with their own class."""

        def __next__(self) -> Any:
            _check_process(self)
            with own_errors():
                return super().__next__()

        def get_next(self) -> Any:
            _check_process(self)
            with own_errors():
                return super().get_next()

        def get_next_as_optional(self) -> Any:
            _check_process(self)
            with own_errors():
                return super().get_next_as_optional()

    return RaisingIterator


def _check_process(iterator: Any) -> None:
    """Refuse a forked child, where TensorFlow would wait for threads that do not exist."""
    if os.getpid() != iterator._process:
        raise ConfigError(
            "the process was forked since this iteration began, and TensorFlow's threads are its"
            " parent's",
            hint="iterate the dataset anew, or start the process with multiprocessing's 'spawn'",
        )
