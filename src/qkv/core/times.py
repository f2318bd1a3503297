"""Dates and times in texts: their formats, by directives of `datetime.strptime`, and parsing, here and in SQL.

This is the one parser of times: files, queries, joins and estimators use it. A text is a time only if all of it is
read, the time zone included:

    15.06.2006, Jun 15 2006, 2006-06   numbers, or English names of months that `strptime` reads
    3. März 2024, 5 de agosto de 2024  names of months of several languages, by the directive %B; a text is split into
                                       words and numbers, names of weekdays and words such as "de" are left out, and
                                       accents and case have no meaning
    13:30 +0200, Z, UTC+2, CET         a time zone behind the clock, by the directive %z: an offset, an abbreviation of
    1:30 PM Europe/Berlin              `ABBREVIATIONS` or a name of the IANA database; such times are converted to UTC

The formats that some dates of a column may have are counted over all its dates. If the day and the month can be
exchanged in every date, the day is first, and the reading of the column says so. An hour that occurs twice when the
clock goes back is the second one, as in DuckDB.

Source: the names of months are those of the Unicode CLDR (https://cldr.unicode.org), calendar "gregorian", for
English, German, French, Spanish, Italian, Portuguese, Dutch, Swedish, Danish, Norwegian, Finnish, Polish and Russian.
The American abbreviations of time zones are those of RFC 5322.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import unicodedata
import zoneinfo
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from qkv.core.printable import sql_text

_ABBREVIATIONS = """
+00:00 Z UTC GMT UT WET
+01:00 CET MEZ WEST
+02:00 CEST MESZ EET SAST
+03:00 EEST MSK
+08:00 HKT SGT
+09:00 JST KST
+10:00 AEST
+11:00 AEDT
+12:00 NZST
+13:00 NZDT
-10:00 HST
-09:00 AKST
-08:00 AKDT PST
-07:00 PDT MST
-06:00 MDT CST
-05:00 CDT EST
-04:00 EDT
"""
ABBREVIATIONS = {name: line[:6] for line in _ABBREVIATIONS.split("\n") for name in line[6:].split()}
"""Offsets of abbreviations of time zones. Others, such as IST and BST, stand for several zones and are not read."""

_OFFSET = "[+-](?:0?[0-9]|1[0-4])(?::?[0-5][0-9])?"
_ZONE = rf"(?:(?:UTC|GMT)?{_OFFSET}|{'|'.join(ABBREVIATIONS)}|[A-Za-z]+(?:/[A-Za-z0-9_+-]+)+)"
# The text before a time zone, the zone and the text behind it, as RE2 and `re` read it. America does not begin with AM.
_ZONED = rf"^(.*[0-9]:[0-9]{{2}}(?:[.][0-9]+)?(?:\s?[AaPp][Mm])??)\s*({_ZONE})(|\s.*)$"
_ISO_DATE = "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_ISO_CLOCK = "[T ][0-9]{1,2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?"
ISO = re.compile(f"{_ISO_DATE}(?:{_ISO_CLOCK})?")
"""Dates and times in ISO 8601 without a time zone."""

_MONTHS = r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?\b"
_REPLACED = (
    (r"^(mon|tue|wed|thu|fri|sat|sun)(day|sday|nesday|rsday|urday|s|rs|r)?\b[.,]*\s+", ""),
    (_MONTHS, r"\1"),
    (r"([0-9])(st|nd|rd|th)\b", r"\1"),
    (r"\.(\s)", r"\1"),
    (r"\s+", " "),
)
"""Regular expressions and replacements that give dates with names of months one form, as RE2 and `re` read them."""

_SHAPE = re.compile(
    r"(?P<first>[0-9]{1,4}|[A-Za-z]{3})(?P<gap>[-/.,\s]{1,2})(?P<second>[0-9]{1,4}|[A-Za-z]{3})"
    r"(?:(?P<gap2>[-/.,\s]{1,2})(?P<third>[0-9]{1,4}))?"
    r"(?:(?P<until>,?\s|T)(?P<hour>[0-9]{1,2}:[0-9]{2})(?P<second_>:[0-9]{2})?(?P<fraction>\.[0-9]{1,6})?"
    r"(?P<noon>\s?[AaPp][Mm])?)?"
)
_ORDERS = {
    "nnY": (("%d", "%m", "%Y"), ("%m", "%d", "%Y")),
    "nnn": (("%d", "%m", "%y"), ("%m", "%d", "%y"), ("%y", "%m", "%d")),
    "Ynn": (("%Y", "%m", "%d"),),
    "nbY": (("%d", "%b", "%Y"),),
    "nbn": (("%d", "%b", "%y"),),
    "bnY": (("%b", "%d", "%Y"),),
    "bnn": (("%b", "%d", "%y"),),
    "Ybn": (("%Y", "%b", "%d"),),
    "bY": (("%b", "%Y"),),
    "Yb": (("%Y", "%b"),),
    "Yn": (("%Y", "%m"),),
    "nY": (("%m", "%Y"),),
}
"""The orders of day, month and year by the kinds of the parts: n is one or two digits, Y is four, b is a month name."""

_WIDTHS = {"%Y": "[0-9]{4}", "%b": "[A-Za-z]{3}", "%p": "[AaPp][Mm]", "%f": "[0-9]{1,6}", "%y": "[0-9]{2}"}
_FORMAT_CLOCK = r"%[HI]:%M(?::%S)?(?:\.%f)?(?:\s?%p)?"
_CHINESE = re.compile("[0-9]{4}年[0-9]{1,2}月[0-9]{1,2}日")
_MOST_FORMATS = 9
_FIRST_TEXTS = 1_000

_ENGLISH = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH_NAMES = (
    "jan january januar janner janv janvier ene enero gen gennaio janeiro januari tammi tammikuuta tammikuu sty "
    "stycznia styczen янв января январь jaenner",
    "feb february februar fevr fevrier febrero febbraio fev fevereiro februari helmi helmikuuta helmikuu lut lutego "
    "luty февр февраля февраль",
    "mar march marz mars marzo marco mrt maart marts maalis maaliskuuta maaliskuu marca marzec мар март марта maerz",
    "apr april avr avril abr abril aprile huhti huhtikuuta huhtikuu kwi kwietnia kwiecien апр апреля апрель",
    "may mai mayo mag maggio maio mei maj touko toukokuuta toukokuu maja мая маи",
    "jun june juni juin junio giu giugno junho kesa kesakuuta kesakuu cze czerwca czerwiec июн июнь июня",
    "jul july juli juil juillet julio lug luglio julho heina heinakuuta heinakuu lip lipca lipiec июл июль июля",
    "aug august aout ago agosto augustus augusti elo elokuuta elokuu sie sierpnia sierpien авг августа август",
    "sep september sept septembre septiembre set settembre setembro syys syyskuuta syyskuu wrz wrzesnia wrzesien "
    "сент сентября сентябрь",
    "oct october okt oktober octobre octubre ott ottobre out outubro loka lokakuuta lokakuu paz pazdziernika "
    "pazdziernik окт октября октябрь",
    "nov november novembre noviembre novembro marras marraskuuta marraskuu lis listopada listopad нояб ноября ноябрь",
    "dec december dez dezember decembre dic diciembre dicembre dezembro des desember joulu joulukuuta joulukuu gru "
    "grudnia grudzien дек декабря декабрь",
)
_LEFT_OUT = """
sun mon tue wed thu fri sat sunday monday tuesday wednesday thursday friday saturday so mo di mi do fr sa sonntag
montag dienstag mittwoch donnerstag freitag samstag dim lun mer jeu ven sam dimanche lundi mardi mercredi jeudi
vendredi samedi dom mie jue vie sab domingo lunes martes miercoles jueves viernes sabado gio domenica lunedi
martedi mercoledi giovedi venerdi sabato seg ter qua qui sex segunda feira terca quarta quinta sexta zo ma wo vr
za zondag maandag dinsdag woensdag donderdag vrijdag zaterdag son man tis ons tors fre lor sondag mandag tisdag
onsdag torsdag fredag lordag søn tirs lør søndag tirsdag lørdag tir tor su ti ke to pe la sunnuntai sunnuntaina
maanantaina tiistaina keskiviikkona torstaina perjantaina lauantaina niedz pon wt sr czw pt sob niedziela poniedziałek
wtorek sroda czwartek piatek sobota вс пн вт ср чт пт сб воскресенье понедельник вторник среда четверг пятница суббота
de del of the den der le el il er st nd rd th um at г года º ª
"""
_WORDS = {name: english for english, names in zip(_ENGLISH, _MONTH_NAMES, strict=True) for name in names.split()}
_WORDS.update(dict.fromkeys(_LEFT_OUT.split(), ""))

_NUMBER = "[0-9]+(?:[:.][0-9]+)*"
_TOKEN = re.compile(rf"[^\W\d_]+|{_NUMBER}")
_DIRECTIVES = re.compile(r"%[HIMSf](?:[:.]%[MSf])*|%[a-zA-Z]|[^\W\d_]+")
_KINDS = {
    "nbY": ("%d", "%B", "%Y"),
    "bnY": ("%B", "%d", "%Y"),
    "Ybn": ("%Y", "%B", "%d"),
    "nby": ("%d", "%B", "%y"),
    "bY": ("%B", "%Y"),
    "Yb": ("%Y", "%B"),
}
"""The orders of day, month and year by the kinds of the parts: n is a day, b the name of a month, y and Y are years."""


def candidate_formats(texts: Iterable[str]) -> list[str]:
    """Return the formats that dates among texts may have, the most common first, the day before the month.

    Example:
        >>> candidate_formats(["15-Jun-06", "3/4/2024"])
        ['%d-%b-%y', '%d/%m/%Y', '%m/%d/%Y']
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(_formats_of(text))
    return [form for form, _ in counts.most_common(_MOST_FORMATS)]


