"""References, sorted sets and Java's own serialization: followed to the value, or named."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.errors import SchemaError, WireError
from ignitetf.wire.codes import BinaryFlag, TypeCode, java_hash
from ignitetf.wire.columns import Dense
from ignitetf.wire.decode import decode_column
from ignitetf.wire.infer import Evidence, infer_schema, observe_objects
from ignitetf.wire.jdk import NotReadable, plain_object
from ignitetf.wire.meaning import meant
from ignitetf.wire.objects import TREES, find_elements
from ignitetf.wire.schema import BYTES, Field
from ignitetf.wire.types import BinaryType, TypeRegistry, UnknownClass

NUMBER = struct.pack("<Bi", TypeCode.INT, 7)
SERIALIZABLE, EXTERNALIZABLE, TEXT, HANDLE = 102, 101, 18, 0xFF


def listed(*items):
    return struct.pack("<BiB", TypeCode.COLLECTION, len(items), 1) + b"".join(items)


def handle(back):
    return struct.pack("<Bi", TypeCode.HANDLE, back)


def foreign(body):
    return struct.pack("<Bi", TypeCode.OPTIMIZED, len(body)) + body


def java(name, body, tag=SERIALIZABLE, known=True):
    """An object of a class, of which the stream has the id or, of an unknown one, the name."""
    raw = name.encode()
    head = struct.pack("<i", java_hash(name)) if known else struct.pack("<ii", 0, len(raw)) + raw
    return bytes([tag]) + head + b"\x12\x34" + body


def value(page, kind, at=0):
    data = np.frombuffer(page, np.uint8)
    column = decode_column(data, np.array([at]), kind, TypeRegistry())
    if isinstance(column, Dense):
        return column.values[0].item()
    inner = column.values[column.starts[0] : column.starts[0] + column.lengths[0]]
    return inner.tobytes() if kind.dtype == BYTES and not kind.fields else inner.tolist()


DATE = Field("D", TypeCode.DATE, np.dtype("<i8"))
DECIMAL = Field("N", TypeCode.DECIMAL, BYTES)
INTS = Field(
    "L", TypeCode.COLLECTION, np.dtype("<i4"), (None,), False,
    (Field("item", TypeCode.INT, np.dtype("<i4")),),
)  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
def test_dates_of_sql_are_days(known):
    """Whatever time of day a program left in one: SQL shows the day alone."""
    body = java("java.sql.Date", struct.pack("<q", -123), known=known)
    assert value(foreign(body), DATE) == -86_400_000
    # Beside one that has the code of a date, and a null.
    page = foreign(body) + struct.pack("<Bq", TypeCode.DATE, 5) + bytes([TypeCode.NULL])
    at = np.array([0, len(foreign(body)), len(page) - 1, -1])
    found = decode_column(np.frombuffer(page, np.uint8), at, DATE, TypeRegistry())
    assert found.values.tolist() == [-86_400_000, 5, 0, 0]
    assert found.valid.tolist() == [True, True, False, False]


@given(st.integers(-(10**400), 10**400))
def test_big_integers(number):
    size = (abs(number).bit_length() + 7) // 8 or 1
    magnitude = abs(number).to_bytes(size, "big")
    sign = (number > 0) - (number < 0)
    array = struct.pack("<Bi", 9, size) + magnitude
    body = java("java.math.BigInteger", bytes(16) + array + struct.pack("<i", sign))
    assert value(foreign(body), DECIMAL) == str(number).encode()


@pytest.mark.parametrize("digits", [1, 4300, 5000, 90_000])
@pytest.mark.parametrize("scale", [0, 3, -3])
def test_decimals_of_many_digits(digits, scale):
    """Python refuses to make a text of a number of more than 4,300 digits by itself."""
    number = 10**digits - 1
    magnitude = number.to_bytes(number.bit_length() // 8 + 1, "big")
    page = struct.pack("<Bii", TypeCode.DECIMAL, scale, len(magnitude)) + magnitude
    nines = b"9" * digits
    whole = nines + b"0" * -min(scale, 0)
    if scale > 0:
        whole = whole[:-scale].rjust(max(1, digits - scale), b"0") or b"0"
        whole += b"." + nines[-scale:].rjust(scale, b"0")
    assert value(page, DECIMAL) == whole


@pytest.mark.parametrize("size", [0, 1, 5])
def test_lists_that_stand_twice(size):
    for first in (
        listed(*[NUMBER] * size),
        struct.pack("<Bii", TypeCode.OBJECT_ARRAY, -1, size) + NUMBER * size,
    ):
        page = first + handle(len(first))
        assert value(page, INTS) == value(page, INTS, len(first)) == [7] * size


def test_a_reference_into_the_middle_or_beyond_is_damage():
    page = listed(NUMBER) + handle(3)
    for back in (-1, 0, 1, 3, 5, 6, 100):
        page = listed(NUMBER) + NUMBER + handle(back)
        with pytest.raises(WireError):
            value(page, INTS, len(page) - 5)


def test_a_list_within_itself_is_told():
    page = listed(NUMBER, handle(11))
    data = np.frombuffer(page, np.uint8)
    items, _ = find_elements(data, np.array([0]))
    assert meant(data, items)[2].tolist() == [TypeCode.INT, TypeCode.HANDLE]
    with pytest.raises(SchemaError, match="a reference to an object that contains it"):
        value(page, INTS)
    key, seen = Evidence(), Evidence()
    observe_objects(key, np.frombuffer(NUMBER, np.uint8), np.array([0]), TypeRegistry())
    observe_objects(seen, data, np.array([0]), TypeRegistry())
    with pytest.raises(SchemaError, match="contains it"):
        infer_schema(key, seen, TypeRegistry())


@pytest.mark.parametrize("type_id", sorted(TREES))
def test_sorted_sets_and_maps(type_id):
    pairs = TREES[type_id] == TypeCode.MAP
    for comparator in (bytes([TypeCode.NULL]), foreign(java("a.B", b""))):
        raw = comparator + struct.pack("<i", 2) + NUMBER * (4 if pairs else 2)
        head = (TypeCode.OBJECT, 1, BinaryFlag.HAS_RAW, type_id, 0, 24 + len(raw), 0, 24)
        page = struct.pack("<BBhiiiii", *head) + raw
        if not pairs:
            assert value(page, INTS) == [7, 7]
        data = np.frombuffer(page, np.uint8)
        assert meant(data, np.array([0]))[2].tolist() == [TREES[type_id]]
        assert find_elements(data, np.array([0]))[1].tolist() == [4 if pairs else 2]


def test_raw_data_of_other_classes_are_named():
    registry = TypeRegistry()
    registry.add(BinaryType(77, "app.Raw", {}, {}))
    head = (TypeCode.OBJECT, 1, BinaryFlag.HAS_RAW, 77, 0, 29, 0, 24)
    data = np.frombuffer(struct.pack("<BBhiiiii", *head) + NUMBER, np.uint8)
    key, seen = Evidence(), Evidence()
    observe_objects(key, np.frombuffer(NUMBER, np.uint8), np.array([0]), registry)
    observe_objects(seen, data, np.array([0]), registry)
    with pytest.raises(SchemaError, match=r"app\.Raw"):
        infer_schema(key, seen, registry)
    field = Field("R", TypeCode.OBJECT, BYTES, (), False, (DATE,))
    with pytest.raises(SchemaError, match=r"app\.Raw"):
        decode_column(data, np.array([0]), field, registry)


def test_classes_that_are_not_known_are_asked_for_and_named():
    data = np.frombuffer(foreign(java("app.Thing", b"whatever")), np.uint8)
    registry = TypeRegistry()
    with pytest.raises(UnknownClass) as asked:
        decode_column(data, np.array([0]), DATE, registry)
    registry.add_class(asked.value.class_id, "app.Thing")
    with pytest.raises(SchemaError, match=r"an object of app\.Thing, in Java's own"):
        decode_column(data, np.array([0]), DATE, registry)


def test_what_refers_to_itself_or_to_too_much_ends():
    # List.of with the list itself; each list twice the one before, 40 times.
    own = java("java.util.CollSer", struct.pack("<ii", 1, 1) + struct.pack("<Bi", HANDLE, 0))
    with pytest.raises(NotReadable, match="contains itself"):
        plain_object(own)
    deep = bytes([TEXT]) + struct.pack("<i", 1) + b"x"
    for depth in range(40):
        number = 40 - depth
        deep = bytes([21]) + struct.pack("<i", 2) + deep + struct.pack("<Bi", HANDLE, number)
    with pytest.raises(WireError, match="expands to too many bytes"):
        plain_object(deep)
    many = listed(*[NUMBER] * 1000)
    page = listed(many, *[handle(11 + len(many) + 5 * i - 5) for i in range(1)])
    assert meant(np.frombuffer(page, np.uint8), np.array([0]))[2].tolist() == [TypeCode.COLLECTION]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_give_our_own_errors_only(body):
    for start in (b"", java("java.util.CollSer", b""), java("java.time.Ser", b"", EXTERNALIZABLE)):
        try:
            found = plain_object(start + body)
        except (NotReadable, WireError):
            continue
        value_code = found[0]
        assert value_code in TypeCode.__members__.values()


def test_every_cut_of_an_object_is_told():
    inner = java("java.util.concurrent.atomic.AtomicLong", struct.pack("<q", 5))
    body = java(
        "java.util.CollSer", struct.pack("<ii", 1, 2) + inner + struct.pack("<Bi", HANDLE, 1)
    )
    whole = plain_object(body)
    assert whole == listed(*[struct.pack("<Bq", TypeCode.LONG, 5)] * 2)
    for size in range(len(body)):
        with pytest.raises(WireError):
            plain_object(body[:size])
    with pytest.raises(WireError):
        plain_object(body + b"\0")
