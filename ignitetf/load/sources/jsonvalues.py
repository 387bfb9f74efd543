"""Values of JSON, none of which is lost or changed.

text -> **values** -> jsonfile, coco, webdataset

Python's decoder keeps the last of two values of one name, and makes 1e400 infinite. Here both are
errors.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, Final

__all__ = ["DECODER", "parse_json"]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
        raise ValueError(f"two values are called {twice!r}")
    return found


def _number(text: str) -> float:
    if math.isinf(found := float(text)):
        raise ValueError(f"no double holds the number {text[:40]}")
    return found


DECODER: Final = json.JSONDecoder(object_pairs_hook=_pairs, parse_float=_number)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a whole text.

    Raises:
        ValueError: It is not JSON, has a name twice in an object, or a number that no double holds.
    """
    return json.loads(text, object_pairs_hook=_pairs, parse_float=_number)