def _formats_of(text: str) -> list[str]:
    if len(text) > 60 or not any(character.isdigit() for character in text):
        return []
    bare, zone = split_zone(text) if ":" in text else (text, "")
    if zone:
        return [
            re.sub(_FORMAT_CLOCK, r"\g<0> %z", form) for form in _formats_of(bare) if re.search(_FORMAT_CLOCK, form)
        ]
    shape = _SHAPE.fullmatch(text.strip()) or _SHAPE.fullmatch(_normalized(text))
    if shape is None:
        named = "%Y年%m月%d日" if _CHINESE.fullmatch(text.strip()) else _named_format(text)
        return [named] if named else []
    parts = [part for part in (shape["first"], shape["second"], shape["third"]) if part is not None]
    if any(part.isalpha() and _normalized(part).title() not in _ENGLISH for part in parts):
        named = _named_format(text)
        return [named] if named else []
    kinds = "".join("b" if part.isalpha() else {1: "n", 2: "n", 4: "Y"}.get(len(part), "?") for part in parts)
    gaps = [shape["gap"], shape["gap2"] or ""]
    if kinds in ("Yn", "nY") and gaps[0] not in ("-", "/"):
        return []
    clock = ""
    if shape["hour"]:
        hour, noon = ("%I", f"{shape['noon'][:-2]}%p") if shape["noon"] else ("%H", "")
        clock = (
            f"{shape['until']}{hour}:%M{':%S' if shape['second_'] else ''}{'.%f' if shape['fraction'] else ''}{noon}"
        )
    formats = []
    for order in _ORDERS.get(kinds, ()):
        date = order[0] + "".join(gap + part for gap, part in zip(gaps, order[1:], strict=False))
        # ISO 8601 is read without a format.
        formats += [date + clock] if not date.startswith("%Y-%m-%d") or "%I" in clock else []
    return formats


