"""Remarks about columns that stay texts although their cells look like numbers or dates."""

from __future__ import annotations

import re
from collections.abc import Iterable

from qkv.core.times import candidate_formats, has_format, is_compact_date
from qkv.encoders.number_formats import NumberFormat, affix_counts

__all__ = ["MARKS", "MISSING", "MOST_TEXTS", "PLAIN", "numbers_remark", "text_remark"]

_MARKS = (
    r"- -- --- — – . .. ... ? ?? * ** *** na n/a #n/a #na n.a. n.a n/a. nan null none nil \n <na> (null) #null! #ref!"
)
MISSING: tuple[str, ...] = ("", *_MARKS.split())
MARKS = len(MISSING)
"""The number of marks that are mentioned in a note about a column of texts."""
MISSING += ("missing", "unknown", "not available", "#value!", "#div/0!", "inf", "-inf")
MOST_TEXTS = 0.9
"""A column with a larger share of numbers of one unit is read as numbers, or mentioned if there are several units."""
PLAIN = re.compile(r"[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?")
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*[.]?"
_LIKE_DATES = re.compile(
    rf"{_MONTH}[-' /]?[0-9]{{1,2}}|[0-9]{{1,2}}[-/. ]{_MONTH}|[0-9]{{4}}[- /]?Q[1-4]|Q[1-4][- /]?[0-9]{{4}}|"
    r"[0-9]{4}-?W[0-9]{2}(-?[0-9])?|(?:19|20)[0-9]{2}-[0-3][0-9]{2}|"
    # A day or month, or both, and a year, with words of any language.
    r"[^0-9]{0,15}[0-9]{1,2}(?:[^0-9]{1,5}[0-9]{1,2})?[^0-9]{1,15}(?:19|20)[0-9]{2}(?:[^0-9].*)?|"
    r"(?:19|20)[0-9]{2}[^0-9]{1,15}[0-9]{1,2}[^0-9]{0,15}|"
    # A time with a zone or other words that are not read.
    r"(?:19|20)[0-9]{2}([-/.])[0-9]{1,2}\2[0-9]{1,2}[T ].*",
    re.IGNORECASE,
)
_DIGITS = ("%d%m%Y", "%m%d%Y")


def text_remark(texts: Iterable[str], stated: bool = False) -> str:
    """Return what is said about a column that stays texts, but looks like numbers or dates; otherwise "".

    Args:
        texts: some of its cells.
        stated: whether the table states that they are texts.
    """
    present = [text.strip() for text in texts if text.strip().lower() not in MISSING]
    least = max(1.0, MOST_TEXTS * len(present))
    if not present:
        return ""
    example = present[0]
    like_dates = sum(_LIKE_DATES.fullmatch(text) is not None or _has_eight_digits(text) for text in present)
    formats = candidate_formats(present[:100])
    if like_dates >= least or (stated and formats and sum(bool(candidate_formats([t])) for t in present) >= least):
        remedy = "convert them" if stated else "write them in ISO 8601, or pass --date-format,"
        return f"holds texts that look like dates, such as {example!r}; {remedy} to compare them as dates"
    affixes = affix_counts(present)
    known = {affix: count for affix, count in affixes.items() if affix and NumberFormat(affix=affix).kind != "unknown"}
    if len(known) > 1 and sum(known.values()) >= least:
        units = ", ".join(sorted(known)[:5])
        return f"holds texts, because its numbers have several units ({units}); convert them to one to compare numbers"
    most = affixes.most_common(1)[0] if affixes else ("", 0)
    # Texts of digits alone may be codes.
    formatted = [text for text in present if not PLAIN.fullmatch(text) or (stated and "." in text)]
    if most[1] >= least and len(present) > 1 and formatted and (stated or most[0]):
        about = f"numbers with {most[0]!r}" if most[0] else "numbers"
        return f"holds texts, although its cells are {about}, such as {formatted[0]!r}; convert them to compare numbers"
    return ""


def _has_eight_digits(text: str) -> bool:
    """Return whether a text is eight digits of a day, a month and a year."""
    if not re.fullmatch("[0-9]{8}", text):
        return False
    return is_compact_date(text) or ("1900" <= text[4:] < "2100" and any(has_format(text, f) for f in _DIGITS))


def numbers_remark(numbers: Iterable[object]) -> str:
    """Return what is said about a column of whole numbers that are all dates such as 20240131; otherwise ""."""
    present = [str(number) for number in numbers if number is not None]
    if not present or not all(map(is_compact_date, present)):
        return ""
    return f"holds whole numbers that look like dates, such as {present[0]}; convert them to compare them as dates"
