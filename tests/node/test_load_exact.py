"""What is loaded is what is read back, by the reader and by SQL; what cannot be leaves nothing."""

import decimal
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignitetf.errors import ConfigError, IgniteTFError
from ignitetf.explore.verify import verify
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources import open_source
from ignitetf.read.options import ReadOptions
from ignitetf.read.reader import CacheReader
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]


def columns_of(client, name):
    """All columns of a cache of one partition, in the order of the keys."""
    batches = [item.batch for item in CacheReader(client, name, ReadOptions()).batches([0])]
    [batch] = [batch for batch in batches if batch is not None]
    order = np.argsort(batch.key.values)
    return {field: column.values[order] for field, column in batch.columns.items()}


def numbers(dtype, shape):
    """Arrays of a dtype, their ends among them; of uint64 the half that a long holds."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        element = st.floats(width=8 * dtype.itemsize, allow_nan=False)
    else:
        info = np.iinfo(dtype)
        ends = [int(info.min), min(int(info.max), 2**63 - 1), 0, 1]
        element = st.integers(ends[0], ends[1]) | st.sampled_from(ends)
    size = int(np.prod(shape))
    return st.lists(element, min_size=size, max_size=size).map(
        lambda items: np.array(items, dtype).reshape(shape)
    )


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_numbers_of_every_dtype_are_equal_for_the_reader_sql_and_pyignite(
    client, cache_name, tmp_path, layout, data
):
    """Scalars and arrays of all dtypes in one table, from an archive."""
    if client.cache_exists(cache_name):
        drop_cache(client, cache_name)
    rows = data.draw(st.integers(1, 3))
    arrays = {}
    for dtype in INTEGERS + FLOATS:
        arrays[f"ONE_{dtype.upper()}"] = data.draw(numbers(dtype, (rows,)))
        arrays[f"MANY_{dtype.upper()}"] = data.draw(numbers(dtype, (rows, 2)))
    np.savez(tmp_path / "a.npz", **arrays)
    source = open_source("npz", tmp_path / "a.npz")
    load_dataset(
        source, cache_name, client=client, partitions=1, layout=layout, index=["ONE_U4", "ONE_U1"]
    )
    assert verify(client, cache_name, source).findings == []
    found = columns_of(client, cache_name)
    for name, array in arrays.items():
        assert np.array_equal(found[name], array)
        assert found[name].dtype == (np.float32 if array.dtype == np.float16 else array.dtype)
    if layout == "blocks":  # SQL sees the columns that have an index
        table = f"{cache_name}_INDEX"
        assert client.cache_exists(table)
        select = client.sql(f"SELECT ONE_U4, ONE_U1 FROM {table} ORDER BY 1, 2").fetchall()
        pairs = zip(arrays["ONE_U4"].tolist(), arrays["ONE_U1"].tolist(), strict=True)
        assert [tuple(row) for row in select] == sorted(pairs)
        return
    cache = client.cache(cache_name)
    for name, array in arrays.items():
        shown = client.sql(f"SELECT {name} FROM {cache_name} ORDER BY ID").fetchall()
        for key, ((by_sql,), value) in enumerate(zip(shown, array, strict=True)):
            for seen in (by_sql, getattr(cache.get(key), name)):
                raw = np.frombuffer(seen, array.dtype) if isinstance(seen, bytes) else seen
                assert np.array_equal(raw, value), (name, seen, value)


def test_decimals_of_thousands_of_digits(client, cache_name):
    texts = ["1" * 5000, "-0." + "3" * 5000, "7e4999", "0"]
    rows = [{"d": decimal.Decimal(text)} for text in texts]
    load_dataset(rows, cache_name, client=client, partitions=1)
    found = client.sql(f"SELECT CAST(D AS VARCHAR) FROM {cache_name} ORDER BY ID").fetchall()
    assert [decimal.Decimal(text) for (text,) in found] == [row["d"] for row in rows]


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(rows):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 2, 8, 0, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + pixels + chunk(b"IEND", b"")


def test_names_that_are_no_utf8_are_told_apart(client, cache_name, tmp_path):
    """Of class folders and of files; one file of pixels that do not decode is skipped."""
    for name in (b"caf\xe9", b"caf\xff", b"dog"):
        folder = tmp_path / os.fsdecode(name)
        folder.mkdir()
        for file in (b"\xfe.png", b"\xff.png"):
            (folder / os.fsdecode(file)).write_bytes(png(bytes(4)))
    (tmp_path / "dog" / "bad.png").write_bytes(png(bytes(3)))
    source = open_source("images", tmp_path, bad_records="skip")
    report = load_dataset(source, cache_name, client=client, partitions=1)
    assert (report.rows, report.skipped) == (6, 1)
    assert read_manifest(client, cache_name).class_names == ("caf\\xe9", "caf\\xff", "dog")
    shown = client.sql(f"SELECT NAME, LABEL FROM {cache_name} ORDER BY ID").fetchall()
    assert [tuple(row) for row in shown] == [
        (f"{name}/{file}.png", label)
        for label, name in enumerate(("caf\\xe9", "caf\\xff", "dog"))
        for file in ("\\xfe", "\\xff")
    ]


REFUSED = [
    [{"a": 1, "A": 2}],
    [{"a": 1}] * 200 + [{"a": 1, "b": 2}],
    [{"a": 1}] * 200 + [{"a": True}],
    [{"a": -1}, {"a": 2**63}],
    [{"a": [0.5]}] * 200 + [{"a": [2**60 + 1]}],
    [{"a": ["x", 1]}],
    [{"a": {"x": 1}}] * 200 + [{"a": {"x": 1, "y": 2}}],
    [{"a": {1: 2}}],
    [{"a": decimal.Decimal("1e999999999")}],
    {"a": np.array([1, 2**63], np.uint64)},
    {"a": np.array([["2024-01-01"]], "M8[D]")},
]


def test_what_is_refused_leaves_nothing(client, cache_name):
    before = set(client.cache_names())
    for rows in REFUSED:
        with pytest.raises(IgniteTFError) as caught:
            load_dataset(rows, cache_name, client=client, partitions=1)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
        assert set(client.cache_names()) == before
        assert read_manifest(client, cache_name) is None


@pytest.mark.parametrize("layout", ["rows", "blocks"])
def test_an_index_is_made_of_what_sql_compares(client, cache_name, layout):
    rows = [{"a": i, "words": ["x"], "many": [1, 2], "blob": b"x"} for i in range(3)]
    for name in ("WORDS", "MANY", "BLOB"):
        with pytest.raises(ConfigError, match=f"column {name!r} cannot be indexed") as caught:
            load_dataset(rows, cache_name, client=client, index=[name], layout=layout)
        assert caught.value.hint
    assert not client.cache_exists(cache_name)
    load_dataset(rows, cache_name, client=client, partitions=1, index=["A", "A"], layout=layout)


@pytest.mark.parametrize("kind", ["parquet", "csv", "records", "stream"])
def test_times_of_the_years_1_to_9999_come_back_exactly(client, cache_name, tmp_path, kind):
    """From every source, for the reader, SQL and `verify`; blocks refuse them and leave nothing."""
    import datetime as dt

    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    times = [dt.datetime(9999, 12, 31, 23, 59, 59, 999_999), None, dt.datetime(2020, 1, 1, 0, 0, 1)]
    times += [dt.datetime(1600, 2, 29, 12)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us")), "n": range(4)})
    if kind == "parquet":
        pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
        source = open_source("parquet", tmp_path / "t.parquet")
    elif kind == "csv":
        (tmp_path / "t.csv").write_text(
            "t,n\n" + "".join(f"{t or ''},{n}\n" for n, t in enumerate(times))
        )
        source = open_source("csv", tmp_path / "t.csv")
    else:
        source = open_source(kind, table.to_pylist() if kind == "records" else table)
    load_dataset(source, cache_name, client=client, partitions=1)
    assert verify(client, cache_name, source).findings == []
    options = ReadOptions(schema={"T": "datetime64[us]"}, nulls="default")
    batches = [item.batch for item in CacheReader(client, cache_name, options).batches([0])]
    [batch] = [batch for batch in batches if batch is not None]
    found = batch.columns["T"].values[np.argsort(batch.key.values)].view("M8[us]")
    assert found.tolist() == [t or dt.datetime(1970, 1, 1) for t in times]
    rows = client.sql(f"SELECT T FROM {cache_name} WHERE N IN (0, 2) ORDER BY N").fetchall()
    assert rows == [(times[0],), (times[2],)]
    drop_cache(client, cache_name)
    with pytest.raises(IgniteTFError, match="cannot be stored in blocks"):
        load_dataset(source, cache_name, client=client, layout="blocks")
    assert not client.cache_exists(cache_name)
