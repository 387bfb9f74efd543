"""Arrow streams both ways: what is loaded from one comes back, and other libraries take ours."""

import datetime
import decimal
import itertools
import os

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ignitetf import dbapi, mix_rows, open_rows
from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.loader import load_dataset
from ignitetf.tables.removal import drop_cache

pytestmark = pytest.mark.node
_numbers = itertools.count()


def whole(bits, signed=True):
    low = -(1 << bits - 1) if signed else 0
    return st.integers(low, low + (1 << bits) - 1)


def of_day(unit_ms):
    return st.integers(0, 86_400_000 // unit_ms - 1)


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
# Ends before 2262, as times are int64 nanoseconds.
seconds = st.integers(-(1 << 33), 1 << 33)
decimals = st.integers(-(10**18), 10**18).map(lambda n: decimal.Decimal(n).scaleb(-4))
floats = st.floats(width=32, allow_nan=False)
# A strategy for each type of Arrow that a Parquet load takes; times by their number.
TYPES = {
    "I8": (pa.int8(), whole(8)), "I16": (pa.int16(), whole(16)), "I32": (pa.int32(), whole(32)),
    "I64": (pa.int64(), whole(64)), "U8": (pa.uint8(), whole(8, False)),
    "U16": (pa.uint16(), whole(16, False)), "U32": (pa.uint32(), whole(32, False)),
    "U64": (pa.uint64(), whole(63, False)), "F16": (pa.float16(), st.sampled_from([0.5, -2.0, 0.0])),
    "F32": (pa.float32(), floats), "F64": (pa.float64(), st.floats(allow_nan=False)),
    "B": (pa.bool_(), st.booleans()), "S": (pa.string(), texts), "LS": (pa.large_string(), texts),
    "VIEW": (pa.string_view(), texts), "DI": (pa.dictionary(pa.int8(), pa.string()), texts),
    "BI": (pa.binary(), st.binary(max_size=9)), "LB": (pa.large_binary(), st.binary(max_size=9)),
    "BVIEW": (pa.binary_view(), st.binary(max_size=20)),
    "FB": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "DE": (pa.decimal128(20, 4), decimals), "D2": (pa.decimal256(40, 4), decimals),
    "DA": (pa.date32(), st.integers(-30_000, 80_000)),
    "D6": (pa.date64(), st.integers(-30_000, 80_000).map(lambda n: n * 86_400_000)),
    "TS": (pa.timestamp("s"), seconds), "TM": (pa.timestamp("ms"), seconds),
    "TU": (pa.timestamp("us", "UTC"), whole(53)),
    "TN": (pa.timestamp("ns"), whole(60).map(lambda n: n // 1000 * 1000)),
    "H": (pa.time32("s"), of_day(1000)), "HM": (pa.time32("ms"), of_day(1)),
    "HU": (pa.time64("us"), of_day(1).map(lambda n: n * 1000)),
    "L": (pa.list_(pa.float32()), st.lists(floats, max_size=3)),
    "LL": (pa.large_list(pa.int16()), st.lists(whole(16), max_size=3)),
    "FL": (pa.list_(pa.int32(), 2), st.lists(whole(32), min_size=2, max_size=2)),
    "LT": (pa.list_(pa.string()), st.lists(texts, max_size=3)),
}  # fmt: skip


def array(kind, values):
    temporal = pa.types.is_temporal(kind)
    if temporal:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(kind)
    if kind == pa.float16():
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    if pa.types.is_dictionary(kind):
        return pa.array(values, pa.string()).dictionary_encode().cast(kind)
    return pa.array(values, kind)


@st.composite
def tables(draw):
    """A table of every type, in pieces that begin amid their memory; perhaps with nulls."""
    count, nulls = draw(st.integers(1, 12)), draw(st.booleans())
    columns = {}
    for name, (kind, values) in TYPES.items():
        some = st.none() | values if nulls else values
        columns[name] = array(kind, draw(st.lists(some, min_size=count, max_size=count)))
    whole = pa.table(columns)
    at = draw(st.integers(0, count))
    return pa.concat_tables([whole.slice(0, at), whole.slice(at)]), nulls


def plain(column):
    """Values that are equal whatever the width, the unit and the layout of their type."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(pa.string())
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    elif pa.types.is_time(kind):
        return column.cast(pa.time64("us")).cast(pa.int64()).to_pylist()
    values = column.to_pylist()
    return [list(v) if isinstance(v, (list, np.ndarray)) else v for v in values]


def check(found, table):
    assert found.num_rows == table.num_rows
    for name in table.column_names:
        wanted, values = plain(table[name]), plain(found[name])
        if pa.types.is_decimal(table[name].type):
            values = [None if v is None else decimal.Decimal(v) for v in values]
        assert values == wanted, name


@pytest.fixture
def connection(client):
    return dbapi.Connection(client, schema="PUBLIC", timeout_s=None, page_rows=5)


# Each example is two loads of 37 columns, of which shrinking would make hundreds.
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],
)
@given(case=tables())
def test_what_is_loaded_from_a_stream_comes_back(case, client, connection):
    table, nulls = case
    name = f"AS{os.getpid()}_{next(_numbers)}"
    try:
        load_dataset(table, name, client=client, partitions=1)
        cursor = connection.execute(f"SELECT * FROM {name} ORDER BY ID")
        assert pa.schema(cursor).names[0] == "ID"
        check(pa.table(cursor), table)
        if nulls:
            return
        rows = open_rows(name, client=client, order="keys", shard=(0, 1))
        found = pa.table(rows)
        assert pa.schema(rows) == found.schema
        check(found, table)
        # Rows of ours, loaded again, are the same rows of the same types.
        load_dataset(rows, f"{name}_2", client=client, partitions=1, key="key")
        again = pa.table(open_rows(f"{name}_2", client=client, order="keys", shard=(0, 1)))
        assert again.drop_columns("key").equals(found.drop_columns("key"))
    finally:
        for each in (name, f"{name}_2"):
            if client.cache_exists(each):
                drop_cache(client, each)


ROWS = 3_000


@pytest.fixture(scope="module")
def items(client):
    """The name of a data set; row i has i, a text, a day of 1970 and a picture."""
    name = f"ASI{os.getpid()}"
    days = pa.array([datetime.date(1970, 1, 1) + datetime.timedelta(i % 99) for i in range(ROWS)])
    pixels = pa.array(np.arange(ROWS * 8, dtype=np.int32) % 251).cast(pa.uint8())
    picture = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pixels, 4), 2)
    table = pa.table(
        {"N": range(ROWS), "S": [f"text {i}" for i in range(ROWS)], "D": days, "P": picture}
    )
    load_dataset(table, name, client=client, partitions=4)
    yield name
    drop_cache(client, name)


def streams(client, name):
    """Each kind of object of ours that is an Arrow stream, all with the columns N and S."""
    from ignitetf import IgniteDataset

    connection = dbapi.Connection(client, schema="PUBLIC", timeout_s=None, page_rows=100)
    query = f"SELECT N, S FROM {name}"
    rows = open_rows(name, client=client, shard=(0, 1), fields=["N", "S"])
    keyed = open_rows(name, client=client, shard=(0, 1), fields=["N", "S"], order="keys")
    yield connection.execute(query)
    yield client.sql(query)
    yield rows
    yield mix_rows({"A": keyed}, shard=(0, 1), shuffle=1)
    yield IgniteDataset.from_rows(rows)


@pytest.mark.parametrize("library", ["pyarrow", "pandas", "polars", "duckdb"])
def test_other_libraries_take_every_stream_of_ours(client, items, library):
    pytest.importorskip("tensorflow")
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    for ours in streams(client, items):
        schema = pa.schema(ours)
        assert schema.field("N").type == pa.int64()
        assert schema.field("S").type == pa.large_string(), ours
        if library == "pyarrow":
            found = pa.table(ours)
        elif library == "pandas":
            found = pa.table(module.DataFrame.from_arrow(ours))
        elif library == "polars":
            found = pa.table(module.DataFrame(ours))
        else:
            found = module.sql("SELECT N, S FROM ours").arrow()
            found = found.read_all() if hasattr(found, "read_all") else found
        pairs = dict(zip(found["N"].to_pylist(), found["S"].to_pylist(), strict=True))
        assert pairs == {i: f"text {i}" for i in range(ROWS)} and found.num_rows == ROWS


@pytest.mark.parametrize("kind", ["reader", "cursor", "pandas", "polars", "duckdb"])
def test_a_load_takes_what_other_libraries_make(client, cache_name, items, kind):
    connection = dbapi.Connection(client, schema="PUBLIC", timeout_s=None, page_rows=100)
    table = pa.table(connection.execute(f"SELECT N, S, D FROM {items} ORDER BY N"))
    if kind == "reader":
        given = table.to_reader(max_chunksize=7)
    elif kind == "cursor":
        given = connection.execute(f"SELECT N, S, D FROM {items} ORDER BY N")
    else:
        module = pytest.importorskip(kind, reason=f"{kind} is not installed")
        given = {
            "pandas": lambda: table.to_pandas(),
            "polars": lambda: module.DataFrame(table),
            "duckdb": lambda: module.from_arrow(table),
        }[kind]()
    report = load_dataset(given, cache_name, client=client, partitions=2, key="n")
    assert report.rows == ROWS
    found = pa.table(connection.execute(f"SELECT ID AS N, S, D FROM {cache_name} ORDER BY ID"))
    assert found.equals(table)


def test_a_stream_begins_while_it_is_read_and_leaves_nothing(client, items):
    """As many pages are asked for as are taken, and a cursor that is dropped has ended there."""
    connection = dbapi.Connection(client, schema="PUBLIC", timeout_s=None, page_rows=10)
    count = "SELECT COUNT(*) FROM SYS.SQL_QUERIES WHERE SQL LIKE ?"
    with connection.execute(f"SELECT N FROM {items}") as cursor:
        reader = pa.RecordBatchReader.from_stream(cursor)
        assert next(reader).num_rows <= 10
        assert connection.execute(count, [f"%{items}%"]).fetchone()[0] >= 1
    assert connection.execute(count, [f"%{items}%"]).fetchone()[0] == 0
    with pytest.raises((pa.ArrowException, OSError), match="closed before its last row"):
        reader.read_all()
    result = client.sql(f"SELECT N FROM {items}", page_size=10)
    next(iter(result))
    with pytest.raises(ConfigError, match="one by one"):
        pa.table(result)
    result.close()


def test_streams_that_cannot_be_loaded_are_told(client, cache_name):
    wrong = {
        "named columns": pa.chunked_array([[1, 2]]),
        "no Ignite type": pa.table({"A": pa.array([1], pa.duration("s"))}),
        "null inside a list": pa.table({"A": pa.array([None, [1, None]], pa.list_(pa.int8(), 2))}),
        "two columns": pa.table({"a": [1], "A": [2]}),
    }
    for says, stream in wrong.items():
        with pytest.raises(SourceError) as caught:
            load_dataset(stream, cache_name, client=client)
        assert says in f"{caught.value} {caught.value.hint}"
        assert not client.cache_exists(cache_name)


def test_a_stream_of_any_size_is_loaded_in_bounded_memory(client, cache_name):
    """200 MB of texts, made while they are read."""
    piece = pa.record_batch({"T": ["x" * 4_000] * 1_000})
    highest = []

    def pieces():
        for _ in range(50):
            highest.append(pa.total_allocated_bytes())
            yield pa.record_batch({"T": pa.array(piece["T"].to_pylist())})

    reader = pa.RecordBatchReader.from_batches(piece.schema, pieces())
    report = load_dataset(reader, cache_name, client=client, partitions=2, sql=False)
    assert report.rows == 50_000
    assert max(highest) < 60 << 20
    assert client.cache_size(cache_name) == 50_000