def choose_format(counts: Mapping[str, int]) -> tuple[str, str]:
    """Return the format that most cells have, and another format that as many cells have, or "" if it is decided.

    Args:
        counts: the number of cells by format, with formats of equal counts in the order of preference. A format that
            begins with a year of two digits is chosen only if more cells have it than any other.
    """
    ranked = sorted(counts, key=lambda form: (-counts[form], form.startswith("%y")))
    if len(ranked) < 2 or counts[ranked[1]] < counts[ranked[0]] or ranked[1].startswith("%y"):
        return ranked[0], ""
    return ranked[0], ranked[1]


def date_reading(form: str, other: str = "") -> str:
    """Return how dates in a format are read, as the end of a sentence about the column.

    Args:
        form: the format.
        other: a format with day and month exchanged, in which all cells can be read too; "" if there is none.
    """
    said = f"is read in the format {form}"
    if other:
        said += f", day first, as no cell decides; --date-format {other} (in Python: date_format) reads the month first"
    if "%y" in form:
        said += "; years 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068"
    if "%d" not in form and "%j" not in form:
        said += ", as the first day of the month" if {"%m", "%b", "%B"} & set(re.findall("%.", form)) else ""
    return said


def format_sql(cell: str, form: str) -> str:
    """Return the SQL expression of the timestamp in a cell of a format, which is null for other cells.

    It has a time zone if the format has one.
    """
    text, bare = f"trim({cell})", _without_zone(form)
    zoned, form = bare != form, bare
    if zoned:
        text = f"regexp_replace({text}, {sql_text(_ZONED)}, '\\1\\3', 'i')"
    if "%B" in form:
        text, form = _canonical_sql(text), _canonical_format(form)
    elif "%b" in form:
        for pattern, replacement in _REPLACED:
            text = f"regexp_replace({text}, '{pattern}', '{replacement}', 'gi')"
    shape = re.sub(
        "%.|.", lambda part: _WIDTHS.get(part[0], "[0-9]{1,2}") if len(part[0]) > 1 else re.escape(part[0]), form
    )
    if re.findall("%[^YybpfdmHIMS]", form):
        shape = ".+"
    read = f"(case when regexp_full_match({text}, {sql_text(shape)}) then try_strptime({text}, {sql_text(form)}) end)"
    return _zoned_sql(f"strftime({read}, '%Y-%m-%d %H:%M:%S.%f')", cell) if zoned else read


