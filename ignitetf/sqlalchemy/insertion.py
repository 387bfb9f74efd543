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

    Args:
        text: `INSERT INTO T (A, B) VALUES (?, ?), (?, ?)`, or the same with a query.
        name: Of the column, quoted where it needs that.
        value: Its expression.
    """
    groups = list(_groups(text))
    if not groups:
        return f"{text.replace('DEFAULT VALUES', '').rstrip()} ({name}) VALUES ({value})"
    _, end = groups[0]
    head, rest = f"{_longer(text[:end], name)})", text[end + 1 :]
    if not rest.lstrip().upper().startswith("VALUES"):
        query = f"({rest.strip()}) AS IGNITETF_ROWS"
        return f"{head} SELECT IGNITETF_ROWS.*, {value} FROM {query}"  # nosec B608
    parts, done = [head], end + 1
    for _, end in groups[1:]:
        parts.append(f"{_longer(text[done:end], value)})")
        done = end + 1
    return "".join(parts) + text[done:]


def _longer(text: str, item: str) -> str:
    """Append an item to a list whose closing parenthesis is cut off."""
    return f"{text}{'' if text.rstrip().endswith('(') else ', '}{item}"


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
