"""Types of CSV columns, declared or inferred from the first values; converts texts to values.

texts -> **types, values** -> columns -> Batch

A text is converted only if the value is exactly what the text says. So `007` stays a text unless
its column is declared a number, integers that no type can hold do not become floats, and a finite
number never becomes infinite. One odd value among many of a type is a bad record; a mixed column is
text, and a note says so.

The parser loses or refuses a whole block because of one bad byte, so it is given text that is
guaranteed to be UTF-8: a marker replaces that byte, so that the error can name its row. The text
ends with a line end, which shows whether the last quote was closed: if not, it becomes a part of
the last value.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError, SourceError
from ignitetf.load.sources.location import Stream, reading
from ignitetf.load.sources.times import check_years
from ignitetf.load.sources.values import names_of

__all__ = [
    "MANY",
    "MIN_VALUES",
    "NEARLY_ALL",
    "NOT_UTF8",
    "NULLS",
    "CsvType",
    "Utf8Stream",
    "declared_type",
    "option_types",
    "parsed",
    "type_of",
    "why_not",
    "wrong_values",
]

# A noncharacter: Unicode forbids it in texts that are exchanged.
NOT_UTF8 = "\ufdd0"
_LINE_ENDS = (b"\n", b"\r")


def _mark(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return NOT_UTF8, error.end


codecs.register_error("ignitetf.mark", _mark)


class Utf8Stream(io.RawIOBase):
    """Reads a stream in pieces and closes it.

    Attributes:
        last: The last byte so far that is not a line end.
    """

    def __init__(self, stream: Stream, name: str) -> None:
        super().__init__()
        self._stream = stream
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignitetf.mark")
        self._pending = False
        self._begun = False
        self._in_line = False
        self.last = b""

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Read about `size` bytes: markers are longer than what they replace."""
        data = self._piece(size)
        if not self._begun:
            self._begun = True
            if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise SourceError(
                    f"{self._name}: the text is UTF-16, expected UTF-8",
                    hint="iconv -f UTF-16 -t UTF-8 FILE > NEW",
                )
        self.last = data[-4096:].rstrip(b"\r\n")[-1:] or self.last
        if data and data.isascii() and not self._pending:
            return data
        out = self._decoder.decode(data, final=not data).encode()
        self._pending = bool(self._decoder.getstate()[0])
        # An incomplete character alone is not the end of the file.
        return out if out or not data else self.read(size)

    def _piece(self, size: int) -> bytes:
        """Return the next `size` bytes, or all up to the end of the file and its line end."""
        with reading(self._name, "fetch or export the file again"):
            data = more = self._stream.read(size)
            while more and len(data) != size:
                data += (more := self._stream.read(size - len(data) if size > 0 else size))
        if len(data) != size and (data or self._in_line) and not data.endswith(_LINE_ENDS):
            data += b"\n"
        self._in_line = bool(data) and not data.endswith(_LINE_ENDS)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Fill at most a third of a buffer, because a marker of three bytes replaces one byte."""
        data = self.read(max(1, len(buffer) // 3))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close this stream and the underlying one."""
        try:
            super().close()
        finally:
            self._stream.close()


