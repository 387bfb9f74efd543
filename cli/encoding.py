"""Tables in every encoding: where an output has no `─`, its rules are of `-`.

lines -> **rules** -> bytes of the output

Any other character that the encoding lacks is a value, and told as an error.
"""

from __future__ import annotations

import codecs
import io
from typing import IO, Final

__all__ = ["rules_in_any_encoding"]

_RULE: Final = "─"
_HANDLER: Final = "ignitetf.rules"


def rules_in_any_encoding(out: IO[str]) -> None:
    """Have the rules of tables written as `-` where the encoding of an output has no `─`."""
    if not isinstance(out, io.TextIOWrapper) or out.errors != "strict":
        return
    try:
        _RULE.encode(out.encoding)
    except UnicodeEncodeError:
        codecs.register_error(_HANDLER, _plain_rule)
        out.reconfigure(errors=_HANDLER)


def _plain_rule(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    rest = error.object[error.start :]
    if not (count := len(rest) - len(rest.lstrip(_RULE))):
        raise error
    return "-" * count, error.start + count
