"""`IterableDataset`: epochs of a data set, divided among ranks and worker processes.

process rows -> turns -> tensors -> **iterable**

Ranks of `torch.distributed` are the workers of `open_rows`. The worker processes of a rank's loader
divide the rank's rows. With an order by key they take turns, a batch each, in the order in which
the loader requests batches. So the rank gets the same batches from any number of processes. With a
scan each process reads its own partitions.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset as TorchIterableDataset
from torch.utils.data import get_worker_info

from ignitetf.errors import ConfigError
from ignitetf.read.arguments import flag
from ignitetf.read.batches import cut_batches, join_batches, read_places
from ignitetf.read.blocks import BlockOrder
from ignitetf.read.key_order import KeyOrder
from ignitetf.read.process_rows import ProcessRows, label_name, opened, with_label
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import Position, Shard, whole_argument
from ignitetf.torch.tensors import records_of, tensors_of
from ignitetf.wire.columns import Batch, concat

__all__ = ["IterableDataset"]

_HINT = "pass what state_dict() gave, to a loader with as many workers and the same batch_size"


class IterableDataset(TorchIterableDataset):  # type: ignore[misc]
    """The rows of an epoch in order, as an iterable data set of PyTorch.

        train = IterableDataset("MNIST_TRAIN", batch_size=128, as_supervised=True, shuffle=7,
                                order="global")
        loader = DataLoader(train, batch_size=None, num_workers=4)
        for epoch in range(10):
            train.set_epoch(epoch)
            for image, label in loader: ...

    Each row is returned once over all ranks and worker processes. With `batch_size`, or
    `global_batch`, and an order by key, the batches are the same for any number of worker
    processes. With a scan, or row by row, this number decides which rows are in a batch.

    Values are tensors in the structure of `IgniteDataset`: see `tensors.tensors_of`.

    Args:
        source: Name of the data set, or opened rows.
        address: Node or nodes, as for `open_rows`.
        batch_size: Rows of a batch, for a loader with `batch_size=None`. None returns single rows
            or, with `global_batch`, this rank's part of each step.
        drop_last: Leave out a last batch with fewer rows.
        as_supervised: Elements are `(features, label)`, where the label is the field LABEL.
        **arguments: Arguments of `open_rows`. The default `shard` is this rank of
            `torch.distributed`, or `RANK` and `WORLD_SIZE` as torchrun sets them, when the data set
            is created.

    Raises:
        ConfigError: An argument is unusable.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """

    def __init__(
        self,
        source: str | EpochRows,
        address: str | Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        drop_last: bool = False,
        as_supervised: bool = False,
        **arguments: Any,
    ) -> None:
        if isinstance(source, str) and arguments.get("shard") is None:
            arguments["shard"] = _rank()
        rows = opened(source, address, arguments)
        self._begin(rows, batch_size, flag("drop_last", drop_last), label_name(rows, as_supervised))

    def _begin(
        self, rows: EpochRows, batch_size: int | None, drop_last: bool, label: str | None
    ) -> None:
        if batch_size is not None:
            rows = rows.in_batches(whole_argument("batch_size", batch_size, 1))
        if isinstance(rows.order, BlockOrder):
            raise ConfigError(
                f"{rows.reader.name}: worker processes cannot share blocks in a global order",
                hint="order='scan', or load it with --layout rows",
                cache=rows.reader.name,
            )
        self._batch_size, self._drop_last, self._label = batch_size, drop_last, label
        self._size = _batch_rows(rows, batch_size)
        if self._size is None and drop_last:
            raise ConfigError("drop_last= needs batch_size=", hint="pass it to the DataLoader")
        self._length = _length(rows, self._size, drop_last)
        self._rows = ProcessRows(rows)
        # Shared, because worker processes that outlive an epoch hold copies of the data set.
        self._epoch = torch.tensor(rows.position.epoch).share_memory_()
        self._loaded: dict[str, Any] | None = None
        self._latest: _Iteration | None = None

    def __getstate__(self) -> dict[str, Any]:
        # An iteration holds connections; another process starts its own iteration.
        return {**self.__dict__, "_latest": None}

    def __len__(self) -> int:
        """Return the number of batches, or rows, that this rank reads in an epoch.

        Raises:
            TypeError: It depends on the number of worker processes, or is known only after reading.
        """
        if self._length is None:
            raise TypeError(
                "the number of batches is not known; with order='keys' or 'global' it is"
            )
        return self._length

    def __repr__(self) -> str:
        return f"<IterableDataset of {self._rows.name}>"

    def set_epoch(self, epoch: int) -> None:
        """Make the following iterations read this epoch, in worker processes, too.

        Without it every iteration reads the same epoch, in the same order.
        """
        self._epoch.fill_(whole_argument("epoch", epoch, 0))

    def state(self, batches: int) -> dict[str, Any]:
        """Return the state of the training after `batches` batches, or rows, of this epoch.

        Args:
            batches: Number of batches that each rank has trained on, for any number of worker
                processes.

        Returns:
            A JSON object of less than 1 KB for `resume`, also with another number of ranks and
            worker processes.

        Raises:
            ConfigError: The order is a scan, where the position depends on the number of worker
                processes; or the ranks' batches do not end at the same step there.
        """
        rows = self._rest_of_epoch()
        if not isinstance(rows.order, KeyOrder):
            raise ConfigError(
                "order='scan' has no state here", hint="order='global', or StatefulDataLoader"
            )
        done = whole_argument("batches", batches, 0) * (self._size or 1)
        return rows.state(min(done, len(rows)))

    def resume(self, state: dict[str, Any]) -> IterableDataset:
        """Return this data set continued from `state`.

        It reads the rest of the state's epoch. Epochs set later with `set_epoch` are read whole.

        Raises:
            ConfigError: The state belongs to another cache or way of reading, or is not a state.
            DataChanged: The data were loaded again since.
        """
        found = object.__new__(type(self))
        rows = self._rows.get().resume(state)
        found._begin(rows, self._batch_size, self._drop_last, self._label)
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this process, for `StatefulDataLoader`.

        It is the position of the iteration that was started last.
        """
        return (self._latest or self._iteration(None)).state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration of this process continue from a `state_dict`.

        Raises:
            ConfigError: The state belongs to another cache or way of reading, or is not a state.
            DataChanged: The data were loaded again since.
        """
        if not isinstance(state, dict):
            raise ConfigError("not a state of an IterableDataset", hint=_HINT)
        self._latest = self._iteration(state)
        self._loaded = state

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this process's batches, or rows, of the epoch."""
        self._latest = self._iteration(self._loaded)
        self._loaded = None
        return self._elements(self._latest)

    def _elements(self, iteration: _Iteration) -> Iterator[Any]:
        rows = iteration.rows
        try:
            with contextlib.closing(iteration.parts()) as parts:
                for part in parts:
                    columns = tensors_of(rows.columns_of(concat(part)))
                    for element in [columns] if self._size is not None else records_of(columns):
                        iteration.done += 1
                        yield with_label(element, self._label)
        finally:
            rows.reader.client.release_idle()

    def _rest_of_epoch(self) -> EpochRows:
        """Return this rank's rows of the current epoch."""
        rows = self._rows.get()
        epoch = int(self._epoch)
        return rows if epoch == rows.position.epoch else rows.at(Position(epoch))

    def _iteration(self, loaded: dict[str, Any] | None) -> _Iteration:
        info = get_worker_info()
        process = Shard() if info is None else Shard(info.id, info.num_workers)
        rows = _process_rows(self._rest_of_epoch(), process)
        if loaded is None:
            return _Iteration(rows, self._size, self._drop_last, process)
        return _Iteration.of(loaded, rows, self._size, self._drop_last, process)


