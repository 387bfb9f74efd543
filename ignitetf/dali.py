"""`Source`: batches of a data set for DALI's `external_source`; imports neither DALI nor PyTorch.

numbered -> **dali**
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ignitetf.errors import ConfigError
from ignitetf.read.export import Ragged
from ignitetf.read.numbered import NumberedBatches
from ignitetf.read.rows import EpochRows

__all__ = ["Source"]


class Source:
    """The batches of a data set, as the `source` of DALI's `external_source`.

        source = Source("PHOTOS", 32, outputs=["IMAGE", "LABEL"], shuffle=7)
        images, labels = fn.external_source(source=source, **source.options, parallel=True)

    Batch i of epoch e is batch i of `open_rows(..., epoch=e)`. DALI asks for it by number. So its
    processes may read batches in any order, and a checkpoint of a pipeline continues exactly.

    Args:
        source: Name of the data set, or opened rows with an order by key.
        batch_size: Rows of a batch; None for this worker's part of each step of `global_batch`. At
            most the `batch_size` of the pipeline.
        address: Node or nodes, as for `open_rows`.
        outputs: The fields, in the order of the outputs; `key` is the key. None for all.
        drop_last: Leave out a last batch with fewer rows.
        **arguments: Arguments of `open_rows`. The default `order` is `keys`, or `global` with
            `shuffle` or `global_batch`.

    Attributes:
        outputs: Names of the outputs.

    Raises:
        ConfigError: An argument is unusable, the order is a scan, or a field is not there.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """

    def __init__(
        self,
        source: str | EpochRows,
        batch_size: int | None = None,
        address: str | Sequence[str] | None = None,
        *,
        outputs: Sequence[str] | None = None,
        drop_last: bool = False,
        **arguments: Any,
    ) -> None:
        if isinstance(source, str) and outputs is not None and arguments.get("fields") is None:
            arguments["fields"] = [name for name in outputs if name != "key"]
        self._batches = NumberedBatches("Source", source, batch_size, address, drop_last, arguments)
        rows = self._batches.rows
        if rows.plain:
            raise ConfigError(f"{rows.name}: values without fields", hint="load rows with fields")
        self.outputs = tuple(rows.values if outputs is None else outputs)
        wrong = [name for name in self.outputs if name != "key" and name not in rows.values]
        if wrong or not self.outputs:
            raise ConfigError(
                f"{rows.name}: outputs {list(self.outputs)}", hint=f"fields: {list(rows.values)}"
            )
        self._first = rows.position.epoch

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._batches.sizes)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `external_source` with which DALI asks for batches by number."""
        return {"num_outputs": len(self.outputs), "batch": True, "batch_info": True}

    def __call__(self, info: Any) -> tuple[Any, ...]:
        """Return one batch: for each output an array, or a list with the array of each row.

        Texts and the bytes of files are arrays of bytes.

        Args:
            info: DALI's `BatchInfo`.

        Raises:
            StopIteration: The epoch has no further batch.
            DataChanged: A row is gone, or the data were loaded again.
        """
        if info.iteration >= len(self):
            raise StopIteration
        columns = self._batches.columns(self._first + info.epoch_idx, info.iteration)
        values = {**columns["val"], "key": columns["key"]}
        return tuple(_output(name, values[name]) for name in self.outputs)


def _output(name: str, column: Any) -> Any:
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray):
        bounds = itertools.pairwise(column.offsets.tolist())
        return [column.values[start:stop] for start, stop in bounds]
    if isinstance(column, np.ndarray) and column.dtype != object:
        return column
    if isinstance(column, np.ndarray) and all(isinstance(value, bytes) for value in column):
        return [np.frombuffer(value, np.uint8) for value in column]
    raise ConfigError(f"DALI cannot take the values of {name}", hint="leave it out of outputs=")
