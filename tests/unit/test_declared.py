"""`schema=` against what is stored: what goes together is taken, everything else is refused."""

import itertools
import struct

import numpy as np
import pytest

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.read.export import arrow_form, element_tree, key_tree, to_arrow
from ignitetf.read.fields import check_names, merge, parse_declaration
from ignitetf.read.options import apply_nulls, check_masks
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense, Struct
from ignitetf.wire.datatypes import ARRAY_ELEMENT, FIXED_DTYPE, LIST_ELEMENT
from ignitetf.wire.decode import decode_column
from ignitetf.wire.infer import Evidence
from ignitetf.wire.schema import BYTES, Field, Schema
from ignitetf.wire.types import BinaryType, TypeRegistry

KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))
INT = Field("I", TypeCode.INT, np.dtype("<i4"))
FORMS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
         "float32", "float64", "bool", "string", "datetime64[ms]", "datetime64[s]"]  # fmt: skip
SHAPES = [(), (None,), (2,), (2, 3)]
# What may be declared of a type beside its own form; `n` is any shape that is not ().
ALSO = {
    TypeCode.UUID: {("string", ()), ("uint64", (2,))},
    TypeCode.DECIMAL: {("string", ()), ("float64", ())},
    TypeCode.STRING: {("string", ())},
    TypeCode.TIMESTAMP: {("int64", ()), ("datetime64[ms]", ())},
    TypeCode.DATE: {("int64", ()), ("uint64", ()), ("datetime64[ms]", ())},
    TypeCode.TIME: {("int64", ()), ("uint64", ()), ("datetime64[ms]", ())},
    TypeCode.ENUM: {("int32", ()), ("uint32", ())},
    TypeCode.BINARY_ENUM: {("int32", ()), ("uint32", ())},
}


def same_width(stored, name):
    declared = np.dtype(name)
    kinds = {"i": "iu", "u": "iu", "f": "f", "b": "b"}[stored.kind]
    return declared.itemsize == stored.itemsize and declared.kind in kinds


def fits(code, name, shape):
    if code in ALSO:
        return (name, shape) in ALSO[code]
    if code in LIST_ELEMENT:
        return len(shape) == 1 and fits(LIST_ELEMENT[code], name, ())
    if name == "string":
        return code == TypeCode.BYTE_ARRAY and shape == ()
    if name.startswith("datetime"):
        return False
    if code in ARRAY_ELEMENT:
        return shape != () and same_width(ARRAY_ELEMENT[code], name)
    return shape == () and same_width(FIXED_DTYPE[code], name)


@pytest.mark.parametrize("code", [*FIXED_DTYPE, *ARRAY_ELEMENT, *LIST_ELEMENT, *ALSO])
def test_declarations_that_contradict_are_refused(code):
    texts = (TypeCode.STRING, TypeCode.UUID, TypeCode.DECIMAL)
    own = BYTES if LIST_ELEMENT.get(code, code) in texts else np.dtype("<i8")
    stored = Field("F", code, own, (None,) if code in ARRAY_ELEMENT or code in LIST_ELEMENT else ())
    schema = Schema("T", KEY, (stored, INT))
    for name, shape in itertools.product(FORMS, SHAPES):
        declaration = parse_declaration({"F": (name, shape)})
        if fits(code, name, shape):
            found = merge(declaration, schema)
            assert found.names == ("F",)
            assert found["F"].type == code
        else:
            with pytest.raises(SchemaError, match=r"stored as .* schema= says") as refused:
                merge(declaration, schema)
            assert refused.value.field == "F"


def test_whole_fields_and_schemas_are_checked_too():
    schema = Schema("T", KEY, (INT, Field("S", TypeCode.STRING, BYTES)))
    assert merge(parse_declaration(schema), schema) == schema
    wrong = Field("S", TypeCode.STRING, np.dtype("<i4"))
    for declared in ({"S": wrong}, {"S": INT}, Schema("T", KEY, (wrong,))):
        with pytest.raises(SchemaError, match="schema= says"):
            merge(parse_declaration(declared), schema)
    for shape in ((-1,), (None, 0), (3, None)):
        with pytest.raises(ConfigError):
            parse_declaration({"I": ("int32", shape)})


def test_unknown_names_are_told_with_the_nearest():
    registry, seen = TypeRegistry(), Evidence(types={7})
    registry.add(BinaryType(7, "T", {1: ("LABEL", 3), 2: ("RARE", 3)}, {}))
    seen.child("LABEL")
    check_names(["LABEL", "RARE"], seen, registry)
    assert seen.inside["RARE"].null
    with pytest.raises(SchemaError, match="no field 'LABLE'") as error:
        check_names(["LABLE"], seen, registry)
    assert "'LABEL'" in error.value.hint


