"""Pages for driver.c, each with what the decoder in parts.c knows of their rows.

A file: int64 size of the description, this (int32), int64 entries, where each begins and the last one
ends (int64), their bytes. The description is what `Decoder` of parts.c reads; driver.c does not look
at it.
"""

import ctypes
import random
import struct

import numpy as np

from ignitetf.wire.buffers import BufferPool
from ignitetf.wire.builder import BatchBuilder
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.forms import place_of
from ignitetf.wire.frames import read_page
from ignitetf.wire.objects import object_end
from ignitetf.wire.page_reader import PageReader
from ignitetf.wire.schema import BYTES, Batch, Column, Field, Schema, field_for
from ignitetf.wire.walk import extents

GENERATED = 24
LARGE_BYTES = 66_000  # `LARGE_VALUE` of _receive.c is 64 KB


def bounds_of(page):
    view, at, found = memoryview(page.data), 0, [0]
    for _ in range(page.count):
        at = object_end(view, object_end(view, at))
        found.append(at)
    return found


def described(schema, registry, page):
    """The builder of these rows once it has learned the forms of the page, as int32 numbers."""
    pool = BufferPool()
    builder = BatchBuilder(schema, registry, pool, max(1, page.count), page.data.nbytes)
    PageReader(builder, pool, builder.learn).add(page.data, page.count)
    state = builder._builder

    def field(pointer):
        return bytes(ctypes.string_at(pointer, 32))

    out = [extents().tobytes(), field(state.key), struct.pack("<i", bool(state.plain))]
    out += [field(state.plain) if state.plain else bytes(32), struct.pack("<i", state.stores)]
    for number in range(state.stores):
        store = state.store[number]
        out.append(struct.pack("<3i", store.size, store.unit, bool(store.valid)))
    out.append(struct.pack("<i", state.forms))
    for number in range(state.forms):
        form = state.form[number]
        head = (form.type_id, form.schema_id, form.flags, form.fields, form.lacks)
        out += [struct.pack("<5i", *head), ctypes.string_at(form.field, 32 * form.fields)]
        out.append(ctypes.string_at(form.lacking, 4 * form.lacks))
    return b"".join(out)


def large_rows(rng):
    """Rows with values that are received into their place."""
    draw, n = np.random.default_rng(rng.getrandbits(32)), rng.randint(1, 3)
    fields = [
        field_for("A", np.dtype("<i4")),
        field_for("IMAGE", np.dtype("u1"), (LARGE_BYTES,)),
        Field("NAME", TypeCode.STRING, BYTES, (), True),
        Field("BLOB", TypeCode.BYTE_ARRAY, BYTES, (), True),
        field_for("Z", np.dtype("<f8")),
    ]
    columns = {
        "A": Column(draw.integers(0, 99, n).astype("<i4")),
        "IMAGE": Column(draw.integers(0, 99, (n, LARGE_BYTES)).astype("u1")),
        "NAME": Column.from_bytes([None if rng.random() < 0.3 else b"n" * rng.randrange(9) for _ in range(n)]),
        "BLOB": Column.from_bytes([rng.randbytes(LARGE_BYTES + rng.randrange(9)) for _ in range(n)]),
        "Z": Column(draw.random(n)),
    }  # fmt: skip
    kept = rng.sample(fields, rng.randint(2, 5))
    if rng.random() < 0.5:  # a footer that is longer than what stands before a value
        more = {f"Z{i}": Column(draw.integers(0, 99, n).astype("<i4")) for i in range(200)}
        kept, columns = kept + [field_for(name, np.dtype("<i4")) for name in more], columns | more
    kept += [f for f in fields[1:2] if not {"IMAGE", "BLOB"} & {k.name for k in kept}]
    key = Field("key", TypeCode.LONG, np.dtype("<i8"))
    schema = Schema("Large", key, tuple(sorted(kept, key=lambda f: f.name)))
    keys = Column(draw.integers(-99, 99, n))
    return schema, Batch(keys, {f.name: columns[f.name] for f in schema.fields})


def write_cases(folder, captured, generated, of_batch):
    """Write the cases; returns their paths.

    Args:
        folder: Where.
        captured: Schema, registry and answer of each captured page.
        generated: Makes such a triple from a `random.Random`.
        of_batch: Makes registry and answer from a schema and a batch.
    """
    rng, found = random.Random(7), []
    found += captured
    found += [generated(rng) for _ in range(GENERATED)]
    for _ in range(8):
        schema, batch = large_rows(rng)
        found.append((schema, *of_batch(schema, batch)))
    paths = []
    for number, (schema, registry, answer) in enumerate(found):
        fields = tuple(f for f in schema.fields if place_of(f) is not None)
        if not fields or place_of(schema.key) is None:
            continue
        schema = Schema(schema.type_name, schema.key, fields)
        page = read_page(memoryview(answer))
        setup, bounds = described(schema, registry, page), bounds_of(page)
        path = folder / f"{number:02}.case"
        path.write_bytes(
            struct.pack(f"<q{len(setup)}sq{len(bounds)}q", len(setup), setup, page.count, *bounds)
            + page.data.tobytes()
        )
        paths.append(path)
    return paths
