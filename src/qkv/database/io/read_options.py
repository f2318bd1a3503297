"""Options of delimited files, such as encoding and delimiter."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from qkv.core.checks import check_choice
from qkv.core.times import is_date_format
from qkv.errors import OptionError


@dataclass(frozen=True)
class ReadOptions:
    """Options of delimited and JSON files.

    Attributes:
        encoding: an encoding that Python knows, such as "utf-16", "latin-1" or "cp1252"; None: UTF-8.
        delimiter: the character between the cells of delimited files; None: detected.
        decimal: the decimal separator of delimited files, "." or ","; None: ".".
        on_bad_cell: what to do with cells that are no finite numbers in a column of numbers, or no dates in a column
            of dates: "exclude" makes them missing and counts them, "refuse" raises an error, "text" reads the column
            as texts.
        date_format: the format of dates that are not in ISO 8601, by directives of `datetime.strptime`, such as
            "%m/%d/%Y"; None: detected.
        as_written: whether columns of texts, and of dates that are not in ISO 8601, are read as texts.
        header_row: the line of delimited files that holds the names of columns, from 1; None: detected.
        skip_footer: the number of lines at the end of delimited files that are left out; None: detected.
        assumed: pairs of a column and the format that it has in other files, which is taken if no cell decides
            between two formats.

    Raises:
        OptionError: The encoding or the format of dates is unknown, a separator is not one character, or a choice
            does not exist.
    """

    encoding: str | None = None
    delimiter: str | None = None
    decimal: str | None = None
    on_bad_cell: str = "exclude"
    date_format: str | None = None
    header_row: int | None = None
    skip_footer: int | None = None
    as_written: bool = False
    assumed: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_choice("on_bad_cell", self.on_bad_cell, ("exclude", "refuse", "text"))
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
                "".encode(self.encoding)
            except (LookupError, ValueError):
                raise OptionError(
                    f"encoding must be a text encoding, got {self.encoding!r}. Use utf-8, utf-16, latin-1 or cp1252."
                ) from None
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise OptionError(f"delimiter must be one character, got {self.delimiter!r}. Use, for example, ';'.")
        if self.decimal not in (None, ".", ","):
            raise OptionError(f"decimal must be '.' or ',', got {self.decimal!r}. Omit it to let the cells decide.")
        if self.date_format is not None and not is_date_format(self.date_format):
            raise OptionError(
                f"date_format must be one format of dates, got {self.date_format!r}. Use directives of strptime, such "
                "as %d.%m.%Y, %m/%d/%Y or %d-%b-%y."
            )
        for name, least in (("header_row", 1), ("skip_footer", 0)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise OptionError(f"{name} must be at least {least}, got {number}. It counts lines.")
        if self.decimal == "," == self.delimiter:
            raise OptionError("decimal must differ from delimiter, got ',' for both. Change one of them.")
