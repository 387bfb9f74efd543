"""JSON files as records: an object a line (JSON Lines), or an array of objects.

file -> objects -> **types of the whole file** -> records -> Batch

JSON has no schema, and many objects lack some of the values. So the file is read once for the
types of all its values, and a second time for the rows. The type follows from the values: integers
are longs, or decimals if a long is too small, a column of integers and fractions is double, and
texts stay texts. Objects in it become nested objects, arrays arrays or lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import numpy as np

from ignitetf.errors import SchemaError, SourceError
from ignitetf.load.sources.arrays import key_field_of
from ignitetf.load.sources.base import BadRecord, Source, type_name
from ignitetf.load.sources.filesets import open_tables
from ignitetf.load.sources.headings import nested_names
from ignitetf.load.sources.jsonvalues import DECODER
from ignitetf.load.sources.location import Place, digest, one_line, open_plain, reading
from ignitetf.load.sources.records import RecordSource
from ignitetf.load.sources.tabular import (
    LEAVE_OUT,
    Columns,
    Renames,
    TableOptions,
    changed_headings,
    columns_of_headings,
    require_identifiers,
)
from ignitetf.load.sources.texts import NOT_UTF8, Utf8Stream
from ignitetf.load.sources.values import field_of, stored_field
from ignitetf.tables.storage import OnBadRecord
from ignitetf.wire.codes import TypeCode
from ignitetf.wire.datatypes import LIST_OF
from ignitetf.wire.schema import BYTES, Field, Schema

__all__ = ["jsonl"]

_PIECE: Final = 1 << 20
_MAX_RECORD: Final = 256 << 20
# Deeper values are damage or an attack; Python's recursion ends at about 400.
_MAX_DEPTH: Final = 100
_LONG: Final = np.iinfo(np.int64)
_BIG: Final = "integers beyond a long"
_HINT: Final = "JSON in UTF-8 is expected: an object a line, or an array of objects"
_WORDS: Final = {
    "dict": "an object", "list": "an array", "str": "a text", "bool": "true or false",
    "int": "a number", "float": "a number",
}  # fmt: skip

_NOT_UTF8: Final = "not UTF-8; --encoding names another encoding, such as latin-1"

Record = dict[str, Any]


class _Texts:
    """The text of a file, in pieces."""

    def __init__(self, place: Place, encoding: str | None) -> None:
        self._stream = Utf8Stream(open_plain(place), place.name, encoding)
        self._name = place.name

    def read(self) -> str:
        """Return the next piece, empty at the end; it ends between two characters."""
        with reading(self._name, _HINT):
            return self._stream.read(_PIECE).decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _objects(place: Place, encoding: str | None) -> Iterator[Record | BadRecord]:
    """Yield the objects of a file, and other values as bad records."""
    with closing(_Texts(place, encoding)) as texts:
        head = texts.read().removeprefix("\ufeff")
        while head and not head.strip() and (more := texts.read()):
            head += more
        first = head.lstrip().partition("\n")[0]
        if first.startswith("[") or (first.startswith("{") and not _is_whole(first, head)):
            yield from _sequence(place, texts, head)
        else:
            yield from _lines(place, texts, head)


def _is_whole(line: str, head: str) -> bool:
    """True if the first line is a complete object, or damaged; False if an object continues."""
    try:
        DECODER.decode(line)
    except RecursionError:
        return True
    except ValueError as error:
        # The text ends before the object does.
        at_end = getattr(error, "pos", 0) >= len(line.rstrip())
        return not at_end or "\n" not in head
    return True


def _lines(place: Place, texts: _Texts, text: str) -> Iterator[Record | BadRecord]:
    number = 0
    while True:
        *lines, rest = text.split("\n")
        more = texts.read()
        if not more and rest:
            lines.append(rest)
        for line in lines:
            if line.strip():
                number += 1
                yield _object(place, number, line)
        if not more:
            return
        if len(rest) > _MAX_RECORD:
            raise SourceError(
                f"{place.name}: a line of more than {_MAX_RECORD >> 20} MB", hint=_HINT
            )
        text = rest + more


def _object(place: Place, number: int, line: str) -> Record | BadRecord:
    name = f"{place.name}, row {number}"
    if NOT_UTF8 in line:
        return BadRecord(name, _NOT_UTF8)
    try:
        found = DECODER.decode(line)
    except (ValueError, RecursionError) as error:
        return BadRecord(name, f"damaged JSON: {one_line(error)}")
    if not isinstance(found, dict):
        return BadRecord(name, f"{_word(type(found))} instead of an object")
    return found


def _sequence(place: Place, texts: _Texts, text: str) -> Iterator[Record | BadRecord]:
    """Yield the objects of an array, or of a text of objects over several lines."""
    text, number = text.lstrip(), 0
    is_array = text.startswith("[")
    at = int(is_array)
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at == len(text):
            at, text = 0, texts.read()
            if text:
                continue
            if is_array:
                raise SourceError(
                    f"{place.name}: the array never ends", hint="fetch the file again"
                )
            return
        name = f"{place.name}, row {number + 1}"
        if is_array and text[at] == "]":
            if (text[at + 1 :] + texts.read()).strip():
                raise SourceError(f"{place.name}: more text follows the array", hint=_HINT)
            return
        try:
            # A number at the end of a piece may continue in the next piece; an object has its own
            # end.
            found, end = DECODER.raw_decode(text, at)
            whole = isinstance(found, dict) or end < len(text)
        except RecursionError as error:
            raise SourceError(f"{name}: values nested too deep", hint=_HINT) from error
        except ValueError as error:
            found, end, whole = error, at, False
        if not whole and (more := texts.read()):
            text, at = text[at:] + more, 0
            if len(text) > _MAX_RECORD:
                raise SourceError(
                    f"{name}: damaged, or more than {_MAX_RECORD >> 20} MB", hint=_HINT
                )
            continue
        if isinstance(found, ValueError):
            raise SourceError(f"{name}: damaged JSON: {one_line(found)}", hint=_HINT)
        part, number, at = text[at:end], number + 1, end
        if NOT_UTF8 in part:
            yield BadRecord(name, _NOT_UTF8)
        elif isinstance(found, dict):
            yield found
        else:
            yield BadRecord(name, f"{_word(type(found))} instead of an object")


def _word(kind: type) -> str:
    return _WORDS.get(kind.__name__, "null")


# New names of the values in an object, by their old ones; each with those of the values inside.
_Renames = dict[str, tuple[str, "_Renames | None"]]


def _renamed(value: Any, names: _Renames | None) -> Any:
    """Return a value with new names in its objects; its kind may differ from the others."""
    if names is None:
        return value
    if isinstance(value, list):
        return [_renamed(one, names) for one in value]
    if isinstance(value, dict):
        parts = ((*names.get(old, (old, None)), one) for old, one in value.items())
        return {new: _renamed(one, inner) for new, inner, one in parts}
    return value


def _changed(names: _Renames | None, old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield old and new name of each nested value that has another name, as `AT.x_y`."""
    for name, (other, more) in (names or {}).items():
        if name != other:
            yield f"{old}.{name}", f"{new}.{other}"
        yield from _changed(more, f"{old}.{name}", f"{new}.{other}")