# Spellings of a missing value in a column that is not text.
NULLS: Final = [
    "", "NA", "N/A", "n/a", "#N/A", "NULL", "null", "None", "NaN", "nan", "-NaN", "-nan",
]  # fmt: skip
# Names of declared types, as in SQL and in NumPy.
_TYPES: Final = {
    "bool": "bool_", "boolean": "bool_",
    "tinyint": "int8", "int8": "int8",
    "smallint": "int16", "int16": "int16",
    "int": "int32", "integer": "int32", "int32": "int32",
    "bigint": "int64", "long": "int64", "int64": "int64",
    "real": "float32", "float": "float32", "float32": "float32",
    "double": "float64", "float64": "float64",
    "varchar": "string", "string": "string", "text": "string",
    "date": "date32",
}  # fmt: skip
_DECIMAL_DIGITS: Final = 76  # those of Arrow's widest decimal
# Patterns of the values of each type, strictest first.
_LOOKS: Final = (
    ("int64", r"^[+-]?(0|[1-9][0-9]{0,18})$"),
    ("float64", r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"),
    ("date32", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
    ("timestamp", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?$"),
    ("time", r"^[0-9]{2}:[0-9]{2}(:[0-9]{2})?$"),
    ("bool_", r"^(true|True|TRUE|false|False|FALSE)$"),
)
_WORDS: Final = {"int64": "bigint", "float64": "double", "date32": "date", "bool_": "bool"}
_LEADING_ZERO: Final = r"^[+-]?0[0-9]+$"
# pyarrow copies the bits of such a number: `0xff` is -1 as an int8.
_HEX: Final = r"^[+-]?0[xX]"
# A telephone number in E.164 form. It is not a quantity, although it looks like a signed number.
_TELEPHONE: Final = r"^\+[1-9][0-9]{6,14}$"
# The zone of a timestamp with a time of day.
_ZONE: Final = r":[0-9.]+(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_INFINITE: Final = r"(?i)^[+-]?inf(inity)?$"
# If this share of a column looks like one type, the column has it, and the rest are bad records.
NEARLY_ALL: Final = 0.9
MIN_VALUES: Final = 10
MANY: Final = 0.5
_SHOWN: Final = 40
_MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True)
class CsvType:
    """The type of a column.

    Attributes:
        arrow: Its pyarrow type.
        declared: Whether the user declared it; then `007` is the number 7.
        empty: Whether it is text only because no value was seen.
        note: What the user should know about the choice.
    """

    arrow: Any
    declared: bool = False
    empty: bool = False
    note: str | None = None


def type_of(name: str, array: Any, numbers: NDArray[np.int64], found: Any) -> CsvType:
    """Return the type of a column, inferred from its first values.

    Args:
        name: Its heading.
        array: The values as texts.
        numbers: The numbers of their records.
        found: The type that pyarrow infers from them.
    """
    import pyarrow as pa

    if pa.types.is_null(found):
        return CsvType(pa.string(), empty=True)
    if not pa.types.is_string(found):
        return _kept_as_text(pa, name, array, numbers, found)
    return _mixed(pa, name, array, numbers)


def _kept_as_text(
    pa: Any, name: str, array: Any, numbers: NDArray[np.int64], found: Any
) -> CsvType:
    """Return the inferred type, or text if the converted values would differ from the texts."""
    from pyarrow import compute

    if not (pa.types.is_integer(found) or pa.types.is_floating(found)):
        return CsvType(found)
    text = compute.utf8_trim_whitespace(array)
    whole = compute.match_substring_regex(_or_null(text), dict(_LOOKS)["int64"])
    if pa.types.is_floating(found) and compute.all(whole).as_py():
        found = pa.int64()  # pyarrow infers a double from +1
    phone = compute.index(compute.match_substring_regex(text, _TELEPHONE), True).as_py()
    if phone >= 0:
        why = f"row {numbers[phone] + 2} is {_short(text[phone])}, which looks like a telephone number"
        return CsvType(pa.string(), note=_note(name, why, "bigint"))
    zeros = compute.index(compute.match_substring_regex(text, _LEADING_ZERO), True).as_py()
    if zeros >= 0:
        why = f"row {numbers[zeros] + 2} is {_short(text[zeros])}: a number would lose its leading zero"
        return CsvType(pa.string(), note=_note(name, why, "bigint"))
    marked = compute.index(compute.match_substring_regex(text, _HEX), True).as_py()
    if marked >= 0:
        why = f"row {numbers[marked] + 2} is {_short(text[marked])}: a number would lose its form"
        return CsvType(pa.string(), note=_note(name, why, "bigint"))
    if pa.types.is_floating(found):
        for at, number in _inexact(text, _or_null(text).cast(found)):
            why = f"row {numbers[at] + 2} is {_short(number)}, which neither a long nor a double holds"
            return CsvType(pa.string(), note=_note(name, why, "decimal(38,0)"))
    return CsvType(found)


def _mixed(pa: Any, name: str, array: Any, numbers: NDArray[np.int64]) -> CsvType:
    """Return the type of nearly all values, or text; adds a note if many values had one type."""
    from pyarrow import compute

    text = compute.utf8_trim_whitespace(array)
    there = text.filter(compute.invert(compute.is_in(text, value_set=pa.array(NULLS))))
    if compute.any(compute.match_substring_regex(there, _TELEPHONE)).as_py():
        return CsvType(pa.string())
    best, most = "", 0
    for word, look in _LOOKS:
        count = compute.sum(compute.match_substring_regex(there, look)).as_py() or 0
        if count > most:
            best, most = word, count
    if len(there) >= MIN_VALUES and most >= NEARLY_ALL * len(there):
        return CsvType(_arrow_type(pa, best))
    if most < MANY * len(there) or not most:
        return CsvType(pa.string())
    fits = compute.or_(
        compute.match_substring_regex(text, dict(_LOOKS)[best]),
        compute.is_in(text, value_set=pa.array(NULLS)),
    )
    at = compute.index(fits, False).as_py()
    if at < 0:  # all values match the pattern, but one is invalid, such as 2020-02-30
        kind = CsvType(_arrow_type(pa, best))
        if (at := next(wrong_values(array, kind), -1)) < 0:
            return kind
    word = _WORDS.get(best, best)
    row = f"row {numbers[at] + 2} is {_short(text[at])}"
    why = f"{row}, while {most:,} of {len(there):,} look like {word}"
    return CsvType(pa.string(), note=_note(name, why, word))


def _note(name: str, why: str, word: str) -> str:
    return (
        f"column {name.upper()} is text: {why}; to have it otherwise: --types {name.upper()}:{word}"
    )


def _short(text: Any) -> str:
    shown = str(text)
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...").replace(NOT_UTF8, "?")


def _arrow_type(pa: Any, word: str) -> Any:
    if word == "timestamp":
        return pa.timestamp("ns")
    if word == "time":
        return pa.time32("s")
    return getattr(pa, word)()


def declared_type(name: str, text: str) -> CsvType:
    """Parse a declared type: `int`, `double`, `decimal(10,2)`, `timestamp`."""
    import pyarrow as pa

    word = text.strip().lower().replace(" ", "")
    if word in _TYPES:
        return CsvType(getattr(pa, _TYPES[word])(), declared=True)
    if word in ("timestamp", "time"):
        return CsvType(_arrow_type(pa, word), declared=True)
    hint = "bool, int, bigint, real, double, varchar, date, time, timestamp, decimal(10,2)"
    if word.startswith("decimal"):
        digits = word.removeprefix("decimal").strip("()").split(",")
        try:
            precision, scale = (int(digits[0]), int(digits[1])) if digits != [""] else (38, 10)
            if precision > _DECIMAL_DIGITS:
                hint = f"a decimal has at most {_DECIMAL_DIGITS} digits here; varchar keeps more"
            kind = pa.decimal128 if precision <= 38 else pa.decimal256
            return CsvType(kind(precision, scale), declared=True)
        except (ValueError, IndexError):
            pass
    raise ConfigError(f"column {name!r}: no type {text[:80]!r}", hint=hint)


def parsed(array: Any, kind: CsvType) -> Any:
    """Convert texts to values of a type; the spellings of a missing value become null.

    Raises:
        ValueError: A text is not such a value (ArrowInvalid is a ValueError too).
    """
    import pyarrow as pa
    from pyarrow import compute

    types, arrow = pa.types, kind.arrow
    if types.is_string(arrow):
        if compute.any(compute.match_substring(array, NOT_UTF8)).as_py():
            raise ValueError("not UTF-8")
        return array
    text = _or_null(compute.utf8_trim_whitespace(array))
    if (types.is_integer(arrow) or types.is_floating(arrow)) and not kind.declared:
        _require_no_telephone(text)
    if types.is_time(arrow):
        return _times(text, arrow)
    if types.is_timestamp(arrow):
        return _timestamps(text, kind)
    if types.is_integer(arrow):
        text = compute.replace_substring_regex(text, r"^\+([0-9])", r"\1")
    values = text.cast(arrow)
    if types.is_date(arrow):
        check_years(values.cast(pa.date64()).cast(pa.int64()).fill_null(0).to_numpy())
    if types.is_integer(arrow):
        _require_no_hex(text, values, kind.declared)
    if not kind.declared and (types.is_integer(arrow) or types.is_floating(arrow)):
        _require_no_leading_zero(text)
    if types.is_floating(arrow):
        _require_finite(text, values)
        if not kind.declared and next(_inexact(text, values), None) is not None:
            raise ValueError("an integer that no double holds")
    return values


def _timestamps(text: Any, kind: CsvType) -> Any:
    """Convert timestamps: to nanoseconds, or to milliseconds and the rest (see `times`).

    Those that nanoseconds cannot count have six digits of a second at most.
    """
    import pyarrow as pa
    from pyarrow import compute

    year = compute.utf8_slice_codeunits(text, 0, 4)
    far = compute.or_(compute.less(year, "1678"), compute.greater(year, "2261"))
    if not compute.any(far).as_py():
        return _in_unit(text, kind, "ns")
    nothing = pa.scalar(None, pa.string())
    near = _in_unit(compute.if_else(far, nothing, text), kind, "ns")
    distant = _in_unit(compute.if_else(far, text, nothing), kind, "us")
    low, high = (
        one.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for one in (near, distant)
    )
    ms, rest = low // 1_000_000 + high // 1000, low % 1_000_000 + high % 1000 * 1000
    check_years(ms)
    parts = [pa.array(ms), pa.array(rest.astype(np.int32))]
    return pa.StructArray.from_arrays(parts, ["ms", "ns"], mask=text.is_null())


def _in_unit(text: Any, kind: CsvType, unit: str) -> Any:
    import pyarrow as pa

    if kind.declared:
        return _moments(text, unit)
    first = unit if kind.arrow.unit == "ns" else kind.arrow.unit
    return text.cast(pa.timestamp(first, kind.arrow.tz)).cast(pa.timestamp(unit, kind.arrow.tz))


def _moments(text: Any, unit: str) -> Any:
    """Convert timestamps, in UTC unless they have a zone."""
    import pyarrow as pa
    from pyarrow import compute

    zoned = compute.match_substring_regex(text, _ZONE)
    nothing = pa.scalar(None, pa.string())
    moments = compute.if_else(zoned, text, nothing).cast(pa.timestamp(unit, "UTC"))
    plain = compute.if_else(zoned, nothing, text).cast(pa.timestamp(unit))
    return compute.coalesce(moments.cast(pa.timestamp(unit)), plain)


def _times(text: Any, arrow: Any) -> Any:
    """Convert times of day, which pyarrow infers, but does not convert from text."""
    import pyarrow as pa
    from pyarrow import compute

    looks = compute.match_substring_regex(text, dict(_LOOKS)["time"])
    if not compute.all(looks, min_count=0).as_py():
        raise ValueError("no time of day")
    moments = compute.binary_join_element_wise("1970-01-01", text, " ")
    return moments.cast(pa.timestamp(arrow.unit)).cast(arrow)


def _or_null(text: Any) -> Any:
    """Replace the spellings of a missing value with nulls."""
    import pyarrow as pa
    from pyarrow import compute

    missing = compute.is_in(text, value_set=pa.array(NULLS))
    return compute.if_else(missing, pa.scalar(None, pa.string()), text)


def _require_no_telephone(text: Any) -> None:
    from pyarrow import compute

    phone = compute.match_substring_regex(text, _TELEPHONE)
    if compute.any(phone).as_py():
        raise ValueError("a telephone number")


def _require_no_leading_zero(text: Any) -> None:
    from pyarrow import compute

    zero = compute.match_substring_regex(text, _LEADING_ZERO)
    if compute.any(zero).as_py():
        raise ValueError("a leading zero")


def _require_no_hex(text: Any, values: Any, declared: bool) -> None:
    """Refuse `0x1F` as an integer; in a declared integer column only if it became negative."""
    from pyarrow import compute

    wrong = compute.match_substring_regex(text, _HEX)
    if declared:
        wrong = compute.and_(wrong, compute.less(values, 0))
    if compute.any(wrong).as_py():
        raise ValueError("a hexadecimal number")


def _require_finite(text: Any, values: Any) -> None:
    from pyarrow import compute

    infinite = compute.is_inf(values)
    if compute.any(infinite).as_py():
        meant = compute.match_substring_regex(text.filter(infinite), _INFINITE)
        if not compute.all(meant).as_py():
            raise ValueError("larger than the largest double")


def _inexact(text: Any, values: Any) -> Iterator[tuple[int, str]]:
    """Yield positions of integers that do not fit a long, or differ from their float."""
    floats = values.fill_null(0).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(np.abs(floats) >= 2.0**53).tolist():
        word, value = text[at].as_py(), float(floats[at])
        digits = word.lstrip("+-")
        # int() refuses very long texts, and a finite double never has this many digits.
        long = len(digits) > 400 or np.isinf(value)
        if digits.isdigit() and (long or int(word) != int(value) or abs(int(word)) > _MAX_LONG):
            yield at, word


def why_not(value: Any, kind: CsvType) -> str:
    """Return why a text does not convert."""
    import pyarrow as pa

    text = value.as_py()[:_SHOWN]
    if NOT_UTF8 in text:
        return f"{text.replace(NOT_UTF8, '?')!r} is not UTF-8"
    years = " of the years 1 to 9999" if pa.types.is_timestamp(kind.arrow) else ""
    return f"{text!r} is not of type {kind.arrow}{years}"


def wrong_values(array: Any, kind: CsvType, first: int = 0) -> Iterator[int]:
    """Yield the positions of values that do not convert, found by repeated halving."""
    import pyarrow as pa

    try:
        parsed(array, kind)
    except (pa.ArrowException, ValueError):
        n = len(array)
        if n == 1:
            yield first
            return
        yield from wrong_values(array.slice(0, n // 2), kind, first)
        yield from wrong_values(array.slice(n // 2), kind, first + n // 2)


def option_types(types: str | Mapping[str, str] | None) -> dict[str, str]:
    """Return declared types by upper-case heading, from a mapping or `NAME:type,NAME:type`."""
    if isinstance(types, str):
        types = _split(types)
    try:
        return names_of(types or {})
    except SchemaError as error:
        raise ConfigError(f"types: {error.message}", hint="declare each column once") from error


def _split(text: str) -> dict[str, str]:
    declared: dict[str, str] = {}
    for part in text.replace("(", "\0").split(","):
        name, colon, word = part.partition(":")
        if not colon and declared:  # the scale of decimal(10,2)
            declared[next(reversed(declared))] += f",{part}"
            continue
        if not colon or name.strip() in declared:
            raise ConfigError(f"types {text!r}", hint="NAME:type,NAME:type, each column once")
        declared[name.strip()] = word.strip()
    return {name: word.replace("\0", "(") for name, word in declared.items()}
