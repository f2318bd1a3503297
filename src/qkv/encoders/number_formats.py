"""Formats of numbers in texts: separated thousands, decimal commas, parentheses, currencies, percent and units.

A cell is a sign, a number and one affix before or behind it, such as "$" or "kg". A column has one affix and one
decimal separator. `1,203` may be 1203 or 1.203: if no cell of the column decides, the delimiter of the file does, as
decimal commas go with semicolons, and the reading of the column says so. Percentages are read as their numbers: 13% is
13, not 0.13.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from qkv.core.printable import sql_text

_CODES = """
USD EUR GBP JPY CHF CNY INR SEK NOK DKK AUD CAD NZD PLN CZK HUF BRL MXN ZAR TRY KRW SGD HKD kr kr. Fr. Fr SFr. zł Kč Ft
Rs Rs. R$ US$ A$ C$ NZ$ HK$ S$
"""
_PERCENT = ("%", "percent", "pct")
_UNITS = """
nm µm um mm cm dm m km in ft yd mi mg g kg t lb lbs oz ml mL cl dl l L m² m2 m^2 m³ m3 km² km2 ha ft² sqft sqm ns
µs ms s sec min h hr hrs hours d days weeks months years yrs °C °F °K ° W kW MW GW Wh kWh MWh GWh Hz kHz MHz GHz Pa hPa
kPa MPa bar mbar psi J kJ MJ cal kcal B kB KB MB GB TB KiB MiB GiB bit kbit Mbit km/h mph m/s kn mol mmol ppm ppb px pt
dB mV kV mA bp k K bn
"""
_SPACES = " \t\u00a0\u2009\u202f"
_GROUPS = {".": (",", f"[{_SPACES}]", "['’]"), ",": ("[.]", f"[{_SPACES}]", "['’]")}
_PARTS = re.compile(rf"([^0-9]*?)(\.?[0-9](?:[0-9.,'’{_SPACES}]*[0-9])?(?:[eE][+-]?[0-9]+)?)([^0-9]*|[^0-9]+[23])")
_NOT_AFFIX = f"()+-−{_SPACES}"


@dataclass(frozen=True)
class NumberFormat:
    """The format of the numbers of a column of texts.

    Attributes:
        decimal: the decimal separator, "." or ",".
        affix: a currency, "%" or a unit beside each number; "" for none.
    """

    decimal: str = "."
    affix: str = ""

    @staticmethod
    def load(dumped: str) -> NumberFormat:
        """Return the format of a text of `dump`."""
        return NumberFormat(**json.loads(dumped))

    def dump(self) -> str:
        """Return the format as JSON text, for the metadata of a column."""
        return json.dumps(asdict(self))

    @property
    def kind(self) -> str:
        """What the affix is: "" for none, "currency", "percent", "unit" or "unknown"."""
        return _kind(self.affix)

    @property
    def pattern(self) -> str:
        """A regular expression of the cells in this format, as RE2 and `re` read it."""
        grouped = "|".join(f"[0-9]{{1,3}}(?:{group}[0-9]{{3}})+" for group in _GROUPS[self.decimal])
        if self.decimal == ".":
            grouped += "|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}"  # lakhs and crores
        body = f"(?:{grouped}|[0-9]+)(?:[{self.decimal}][0-9]*)?|[{self.decimal}][0-9]+"
        body = rf"(?:{body})(?:[eE][+-]?[0-9]+)?"
        gap, affix = f"[{_SPACES}]*", re.escape(self.affix)
        before = rf"(?:{affix}{gap})?" if self.affix and self.kind == "currency" else ""
        signed = rf"(?:[+-]?{gap}{before}" + (rf"|{affix}{gap}[+-]{gap})" if before else ")")
        behind = f"(?:{gap}{affix})" + "?" * (self.kind == "currency") if self.affix else ""
        return rf"{signed}{body}{behind}-?|\({gap}{before}{body}{behind}{gap}\)"

    def sql(self, cell: str, type_: str) -> str:
        """Return the SQL expression of the number in a cell as a DuckDB type, which is null for other cells."""
        sign = rf"case when regexp_matches({self._bare(cell)}, '^[^0-9]*[(-]|-$') then -1 else 1 end"
        number = f"try_cast({self.body(cell)} as {type_})"
        return f"case when {self.matches(cell)} and isfinite({number}::double) then ({sign}) * {number} end"

    def body(self, cell: str) -> str:
        """Return the SQL expression of the digits, the decimal point and the exponent of a cell in this format."""
        body = f"regexp_replace({self._bare(cell)}, {sql_text(self._dropped)}, '', 'g')"
        return f"replace({body}, ',', '.')" if self.decimal == "," else body

    def _bare(self, cell: str) -> str:
        text = self.trimmed(cell)
        return f"trim(replace({text}, {sql_text(self.affix)}, ''), {sql_text(_SPACES)})" if self.affix else text

    def matches(self, cell: str) -> str:
        """Return the SQL condition that a cell is a number in this format."""
        return f"regexp_full_match({self.trimmed(cell)}, {sql_text(self.pattern)})"

    def trimmed(self, cell: str) -> str:
        """Return the SQL expression of a cell without white space around it and with the minus sign of ASCII."""
        return f"replace(trim({cell}, {sql_text(_SPACES)}), '−', '-')"

    @property
    def _dropped(self) -> str:
        # Signs, but not that of an exponent, brackets and the separators of thousands.
        separator = "," if self.decimal == "." else "."
        return rf"^[+(-]+|^[{_SPACES}]+[+-]|[-)]$|[{_SPACES}'’{separator}]"

    def parse(self, text: str) -> str | None:
        """Return the number in a text of this format as Python writes it, or None for another text.

        Example:
            >>> NumberFormat(",", "€").parse("€ 1.203,50"), NumberFormat().parse("(1,203)"), NumberFormat().parse("x")
            ('1203.50', '-1203', None)
        """
        text = text.strip(_SPACES).replace("−", "-")
        if re.fullmatch(self.pattern, text) is None:
            return None
        bare = text.replace(self.affix, "").strip(_SPACES) if self.affix else text
        body = re.sub(self._dropped, "", bare).replace(",", ".")
        return f"-{body}" if re.search("^[^0-9]*[(-]|-$", bare) else body

    def reading(self, example: str, parenthesized: bool, other: str) -> str:
        """Return how the numbers are read, as the end of a sentence about the column.

        Args:
            example: a cell in this format.
            parenthesized: whether a cell is in parentheses.
            other: how the example would be read with the other decimal separator; "" if some cell decides.
        """
        kinds = {
            "percent": "numbers of percent",
            "currency": f"amounts of {self.affix}",
            "unit": f"numbers of {self.affix}",
        }
        commas = " with decimal commas" * (self.decimal == "," and "," in example)
        said = f"is read as {kinds.get(self.kind, 'numbers')}{commas}, such as {example!r} as {self.parse(example)}"
        if parenthesized:
            said += "; numbers in parentheses are negative"
        if other:
            decimal = "," if self.decimal == "." else "."
            said += (
                f"; no cell decides about the decimal separator, and --decimal {decimal} reads {example!r} as {other}"
            )
        return said


def affix_counts(texts: Iterable[str]) -> Counter[str]:
    """Return the number of texts that are a number beside an affix, by affix; "" for numbers without one.

    Example:
        >>> affix_counts(["5 kg", "7 kg", "(1,203)", "12 Elm St 4"])
        Counter({'kg': 2, '': 1})
    """
    counts: Counter[str] = Counter()
    for text in texts:
        parts = _PARTS.fullmatch(text.strip(_SPACES)) if len(text) < 60 else None
        if parts is None:
            continue
        before, behind = (parts[index].strip(_NOT_AFFIX) for index in (1, 3))
        # Only currencies stand before a number.
        if not (before and behind) and (not before or _kind(before) == "currency"):
            counts[before or behind] += 1
    return counts


def _kind(affix: str) -> str:
    if not affix:
        return ""
    if affix in _CODES.split() or (len(affix) == 1 and unicodedata.category(affix) == "Sc"):
        return "currency"
    return "percent" if affix in _PERCENT else "unit" if affix in _UNITS.split() else "unknown"
