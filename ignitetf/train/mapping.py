"""`map_rows`: a function of each row, with a rule for rows on which it fails.

batches of rows, a function -> form of its results -> **mapping** -> training

A row that is left out keeps its place: the place is filled with the result of another row, with
weight 0. So every batch has the shape and the number that it has without errors, and all workers
make the same steps.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.read.batches import read_rows
from ignitetf.read.export import DenseNode, TextNode, count_of, record_of
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.rows import Batches, EpochRows
from ignitetf.read.scan_order import Position, Shard, whole
from ignitetf.read.usage import add_skipped

__all__ = ["MappedBatches", "MappedRows", "OnError", "SkippedRow", "map_rows"]

OnError = Literal["raise", "skip", "warn"]
Form = DenseNode | TextNode | dict[str, Any]
# The form that most of this many rows have is the form of the results.
_COMPARED: Final = 16
# Rows that are tried to find one on which the function does not fail.
_MOST_TRIED: Final = 1000
_MOST_KEPT: Final = 1000
_MOST_REPORTED: Final = 5
_WEIGHT: Final = DenseNode(np.dtype(np.float32), ())

log = logging.getLogger(__name__)


def map_rows(
    rows: EpochRows, function: Callable[[Any], Any], *, on_error: OnError = "raise"
) -> MappedRows:
    """Apply a function to each row, and choose what a row on which it fails leads to.

        def decoded(row):
            return {"IMAGE": decode(row["val"]["DATA"]), "LABEL": row["val"]["LABEL"]}

        rows = open_rows("PHOTOS", order="global", shuffle=7, global_batch=256)
        for batch in map_rows(rows, decoded, on_error="warn").batches():
            batch["val"]["IMAGE"], batch["weight"]       # weight 0 for a row that was left out

    `on_error` decides about an exception of the function, and about a result in another form than
    those of the other rows:

    - `raise` raises it, with the key of the row in a note.
    - `skip` leaves the row out, and counts it.
    - `warn` does the same, logs the first rows with their keys, and a sum after the epoch.

    The place of a row that is left out stays in its batch, with `weight` 0 and the result of another
    row. That row, and the form of the results, are the same for all workers: the function is called
    for the first 16 rows of the data set, and the first result in the most common form is taken. Use `weight` as `sample_weight`. Errors of ignitetf, and MemoryError, are not about a
    row, and are always raised.

    Args:
        rows: The rows.
        function: Called with each row, in the structure of `rows[number]`; returns an array, or a
            dict of arrays, numbers and texts, that has the same form for every row.
        on_error: `raise`, `skip` or `warn`.

    Raises:
        ConfigError: An argument is unusable.
    """
    if not isinstance(rows, EpochRows):
        raise ConfigError(
            f"map_rows does not take {type(rows).__name__}", hint="pass what open_rows() returns"
        )
    if on_error not in get_args(OnError):
        raise ConfigError(f"on_error={on_error!r}", hint=f"one of {', '.join(get_args(OnError))}")
    if not callable(function):
        raise ConfigError(f"map_rows cannot call {function!r}", hint="pass a function of a row")
    return MappedRows(rows, function, on_error)


@dataclass(frozen=True)
class SkippedRow:
    """A row that was left out.

    Attributes:
        key: Its key.
        error: Name of the class of the error.
        message: The error.
    """

    key: Any
    error: str
    message: str


class MappedRows:
    """One worker's rows of an epoch, each through a function; they never change.

    Attributes:
        rows: The rows.
    """

    def __init__(
        self,
        rows: EpochRows,
        function: Callable[[Any], Any],
        on_error: OnError,
        counts: Mapping[str, int] | None = None,
        filler: _Filler | None = None,
    ) -> None:
        self.rows = rows
        self._function = function
        self._on_error = on_error
        self._counts = dict(counts or {})
        self._filler = filler or _Filler(rows, function)

    def __repr__(self) -> str:
        return f"<MappedRows of {self.rows!r}, on_error={self._on_error!r}>"

    def _with_rows(self, rows: EpochRows, counts: Mapping[str, int] | None = None) -> MappedRows:
        return MappedRows(rows, self._function, self._on_error, counts, self._filler)

    def next_epoch(self) -> MappedRows:
        """Return the rows of the next epoch, from its beginning; its counts begin with 0."""
        return self._with_rows(self.rows.next_epoch())

    def batches(self, batch_size: int | None = None, drop_remainder: bool = False) -> MappedBatches:
        """Return an iterator of batches, which keeps its position and counts rows left out.

        Args:
            batch_size: See `EpochRows.batches`.
            drop_remainder: See `EpochRows.batches`.

        Returns:
            Batches `{"key": column, "val": results, "weight": float32 [n]}`, as many as
            `rows.batches` returns, of the same rows.
        """
        return MappedBatches(
            self.rows.batches(batch_size, drop_remainder),
            self.rows,
            self._function,
            self._on_error,
            self._filler,
            self._counts,
        )

    def resume(self, state: Any) -> MappedRows:
        """Return the rows that follow the place where a state was taken.

        Args:
            state: The result of `MappedBatches.state`; or a list with the states of all workers at
                that place. Worker 0 goes on counting from the sum of their counts, the others from
                0, so the counts of all workers add up to those of the epoch.

        Raises:
            ConfigError: It is not a state of the rows, or the states are of several places.
            DataChanged: The data were loaded again since.
        """
        states = list(state) if isinstance(state, (list, tuple)) else [state]
        if not states or not all(isinstance(one, dict) and "skipped" in one for one in states):
            raise ConfigError("not a state of mapped rows", hint="pass what state() gave, as it is")
        places = [{name: one[name] for name in one if name != "skipped"} for one in states]
        if any(place != places[0] for place in places):
            raise ConfigError(
                "the states of the workers are of several places",
                hint="take the states of all workers after the same global step",
            )
        counts: Counter[str] = Counter()
        for one in states:
            counts.update(_counts_in(one["skipped"]))
        own = self.rows.resume(places[0])
        return self._with_rows(own, counts if own.shard.index == 0 else None)

    def tf(self, batch_size: int | None = None, drop_remainder: bool = False) -> Any:
        """Return the batches as a `tf.data.Dataset`; each further iteration is the next epoch.

        Calls the function for the first rows, to find the form of its results.

        Args:
            batch_size: See `batches`.
            drop_remainder: See `batches`.
        """
        from ignitetf.read.tf.tensors import dataset_of

        rows = self.rows if batch_size is None else self.rows.in_batches(batch_size)
        epochs = itertools.accumulate(itertools.repeat(self), lambda one, _: one.next_epoch())
        return dataset_of(
            {"key": rows.key, "val": self._filler.form, "weight": _WEIGHT},
            lambda: next(epochs).batches(batch_size, drop_remainder),
            None if rows.position.chain else rows.batch_count(batch_size, drop_remainder),
            sharded=rows.shard.count > 1,
        )


def _counts_in(skipped: Any) -> dict[str, int]:
    """Return the counts in a state; raises ConfigError if they are none."""
    try:
        return {str(name): whole(count) for name, count in skipped.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"not a state of mapped rows: skipped is {skipped!r}",
            hint="pass what state() gave, as it is",
        ) from error


class _Filler:
    """The first result in the form that most of the first results have.

    It is the same for every worker, epoch and state.
    """

    def __init__(self, rows: EpochRows, function: Callable[[Any], Any]) -> None:
        self._rows = rows
        self._function = function
        self._found: tuple[Form, Any] | None = None

    @property
    def form(self) -> Form:
        """The form of a result."""
        return self._first()[0]

    @property
    def result(self) -> Any:
        """The result, in this form."""
        return self._first()[1]

    def _first(self) -> tuple[Form, Any]:
        if self._found is None:
            self._found = self._search()
        return self._found

    def _search(self) -> tuple[Form, Any]:
        good: list[tuple[Form, Any]] = []
        last, tried = None, 0
        with contextlib.closing(self._first_rows()) as rows:
            for tried, row in enumerate(rows, 1):
                try:
                    value = self._function(row)
                    form = _form_of(value)
                    good.append((form, _checked(value, form)))
                except (IgniteTFError, MemoryError):
                    raise
                except Exception as error:
                    last = error
                if tried >= (_COMPARED if good else _MOST_TRIED):
                    break
        if good:
            # A single row of another form, in the first place, must not decide for all others.
            forms = [form for form, _ in good]
            return good[forms.index(max(forms, key=forms.count))]
        name = self._rows.name
        if last is None:
            raise ConfigError(f"{name}: map_rows did not find a row", hint="load rows first")
        last.add_note(f"{name}: the function fails on each of the first {tried} rows")
        raise last

    def _first_rows(self) -> Generator[Any, None, None]:
        """Yield the rows in the order without a shuffle."""
        with contextlib.closing(_unshuffled(self._rows.of_shard((0, 1)))) as parts:
            for columns in parts:
                for number in range(count_of(columns["key"])):
                    yield record_of(columns, number)


def _unshuffled(rows: EpochRows) -> Generator[dict[str, Any], None, None]:
    """Yield all rows without a shuffle: a few at a time by key, otherwise a page at a time."""
    if isinstance(rows.order, KeyOrder):
        for start in range(0, rows.order.total, _COMPARED):
            yield rows[start : start + _COMPARED]
        return
    order = replace(rows.order, seed=None)
    with contextlib.closing(read_rows(rows.reader, order, Position(0), Shard())) as batches:
        for batch in batches:
            yield rows.columns_of(batch)


class MappedBatches(Iterator[dict[str, Any]]):
    """Iterator of batches through a function, which keeps its position.

    Attributes:
        counts: Number of rows left out so far, by the name of the class of the error; after
            `resume` from the counts in the state on.
        skipped: The first 1000 rows that this iterator left out.
    """

    def __init__(
        self,
        batches: Batches,
        rows: EpochRows,
        function: Callable[[Any], Any],
        on_error: OnError,
        filler: _Filler,
        counts: Mapping[str, int],
    ) -> None:
        self.counts = Counter(counts)
        self.skipped: list[SkippedRow] = []
        self._batches = batches
        self._rows = rows
        self._function = function
        self._on_error = on_error
        self._filler = filler
        self._form: Form | None = None
        self._before = sum(counts.values())

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches, None)
        if batch is None:
            self._log_left_out()
            raise StopIteration
        count = count_of(batch["key"])
        weight = np.ones(count, np.float32)
        results = []
        for number in range(count):
            try:
                results.append(self._result(record_of(batch, number)))
            except Exception as error:
                key = record_of(batch["key"], number)
                self._failed(key, error)
                results.append(self._filler.result)
                weight[number] = 0
        assert self._form is not None
        return {"key": batch["key"], "val": _stacked(results, self._form), "weight": weight}

    def _result(self, row: Any) -> Any:
        if self._form is None and self._on_error != "raise":
            self._form = self._filler.form
        value = self._function(row)
        if self._form is None:
            self._form = _form_of(value)
        return _checked(value, self._form)

    def _failed(self, key: Any, error: Exception) -> None:
        """Count a row that is left out; raises the error unless it is left out."""
        name, row = self._rows.name, key.decode() if isinstance(key, bytes) else key
        if self._on_error == "raise" or isinstance(error, (IgniteTFError, MemoryError)):
            error.add_note(f"{name}, key {row}: the function of map_rows failed")
            raise error
        kind = type(error).__name__
        self.counts[kind] += 1
        add_skipped(name, kind, 1)
        if len(self.skipped) < _MOST_KEPT:
            self.skipped.append(SkippedRow(row, kind, str(error)))
        if self._on_error == "warn" and len(self.skipped) <= _MOST_REPORTED:
            log.warning("%s, key %s: the row is left out: %s: %s", name, row, kind, error)

    def _log_left_out(self) -> None:
        """Log how many rows were left out, once."""
        if (count := sum(self.counts.values())) > self._before:
            self._before = count
            level = logging.WARNING if self._on_error == "warn" else logging.INFO
            sums = ", ".join(f"{kind} {rows}" for kind, rows in sorted(self.counts.items()))
            epoch = self._rows.position.epoch
            log.log(
                level, "%s, epoch %d: %d rows left out: %s", self._rows.name, epoch, count, sums
            )

    def state(self) -> dict[str, Any]:
        """Return the state after all returned batches, for `MappedRows.resume`.

        It is the state of the rows, and the counts of this worker.
        """
        return {**self._batches.state(), "skipped": dict(self.counts)}

    def close(self) -> None:
        """Stop reading."""
        self._batches.close()

    def __enter__(self) -> MappedBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _form_of(value: Any) -> Form:
    """Return the form of a result; raises TypeError for what cannot be in a batch."""
    if isinstance(value, Mapping):
        return {str(name): _form_of(inner) for name, inner in value.items()}
    if isinstance(value, (str, bytes)):
        return TextNode()
    found = np.asarray(value)
    if found.dtype.kind not in "biufc":
        raise TypeError(
            f"the function returns {type(value).__name__} of {found.dtype}; a batch takes numbers,"
            " texts, arrays of numbers, and dicts of them"
        )
    return DenseNode(found.dtype, found.shape)


def _checked(value: Any, form: Form) -> Any:
    """Return a result in this form; raises TypeError or ValueError if it has another one."""
    if isinstance(form, dict):
        if not isinstance(value, Mapping) or {str(name) for name in value} != set(form):
            has = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
            raise TypeError(f"the result has {has}, but that of another row {sorted(form)}")
        return {str(name): _checked(inner, form[str(name)]) for name, inner in value.items()}
    if isinstance(form, TextNode):
        if not isinstance(value, (str, bytes)):
            raise TypeError(
                f"the result is {type(value).__name__}, but that of another row is a text"
            )
        return value.encode() if isinstance(value, str) else value
    found = np.asarray(value)
    if found.shape != form.shape:
        raise ValueError(
            f"the result has shape {list(found.shape)}, but that of another row {list(form.shape)}"
        )
    if not np.can_cast(found.dtype, form.dtype, "same_kind"):
        raise TypeError(f"the result is {found.dtype}, but that of another row is {form.dtype}")
    return found.astype(form.dtype, copy=False)


def _stacked(results: Sequence[Any], form: Form) -> Any:
    """Return results in one form as columns."""
    if isinstance(form, dict):
        return {
            name: _stacked([one[name] for one in results], inner) for name, inner in form.items()
        }
    if isinstance(form, TextNode):
        column = np.empty(len(results), object)
        column[:] = results
        return column
    return np.stack(results) if results else np.empty((0, *form.shape), form.dtype)
