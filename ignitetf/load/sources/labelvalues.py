"""What the words of a label column are: numbers, or names of classes. Numbers stay numbers.

words -> **values, or the rows without one** -> labels

The rules are those of a CSV column (`csvtypes`): a column of numbers has one of them in each row, and
rows where it is missing, or no number, are named. Only texts become classes. Unlike there, zeros may
come first: `01` is the number 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SourceError
from ignitetf.load.sources.csvtypes import MANY, MIN_VALUES, NEARLY_ALL, NULLS

__all__ = ["HINT", "TEXTS", "LabelValues", "label_values"]

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_INFINITE: Final = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
TEXTS: Final = ("varchar", "string", "text")
_WHOLE: Final = (
    "tinyint", "int8", "smallint", "int16", "int", "integer", "int32", "bigint", "long", "int64",
)  # fmt: skip
_FRACTIONS: Final = ("real", "float", "float32", "double", "float64")
_INT32: Final = np.iinfo(np.int32)
_LONG: Final = np.iinfo(np.int64)
_SHOWN: Final = 40
# What to do about a row without a label.
HINT: Final = (
    "repair it, leave such rows out with --bad-records skip, or load the column as another field,"
    " which may have nulls: --rename label=OTHER"
)


@dataclass
class LabelValues:
    """The labels of rows.

    Attributes:
        words: The names of classes; None for numbers.
        numbers: int32 if all fit, else int64 or float64; None for names.
        bad: Where a row has no label, and why.
    """

    words: Sequence[str] | None = None
    numbers: NDArray[np.generic] | None = None
    bad: dict[int, str] = field(default_factory=dict)


def _missing(word: str) -> str:
    """Return why a row has no label."""
    return f"has no label: {word!r} is a missing value" if word else "has no label"


def label_values(
    place: str, words: Sequence[str], rows: Sequence[int], declared: str | None = None
) -> LabelValues:
    """Return what the words of a column are.

    Args:
        place: The table, for messages.
        words: A word of each row, without blanks around it.
        rows: The numbers of the rows, for messages.
        declared: The type that the user declared.

    Raises:
        SourceError: Numbers and other words are mixed.
        ConfigError: There are no labels of the declared type.
    """
    kind = (declared or "").strip().lower()
    if kind and kind not in (*TEXTS, *_WHOLE, *_FRACTIONS):
        raise ConfigError(
            f"labels of type {kind!r}",
            hint="varchar names classes; int, bigint, double are numbers",
        )
    counted = Counter(words)
    if not kind:
        kind = _inferred(place, words, rows, counted)
    if kind in TEXTS:
        return LabelValues(words, None, {i: _missing(w) for i, w in enumerate(words) if not w})
    known = {word: _value(word, whole=kind in _WHOLE) for word in counted}
    bad = {i: str(known[w]) for i, w in enumerate(words) if isinstance(known[w], str)}
    numbers = [0 if i in bad else known[word] for i, word in enumerate(words)]
    if kind in _FRACTIONS:
        return LabelValues(None, np.array(numbers, np.float64), bad)
    values = np.array(numbers, np.int64)
    small = not len(values) or bool(values.min() >= _INT32.min and values.max() <= _INT32.max)
    return LabelValues(None, values.astype(np.int32) if small else values, bad)


def _inferred(place: str, words: Sequence[str], rows: Sequence[int], counted: Counter[str]) -> str:
    """Return `bigint`, `double` or `varchar`, by the rules of a CSV column.

    Raises:
        SourceError: Many of the words are numbers, and many are not.
    """
    there = {word: count for word, count in counted.items() if word not in NULLS}
    total = sum(there.values())
    numbers = {word: count for word, count in there.items() if _looks_like_number(word)}
    count = sum(numbers.values())
    if not total or count < MANY * total:
        return "varchar"
    if any(_is_beyond(word) for word in numbers):
        return "varchar"  # a number would not be what the text says
    if count < total and (total < MIN_VALUES or count < NEARLY_ALL * total):
        at = next(i for i, word in enumerate(words) if word in there and word not in numbers)
        raise SourceError(
            f"{place}: the label of row {rows[at]} is {_short(words[at])}, while {count:,} of"
            f" {total:,} labels are numbers, and a label is one or the other",
            hint="--types label:varchar makes a class of each; --types label:double takes the numbers,"
            " with --bad-records skip for the other rows",
        )
    return "bigint" if all(_INTEGER.fullmatch(word) for word in numbers) else "double"


def _looks_like_number(word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None or _INFINITE.fullmatch(word) is not None


def _is_beyond(word: str) -> bool:
    """Whether a word is an integer that no long holds."""
    digits = word.lstrip("+-")
    if not digits.isdigit():
        return False
    return len(digits.lstrip("0")) > 19 or not _LONG.min <= int(word) <= _LONG.max


def _value(word: str, *, whole: bool) -> float | int | str:
    """Return the number that a word is, or why it is none."""
    if word in NULLS:
        return _missing(word)
    if whole:
        fits = _NUMBER.fullmatch(word) and word.lstrip("+-").isdigit() and not _is_beyond(word)
        return int(word) if fits else f"has the label {_short(word)}, which is not an integer"
    if not _looks_like_number(word):
        return f"has the label {_short(word)}, which is not a number"
    value = float(word)
    if np.isinf(value) and not _INFINITE.fullmatch(word):
        return f"has the label {_short(word)}, which no double holds"
    return value


def _short(word: str) -> str:
    return repr(word if len(word) <= _SHOWN else f"{word[:_SHOWN]}...")
