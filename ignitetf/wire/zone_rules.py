"""`Rules`: when the clocks of a time zone are changed, as Java knows it.

tzdata -> **zone rules** -> zones

The rules come from the package `tzdata`, so that they are the same on every machine. Two things are
different in Java: before 1900 a zone has the standard time of today, and some old names are still
known to it.

Source: OpenJDK, `sun.util.calendar.ZoneInfo`, `ZoneInfoFile`, `ZoneId.SHORT_IDS`.
"""

from __future__ import annotations

import datetime
import functools
import importlib.resources
import re
import zoneinfo
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError

__all__ = ["Rules", "rules_of"]

Millis = NDArray[np.int64]

_DAY_S: Final = 86_400
# No zone has changed its clocks and changed them back within so many days.
_STEP_S: Final = 4 * _DAY_S
_1900_S: Final = -2_208_988_800
_2100_S: Final = 4_102_444_800
# The calendar repeats after 400 years, and so do the rules.
_CYCLE_S: Final = 146_097 * _DAY_S
_CYCLE: Final = _CYCLE_S * 1000
_UTC: Final = datetime.UTC
_NAME: Final = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*\Z")
_OFFSET: Final = re.compile(r"GMT([+-])(\d{1,2})(?::?(\d{2}))?\Z")
_OTHER_NAMES: Final = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago",
    "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "Z": "UTC",
}  # fmt: skip


class Rules:
    """The changes of one zone's clocks.

    Args:
        info: The zone.
    """

    def __init__(self, info: datetime.tzinfo) -> None:
        self._info = info
        first, other = self._offset(_2100_S), self._offset(_2100_S + 180 * _DAY_S)
        begins, offsets = self._changes(_1900_S, _2100_S)
        # Before 1900, the standard time of today.
        self._near = _Table(np.append(_1900_S, begins), np.append(min(first, other), offsets))

    @property
    def is_utc(self) -> bool:
        """Whether the zone is UTC at all times."""
        return not self._near.offsets.any()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rules) and self._near == other._near

    def __hash__(self) -> int:
        return hash(self._near.offsets.tobytes())

    def offsets(self, moments: Millis) -> Millis:
        """Return how many milliseconds the clocks are ahead of UTC at these moments."""
        late = moments >= _2100_S * 1000
        if not late.any():
            return self._near.offsets_at(moments)
        folded = np.where(late, (moments - _2100_S * 1000) % _CYCLE + _2100_S * 1000, moments)
        return np.where(late, self._far.offsets_at(folded), self._near.offsets_at(moments))

    def moments(self, local: Millis) -> Millis:
        """Return the moments at which clocks show these times; the later one of two.

        A time that is left out is taken as if the clocks had not yet been put forward.
        """
        late = local >= _2100_S * 1000
        found = self._near.moments_of(local)
        if not late.any():
            return found
        folded = np.where(late, (local - _2100_S * 1000) % _CYCLE + _2100_S * 1000, local)
        return np.where(late, self._far.moments_of(folded) + (local - folded), found)

    @functools.cached_property
    def late_days(self) -> tuple[Millis, Millis]:
        """When days begin that have no midnight, ascending, and the midnight of each."""
        return self._near.late_days

    @functools.cached_property
    def _far(self) -> _Table:
        begins, offsets = self._changes(_2100_S, _2100_S + _CYCLE_S + _DAY_S)
        return _Table(begins, offsets)

    def _offset(self, moment: int) -> int:
        found = datetime.datetime.fromtimestamp(moment, self._info).utcoffset()
        return 0 if found is None else found // datetime.timedelta(seconds=1)

    def _changes(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when clocks are changed in a time, in seconds, and the offsets around these."""
        begins, offsets = [], [self._offset(first)]
        for there in range(first + _STEP_S, end + _STEP_S, _STEP_S):
            if self._offset(there) == offsets[-1]:
                continue
            before, after = there - _STEP_S, there
            while after - before > 1:
                middle = (before + after) // 2
                if self._offset(middle) == offsets[-1]:
                    before = middle
                else:
                    after = middle
            begins.append(after)
            offsets.append(self._offset(there))
        return np.array(begins, np.int64), np.array(offsets, np.int64)


class _Table:
    """Changes of clocks: when each is, and the offsets before the first and after each."""

    def __init__(self, begins: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
        self.begins, self.offsets = begins * 1000, offsets * 1000
        self._local = self.begins + self.offsets[1:]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Table)
            and np.array_equal(self.begins, other.begins)
            and np.array_equal(self.offsets, other.offsets)
        )

    __hash__ = None  # type: ignore[assignment]

    def offsets_at(self, moments: Millis) -> Millis:
        """Return the offset at each moment."""
        found: Millis = self.offsets[np.searchsorted(self.begins, moments, "right")]
        return found

    def moments_of(self, local: Millis) -> Millis:
        """Return the moment of each local time."""
        found: Millis = local - self.offsets[np.searchsorted(self._local, local, "right")]
        return found

    @property
    def late_days(self) -> tuple[Millis, Millis]:
        """See `Rules`; days that are left out as a whole do not begin."""
        stops, resumes = self.begins + self.offsets[:-1], self._local
        day = _DAY_S * 1000
        midnights = -(-stops // day) * day
        late = (midnights < resumes) & (resumes - stops < day)
        return resumes[late], midnights[late]


@functools.lru_cache(maxsize=64)
def rules_of(name: str) -> Rules:
    """Return the rules of a zone by Java's name for it; raises ConfigError if it is unknown."""
    if found := _OFFSET.match(name):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        delta = datetime.timedelta(minutes=-minutes if found[1] == "-" else minutes)
        return Rules(datetime.timezone(delta))
    if name in ("UTC", "GMT", "Etc/UTC", "Z"):
        return Rules(_UTC)
    return Rules(_zone_info(name))


def _zone_info(name: str) -> zoneinfo.ZoneInfo:
    known = _OTHER_NAMES.get(name, name)
    if _NAME.match(known):
        place = importlib.resources.files("tzdata").joinpath("zoneinfo", *known.split("/"))
        if place.is_file():
            with place.open("rb") as file:
                return zoneinfo.ZoneInfo.from_file(file, key=known)
    raise ConfigError(
        f"the time zone {name!r} of the nodes is not known",
        hint="start the nodes with -Duser.timezone=UTC, or 'pip install -U tzdata'",
    )
