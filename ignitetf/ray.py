"""`read_rows`: the rows of a data set as a Ray Dataset.

numbered, plain -> **ray**
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ignitetf.errors import MissingExtra
from ignitetf.read.numbered import columns_between, opened_by_number
from ignitetf.read.plain import flat_columns
from ignitetf.read.process_rows import ProcessRows
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import whole_argument

__all__ = ["read_rows"]

# Rows of a block: what a task reads.
_BLOCK_ROWS: Final = 4096


def read_rows(
    source: str | EpochRows,
    address: str | Sequence[str] | None = None,
    *,
    block_rows: int = _BLOCK_ROWS,
    **arguments: Any,
) -> Any:
    """Return one epoch of a data set as a `ray.data.Dataset`.

        train = read_rows("MNIST_TRAIN", shuffle=7, epoch=0)
        for batch in train.iter_batches(batch_size=128): ...

    Its blocks are consecutive rows in the order of `open_rows`, each read by a task of its own, on
    any machine of the Ray cluster. Ray keeps the order of blocks only with
    `ray.data.DataContext.get_current().execution_options.preserve_order = True`.

    Args:
        source: Name of the data set, or opened rows, such as those of `rows.resume(state)`.
        address: Node or nodes, as for `open_rows`; machines of the Ray cluster must reach them.
        block_rows: Rows of a block.
        **arguments: Arguments of `open_rows`. The default order is `keys`, or `global` with
            `shuffle` or `global_batch`.

    Raises:
        ConfigError: The order is a scan, which cannot be read from any place.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """
    try:
        import ray.data
    except ImportError as error:
        raise MissingExtra.of("read_rows needs Ray Data", "ray", error) from error
    rows = opened_by_number(source, address, arguments, "blocks")
    size = whole_argument("block_rows", block_rows, 1)
    starts = [{"start": start} for start in range(0, len(rows), size)]
    blocks = ray.data.from_items(starts, override_num_blocks=max(1, len(starts)))
    return blocks.map_batches(
        _read, batch_size=1, fn_kwargs={"rows": ProcessRows(rows), "size": size}
    )


def _read(batch: dict[str, Any], rows: ProcessRows, size: int) -> dict[str, Any]:
    """Return the columns of one block."""
    opened = rows.get()
    start = int(batch["start"][0])
    columns = columns_between(opened, start, start + size)
    opened.reader.client.release_idle()
    return flat_columns(columns, opened)
