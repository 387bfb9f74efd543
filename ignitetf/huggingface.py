"""`iterable_dataset`: the rows of a data set in order, for Hugging Face's `datasets`.

process rows -> Arrow -> **huggingface**
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ignitetf.errors import MissingExtra
from ignitetf.read.export import count_of, record_of
from ignitetf.read.numbered import columns_between, opened_by_number
from ignitetf.read.plain import text_names, value_of
from ignitetf.read.process_rows import ProcessRows
from ignitetf.read.rows import EpochRows
from ignitetf.read.scan_order import whole_argument

__all__ = ["iterable_dataset"]

# Rows of a shard; a resume reads at most this many rows again.
_SHARD_ROWS: Final = 1024


def iterable_dataset(
    source: str | EpochRows,
    address: str | Sequence[str] | None = None,
    *,
    shard_rows: int = _SHARD_ROWS,
    **arguments: Any,
) -> Any:
    """Return one epoch of a data set as a `datasets.IterableDataset`, whose state is exact.

        train = iterable_dataset("MNIST_TRAIN", order="global", shuffle=7, epoch=0)
        for row in train:
            state = train.state_dict()               # after this row
        train.load_state_dict(state)

    The order is that of `open_rows`. Its shards are consecutive rows of it, which
    `datasets` divides among worker processes and `split_dataset_by_node` among ranks.

    Args:
        source: Name of the data set, or opened rows.
        address: Node or nodes, as for `open_rows`.
        shard_rows: Rows of a shard.
        **arguments: Arguments of `open_rows`. The default order is `keys`, or `global` with
            `shuffle` or `global_batch`.

    Raises:
        ConfigError: The order is a scan, which cannot be read from an arbitrary row.
        CacheNotFound: The cache does not exist.
        ConnectError: No node answered.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtra.of("iterable_dataset needs datasets", "huggingface", error) from error
    rows = opened_by_number(source, address, arguments, "shards")
    size = whole_argument("shard_rows", shard_rows, 1)
    return datasets.IterableDataset.from_generator(
        _rows_of, gen_kwargs={
            "rows": ProcessRows(rows),
            "starts": list(range(0, len(rows), size)),
            "size": size,
        },
    )  # fmt: skip


def _rows_of(rows: ProcessRows, starts: list[int], size: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of some shards as dicts of Python values."""
    opened = rows.get()
    texts = text_names(opened)
    for start in starts:
        columns = columns_between(opened, start, start + size)
        for number in range(count_of(columns)):
            record = record_of(columns, number)
            if not opened.plain:
                record = {"key": record["key"], **record["val"]}
            yield {name: value_of(value, name in texts) for name, value in record.items()}
