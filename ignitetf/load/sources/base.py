"""`Source`, the base class of sources of records; and the function that opens one.

location -> **Source** -> Batch -> encoder -> cache

A source has a schema and yields column batches in a fixed order, starting at any record, in bounded
memory. Records are counted from 0 in that order, including bad ones. The running key of a record is
its number, so a skipped record leaves a gap and a repeated load gives every row the same key as
before.

A source numbers its own classes from 0, so two folders may use one number for different classes.
Appended rows take the class numbers of the stored rows.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.kinds import KINDS
from ignitetf.spelling import did_you_mean
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Column, Dense, Runs
from ignitetf.wire.encoders import LARGE_BYTES
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = [
    "BATCH_BYTES",
    "RUNNING_KEY",
    "SPLIT",
    "BadRecord",
    "Source",
    "batch_bytes",
    "check_record_size",
    "column_name",
    "keys_of",
    "open_source",
    "ordered_map",
    "rows_per_batch",
    "type_name",
]

# Fields with class numbers as values.
_FIELDS: Final = ("LABEL", "BOX_LABELS")


class _Numbering:
    """Maps the class numbers of a source to those of a data set.

    Attributes:
        names: All classes: first those of the data set, then new ones.
        own: Classes of the source.
    """

    def __init__(self, own: Sequence[str], known: Sequence[str]) -> None:
        """Number the classes.

        Args:
            own: Names of the source, in the order of its labels.
            known: Names of the data set, in the order of its labels.

        Raises:
            ConfigError: Two classes have the same name, so the name does not determine the number.
        """
        number_of = {name: number for number, name in enumerate(known)}
        if len(number_of) < len(known) or len(set(own)) < len(own):
            twice = next(n for names in (known, own) for n in names if list(names).count(n) > 1)
            raise ConfigError(
                f"two classes are called {twice!r}", hint="load the rows into a separate cache"
            )
        for name in own:
            number_of.setdefault(name, len(number_of))
        self.names = list(number_of)
        self.own = list(own)
        self._numbers = np.array([number_of[name] for name in own], np.int64)

    def changes(self) -> str | None:
        """Return a note for users on a class that gets another number; None if all keep theirs."""
        moved = np.flatnonzero(self._numbers != np.arange(len(self.own)))
        if not moved.size:
            return None
        name, new = self.own[moved[0]], self._numbers[moved[0]]
        more = f", and {len(moved) - 1:,} more" if len(moved) > 1 else ""
        return (
            "existing classes keep their numbers, new classes are numbered after them:"
            f" {name!r} is {new}, not {moved[0]}{more}"
        )

    def apply(self, batch: Batch) -> Batch:
        """Return a batch of the source with the labels of the data set.

        Raises:
            SourceError: A label is not the number of a class, or does not fit into its type.
        """
        columns = {
            name: self._column(name, column) if name in _FIELDS else column
            for name, column in batch.columns.items()
        }
        return replace(batch, columns=columns)

    def _column(self, name: str, column: Column) -> Column:
        if isinstance(column, Runs):
            return replace(column, items=self._column(name, column.items))
        if not isinstance(column, Dense) or column.values.dtype.kind not in "iu":
            return column
        labels = column.values
        if labels.size and int(labels.max()) >= len(self.own):
            raise SourceError(
                f"{name} {int(labels.max())} is not one of the {len(self.own):,} classes",
                hint="name all classes, or load the rows into a separate cache",
            )
        if len(self.names) - 1 > np.iinfo(labels.dtype).max:
            raise SourceError(
                f"{name}: {len(self.names):,} classes do not fit into {labels.dtype}",
                hint="load the rows into a separate cache",
            )
        # Negative labels mark rows without a class; they stay.
        moved = self._numbers.astype(labels.dtype)[np.maximum(labels, 0)]
        return Dense(np.where(labels < 0, labels, moved), column.valid)


# With half this size and large rows, Python's work per batch is a tenth of a load.
BATCH_BYTES = 8 << 20
# Large values are not copied, so larger batches cost no more. Arrays of over 32 MB would cost more,
# because malloc returns them to the system each time.
LARGE_BATCH_BYTES = 16 << 20
# A larger record is an error: Ignite keeps each record in memory as a whole.
MAX_RECORD_BYTES = 256 << 20
# Memory limit for records from which types are inferred; the first two are always used.
SAMPLE_BYTES = 64 << 20
# With more bad records than this, the source has another format.
MAX_SKIPPED = 100_000

# The field whose values make the splits of a table's files.
SPLIT: Final = "SPLIT"
RUNNING_KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be read: its name (file, or file and position) and the reason."""

    name: str
    reason: str


