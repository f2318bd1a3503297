"""Normalizers as records of JSON types, and digests of scores and queries, by which partial results are compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import qkv.normalizers as normalizer_module
from qkv.core.checksums import digest
from qkv.core.parts import Part
from qkv.core.untrusted_json import Fields
from qkv.errors import DamagedError, OptionError, QkvError
from qkv.normalizers.base import Normalizer

__all__ = ["describe_score", "normalizer_from_record", "normalizer_record", "query_digest"]


def normalizer_record(normalizer: Normalizer) -> dict[str, Any]:
    """Return a normalizer as a record of its class and its fields.

    Raises:
        OptionError: The class is not one of `qkv.normalizers`, or a field is an array.

    Example:
        >>> normalizer_record(normalizer_module.TopK(3))
        {'class': 'TopK', 'k': 3, 'normalizer': {'class': 'Softmax', 'temperature': 1.0, 'sink': None}}
    """
    name = type(normalizer).__name__
    if getattr(normalizer_module, name, None) is not type(normalizer):
        raise OptionError(
            f"normalizer must be a class of qkv.normalizers to be saved with a partial result, got {normalizer}. "
            "Choose one of them."
        )
    record: dict[str, Any] = {"class": name}
    for field in dataclasses.fields(normalizer):
        value = getattr(normalizer, field.name)
        if isinstance(value, Normalizer):
            value = normalizer_record(value)
        elif value is not None and not isinstance(value, (int, float, str)):
            raise OptionError(
                f"{field.name} of the normalizer {name} must be a number to be saved with a partial result, got "
                f"{type(value).__name__}. Pass a number."
            )
        record[field.name] = value
    return record


def normalizer_from_record(record: object, name: str) -> Normalizer:
    """Return the normalizer of a record, after checking its class and fields.

    Args:
        record: as returned by `normalizer_record`, possibly damaged or crafted.
        name: names the record in errors.

    Raises:
        DamagedError: The record does not describe a normalizer of `qkv.normalizers`.
    """
    fields = Fields(record, name)
    kind = fields.text("class")
    known = getattr(normalizer_module, kind, None) if kind in normalizer_module.__all__ else None
    values = {key: value for key, value in fields.fields.items() if key != "class"}
    parsed = {
        key: normalizer_from_record(each, name) if isinstance(each, dict) else each for key, each in values.items()
    }
    plain = all(each is None or isinstance(each, (int, float, str, Normalizer)) for each in parsed.values())
    try:
        if plain and isinstance(known, type) and issubclass(known, Normalizer) and known is not Normalizer:
            return known(**parsed)
    except (TypeError, QkvError):
        pass
    raise DamagedError(
        f"the normalizer in {name} must be one of qkv.normalizers with valid fields, got {kind!r}. Compute the partial "
        "result again."
    )


def describe_score(score: Part) -> str:
    """Return a text that is equal for scores that give equal logits: the score, and a digest of its arrays."""
    arrays = [np.asarray(array) for array in score.arrays()]
    if not any(array.ndim for array in arrays):
        return str(score)
    content = b"".join(f"{array.dtype} {array.shape}".encode() + array.tobytes() for array in arrays)
    return f"{score} {digest(content)[:16]}"


def query_digest(query: np.ndarray, missing: np.ndarray) -> str:
    """Return the SHA-256 of the query array of the engine, and of which queries are missing."""
    content = [f"{query.shape} {missing.tolist()}".encode()]
    for field in query.dtype.names or ("",):
        cells = query[field] if field else query
        content.append(repr(cells.tolist()).encode() if cells.dtype == object else cells.astype(np.float64).tobytes())
    return digest(b"\0".join(content))
