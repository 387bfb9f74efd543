"""Rows of every type, written by Java's own client, read back equal."""

import datetime
import uuid
from decimal import Decimal

import numpy as np
import pytest
from helpers.java_programs import java_command, run, secured
from helpers.paths import ROOT

from ignitetf import dbapi
from ignitetf.explore.head import first_rows

tf = pytest.importorskip("tensorflow")
pytestmark = [pytest.mark.node, pytest.mark.slow]

SOURCE = ROOT / "tests" / "data" / "java" / "JavaRows.java"
ROWS, NULL_EVERY = 24, 5
COLOURS = 3


@pytest.fixture(scope="module")
def java(node_home, tmp_path_factory):
    """Runs the program: its JVM, with the compiled class and the jars of the node."""
    command = java_command(SOURCE, node_home, tmp_path_factory.mktemp("java"))
    return lambda *arguments, **options: run(*command, *arguments, **options)


# What JavaRows writes, told a second time


def wrapped(value, bits):
    """A Java number that ran over."""
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def date(k):
    return (k - 20) * 100_000_000_123


def timestamp(k):
    return (k + 1) * 10_000_000_000 // 1000 * 1_000_000_000 + k * 1_001_001


def text_of_uuid(k):
    high, low = 0xFEDCBA9876543210 - k, 0x8000000000000000 + k * 12345678901
    return str(uuid.UUID(int=high << 64 | low)).encode()


def decimal(k):
    return Decimal(123456789012345678901234 * (k - 10)).scaleb(5 - k)


def numbers(k):
    byte, short, int_ = wrapped(k * 7, 8), wrapped(k * 3001, 16), wrapped(k * 100_000_007, 32)
    return {
        "aByte": byte,
        "aShort": short,
        "anInt": int_,
        "aLong": k * 1_000_000_000_000_007,
        "aFloat": k / 8 - 3,
        "aDouble": k / 16 - 1e9,
        "aChar": 0x30 + k * 997,
        "aBoolean": k % 2 == 1,
    }


def references(k):
    own, n = numbers(k), range(k % 4)
    bits = {"Byte": 8, "Short": 16, "Int": 32, "Long": 64}
    boxed = {f"boxed{t}": wrapped(-own[f"a{'n' * (t == 'Int')}{t}"], b) for t, b in bits.items()}
    return {
        **boxed,
        "boxedFloat": -own["aFloat"],
        "boxedDouble": -own["aDouble"],
        "boxedChar": own["aChar"],
        "boxedBoolean": not own["aBoolean"],
        "string": f"row {k}".encode() + " żółć 😀".encode() * len(n),
        "uuid": text_of_uuid(k),
        "date": date(k),
        "timestamp": timestamp(k),
        "time": k * 61_000,
        "decimal": decimal(k),
        "colour": k % COLOURS,
        "bytes": bytes((200 + k + i) % 256 for i in n),
        "shorts": [-(k + i) for i in n],
        "ints": [k - i * 1_000_000 for i in n],
        "longs": [k - i * 1_000_000_000_000 for i in n],
        "floats": [k / 2 + i for i in n],
        "doubles": [k / 4 - i for i in n],
        "chars": [0x4E00 + k + i for i in n],
        "booleans": [(k + i) % 2 == 0 for i in n],
        "strings": [f"s{k}/{i}".encode() for i in n],
        "uuids": [text_of_uuid(k + i) for i in n],
        "dates": [date(k + i) for i in n],
        "timestamps": [timestamp(k + i) for i in n],
        "times": [(k + i) * 61_000 for i in n],
        "decimals": [decimal(k + i) for i in n],
        "colours": [(k + i) % COLOURS for i in n],
        "objects": [k * 10 + i for i in n],
        "list": [k + i for i in n],
        "linked": [f"l{k + i}".encode() for i in n],
        "set": [k + i for i in n],
        "single": [own["aLong"]],
        "map": {"keys": [f"k{i}".encode() for i in n], "values": [k + i / 2 for i in n]},
        "inner": {
            "number": -k,
            "text": f"inner {k}".encode(),
            "weights": [k / 4 + i for i in range(k % 3)],
        },
    }


