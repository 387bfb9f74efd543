"""Blocks give back the records that were packed, whatever their types and wherever they are cut."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.load.blocks import BLOCK_BYTES, Blocks
from ignitetf.wire.affinity import partitions_of
from ignitetf.wire.blocks import BLOCK_KEY, BlockKeys, block_schema, pack_blocks, unpack_blocks
from ignitetf.wire.checksum import batch_hashes, checksum
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs, Struct, concat
from ignitetf.wire.schema import BYTES, Field, Schema

INNER = (
    Field("A", TypeCode.INT, np.dtype("<i4")),
    Field("B", TypeCode.STRING, BYTES, (), True),
)
FIELDS = (
    Field("PIXELS", TypeCode.BYTE_ARRAY, np.dtype("u1"), (2, 3)),
    Field("LABEL", TypeCode.INT, np.dtype("<i4")),
    Field("YES", TypeCode.BOOL, np.dtype("?"), (), True),
    Field("NAME", TypeCode.STRING, BYTES, (), True),
    Field("BLOB", TypeCode.BYTE_ARRAY, BYTES),
    Field("PRICE", TypeCode.DECIMAL, BYTES),
    Field("AT", TypeCode.TIMESTAMP, np.dtype("<i8")),
    Field("BOXES", TypeCode.FLOAT_ARRAY, np.dtype("<f4"), (None, 2)),
    Field("WORDS", TypeCode.STRING_ARRAY, BYTES, (None,)),
    Field("PART", TypeCode.OBJECT, BYTES, (), True, INNER),
)


def bounds(lengths):
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def table(rng, n, key):
    words = rng.integers(0, 4, n)
    boxes = rng.integers(0, 4, n) * 2
    marks = rng.random(n) < 0.7
    texts = [bytes(rng.integers(97, 123, k, dtype=np.uint8)) for k in rng.integers(0, 9, n)]
    every_word = [b"w%d" % i for i in range(int(words.sum()))]
    names = [t if m else None for t, m in zip(texts, marks, strict=True)]
    columns = {
        "PIXELS": Dense(rng.integers(0, 256, (n, 2, 3), dtype=np.uint8)),
        "LABEL": Dense(rng.integers(-9, 9, n, dtype=np.int32)),
        "YES": Dense(rng.random(n) < 0.5, valid=marks),
        "NAME": Runs.from_bytes(names),
        "BLOB": Runs.from_bytes(texts),
        "PRICE": Runs.from_bytes([b"%d.50" % i for i in range(n)]),
        "AT": Dense(rng.integers(-(10**15), 10**15, n)),
        "BOXES": Runs.from_offsets(
            Dense(rng.random(int(boxes.sum())).astype("<f4")), bounds(boxes)
        ),
        "WORDS": Runs.from_offsets(Runs.from_bytes(every_word), bounds(words)),
        "PART": Struct(
            {"A": Dense(np.arange(n, dtype=np.int32)), "B": Runs.from_bytes(names)}, valid=marks
        ),
    }
    if key.type is TypeCode.OBJECT:
        parts = {"A": Dense(np.arange(n, dtype=np.int32)), "B": Runs.from_bytes(texts)}
        return Batch(Struct(parts), columns)
    if key.type is TypeCode.STRING:
        return Batch(Runs.from_bytes([b"key %d" % i for i in range(n)]), columns)
    return Batch(Dense(np.arange(n) - 3), columns)


LONG = Field("key", TypeCode.LONG, np.dtype("<i8"))
TEXT = Field("key", TypeCode.STRING, BYTES)
OBJECT = Field(
    "key", TypeCode.OBJECT, BYTES, (), False, (INNER[0], replace(INNER[1], nullable=False))
)


@settings(max_examples=80, deadline=None, print_blob=True)
@given(
    st.integers(0, 2**32),
    st.sampled_from([LONG, TEXT, OBJECT]),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_unpacked_blocks_have_the_packed_records_in_order(seed, key, sizes):
    rng = np.random.default_rng(seed)
    schema = Schema("T", key, FIELDS)
    rows = table(rng, sum(sizes), key)
    order = rng.permutation(len(rows))
    shuffled = rows[order]
    blocks = pack_blocks(schema, shuffled, bounds(sizes), np.arange(len(sizes)))
    assert set(blocks.columns) == set(block_schema(schema).names)
    found = list(unpack_blocks(schema, blocks))
    assert [len(b) for b in found] == sizes
    assert batch_hashes(schema, concat(found)).tolist() == batch_hashes(schema, shuffled).tolist()
    assert checksum(schema, concat(found[::-1])) == checksum(schema, rows)


def test_a_block_without_nulls_has_no_marks():
    schema = Schema("T", LONG, FIELDS)
    rows = table(np.random.default_rng(1), 4, LONG)
    marks = np.array([True, True, False, True])
    rows.columns["YES"] = Dense(np.asarray(rows.columns["YES"].values), valid=marks)
    blocks = pack_blocks(schema, rows, np.array([0, 2, 4]), np.arange(2))
    assert blocks.columns["YES_VALID"].valid.tolist() == [False, True]
    first, second = unpack_blocks(schema, blocks)
    assert first.columns["YES"].valid is None
    assert second.columns["YES"].valid.tolist() == [False, True]


@pytest.mark.parametrize("name", ["NAME_OFFSETS", "LABEL", "YES_VALID", "WORDS_ROWS"])
def test_a_block_that_contradicts_itself_is_refused(name):
    schema = Schema("T", LONG, FIELDS)
    rows = table(np.random.default_rng(2), 6, LONG)
    rows.columns["YES"] = Dense(np.ones(6, bool), valid=np.arange(6) > 2)
    blocks = pack_blocks(schema, rows, np.array([0, 6]), np.arange(1))
    whole = blocks.columns[name]
    blocks.columns[name] = Runs(Dense(whole.values), whole.starts, whole.lengths - 1, whole.valid)
    with pytest.raises(SchemaError, match="block 0 is damaged"):
        list(unpack_blocks(schema, blocks))


def test_what_cannot_stand_in_blocks_is_named():
    things = Field("THINGS", TypeCode.COLLECTION, BYTES, (None,), False, INNER[:1])
    with pytest.raises(ConfigError, match="'THINGS' of type COLLECTION"):
        block_schema(Schema("T", LONG, (things,)))
    key = Field("key", TypeCode.DOUBLE, np.dtype("<f8"))
    with pytest.raises(ConfigError, match="keys of type DOUBLE"):
        block_schema(Schema("T", key, FIELDS))
    taken = Field("name_valid", TypeCode.INT, np.dtype("<i4"))
    with pytest.raises(ConfigError, match="two fields would be called 'NAME_VALID'"):
        block_schema(Schema("T", LONG, (*FIELDS, taken)))


@pytest.mark.parametrize("count", [1, 8, 1000, 1024])
def test_block_keys_rise_and_lie_in_their_partition(count):
    keys = BlockKeys(count)
    schema = Schema(None, BLOCK_KEY, ())
    for partition in {0, count // 2, count - 1}:
        found = np.concatenate([keys.reserve(partition, 3), keys.reserve(partition, 100)])
        assert (np.diff(found) > 0).all()
        assert set(partitions_of(schema, Dense(found), count).tolist()) == {partition}
        again = BlockKeys(count, keys.used.tolist())
        assert int(again.reserve(partition, 1)[0]) > int(found[-1])


@settings(max_examples=60, deadline=None, print_blob=True)
@given(
    st.integers(1, 4000), st.sampled_from([1, 2, 7]), st.sampled_from([100, 3000, 300_000, 900_000])
)
def test_blocks_are_near_their_size_and_of_one_partition(count, partitions, row_bytes):
    """Half to one and a half times `BLOCK_BYTES`, but for partitions that have less, larger rows."""
    rows = min(count, (8 << 20) // row_bytes + 1)
    schema = Schema("T", BLOCK_KEY, (Field("DATA", TypeCode.BYTE_ARRAY, BYTES),))
    data = Runs(Dense(np.zeros(row_bytes, np.uint8)), np.zeros(rows, int), np.full(rows, row_bytes))
    works = []
    keys = BlockKeys(partitions)
    blocks = Blocks(SimpleNamespace(schema=schema, write=works.append), keys)
    blocks.add(Batch(Dense(np.arange(rows)), {"DATA": data}))
    blocks.write()
    seen = []
    for work in works:
        stored, bounds = work.entries.keywords["keys"], work.entries.keywords["bounds"]
        for key, first, last in zip(stored, bounds, bounds[1:], strict=False):
            own = np.asarray(work.rows.key.values)[first:last]
            found = partitions_of(schema, Dense(np.append(own, key)), partitions)
            assert len(own) and len(set(found.tolist())) == 1
            nbytes = len(own) * row_bytes
            assert nbytes <= 1.5 * BLOCK_BYTES + row_bytes
            all_own = partitions_of(schema, Dense(np.arange(rows)), partitions) == found[0]
            assert nbytes + row_bytes >= min(BLOCK_BYTES // 2, int(all_own.sum()) * row_bytes)
            seen += own.tolist()
    assert sorted(seen) == list(range(rows))
