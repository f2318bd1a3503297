"""Moments, dates, clock times and durations as integers in the units of Arrow, and back."""

import datetime as dt
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from qkv.core.cell_kinds import plain_scalar
from qkv.encoders.arrow_columns import from_units, to_python, to_units, units_per_day, with_microseconds

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MOMENT = dt.datetime(2021, 3, 4, 5, 6, 7)
SECONDS = int((MOMENT - dt.datetime(1970, 1, 1)).total_seconds())
CLOCK = 5 * 3600 + 6 * 60 + 7


@pytest.mark.parametrize("unit", list(PER_SECOND))
def test_a_moment_is_counted_from_1970_in_the_unit_of_the_type_and_comes_back(unit):
    type_ = pa.timestamp(unit)
    for value in (MOMENT, "2021-03-04 05:06:07", " 2021-03-04T05:06:07 ", MOMENT.replace(tzinfo=dt.UTC)):
        assert to_units(value, type_) == SECONDS * PER_SECOND[unit]
    assert to_units("2021-03-04T07:06:07+02:00", type_) == SECONDS * PER_SECOND[unit]
    assert to_units(dt.date(2021, 3, 4), type_) == (SECONDS - CLOCK) * PER_SECOND[unit]
    assert from_units(SECONDS * PER_SECOND[unit], type_) == MOMENT
    assert from_units(SECONDS * PER_SECOND[unit], pa.timestamp(unit, "UTC")) == MOMENT.replace(tzinfo=dt.UTC)
    assert units_per_day(type_) == 86_400 * PER_SECOND[unit]


@pytest.mark.parametrize("unit", list(PER_SECOND))
def test_a_duration_is_counted_in_the_unit_of_the_type_and_a_text_of_one_is_days(unit):
    type_, half_a_day = pa.duration(unit), 43_200 * PER_SECOND[unit]
    assert [to_units(value, type_) for value in (dt.timedelta(hours=12), "0.5", 0.5)] == [half_a_day] * 3
    assert to_units(-2, type_) == -4 * half_a_day
    assert from_units(half_a_day, type_) == dt.timedelta(hours=12)
    with pytest.raises(ValueError, match="could not convert"):
        to_units("noon", type_)


@pytest.mark.parametrize("type_", [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")], ids=str)
def test_a_clock_time_is_counted_from_midnight_and_a_moment_gives_its_clock_time(type_):
    for value in (MOMENT.time(), MOMENT, " 05:06:07 "):
        assert to_units(value, type_) == CLOCK * PER_SECOND[type_.unit]
    if type_.unit != "ns":
        assert from_units(CLOCK * PER_SECOND[type_.unit], type_) == MOMENT.time()


def test_a_date_is_counted_in_days_or_milliseconds():
    days = (SECONDS - CLOCK) // 86_400
    assert [to_units(value, pa.date32()) for value in (dt.date(2021, 3, 4), MOMENT, "2021-03-04")] == [days] * 3
    assert to_units(dt.date(2021, 3, 4), pa.date64()) == days * 86_400_000
    assert from_units(days, pa.date32()) == from_units(days * 86_400_000, pa.date64()) == dt.date(2021, 3, 4)
    assert (units_per_day(pa.date32()), units_per_day(pa.date64())) == (1, 86_400_000)


@pytest.mark.parametrize("value", [5, dt.time(1, 2), dt.timedelta(1), None])
def test_what_is_no_moment_is_refused_with_what_to_pass(value):
    with pytest.raises(TypeError, match=r"^value must be a date or timestamp, got .*\. Pass a datetime or an ISO text"):
        to_units(value, pa.timestamp("us"))


@pytest.mark.parametrize(("units", "unit"), [([2_000, None, -1_000], "us"), ([2_000, None, -1], "ns")])
def test_nanoseconds_of_a_table_become_microseconds_if_no_digit_is_lost(units, unit):
    moments = pa.array(units, pa.timestamp("ns", "UTC"))
    table = pa.table({"name": ["a", "b", "c"], "at": moments, "ms": pa.array([1, 2, 3], pa.timestamp("ms"))})
    got = with_microseconds(table)
    assert got.schema.types == [pa.string(), pa.timestamp(unit, "UTC"), pa.timestamp("ms")]
    assert got.column("at").cast(moments.type).to_pylist() == table.column("at").to_pylist()
    assert got.drop_columns("at").equals(table.drop_columns("at"))


@pytest.mark.parametrize(("type_", "wanted"), [
    (pa.timestamp("ns"), dt.datetime(1970, 1, 1, 0, 0, 0, 2)),
    (pa.duration("ns"), dt.timedelta(microseconds=2)),
])  # fmt: skip
def test_nanoseconds_are_rounded_to_the_microseconds_of_python(type_, wanted):
    found = from_units(1_999, type_)
    assert (type(found), found) == (type(wanted), wanted)


def test_a_timestamp_in_nanoseconds_differs_from_what_is_no_timestamp():
    moment, same, other = to_python(pa.array([10**18 + 2, 10**18 + 2, 10**18 + 3], pa.timestamp("ns")))
    assert moment == same
    assert all(moment != each for each in (other, None, 3, moment.date()))


@pytest.mark.parametrize(
    "type_", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.duration("ns")], ids=str
)
def test_cells_keep_their_nanoseconds_in_columns_lists_records_pickles_and_texts(type_):
    cells = pa.array([1_001, None, 86_399_999_999_999], pa.int64()).cast(type_)
    first, none, last = found = to_python(cells)
    assert none is None
    assert str(first).split("+")[0].endswith("0:00:00.000001001")
    assert pickle.loads(pickle.dumps(found)) == found
    assert to_units(first, type_, exact=True) == 1_001
    assert to_units(last, type_, exact=True) == 86_399_999_999_999
    assert to_python(pa.ListArray.from_arrays([0, 3], cells)) == [found]
    assert to_python(pa.StructArray.from_arrays([cells], ["at"])) == [{"at": cell} for cell in found]
    assert to_python(pa.chunked_array([cells.dictionary_encode()])) == found


def test_durations_of_numpy_and_pandas_keep_their_nanoseconds_and_those_of_months_are_no_durations():
    for duration in (np.timedelta64(1_001, "ns"), pd.Timedelta(1_001)):
        assert to_units(plain_scalar(duration), pa.duration("ns")) == 1_001
    with pytest.raises(TypeError, match="must be a duration"):
        to_units(plain_scalar(np.timedelta64(5, "M")), pa.duration("us"))


@pytest.mark.parametrize(("units", "type_", "text"), [
    (10**18, pa.timestamp("us"), "33658-09-27T01:46:40.000000"),
    (2**62, pa.duration("s"), "4611686018427387904 seconds"),
    (86_400, pa.time32("s"), "86400 seconds"),
])  # fmt: skip
def test_cells_that_python_has_no_object_for_are_texts_and_no_averages(units, type_, text):
    stored = pa.int32() if type_.bit_width == 32 else pa.int64()
    assert to_python(pa.array([units, 5], stored).cast(type_))[0] == text
    with pytest.raises(OverflowError):
        from_units(units, type_)
