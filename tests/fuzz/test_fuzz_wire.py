"""Damaged pages, answers and types: refused by the project's own errors, or read in full.

What can be known is checked: a page that was cut is never read, columns have as many records as
the page, everything in them can be looked at, and the fast path reads what the general one reads.
"""

import struct
from pathlib import Path

import numpy as np
import pytest
from fuzzing import attempt, chance, count, damage, watched

from ignitetf.errors import ConfigError, SchemaError, WireError
from ignitetf.net.pyclient import check_answer
from ignitetf.wire.blocks import BlockDecoder, block_schema, pack_blocks
from ignitetf.wire.codes import OpCode, TypeCode
from ignitetf.wire.columns import Batch, Dense, Runs, Struct
from ignitetf.wire.decode import Decoder
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.frames import Page, read_first_page, read_first_sql_page, read_page
from ignitetf.wire.infer import Evidence, infer_schema, observe_page
from ignitetf.wire.schema import BYTES, Field, Schema, field_for
from ignitetf.wire.types import (
    BinaryType,
    TypeRegistry,
    UnknownClass,
    UnknownType,
    read_binary_type,
)

PAGES = Path(__file__).resolve().parents[1] / "data" / "pages"
REFUSED = (SchemaError, WireError, UnknownClass, UnknownType)
KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))


def registry_of(schema):
    registry = TypeRegistry()
    if schema.type_name is not None:
        ids = tuple(f.field_id for f in schema.fields)
        fields = {f.field_id: (f.name, int(f.type)) for f in schema.fields}
        registry.add(BinaryType(schema.type_id, schema.type_name, fields, {schema.schema_id: ids}))
    return registry


def answer_of(schema, batch):
    """The page as a node would answer it: count, entries with wrapped values, more."""
    encoded = encode_entries(schema, batch)
    data, out, start = b"".join(encoded.entries(0, len(encoded))), [], 0
    for end in encoded.ends.tolist():
        key, value = data[start : start + 9], data[start + 9 : end]
        if schema.type_name is not None:
            value = struct.pack("<bi", TypeCode.WRAPPED, len(value)) + value + bytes(4)
        out.append(key + value)
        start = end
    return struct.pack("<i", len(out)) + b"".join(out) + b"\0"


def large_rows(rng, size):
    """Rows with values of more bytes than are received at a time."""
    draw, n = np.random.default_rng(rng.getrandbits(32)), rng.randint(1, 3)
    fields = [
        field_for("A", np.dtype("<i4")),
        field_for("IMAGE", np.dtype("u1"), (size,)),
        Field("NAME", TypeCode.STRING, BYTES, (), True),
        Field("BLOB", TypeCode.BYTE_ARRAY, BYTES, (), True),
        field_for("Z", np.dtype("<f8")),
    ]
    columns = {
        "A": Dense(draw.integers(0, 99, n).astype("<i4")),
        "IMAGE": Dense(draw.integers(0, 99, (n, size)).astype("u1")),
        "NAME": Runs.from_bytes([None if rng.random() < 0.3 else b"n" * rng.randrange(9) for _ in range(n)]),
        "BLOB": Runs.from_bytes([rng.randbytes(size + rng.randrange(9)) for _ in range(n)]),
        "Z": Dense(draw.random(n)),
    }  # fmt: skip
    kept = rng.sample(fields, rng.randint(2, 5))
    if rng.random() < 0.5:  # a footer that is longer than what stands before a value
        more = {f"Z{i}": Dense(draw.integers(0, 99, n).astype("<i4")) for i in range(200)}
        kept, columns = kept + [field_for(name, np.dtype("<i4")) for name in more], columns | more
    kept += [f for f in fields[1:2] if not {"IMAGE", "BLOB"} & {k.name for k in kept}]
    key = Field("key", TypeCode.LONG, np.dtype("<i8"))
    schema = Schema("Large", key, tuple(sorted(kept, key=lambda f: f.name)))
    keys = Dense(draw.integers(-99, 99, n))
    return schema, Batch(keys, {f.name: columns[f.name] for f in schema.fields})