def iso_sql(cell: str, type_: str) -> str:
    """Return the SQL expression of a time in ISO 8601 in a cell, which is null for other cells.

    Args:
        cell: the SQL expression of the cell.
        type_: "date" for dates alone, "timestamp" for dates and times without a time zone, "timestamptz" for times with
            one; the last two also with "_ns".
    """
    text, shape = f"trim({cell})", _ISO_DATE if type_ == "date" else ISO.pattern
    if not type_.startswith("timestamptz"):
        # A cast ignores what follows the time.
        return f"(case when regexp_full_match({text}, {sql_text(shape)}) then try_cast({text} as {type_}) end)"
    matches = f"regexp_full_match({text}, {sql_text(f'(?i){_ISO_DATE}{_ISO_CLOCK}')} || '\\s*' || {sql_text(_ZONE)})"
    bare = f"regexp_replace({text}, {sql_text(_ZONED)}, '\\1', 'i')"
    return f"(case when {matches} then {_zoned_sql(bare, cell, type_)} end)"


def _zoned_sql(text: str, cell: str, type_: str = "timestamptz") -> str:
    """Return the SQL expression of a time in ISO 8601 in the time zone that a cell names; null without a zone."""
    zone = f"upper(regexp_extract(trim({cell}), {sql_text(_ZONED)}, 2, 'i'))"
    names = ", ".join(f"'{name}': '{offset}'" for name, offset in ABBREVIATIONS.items())
    offset = f"regexp_replace(regexp_replace({zone}, '^(UTC|GMT)', ''), '^([+-])([0-9])(:|$)', '\\10\\2\\3')"
    named = f"case when contains({zone}, '/') then ' ' || {zone} else map {{{names}}}[{zone}] end"
    offset = f"case when regexp_matches({zone}, '^(UTC|GMT)?[+-]') then {offset} else {named} end"
    return f"try_cast(({text}) || ({offset}) as {type_})"


