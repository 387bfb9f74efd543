"""`Zone`: converts between the moments that a node stores and the calendar of its time zone.

columns, encoders, requests -> **zones** -> tzdata

In Ignite and in Java a DATE, a TIME and a TIMESTAMP are moments: milliseconds since 1970 in UTC.
SQL converts between moments and the calendar of the node's time zone, in both directions. In this
project a time is what SQL shows, encoded as milliseconds since 1970 as if the calendar were that of
UTC. So it does not depend on a zone. The calendar is Gregorian, also before 1582, where Java uses
the Julian one: the date 1457-01-01 stays 1457-01-01. Times before year 1 are not converted.

When clocks are put forward, some local times are skipped. A skipped TIMESTAMP cannot be stored. A
day whose midnight is skipped begins with its first moment. When clocks are put back, some local
times occur twice; each means the later moment, as in Java.

The rules of a zone (`_Rules`) are read from the package `tzdata`, so that they are the same on
every machine. Java differs in two points, and this module follows Java: before 1900 a zone has
today's standard time, and some old names are still accepted.

Source: OpenJDK, `sun.util.calendar.ZoneInfo`, `ZoneInfoFile`, `ZoneId.SHORT_IDS`.
"""

from __future__ import annotations

import datetime
import functools
import importlib.resources
import re
import zoneinfo
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ignitetf.errors import ConfigError, SchemaError

__all__ = ["UTC", "Zone", "as_calendar", "as_sql_days", "zone_of"]

Millis = NDArray[np.int64]

_DAY_S: Final = 86_400
# No zone has changed its clocks and changed them back within this time.
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


