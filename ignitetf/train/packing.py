"""`pack_sequences`: documents of tokens packed into rows of equal length, for language models.

rows by key, their lengths -> first fit -> global steps of packed rows -> **packing** -> training

Which documents share a packed row is computed from their lengths, epoch by epoch, window by window.
So every worker knows all packed rows, and reads only the documents of its own. A global step has the
same packed rows for any number of workers, and a state fits any number.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, DataChanged
from ignitetf.read.arguments import flag, require_every_row, step_rows
from ignitetf.read.export import DenseNode, Ragged
from ignitetf.read.key_order import KeyOrder, Slices
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import whole_argument
from ignitetf.threads import BackgroundCall
from ignitetf.train.first_fit import Long, PackedWindow, Packing
from ignitetf.train.lengths import check_tokens, lengths_of
from ignitetf.wire.columns import copy_runs

__all__ = ["PackedBatches", "PackedRows", "pack_sequences"]

Numbers = NDArray[np.int64]
_FORMAT: Final = 1
_HINT: Final = "pass what state() gave, as it is"
_MOST: Final = np.iinfo(np.int32).max
# Tokens that are read at once; the first steps are read alone, so that training begins early.
_AHEAD_TOKENS: Final = 1 << 19
_COLUMNS: Final = ("tokens", "document_ids", "positions")


def pack_sequences(
    rows: EpochRows,
    field: str,
    length: int,
    *,
    global_batch: int,
    eos: int | None = None,
    pad: int = 0,
    window: int = 10_000,
    long: Long = "split",
    lengths: Any = None,
) -> PackedRows:
    """Pack documents of tokens into rows of equal length.

        rows = open_rows("WEB", fields=["TOKENS"], order="global", shuffle=7)
        packed = pack_sequences(rows, "TOKENS", 2048, global_batch=64, eos=2)
        with packed.batches() as batches:
            for batch in batches:
                batch["tokens"]                          # int32 [64, 2048]
                state = batches.state()
        rest = packed.resume(state)

    The documents of a window, in the order of the epoch, are packed by first fit: each goes into
    the first packed row that still has room for it. A window never takes a document of another one.

    A step has `global_batch` packed rows, and each worker of `rows.shard` has its part of them. The
    steps are the same for any number of workers. The last step of an epoch is filled up with rows
    of `pad` alone, so all steps of all workers have one shape.

    Args:
        rows: The documents, by key (`order="global"` or `"keys"`), of the worker that reads them.
        field: The field with the tokens: a list of whole numbers in each row.
        length: Tokens of a packed row.
        global_batch: Packed rows of a step, over all workers.
        eos: Token after each document; None for none.
        pad: Token where a packed row has no document.
        window: Documents that are packed together.
        long: Treatment of a document that, with `eos`, has more than `length` tokens: `split`
            cuts it into pieces, `truncate` keeps its first `length` tokens, `error` refuses it.
        lengths: The number of tokens of each document: the name of a field of whole numbers, or an
            array in the order of the row numbers, such as `PackedRows.lengths` of another run. None
            counts the tokens, for which every worker reads all documents once.

    Raises:
        ConfigError: The rows are not read by key, or an argument is unusable.
        SchemaError: The field does not have lists of whole numbers.
        DataChanged: Documents were added or removed since their keys were read.
    """
    keys = _order_of(rows).keys
    check_tokens(rows, field)
    if long not in get_args(Long):
        raise ConfigError(f"long={long!r}", hint=f"one of {', '.join(get_args(Long))}")
    packing = Packing(
        field,
        whole_argument("length", length, 1, 1 << 30),
        None if eos is None else whole_argument("eos", eos, -_MOST, _MOST),
        whole_argument("pad", pad, -_MOST, _MOST),
        whole_argument("window", window, 1, _MOST),
        long,
    )
    step = step_rows(whole_argument("global_batch", global_batch, 1), rows.shard)
    assert step is not None
    found = lengths_of(rows, keys, field, lengths)
    rows.reader.client.release_idle()
    return PackedRows(rows, packing, step, found)


def _order_of(rows: EpochRows) -> KeyOrder:
    """Return the order of documents that can be packed; raises ConfigError for others."""
    order = rows.order if isinstance(rows, EpochRows) else None
    if not isinstance(order, KeyOrder):
        raise ConfigError(
            f"{rows!r} cannot be packed: it is not read by key",
            hint="load them in rows, not blocks, and open them with order='global' or 'keys'",
        )
    if order.global_batch is not None or order.even is not None:
        raise ConfigError(
            f"{rows.name}: rows with global_batch= or even= cannot be packed",
            hint="leave both out of open_rows; pack_sequences takes global_batch, and its steps are even",
        )
    if any(done for _, done in rows.position.chain):
        raise ConfigError(
            f"{rows.name}: packing cannot begin in the middle of an epoch",
            hint="pack the rows of a whole epoch, and resume the packed rows",
        )
    require_every_row(rows.reader, f"{rows.name}: packing")
    if len(order.keys) > _MOST:
        raise ConfigError(
            f"{rows.name}: {len(order.keys)} rows are too many to pack", hint=f"{_MOST} at most"
        )
    return order


class _Place(NamedTuple):
    """A window of an epoch, and a packed row in it."""

    window: int = 0
    row: int = 0


class _Row(NamedTuple):
    """A packed row of a window; without a window, a row of `pad` alone."""

    window: PackedWindow | None
    number: int


@dataclass(frozen=True)
class _Step:
    """This worker's packed rows of a global step, and the place after the step."""

    rows: list[_Row]
    after: _Place


