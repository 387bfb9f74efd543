"""One row a type: complete, true of the other tables, and the only place that lists types."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ignitetf.wire import decode, encode, encoders
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import (
    _ROWS,
    ALIKE,
    ARRAY_ELEMENT,
    DATA_TYPES,
    FIXED_DTYPE,
    FIXED_SIZE,
    LIST_ELEMENT,
    Family,
)

pytestmark = pytest.mark.core

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "ignitetf", ROOT / "cli")


def test_every_type_has_one_row():
    assert [row.code for row in _ROWS] == sorted(TypeCode)


FAMILIES = sorted(set(Family) - {Family.STAND_IN}, key=lambda family: family.name)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_read_and_written(family):
    assert family in decode._READERS
    assert (family in encoders._WRITERS) != (family in encode.BY_TYPE_NAME)


def test_what_stands_for_a_value_is_neither_read_nor_written():
    assert set(decode._READERS) == set(Family) - {Family.STAND_IN}
    assert set(encoders._WRITERS) | encode.BY_TYPE_NAME == set(Family) - {Family.STAND_IN}


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.code.name)
def test_a_row_contradicts_nothing(row):
    assert (row.code in FIXED_DTYPE) == (row.code in FIXED_SIZE and row.dtype is not None)
    if row.code in FIXED_DTYPE:
        assert FIXED_SIZE[row.code] == 1 + row.dtype.itemsize
    if row.code in ARRAY_ELEMENT:
        element = DATA_TYPES[row.element]
        assert element.family is Family.NUMBER
        assert element.dtype.itemsize == row.extent.unit == row.dtype.itemsize
    if row.code in LIST_ELEMENT:
        assert DATA_TYPES[row.element].value is not None
    if row.extent is not None and row.extent.count_at:
        assert bool(row.extent.unit) != bool(row.extent.objects)
        assert row.extent.head >= row.extent.count_at + 4
    assert all(ALIKE[other][-1] == row.code for other in ALIKE[row.code][1:])
    assert row.python == () or row.value is not None
    for unit in row.units:
        assert np.dtype(f"datetime64[{unit}]")
    assert row.sql is None or row.family is not Family.STAND_IN


def test_no_value_of_python_or_arrow_has_two_types():
    types = pytest.importorskip("pyarrow").types
    for attribute in ("python", "arrow", "java"):
        found = [x for row in _ROWS for x in (getattr(row, attribute) or ())]
        if attribute == "java":
            found = [row.java for row in _ROWS if row.java]
        assert len(found) == len(set(found))
    assert all(hasattr(types, f"is_{name}") for row in _ROWS for name in row.arrow)


# Modules beside `datatypes` that may list types, and why the list is not a column of its rows.
TABLES = {
    "ignitetf/wire/jdk.py": "numbers of Java's own serialization, another format",
    "ignitetf/load/sources/values.py": "how the values of Python's classes are converted",
}
# Functions that may tell more than three types apart, and why.
LADDERS = {
    ("ignitetf/wire/meaning.py", "described"): "words for what nobody can read",
    ("ignitetf/wire/meaning.py", "meant"): "what stands for a value, each followed in its own way",
}


def is_type(node):
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    return inner is not node and isinstance(inner, ast.Name) and inner.id == "TypeCode"


def listed(node):
    """The types that a literal has among its elements, its keys or its values; tuples inside too."""
    if is_type(node):
        return {node.attr}
    if isinstance(node, ast.Dict):
        return max((union(node.keys), union(node.values)), key=len)
    return union(getattr(node, "elts", []))


def union(nodes):
    return set().union(*(listed(node) for node in nodes if node is not None))


def compared(function):
    """The types that a function compares something with."""
    tests = (node for node in ast.walk(function) if isinstance(node, ast.Compare))
    return {node.attr for test in tests for node in ast.walk(test) if is_type(node)}


@functools.cache
def all_nodes():
    paths = [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Dict, ast.Set, ast.List, ast.Tuple, ast.FunctionDef))
    ]


def nodes(kind):
    return [(name, node) for name, node in all_nodes() if isinstance(node, kind)]


def test_types_are_listed_in_their_rows_only():
    literals = nodes((ast.Dict, ast.Set, ast.List, ast.Tuple))
    assert {name for name, node in literals if len(listed(node)) > 2} == set(TABLES)


def test_types_are_told_apart_by_their_family():
    functions = nodes(ast.FunctionDef)
    assert {(name, f.name) for name, f in functions if len(compared(f)) > 3} == set(LADDERS)


# A type that a change request would ask for, file by file: what stands before the new line, and
# the line. Its family exists, so that a number and a row are all; the conversion of Python's
# class is for those who load values of it.
DURATION = {
    "wire/codes.py": [("    BINARY_ENUM = 38\n", "    DURATION = 200\n    DURATION_ARRAY = 201\n")],
    "wire/datatypes.py": [
        (
            "_ROWS: Final = (\n",
            '    _fixed(TypeCode.DURATION, _MS, "<i8", units=("ms",), sql="BIGINT",\n'
            '           python=(datetime.timedelta,), arrow=("duration",),\n'
            '           arrow_cast="duration[ms]"),\n'
            "    _list(TypeCode.DURATION_ARRAY, TypeCode.DURATION),\n",
        )
    ],
    "load/sources/values.py": [
        (
            "    TypeCode.DATE: _date,\n",
            "    TypeCode.DURATION: lambda value: value // dt.timedelta(milliseconds=1),\n",
        )
    ],
}
# One whose bytes no family has.
COMPLEX = {
    "wire/codes.py": [("    BINARY_ENUM = 38\n", "    COMPLEX = 200\n    COMPLEX_ARRAY = 201\n")],
    "wire/datatypes.py": [
        ("    NUMBER = enum.auto()", "  # one number, which NumPy has\n    COMPLEX = enum.auto()"),
        (
            "_ROWS: Final = (\n",
            '    _fixed(TypeCode.COMPLEX, Family.COMPLEX, "<c16"),\n'
            "    _list(TypeCode.COMPLEX_ARRAY, TypeCode.COMPLEX),\n",
        ),
    ],
    "wire/decode.py": [("_READERS: Final = {\n", "    Family.COMPLEX: _numbers,\n")],
    "wire/encoders.py": [("_WRITERS: Final = {\n", "    Family.COMPLEX: _fixed(_stored),\n")],
}

STORED_AND_READ = """
import numpy as np
from ignitetf.read.fields import merge, parse_declaration
from ignitetf.read.export import DenseNode, node_for
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import DATA_TYPES
from ignitetf.wire.columns import Batch, Dense, Runs
from ignitetf.wire.decode import Decoder
from ignitetf.wire.encode import encode_entries
from ignitetf.wire.infer import Evidence, observe_page
from ignitetf.wire.frames import Page
from ignitetf.wire.infer import infer_schema
from ignitetf.wire.objects import _walk_all, object_positions
from ignitetf.wire.schema import Field, Schema
from ignitetf.wire.types import TypeRegistry