class _Iteration:
    """One process's part of an epoch, and its position in it.

    Args:
        rows: The rank's rows; with a scan, the rows of this process.
        size: Rows of a batch; None for single rows.
        drop_last: Leave out a last batch with fewer rows.
        process: Which of the rank's processes this one is.
        done: Number of batches, or single rows, that it has returned.
    """

    def __init__(
        self, rows: EpochRows, size: int | None, drop_last: bool, process: Shard, done: int = 0
    ) -> None:
        self.rows, self.done = rows, done
        self._size, self._drop_last, self._process = size, drop_last, process

    @classmethod
    def of(
        cls,
        state: dict[str, Any],
        rows: EpochRows,
        size: int | None,
        drop_last: bool,
        process: Shard,
    ) -> _Iteration:
        """Return the rest of the iteration that produced `state`."""
        mine = {"process": [process.index, process.count], "size": size, "drop_last": drop_last}
        if set(state) != {"rows", "done", *mine}:
            raise ConfigError("not a state of an IterableDataset", hint=_HINT)
        for name, value in mine.items():
            if state[name] != value:
                raise ConfigError(f"the state is of {name} {state[name]}, not {value}", hint=_HINT)
        done = whole_argument("done", state["done"], 0)
        return cls(rows.resume(state["rows"]), size, drop_last, process, done)

    @functools.cached_property
    def _start(self) -> dict[str, Any]:
        return self.rows.state()

    def state(self) -> dict[str, Any]:
        """Return the state from which `of` makes the rest of this iteration."""
        return {
            "rows": self._start,
            "process": [self._process.index, self._process.count],
            "size": self._size,
            "drop_last": self._drop_last,
            "done": self.done,
        }

    def parts(self) -> Generator[list[Batch], None, None]:
        """Yield the parts of each batch, or of about a page of single rows."""
        rows, order, size = self.rows, self.rows.order, self._size
        if not isinstance(order, KeyOrder):
            if self.done:
                done = self.done * (size or 1)
                rows = rows.advance(done if rows.length is None else min(done, rows.length))
            return rows.batch_parts(size, self._drop_last)
        turns = order.turns(
            rows.position, rows.shard, size or 1, self._drop_last, self._process, self.done
        )
        batches = read_places(rows.reader, order, rows.position.epoch, turns)
        batches = rows.counted(batches, len(turns))
        if size is None:
            return join_batches(batches, None, drop_remainder=False)
        return cut_batches(batches, turns.sizes())


def _process_rows(rows: EpochRows, process: Shard) -> EpochRows:
    """Return one process's rows; with an order by key all rows of the rank, read in turns."""
    if isinstance(rows.order, KeyOrder) or process.count == 1:
        return rows
    rank, count = rows.shard, process.count
    return rows.of_shard((rank.index * count + process.index, rank.count * count))


def _batch_rows(rows: EpochRows, batch_size: int | None) -> int | None:
    """Return the number of this rank's rows in a batch; None if elements are single rows."""
    order = rows.order
    if not isinstance(order, KeyOrder) or order.global_batch is None:
        return batch_size
    return order.turns(Position(0), rows.shard, batch_size, False, Shard()).batch


def _length(rows: EpochRows, size: int | None, drop_last: bool) -> int | None:
    """Return the number of batches, or rows, over all worker processes; None if unknown."""
    if size is None:
        return rows.length
    if not isinstance(rows.order, KeyOrder):
        return None
    return len(rows.order.turns(rows.position, rows.shard, size, drop_last, Shard()).sizes())


def _rank() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks; None without a group of ranks."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or size is None:
        return None
    try:
        return int(rank), int(size)
    except ValueError as error:
        raise ConfigError(f"RANK={rank!r} of WORLD_SIZE={size!r}") from error
