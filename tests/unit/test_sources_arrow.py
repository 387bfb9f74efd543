"""Arrow values of any producer: what another library says they are, or refused by name and type."""

import datetime as dt
import decimal
import uuid

import numpy as np
import pytest
from source_helpers import everything

from ignitetf.errors import SourceError
from ignitetf.load.sources import open_source
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Runs, Struct

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DAY = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.UTC)
FAR = [dt.datetime(9999, 12, 31, 23, 59, 59), None, dt.datetime(1, 1, 1), DAY.replace(tzinfo=None)]
IDS = [uuid.UUID(int=5).bytes, None, uuid.UUID(int=2**127 + 1).bytes]
EPOCH = dt.datetime(1970, 1, 1)


def extension(kind, storage):
    return pa.ExtensionArray.from_storage(kind, storage)


def tensors(permutation):
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=permutation)
    rows = [list(range(6)), list(range(6, 12)), list(range(12, 18))]
    return extension(kind, pa.array(rows, kind.storage_type))


def structs():
    parts = [
        pa.array([1, 7, None]),
        pa.array(["a", "b", ""], pa.string_view()),
        pa.array([IDS[0], IDS[0], IDS[2]], pa.uuid()),
        pa.array([[1, 2], [3], []], pa.list_view(pa.int16())),
    ]
    mask = pa.array([False, True, False])
    return pa.StructArray.from_arrays(parts, ["x", "y", "u", "l"], mask=mask)


def listed(values):
    """Lists of one, no and two of three values, and a null."""
    bounds = pa.array([0, 1, 1, None, 3], pa.int32())
    return pa.ListArray.from_arrays(bounds, values)


# Every kind of array, and the type that it is stored as.
ARRAYS = {
    "bool8": (extension(pa.bool8(), pa.array([2, 0, None], pa.int8())), TypeCode.BOOL),
    "uuid": (pa.array(IDS, pa.uuid()), TypeCode.UUID),
    "json": (extension(pa.json_(), pa.array(['{"a": 1}', None])), TypeCode.STRING),
    "tensor": (tensors(None), TypeCode.INT_ARRAY),
    "turned tensor": (tensors([1, 0]), TypeCode.INT_ARRAY),
    "uuid categories": (
        pa.DictionaryArray.from_arrays(pa.array([0, None, 1]), pa.array(IDS[::2], pa.uuid())),
        TypeCode.UUID,
    ),
    "view categories": (
        pa.DictionaryArray.from_arrays(
            pa.array([1, None, 0], pa.uint32()), pa.array(["a", "b"], pa.string_view())
        ),
        TypeCode.STRING,
    ),
    "number categories": (pa.array([20, None, 7]).dictionary_encode(), TypeCode.LONG),
    "runs": (
        pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3, 5], pa.int32()), pa.array(["a", None, "b"], pa.string_view())
        ),
        TypeCode.STRING,
    ),
    "views": (pa.array(["a", None, "a text of some length"], pa.string_view()), TypeCode.STRING),
    "blob views": (pa.array([b"a", None, b"\xff" * 20], pa.binary_view()), TypeCode.BYTE_ARRAY),
    "half": (pa.array([np.float16(0.5), None]), TypeCode.FLOAT),
    "wide decimals": (pa.array([decimal.Decimal("1.25"), None], pa.decimal256(70, 2)), TypeCode.DECIMAL),
    "zoned": (pa.array([DAY, None], pa.timestamp("ms", "Asia/Kolkata")), TypeCode.TIMESTAMP),
    "far seconds": (pa.array(FAR, pa.timestamp("s")), TypeCode.TIMESTAMP),
    "far milliseconds": (pa.array(FAR, pa.timestamp("ms")), TypeCode.TIMESTAMP),
    "far microseconds": (pa.array(FAR, pa.timestamp("us")), TypeCode.TIMESTAMP),
    "far days": (pa.array([dt.date(9999, 12, 31), None, dt.date(1, 1, 1)]), TypeCode.DATE),
    "times": (pa.array([3_723_004_000_000, None], pa.time64("ns")), TypeCode.TIME),
    "structs": (structs(), TypeCode.OBJECT),
    "maps": (
        pa.array([[("a", 1)], None, [], [("b", None), ("c", 3)]], pa.map_(pa.string(), pa.int32())),
        TypeCode.MAP,
    ),
    "lists of structs": (listed(structs()), TypeCode.COLLECTION),
    "lists of ids": (listed(pa.array(IDS, pa.uuid())), TypeCode.UUID_ARRAY),
    "lists of times": (listed(pa.array(FAR[:3], pa.timestamp("ms"))), TypeCode.TIMESTAMP_ARRAY),
    "lists of truths": (
        listed(extension(pa.bool8(), pa.array([1, 0, 2], pa.int8()))),
        TypeCode.BOOL_ARRAY,
    ),
    "lists of views": (listed(pa.array(["a", "b", "c"], pa.string_view())), TypeCode.STRING_ARRAY),
}  # fmt: skip


