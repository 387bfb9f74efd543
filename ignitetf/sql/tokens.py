"""The tokens of SQL text, as Ignite's H2 dialect has them.

text -> **tokens** -> split, conditions of reads

What stands in quotes or in a comment is told from what does not; so whoever looks for a word, a
parameter or a semicolon finds no false one. Text that ends within quotes or a comment gives a last
token of the kind `open`.

Source: H2 1.4.197, `Parser.initialize` (comments end at a line's end and do not nest, names may
stand in backquotes, texts in `$$`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

__all__ = ["Token", "count_parameters", "first_word", "is_query", "tokens"]

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
    """A piece of SQL.

    Attributes:
        kind: `space`, `comment`, `text` (in single quotes), `dollar` (a text in `$$`), `name`
            (quoted), `word`, `number`, `param` (`?`), `mark` (one other character) or `open`
            (from a quote or the beginning of a comment to the end of the whole text).
        text: As it stands there.
        start: Where it begins.
    """

    kind: Kind
    text: str
    start: int

    @property
    def identifier(self) -> str | None:
        """The name that a word or a quoted name stands for; None of other kinds.

        Words are in upper case, as SQL has them.
        """
        if self.kind == "word":
            return self.text.upper()
        if self.kind != "name":
            return None
        if self.text[0] == "`":
            return self.text[1:-1].upper()
        return self.text[1:-1].replace('""', '"')


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text, which together are the text."""
    for match in _TOKEN.finditer(text):
        yield Token(match.lastgroup, match[0], match.start())  # type: ignore[arg-type]


def count_parameters(text: str) -> int | None:
    """How many values a statement takes; None where they are numbered, or quotes are open."""
    found = list(tokens(text))
    if any(t.kind == "open" or (t.kind == "param" and len(t.text) > 1) for t in found):
        return None
    return sum(t.kind == "param" for t in found)


def first_word(text: str) -> str:
    """The word a statement begins with, in upper case; another token as it stands."""
    for token in tokens(text):
        if token.kind not in ("space", "comment"):
            return token.identifier or token.text
    return ""


def is_query(statement: str) -> bool:
    """Whether a statement asks for rows, and changes nothing."""
    return first_word(statement) in _QUERIES