class PackedRows:
    """One worker's packed rows of an epoch, from a place on; they never change.

    Attributes:
        rows: The documents.
        lengths: Number of tokens of each document, int32, in the order of the row numbers.
        global_batch: Packed rows of a step, over all workers.
    """

    def __init__(
        self,
        rows: EpochRows,
        packing: Packing,
        global_batch: int,
        lengths: NDArray[np.int32],
        place: _Place = _Place(),  # noqa: B008 (a tuple)
    ) -> None:
        self.rows = rows
        self.lengths = lengths
        self.global_batch = global_batch
        self._packing = packing
        self._order = _order_of(rows)
        self._place = place

    def __repr__(self) -> str:
        return f"<PackedRows of {self.rows!r}, {self._packing.length} tokens each>"

    def _with_rows(self, rows: EpochRows, place: _Place) -> PackedRows:
        return PackedRows(rows, self._packing, self.global_batch, self.lengths, place)

    def next_epoch(self) -> PackedRows:
        """Return the packed rows of the next epoch, from its beginning."""
        return self._with_rows(self.rows.next_epoch(), _Place())

    def batches(self, drop_remainder: bool = False) -> PackedBatches:
        """Return an iterator of this worker's part of each global step, which keeps its place.

        Args:
            drop_remainder: Leave out the last step if documents do not fill all of its rows.

        Returns:
            Batches of three int32 arrays `[rows, length]`. `tokens` has the tokens, `document_ids`
            the number of the document of each token (`rows[number]` returns it), and `positions`
            the place of the token in its piece. The id is -1 where `tokens` is `pad`.
        """
        return PackedBatches(self, self._place, flag("drop_remainder", drop_remainder))

    def count_rows(self) -> int:
        """Return the number of remaining packed rows of all workers; this packs all windows."""
        return sum(1 for _ in self._rows_from(self._place))

    def tf(self, drop_remainder: bool = False) -> Any:
        """Return the batches as a `tf.data.Dataset`; each further iteration is the next epoch.

        Args:
            drop_remainder: See `batches`.
        """
        from ignitetf.read.tf.tensors import dataset_of

        node = DenseNode(np.dtype(np.int32), (self._packing.length,))
        epochs = itertools.accumulate(itertools.repeat(self), lambda one, _: one.next_epoch())
        return dataset_of(
            dict.fromkeys(_COLUMNS, node),
            lambda: next(epochs).batches(drop_remainder),
            None,
            sharded=self.rows.shard.count > 1,
        )

    # Places

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        """Everything that determines the packed rows, except the documents and their order."""
        packing = self._packing
        return {
            "format": _FORMAT,
            "field": packing.field,
            "length": packing.length,
            "eos": packing.eos,
            "pad": packing.pad,
            "documents": packing.window,
            "long": packing.long,
            "lengths": f"{zlib.crc32(self.lengths.astype('<i4').tobytes()):08x}",
        }

    def state(self) -> dict[str, Any]:
        """Return the state of this place; see `PackedBatches.state`."""
        return self._state(self._place)

    def _state(self, place: _Place) -> dict[str, Any]:
        found = {"window": place.window, "row": place.row}
        return {**found, "packing": self._identity, "rows": self.rows.state()}

    def resume(self, state: dict[str, Any]) -> PackedRows:
        """Return the packed rows that follow the place where `state` was taken.

        The number of workers, and `global_batch`, may be others than they were.

        Raises:
            ConfigError: The state belongs to other documents or another packing, or is not a state.
            DataChanged: The data were loaded again since, or have other lengths.
        """
        try:
            packing, rows = dict(state["packing"]), state["rows"]
            place = _Place(state["window"], state["row"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("not a state of packed rows", hint=_HINT) from error
        own = self.rows.resume(rows)
        for name, mine in self._identity.items():
            if (theirs := packing.pop(name, None)) != mine:
                kind = DataChanged if name == "lengths" else ConfigError
                raise kind(
                    f"the state is of packed rows with {name} {theirs!r}, these have {mine!r}",
                    hint="resume with the arguments, and the data, that the state was taken with",
                )
        window = whole_argument("window", place.window, 0, self._windows)
        row = whole_argument("row", place.row, 0)
        if packing or (row and (window == self._windows or row >= len(self._window(window)))):
            raise ConfigError(f"not a state of packed rows: it is after {place}", hint=_HINT)
        return self._with_rows(own, _Place(window, row))

    # The plan of an epoch

    @property
    def _windows(self) -> int:
        """Number of windows of an epoch."""
        return -(-self._order.total // self._packing.window)

    def _window(self, number: int) -> PackedWindow:
        size, total = self._packing.window, self._order.total
        places = np.arange(number * size, min((number + 1) * size, total), dtype=np.int64)
        documents = self._order.numbers(self.rows.position.epoch, places)
        return self._packing.pack(documents, self.lengths[documents].astype(np.int64))

    def _rows_from(self, place: _Place) -> Iterator[tuple[_Row, _Place]]:
        """Yield the packed rows of all workers, each with the place after it."""
        first = place.row
        for number in range(place.window, self._windows):
            window = self._window(number)
            last = len(window) - 1
            for row in range(first, last):
                yield _Row(window, row), _Place(number, row + 1)
            if last >= first:
                yield _Row(window, last), _Place(number + 1)
            first = 0

    def _steps_from(self, place: _Place, drop_remainder: bool) -> Iterator[_Step]:
        """Yield this worker's part of each global step."""
        size = self.global_batch
        slices = Slices(0, size, size, self.rows.shard)
        mine = slices.places(0, len(slices)).tolist()
        rows = self._rows_from(place)
        while some := list(itertools.islice(rows, size)):
            if len(some) < size and drop_remainder:
                return
            after = some[-1][1]
            some += [(_Row(None, 0), after)] * (size - len(some))
            yield _Step([some[number][0] for number in mine], after)

    # Reading

    def _read(self, steps: list[_Step]) -> list[dict[str, Any]]:
        """Read the documents of some steps, and return a batch for each."""
        rows = [row for step in steps for row in step.rows]
        out = _Columns(len(rows), self._packing)
        pieces = [
            (
                number,
                *(getattr(row.window, name)[span] for name in ("documents", "starts", "sizes")),
            )
            for number, row in enumerate(rows)
            if row.window is not None
            for span in (slice(row.window.bounds[row.number], row.window.bounds[row.number + 1]),)
        ]
        if pieces:
            of = np.repeat([piece[0] for piece in pieces], [len(piece[1]) for piece in pieces])
            documents, starts, sizes = (
                np.concatenate([piece[column] for piece in pieces]) for column in (1, 2, 3)
            )
            read, which = np.unique(documents, return_inverse=True)
            out.put(of, documents, starts, sizes, self._documents(read), which)
        ends = itertools.accumulate(len(step.rows) for step in steps)
        return [
            {name: column[end - len(step.rows) : end] for name, column in out.columns.items()}
            for end, step in zip(ends, steps, strict=True)
        ]

    def _documents(self, numbers: Numbers) -> Ragged:
        """Return the tokens of documents, after checking that they have the known lengths."""
        value = self.rows[numbers]["val"]
        found = value if self.rows.plain else value[self._packing.field]
        if not isinstance(found, Ragged):
            offsets = np.arange(len(found) + 1, dtype=np.int64) * found.shape[1]
            found = Ragged(found.reshape(-1), offsets)
        lengths, known = np.diff(found.offsets), self.lengths[numbers]
        if not np.array_equal(lengths, known):
            at = int(np.argmax(lengths != known))
            raise DataChanged(
                f"{self.rows.name}: row {numbers[at]} has {lengths[at]} tokens, its length is"
                f" {known[at]}",
                hint="pass the lengths of the documents, or lengths=None to count them",
            )
        return found


class _Columns:
    """The columns of packed rows, filled with `pad`."""

    def __init__(self, rows: int, packing: Packing) -> None:
        shape = rows, packing.length
        self._packing = packing
        self.columns = {
            "tokens": np.full(shape, packing.pad, np.int32),
            "document_ids": np.full(shape, -1, np.int32),
            "positions": np.zeros(shape, np.int32),
        }

    def put(
        self,
        of: Numbers,
        documents: Numbers,
        starts: Numbers,
        sizes: Numbers,
        read: Ragged,
        which: Numbers,
    ) -> None:
        """Put the pieces of documents into their rows.

        Args:
            of: The row of each piece, ascending.
            documents: The number of its document.
            starts: Its first token in the document.
            sizes: Its number of tokens; `eos` is the last token of its document.
            read: The tokens of all documents.
            which: The document that each piece belongs to.
        """
        flat = {name: column.reshape(-1) for name, column in self.columns.items()}
        at = self._places(of, sizes)
        ends_document = starts + sizes > np.diff(read.offsets)[which]
        own = sizes - ends_document
        _copy(flat["tokens"], at, _as_int32(read.values), read.offsets[which] + starts, own)
        if self._packing.eos is not None:
            flat["tokens"][(at + own)[ends_document]] = self._packing.eos
        count = np.arange(self._packing.length, dtype=np.int32)
        _copy(flat["positions"], at, count, np.zeros_like(at), sizes)
        # A piece is followed by nothing, or by the places of a row that have no document.
        after = np.diff(at, append=len(flat["tokens"])) - sizes
        ids = np.full((len(at), 2), -1, np.int32)
        ids[:, 0] = documents
        runs = np.stack((sizes, after), 1)
        flat["document_ids"][at[0] :] = np.repeat(ids.reshape(-1), runs.reshape(-1))

    def _places(self, of: Numbers, sizes: Numbers) -> Numbers:
        """Return the place of the first token of each piece, counted over all rows."""
        ends = np.cumsum(sizes)
        used = np.bincount(of, sizes, len(self.columns["tokens"])).astype(np.int64)
        before = np.arange(len(used)) * self._packing.length - (np.cumsum(used) - used)
        places: Numbers = ends - sizes + before[of]
        return places


def _copy(
    out: NDArray[np.int32], at: Numbers, data: NDArray[np.int32], starts: Numbers, sizes: Numbers
) -> None:
    """Copy run i of `data` to `out[at[i]]`."""
    width = out.itemsize
    copy_runs(out.view(np.uint8), at * width, data.view(np.uint8), starts * width, sizes * width)


def _as_int32(values: NDArray[Any]) -> NDArray[np.int32]:
    """Return tokens as int32; raises ConfigError for a token that does not fit."""
    if not np.can_cast(values.dtype, np.int32) and len(values):
        low, high = int(values.min()), int(values.max())
        if not -_MOST - 1 <= low <= high <= _MOST:
            raise ConfigError(
                f"tokens from {low} to {high}", hint="packed tokens are int32: map them to such"
            )
    return np.ascontiguousarray(values, np.int32)


class PackedBatches(Iterator[dict[str, Any]]):
    """Iterator of a worker's part of each global step, which keeps its place.

    A thread reads the next steps while the consumer trains.
    """

    def __init__(self, packed: PackedRows, place: _Place, drop_remainder: bool) -> None:
        self._packed = packed
        self._place = place
        self._batches = self._read_ahead(drop_remainder)

    def __next__(self) -> dict[str, Any]:
        batch, self._place = next(self._batches)
        return batch

    def _read_ahead(
        self, drop_remainder: bool
    ) -> Generator[tuple[dict[str, Any], _Place], None, None]:
        packed = self._packed
        steps = packed._steps_from(self._place, drop_remainder)
        most = max(1, _AHEAD_TOKENS // (packed.global_batch * packed._packing.length))
        size, ahead = 1, _begin(packed, list(itertools.islice(steps, 1)))
        try:
            while ahead is not None:
                group, reading = ahead
                size = min(2 * size, most)
                following = list(itertools.islice(steps, size))
                batches = reading.result()
                ahead = _begin(packed, following)
                for step, batch in zip(group, batches, strict=True):
                    yield batch, step.after
        finally:
            if ahead is not None:
                ahead[1].wait()

    def state(self) -> dict[str, Any]:
        """Return the state after the last returned batch, for `PackedRows.resume`.

        It is a JSON object of less than 1 KB. All workers have the same state after the same step.
        """
        return self._packed._state(self._place)

    def close(self) -> None:
        """Stop reading."""
        self._batches.close()

    def __enter__(self) -> PackedBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begin(packed: PackedRows, steps: list[_Step]) -> tuple[list[_Step], BackgroundCall] | None:
    """Begin to read some steps; None if there are none."""
    if not steps:
        return None
    return steps, BackgroundCall(functools.partial(packed._read, steps))