def nulled(values, valid):
    return Dense(np.array(values), valid=np.array(valid))


def test_nulls_in_fields_of_keys_follow_every_policy():
    key = Struct({"A": nulled([1, 0, 3], [True, False, True]), "B": Dense(np.arange(3))})
    batch = Batch(key, {"V": nulled([5, 6, 0], [True, True, False])})
    with pytest.raises(SchemaError, match=r"'key\.A' is null") as error:
        apply_nulls(batch, "error")
    assert error.value.record == 1
    kept, dropped = apply_nulls(batch, "drop")
    assert (len(kept), dropped, kept.key.fields["B"].values.tolist()) == (1, 2, [0])
    masked, _ = apply_nulls(batch, "mask")
    assert masked.key.fields["A_valid"].values.tolist() == [True, False, True]
    assert masked.columns["V_valid"].values.tolist() == [True, True, False]
    fields = tuple(Field(n, TypeCode.LONG, np.dtype("<i8")) for n in ("A", "B"))
    schema = Schema("T", Field("key", TypeCode.OBJECT, BYTES, (), False, fields), (INT,))
    names = [name for name, _ in key_tree(schema, "mask").fields]
    assert names == sorted(masked.key.fields)


def test_a_mask_takes_no_name_of_a_field():
    valid = Field("I_valid", TypeCode.BOOL, np.dtype("?"))
    check_masks(Schema("T", KEY, (INT,)))
    key = Field("key", TypeCode.OBJECT, BYTES, (), False, (INT, valid))
    for schema in (Schema("T", KEY, (INT, valid)), Schema("T", key, (INT,))):
        with pytest.raises(ConfigError, match="'I_valid'"):
            check_masks(schema)


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_arrow_takes_what_is_empty(rows):
    pytest.importorskip("pyarrow")
    valid = np.ones(rows, np.bool_)
    inner = Struct({"E": Struct({}, valid=valid)})
    columns = {
        "E": Struct({}, valid=valid),
        "N": inner,
        "Z": Dense(np.zeros((rows, 0), np.int32)),
        "ZZ": Dense(np.zeros((rows, 2, 0), np.int32)),
    }
    empty = Field("E", TypeCode.OBJECT, BYTES)
    fields = (
        empty,
        Field("N", TypeCode.OBJECT, BYTES, (), False, (empty,)),
        Field("Z", TypeCode.INT_ARRAY, np.dtype("<i4"), (0,)),
        Field("ZZ", TypeCode.INT_ARRAY, np.dtype("<i4"), (2, 0)),
    )
    batch, _ = apply_nulls(Batch(Dense(np.arange(rows)), columns), "default")
    schema = Schema("T", KEY, fields)
    nodes = {"key": key_tree(schema, "default"), **element_tree(schema, "default")}
    table = to_arrow(batch, arrow_form(nodes))
    table.validate(full=True)
    wanted = {"E": {}, "N": {"E": {}}, "Z": [], "ZZ": [[], []]}
    assert table.drop_columns(["key"]).to_pylist() == [wanted] * rows


LIMITS = {"ns": 1, "us": 1_000, "ms": 1_000_000}


@pytest.mark.parametrize("unit", LIMITS)
def test_timestamps_are_exact_or_refused(unit):
    """Around the bounds of int64 in each unit, and of what Java has."""
    dtype = np.dtype("<i8") if unit == "ns" else np.dtype(f"<M8[{unit}]")
    field = Field("T", TypeCode.TIMESTAMP, dtype)
    per = LIMITS[unit]
    edges = {0, -(1 << 63), (1 << 63) - 1}
    for bound in (-(1 << 63) * per, ((1 << 63) - 1) * per):
        edges |= {bound // 1_000_000 + i for i in range(-2, 3)}
    for ms in sorted(e for e in edges if -(1 << 63) <= e < 1 << 63):
        for rest in (0, 1, 224_191, 224_192, 775_807, 775_808, 807_999, 808_000, 999_999):
            page = np.frombuffer(struct.pack("<Bqi", TypeCode.TIMESTAMP, ms, rest), np.uint8)
            exact = (ms * 1_000_000 + rest) // per
            if -(1 << 63) <= exact < 1 << 63:
                found = decode_column(page, np.array([0]), field, TypeRegistry())
                assert found.values.tolist() == [exact]
            else:
                with pytest.raises(SchemaError, match="beyond what int64 holds") as error:
                    decode_column(page, np.array([0]), field, TypeRegistry())
                assert error.value.record == 0
