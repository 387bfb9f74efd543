"""Objects found in C: as the loop in Python finds them, also on pages that are cut or damaged."""

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ignitetf.errors import WireError
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import ARRAY_ELEMENT, FIXED_SIZE
from ignitetf.wire.objects import _walk_all, object_positions

OBJECT_ARRAYS = ["STRING", "UUID", "DATE", "TIMESTAMP", "TIME", "DECIMAL"]


def counted(code, number, rest):
    return struct.pack("<bi", code, number) + rest


fixed = st.sampled_from(sorted(FIXED_SIZE.items())).flatmap(
    lambda item: st.binary(min_size=item[1] - 1, max_size=item[1] - 1).map(
        lambda rest: bytes([item[0]]) + rest
    )
)
text = st.binary(max_size=40)
strings = text.map(lambda b: counted(TypeCode.STRING, len(b), b))
optimized = text.map(lambda b: counted(254 - 256, len(b), b))
classes = st.one_of(st.just(struct.pack("<i", 9)), strings.map(lambda name: bytes(4) + name))
class_objects = classes.map(lambda number: bytes([TypeCode.CLASS]) + number)
decimals = text.map(lambda b: counted(TypeCode.DECIMAL, 3, struct.pack("<i", len(b)) + b))
wrapped = text.map(lambda b: counted(TypeCode.WRAPPED, len(b), b + bytes(4)))
handles = st.integers(0, 99).map(lambda n: counted(TypeCode.HANDLE, n, b""))
binaries = text.map(
    lambda b: struct.pack("<bbhiiiii", TypeCode.OBJECT, 1, 2, 7, 0, 24 + len(b), 5, 24) + b
)
arrays = st.tuples(st.sampled_from(sorted(ARRAY_ELEMENT.items())), st.integers(0, 9)).map(
    lambda pair: counted(pair[0][0], pair[1], bytes(pair[1] * pair[0][1].itemsize))
)


def containers(inner):
    lists = st.lists(inner, max_size=4)
    names = st.sampled_from([TypeCode[f"{name}_ARRAY"] for name in OBJECT_ARRAYS])
    typed = st.sampled_from([TypeCode.OBJECT_ARRAY, TypeCode.ENUM_ARRAY])
    return st.one_of(
        st.tuples(names, lists).map(lambda p: counted(p[0], len(p[1]), b"".join(p[1]))),
        st.tuples(typed, lists).map(
            lambda p: counted(p[0], 7, struct.pack("<i", len(p[1])) + b"".join(p[1]))
        ),
        st.tuples(typed, strings, lists).map(
            lambda p: counted(p[0], 0, p[1] + struct.pack("<i", len(p[2])) + b"".join(p[2]))
        ),
        st.tuples(st.lists(classes, max_size=3), inner).map(
            lambda p: counted(TypeCode.PROXY, len(p[0]), b"".join(p[0]) + p[1])
        ),
        lists.map(lambda p: counted(TypeCode.COLLECTION, len(p), b"\1" + b"".join(p))),
        st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda p: counted(TypeCode.MAP, len(p), b"\1" + b"".join(k + v for k, v in p))
        ),
    )


objects = st.recursive(
    st.one_of(
        fixed, strings, decimals, wrapped, handles, binaries, arrays, optimized, class_objects
    ),
    containers,
    max_leaves=12,
)  # fmt: skip


def both(page, count):
    data = np.frombuffer(page, np.uint8)
    found = object_positions(data, count)
    try:
        expected = _walk_all(data, count)
    except WireError:
        expected = None
    return None if found is None else found.tolist(), (
        None if expected is None else expected.tolist()
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(objects, min_size=1, max_size=4))
def test_every_object_is_found(parts):
    found, expected = both(b"".join(parts), len(parts))
    lengths = [len(part) for part in parts]
    assert found == expected == np.cumsum([0, *lengths[:-1]]).tolist()


@settings(max_examples=150, deadline=None)
@given(st.lists(objects, min_size=1, max_size=4), st.data())
def test_damage_is_found_alike(parts, data):
    page = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(1, 3))):
        page[data.draw(st.integers(0, len(page) - 1))] = data.draw(st.integers(0, 255))
    for count in (len(parts), len(parts) + 1):
        found, expected = both(bytes(page), count)
        assert found == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(objects, min_size=1, max_size=3))
def test_every_cut_is_found_alike(parts):
    page = b"".join(parts)
    for size in range(len(page)):
        found, expected = both(page[:size], len(parts))
        assert found == expected


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60), st.integers(1, 5))
@example(counted(TypeCode.STRING, 2**31 - 1, b""), 1)
@example(counted(TypeCode.COLLECTION, 2**31 - 1, b"\1" + b"\x65" * 50), 1)
def test_any_bytes_are_found_alike(page, count):
    found, expected = both(page, count)
    assert found == expected


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 66, 500])
def test_deep_nesting_ends_alike(depth):
    page = bytes([TypeCode.NULL])
    for _ in range(depth):
        page = counted(TypeCode.COLLECTION, 1, b"\1" + page)
    found, expected = both(page, 1)
    assert found == expected
    assert (found is None) == (depth > 65)


@pytest.mark.parametrize("code", [TypeCode.CLASS, TypeCode.OBJECT_ARRAY, TypeCode.ENUM_ARRAY])
def test_names_of_classes_do_not_nest(code):
    """A class without an id has its name behind it, a text: anything else is no way down."""
    page = counted(code, 0, b"") * 400_000
    assert both(page, 1) == (None, None)