KEY = Field("key", TypeCode.LONG, np.dtype("<i8"))
code, listed = TypeCode(200), TypeCode(201)
dtype, count = DATA_TYPES[code].value, 600
numbers, valid = np.arange(count).astype(dtype), np.arange(count) % 7 > 0
item = Field("item", code, dtype)
cases = [
    (Field("val", code, dtype, (), True), Dense(np.where(valid, numbers, 0), valid)),
    (Field("val", code, dtype), Dense(numbers)),
    (
        Field("val", listed, dtype, (None,), False, (item,)),
        Runs.from_offsets(Dense(numbers), np.minimum(np.arange(count + 1) * 2, count)),
    ),
]
for field, column in cases:
    schema = Schema(None, KEY, (field,))
    page = encode_entries(schema, Batch(Dense(np.arange(count)), {"val": column}))
    data = np.frombuffer(b"".join(page.entries(0, count)), np.uint8)
    assert object_positions(data, 2 * count).tolist() == _walk_all(data, 2 * count).tolist()
    page, registry = Page(count, False, data), TypeRegistry()
    back = Decoder(schema, registry).decode(page).columns["val"]
    key, value = Evidence(), Evidence()
    observe_page(page, key, value, registry)
    assert infer_schema(key, value, registry) == schema
    if field.fields:
        assert back.compact()[0].values.tolist() == numbers.tolist()
        assert node_for(field).item == DenseNode(dtype, ())
    else:
        assert back.values.tolist() == column.values.tolist()
        assert node_for(field) == DenseNode(dtype, ())
        declared = merge(parse_declaration({"val": dtype}), schema)
        assert declared.fields[0].dtype == dtype
    assert Field.from_json(field.to_json()) == field
"""

LOADED = """
import datetime as dt
import numpy as np
from ignitetf.load.options import _INDEXED
from ignitetf.load.sources.values import column_of, field_of
from ignitetf.tables.caches import column_type, has_table
from ignitetf.wire.blocks import block_schema, pack_blocks, unpack_blocks
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.columns import Batch, Dense
from ignitetf.wire.schema import Field, Schema

values = [dt.timedelta(seconds=i) for i in range(6)]
field = field_of("F", values)
column = column_of(field, values)
assert field.type is TypeCode.DURATION and column.values.tolist() == [1000 * i for i in range(6)]
assert field_of("F", [values, values[:2]]).type is TypeCode.DURATION_ARRAY
assert column_type(field) == "BIGINT" and field.type in _INDEXED
schema = Schema("T", Field("key", TypeCode.LONG, np.dtype("<i8")), (field,))
assert has_table(schema)
rows = Batch(Dense(np.arange(6)), {"F": column})
assert block_schema(schema)["F"].type is TypeCode.LONG_ARRAY
blocks = pack_blocks(schema, rows, np.array([0, 4, 6]), np.array([0, 1]))
back = [batch.columns["F"].values.tolist() for batch in unpack_blocks(schema, blocks)]
assert back == [[0, 1000, 2000, 3000], [4000, 5000]]
try:
    import pyarrow as pa
except ImportError:
    raise SystemExit
from ignitetf.load.sources.arrow import arrow_column, arrow_field
array = pa.array(values)
assert arrow_field("F", array.type).type is TypeCode.DURATION
assert arrow_column(field, array).values.tolist() == column.values.tolist()
"""


def changed_package(folder, changes):
    """A copy of the package with lines added, which a program run in the folder imports."""
    package = folder / "ignitetf"
    shutil.copytree(ROOT / "ignitetf", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in changes.items():
        text = (package / name).read_text(encoding="utf-8")
        for anchor, line in edits:
            assert text.count(anchor) == 1, (name, anchor)
            text = text.replace(anchor, anchor + line)
        (package / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "programs"),
    [(DURATION, (STORED_AND_READ, LOADED)), (COMPLEX, (STORED_AND_READ,))],
    ids=["a known family", "a family of its own"],
)
def test_a_new_type_touches_at_most_four_files(tmp_path, changes, programs):
    assert len(changes) <= 4
    changed_package(tmp_path, changes)
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
