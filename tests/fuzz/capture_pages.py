"""Capture the pages in tests/data/pages from a node: python capture_pages.py HOST:PORT FOLDER [CACHE]

With CACHE `java.page` too, of a cache `PREFIX_whole` that tests/data/java/JavaRandom.java wrote.

For each page `NAME.page` is the body of a QUERY_SCAN answer, and `NAME.types` the bodies of the
BINARY_TYPE_GET answers of all binary types in it, each with its length before it.
"""

import datetime
import decimal
import struct
import sys
import uuid
from pathlib import Path

import pyignite.datatypes as t
from pyignite import GenericObjectMeta

from ignitetf.net.client import cache_id, connect
from ignitetf.wire.codes import OpCode
from ignitetf.wire.frames import read_first_page
from ignitetf.wire.infer import Evidence, observe_page
from ignitetf.wire.requests import scan_request
from ignitetf.wire.types import TypeRegistry, UnknownType, read_binary_type

MOMENT = datetime.datetime(2024, 2, 3, 4, 5, 6)
INNER = GenericObjectMeta("CapInner", (), {}, schema={"X": t.IntObject, "S": t.String})
ALL = GenericObjectMeta(
    "CapAll",
    (),
    {},
    schema={
        "BYTE": t.ByteObject, "SHORT": t.ShortObject, "INT": t.IntObject, "LONG": t.LongObject,
        "FLOAT": t.FloatObject, "DOUBLE": t.DoubleObject, "CHAR": t.CharObject,
        "BOOL": t.BoolObject, "STRING": t.String, "UUID": t.UUIDObject, "DATE": t.DateObject,
        "STAMP": t.TimestampObject, "TIME": t.TimeObject, "DECIMAL": t.DecimalObject,
        "BYTES": t.ByteArrayObject, "INTS": t.IntArrayObject, "DOUBLES": t.DoubleArrayObject,
        "STRINGS": t.StringArrayObject, "UUIDS": t.UUIDArrayObject, "INNER": t.BinaryObject,
        "LIST": t.CollectionObject, "MAP": t.MapObject,
    },
)  # fmt: skip


def everything(n):
    """A record with each type, every third field of some records null."""
    values = {
        "BYTE": n, "SHORT": -n, "INT": n * 1000, "LONG": n << 40, "FLOAT": n / 2, "DOUBLE": n / 3,
        "CHAR": chr(65 + n), "BOOL": bool(n % 2), "STRING": "text " * n,
        "UUID": uuid.UUID(int=n << 64 | 7), "DATE": MOMENT, "STAMP": (MOMENT, n),
        "TIME": datetime.timedelta(seconds=n), "DECIMAL": decimal.Decimal(n) / 8,
        "BYTES": bytes(range(n)), "INTS": list(range(n)), "DOUBLES": [0.5] * n,
        "STRINGS": ["a" * i for i in range(n)], "UUIDS": [uuid.UUID(int=n)] * (n % 3),
        "INNER": INNER(X=n, S="in"), "LIST": (1, [n, n + 1]), "MAP": (1, {"k": n, "l": n}),
    }  # fmt: skip
    names = sorted(values)
    return ALL(**{k: None if n % 4 == 3 and names.index(k) % 3 == 0 else values[k] for k in names})


CACHES = {
    "everything": lambda: {(n, t.LongObject): everything(n) for n in range(7)},
    "text_keys": lambda: {f"key {n}": INNER(X=n, S="s" * n) for n in range(9)},
    "numbers": lambda: {(n, t.LongObject): (n * 0.5, t.DoubleObject) for n in range(20)},
}


def capture(client, name, folder):
    cache = client.pyignite.get_or_create_cache(f"p1-capture-{name}")
    cache.clear()
    cache.put_all(CACHES[name]())
    save(client, cache.name, folder / name)
    cache.destroy()


def save(client, cache, path):
    body = bytes(client.call(OpCode.QUERY_SCAN, scan_request(cache_id(cache), 100)))
    page = read_first_page(memoryview(body))[1]
    registry, types = TypeRegistry(), []
    while True:
        try:
            observe_page(page, Evidence(), Evidence(), registry)
            break
        except UnknownType as missing:
            answer = bytes(client.call(OpCode.BINARY_TYPE_GET, struct.pack("<i", missing.type_id)))
            registry.add(read_binary_type(memoryview(answer)))
            types.append(struct.pack("<i", len(answer)) + answer)
    path.with_suffix(".page").write_bytes(body)
    path.with_suffix(".types").write_bytes(b"".join(types))


if __name__ == "__main__":
    with connect(sys.argv[1]) as found:
        for each in CACHES:
            capture(found, each, Path(sys.argv[2]))
        for java in sys.argv[3:]:
            save(found, java, Path(sys.argv[2]) / "java")
