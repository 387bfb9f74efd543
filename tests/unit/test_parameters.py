"""SQL parameters: what goes beside a statement is the value, or an error."""

import datetime as dt
import decimal
import enum
import struct
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyignite.datatypes import DecimalObject, UUIDObject
from pyignite.stream import BinaryStream

from ignitetf.errors import ConfigError
from ignitetf.wire.requests import encode_parameter, encode_string, parameter_list

pytestmark = pytest.mark.core

ZONE = dt.UTC


def pyignite(kind, value):
    stream = BinaryStream(None)
    kind.from_python(stream, value)
    return stream.getvalue()


def read(kind, data):
    stream = BinaryStream(None, bytearray(data))
    with decimal.localcontext(decimal.Context(prec=2000)):
        return kind.to_python(kind.parse(stream).from_buffer_copy(data))


@given(st.uuids())
def test_uuids_as_pyignite_writes_them(value):
    assert encode_parameter(value) == pyignite(UUIDObject, value)


@given(st.decimals(allow_nan=False, allow_infinity=False) | st.integers().map(decimal.Decimal))
def test_decimals_as_pyignite_reads_them(value):
    assert read(DecimalObject, encode_parameter(value)) == value


@given(st.datetimes(), st.integers(-14 * 60, 14 * 60))
def test_moments_are_in_utc(value, minutes):
    code, millis, nanos = struct.unpack("<bqi", encode_parameter(value))
    assert code == 33
    assert 0 <= nanos < 1_000_000
    moment = dt.timedelta(milliseconds=millis, microseconds=nanos // 1000)
    assert dt.datetime(1970, 1, 1) + moment == value
    zoned = value.replace(tzinfo=dt.timezone(dt.timedelta(minutes=minutes)))
    shifted = dt.timedelta(minutes=minutes)
    if dt.datetime.min + abs(shifted) < value < dt.datetime.max - abs(shifted):
        assert encode_parameter(zoned) == encode_parameter(value - shifted)


@given(st.dates())
def test_dates_begin_at_midnight_of_utc(value):
    body = encode_parameter(value)
    (millis,) = struct.unpack("<q", body[-8:])
    assert body[0] == 254  # a java.sql.Date
    assert dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=millis) == dt.datetime.combine(
        value, dt.time()
    )


@given(st.integers(-128, 127))
def test_scalars_of_numpy_are_the_values_they_hold(value):
    for kind in ("i1", "i4", "i8", "f4", "f8"):
        scalar = np.dtype(kind).type(value)
        assert encode_parameter(scalar) == encode_parameter(scalar.item())
    assert encode_parameter(np.str_(value)) == encode_parameter(str(value))
    assert encode_parameter(np.bool_(value)) == encode_parameter(bool(value))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_datetime64_is_a_moment(unit):
    value = np.datetime64("1969-12-31T23:59:58", unit)
    assert encode_parameter(value) == encode_parameter(dt.datetime(1969, 12, 31, 23, 59, 58))
    assert encode_parameter(np.datetime64("2020-01-02")) == encode_parameter(dt.date(2020, 1, 2))


def test_numbers_of_a_class_of_their_own_are_numbers():
    """A test of membership in a range would take years for them."""
    few = enum.IntEnum("few", {"LOW": -(2**63), "ONE": 1, "HIGH": 2**63 - 1})
    for member in few:
        assert encode_parameter(member) == encode_parameter(int(member))
    with pytest.raises(ConfigError, match="64 bits"):
        encode_parameter(enum.IntEnum("many", {"MOST": 2**63}).MOST)


def test_moments_of_pandas_keep_their_nanoseconds():
    pandas = pytest.importorskip("pandas")
    for text in ("2020-01-01 00:00:00.123456789", "1969-12-31 23:59:59.999999999"):
        moment = pandas.Timestamp(text)
        same = encode_parameter(np.datetime64(text))
        assert encode_parameter(moment) == encode_parameter(moment.tz_localize("UTC")) == same
    with pytest.raises(ConfigError, match="not a moment"):
        encode_parameter(pandas.NaT)


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        2**70,
        np.uint64(2**63),
        decimal.Decimal("NaN"),
        decimal.Decimal("Infinity"),
        decimal.Decimal("1e999999"),
        "\ud800",
        dt.timedelta(days=1),
        dt.timedelta(seconds=-1),
        dt.time(1, tzinfo=ZONE),
        np.datetime64("NaT"),
        np.datetime64("3000-01-01T00:00:00"),
        np.datetime64("20000-01-01"),
        np.datetime64("-0100-01-01"),
        np.complex64(1),
        np.longdouble(1),
        np.timedelta64(1, "s"),
        1j,
        [1],
        (1, 2),
        {},
        object(),
        int,
        np.arange(3),
    ],
)
def test_what_sql_cannot_hold_is_refused(value):
    with pytest.raises(ConfigError, match="parameter"):
        encode_parameter(value)


@pytest.mark.parametrize(
    "params", ["a", b"a", {1}, {"a": 1}, 5, uuid.UUID(int=1), np.zeros((2, 2))]
)
def test_what_is_no_list_of_values_is_refused(params):
    with pytest.raises(ConfigError, match=r"where_params is .* not a list of values"):
        parameter_list(params, "where_params")


def test_lists_of_values():
    assert parameter_list(None) == ()
    assert parameter_list(np.arange(2)) == (0, 1)
    assert parameter_list(x for x in "ab") == ("a", "b")


def test_a_text_that_utf_8_cannot_hold_is_refused():
    for text in ("\udc80", "a\ud800"):
        with pytest.raises(ConfigError, match="surrogate"):
            encode_string(text)
