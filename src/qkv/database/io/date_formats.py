"""Formats of dates in texts, such as 15.06.2006, Jun 15 2006 and 2006-06, by directives of `datetime.strptime`.

A text is split into its numbers and its month name, whose order and separators give the formats that it may have. A
format is counted over all cells of a column. `03/04/2024` may be the 3rd of April or the 4th of March: if no cell of
the column decides, the day is first, and the reading of the column says so. Month names are English, in full or
abbreviated; names of weekdays and endings such as "th" are ignored.
"""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from qkv.database.io.date_names import canonical_date, canonical_format, canonical_sql, named_format

__all__ = [
    "candidate_formats",
    "choose_format",
    "date_reading",
    "exchanged",
    "format_sql",
    "has_format",
    "is_compact_date",
    "is_date_format",
    "parse_date",
]

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
_ENGLISH_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CHINESE = re.compile("[0-9]{4}年[0-9]{1,2}月[0-9]{1,2}日")
_MOST_FORMATS = 9


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
    shape = _SHAPE.fullmatch(text.strip()) or _SHAPE.fullmatch(_normalized(text))
    if shape is None:
        named = "%Y年%m月%d日" if _CHINESE.fullmatch(text.strip()) else named_format(text)
        return [named] if named else []
    parts = [part for part in (shape["first"], shape["second"], shape["third"]) if part is not None]
    if any(part.isalpha() and _normalized(part).lower() not in _ENGLISH_MONTHS for part in parts):
        named = named_format(text)
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
        formats += [date + clock] if not date.startswith("%Y-%m-%d") else []
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
    """Return the SQL expression of the timestamp in a cell of a format, which is null for other cells."""
    text = f"trim({cell})"
    if "%B" in form:
        text, form = canonical_sql(cell), canonical_format(form)
    elif "%b" in form:
        for pattern, replacement in _REPLACED:
            text = f"regexp_replace({text}, '{pattern}', '{replacement}', 'gi')"
    shape = re.sub(
        "%.|.", lambda part: _WIDTHS.get(part[0], "[0-9]{1,2}") if len(part[0]) > 1 else re.escape(part[0]), form
    )
    if re.findall("%[^YybpfdmHIMS]", form):
        shape = ".+"
    return f"(case when regexp_full_match({text}, {_literal(shape)}) then try_strptime({text}, {_literal(form)}) end)"


def parse_date(text: str, form: str) -> dt.datetime:
    """Return the timestamp in a text of a format, or of its date alone.

    Raises:
        ValueError: The text does not have the format.
    """
    # A file of timestamps may be asked for a date in its own format.
    named = "%B" in form
    if named:
        form = canonical_format(form)
    for each in (form, re.split(r",?\s?%[HI]|T%[HI]", form)[0]):
        for written in (canonical_date(text),) if named else (text.strip(), _normalized(text)):
            try:
                return dt.datetime.strptime(written, each)
            except ValueError:
                continue
    raise ValueError(text)


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


def is_date_format(form: str) -> bool:
    """Return whether a text is a format of dates that are read back as they were written."""
    example = dt.datetime(2006, 1, 1)
    try:
        return "%" in form and dt.datetime.strptime(example.strftime(form), form) == example
    except ValueError:
        return False


def _normalized(text: str) -> str:
    text = text.strip()
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
