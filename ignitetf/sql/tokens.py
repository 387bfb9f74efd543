"""Splits SQL text into tokens of Ignite's H2 dialect.

text -> **tokens** -> split, conditions of reads

Quotes and comments are tokens of their own, so a search for a word, a parameter or a semicolon
finds none inside them. If the text ends within quotes or a comment, the last token is of the kind
`open`.

Source: H2 1.4.197, `Parser.initialize` (comments end at a line's end and do not nest, names may be
in backquotes, texts in `$$`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

__all__ = ["Token", "count_parameters", "first_word", "is_query", "reads_only", "tokens"]

Kind = Literal[
    "space", "comment", "text", "dollar", "name", "word", "number", "param", "mark", "open"
]

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<comment>--[^\r\n]* | //[^\r\n]* | /\*.*?\*/)
      | (?P<text>'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")*" | `[^`]*`)
      | (?P<dollar>(?<!\S)\$\$.*?\$\$)
      | (?P<open>['"`].* | /\*.* | (?<!\S)\$\$.*)
      | (?P<number>0[xX][0-9a-fA-F]+ | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d][\w$#]*)
      | (?P<param>\?\d*)
      | (?P<mark>.)""",
    re.DOTALL | re.VERBOSE,
)


_QUERIES: Final = frozenset(("SELECT", "WITH", "EXPLAIN", "SHOW", "VALUES", "TABLE", "FROM", "("))


class Token(NamedTuple):
    """One token of SQL.

    Attributes:
        kind: `space`, `comment`, `text` (in single quotes), `dollar` (a text in `$$`), `name`
            (quoted), `word`, `number`, `param` (`?`), `mark` (one other character) or `open`
            (from a quote or the beginning of a comment to the end of the whole text).
        text: The token's text, unchanged.
        start: Its position.
    """

    kind: Kind
    text: str
    start: int

    @property
    def identifier(self) -> str | None:
        """The name that a word or a quoted name denotes; None for other kinds.

        Words are converted to upper case, as in SQL.
        """
        if self.kind == "word":
            return self.text.upper()
        if self.kind != "name":
            return None
        if self.text[0] == "`":
            return self.text[1:-1].upper()
        return self.text[1:-1].replace('""', '"')


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text; joined, they are the text."""
    for match in _TOKEN.finditer(text):
        yield Token(match.lastgroup, match[0], match.start())  # type: ignore[arg-type]


def count_parameters(text: str) -> int | None:
    """Count a statement's parameters; None if they are numbered or quotes are left open."""
    found = list(tokens(text))
    if any(t.kind == "open" or (t.kind == "param" and len(t.text) > 1) for t in found):
        return None
    return sum(t.kind == "param" for t in found)


def first_word(text: str) -> str:
    """Return a statement's first word in upper case, or its first token if that is not a word."""
    for token in tokens(text):
        if token.kind not in ("space", "comment"):
            return token.identifier or token.text
    return ""


def is_query(statement: str) -> bool:
    """Return whether a statement only queries rows and changes nothing."""
    return first_word(statement) in _QUERIES


def reads_only(text: str) -> bool:
    """Return whether a text is a single SELECT or EXPLAIN SELECT without locks."""
    found = [t for t in tokens(text) if t.kind not in ("space", "comment")]
    if any(t.kind in ("open", "param") or t.text == ";" for t in found):
        return False
    words = [t.text.upper() if t.kind == "word" else t.text for t in found]
    if words[:1] == ["EXPLAIN"]:
        words = words[3:] if words[1:3] == ["PLAN", "FOR"] else words[1:]
    locks = any(pair == ("FOR", "UPDATE") for pair in itertools.pairwise(words))
    return words[:1] == ["SELECT"] and not locks
