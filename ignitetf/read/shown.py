"""Rows, datasets and mixtures as HTML for notebooks.

rows -> fields, classes, the first records -> **HTML** -> Jupyter
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ignitetf.errors import IgniteTFError
from ignitetf.notebook import classed, heading, picture, remark, table
from ignitetf.read.reader import CacheReader
from ignitetf.read.records import batches_of, record_at
from ignitetf.wire.schema import Field, Schema

if TYPE_CHECKING:
    from ignitetf.read.rows import EpochRows, OrderedRows

__all__ = ["fields_html", "ordered_html", "rows_html"]

_RECORDS: Final = 5
_COLUMNS: Final = 20
_FIELDS: Final = 60
_CLASSES: Final = 20
_LABEL: Final = "LABEL"


def rows_html(rows: EpochRows) -> str:
    """Return the fields, the classes and some records of a data set."""
    schema = rows.reader.schema
    parts = [_fields(schema), _classes(rows.class_names), _records(rows)]
    return ordered_html(rows, f"order {rows.order.name}") + "".join(parts)


def ordered_html(rows: OrderedRows, order: str = "") -> str:
    """Return the name, number and order of rows."""
    count = "number of rows unknown" if rows.length is None else f"{rows.length:,} rows"
    facts = [count, *filter(None, [order]), f"epoch {rows.position.epoch}"]
    if rows.shard.count > 1:
        facts.append(f"shard {rows.shard.index} of {rows.shard.count}")
    return heading(f"{rows.name}: {', '.join(facts)}")


def fields_html(spec: Any) -> str:
    """Return the structure of TensorFlow's elements, of `element_spec`."""
    return table(("element", "dtype", "shape"), list(_leaves(spec, ""))[:_FIELDS])


def _leaves(spec: Any, name: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(spec, Mapping):
        for inner, value in spec.items():
            yield from _leaves(value, f"{name}[{inner!r}]")
    elif isinstance(spec, (tuple, list)):
        for number, value in enumerate(spec):
            yield from _leaves(value, f"{name}[{number}]")
    else:
        dtype = getattr(spec, "dtype", None)
        yield name or "element", getattr(dtype, "name", str(dtype)), str(getattr(spec, "shape", ""))


def _fields(schema: Schema) -> str:
    every = [("key", schema.key), *((field.name, field) for field in schema.fields)]
    shown = [(name, _type_of(field), _shape_of(field)) for name, field in every[:_FIELDS]]
    left = len(every) - len(shown)
    return table(("field", "type", "shape"), shown, note=f"{left:,} more fields" if left else "")


def _type_of(field: Field) -> str:
    if field.fields:
        return field.type.name.lower()
    if field.dtype.kind == "S" or field.dtype.hasobject:
        return "bytes" if field.is_blob else "text"
    stored = field.type.name.lower()
    return str(field.dtype) if field.labels is None and not field.has_times else stored


def _shape_of(field: Field) -> str:
    return str([("any" if n is None else n) for n in field.shape]).replace("'", "")


def _classes(names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_CLASSES]))
    left = len(names) - _CLASSES
    return remark(f"classes: {shown}" + (f" and {left:,} more" if left > 0 else ""))


def _records(rows: EpochRows) -> str:
    try:
        records = _first_records(rows)
    except IgniteTFError as error:
        return remark(f"no records to show: {error}")
    if not records:
        return ""
    names = list(records[0])[: _COLUMNS + 1]
    classes = rows.class_names
    shown = [[_value(name, record[name], classes) for name in names] for record in records]
    left = len(records[0]) - len(names)
    more = f"; {left:,} more fields" if left else ""
    return table(names, shown, note=f"first records in storage order{more}")


def _value(name: str, value: Any, classes: Sequence[str]) -> Any:
    if (image := picture(value)) is not None:
        return image
    return classed(value, classes) if name == _LABEL else value


def _first_records(rows: EpochRows) -> list[dict[str, Any]]:
    """Return some records of a data set; nulls are None, and nothing is counted as read."""
    options = replace(
        rows.reader.options, raw_nulls=True, page_size=_RECORDS, readers=1, on_change="ignore"
    )
    reader = CacheReader(rows.reader.client, rows.reader.name, options)
    found: list[dict[str, Any]] = []
    for batch in batches_of(reader):
        wanted = min(len(batch), _RECORDS - len(found))
        found += [record_at(reader.schema, batch, index) for index in range(wanted)]
        if len(found) == _RECORDS:
            break
    return found