class Source(ABC):
    """Records of one table, as column batches in a fixed order.

    Attributes:
        schema: The schema of the records; the loader may change its type name.
        rows: Number of records, including bad ones; None if unknown.
        nbytes: Approximate bytes of all records, if known.
        class_names: Names of the values of LABEL, if they have names.
        key_name: The column used as the key; None for the running key.
        hint_of_types: For a hint: the option that declares types, if there is one.
        main_limit: For a second table: the number of records of the first table it covers; None for
            all.
        resumable: True if it yields the same records in the same order when it is opened again.
        skipped: The bad records skipped by the current or last iteration.
        split_names: Splits that the values of its field SPLIT make.
        notes: Notes for users about the interpretation of the data, a line each.
        position: First record of the batch after the last one yielded: pass it to
            `batches(start=...)` to continue.
    """

    schema: Schema
    rows: int | None = None
    nbytes: int | None = None
    class_names: list[str] | None = None
    key_name: str | None = None
    hint_of_types: str = ""
    main_limit: int | None = None
    resumable: bool = True
    split_names: tuple[str, ...] = ()

    def __init__(self, *, bad_records: OnBadRecord = "fail") -> None:
        if bad_records not in get_args(OnBadRecord):
            raise ConfigError(f"bad_records={bad_records!r}", hint="use 'fail' or 'skip'")
        self.bad_records: OnBadRecord = bad_records
        self.skipped: list[BadRecord] = []
        self.notes: list[str] = []
        self._last_notes: dict[str, str] = {}  # the last note of a kind
        self.position = 0
        self._numbering: _Numbering | None = None

    @property
    def parts(self) -> dict[str, Source]:
        """The tables of this source by name; most sources have one table, called `data`."""
        return {"data": self}

    @abstractmethod
    def fingerprint(self) -> str:
        """A text that is equal for the same data read in the same way; cheap to compute."""

    def batches(self, start: int = 0, *, max_bytes: int = BATCH_BYTES) -> Iterator[Batch]:
        """Yield the records from number `start` on, in order.

        Args:
            start: Number of the first record; a number after the last record yields no batches.
            max_bytes: Approximate size of a batch; a larger record is a batch of its own.

        Raises:
            SourceError: The data are damaged; names the file and the reason.
        """
        if start < 0 or max_bytes < 1:
            raise ConfigError(f"start={start}, max_bytes={max_bytes}: must not be negative or zero")
        self.skipped.clear()
        self.position = start
        for position, batch in self._read(start, max_bytes):
            self.position = position
            if len(batch):
                yield batch if self._numbering is None else self._numbering.apply(batch)

    def use_classes(self, known: Sequence[str]) -> None:
        """Number the classes like the stored rows, whose classes are `known`; new classes follow.

        Raises:
            ConfigError: Two classes have one name.
        """
        own = self.class_names if self._numbering is None else self._numbering.own
        if not own or own == list(known):
            return
        self._numbering = _Numbering(own, known)
        self.class_names = self._numbering.names
        if (text := self._numbering.changes()) is not None:
            self.note(text)

    @abstractmethod
    def _read(self, start: int, max_bytes: int) -> Iterator[tuple[int, Batch]]:
        """Yield batches from record `start` on, each with the number of the next record."""

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def report(self, kind: str, text: str, *, once: bool = False) -> None:
        """Add a note, or replace the last note of its kind; `once` keeps the last note instead."""
        last = self._last_notes.get(kind)
        if last is not None and (once or last == text):
            return
        self._last_notes[kind] = text
        if last in self.notes:
            self.notes[self.notes.index(last)] = text
        else:
            self.notes.append(text)

    def bad(self, name: str, reason: str, *, hint: str | None = None) -> None:
        """Record a bad record, or raise SourceError if bad records must not be skipped."""
        if self.bad_records == "fail":
            raise SourceError(
                f"{name}: {reason}",
                hint=hint or "repair or remove it, or skip it with --bad-records skip",
                name=name,
                reason=reason,
            )
        if len(self.skipped) >= MAX_SKIPPED:
            raise SourceError(
                f"{name}: {reason}; {MAX_SKIPPED:,} records were skipped before it",
                hint="the data seem to have another format; check the kind of the source",
            )
        self.skipped.append(BadRecord(name, reason))


