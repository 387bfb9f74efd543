"""Rows of every type are written as pyignite reads them, and come back as they were."""

import datetime as dt
import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ignitetf.explore.verify import verify
from ignitetf.load.loader import load_dataset
from ignitetf.load.sources.records import records
from ignitetf.tables.catalog import read_manifest
from ignitetf.tables.removal import drop_cache
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs, Struct
from ignitetf.wire.schema import BYTES, Field, Schema

pytestmark = [pytest.mark.node, pytest.mark.core]

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
moments = st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2100, 1, 1)).map(
    lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000)
)
days = st.dates(dt.date(1971, 1, 1), dt.date(2100, 1, 1))
longs = st.integers(-(1 << 63), (1 << 63) - 1)
prices = st.decimals(-(10**9), 10**9, places=2, allow_nan=False)


def same(value):
    return value


def day(value):
    return value.date()


def moment(value):
    return value[0]


def plain_object(value):
    return {"A": value.A, "B": value.B}


# Values, and what a value of pyignite is as the one that was loaded.
KINDS = {
    "number": (longs, same),
    "text": (texts, same),
    "yes": (st.booleans(), same),
    "id": (st.uuids(), same),
    "day": (days, day),
    "at": (moments, moment),
    "price": (prices, same),
    "ids": (st.lists(st.uuids(), min_size=1, max_size=3), same),
    "days": (st.lists(days, min_size=1, max_size=3), lambda v: [day(x) for x in v]),
    "times": (st.lists(moments, min_size=1, max_size=3), lambda v: [moment(x) for x in v]),
    "prices": (st.lists(prices, min_size=1, max_size=3), same),
    "words": (st.lists(texts, max_size=3), same),
    "part": (st.fixed_dictionaries({"A": longs, "B": texts}), plain_object),
    "parts": (
        st.lists(st.fixed_dictionaries({"A": longs, "B": texts}), min_size=1, max_size=3),
        lambda v: [plain_object(x) for x in v[1]],
    ),
}


@st.composite
def tables(draw):
    """Some fields, and rows that may lack values of them after the first."""
    names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True))
    rows = [{name: draw(KINDS[name][0]) for name in names}]
    more = st.fixed_dictionaries({name: st.none() | KINDS[name][0] for name in names})
    return rows + draw(st.lists(more, max_size=4))


@settings(
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tables())
def test_rows_are_those_that_pyignite_reads(client, cache_name, rows):
    """Whatever is in them; the reader finds the checksum of the source again, too."""
    drop = client.cache_exists(cache_name)
    if drop:
        drop_cache(client, cache_name)
    load_dataset(rows, cache_name, client=client, partitions=2)
    cache = client.cache(cache_name)
    for key, row in enumerate(rows):
        found = cache.get(key)
        for name, value in row.items():
            stored = getattr(found, name.upper())
            assert (None if stored is None else KINDS[name][1](stored)) == value
    report = verify(client, cache_name)
    assert report.findings == [] and report.rows == len(rows)


def test_maps_and_enums_of_column_batches(client, cache_name):
    """Types that only a declared schema has."""
    keys = Field("keys", TypeCode.STRING, BYTES)
    values = Field("values", TypeCode.DOUBLE, np.dtype("<f8"), (), True)
    fields = (
        Field("SCORES", TypeCode.MAP, BYTES, (), True, (keys, values)),
        Field("COLOUR", TypeCode.ENUM, np.dtype("<i4")),
    )
    runs = np.array([0, 2, 2, 3])
    scores = {
        "keys": Runs.from_offsets(Runs.from_bytes([b"a", b"b", b"c"]), runs),
        "values": Runs.from_offsets(
            Dense(np.array([0.5, 0.0, 2.0]), valid=np.array([True, False, True])), runs
        ),
    }
    batch = Batch(
        None,
        {
            "SCORES": Struct(scores, valid=np.array([True, False, True])),
            "COLOUR": Dense(np.array([2, 0, 1], np.int32)),
        },
    )
    schema = Schema("Coloured", Field("key", TypeCode.LONG, np.dtype("<i8")), fields)
    source = records(lambda: [batch], schema=schema)
    load_dataset(source, cache_name, client=client, partitions=2)
    cache = client.cache(cache_name)
    found = [cache.get(key) for key in range(3)]
    assert [row.SCORES and row.SCORES[1] for row in found] == [
        {"a": 0.5, "b": None},
        None,
        {"c": 2.0},
    ]
    assert [row.COLOUR[1] for row in found] == [2, 0, 1]
    assert verify(client, cache_name, source).findings == []
    assert read_manifest(client, cache_name).schema.fields == fields


def test_a_time_of_day_is_one_for_sql(client, cache_name):
    rows = [{"at": dt.time(23, 59, 58, 7000), "who": uuid.UUID(int=5)}]
    load_dataset(rows, cache_name, client=client)
    [(at, who)] = client.sql(f"SELECT AT, WHO FROM {cache_name}").fetchall()
    assert at == dt.timedelta(hours=23, minutes=59, seconds=58, milliseconds=7)
    assert who == rows[0]["who"]
