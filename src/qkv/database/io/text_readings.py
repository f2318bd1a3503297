"""Detection of how a column of texts is read: as numbers or dates of a format, or as texts.

The formats that some texts of the first rows may have, or cells that are no plain numbers beside such numbers, are
counted over all rows.

A column is read as booleans if its cells are spelled in one of three ways: true and false, True and False, TRUE and
FALSE. Each key is then printed as a text that is read as the same key. Columns with other or several spellings, such
as yes, t or true beside TRUE, stay texts, because their cells are different texts, and are printed as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qkv.core.printable import quoted_name, sql_text
from qkv.core.times import (
    ISO,
    candidate_formats,
    choose_format,
    date_reading,
    exchanged,
    format_sql,
    has_format,
    is_compact_date,
    iso_sql,
    reads_iso,
    split_zone,
    zone_reading,
)
from qkv.database.io.cell_notes import CellNote
from qkv.database.io.exact_types import exact_number_type
from qkv.database.io.identifiers import has_identifier_name, has_text_identifier_name, is_mostly_whole
from qkv.database.io.read_options import ReadOptions
from qkv.encoders.arrow_columns import ASSUMED, BOOLEAN_SPELLING, DATE_FORMAT, NUMBER_FORMAT, READING
from qkv.encoders.number_formats import NumberFormat, affix_counts

if TYPE_CHECKING:
    import duckdb


_SPELLINGS = (frozenset({"true", "false"}), frozenset({"True", "False"}), frozenset({"TRUE", "FALSE"}))


def has_one_spelling(texts: Sequence[str]) -> bool:
    """Return whether a column of texts can be read as booleans: its distinct texts are spelled in one way.

    Example:
        >>> has_one_spelling(["TRUE", "FALSE"]), has_one_spelling(["TRUE", "true"]), has_one_spelling(["yes", "no"])
        (True, False, False)
    """
    trimmed = {text.strip() for text in texts}
    return len(trimmed) == len(texts) > 0 and any(trimmed <= spelling for spelling in _SPELLINGS)


def boolean_reading(relation: duckdb.DuckDBPyRelation, name: str, assumed: str = "") -> BooleanCells | None:
    """Return how a column of texts is read as booleans, or None if it has several spellings or other texts.

    Args:
        relation: all rows of the file.
        name: the column.
        assumed: "boolean" reads any spelling, because a store states that the column holds booleans; "text" none.
    """
    cells = relation.project(f"{quoted_name(name)} as x").filter("trim(x) <> ''")
    first = cells.limit(1).fetchall()
    if assumed == "text" or not first or first[0][0].strip().lower() not in ("true", "false", "t", "f", "yes", "no"):
        return None
    if assumed == "boolean":
        every = cells.aggregate("bool_and(try_cast(trim(x) as boolean) is not null)").fetchall()[0][0]
        return BooleanCells("boolean", "boolean") if every else None
    distinct = [text for (text,) in cells.distinct().limit(3).fetchall()]
    if not has_one_spelling(distinct):
        return None
    spelling = next(each for each in _SPELLINGS if distinct[0].strip() in each)
    return BooleanCells("boolean", "boolean", spelling=next(text for text in spelling if text.lower() == "true"))


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
    dated = sum(bool(ISO.fullmatch(text) or candidate_formats([text])) for text in present) if stated and formats else 0
    if like_dates >= least or dated >= least:
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
    """Return a note if most numbers of a column look like dates, such as 20240131, and otherwise an empty string."""
    present = [str(number) for number in numbers if number is not None]
    dates = list(filter(is_compact_date, present))
    if 2 * len(dates) <= len(present):
        return ""
    return f"holds whole numbers that look like dates, such as {dates[0]}; convert them to compare them as dates"


_FIRST_ROWS = 20_480
FIRST_TEXTS = 1_000
LEAST_SHARE = 0.1
"""A column of texts with a larger share of numbers is mentioned in a note."""
_CELL = "lower(trim(x))"
_ISO = re.compile("[0-9]{4}-[0-9]{1,2}-[0-9]")


@dataclass(frozen=True)
class TextReading:
    """How a column of texts is read.

    Attributes:
        noun: what the cells are, such as "finite number" or "date".
        type: the DuckDB type.
        date_format: the format of dates; "" for numbers and dates in ISO 8601.
        number_format: the format of numbers; None for dates and for numbers without separators of thousands.
        decimal: the decimal separator of numbers without a format.
        said: how the column is read, as the end of a sentence; "" for numbers and dates of the usual form.
        assumed: the name of a format that no cell decided; "" if it is decided.
        bad_cells: the number of filled cells that are not read.
    """

    noun: str
    type: str
    date_format: str = ""
    number_format: NumberFormat | None = None
    decimal: str = "."
    said: str = ""
    assumed: str = ""
    bad_cells: int = 0

    def sql(self, cell: str) -> str:
        """Return the SQL expression of the converted cell, which is null for bad cells."""
        if self.date_format:
            formatted = f"{format_sql(cell, self.date_format)}::{self.type}"
            return f"coalesce({formatted}, {iso_sql(cell, self.type)})" if reads_iso(self.date_format) else formatted
        if self.noun.startswith("date"):
            return iso_sql(cell, self.type)
        if self.number_format is not None:
            return self.number_format.sql(cell, self.type)
        text = _with_point(cell, self.decimal)
        if self.noun == "whole number":
            return f"try_cast(regexp_extract({text}, '^([+-]?[0-9]+)([.]0*)?$', 1) as {self.type})"
        return f"case when {_is_number(text)} then try_cast({text} as {self.type}) end"

    def bad(self, cell: str) -> str:
        """Return the SQL condition that a cell is filled, but not of this type."""
        return f"trim({cell}) <> '' and ({self.sql(cell)}) is null"

    def read(self, counts: Mapping[str, int]) -> int:
        """Return the number of cells that are read, from the number of cells that pass each test."""
        if self.number_format is not None:
            return counts[self.number_format.dump()]
        if self.date_format:
            return counts[self.date_format]
        return counts["zones" if self.type.startswith("timestamptz") else "iso"]

    @property
    def metadata(self) -> dict[bytes, str]:
        """The texts in the metadata of the converted column."""
        number = "" if self.number_format is None else self.number_format.dump()
        texts = {DATE_FORMAT: self.date_format, NUMBER_FORMAT: number, READING: self.said, ASSUMED: self.assumed}
        return {key: text for key, text in texts.items() if text}


@dataclass(frozen=True)
class BooleanCells(TextReading):
    """The reading of a column of texts as booleans.

    Attributes:
        spelling: how true is spelled, such as "TRUE"; "" if it is unknown.
    """

    spelling: str = ""

    def sql(self, cell: str) -> str:
        """Return the SQL expression of the converted cell, which is null for cells that are no booleans."""
        return f"try_cast(trim({cell}) as boolean)"

    @property
    def metadata(self) -> dict[bytes, str]:
        return {BOOLEAN_SPELLING: self.spelling} if self.spelling else {}


def number_reading(
    relation: duckdb.DuckDBPyRelation,
    name: str,
    options: ReadOptions,
    delimiter: str,
    entirely: bool = False,
    mixed: bool = False,
) -> TextReading | None:
    """Return how a column of numbers is read; None if it has other cells, or equal numbers in different cells.

    Args:
        relation: all rows of the file.
        name: the column.
        options: the decimal separator, and the formats of other files.
        delimiter: the delimiter of the file; "" for JSON.
        entirely: whether identifiers are read as whole numbers only if all of them are.
        mixed: whether cells that are no numbers are allowed.
    """
    decimal = options.decimal or "."
    column, text = relation.project(f"{quoted_name(name)} as x"), _with_point("x", decimal)
    # 1E05 and 100000 are two identifiers, but one number. DuckDB reads a column of codes such as 04713 as texts.
    codes = "[+]?0[0-9]+([.][0-9]*)?([eE][+-]?[0-9]+)?" + "|[0-9]+[eE][0-9]+" * has_text_identifier_name(name)
    if column.aggregate(f"coalesce(bool_or(regexp_full_match(trim(x), '{codes}')), false)").fetchall()[0][0]:
        return None
    if is_mostly_whole(relation, name, f"try_cast({text} as double)", entirely):
        return TextReading("whole number", "bigint", decimal=decimal)
    type_, infinite = exact_number_type(column, text, mixed)
    if type_ == "varchar":
        return None
    reading = TextReading("finite number", type_, decimal=decimal, bad_cells=infinite)
    assumed = dict(options.assumed).get(name)
    if options.decimal or options.as_written or not delimiter or delimiter == "," != assumed:
        return reading
    # Beside other delimiters than commas, points may separate thousands.
    may = "regexp_full_match(trim(x), '[+-]?(0|[1-9][0-9]{0,2}([.][0-9]{3})?)')"
    sums = f"bool_and({may}), min(trim(x)) filter (contains(x, '.'))"
    ((every, example),) = column.filter(_is_number(text)).aggregate(sums).fetchall()
    if not every or example is None:
        return reading
    other = NumberFormat(",")
    if assumed == other.decimal:
        return replace(reading, type="double", number_format=other, said=other.reading(example, False, ""))
    said = NumberFormat().reading(example, False, str(other.parse(example)))
    return replace(reading, said=said, assumed=decimal)


def detect_reading(
    relation: duckdb.DuckDBPyRelation, name: str, stated: bool, options: ReadOptions, delimiter: str
) -> tuple[TextReading | None, CellNote | None]:
    """Return how a column of texts is read, or None and a note if it stays texts.

    Args:
        relation: all rows of the file.
        name: the column.
        stated: whether the file states that the column holds texts; only dates are read then.
        options: the decimal separator, the format of dates and the formats of other files.
        delimiter: the delimiter of the file.
    """
    column = relation.project(f"{quoted_name(name)} as x")
    texts = first_texts(column, "x")
    decimal = options.decimal or "."
    plain = _is_number(_with_point("x", decimal))
    if not stated and any(PLAIN.fullmatch(text.replace(decimal, ".")) for text in texts):
        # A rare cell decides how all numbers are read: 0,5 shows that 1.234 is 1234.
        others = (
            column.filter(f"trim(x) <> '' and not coalesce({plain}, false)").distinct().limit(FIRST_TEXTS).fetchall()
        )
        found = (text.strip() for (text,) in others)
        texts = list(dict.fromkeys([*texts, *sorted(text for text in found if text.lower() not in MISSING)]))
    assumed = dict(options.assumed).get(name, "")
    assumed = assumed if "%" in assumed or assumed in (".", ",") else ""
    dates = candidate_formats(texts)
    for form in (assumed, options.date_format or ""):
        if "%" in form:
            dates = [form, *(each for each in dates if each != form)]
    # The spaces and hyphens of 030 123 456 separate no thousands.
    numbers = [] if stated or has_identifier_name(name) else _number_formats(texts, options.decimal)
    iso, zoned = (f"{iso_sql('x', type_)} is not null" for type_ in ("timestamp", "timestamptz"))
    # Tests that no text of the first rows passes are not made for all rows.
    written = [text.replace(decimal, ".") for text in texts]
    some_plain = not texts or any(map(PLAIN.fullmatch, written))
    some_iso = not texts or any(map(_ISO.match, texts))
    some_zoned = some_iso and any(split_zone(text)[1] for text in texts)
    tests = {
        "filled": f"{_CELL} <> ''",
        "present": f"{_CELL} not in ({', '.join(map(sql_text, MISSING))})",
        "plain": plain if some_plain else "false",
        "codes": "regexp_full_match(trim(x), '[+-]?0[0-9].*')" if some_plain or numbers else "false",
        "iso": iso if some_iso else "false",
        "clocks": f"{iso} and contains(x, ':')" if some_iso else "false",
        "zones": zoned if some_zoned else "false",
        **{form: f"{format_sql('x', form)} is not null" for form in dates},
        **{form.dump(): f"{form.sql('x', 'double')} is not null" for form in numbers},
    }
    counted = ", ".join(["count(*)", *(f"count(*) filter ({test})" for test in tests.values())])
    for part in (column.limit(_FIRST_ROWS), column):
        rows, *found = part.aggregate(counted).fetchall()[0]
        counts: dict[str, int] = dict(zip(tests, found, strict=True))
        best = max(counts["plain"], counts["iso"] + counts["zones"], *list(counts.values())[7:], 0)
        # The first rows decide about names and other texts.
        if counts["present"] and best < 0.01 * counts["present"]:
            return None, _remark(texts, stated) or (None if stated else _mark_note(part, name))
        if rows < _FIRST_ROWS:
            break
    reading = _choose(counts, dates, numbers, stated, options.date_format, assumed, decimal)
    if reading is not None and reading.number_format is not None:
        reading = _in_number_format(column, texts, {form: counts[form.dump()] for form in numbers}, assumed, delimiter)
    if reading is not None and not reading.type:
        reading = number_reading(relation, name, options, delimiter, mixed=True)
        if reading is not None:
            read = 0 if reading.noun == "whole number" else counts["plain"]
            return replace(reading, bad_cells=counts["filled"] - read), None
    elif reading is not None and reading.date_format:
        if reading.date_format != options.date_format:
            reading = _with_contradictions(column, reading, counts)
        reading = _with_iso_cells(column, reading, counts)
    elif reading is not None and reading.type in ("timestamp", "timestamptz") and not reading.date_format:
        digits = "coalesce(bool_or(regexp_matches(x, ':[0-9]{2}[.,][0-9]{7}')), false)"
        ((finer,),) = column.aggregate(digits).fetchall()
        reading = replace(reading, type=f"{reading.type}_ns") if finer else reading
    if reading is not None:
        zones = zone_reading(texts) if reading.type.startswith("timestamptz") else ""
        said = "; it ".join(filter(None, (reading.said, zones)))
        return replace(reading, said=said, bad_cells=counts["filled"] - reading.read(counts)), None
    if LEAST_SHARE * counts["filled"] <= counts["plain"] < counts["filled"] and not counts["codes"]:
        return None, CellNote(counts["plain"], total=counts["filled"])
    return None, _remark(texts, stated) or (None if stated else _mark_note(column, name))


def _mark_note(column: duckdb.DuckDBPyRelation, name: str) -> CellNote | None:
    """Return a note about a cell of a column of texts that marks a missing value in other files, such as "n/a"."""
    marks = ", ".join(sql_text(mark) for mark in MISSING[1:MARKS])
    found = column.filter(f"{_CELL} in ({marks})").aggregate("min(trim(x))").fetchall()
    mark = found[0][0] if found else None
    if mark is None:
        return None
    where = f"{quoted_name(name) if not name.isidentifier() else name} <> {sql_text(mark)}"
    return CellNote(remark=f"holds texts, and {mark!r} is one of them; --where {where!r} leaves it out")


def _choose(
    counts: Mapping[str, int],
    dates: Sequence[str],
    numbers: Sequence[NumberFormat],
    stated: bool,
    given: str | None,
    assumed: str,
    decimal: str,
) -> TextReading | None:
    """Return the reading that most cells allow, or None if the column stays texts.

    Args:
        counts: the number of cells that pass each test of `detect_reading`.
        dates: the formats of dates that were counted.
        numbers: the formats of numbers that were counted.
        stated: as in `detect_reading`.
        given: the format of dates that the user gives.
        assumed: the format of the column in other files.
        decimal: the decimal separator of numbers without a format.
    """
    by_date = {form: counts[form] for form in dates}
    most = max((counts[form.dump()] for form in numbers), default=0)
    plain, iso, zones = counts["plain"], counts["iso"], counts["zones"]
    best = max(plain, iso + zones, most, *by_date.values(), 0)
    if given and 2 * by_date[given] > counts["present"]:
        return _in_format(given, date_reading(given))
    if 2 * best <= counts["present"]:
        return None
    # Texts of digits with a leading zero are codes, such as postal codes.
    if plain == best and not counts["codes"] and not stated:
        return TextReading("finite number", "", decimal=decimal)
    if iso + zones == best:
        noun = f"date with{'' if zones > iso else 'out'} a time zone" if iso and zones else "date"
        return TextReading(noun, "timestamptz" if zones > iso else "timestamp" if counts["clocks"] else "date")
    if best in by_date.values():
        form, other = choose_format(by_date)
        if "%" in assumed and by_date[assumed] == best:
            form, other = assumed, ""
        reading = _in_format(form, date_reading(form, other), form if other else "")
        zoned = "%z" in form
        if any(count for each, count in by_date.items() if ("%z" in each) != zoned):
            reading = replace(reading, noun=f"date with{'' if zoned else 'out'} a time zone")
        return reading
    enough = most > MOST_TEXTS * counts["present"] or (numbers and numbers[0].kind != "unit")
    if numbers and most == best and not counts["codes"] and enough:
        return TextReading("finite number", "double", number_format=numbers[0])
    return None


def _in_format(form: str, said: str, assumed: str = "") -> TextReading:
    type_ = "timestamptz" if re.search("%[zZ]", form) else "timestamp" if re.search("%[HIMSf]", form) else "date"
    return TextReading(f"date in the format {form}", type_, form, said=said, assumed=assumed)


def _number_formats(texts: Sequence[str], decimal: str | None) -> list[NumberFormat]:
    """Return the formats of numbers that some texts may have, or none if no text has a separator or an affix."""
    affixes = affix_counts(texts)
    if not affixes:
        return []
    # Some cells of a column of amounts may lack the currency.
    affix = next((text for text, _ in affixes.most_common(2) if NumberFormat(affix=text).kind == "currency"), None)
    affix = affixes.most_common(1)[0][0] if affix is None else affix
    if NumberFormat(affix=affix).kind == "unknown":
        return []
    formats = [NumberFormat(each, affix) for each in ((decimal,) if decimal else (".", ","))]
    separated = [t for t in texts if not PLAIN.fullmatch(t) or (decimal == "," and "." in t)]
    return formats if any(f.parse(t) for t in separated for f in formats) else []


def _with_contradictions(
    column: duckdb.DuckDBPyRelation, reading: TextReading, counts: Mapping[str, int]
) -> TextReading:
    """Return the reading of a column of dates, which says if some cells have the day and the month exchanged."""
    form, other = reading.date_format, exchanged(reading.date_format)
    if other == form or not counts.get(other) or counts[form] == counts["present"]:
        return reading
    only = f"filter ({format_sql('x', other)} is not null and {format_sql('x', form)} is null)"
    ((count, example),) = column.aggregate(f"count(*) {only}, min(trim(x)) {only}").fetchall()
    if not count:
        return reading
    first = "month" if form.index("%d") < form.index("%m") else "day"
    cells = "1 cell has" if count == 1 else f"{count:,} cells have"
    said = (
        f"{date_reading(form)}, although {cells} the {first} first, such as {example!r}, so that others may have it "
        f"first, too; --date-format {other} (in Python: date_format) reads the {first} first"
    )
    return replace(reading, said=said)


def _with_iso_cells(column: duckdb.DuckDBPyRelation, reading: TextReading, counts: Mapping[str, int]) -> TextReading:
    """Return the reading of a column of dates in a format, which says if some cells are in ISO 8601."""
    form = reading.date_format
    if counts[form] == counts["filled"] or not reads_iso(form):
        return reading
    iso = f"filter ({format_sql('x', form)} is null and {reading.sql('x')} is not null)"
    ((count, example),) = column.aggregate(f"count(*) {iso}, min(trim(x)) {iso}").fetchall()
    cells = "1 cell is" if count == 1 else f"{count:,} cells are"
    return replace(reading, said=f"{reading.said}; {cells} in ISO 8601, such as {example!r}") if count else reading


def _in_number_format(
    column: duckdb.DuckDBPyRelation,
    texts: Sequence[str],
    counts: Mapping[NumberFormat, int],
    assumed: str,
    delimiter: str,
) -> TextReading:
    """Return how a column of formatted numbers is read: with the decimal separator that most cells fit."""
    ranked = sorted(counts, key=lambda form: -counts[form])
    form, others = ranked[0], [each for each in ranked[1:] if counts[each] == counts[ranked[0]]]
    other = ""
    if others:
        # Semicolons delimit cells where commas are decimal separators.
        decimal = assumed or ("," if delimiter == ";" else ".")
        form, second = sorted((form, *others), key=lambda each: each.decimal != decimal)
        pairs = ((text, form.parse(text), second.parse(text)) for text in texts)
        differing = next(((t, b) for t, a, b in pairs if a and b and float(a) != float(b)), None)
        other = "" if differing is None or assumed else str(differing[1])
        texts = [differing[0], *texts] if differing else texts
    tests = (
        "{0} is not null and regexp_matches({1}, '[.eE]')",
        "{0} is not null and abs({0}) >= 9223372036854775807",
        "{0} is not null and starts_with({2}, '(')",
    )
    names = form.sql("x", "double"), form.body("x"), form.trimmed("x")
    sums = ", ".join(f"count(*) filter ({test.format(*names)})" for test in tests)
    ((broken, large, parenthesized),) = column.aggregate(sums).fetchall()
    type_ = "double" if broken else "hugeint" if large else "bigint"
    parsed = [text for text in texts if form.parse(text)]
    example = parsed[0] if other else max(parsed, key=len, default="")
    said = form.reading(example, bool(parenthesized), other)
    return TextReading("finite number", type_, number_format=form, said=said, assumed=form.decimal if other else "")


def first_texts(relation: duckdb.DuckDBPyRelation, name: str) -> list[str]:
    """Return the most common texts of the first rows of a column, trimmed, without marks of missing cells."""
    text = f"trim({quoted_name(name)}::varchar)"
    distinct = relation.limit(_FIRST_ROWS).aggregate(f"{text} as t, count(*) as n", text)
    found = distinct.order("n desc, t").limit(2 * FIRST_TEXTS).fetchall()
    return [text for text, _ in found if text is not None and text.lower() not in MISSING][:FIRST_TEXTS]


def _remark(texts: Sequence[str], stated: bool) -> CellNote | None:
    remark = text_remark(texts, stated)
    return CellNote(remark=remark) if remark else None


def _is_number(cell: str) -> str:
    # DuckDB reads 3_5 as 35.
    return f"(isfinite(try_cast({cell} as double)) and not contains({cell}, '_'))"


def _with_point(cell: str, decimal: str) -> str:
    if decimal == ".":
        return f"trim({cell})"
    return f"(case when not contains({cell}, '.') then replace(trim({cell}), {sql_text(decimal)}, '.') end)"