def as_python(value, name=""):
    if isinstance(value, dict):
        return {n: as_python(v) for n, v in value.items()}
    plain = value.numpy()
    plain = plain.tolist() if isinstance(plain, (np.ndarray, np.generic)) else plain
    if name == "decimal":
        return Decimal(plain.decode())
    return [Decimal(d.decode()) for d in plain] if name == "decimals" else plain


@pytest.fixture
def written(java, address, client, cache_name, tmp_path):
    def write(null_every):
        environment = secured(client.settings, tmp_path)
        java(address, cache_name, ROWS, null_every, environment=environment)
        return cache_name

    return write


def test_rows_of_every_type(written, address):
    from ignitetf import IgniteDataset

    dataset = IgniteDataset(written(0), addresses=[address])
    singles = {int(x["key"]): x["val"] for x in dataset}
    assert sorted(singles) == list(range(ROWS))
    for k, row in singles.items():
        expected = numbers(k) | references(k)
        assert row.keys() == expected.keys()
        for name, value in expected.items():
            assert as_python(row[name], name) == value, (name, k)


def test_rows_with_nulls(written, address):
    from ignitetf import IgniteDataset

    dataset = IgniteDataset(written(NULL_EVERY), addresses=[address], nulls="mask")
    rows = {int(x["key"]): x["val"] for x in dataset}
    assert sorted(rows) == list(range(ROWS))
    for k, row in rows.items():
        null = k % NULL_EVERY == 0
        for name, value in numbers(k).items():
            assert bool(row[f"{name}_valid"])
            assert as_python(row[name]) == (type(value)(0) if null else value)
        for name, value in references(k).items():
            assert bool(row[f"{name}_valid"]) is not null, (name, k)
            if not null:
                assert as_python(row[name], name) == value, (name, k)


def plain(value):
    """What a person sees: texts of UUIDs and decimals, and lists for arrays."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.astype(object).tolist() if value.dtype.kind in "iufb" else list(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, (uuid.UUID, Decimal)) else value


def test_objects_in_sql_are_those_of_the_data_set(java, address, client, cache_name, tmp_path):
    """One decoder: what SQL sends as a whole, `head` shows; an enum is its name in both."""
    pytest.importorskip("pandas")
    options = f"CACHE_NAME={cache_name},VALUE_TYPE=Everything"
    columns = 'ID BIGINT PRIMARY KEY, "aByte" TINYINT'
    client.sql(f'CREATE TABLE "{cache_name}" ({columns}) WITH "{options}"')
    java(address, cache_name, ROWS, NULL_EVERY, environment=secured(client.settings, tmp_path))
    statement = f'SELECT _KEY, _VAL FROM "{cache_name}"'
    rows = client.sql(statement).fetchall()
    names = tuple(rows[0][1])  # they are no columns, so they have to be named
    shown = {row.pop("key"): row for row in first_rows(client, cache_name, ROWS, fields=names)}
    assert {key for key, _ in rows} == set(range(ROWS))
    for key, found in rows:
        colour = None if key % NULL_EVERY == 0 else ("RED", "GREEN", "BLUE")[key % COLOURS]
        assert found["colour"] == shown[key]["colour"] == colour
        for name in set(found) - {"aChar", "boxedChar", "map", *TIMES}:
            assert plain(found[name]) == plain(shown[key][name]), name
        for name in TIMES:
            items = found[name] if name.endswith("s") else [found[name]]
            others = shown[key][name] if name.endswith("s") else [shown[key][name]]
            for item, other in zip(items or [], [] if others is None else others, strict=True):
                assert as_time(other) == item, name
    with dbapi.connect(address) as connection:
        frame = connection.execute(statement).fetch_df()
    assert frame["_VAL"][frame["_KEY"] == 7].iloc[0]["inner"]["text"] == "inner 7"


TIMES = ("date", "dates", "time", "times", "timestamp", "timestamps")


def as_time(shown):
    """Return a time of NumPy as SQL's results have it."""
    if shown is None:
        return None
    value = shown.astype(f"{shown.dtype.kind}8[us]").item()
    return value if shown.dtype.kind == "M" else (datetime.datetime.min + value).time()
