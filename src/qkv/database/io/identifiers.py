"""Recognition of columns of identifiers, which are compared by equality rather than by distance or spelling.

An identifier is a whole number or a text whose neighbors mean nothing. A column holds identifiers if one of these
holds:

    whole numbers    the name is that of an identifier, such as id, order_id, userId, isbn or zip
    whole numbers    a number is 2^53 or larger in magnitude, where float64 does not represent all integers
    texts            more than half of them are UUIDs
    texts            more than nine of ten consist of digits, or more than half if the column is named like an
                     identifier; text files with numbers such as 02139 are read this way
    texts            more than nine of ten are codes, such as u1002, AB-101 and 2024-Q1: they have a digit, no sign
                     of a currency, and no space or more digits than letters
    texts            more than half are codes or one word, and the last word of the column's name is that of an
                     identifier of texts, such as user_id, sku, country code, ticker or invoice number

Floats named like identifiers, more than half of which are whole numbers, become whole numbers when they are read: with
a missing cell, pandas makes floats of integers. The other cells are excluded and counted, see
`qkv.database.io.bad_cells`. Texts of another form remain keys.

A name is split into words, without digits at their ends. It is that of an identifier if one of these holds:

    its last word     is a word such as id, isbn, phone or serial
    its first word    is such a word before others that only describe it, as in zip code or phone number; id before any
    its last words    are a thing that is numbered and a word such as number, code or key: account_number, custkey; or
                      any words and no, nr or nbr, or a compound with nummer: Roll No, Nr, Startnummer

Names with the word of a quantity, such as count, total or price, are those of quantities unless they end with id, and
so are number_of_rooms, no_of_items and education_num, in which no numbered thing precedes the number.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from unicodedata import category

import numpy as np
import pyarrow as pa

from qkv.core.printable import quoted_name
from qkv.core.typing import Bool, Float
from qkv.encoders.arrow_columns import null_mask, stored_numbers
from qkv.encoders.columns import Column
from qkv.encoders.exact_cells import is_uuid

if TYPE_CHECKING:
    import duckdb


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IDS = frozenset({"id", "ids", "uid", "uuid", "guid", "pid"})
_WORDS = _IDS | _words("""
    isbn issn ean upc gtin asin ssn sku plz barcode zip zipcode postcode serial phone telephone fax msisdn imei imsi
    iban siren siret npi cusip fips orcid pmid telefon telefax postleitzahl pincode eircode cep cpf cnpj nif dni bsn
    """)
_NUMBERS = _words("no nr nbr num number nummer numero code key")
_ABBREVIATIONS = _words("no nos nr nbr")
_DESCRIBING = _NUMBERS | _words("codes numbers nos digits hash home work mobile cell private office")
_THINGS = _words("""
    account acct admission application article artikel asset bank barcode batch bestell bill booking branch card
    case catalog catalogue certificate charge chassis check cheque claim client company contact contract credit cust
    customer debtor department dept device document driver emp employee enrollment enrolment equipment event exam
    fax film flight folio insurance inv inventory invoice item job konto kunden licence license loan lot
    matriculation medical member membership mobile model movie object order organisation organization parcel part
    passport patient payment permit personal personnel phone pin plate policy post postal product project purchase
    receipt rechnung rechnungs record ref reference registration request reservation roll room routing seat security
    serial shipment social sort staff stock student subscriber supplier tax telefon telephone ticket tracking trans
    transaction tweet tx user vat vehicle vendor voter voucher zip
    """)
_QUANTITIES = _words("""
    count counts cnt total sum avg average mean median std min max rate ratio share pct percent per amount amt age
    length len size duration price cost value score distance density population change diff delta days hours minutes
    seconds months years of usage quantity qty
    """)
_JOINED = re.compile(f"({'|'.join(sorted(_THINGS, key=len, reverse=True))})s?(id|no|nr|num|number|nummer|code|key)")
# Words of columns of texts that are identifiers; in a column of numbers they are often quantities.
_WORDS_OF_TEXTS = _NUMBERS - {"key"} | _words("""
    codes ticker tickers symbol sedol isin figi lei bic vin iata icao iso mpn ndc doi plate hash email url uri
    """)
_MOST = 2.0**63


@cache
def has_identifier_name(name: str) -> bool:
    """Return whether a column is named like an identifier.

    Example:
        >>> names = ("order_id", "userID", "zip code", "isbn13", "Roll No", "paid", "number_of_rooms", "phone_minutes")
        >>> [name for name in names if has_identifier_name(name)]
        ['order_id', 'userID', 'zip code', 'isbn13', 'Roll No']
    """
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name.replace("IDs", "Ids"))
    words = [word.lower().rstrip("0123456789") for word in re.split(r"[^A-Za-z0-9]+", separated)]
    words = [word for word in words if word]
    if not words:
        return False
    if words[-1] in _IDS or words[0] == "id":
        return True
    if not _QUANTITIES.isdisjoint(words):
        return False
    if words[-1] in _WORDS or (words[0] in _WORDS and _DESCRIBING.issuperset(words[1:])):
        return True
    if (
        (words[-1] in _ABBREVIATIONS and "yes" not in words)
        or words[-1].endswith("nummer")
        or words == ["code", "postal"]
    ):
        return True
    numbered = words[-1] in _NUMBERS and len(words) > 1 and words[-2].removesuffix("s") in _THINGS
    return numbered or _JOINED.fullmatch(words[-1]) is not None


def has_text_identifier_name(name: str) -> bool:
    """Return whether a column of texts is named like an identifier: also by a last word such as code or ticker.

    Example:
        >>> [name for name in ("sku", "airport_code", "Invoice No", "code name") if has_text_identifier_name(name)]
        ['sku', 'airport_code', 'Invoice No']
    """
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower().rstrip("0123456789_ "))
    return has_identifier_name(name) or words[-1] in _WORDS_OF_TEXTS


def as_integers(column: pa.ChunkedArray) -> tuple[pa.Array | None, Float[np.ndarray, " other"]]:
    """Return a column of floats as integers, and the cells that are no whole numbers, which are null.

    Return None in place of the integers if half of the finite cells are no whole numbers of 64 bits.

    Example:
        >>> import pyarrow as pa
        >>> integers, other = as_integers(pa.chunked_array([[1001.0, None, 1002.0, 12.5]]))
        >>> integers.to_pylist(), other.tolist()
        ([1001, None, 1002, None], [12.5])
    """
    cells = np.concatenate([np.zeros(0), *(stored_numbers(chunk).astype(np.float64) for chunk in column.chunks)])
    cells[np.concatenate([np.zeros(0, bool), *map(null_mask, column.chunks)])] = np.nan
    finite = np.isfinite(cells)
    whole = finite & (np.floor(np.where(finite, cells, 0.5)) == cells) & (np.abs(cells) < _MOST)
    other = cells[~whole & ~np.isnan(cells)]
    if 2 * whole.sum() <= finite.sum():
        return None, other
    return pa.array(np.where(whole, cells, 0.0).astype(np.int64), mask=~whole), other


def whole_sql(number: str) -> str:
    """Return the SQL test whether a float is a whole number of 64 bits."""
    return f"(isfinite({number}) and {number} = floor({number}) and abs({number}) < {_MOST:.0f})"


def is_mostly_whole(relation: duckdb.DuckDBPyRelation, name: str, number: str, entirely: bool = False) -> bool:
    """Return whether a column is named like an identifier, and more than half of its finite numbers are whole.

    Args:
        relation: the rows.
        name: the column.
        number: the SQL expression of the number in a cell `x`.
        entirely: whether all numbers must be finite and whole.
    """
    if not has_identifier_name(name):
        return False
    numbers = relation.project(f"{quoted_name(name)} as x").project(f"{number} as x")
    counts = f"count(*) filter ({whole_sql('x')}), count(*) filter (isfinite(x)), count(*) filter (isinf(x))"
    ((whole, finite, infinite),) = numbers.aggregate(counts).fetchall()
    return bool(whole == finite > 0 == infinite if entirely else 2 * whole > finite)


_DIGIT = re.compile("[0-9]")
_TEXTS_AT_ONCE = 256
_SHORTEST_UUID = 32
_LARGEST = 2.0**53
# More than this share of the texts of a column that is not named like an identifier consists of digits.
_LEAST_SHARE = 0.9
_REASONS = {
    "uuid": "every text is a UUID",
    "mostly uuid": "more than half of its texts are UUIDs",
    "digits": "every text consists of digits",
    "mostly digits": "nearly every text consists of digits",
    "codes": "every text is a code of letters and digits",
    "mostly codes": "nearly every text is a code of letters and digits",
    "named": "it is named like an identifier",
}


def is_whole_number(column: Column) -> bool:
    """Return whether a column has an Arrow type of integers, or of decimals without digits after the point."""
    if column.kind != "number":
        return False
    return bool(pa.types.is_integer(column.type) or (pa.types.is_decimal(column.type) and column.type.scale <= 0))


@dataclass(frozen=True)
class TextForms:
    """How many of some texts have which form. Counts of several parts of a column are added.

    Attributes:
        texts: the number of texts.
        uuids: the number of UUIDs.
        digits: the number of texts that consist of digits.
        codes: the number of codes, with those of digits.
        single: the number of texts that are codes or one word.
    """

    texts: int = 0
    uuids: int = 0
    digits: int = 0
    codes: int = 0
    single: int = 0

    @staticmethod
    def count(column: Column, selected: Bool[np.ndarray, " rows"]) -> TextForms:
        """Return the counts of the selected texts of a column; 0 for other kinds."""
        if column.kind != "text":
            return TextForms()
        texts, numbers = column.distinct
        rows = np.bincount(numbers[selected], minlength=len(texts))
        uuids, digits, codes = _forms(list(texts))
        single = codes | np.array([" " not in text for text in texts], bool)
        return TextForms(int(rows.sum()), *(int(rows[form].sum()) for form in (uuids, digits, codes, single)))

    def __add__(self, other: TextForms) -> TextForms:
        own, more = (dataclasses.astuple(each) for each in (self, other))
        return TextForms(*(one + two for one, two in zip(own, more, strict=True)))

    def form(self, name: str) -> str:
        """Return the form of the texts of the column `name`, or "" if they have none.

        "uuid", "digits" and "codes" mean all texts, "mostly uuid", "mostly digits" and "mostly codes" not all; "named"
        means that the column is named like an identifier.
        """
        if 2 * self.uuids > self.texts:
            return "uuid" if self.uuids == self.texts else "mostly uuid"
        least = 0.5 if has_identifier_name(name) else _LEAST_SHARE
        if self.digits > least * self.texts:
            return "digits" if self.digits == self.texts else "mostly digits"
        if self.codes > _LEAST_SHARE * self.texts:
            return "codes" if self.codes == self.texts else "mostly codes"
        return "named" if has_text_identifier_name(name) and 2 * self.single > self.texts else ""


def _forms(texts: list[str]) -> Bool[np.ndarray, "3 texts"]:
    """Return whether each text is a UUID, consists of digits, and is a code; short texts without digits are none."""
    found = np.zeros((3, len(texts)), bool)
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[start : start + _TEXTS_AT_ONCE]
        if _DIGIT.search(" ".join(part)) is not None or max(map(len, part)) >= _SHORTEST_UUID:
            found[:, start : start + len(part)] = [list(map(form, part)) for form in (is_uuid, _is_digits, is_code)]
    return found


def identifier_reason(column: Column, largest: float, form: str) -> str:
    """Return why a column holds identifiers, as the end of a sentence; "" if it does not hold identifiers.

    Args:
        column: the column.
        largest: the largest magnitude of the selected numbers.
        form: the form of the selected texts, see `TextForms.form`.
    """
    if form:
        return _REASONS[form]
    if not is_whole_number(column):
        return ""
    if has_identifier_name(column.name):
        return "its whole numbers are named like identifiers"
    return "it holds whole numbers of 2^53 or more" if largest >= _LARGEST else ""


def is_code(text: str) -> bool:
    """Return whether a text is a code: it has a digit, no sign of a currency, and no space or more digits than letters.

    Example:
        >>> [text for text in ("u1002", "2024-Q1", "+1 555 0100", "Rocky 2", "denver", "$5") if is_code(text)]
        ['u1002', '2024-Q1', '+1 555 0100']
    """
    if _DIGIT.search(text) is None or any(category(character) == "Sc" for character in text):
        return False
    return " " not in text or sum(map(str.isdigit, text)) > sum(map(str.isalpha, text))


def key_note(name: str, reason: str) -> str:
    """Return a sentence which says that a key is read as an identifier, and how its numbers are compared instead."""
    remedy = "; a score such as gaussian compares its numbers" if "whole numbers" in reason else ""
    return f"{name} is read as an identifier, because {reason}{remedy}"


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
