"""The text of an INSERT: which columns it names, and one column more.

text -> **insertion** -> compiler
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["columns_of", "with_column"]


def columns_of(text: str) -> list[str]:
    """Return the columns that an INSERT names, as they are written there."""
    start, end = next(_groups(text), (0, 0))
    return [name.strip() for name in text[start + 1 : end].split(", ")] if end else []


def with_column(text: str, name: str, value: str) -> str:
    """Return an INSERT with one column more, which has the same expression in each row.

    It comes first: Ignite makes a query of an INSERT with an expression, which it cannot read
    itself if the first column is called INDEX.

    Args:
        text: `INSERT INTO T (A, B) VALUES (?, ?), (?, ?)`, or the same with a query.
        name: Of the column, quoted where it needs that.
        value: Its expression.
    """
    groups = list(_groups(text))
    if not groups:
        return f"{text.replace('DEFAULT VALUES', '').rstrip()} ({name}) VALUES ({value})"
    start, end = groups[0]
    head = text[:start] + _longer(text[start : end + 1], name)
    if not text[end + 1 :].lstrip().upper().startswith("VALUES"):
        query = f"({text[end + 1 :].strip()}) AS IGNITETF_ROWS"
        return f"{head} SELECT {value}, IGNITETF_ROWS.* FROM {query}"  # nosec B608
    parts, done = [head], end + 1
    for start, end in groups[1:]:
        parts += [text[done:start], _longer(text[start : end + 1], value)]
        done = end + 1
    return "".join(parts) + text[done:]


def _longer(text: str, item: str) -> str:
    """Put an item before those of a list in parentheses."""
    return f"({item}{', ' if text[1:-1].strip() else ''}{text[1:]}"


def _groups(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each outermost pair of parentheses begins and ends, but for those in quotes."""
    depth, start, quote = 0, 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "(":
            start = at if depth == 0 else start
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                yield start, at
