"""Types of CSV columns, declared or inferred from the first values; converts texts to values.

texts -> **types, values** -> columns -> Batch

A text is converted only if the value represents it exactly. So `007` stays a text unless
its column is declared a number, integers that no type can hold do not become floats, and a finite
number never becomes infinite. One odd value among many of a type is a bad record; a mixed column is
text, and a note says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.load.sources.texts import NOT_UTF8
from ignitetf.load.sources.times import check_years
from ignitetf.load.sources.values import names_of

__all__ = [
    "LEADING_ZERO",
    "MANY",
    "MIN_VALUES",
    "NEARLY_ALL",
    "NULLS",
    "NUMBER",
    "PHONE_NUMBER",
    "CsvType",
    "Spelling",
    "declared_type",
    "option_types",
    "parsed",
    "type_of",
    "why_not",
    "wrong_values",
]

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
_DECIMAL_DIGITS: Final = 76  # digits of Arrow's widest decimal
# A number; in Python, with re.ASCII.
NUMBER: Final = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
# Patterns of the values of each type, strictest first.
_LOOKS: Final = (
    ("int64", r"^[+-]?(0|[1-9][0-9]{0,18})$"),
    ("float64", rf"^{NUMBER}$"),
    ("date32", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"),
    ("timestamp", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?$"),
    ("time", r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,3})?)?$"),
    ("bool_", r"^(true|True|TRUE|false|False|FALSE)$"),
)
_TIME_OF_DAY: Final = r"^[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?$"
_WORDS: Final = {"int64": "bigint", "float64": "double", "date32": "date", "bool_": "bool"}
LEADING_ZERO: Final = r"^[+-]?0[0-9]+$"
# pyarrow copies the bits of such a number: `0xff` is -1 as an int8.
_HEX: Final = r"^[+-]?0[xX]"
# A telephone number in E.164 form. It is not a quantity, although it looks like a signed number.
PHONE_NUMBER: Final = r"^\+[1-9][0-9]{6,14}$"
# The zone of a timestamp with a time of day.
_ZONE: Final = r":[0-9.]+(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"
_INFINITE: Final = r"(?i)^[+-]?inf(inity)?$"
# If this share of the values looks like one type, the column has it; the rest are bad records.
NEARLY_ALL: Final = 0.9
MIN_VALUES: Final = 10
MANY: Final = 0.5
_SHOWN: Final = 40
_MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True)
class Spelling:
    """Spelling of numbers and missing values in a file.

    Attributes:
        nulls: Its own spellings of a missing value, in all columns, in addition to `NULLS`.
        decimal: The mark before the fraction.
        thousands: The mark between groups of three digits; empty for none.
    """

    nulls: tuple[str, ...] = ()
    decimal: str = "."
    thousands: str = ""

    @property
    def is_local(self) -> bool:
        """True if numbers are spelled in another way than Arrow reads them."""
        return self.decimal != "." or self.thousands != ""

    @property
    def _look(self) -> str:
        """Pattern of a number."""
        point, mark = re.escape(self.decimal), re.escape(self.thousands)
        whole = rf"[0-9]+|[0-9]{{1,3}}({mark}[0-9]{{3}})+" if mark else "[0-9]+"
        return rf"^[+-]?(({whole})({point}[0-9]*)?|{point}[0-9]+)([eE][+-]?[0-9]+)?$"

    def plain(self, text: Any) -> tuple[Any, Any]:
        """Return texts with numbers as Arrow reads them, and which texts are numbers."""
        from pyarrow import compute

        fits = compute.match_substring_regex(text, self._look)
        found = compute.replace_substring(text, self.thousands, "") if self.thousands else text
        return compute.replace_substring(found, self.decimal, "."), fits


# Other spellings of numbers, with the options for them; fewer options first.
_SPELLINGS: Final = (
    (Spelling((), ","), "--decimal ,"),
    *(
        (Spelling((), decimal, mark), f"{option}--thousands {shown}")
        for decimal, option in ((".", ""), (",", "--decimal , "))
        for mark, shown in (
            (",", ","), (".", "."), (" ", "' '"), ("'", '"\'"'), ("\u00a0", "$'\\u00a0'"),
            ("\u202f", "$'\\u202f'"),
        )
        if mark != decimal
    ),
)  # fmt: skip
_LOOKED_AT: Final = 1000


@dataclass(frozen=True)
class CsvType:
    """The type of a column.

    Attributes:
        arrow: Its pyarrow type.
        declared: True if the user declared it; then `007` is the number 7.
        empty: True if it is text only because no value was seen.
        note: A note for the user about the choice.
        spelling: Spelling of its values.
    """

    arrow: Any
    declared: bool = False
    empty: bool = False
    note: str | None = None
    spelling: Spelling = Spelling()

    @property
    def is_number(self) -> bool:
        """True if its values are numbers."""
        import pyarrow as pa

        types = pa.types
        return bool(
            types.is_integer(self.arrow)
            or types.is_floating(self.arrow)
            or types.is_decimal(self.arrow)
        )


def type_of(
    name: str, array: Any, rows: NDArray[np.int64], found: Any, spelling: Spelling
) -> CsvType:
    """Return the type of a column, inferred from its first values.

    Args:
        name: Its heading.
        array: The values as texts.
        rows: The numbers of their rows, for messages.
        found: The type that pyarrow infers from them.
        spelling: Spelling of numbers and missing values in the file.
    """
    import pyarrow as pa

    if pa.types.is_null(found):
        return CsvType(pa.string(), empty=True, spelling=spelling)
    text = _or_null(_trimmed(array), spelling)
    if spelling.is_local:
        return replace(_local(pa, name, text, rows, found, spelling), spelling=spelling)
    if not pa.types.is_string(found):
        kind = _kept_as_text(pa, name, text, rows, found)
    else:
        kind = _mixed(pa, name, text, rows)
    return replace(kind, spelling=spelling)


def _local(
    pa: Any, name: str, text: Any, rows: NDArray[np.int64], found: Any, spelling: Spelling
) -> CsvType:
    """Return the type of a column whose numbers are spelled as in some countries."""
    from pyarrow import compute

    plain, fits = spelling.plain(text)
    number = compute.match_substring_regex(text, dict(_LOOKS)["float64"])
    # A text that is a number in other files, but not in this one, must not look like one.
    odd = compute.binary_join_element_wise(text, " as it is", "")
    marked = compute.if_else(fits, plain, compute.if_else(number, odd, text))
    if not (pa.types.is_integer(found) or pa.types.is_floating(found) or pa.types.is_string(found)):
        return _kept_as_text(pa, name, text, rows, found)
    kind = _mixed(pa, name, marked, rows)
    if pa.types.is_integer(kind.arrow) or pa.types.is_floating(kind.arrow):
        return _kept_as_text(pa, name, compute.if_else(fits, plain, None), rows, kind.arrow)
    return kind


def _kept_as_text(pa: Any, name: str, text: Any, rows: NDArray[np.int64], found: Any) -> CsvType:
    """Return the inferred type, or text if the converted values would differ from the texts."""
    from pyarrow import compute

    if not (pa.types.is_integer(found) or pa.types.is_floating(found)):
        return CsvType(found)
    whole = compute.match_substring_regex(text, dict(_LOOKS)["int64"])
    if pa.types.is_floating(found) and compute.all(whole).as_py():
        found = pa.int64()  # pyarrow infers a double from +1
    phone = compute.index(compute.match_substring_regex(text, PHONE_NUMBER), True).as_py()
    if phone >= 0:
        why = f"row {rows[phone]} is {_short(text[phone])}, which looks like a telephone number"
        return CsvType(pa.string(), note=_note(name, why, "bigint"))
    zeros = compute.index(compute.match_substring_regex(text, LEADING_ZERO), True).as_py()
    if zeros >= 0:
        why = f"row {rows[zeros]} is {_short(text[zeros])}: a number would lose its leading zero"
        return CsvType(pa.string(), note=_note(name, why, "bigint"))
    marked = compute.index(compute.match_substring_regex(text, _HEX), True).as_py()
    if marked >= 0:
        why = f"row {rows[marked]} is {_short(text[marked])}: a number would lose its format"
        return CsvType(pa.string(), note=_note(name, why, "bigint"))
    if pa.types.is_floating(found):
        for at, number in _inexact(text, text.cast(found)):
            why = f"row {rows[at]} is {_short(number)}, which neither a long nor a double holds"
            return CsvType(pa.string(), note=_note(name, why, "decimal(38,0)"))
    return CsvType(found)


def _mixed(pa: Any, name: str, text: Any, rows: NDArray[np.int64]) -> CsvType:
    """Return the type of nearly all values, or text; adds a note if many values had one type."""
    from pyarrow import compute

    there = text.drop_null()
    if compute.any(compute.match_substring_regex(there, PHONE_NUMBER)).as_py():
        return CsvType(pa.string())
    best, most = "", 0
    for word, look in _LOOKS:
        count = compute.sum(compute.match_substring_regex(there, look)).as_py() or 0
        if count > most:
            best, most = word, count
    if len(there) >= MIN_VALUES and most >= NEARLY_ALL * len(there):
        return CsvType(_arrow_type(pa, best))
    if note := _spelling_note(name, there.slice(0, _LOOKED_AT), most / max(1, len(there))):
        return CsvType(pa.string(), note=note)
    if most < MANY * len(there) or not most:
        return CsvType(pa.string())
    fits = compute.match_substring_regex(text, dict(_LOOKS)[best])
    at = compute.index(fits, False).as_py()
    if at < 0:  # all values match the pattern, but one is invalid, such as 2020-02-30
        kind = CsvType(_arrow_type(pa, best))
        if (at := next(wrong_values(text, kind), -1)) < 0:
            return kind
    word = _WORDS.get(best, best)
    row = f"row {rows[at]} is {_short(text[at])}"
    why = f"{row}, while {most:,} of {len(there):,} look like {word}"
    return CsvType(pa.string(), note=_note(name, why, word))


def _spelling_note(name: str, there: Any, share: float) -> str | None:
    """Return a note if most values are numbers in another spelling, with the options for it.

    Args:
        name: The heading.
        there: Some of the texts.
        share: The share of the texts that have a type without these options.
    """
    from pyarrow import compute

    best: dict[str, tuple[int, str, str]] = {}
    for spelling, option in _SPELLINGS:
        fits = spelling.plain(there)[1]
        count = compute.sum(fits).as_py() or 0
        # A mark of thousands without effect is omitted.
        if count > best.get(spelling.decimal, (0,))[0]:
            best[spelling.decimal] = count, option, there[compute.index(fits, True).as_py()].as_py()
    most = max((count for count, _, _ in best.values()), default=0)
    if most < MANY * len(there) or most <= share * len(there):
        return None
    options = [option for count, option, _ in best.values() if count == most]
    shown = next(text for count, _, text in best.values() if count == most)
    return f"column {name.upper()} is text: {_short(shown)} is a number with {' or '.join(options)}"


def _note(name: str, why: str, word: str) -> str:
    return (
        f"column {name.upper()} is loaded as text: {why}; to change that:"
        f" --types {name.upper()}:{word}"
    )


def _short(text: Any) -> str:
    shown = str(text)
    return repr(shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}...").replace(NOT_UTF8, "?")


def _arrow_type(pa: Any, word: str) -> Any:
    if word == "timestamp":
        return pa.timestamp("ns")
    if word == "time":
        return pa.time32("ms")
    return getattr(pa, word)()


def declared_type(name: str, text: str, spelling: Spelling) -> CsvType:
    """Parse a declared type: `int`, `double`, `decimal(10,2)`, `timestamp`."""
    import pyarrow as pa

    word = text.strip().lower().replace(" ", "")
    if word in _TYPES:
        return CsvType(getattr(pa, _TYPES[word])(), declared=True, spelling=spelling)
    if word in ("timestamp", "time"):
        return CsvType(_arrow_type(pa, word), declared=True, spelling=spelling)
    hint = "bool, int, bigint, real, double, varchar, date, time, timestamp, decimal(10,2)"
    if word.startswith("decimal"):
        digits = word.removeprefix("decimal").strip("()").split(",")
        try:
            precision, scale = (int(digits[0]), int(digits[1])) if digits != [""] else (38, 10)
            if precision > _DECIMAL_DIGITS:
                hint = f"a decimal has at most {_DECIMAL_DIGITS} digits here; varchar keeps more"
            kind = pa.decimal128 if precision <= 38 else pa.decimal256
            return CsvType(kind(precision, scale), declared=True, spelling=spelling)
        except (ValueError, IndexError):
            pass
    raise ConfigError(f"column {name!r}: unknown type {text[:80]!r}", hint=hint)


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
        return _without(array, kind.spelling.nulls)
    text = _or_null(_trimmed(array), kind.spelling)
    if kind.spelling.is_local and kind.is_number:
        text, fits = kind.spelling.plain(text)
        if not compute.all(fits, min_count=0).as_py():
            raise ValueError("not a number in this form")
    if (types.is_integer(arrow) or types.is_floating(arrow)) and not kind.declared:
        _require_no_telephone(text)
    if types.is_time(arrow):
        return _times(text)
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
            raise ValueError("an integer that a double cannot hold")
    return values


def _timestamps(text: Any, kind: CsvType) -> Any:
    """Convert timestamps: to nanoseconds, or to milliseconds and the rest (see `times`).

    Times outside the range of nanoseconds have at most six digits of a second.
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