def split_zone(text: str) -> tuple[str, str]:
    """Return a text of a time without its time zone, and the zone, or "" if there is none behind the clock.

    Example:
        >>> split_zone("Sun Mar 31 13:30:00 CEST 2024"), split_zone("13:30+02:00"), split_zone("1:30 PM")
        (('Sun Mar 31 13:30:00 2024', 'CEST'), ('13:30', '+02:00'), ('1:30 PM', ''))
    """
    found = _ZONED_TEXT.match(text.strip())
    return (found[1] + found[3], found[2]) if found else (text, "")


_ZONED_TEXT = re.compile(_ZONED, re.IGNORECASE)


@cache
def _time_zone(zone: str) -> dt.tzinfo:
    """Return a time zone from an offset, an abbreviation or a name.

    Raises:
        ValueError: There is no such zone.
    """
    if "/" in zone:
        names = {name.upper(): name for name in zoneinfo.available_timezones()}
        if zone.upper() not in names:
            raise ValueError(zone)
        return zoneinfo.ZoneInfo(names[zone.upper()])
    offset = ABBREVIATIONS.get(zone.upper(), re.sub("^(UTC|GMT)", "", zone.upper()))
    hours, minutes = re.fullmatch("[+-]([0-9]{1,2}?):?([0-9]{2})?", offset).groups()  # type: ignore[union-attr]
    length = dt.timedelta(hours=int(hours), minutes=int(minutes or 0))
    return dt.timezone(-length if offset[0] == "-" else length)


def clock_changes(zones: Iterable[str]) -> str:
    """Return how hours are read at which clocks change, as the end of a sentence; "" without a named zone."""
    named = any("/" in zone for zone in zones)
    return "; an hour that occurs twice is the second one, and a skipped hour the next one" if named else ""