def told(value):
    """A value as pyarrow tells it, in the form of `found`."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], tuple):
        return dict(value)  # a map
    if isinstance(value, (list, np.ndarray)):
        return [told(one) for one in value]
    if isinstance(value, dict):
        return {name: told(one) for name, one in value.items()}
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo else value
    return str(value) if isinstance(value, uuid.UUID) else value


def found(field, column):
    """The values of a column as Python objects, by the type of their field."""
    n = len(column)
    valid = np.ones(n, bool) if column.valid is None else column.valid
    values = _present(field, column)
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def _present(field, column):
    if isinstance(column, Struct):
        if field.type is TypeCode.MAP:
            both = (runs(f, column.fields[f.name]) for f in field.fields)
            return [dict(zip(*pair, strict=True)) for pair in zip(*both, strict=True)]
        parts = [found(f, column.fields[f.name]) for f in field.fields]
        names = [f.name for f in field.fields]
        return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(column, Runs) and (field.fields or isinstance(column.items, Runs)):
        return runs(field.fields[0] if field.fields else None, column)
    if isinstance(column, Runs) and field.dtype == object:
        texts = column.to_bytes()
        if field.type == TypeCode.DECIMAL:
            return [decimal.Decimal(t.decode() or "0") for t in texts]
        return texts if field.type == TypeCode.BYTE_ARRAY else [t.decode() for t in texts]
    if isinstance(column, Runs):
        return [
            column.values[s : s + k].tolist()
            for s, k in zip(column.starts, column.lengths, strict=True)
        ]
    return scalars(field, column.values)


def runs(item, column):
    inner = column.items
    flat = [t.decode() for t in inner.to_bytes()] if item is None else found(item, inner)
    return [flat[s : s + k] for s, k in zip(column.starts, column.lengths, strict=True)]


def scalars(field, values):
    if field.type is TypeCode.TIMESTAMP and values.dtype.names:
        return [
            EPOCH + dt.timedelta(milliseconds=int(v["ms"]), microseconds=int(v["ns"]) // 1000)
            for v in values
        ]
    if field.type is TypeCode.TIMESTAMP:
        return [EPOCH + dt.timedelta(microseconds=v // 1000) for v in values.tolist()]
    if field.type is TypeCode.DATE:
        return [(EPOCH + dt.timedelta(milliseconds=v)).date() for v in values.tolist()]
    if field.type is TypeCode.TIME:
        return [(EPOCH + dt.timedelta(milliseconds=v)).time() for v in values.tolist()]
    return values.tolist()


def loaded(table, **options):
    source = open_source("stream", table, **options)
    rows = [found(source.schema["A"], b.columns["A"]) for b in source.batches()]
    return source, [value for batch in rows for value in batch]


@pytest.mark.parametrize("name", ARRAYS)
def test_every_value_is_what_pyarrow_says(name):
    """Whole, as a part of its memory, and with a row to skip."""
    array, code = ARRAYS[name]
    is_tensor = "tensor" in name
    wanted = list(array.to_numpy_ndarray()) if is_tensor else array.to_pylist()
    wanted = [told(value) for value in wanted]
    if name == "bool8":
        wanted = [True, False, None]
    if name == "maps":
        wanted[2] = {}
    if name == "lists of truths":
        wanted = [[True], [], [False, True], None]
    source, values = loaded(pa.table({"a": array}))
    assert (source.schema["A"].type, values) == (code, wanted)
    assert loaded(pa.table({"a": array}).slice(1))[1] == wanted[1:]
    odd = pa.array([2**63, *range(1, len(array))], pa.uint64())
    source, values = loaded(pa.table({"a": array, "b": odd}), bad_records="skip")
    assert (values, len(source.skipped)) == (wanted[1:], 1)


REFUSED = {
    "opaque": pa.array([b"1"]).cast(pa.binary()),
    "duration": pa.array([1], pa.duration("s")),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3])]),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "struct<>": pa.array([{}], pa.struct([])),
    "nested names are equal: 'a b' and 'A_B'": pa.array([{"a b": 1, "A_B": 2}]),
    "acme.money": pa.array([5]),
}
REFUSED["opaque"] = extension(pa.opaque(pa.binary(), "box", "PostGIS"), REFUSED["opaque"])


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("inside", [False, True])
def test_a_type_without_a_meaning_here_is_refused_by_name(name, inside):
    """Also inside of others, and if pyarrow does not know the extension."""
    array = REFUSED[name]
    noted = {"ARROW:extension:name": name} if "." in name else None
    part = pa.field("x", array.type, metadata=noted)
    field = pa.field("a", pa.struct([part]), metadata=None) if inside else part.with_name("a")
    if inside:
        array = pa.StructArray.from_arrays([array], fields=[part])
    with pytest.raises(SourceError, match=f"column 'a': no Ignite type stores .*{name}") as caught:
        open_source("stream", pa.table([array], pa.schema([field])))
    assert caught.value.hint


def frames():
    """Frames and relations with values that Arrow has in another meaning, and their types."""
    pl, pd = pytest.importorskip("polars"), pytest.importorskip("pandas")
    duckdb = pytest.importorskip("duckdb")
    yield pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}), "Object"
    yield pl.DataFrame({"a": [dt.timedelta(1)]}), "duration"
    yield pd.DataFrame({"a": pd.period_range("2020-01", periods=2, freq="M")}), "pandas.period"
    yield pd.DataFrame({"a": pd.interval_range(0, 2)}), "pandas.interval"
    for value in ("'101'::BIT", "TIMETZ '12:00:00+02'", "340282366920938463463::UHUGEINT"):
        for shape in ("{}", "[{}]", "{{'x': {}}}", "MAP {{'k': [{}]}}"):
            word = value.rpartition("::")[2].replace("TIMETZ '12:00:00+02'", "TIME WITH TIME ZONE")
            yield duckdb.sql(f"SELECT {shape.format(value)} AS a"), word
    yield duckdb.sql("SELECT INTERVAL 1 DAY AS a"), "interval"
    yield duckdb.sql("SELECT union_value(k := 1) AS a"), "union"


def test_values_that_other_libraries_hand_over_in_another_meaning_are_refused():
    for value, word in frames():
        with pytest.raises(SourceError, match=f"column 'a': no Ignite type stores .*{word}"):
            open_source("stream", value)


def test_values_of_frames_are_what_their_library_says():
    pl, pd = pytest.importorskip("polars"), pytest.importorskip("pandas")
    duckdb = pytest.importorskip("duckdb")
    words = ["b", None, "a"]
    for values, kind in [
        (words, pl.Categorical), (words, pl.Enum(["a", "b"])), ([[1, 2], None], pl.Array(pl.Int8, 2)),
        ([decimal.Decimal("1.50"), None], pl.Decimal(10, 2)), ([{"x": 1, "y": "b"}], pl.Struct),
        ([dt.time(1, 2, 3, 4000), None], pl.Time), (FAR, pl.Datetime("us")),
        ([["b"], None, []], pl.List(pl.Categorical)), ([{"x": ["a", "b"]}], pl.Struct),
    ]:  # fmt: skip
        frame = pl.DataFrame({"a": pl.Series(values, dtype=kind)})
        assert loaded(frame)[1] == frame["a"].to_list()
    for values in [
        pd.Categorical([20, 7, None]), pd.array([1, None], "Int64"), pd.array([True, None], "boolean"),
        pd.Series([pd.Timestamp(DAY), pd.NaT]), pd.Series(np.array(["9999-12-31"], "M8[s]")),
    ]:  # fmt: skip
        wanted = [None if pd.isna(v) else v for v in pd.Series(values)]
        wanted = [told(v.to_pydatetime()) if isinstance(v, pd.Timestamp) else v for v in wanted]
        assert loaded(pd.DataFrame({"a": values}))[1] == wanted
    for text in [
        "170141183460469231731687303715884105727::HUGEINT", "'a'::ENUM('a', 'b')", "MAP {'a': 1}",
        "{'x': [1, 2]}", "[1.5::DECIMAL(5, 2)]", "TIMESTAMP '9999-12-31'", "DATE '0001-01-01'",
        "[{'x': 'y'}]", "TIME '12:00:00.125'",
    ]:  # fmt: skip
        [[wanted]] = duckdb.sql(f"SELECT {text}").fetchall()
        assert loaded(duckdb.sql(f"SELECT {text} AS a"))[1] == [told(wanted)]


@pytest.mark.parametrize("name", ["uuid", "turned tensor", "structs", "number categories", "bool8"])
def test_arrays_by_name_enter_by_the_same_way(name):
    array, code = ARRAYS[name]
    by_name = open_source("records", {"a": array, "n": pa.chunked_array([range(len(array))])})
    assert by_name.schema["A"].type == code
    rows = [
        value for b in by_name.batches() for value in found(by_name.schema["A"], b.columns["A"])
    ]
    assert rows == loaded(pa.table({"a": array}))[1]
    pl = pytest.importorskip("polars")
    series = open_source("records", {"a": pl.Series([1, None]), "b": pl.Series(["x", "y"])})
    assert everything(series)["A"] == [1, None]
    with pytest.raises(SourceError, match="column 'a': no Ignite type stores Object"):
        open_source("records", {"a": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(SourceError, match=r"column 'a': no Ignite type stores .*opaque"):
        open_source("records", {"a": REFUSED["opaque"]})


def test_marks_that_are_no_times_are_bad_records():
    """DuckDB's infinity is the largest number of days and microseconds."""
    days = pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32())
    times = pa.array([0, 2**63 - 1], pa.int64()).cast(pa.timestamp("us"))
    for array in (days, times):
        with pytest.raises(SourceError, match="row 2: column A: a time out of range"):
            loaded(pa.table({"a": array}))
        assert len(loaded(pa.table({"a": array}), bad_records="skip")[1]) == 1


