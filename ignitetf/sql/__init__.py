"""The SQL statements in `sql/`, run by name, and the splitting of a text into statements.

The files are in `ignitetf/sql/files` in an installation and in the folder `sql/` of a checkout.
Each has one or more statements in Ignite's H2 dialect. `{name}` in a file is a placeholder, which
`statement` only fills with names, numbers and lists of them, so that no value can become SQL.
Values of a query are passed separately, as `?` parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ignitetf.errors import ConfigError
from ignitetf.sql.tokens import tokens

__all__ = [
    "TABLES",
    "Fill",
    "bare",
    "check_name",
    "fill",
    "names",
    "placeholders",
    "split",
    "statement",
    "text_of",
]

# Files that `ignitetf table create NAME` accepts.
TABLES = ("images", "mnist", "voc")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.-]*\Z")
_TYPE = re.compile(r"[A-Z]+(\([0-9]+(,[0-9]+)?\))?( NOT NULL)?\Z")
_PLACE = re.compile(r"\{([a-z_]+)\}")
Fill = str | int | Sequence[str] | Sequence[tuple[str, str]] | Mapping[str, "str | int | bool"]


def names() -> list[str]:
    """Return the names of all files, without `.sql`."""
    return sorted(path.stem for path in _folder().glob("*.sql"))


def statement(name: str, /, **values: Fill) -> str:
    """Return the text of `name`.sql with its placeholders filled; see `fill`.

    Raises:
        ConfigError: The file does not exist, a placeholder has no value, or a value is not safe in
            SQL.
    """
    text = text_of(name)
    if missing := placeholders(text) - values.keys():
        raise ConfigError(f"{name}.sql needs {', '.join(sorted(missing))}")
    # Stripped, because a view stores its statement exactly as sent.
    return fill(text.strip(), **values)


def text_of(name: str) -> str:
    """Return the unfilled text of `name`.sql; raises ConfigError if it does not exist."""
    if name not in names():
        raise ConfigError(f"no statement {name!r}", hint=f"there are {', '.join(names())}")
    return (_folder() / f"{name}.sql").read_text(encoding="utf-8")


def fill(text: str, /, **values: Fill) -> str:
    """Replace each `{place}` in a text for which there is a value.

    A name or a number is inserted as it is. A list of names becomes `"A", "B"`; a list of names
    and types becomes the columns `"A" INT, "B" BIGINT`; a mapping becomes the options
    `,TEMPLATE=p16,BACKUPS=1`, with a leading comma because other options precede them.

    Raises:
        ConfigError: A value is not safe in SQL.
    """

    def value(match: re.Match[str]) -> str:
        place = match[1]
        return _render(place, values[place]) if place in values else match[0]

    return _PLACE.sub(value, text)


def placeholders(text: str) -> set[str]:
    """Return the names of the placeholders in a text."""
    return set(_PLACE.findall(text))


def bare(text: str) -> str:
    """Return a text without leading space and comments."""
    for token in tokens(text):
        if token.kind not in ("space", "comment"):
            return text[token.start :]
    return ""


def split(text: str) -> Iterator[str]:
    """Split a text into statements at semicolons outside quotes and comments.

    Yields:
        Each statement without its semicolon, skipping those of only space and comments.
    """
    start, content = 0, False
    for token in tokens(text):
        if token.text == ";":
            if content:
                yield text[start : token.start].strip()
            start, content = token.start + 1, False
        elif token.kind not in ("space", "comment") and not token.text.startswith("/*"):
            content = True
    if content:
        yield text[start:].strip()


def _folder() -> Path:
    installed = Path(__file__).with_name("files")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "sql"


def _render(place: str, value: Fill) -> str:
    if isinstance(value, Mapping):
        return "".join(f",{_name(place, k)}={_word(place, v)}" for k, v in value.items())
    if isinstance(value, (str, int)):
        return _word(place, value)
    return ", ".join(_column(place, item) for item in value)


def _column(place: str, item: str | tuple[str, str]) -> str:
    if isinstance(item, str):
        return f'"{_name(place, item)}"'
    name, kind = item
    if not _TYPE.match(kind):
        raise ConfigError(f"{kind!r} is not a SQL type ({place})")
    return f'"{_name(place, name)}" {kind}'


def _word(place: str, value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else _name(place, value)


def check_name(name: str) -> None:
    """Raise ConfigError unless this can be the name of a SQL table."""
    _name("the name", name)


def _name(place: str, value: str) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise ConfigError(
            f"{place} {value!r} cannot be a name in SQL",
            hint="a name has letters, digits, '_', '$', '.', '-', and begins with a letter or '_'",
        )
    return value