def keys_of(numbers: NDArray[np.int64] | list[int]) -> Column:
    """Return the running keys of records with these numbers."""
    return Dense(np.asarray(numbers, np.int64))


def batch_bytes(schema: Schema) -> int:
    """Return the batch size in bytes at which records of this schema load fastest."""
    sizes = (f.size * f.dtype.itemsize for f in schema.fields if not f.ragged and f.dtype != BYTES)
    return LARGE_BATCH_BYTES if max(sizes, default=0) >= LARGE_BYTES else BATCH_BYTES


def rows_per_batch(record_bytes: int, max_bytes: int) -> int:
    """Return how many records of this size make up a batch, at least one."""
    return max(1, max_bytes // max(1, record_bytes))


def check_record_size(name: str, record_bytes: int) -> None:
    """Raise SourceError for a record so large that it must be a mistake."""
    if record_bytes > MAX_RECORD_BYTES:
        raise SourceError(
            f"{name}: one record has {record_bytes:,} bytes, the limit is {MAX_RECORD_BYTES:,}",
            hint="the first dimension must be the records; cut larger records into pieces",
        )


def column_name(text: str) -> str:
    """Convert a name to an upper-case SQL identifier: `image/encoded` becomes `IMAGE_ENCODED`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()
    if not name:
        return "VALUE"
    return f"_{name}" if name[0].isdigit() else name


def type_name(text: str) -> str:
    """Convert a name to that of a binary type: `train_x` becomes `TrainX`."""
    return "".join(part.capitalize() for part in column_name(text).split("_")) or "Record"


def ordered_map(
    function: Callable[[T], R], items: Iterable[T], *, workers: int | None = None
) -> Iterator[R]:
    """Run `map` on all cores: results in the order of the items, a bounded number at a time.

    Items are taken from the iterable only as results are consumed, so memory is limited to
    `workers` + 2 results. Leaving the loop stops the threads.
    """
    count = workers or os.cpu_count() or 2
    source = iter(items)
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(count, thread_name_prefix="ignitetf-source")
    try:
        for item in itertools.islice(source, count + 2):
            waiting.append(pool.submit(function, item))
        while waiting:
            result = waiting.popleft().result()
            for item in itertools.islice(source, 1):
                waiting.append(pool.submit(function, item))
            yield result
    finally:
        for future in waiting:
            future.cancel()
        pool.shutdown(wait=True, cancel_futures=True)


def open_source(kind: str, location: Any = None, **options: Any) -> Source:
    """Open a source.

    Args:
        kind: One of `KINDS` in `load.kinds`, such as mnist, images or csv.
        location: Local path or fsspec URL (or several, if the kind allows it); for `records` the
            records themselves; for `mnist` None downloads.
        options: Options of the function that opens this kind.

    Raises:
        ConfigError: The kind or an option does not exist.
        SourceError: The data are missing or damaged.
    """
    if (found := KINDS.get(kind)) is None:
        raise ConfigError(
            f"unknown source kind {kind!r}",
            hint=did_you_mean(kind, KINDS, ", ".join(sorted(KINDS)), form=repr),
        )
    module = importlib.import_module(f"ignitetf.load.sources.{found.module}")
    function = getattr(module, found.function)
    parameters = list(inspect.signature(function).parameters)
    for name in options:
        if name not in parameters[1:]:
            raise ConfigError(
                f"source {kind!r} has no option {name!r}",
                hint=did_you_mean(
                    name, parameters[1:], f"options: {', '.join(parameters[1:])}", form=repr
                ),
            )
    return cast(Source, function(location, **options))