class _Seen:
    """The values of one name in all objects.

    Attributes:
        counts: Number of values of each type; integers beyond a long under `_BIG` too.
        lengths: Shortest and longest array.
        items: The values in arrays.
        fields: The values in objects, by name.
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self.counts: Counter[Any] = Counter()
        self.lengths: tuple[int, int] | None = None
        self.items: _Seen | None = None
        self.fields: dict[str, _Seen] = {}

    def add(self, value: Any) -> None:
        """Count a value.

        Raises:
            RecursionError: It is nested too deep.
        """
        kind = type(value)
        self.counts[kind] += 1
        if kind is int and not _LONG.min <= value <= _LONG.max:
            self.counts[_BIG] += 1
        elif kind is dict:
            for name, one in value.items():
                if (seen := self.fields.get(name)) is None:
                    seen = self.fields[name] = self._inner()
                seen.add(one)
        elif kind is list:
            self._add_list(value)

    def _inner(self) -> _Seen:
        if self._depth >= _MAX_DEPTH:
            raise RecursionError
        return _Seen(self._depth + 1)

    def _add_list(self, value: list[Any]) -> None:
        size = len(value)
        low, high = self.lengths or (size, size)
        self.lengths = min(low, size), max(high, size)
        if self.items is None:
            self.items = self._inner()
        kinds = set(map(type, value))
        if dict in kinds or list in kinds:
            for one in value:
                self.items.add(one)
        else:
            self.items.counts.update(dict.fromkeys(kinds, 1))

    def kind(self) -> Any:
        """Return the type that most values have, float for all numbers if one is a fraction."""
        numbers = self.counts[int] + self.counts[float]
        found = {k: n for k, n in self.counts.items() if k in (bool, str, dict, list)}
        if numbers:
            found[float if self.counts[float] else int] = numbers
        return max(found, key=lambda kind: found[kind]) if found else None

    def field(self, name: str, total: int) -> Field:
        """Return the field of these values; it has nulls if not all of `total` objects have one.

        Raises:
            SourceError: No Ignite type can store them.
        """
        nulls = self.counts[type(None)] > 0 or sum(self._values()) < total
        kind = self.kind()
        if kind is None:
            return Field(name, TypeCode.STRING, BYTES, (), nullable=True)
        if kind is int and self.counts[_BIG]:
            return Field(name, TypeCode.DECIMAL, BYTES, (), nulls)
        if kind is dict:
            return self._object(name, nullable=nulls)
        if kind is list:
            return self._list(name, nullable=nulls)
        sample = {bool: True, int: 0, float: 0.5, str: ""}[kind]
        return field_of(name, [sample, None] if nulls else [sample])

    def renames(self) -> _Renames | None:
        """Return the new names of the values in objects; None if all keep theirs."""
        if self.kind() is list:
            return self.items.renames() if self.items is not None else None
        if self.kind() is not dict:
            return None
        names = nested_names(list(self.fields))
        found = {
            old: (new, seen.renames())
            for (old, seen), new in zip(self.fields.items(), names, strict=True)
        }
        changed = any(old != new or more for old, (new, more) in found.items())
        return found if changed else None

    def _values(self) -> Iterator[int]:
        yield from (n for kind, n in self.counts.items() if kind not in (_BIG, type(None)))

    def _object(self, name: str, *, nullable: bool) -> Field:
        if not self.fields:
            raise SchemaError(f"field {name!r}: its objects are empty", hint=LEAVE_OUT)
        try:
            names = nested_names(list(self.fields))
        except ValueError as error:
            raise SchemaError(f"field {name!r}: {error}", hint=LEAVE_OUT) from error
        count = self.counts[dict]
        inner = tuple(
            seen.field(key, count) for key, seen in zip(names, self.fields.values(), strict=True)
        )
        return Field(name, TypeCode.OBJECT, BYTES, (), nullable, inner)

    def _list(self, name: str, *, nullable: bool) -> Field:
        low, high = self.lengths or (0, 0)
        shape = (low,) if low == high and low else (None,)
        items = self.items or _Seen()
        kind = items.kind()
        if kind in (None, bool, int, float):
            dtype = np.dtype({None: float, bool: bool, int: np.int64, float: float}[kind])
            return stored_field(name, dtype, shape, nullable=nullable)
        if kind is str:
            return Field(name, TypeCode.STRING_ARRAY, BYTES, (None,), nullable)
        item = items.field("item", 0)
        if kind is list and item.dtype != BYTES and not item.fields and None not in item.shape:
            return stored_field(name, item.dtype, (*shape, *item.shape), nullable=nullable)
        item = Field(item.name, item.type, item.dtype, item.shape, False, item.fields)
        code = LIST_OF.get(item.type, TypeCode.COLLECTION)
        return Field(name, code, item.dtype, (None,), nullable, (item,))


def _is_a_frame(seen: Mapping[str, _Seen]) -> bool:
    """Return whether a single object is not a record but a table in a form of `to_json`."""
    if set(seen) in ({"columns", "index", "data"}, {"columns", "data"}, {"schema", "data"}):
        return seen["data"].kind() is list
    # Objects by the number of their row, or for each column, the values by the number of their row.
    names = [list(seen), *(list(one.fields) for one in seen.values())]
    counted = [found == [str(number) for number in range(len(found))] for found in names]
    return all(names) and (counted[0] or all(counted[1:]))


class _JsonSource(RecordSource):
    """The objects of one JSON file."""

    def __init__(self, place: Place, options: TableOptions, *, encoding: str | None = None) -> None:
        """Read the file for the types of its values."""
        key, columns, rename = options.key, options.columns, options.rename
        self.place = place
        self._encoding = encoding
        whole, rows = self._survey(options.bad_records)
        seen, count = whole.fields, whole.counts[dict]
        headings = list(seen)
        if rows == 1 and _is_a_frame(seen):
            raise SourceError(
                f"{place.name}: one object with the columns of a table, as pandas writes it",
                hint="write a row an object: to_json(FILE, orient='records', lines=True)",
            )
        chosen = columns_of_headings(place.name, headings, columns, rename)
        self._name_of = {name: headings[i] for i, name in chosen}
        fields = {}
        for i, name in chosen:
            try:
                fields[name] = seen[headings[i]].field(name, count)
            except SchemaError as error:
                raise SourceError(f"{place.name}: {error.message}", hint=error.hint) from error
        self._nested = {name: seen[headings[i]].renames() for i, name in chosen}
        if not fields:
            raise SourceError(f"{place.name}: no values in it", hint=_HINT)
        word = None if key is None else key.strip().upper()
        known = {heading.strip().upper(): name for name, heading in self._name_of.items()}
        key_name = word if word is None or word in fields else known.get(word, word)
        key_field = key_field_of(key_name, fields)
        how = (chosen,) if columns is not None or rename is not None else ()
        schema = Schema(type_name(place.stem), key_field, tuple(fields.values()))
        require_identifiers(place.name, schema)
        super().__init__(
            lambda: _objects(place, encoding),
            schema=schema,
            key=key_name,
            rows=rows,
            fingerprint=digest("jsonl", place.stamp(), encoding, key_name, *how),
            bad_records=options.bad_records,
        )
        self.nbytes = place.size()
        nested = [
            names
            for name, found in self._nested.items()
            for names in _changed(found, self._name_of[name], name)
        ]
        if (text := changed_headings(headings, chosen, rename, nested)) is not None:
            self.note(text)
        if nothing := [
            f.name for f in fields.values() if seen[self._name_of[f.name]].kind() is None
        ]:
            self.note(f"{', '.join(nothing)}: only nulls, loaded as text")

    def _survey(self, bad_records: OnBadRecord) -> tuple[_Seen, int]:
        """Return the values of all objects, and the number of records."""
        whole, bad = _Seen(), 0
        for item in _objects(self.place, self._encoding):
            if isinstance(item, dict):
                try:
                    whole.add(item)
                except RecursionError as error:
                    raise SourceError(
                        f"{self.place.name}, row {whole.counts[dict] + bad}: values nested too deep",
                        hint="leave the row out of the file",
                    ) from error
            elif bad_records == "fail":
                raise SourceError(
                    f"{item.name}: {item.reason}",
                    hint="repair or remove it, or skip it with --bad-records skip",
                )
            else:
                bad += 1
        if not whole.fields:
            raise SourceError(f"{self.place.name}: no objects in it", hint=_HINT)
        return whole, whole.counts[dict] + bad

    def _named(self, item: Any) -> dict[str, Any]:
        return {
            name: _renamed(item.get(heading), self._nested[name])
            for name, heading in self._name_of.items()
        }

    def _row(self, number: int) -> str:
        return f"{self.place.name}, row {number + 1}"


def jsonl(
    location: Any,
    key: str | None = None,
    columns: Columns = None,
    rename: Renames = None,
    encoding: str | None = None,
    split: str | None = None,
    bad_records: OnBadRecord = "fail",
) -> Source:
    """Open JSON files: an object a line, or an array of objects, compressed or not.

    Args:
        location: A file, a pattern with `*`, a folder, or a list; see `parquet`.
        key: Column to use as the key; otherwise a running number.
        columns: Names of the columns to load, `A,B`; None for all.
        rename: New names of columns, `OLD=NEW,OLD=NEW`.
        encoding: Encoding of the text; None for UTF-8, or UTF-16 with a byte order mark.
        split: The split to load; None for all.
        bad_records: Handling of lines that are not objects, and values that do not fit.

    Raises:
        SourceError: Missing or damaged, or with values that Ignite cannot store.
    """

    def opened(place: Place, options: TableOptions) -> Source:
        return _JsonSource(place, options, encoding=encoding)

    options = TableOptions(key, columns, rename, bad_records)
    return open_tables(
        "jsonl", location, (".jsonl", ".jsonlines", ".ndjson", ".json"), split, opened, options
    )