@pytest.mark.parametrize("rows", [4, 100])
def test_times_of_int96_are_exact(tmp_path, rows):
    """pyarrow itself reads 9999-12-31 as 1816-03-29, as nanoseconds do not count so far."""
    near = pa.array([1_577_840_523_000_000_001, None, -1, -1_000_001], pa.timestamp("ns"))
    table = pa.table({"n": range(4), "far": pa.array(FAR, pa.timestamp("us")), "near": near})
    path = tmp_path / "t.parquet"
    table = pa.concat_tables([table] * (rows // 4))
    pq.write_table(table, path, use_deprecated_int96_timestamps=True, row_group_size=3)
    source = open_source("parquet", path)
    for start in (0, 1, rows - 2):
        for size in (1, 1 << 20):
            values = [
                value
                for batch in source.batches(start, max_bytes=size)
                for value in found(source.schema["FAR"], batch.columns["FAR"])
            ]
            assert values == (FAR * (rows // 4))[start:]
    wanted = near.cast(pa.int64()).to_pylist() * (rows // 4)
    assert everything(source)["NEAR"] == wanted


def test_int96_inside_others_is_refused_by_name(tmp_path):
    table = pa.table({"a": pa.array([[FAR[0]]], pa.list_(pa.timestamp("us")))})
    pq.write_table(table, tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(SourceError, match=r"column 'a': no Ignite type stores .*INT96"):
        open_source("parquet", tmp_path / "t.parquet")


def test_types_of_parquet_are_those_that_the_file_declares(tmp_path):
    path = tmp_path / "t.parquet"
    columns = {"u": pa.array(IDS, pa.uuid()), "j": extension(pa.json_(), pa.array(["{}"] * 3))}
    pq.write_table(pa.table(columns), path, store_schema=False)
    source = open_source("parquet", path)
    assert [f.type for f in source.schema.fields] == [TypeCode.UUID, TypeCode.STRING]
    texts = [None if one is None else str(uuid.UUID(bytes=one)).encode() for one in IDS]
    assert everything(source)["U"] == texts
    duckdb = pytest.importorskip("duckdb")
    duckdb.sql(f"COPY (SELECT INTERVAL 1 DAY AS i) TO '{path}'")
    with pytest.raises(SourceError, match="column 'i': no Ignite type stores INTERVAL"):
        open_source("parquet", path)


def test_maps_without_entries_at_any_depth_are_empty():
    kind = pa.map_(pa.string(), pa.string_view())
    for rows, whole in (([[], None], pa.list_(kind)), ([[], []], kind)):
        got = everything(open_source("stream", pa.table({"A": pa.array(rows, whole)})))["A"]
        empty = {"keys": [], "values": []} if whole is kind else []
        assert got == [empty, None if rows[1] is None else empty]