def generated(rng):
    """A schema with some fields, records for it, and the page they make."""
    n = rng.randint(1, 12)
    draw = np.random.default_rng(rng.getrandbits(32))
    fields, columns = [], {}
    for i in range(rng.randint(1, 5)):
        name, kind = f"F{i}", rng.randrange(5)
        if kind == 0:
            dtype = np.dtype(rng.choice(["u1", "<i2", "<i4", "<i8", "<f4", "<f8"]))
            fields.append(field_for(name, dtype))
            columns[name] = Dense(draw.integers(0, 99, n).astype(dtype))
        elif kind == 1:
            dtype = np.dtype(rng.choice(["u1", "<i4", "<f8"]))
            shape = (rng.randint(1, 4), rng.randint(1, 3))
            fields.append(field_for(name, dtype, shape))
            columns[name] = Dense(draw.integers(0, 99, (n, *shape)).astype(dtype))
        elif kind == 2:
            values = [
                None if rng.random() < 0.2 else rng.randbytes(rng.randrange(9)) for _ in range(n)
            ]
            fields.append(Field(name, TypeCode.BYTE_ARRAY, BYTES, (), True))
            columns[name] = Runs.from_bytes(values)
        elif kind == 3:
            fields.append(Field(name, TypeCode.STRING, BYTES))
            columns[name] = Runs.from_bytes([b"text" * rng.randrange(4) for _ in range(n)])
        else:
            counts = draw.integers(0, 5, n)
            offsets = np.concatenate(([0], np.cumsum(counts)))
            flat = draw.integers(0, 99, int(offsets[-1])).astype("<i4")
            fields.append(field_for(name, np.dtype("<i4"), (None,)))
            columns[name] = Runs.from_offsets(Dense(flat), offsets)
    schema = Schema("Fuzzed", KEY, tuple(fields))
    batch = Batch(Dense(draw.integers(-99, 99, n)), columns)
    return schema, registry_of(schema), answer_of(schema, batch)


def observed(page, registry):
    """Evidence of a page; types that were not captured with it are those that no cluster knows."""
    while True:
        try:
            key, value = Evidence(), Evidence()
            observe_page(page, key, value, registry)
            return key, value
        except UnknownType as missing:
            registry.add_missing(missing.type_id)


def captured():
    """Pages that a node sent: (schema, registry, answer without the cursor)."""
    found = []
    for path in sorted(PAGES.glob("*.page")):
        body, registry = path.read_bytes(), TypeRegistry()
        types = path.with_suffix(".types").read_bytes()
        while types:
            (size,) = struct.unpack_from("<i", types)
            registry.add(read_binary_type(memoryview(types[4 : 4 + size])))
            types = types[4 + size :]
        _, page = read_first_page(memoryview(body))
        key, value = observed(page, registry)
        found.append((infer_schema(key, value, registry), registry, body[8:]))
    assert len(found) >= 4
    return found


def texts(column):
    """Everything of a column, looked at: comparable, with None for nulls."""
    if isinstance(column, Struct):
        parts = {name: texts(c) for name, c in column.fields.items()}
        rows = [tuple(p[i] for p in parts.values()) for i in range(len(column))]
    elif isinstance(column, Dense):
        rows = [np.asarray(v).tobytes() for v in column.values]
    else:
        assert len(column.starts) == len(column.lengths)
        assert (column.lengths >= 0).all()
        items, offsets = column.compact()
        nested = not isinstance(items, Dense) or items.valid is not None
        inner = texts(items) if nested else items.values
        assert int(offsets[-1]) == len(inner)
        pairs = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        rows = [
            tuple(inner[p:q]) if isinstance(inner, list) else inner[p:q].tobytes() for p, q in pairs
        ]
    if column.valid is None:
        return rows
    assert len(column.valid) == len(rows)
    return [row if ok else None for row, ok in zip(rows, column.valid.tolist(), strict=True)]


def look(batch, rows):
    assert len(batch) == rows
    found = {"key": texts(batch.key), **{n: texts(c) for n, c in batch.columns.items()}}
    assert all(len(values) == rows for values in found.values())
    return found


def decoded(schema, registry, page):
    return look(Decoder(schema, registry).decode(page), page.count)


def test_damaged_pages():
    inputs, kept = count(2500), captured()
    with watched("pages", inputs):
        for number in range(inputs):
            rng = chance(number)
            if number % 8 == 0:
                kept = [*kept[-40:], generated(rng)]
            schema, registry, answer = rng.choice(kept)
            spoilt = damage(rng, answer)

            def read(schema=schema, registry=registry, spoilt=spoilt):
                return decoded(schema, registry, read_page(memoryview(spoilt)))

            attempt(number, read, REFUSED)


def test_cut_pages_are_never_read():
    """A page of fewer bytes and the same count, a count too high, bytes after the last entry."""
    inputs, kept = count(1500), captured()
    with watched("cut pages", inputs):
        for number in range(inputs):
            rng = chance(number)
            if number % 8 == 0:
                kept = [*kept[-40:], generated(rng)]
            schema, registry, answer = rng.choice(kept)
            page = read_page(memoryview(answer))
            kind = rng.randrange(3)
            if kind == 0:
                page = Page(page.count, False, page.data[: rng.randrange(len(page.data))])
            elif kind == 1:
                page = Page(page.count + rng.randint(1, 5), False, page.data)
            else:
                more = np.frombuffer(rng.randbytes(rng.randint(1, 30)), np.uint8)
                page = Page(page.count, False, np.concatenate([page.data, more]))

            def read(schema=schema, registry=registry, page=page):
                decoded(schema, registry, page)
                return True

            assert attempt(number, read, REFUSED) is None, f"input {number} was read"


