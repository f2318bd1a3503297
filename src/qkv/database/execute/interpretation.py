"""Whether an answer is an average of the values or a vote over them.

Texts, categories and booleans vote, and so do numbers that are read as identifiers (see
`qkv.database.keys.identifiers`) unless `fit` is "mean". Other numbers and timestamps are averaged unless `fit` is
"vote", and vectors are always averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from qkv.core.checks import check_choice
from qkv.database.keys.identifiers import identifier_reason
from qkv.encoders.columns import Column
from qkv.errors import OptionError

__all__ = [
    "FITS",
    "check_fit",
    "check_threshold",
    "identifier_note",
    "is_vote",
    "reading_notes",
    "value_reason",
    "votes_by_kind",
]

FITS = ("mean", "vote", "local-linear")
"""The values of the argument `fit` of `Database.ask`; None: mean or vote, by the kind of the values."""


def check_fit(fit: str | None, name: str = "fit") -> None:
    """Raise an `OptionError` if `fit` is neither None nor one of `FITS`."""
    if fit is not None:
        check_choice(name, fit, FITS)


def check_threshold(threshold: object) -> None:
    """Raise an `OptionError` if the threshold of a match is neither None nor a number."""
    number = isinstance(threshold, Real) and not isinstance(threshold, bool) and not math.isnan(threshold)
    if threshold is not None and not number:
        raise OptionError(
            f"threshold must be a number, got {threshold!r}. Pass the smallest similarity, or the largest distance, of "
            "a match."
        )


def votes_by_kind(value: Column) -> bool:
    """Return whether the values can only vote: texts, categories and booleans."""
    return not value.traits.averaged


def value_reason(value: Column, largest: float) -> str:
    """Return why the numbers of a value column are read as identifiers, or "" if they are not.

    Args:
        value: the value column.
        largest: the largest magnitude of its selected numbers.
    """
    return "" if votes_by_kind(value) else identifier_reason(value, largest, "")


def is_vote(value: Column, reason: str, fit: str | None) -> bool:
    """Return whether answers are votes over a value column.

    Args:
        value: the value column.
        reason: the result of `value_reason`.
        fit: as in `Database.ask`.

    Raises:
        OptionError: The values are vectors, which cannot vote.
    """
    if value.kind == "vector" and fit == "vote":
        raise OptionError(f"fit must be 'mean' for the value {value.name}, which holds vectors, got 'vote'. Omit fit.")
    if votes_by_kind(value):
        return True
    return bool(reason) if fit is None else fit == "vote"


def identifier_note(value: Column, reason: str) -> str:
    """Return a sentence which says that the values are read as identifiers, and how to average them."""
    return f"{value.name} is read as an identifier, because {reason}: its values vote; fit mean averages them"


def reading_notes(columns: Sequence[Column], keys: Sequence[Column]) -> tuple[str, ...]:
    """Return a sentence about each column in the format of a file, and each key of timestamps with a time zone."""
    zones = ((column.name, getattr(column.type, "tz", None)) for column in keys if column.kind == "timestamp")
    notes = [
        f"{name} is in the time zone {zone}; queries without a time zone are read in it" for name, zone in zones if zone
    ]
    readings = {column.name: column.reading for column in columns if column.reading}
    # Stores of earlier versions have the format alone.
    dates = {column.name: f"is read in the format {column.date_format}" for column in keys if column.date_format}
    return (*notes, *(f"{name} {reading}" for name, reading in {**dates, **readings}.items()))
