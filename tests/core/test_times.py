"""Times in texts: whatever their format and zone, SQL and Python read the moment that was written, or nothing."""

import datetime as dt
import random
import zoneinfo

import numpy as np
import pytest

from qkv.core.nanoseconds import NanosecondDuration, with_nanoseconds
from qkv.core.times import ABBREVIATIONS, candidate_formats, format_sql, iso_sql, parse_date, read_time
from qkv.estimators.input_columns import parse_dates

duckdb = pytest.importorskip("duckdb")

DATES = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%y", "%d %b %Y", "%B %d, %Y", "%d-%b-%y")
CLOCKS = (" %H:%M", " %H:%M:%S", "T%H:%M:%S", " %I:%M %p", " %I:%M:%S%p", " %H:%M:%S.%f")
ZONES = (
    "",
    "Z",
    " UTC",
    "+02:00",
    " +0200",
    " -05",
    " UTC+1",
    "GMT-0330",
    " CET",
    " PST",
    " Europe/Berlin",
    " America/Lima",
)
REST = (" approx.", " IST", " BST", " ?", " or later", " (local)", " 5", " PM PM", " Mars/Phobos", " +99:00", "+1:")


def offset_of(zone: str, moment: dt.datetime) -> dt.timedelta:
    """Return the offset of a zone by tables that share nothing with the package."""
    known = {"": 0, "Z": 0, "UTC": 0, "+02:00": 120, "+0200": 120, "-05": -300, "UTC+1": 60, "GMT-0330": -210}
    known |= {"CET": 60, "PST": -480}
    if zone.strip() in known:
        return dt.timedelta(minutes=known[zone.strip()])
    return zoneinfo.ZoneInfo(zone.strip()).utcoffset(moment) or dt.timedelta()


def drawn(count: int, seed: int = 40) -> list[tuple[str, str, str, dt.datetime]]:
    """Return texts of times with their format, zone and moment in UTC."""
    draw, out = random.Random(seed), []
    for _ in range(count):
        moment = dt.datetime(2000, 1, 13, 9) + dt.timedelta(draw.randint(0, 9000), draw.randint(0, 5 * 3600))
        if moment.month in (3, 10):
            continue  # hours that the clock skips or repeats
        clock, zone = draw.choice(("", *CLOCKS)), draw.choice(ZONES)
        zone = zone if clock else ""
        form = draw.choice(DATES) + clock
        moment = moment.replace(second=moment.second if "%S" in form else 0)
        moment = moment if clock else moment.replace(hour=0, minute=0)
        text = moment.strftime(form) + zone
        out.append((text, form, zone, moment - offset_of(zone, moment)))
    return out


def sql_readings(pairs: list[tuple[str, str]]) -> list[dt.datetime | None]:
    """Return the moments in UTC that SQL reads in texts of formats."""
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    found = []
    for text, form in pairs:
        cell = "'" + text.replace("'", "''") + "'"
        zoned = not form or "%z" in form
        either = (iso_sql(cell, "timestamptz"), iso_sql(cell, "timestamp")) if not form else (format_sql(cell, form),)
        read = ", ".join(f"timezone('UTC', {each})" if zoned and not n else each for n, each in enumerate(either))
        found.append(f"coalesce({read})::timestamp" if len(either) > 1 else f"({read})::timestamp")
    ((*out,),) = connection.execute("select " + ", ".join(found)).fetchall()
    return out


def utc(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo else moment


def test_a_time_is_read_with_am_or_pm_and_its_zone_by_sql_python_and_estimators():
    cases = drawn(160)
    formats = [[form for form in ["", *candidate_formats([text])] if fits(text, form)] for text, *_ in cases]
    chosen = []
    for (text, form, zone, moment), found in zip(cases, formats, strict=True):
        same = [each for each in found if utc(parse_date(text, each)) == moment]
        assert same, (text, form, zone, found)
        assert len({utc(parse_date(text, each)) for each in found}) == 1 or "%m" in form, text
        chosen.append((text, same[0]))
        numbers, *_ = parse_dates(np.array([text], object), same[0] or "%z" * bool(zone))
        assert numbers[0] == (moment - dt.datetime(1970, 1, 1)) / dt.timedelta(microseconds=1), text
    wanted = [moment for *_, moment in cases]
    assert sql_readings(chosen) == wanted


def test_a_text_with_more_than_a_time_is_no_time():
    draw = random.Random(2)
    texts = [text + draw.choice(REST) for text, form, zone, _ in drawn(600, 7) if ":" in text and not zone]
    assert len(texts) > 20
    assert [text for text in texts if any(fits(text, form) for form in ["", *candidate_formats([text])])] == []
    isos = [text for text in texts if text[4] == "-"]
    assert set(sql_readings([(text, "") for text in isos])) == {None}
    for text in texts:
        with pytest.raises(ValueError, match=r"."):
            read_time(text)


def fits(text: str, form: str) -> bool:
    try:
        parse_date(text, form)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("form", ["%d.%m.%Y", "%m/%d/%y", "%d %b %Y", "%Y/%m/%d", ""])
def test_a_query_in_another_format_is_read_in_the_order_of_the_column_or_refused(form):
    order = [letter for letter in form.lower() if letter in "dm"][:2] if form and "b" not in form.lower() else []
    order = [] if form.startswith("%Y") else order
    for text, written, _, moment in drawn(200, 3):
        numeric = "%m" in written and not written.startswith("%Y")
        if numeric and "%y" in written and not order:
            continue  # 02/03/04
        same = not numeric or [letter for letter in written.lower() if letter in "dm"][:2] == order
        if same:
            assert utc(read_time(text, form)) == moment, (text, form)
        elif int(text[:2]) > 12 or int(text[3:5]) > 12:
            # One order is possible. It is read unless the column has the other one.
            assert (read_or_none(text, form) == moment) == (not order), (text, form)
        elif order:
            exchanged = moment.replace(day=moment.month, month=moment.day)
            assert read_or_none(text, form).date() == exchanged.date()
        else:
            assert read_or_none(text, form) is None


def read_or_none(text: str, form: str) -> dt.datetime | None:
    try:
        return utc(read_time(text, form))
    except ValueError:
        return None


def test_every_abbreviation_of_a_zone_has_one_offset():
    assert not {"IST", "BST", "AST", "AM", "PM"} & set(ABBREVIATIONS)
    for name, offset in ABBREVIATIONS.items():
        moment = read_time(f"2024-01-02 03:04 {name}")
        assert moment.isoformat() == f"2024-01-02T03:04:00{offset}"


def test_an_hour_that_occurs_twice_is_the_second_one_in_sql_and_python():
    texts = [f"2024-{day} 02:30 Europe/Berlin" for day in ("10-27", "03-31")]
    wanted = [dt.datetime(2024, 10, 27, 1, 30), dt.datetime(2024, 3, 31, 1, 30)]
    assert sql_readings([(text, "") for text in texts]) == wanted
    assert [utc(read_time(text)) for text in texts] == wanted


def test_the_quotient_of_durations_counts_their_nanoseconds():
    duration = with_nanoseconds(dt.timedelta(microseconds=1), 500)
    assert isinstance(duration, NanosecondDuration)
    assert duration / dt.timedelta(microseconds=1) == 1.5
    assert duration / 2 == dt.timedelta(microseconds=1) / 2