class _Rules:
    """The changes of one zone's clocks.

    Args:
        info: The zone.
    """

    def __init__(self, info: datetime.tzinfo) -> None:
        self._info = info
        first, other = self._offset(_2100_S), self._offset(_2100_S + 180 * _DAY_S)
        begins, offsets = self._changes(_1900_S, _2100_S)
        # Before 1900, Java uses today's standard time.
        self._near = _Table(np.append(_1900_S, begins), np.append(min(first, other), offsets))

    @property
    def is_utc(self) -> bool:
        """True if the zone is UTC at all times."""
        return not self._near.offsets.any()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Rules) and self._near == other._near

    def __hash__(self) -> int:
        return hash(self._near.offsets.tobytes())

    def offsets(self, moments: Millis) -> Millis:
        """Return how many milliseconds the clocks are ahead of UTC at these moments."""
        late = moments >= _2100_S * 1000
        if not late.any():
            return self._near.offsets_at(moments)
        folded = np.where(late, (moments - _2100_S * 1000) % _CYCLE + _2100_S * 1000, moments)
        return np.where(
            late, self._rules_after_2100.offsets_at(folded), self._near.offsets_at(moments)
        )

    def moments(self, local: Millis) -> Millis:
        """Return the moments at which clocks show these times; the later one of two.

        A skipped time is converted as if the clocks had not yet been put forward.
        """
        late = local >= _2100_S * 1000
        found = self._near.moments_of(local)
        if not late.any():
            return found
        folded = np.where(late, (local - _2100_S * 1000) % _CYCLE + _2100_S * 1000, local)
        return np.where(late, self._rules_after_2100.moments_of(folded) + (local - folded), found)

    @functools.cached_property
    def late_days(self) -> tuple[Millis, Millis]:
        """The first local time of each day without a midnight, ascending, and its midnight."""
        return self._near.late_days

    @functools.cached_property
    def _rules_after_2100(self) -> _Table:
        begins, offsets = self._changes(_2100_S, _2100_S + _CYCLE_S + _DAY_S)
        return _Table(begins, offsets)

    def _offset(self, moment: int) -> int:
        found = datetime.datetime.fromtimestamp(moment, self._info).utcoffset()
        return 0 if found is None else found // datetime.timedelta(seconds=1)

    def _changes(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when clocks change between two moments, and the offsets before and after each."""
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
    """Changes of clocks: the moment of each, and the offsets before the first and after each."""

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
        """See `_Rules`; days that are skipped as a whole are not included."""
        stops, resumes = self.begins + self.offsets[:-1], self._local
        day = _DAY_S * 1000
        midnights = -(-stops // day) * day
        late = (midnights < resumes) & (resumes - stops < day)
        return resumes[late], midnights[late]


@functools.lru_cache(maxsize=64)
def _rules_of(name: str) -> _Rules:
    """Return the rules of a zone by Java's name for it; raises ConfigError if it is unknown."""
    if found := _OFFSET.match(name):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        delta = datetime.timedelta(minutes=-minutes if found[1] == "-" else minutes)
        return _Rules(datetime.timezone(delta))
    if name in ("UTC", "GMT", "Etc/UTC", "Z"):
        return _Rules(_UTC)
    return _Rules(_zone_info(name))


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


_DAY: Final = 86_400_000
# 1582-10-15, the first day of the Gregorian calendar; the one before it was 1582-10-04.
_GREGORIAN: Final = -141_427 * _DAY
_LAST_JULIAN: Final = -141_438 * _DAY
# 0001-01-01 in the Gregorian and in the Julian calendar. Python has no earlier dates.
_FIRST: Final = -719_162 * _DAY
_FIRST_JULIAN: Final = -719_164 * _DAY
# Later than any real time; Java writes Long.MAX_VALUE for "never".
_LIMIT: Final = 1 << 49
# Marks that are added to times of converted Java objects. _CALENDAR marks a time that is already on
# the calendar and not a moment (LocalDate). _SQL_DAY marks a java.sql.Date, whose time of day is
# ignored.
_CALENDAR: Final = 1 << 60
_SQL_DAY: Final = 1 << 61
_MARKED: Final = _CALENDAR - _LIMIT


class Zone:
    """A time zone, by the rules of Java.

    Attributes:
        name: Its name.

    Args:
        name: Its name.
        rules: When its clocks are changed.
    """

    def __init__(self, name: str, rules: _Rules) -> None:
        self.name = name
        self._rules = rules
        self._is_utc = rules.is_utc

    def __repr__(self) -> str:
        return f"<Zone {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Zone) and self._rules == other._rules

    def __hash__(self) -> int:
        return hash(self._rules)

    def __reduce__(self) -> tuple[Any, ...]:
        return zone_of, (self.name,)

    # From stored moments to times on the calendar

    def timestamps(self, moments: Millis) -> Millis:
        """Return the times on the calendar that SQL shows for these moments.

        Raises:
            SchemaError: A day exists only in the Julian calendar; `record` is its index.
        """
        if self._is_plain(moments):
            return moments
        if _are_times(moments, _GREGORIAN + _DAY):
            return moments + self._rules.offsets(moments)
        moments, on_calendar, days = _unmarked(moments)
        is_time = ~on_calendar & (moments > -_LIMIT) & (moments < _LIMIT)
        out = moments.copy()
        local = moments[is_time] + self._rules.offsets(moments[is_time])
        if len(local) and int(local.min()) < _GREGORIAN:
            old = np.flatnonzero((local < _GREGORIAN) & (local >= _FIRST_JULIAN))
            local[old] = _gregorian(local[old], np.flatnonzero(is_time)[old])
        out[is_time] = local
        if days.any():
            out[days] = self._midnights(out[days]) // _DAY * _DAY
        return out

    def dates(self, moments: Millis) -> Millis:
        """Like `timestamps`, for days: midnight, even where clocks skip midnight on that day."""
        found = self.timestamps(moments)
        return found if found is moments else self._midnights(found)

    def times(self, moments: Millis) -> Millis:
        """Return the times of day, as milliseconds, that SQL shows for these moments."""
        local = moments if self._is_utc else moments + self._rules.offsets(moments)
        if len(local) and (int(local.min()) < 0 or int(local.max()) >= _DAY):
            return local % _DAY
        return local

    # From times on the calendar to stored moments

    def of_timestamps(self, local: Millis) -> Millis:
        """Return the moments that SQL shows as these times.

        Raises:
            SchemaError: A time does not exist; `record` is its index.
        """
        if self._is_plain(local):
            return local
        found = self._moments(local)
        if (left_out := np.flatnonzero(self.timestamps(found) != local)).size:
            record = int(left_out[0])
            raise self._missing_time_error(int(local[record]), record)
        return found

    def of_dates(self, local: Millis) -> Millis:
        """Like `of_timestamps`, but accept the midnight of a day that begins later."""
        if self._is_plain(local):
            return local
        found = self._moments(local)
        if (left_out := np.flatnonzero(self.dates(found) != local)).size:
            record = int(left_out[0])
            raise self._missing_time_error(int(local[record]), record)
        return found

    def of_times(self, of_day: Millis) -> Millis:
        """Return the moments that SQL shows as these times of day."""
        return of_day if self._is_utc else self._rules.moments(of_day)

    def plain_times(self, of_day: bool) -> tuple[int, int] | None:
        """Return the range of times that are stored unchanged, as the same number.

        Args:
            of_day: True if these are times of day, and not days or timestamps.

        Returns:
            The smallest and the largest; None if there is no such range.
        """
        if not self._is_utc:
            return None
        return (0, _DAY - 1) if of_day else (_GREGORIAN, _MARKED - 1)

    def of_one(self, local: int, convert: str) -> int:
        """Return the moment of a single time; `convert` is the name of one of the methods above."""
        if self._is_utc and local >= _GREGORIAN:
            return local
        return int(getattr(self, convert)(np.array([local], np.int64))[0])

    def _is_plain(self, values: Millis) -> bool:
        """Return True if these values are the same as moments and on the calendar."""
        if not len(values):
            return True
        return self._is_utc and int(values.min()) >= _GREGORIAN and int(values.max()) < _MARKED

    def _moments(self, local: Millis) -> Millis:
        if _are_times(local, _GREGORIAN):
            return self._rules.moments(local)
        is_time = (local > -_LIMIT) & (local < _LIMIT)
        times = local[is_time]
        if len(times) and int(times.min()) < _GREGORIAN:
            old = np.flatnonzero((times < _GREGORIAN) & (times >= _FIRST))
            times[old] = _julian(times[old])
        out = local.copy()
        out[is_time] = self._rules.moments(times)
        return out

    def _midnights(self, local: Millis) -> Millis:
        begins, midnights = self._rules.late_days
        if not len(begins):
            return local
        at = np.minimum(np.searchsorted(begins, local), len(begins) - 1)
        return np.where(begins[at] == local, midnights[at], local)

    def _missing_time_error(self, local: int, record: int) -> SchemaError:
        text = str(np.datetime64(local, "ms")).replace("T", " ").removesuffix(".000")
        if _LAST_JULIAN < local < _GREGORIAN:
            return SchemaError(
                f"{text} is not a day in Java: 1582-10-15 follows 1582-10-04",
                hint="store it as text",
                record=record,
            )
        return SchemaError(
            f"{text} does not exist in the time zone of the nodes, {self.name}: clocks were put"
            " forward",
            hint="run the nodes with -Duser.timezone=UTC, which skips no times, or store it as"
            " text",
            record=record,
        )


def _are_times(values: Millis, first: int) -> bool:
    """Return True if all values are times of the Gregorian calendar, without a mark."""
    return int(values.min()) >= first and int(values.max()) < _LIMIT


def as_calendar(local: int) -> int:
    """Return a time on the calendar with the mark that prevents a conversion by zone."""
    return local + _CALENDAR if -_LIMIT < local < _LIMIT else local


def as_sql_days(moments: Millis) -> Millis:
    """Return moments with the mark that only their days count."""
    is_time = (moments > -_LIMIT) & (moments < _LIMIT)
    return moments + is_time * _SQL_DAY


def _unmarked(values: Millis) -> tuple[Millis, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return times without marks, and which of them had each mark."""
    on_calendar = np.abs(values - _CALENDAR) < _LIMIT
    days = np.abs(values - _SQL_DAY) < _LIMIT
    if int(values.max()) < _MARKED:
        return values, on_calendar, days
    return values - on_calendar * _CALENDAR - days * _SQL_DAY, on_calendar, days


# Before 1582-10-15


def _gregorian(local: Millis, records: NDArray[np.int64]) -> Millis:
    """Convert times of the Julian calendar to the same dates of the Gregorian calendar."""
    days = local // _DAY
    c = days + 2_440_588 + 32_082
    d = (4 * c + 3) // 1461
    e = c - 1461 * d // 4
    m = (5 * e + 2) // 153
    day, month, year = e - (153 * m + 2) // 5 + 1, m + 3 - 12 * (m // 10), d - 4800 + m // 10
    months = (year - 1970) * 12 + month - 1
    first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
    found = first + day - 1
    if (
        wrong := np.flatnonzero(found.astype("M8[D]").astype("M8[M]").astype(np.int64) != months)
    ).size:
        at = int(wrong[0])
        raise SchemaError(
            f"{int(year[at]):04}-02-29 is a day of the Julian calendar only, by which Java counts"
            " before 1582-10-15",
            hint="CAST it to VARCHAR in SQL",
            record=int(records[at]),
        )
    out: Millis = found * _DAY + local % _DAY
    return out


def _julian(local: Millis) -> Millis:
    """Convert times of the Gregorian calendar to the same dates of the Julian calendar."""
    days = (local // _DAY).astype("M8[D]")
    months = days.astype("M8[M]")
    day = (days - months.astype("M8[D]")).astype(np.int64) + 1
    month = months.astype(np.int64) % 12 + 1
    year = days.astype("M8[Y]").astype(np.int64) + 1970
    a = (14 - month) // 12
    y, m = year + 4800 - a, month + 12 * a - 3
    found = day + (153 * m + 2) // 5 + 365 * y + y // 4 - 32_083 - 2_440_588
    out: Millis = found * _DAY + local % _DAY
    return out


@functools.lru_cache(maxsize=64)
def zone_of(name: str) -> Zone:
    """Return a time zone by Java's name for it; raises ConfigError if it is unknown."""
    return Zone(name, _rules_of(name))


UTC: Final = zone_of("UTC")
