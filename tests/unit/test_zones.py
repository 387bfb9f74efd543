"""Time zones by Java's rules: what is stored and what it means are two sides of one thing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ignitetf.errors import ConfigError, SchemaError
from ignitetf.wire.zones import UTC, zone_of

NAMES = (
    "UTC",
    "Europe/Berlin",
    "Asia/Shanghai",
    "America/St_Johns",
    "Pacific/Chatham",
    "Pacific/Apia",
)
DAY = 86_400_000
# From 1582 to 9999.
times = st.integers(-12_219_292_800_000 + DAY, 253_402_300_799_999 - DAY)


def ms(text):
    return np.array([text], "M8[ms]").astype(np.int64)


def text(values):
    return str(values.astype("M8[ms]")[0])


@settings(deadline=None)
@given(st.sampled_from(NAMES), times)
def test_a_moment_has_one_time_and_a_time_the_later_of_its_moments(name, moment):
    zone = zone_of(name)
    local = zone.timestamps(np.array([moment]))
    again = zone.of_timestamps(local)
    assert zone.timestamps(again) == local
    assert again >= moment


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.integers(-719_162, 2_932_896))
def test_every_day_comes_back_or_is_refused(name, day):
    zone, local = zone_of(name), np.array([day * DAY])
    try:
        stored = zone.of_dates(local)
    except SchemaError:
        lost = str(np.datetime64(day, "D"))
        assert lost == "2011-12-30" or "1582-10-05" <= lost <= "1582-10-14"
    else:
        assert zone.dates(stored) == local


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.integers(0, DAY - 1))
def test_every_time_of_day_comes_back(name, time):
    zone = zone_of(name)
    assert zone.times(zone.of_times(np.array([time]))) == time


# What a JVM says: DATEDIFF of TIMESTAMP literals, and CAST of moments, on nodes in these zones.
@pytest.mark.parametrize(
    ("name", "local", "moment"),
    [
        ("Europe/Berlin", "2024-10-27T02:30", "2024-10-27T01:30"),
        ("Europe/Berlin", "1890-01-01T00:00", "1889-12-31T23:00"),
        ("Europe/Berlin", "2150-07-01T00:00", "2150-06-30T22:00"),
        ("Asia/Shanghai", "1900-06-01T00:00", "1900-05-31T15:54:17"),
        ("UTC", "1457-01-01T00:00", "1457-01-10T00:00"),
        ("UTC", "1582-10-04T00:00", "1582-10-14T00:00"),
        ("UTC", "0001-01-01T00:00", "0000-12-30T00:00"),
        ("GMT+08:00", "2024-05-01T00:00", "2024-04-30T16:00"),
        ("GMT-3:30", "2024-05-01T00:00", "2024-05-01T03:30"),
        ("CTT", "2024-05-01T00:00", "2024-04-30T16:00"),
    ],
)
def test_it_is_as_java_has_it(name, local, moment):
    zone = zone_of(name)
    assert text(zone.of_timestamps(ms(local))) == text(ms(moment))
    assert text(zone.timestamps(ms(moment))) == text(ms(local))


def test_what_does_not_exist_is_refused_by_name():
    with pytest.raises(SchemaError, match=r"2024-03-31 02:30:00 does not exist .* Europe/Berlin"):
        zone_of("Europe/Berlin").of_timestamps(ms("2024-03-31T02:30"))
    with pytest.raises(SchemaError, match="1582-10-10"):
        UTC.of_timestamps(ms("1582-10-10T00:00"))
    with pytest.raises(SchemaError, match="1500-02-29 is a day of the Julian calendar only"):
        UTC.timestamps(ms("1500-03-10T00:00"))
    with pytest.raises(ConfigError, match="Mars/Olympus"):
        zone_of("Mars/Olympus")


def test_what_java_has_for_never_stays():
    never = np.array([(1 << 63) - 1, -(1 << 63), 1 << 58])
    for name in NAMES:
        assert zone_of(name).timestamps(never).tolist() == never.tolist()
