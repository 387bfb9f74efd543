"""Damaged answers that are not pages of entries: refused as such, or read in full.

SQL results, the list of caches, the nodes, the owners of partitions, the handshake. Each byte is
changed by itself, then some at random. What is read has the shape that the answer says it has.
"""

import datetime
import decimal
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from fuzzing import attempt, chance, count, damage, watched

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.answers import (
    damaged,
    read_cache_names,
    read_endpoints,
    read_error,
    read_int,
    read_long,
    read_partition_map,
    read_sized,
)
from ignitetf.wire.frames import Accepted, read_handshake, read_named_sql_page
from ignitetf.wire.objects import find_rows
from ignitetf.wire.sql_arrays import Unreadable, decode_values, joined_arrow, joined_numpy
from ignitetf.wire.types import TypeRegistry, read_class_name

ANSWERS = Path(__file__).resolve().parents[1] / "data" / "answers"
REFUSED = (WireError, SchemaError, Unreadable)
VALUES = (0, 1, 9, 101, 128, 255)
PYTHON = (type(None), bool, int, float, decimal.Decimal, str, bytes, uuid.UUID, datetime.date,
          datetime.time, datetime.datetime, list)  # fmt: skip


def read_rows(body):
    _, names, page = read_named_sql_page(body)
    at = find_rows(page.data, page.count, len(names))
    assert len(at) == len(names) > 0
    for positions in at:
        values = decode_values(page.data, positions, TypeRegistry())
        listed = values.to_python()
        assert len(listed) == page.count
        assert all(isinstance(value, PYTHON) for value in listed)
        assert len(joined_numpy([values])) == page.count
        assert len(joined_arrow(pa, [values]).to_pylist()) == page.count
    return names, page.count


def read_caches(body):
    with damaged("caches"):
        names = read_cache_names(body)
    assert len(b"".join(n.encode("utf-8", "surrogatepass") for n in names)) < len(body)


def read_nodes(body):
    with damaged("nodes"):
        nodes = read_endpoints(body)
    assert all(0 <= int(a.rsplit(":", 1)[1]) < 65_536 for n in nodes for a in n.addresses)


def read_partitions(body):
    with damaged("partitions"):
        found = read_partition_map(body)
    assert len(found.owners) <= len(body) // 4
    assert all(0 <= number < found.count <= 65_000 for number in found.owners)


def read_shake(body):
    read_handshake(bytes(body), (1, 7, 0))


READ = {
    "rows": read_rows,
    "count": read_rows,
    "update": read_rows,
    "create": read_rows,
    "caches": read_caches,
    "nodes": read_nodes,
    "partitions": read_partitions,
    "handshake": read_shake,
}


def body_of(name):
    body = (ANSWERS / f"{name}.answer").read_bytes()
    READ[name](memoryview(body))
    return body


@pytest.mark.parametrize("name", sorted(READ))
def test_every_byte_of_an_answer_may_be_another(name):
    body, read = body_of(name), READ[name]
    # All bytes of what is at the beginning; the 1,024 partitions behind it are alike.
    inputs = [(at, value) for at in range(min(200, len(body))) for value in VALUES]
    with watched(f"bytes of {name}", len(inputs)):
        for number, (at, value) in enumerate(inputs):
            spoilt = bytes((*body[:at], value, *body[at + 1 :]))
            attempt(number, lambda b=spoilt: read(memoryview(b)), REFUSED)


@pytest.mark.parametrize("name", sorted(READ))
def test_damaged_answers(name):
    body, read, inputs = body_of(name), READ[name], count(150)
    with watched(f"damaged {name}", inputs):
        for number in range(inputs):
            spoilt = damage(chance(number), body)
            attempt(number, lambda b=spoilt: read(memoryview(b)), REFUSED)


@pytest.mark.parametrize("name", sorted(READ))
def test_an_answer_that_is_cut_or_has_more_is_never_read(name):
    """A node of the newest version may announce more in a handshake than its id."""
    body, read = body_of(name), READ[name]
    for size in range(min(300, len(body))):
        with pytest.raises(WireError):
            read(memoryview(body[:size]))
    if name != "handshake":
        with pytest.raises(WireError):
            read(memoryview(body + b"\0"))


def test_rows_without_their_count_are_not_no_rows():
    body = body_of("rows")
    names = read_rows(memoryview(body))[0]
    at = 12 + sum(5 + len(name) for name in names)
    spoilt = body[:at] + bytes(4) + body[at + 4 :]
    with pytest.raises(WireError):
        read_rows(memoryview(spoilt))


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"a\x80b", b"\xf8\x88\x80\x80\x80"])
def test_a_text_that_is_not_utf_8_is_damaged(text):
    body = body_of("rows")
    at = body.index("grün".encode())
    spoilt = body[:at] + text.ljust(5, b"x") + body[at + 5 :]
    with pytest.raises(WireError):
        read_rows(memoryview(spoilt))
    _, names, page = read_named_sql_page(memoryview(spoilt))
    at = find_rows(page.data, page.count, len(names))[names.index("V")]
    with pytest.raises(WireError):
        joined_arrow(pa, [decode_values(page.data, at, TypeRegistry())])


def test_small_answers_of_garbage():
    inputs = count(2000)
    readers = (
        read_error, read_class_name, *(lambda b, r=r: r(b, "it") for r in (read_int, read_long, read_sized)),
    )  # fmt: skip
    with watched("small answers", inputs):
        for number in range(inputs):
            rng = chance(number)
            body = bytes((rng.choice((0, 1, 9, 12, 101)),)) + rng.randbytes(rng.randrange(20))
            for read in readers:
                attempt(number, lambda b=body, r=read: r(memoryview(b)), REFUSED)


def test_a_handshake_is_accepted_with_what_it_says():
    found = read_handshake(body_of("handshake"), (1, 7, 0))
    assert isinstance(found, Accepted)
    assert found.node_id is not None
    assert found.features
