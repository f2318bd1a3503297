"""Columns that are named like identifiers, such as id, order_id, userId, customer_no, isbn13 or zip, and their numbers.

A name is split into words, without digits at their ends. It is that of an identifier if one of these holds:

    its last word     is a word such as id, isbn, phone or serial
    its first word    is such a word before others that only describe it, as in zip code or phone number; id before any
    its last words    are a thing that is numbered and a word such as number, code or key: account_number, custkey; or
                      any words and no, nr or nbr, or a compound with nummer: Roll No, Nr, Startnummer

Names with the word of a quantity, such as count, total or price, are those of quantities unless they end with id, and
so are number_of_rooms, no_of_items and education_num, in which no numbered thing precedes the number.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from qkv.core.printable import quoted_name
from qkv.core.typing import Float
from qkv.encoders.arrow_columns import null_mask, stored_numbers

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["as_integers", "has_identifier_name", "has_text_identifier_name", "is_mostly_whole", "whole_sql"]


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
    import pyarrow as pa

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