def in_zone(moment: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    """Return a timestamp in a time zone: the second of two equal hours, and the next one of a skipped hour."""
    late = moment.replace(tzinfo=zone, fold=1)
    skipped = late.astimezone(dt.UTC).astimezone(late.tzinfo).replace(tzinfo=None) != moment
    return late.replace(fold=0) if skipped else late


def zone_reading(texts: Iterable[str]) -> str:
    """Return how the time zones of some texts are read, as the end of a sentence; "" if all of them are UTC."""
    zones = sorted({zone for text in texts if (zone := split_zone(text)[1])})
    if all(zone.upper() in ("Z", "UTC", "GMT", "+00:00", "+0000", "+00") for zone in zones):
        return ""
    named = [f"{zone} as {ABBREVIATIONS[zone.upper()]}" if zone.upper() in ABBREVIATIONS else zone for zone in zones]
    return f"is converted to UTC from {', '.join(named[:5])}{', …' * (len(zones) > 5)}{clock_changes(zones)}"


def parse_date(text: str, form: str) -> dt.datetime:
    """Return the timestamp in a text of a format, or of its date alone; it has a time zone if the format has one.

    Args:
        form: the format; "" for ISO 8601, with or without a time zone.

    Raises:
        ValueError: The text does not have the format.
    """
    if not form:
        return _parse_iso(text.strip())
    bare = _without_zone(form)
    if bare != form:
        text, zone = split_zone(text)
        if not zone:
            raise ValueError(text)
        return in_zone(parse_date(text, bare), _time_zone(zone))
    # A file of timestamps may be asked for a date in its own format.
    named = "%B" in form
    if named:
        form = _canonical_format(form)
    for each in (form, re.split(r",?\s?%[HI]|T%[HI]", form)[0]):
        for written in (_canonical_date(text),) if named else (text.strip(), _normalized(text)):
            try:
                return dt.datetime.strptime(written, each)
            except ValueError:
                continue
    raise ValueError(text)


def read_time(text: str, form: str = "") -> dt.datetime:
    """Return the timestamp in a text: in the format of a column, in ISO 8601 or in another usual format.

    Another format is read if it has the order of day, month and year of the column, or if no other order is possible.

    Args:
        form: the format of the column; "" for ISO 8601.

    Raises:
        ValueError: The text is no time, or its order is not that of the column, or not known.

    Example:
        >>> read_time("8/5/2015", "%m/%d/%y").isoformat(), read_time("2024-03-31 1:30 PM CET").isoformat()
        ('2015-08-05T00:00:00', '2024-03-31T13:30:00+01:00')
    """
    text = text.strip()
    if form:
        with contextlib.suppress(ValueError):
            return parse_date(text, form)
    for parse in (dt.datetime.fromisoformat, _parse_iso):
        with contextlib.suppress(ValueError):
            return parse(text)
    order = numeric_order(form)
    formats = [each for each in _formats_of(text) if "%d" in each or "%d" not in (form or "%d")]
    known = [each for each in formats if numeric_order(each) in ("", order)]
    if not order:
        # Years of two digits may be days.
        known = known or [each for each in formats if "%y" not in each and has_format(text, each)]
    if len(known) != 1:
        raise ValueError(text)
    return parse_date(text, known[0])


def reads_iso(form: str) -> bool:
    """Return whether a column of dates in a format may also hold dates in ISO 8601, which differ from its own."""
    return bool(form) and not form.startswith("%Y")


class ParsedTexts(NamedTuple):
    """Texts that are dates in one format.

    Attributes:
        moments: the timestamp of each text.
        form: the format, "" for ISO 8601 and "%z" for ISO 8601 with a time zone.
        other: a format with day and month exchanged, in which all texts can be read too; "" if there is none.
    """

    moments: dict[str, dt.datetime]
    form: str
    other: str


def parse_all(texts: Collection[str], form: str | None = None) -> ParsedTexts | None:
    """Return the timestamps of distinct texts, or None unless all are dates in one format or in ISO 8601.

    All have a time zone, or none has one.

    Args:
        texts: the texts.
        form: the format; None: the first that all texts have, day first.
    """
    for each in ["", "%z", *candidate_formats([*texts][:_FIRST_TEXTS])] if form is None else [form]:
        with contextlib.suppress(ValueError):
            moments = {text: _parse_either(text, each) for text in texts}
            if all((moment.tzinfo is None) == ("%z" not in each) for moment in moments.values()):
                return ParsedTexts(moments, each, _other_order(moments, each) if form is None else "")
    return None


def _other_order(moments: dict[str, dt.datetime], form: str) -> str:
    """Return `form` with day and month exchanged, if it also reads all texts but as different dates; otherwise ""."""
    other = exchanged(form)
    with contextlib.suppress(ValueError):
        if other != form and {text: _parse_either(text, other) for text in moments} != moments:
            return other
    return ""


def _parse_either(text: str, form: str) -> dt.datetime:
    """Return the timestamp in a text of a format or, if it cannot be mistaken for it, in ISO 8601."""
    try:
        return parse_date(text, form)
    except ValueError:
        if not reads_iso(form):
            raise
        return parse_date(text, "")


def _parse_iso(text: str) -> dt.datetime:
    bare, zone = split_zone(text) if ":" in text else (text, "")
    if not ISO.fullmatch(bare):
        raise ValueError(text)
    numbers = [*re.findall("[0-9]+", bare), "0", "0", "0"]
    fraction = numbers[6] if "." in bare else ""
    year, month, day, hour, minute, second = map(int, numbers[:6])
    moment = dt.datetime(year, month, day, hour, minute, second, int(fraction[:6].ljust(6, "0")))
    return in_zone(moment, _time_zone(zone)) if zone else moment


def numeric_order(form: str) -> str:
    """Return the order of day, month and year in a format of numbers that does not begin with a year of four digits.

    Example:
        >>> numeric_order("%d/%m/%Y"), numeric_order("%m-%d-%y %H:%M"), numeric_order("%d %b %Y"), numeric_order("")
        ('dmy', 'mdy', '', '')
    """
    order = "".join(re.findall("%([dmyY])", form))
    return order.lower() if len(order) == 3 and order[0] != "Y" else ""


def _without_zone(form: str) -> str:
    return re.sub(r"\s*%[zZ]", "", form)


def has_format(text: str, form: str) -> bool:
    """Return whether a text is a date in a format."""
    try:
        parse_date(text, form)
    except ValueError:
        return False
    return True


def is_compact_date(text: str) -> bool:
    """Return whether a text is a date of the years 1900 to 2099 in the format %Y%m%d.

    Example:
        >>> is_compact_date("20240131"), is_compact_date("20241301"), is_compact_date("240131")
        (True, False, False)
    """
    return re.fullmatch("(19|20)[0-9]{6}", text) is not None and has_format(text, "%Y%m%d")


def exchanged(form: str) -> str:
    """Return a format with the day and the month exchanged.

    Example:
        >>> exchanged("%d/%m/%Y %H:%M")
        '%m/%d/%Y %H:%M'
    """
    return re.sub("%[dm]", lambda part: "%m" if part[0] == "%d" else "%d", form)


def is_date_format(form: object) -> bool:
    """Return whether an object is a text with a format of dates that are read back as they were written."""
    if not isinstance(form, str):
        return False
    example, form = dt.datetime(2006, 1, 1), _without_zone(form)
    try:
        return "%" in form and dt.datetime.strptime(example.strftime(form), form) == example
    except (ValueError, re.error):  # re.error: a directive occurs twice
        return False


def _normalized(text: str) -> str:
    text = text.strip()
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text


def _canonical_date(text: str) -> str:
    """Return a date with the name of a month in English and single spaces between its parts."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    plain = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
    words = (_WORDS.get(token, token) for token in _TOKEN.findall(plain))
    return " ".join(word for word in words if word)


def _canonical_format(form: str) -> str:
    """Return the format of canonical dates for a format with the directive %B."""
    parts = (part if part[0] == "%" else _WORDS.get(part.lower(), part.lower()) for part in _DIRECTIVES.findall(form))
    return " ".join("%b" if part == "%B" else part for part in parts if part)


def _canonical_sql(cell: str) -> str:
    """Return the SQL expression of `_canonical_date` of a cell."""
    names = ", ".join(f"'{name}': '{english}'" for name, english in _WORDS.items())
    tokens = f"regexp_extract_all(strip_accents(lower({cell})), '\\p{{L}}+|{_NUMBER}')"
    words = f"list_transform({tokens}, lambda t: coalesce(map {{{names}}}[t], t))"
    return f"array_to_string(list_filter({words}, lambda t: t <> ''), ' ')"


def _named_format(text: str) -> str:
    """Return the format of a date with the name of a month, or "" for another text."""
    kinds, clock, place = "", "", 0
    for token in _canonical_date(text).split():
        if token in _ENGLISH:
            kinds += "b"
        elif re.fullmatch("[0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?", token) and not clock:
            fraction = ".%f" * ("." in token)
            clock, place = "%H:%M" + ":%S" * (token.count(":") > 1) + fraction, len(kinds)
        elif token in ("am", "pm") and "%H" in clock and place == len(kinds):
            clock = clock.replace("%H", "%I") + " %p"
        elif token.isascii() and token.isdigit():
            kinds += {1: "n", 2: "y" if kinds == "nb" else "n", 4: "Y"}.get(len(token), "?")
        else:
            return ""
    parts = list(_KINDS.get(kinds, ()))
    if not parts:
        return ""
    return " ".join([*parts[:place], *[clock] * bool(clock), *parts[place:]])