def _times(text: Any) -> Any:
    """Convert times of day, which pyarrow infers, but does not convert from text."""
    import pyarrow as pa
    from pyarrow import compute

    looks = compute.match_substring_regex(text, _TIME_OF_DAY)
    if not compute.all(looks, min_count=0).as_py():
        raise ValueError("not a time of day")
    moments = compute.binary_join_element_wise("1970-01-01", text, " ")
    # Ignite stores milliseconds; a cast refuses to lose more digits.
    return moments.cast(pa.timestamp("ns")).cast(pa.time64("ns")).cast(pa.time32("ms"))


def _trimmed(array: Any) -> Any:
    from pyarrow import compute

    return compute.utf8_trim_whitespace(array)


def _or_null(text: Any, spelling: Spelling) -> Any:
    """Replace the spellings of a missing value with nulls."""
    return _without(text, (*NULLS, *spelling.nulls))


def _without(array: Any, words: Sequence[str]) -> Any:
    """Replace these words, also between blanks, with nulls."""
    import pyarrow as pa
    from pyarrow import compute

    if not words:
        return array
    missing = compute.is_in(_trimmed(array), value_set=pa.array(words))
    return compute.if_else(missing, pa.scalar(None, pa.string()), array)


def _require_no_telephone(text: Any) -> None:
    from pyarrow import compute

    phone = compute.match_substring_regex(text, PHONE_NUMBER)
    if compute.any(phone).as_py():
        raise ValueError("a telephone number")


def _require_no_leading_zero(text: Any) -> None:
    from pyarrow import compute

    zero = compute.match_substring_regex(text, LEADING_ZERO)
    if compute.any(zero).as_py():
        raise ValueError("a leading zero")


def _require_no_hex(text: Any, values: Any, declared: bool) -> None:
    """Raise ValueError for hexadecimal integers; in a declared column only for negative ones."""
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
    """Return the reason why a text does not convert."""
    import pyarrow as pa

    text = value.as_py()[:_SHOWN]
    if NOT_UTF8 in text:
        return f"{text.replace(NOT_UTF8, '?')!r} is not UTF-8; --encoding names another encoding"
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
