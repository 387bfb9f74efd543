"""SQL that truncates a time to its minute, week, quarter and so on.

**grains** -> superset

Ignite's SQL parser, H2 1.4.197, does not have DATE_TRUNC.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["TIME_GRAINS"]

_DAY: Final = "CAST(CAST({col} AS DATE) AS TIMESTAMP)"
_YEAR: Final = f"DATEADD('DAY', 1 - DAY_OF_YEAR({{col}}), {_DAY})"
_MINUTES: Final = "60 * HOUR({col}) + MINUTE({col})"

# By duration in ISO 8601; `{col}` is a TIMESTAMP or a DATE. Weeks begin on Monday.
TIME_GRAINS: Final[Mapping[str | None, str]] = MappingProxyType(
    {
        None: "{col}",
        "PT1S": f"DATEADD('SECOND', 60 * ({_MINUTES}) + SECOND({{col}}), {_DAY})",
        "PT1M": f"DATEADD('MINUTE', {_MINUTES}, {_DAY})",
        "PT1H": f"DATEADD('HOUR', HOUR({{col}}), {_DAY})",
        "P1D": _DAY,
        "P1W": f"DATEADD('DAY', 1 - ISO_DAY_OF_WEEK({{col}}), {_DAY})",
        "P1M": f"DATEADD('DAY', 1 - DAY_OF_MONTH({{col}}), {_DAY})",
        "P3M": f"DATEADD('MONTH', 3 * (QUARTER({{col}}) - 1), {_YEAR})",
        "P1Y": _YEAR,
    }
)