def test_pages_of_garbage_and_of_other_schemas():
    inputs, kept = count(800), captured()
    with watched("garbage", inputs):
        for number in range(inputs):
            rng = chance(number)
            schema, registry, _ = rng.choice(kept)
            data = rng.randbytes(rng.randrange(200))
            if rng.random() < 0.5:
                kept = [*kept[-40:], generated(rng)]
                data = rng.choice(kept)[2]
            attempt(
                number,
                lambda s=schema, r=registry, d=data: decoded(s, r, read_page(memoryview(d))),
                REFUSED,
            )


def test_damaged_first_pages_and_what_is_inferred_from_them():
    inputs, kept = count(800), captured()
    with watched("inference", inputs):
        for number in range(inputs):
            rng = chance(number)
            _, registry, answer = rng.choice(kept)
            spoilt = damage(rng, answer)

            def infer(registry=registry, spoilt=spoilt):
                key, value = Evidence(), Evidence()
                observe_page(read_page(memoryview(spoilt)), key, value, registry)
                return infer_schema(key, value, registry)

            attempt(number, infer, (*REFUSED, ConfigError))


def test_damaged_blocks():
    rows = Schema("Row", KEY, (field_for("IMAGE", np.dtype("u1"), (2, 3)), field_for("L", np.dtype("<i4")),
                               Field("NAME", TypeCode.STRING, BYTES, (), True)))  # fmt: skip
    batch = Batch(
        Dense(np.arange(40)),
        {
            "IMAGE": Dense(np.arange(240, dtype=np.uint8).reshape(40, 2, 3)),
            "L": Dense(np.arange(40, dtype=np.int32)),
            "NAME": Runs.from_bytes([None if i % 7 == 0 else b"n" * (i % 5) for i in range(40)]),
        },
    )
    bounds = np.array([0, 13, 14, 40])
    schema = block_schema(rows)
    answer = answer_of(schema, pack_blocks(rows, batch, bounds, np.arange(3)))
    registry = registry_of(schema)
    inputs = count(800)
    with watched("blocks", inputs):
        for number in range(inputs):
            spoilt = damage(chance(number), answer)

            def read(spoilt=spoilt):
                page = read_page(memoryview(spoilt))
                for part in BlockDecoder(rows, registry).decode(page):
                    look(part, len(part))

            attempt(number, read, REFUSED)


def test_encoder_and_decoder_are_mirrors():
    inputs = count(500)
    with watched("round trips", inputs):
        for number in range(inputs):
            schema, registry, answer = generated(chance(number))
            first = decoded(schema, registry, read_page(memoryview(answer)))
            batch = Decoder(schema, registry).decode(read_page(memoryview(answer)))
            again = answer_of(schema, batch)
            assert again == answer, f"input {number}"
            assert decoded(schema, registry, read_page(memoryview(again))) == first


def test_damaged_types_and_sql_answers():
    types = [p.read_bytes()[4:] for p in sorted(PAGES.glob("*.types")) if p.stat().st_size]
    names = b"".join(struct.pack("<bi", TypeCode.STRING, 1) + c for c in (b"A", b"B"))
    cells = struct.pack("<bqbi", TypeCode.LONG, 5, TypeCode.STRING, 3) + b"abc"
    sql = struct.pack("<qi", 1, 2) + names + struct.pack("<i", 4) + 4 * cells + b"\0"
    page = struct.pack("<i", 4) + 4 * cells + b"\1"
    check_answer(OpCode.QUERY_SQL_FIELDS, b"\1", memoryview(sql))
    check_answer(OpCode.QUERY_SQL_FIELDS_PAGE, b"", memoryview(page))
    read_first_sql_page(memoryview(struct.pack("<qi", 1, 2) + page))
    inputs = count(2000)
    with watched("types and SQL", inputs):
        for number in range(inputs):
            rng = chance(number)
            choice = rng.randrange(4)
            if choice == 0:
                spoilt = damage(rng, rng.choice(types))
                attempt(number, lambda d=spoilt: read_binary_type(memoryview(d)), REFUSED)
                continue
            op, whole = (
                (OpCode.QUERY_SQL_FIELDS, sql),
                (OpCode.QUERY_SQL_FIELDS_PAGE, page),
                (OpCode.QUERY_SCAN, (PAGES / "numbers.page").read_bytes()),
            )[choice - 1]
            spoilt = damage(rng, whole)
            attempt(number, lambda o=op, d=spoilt: check_answer(o, b"\1", memoryview(d)), REFUSED)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5])
def test_the_shortest_answers(size):
    for value in (0, 1, 255):
        body = memoryview(bytes([value] * size))
        for read in (read_page, read_first_page, read_first_sql_page):
            attempt(value, lambda r=read, b=body: r(b), REFUSED)
