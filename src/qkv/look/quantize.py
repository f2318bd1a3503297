"""Quantize attention weights to codes of 16 bits with three significant digits, and reduce attention maps.

A code holds the sign, the decimal exponent and three decimal digits of a weight, so that a page prints every weight as
it would be printed from the exact number. Codes increase with the weights. Special codes mark masked pairs, for which
there is no weight, and weights that are not finite.

    0                                    masked pair
    32768 ± (2 + 900 · (e − exponent) + digits − 100)    ± digits · 10^(e − 2), with digits from 100 to 999
    32768 ± 1                            a weight of smaller magnitude than 10^exponent
    32768                                0
    65535                                NaN or infinite
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from qkv.core.typing import ArrayLike, Bool, Float, Int, Num, Shaped

MASKED = 0
"""Code of a pair that the mask excludes."""
THUMBNAIL_SIZE = 32
"""Pixels along each side of a thumbnail; the thumbnails of 144 heads take 295 kB."""

_ZERO = 2**15
_NOT_FINITE = 2**16 - 1
_DECADES = 36
"""Number of decimal exponents that codes distinguish, one of them above the exponent of the largest weight."""
_DIGITS = 900
_TINY = 1e-45
"""Value of the codes next to zero, a positive number that also float32 distinguishes from 0."""
_LOW, _HIGH = -320, 308
_POWERS = np.array([float(f"1e{n}") for n in range(_LOW, _HIGH + 1)])
"""Powers of ten, correctly rounded; those below the smallest float are 0."""


def quantize(
    weights: ArrayLike, allowed: Bool[np.ndarray, "*#maps q k"] | None = None, exponents: ArrayLike | None = None
) -> tuple[Num[np.ndarray, "*maps q k"], Int[np.ndarray, "*maps"]]:
    """Quantize attention maps to uint16 codes of three significant digits.

    Args:
        weights: `(*maps, q, k)` of any supported array library.
        allowed: `(*maps, q, k)` or broadcastable to it, whether the query may attend to the key; None: all pairs.
        exponents: `(*maps)`, the smallest decimal exponent that the codes of each map distinguish; None: `exponent_of`
            the map.

    Returns:
        The codes, `(*maps, q, k)`, and the exponent of each map, `(*maps)`, which `dequantize` needs.

    Example:
        >>> codes, exponents = quantize(np.array([[0.25, -0.000123456], [0.0, 1.0]]))
        >>> dequantize(codes, exponents).tolist()
        [[0.25, -0.000123], [0.0, 1.0]]
    """
    array = to_numpy(weights)
    *maps, q, k = array.shape
    panels = array.reshape(-1, q, k)
    visible = np.broadcast_to(True if allowed is None else allowed, array.shape).reshape(-1, q, k)
    given = list(map(exponent_of, panels)) if exponents is None else np.broadcast_to(exponents, tuple(maps)).reshape(-1)
    used, codes = np.asarray(given, np.int16), np.empty((len(panels), q, k), np.uint16)
    for i, panel in enumerate(panels):  # one map at a time, because the intermediate arrays are in float64
        codes[i] = np.where(visible[i], _encode(panel, int(used[i])), MASKED)
    return codes.reshape(array.shape), used.reshape(maps)


def exponent_of(weights: Num[np.ndarray, "*shape"]) -> int:
    """Return the smallest decimal exponent that the codes of a map distinguish, 34 below that of its largest weight."""
    magnitude = np.abs(weights)
    largest = float(magnitude.max(initial=0.0, where=np.isfinite(magnitude)))
    decade = int(_decades(np.asarray([largest]))[0]) if largest > 0 else 0
    return max(decade, _LOW + 60) - _DECADES + 2


def dequantize(codes: Num[np.ndarray, "*maps q k"], exponents: ArrayLike) -> Float[np.ndarray, "*maps q k"]:
    """Return the weights in float64 that the codes and exponents returned by `quantize` represent.

    Masked pairs are 0, and weights that are not finite are NaN.
    """
    given, weights = np.broadcast_to(np.asarray(exponents), codes.shape[:-2]), np.empty(codes.shape)
    for at in np.ndindex(given.shape):
        weights[at] = _code_table(int(given[at]))[codes[at]]
    return weights


@lru_cache(maxsize=16)
def _code_table(exponent: int) -> Float[np.ndarray, " codes"]:
    """Return the weight that each of the 65,536 codes of a map with this exponent represents."""
    index = np.arange(2**16) - _ZERO
    place = np.abs(index) - 2
    decades, digits = exponent + place // _DIGITS, place % _DIGITS + 100
    # Powers of ten up to 22 are exact, so that the quotient is the float nearest to the decimal number.
    values = np.where(
        decades <= 2, digits / _power(np.maximum(2 - decades, 0)), digits * _power(np.maximum(decades - 2, 0))
    )
    values = np.copysign(np.where(place < 0, np.where(index == 0, 0.0, _TINY), values), index)
    values[[MASKED, _ZERO, _NOT_FINITE]] = 0.0, 0.0, np.nan
    return values


def pool_codes(codes: Num[np.ndarray, "*maps q k"], rows: int, columns: int) -> Num[np.ndarray, "*maps rows columns"]:
    """Reduce each map of codes to at most `rows` × `columns` cells, the weight of largest magnitude in each.

    A cell is masked if all its pairs are masked, and not finite if one of its weights is not.
    """
    if not ((codes < _ZERO) & (codes != MASKED)).any():
        return max_pool(codes, rows, columns)
    # The magnitude decides first, then the sign.
    index = codes.astype(np.int32) - _ZERO
    order = np.where(codes == MASKED, 0, 2 * np.abs(index) + (index > 0) + 1)
    pooled = max_pool(order, rows, columns) - 1
    return np.where(pooled < 0, MASKED, _ZERO + np.where(pooled % 2, pooled // 2, -(pooled // 2))).astype(np.uint16)


def thumbnails(codes: Num[np.ndarray, "heads q k"], size: int = THUMBNAIL_SIZE) -> Num[np.ndarray, "heads size size"]:
    """Resize each map of codes to `size` × `size` pixels. A pixel is the largest magnitude that it covers.

    Example:
        >>> codes, exponents = quantize(np.diag([0.1, 0.2, 0.3, 0.4])[None])
        >>> dequantize(thumbnails(codes, 2), exponents).tolist()
        [[[0.2, 0.0], [0.0, 0.4]]]
    """
    codes = pool_codes(codes, size, size)
    rows, columns = (np.arange(size) * length // size for length in codes.shape[1:])
    return codes[:, rows[:, None], columns]


def max_pool(panel: Num[np.ndarray, "*maps q k"], rows: int, columns: int) -> Num[np.ndarray, "*maps rows columns"]:
    """Reduce each map to at most `rows` × `columns` cells. A cell is the maximum of the weights that it covers.

    Example:
        >>> max_pool(np.diag([0.0, 0.0, 0.0, 1.0]), 2, 2).tolist()
        [[0.0, 0.0], [0.0, 1.0]]
    """
    for axis, cells in ((-2, rows), (-1, columns)):
        length = panel.shape[axis]
        if length > cells:
            # `reduceat` takes up to 30 times as long.
            parts = np.split(panel, np.arange(1, cells) * length // cells, axis=axis)
            panel = np.stack([part.max(axis=axis) for part in parts], axis=axis)
    return panel


def pool_largest(
    panel: Float[np.ndarray, "*maps q k"], rows: int, columns: int
) -> Float[np.ndarray, "*maps rows columns"]:
    """Reduce each map to at most `rows` × `columns` cells, each the weight of largest magnitude; NaN if all are NaN."""
    empty = np.isnan(panel)
    most = max_pool(np.where(empty, -np.inf, panel), rows, columns)
    least = -max_pool(np.where(empty, -np.inf, -panel), rows, columns)
    return np.where(max_pool((~empty).astype(int), rows, columns) == 0, np.nan, np.where(-least > most, least, most))


def to_numpy(array: ArrayLike, dtype: type[np.floating] | None = None) -> Shaped[np.ndarray, "*shape"]:
    """Convert an array of any supported library to a NumPy array.

    PyTorch tensors of floats in half precision, or smaller, are converted to float32.
    """
    if hasattr(array, "detach"):
        small = array.is_floating_point() and array.element_size() <= 2
        array = (array.float() if small else array).detach().cpu()
    return np.asarray(array, dtype)


def jsonable(value: object, digits: int = 6) -> Any:
    """Return a value as JSON has it: numbers with some significant digits, or None if they are not finite.

    Example:
        >>> jsonable({"a": np.array([1 / 3, np.inf]), "b": 2}, 3)
        {'a': [0.333, None], 'b': 2}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}") if math.isfinite(value) else None
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: jsonable(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(one, digits) for one in value]
    return jsonable(value.tolist(), digits) if isinstance(value, np.ndarray | np.generic) else value


def _encode(weights: Num[np.ndarray, "q k"], exponent: int) -> Num[np.ndarray, "q k"]:
    weights = weights.astype(np.float64)
    finite = np.isfinite(weights)
    magnitude = np.abs(np.where(finite, weights, 0.0))
    decades = np.maximum(_decades(magnitude), exponent)
    scaled = magnitude * _power(2 - decades)
    digits = np.rint(scaled)
    # A product within rounding of a tie is decided by the exact weight. Uniform weights, such as 1/320, often are ties.
    ties = np.abs(np.abs(scaled - digits) - 0.5) < 1e-9
    if ties.any():
        exact, where = np.unique(magnitude[ties], return_inverse=True)
        digits[ties] = np.array([int(f"{weight:.2e}"[:4].replace(".", "")) for weight in exact])[where]
    # 0.9996 has the digits 1000 of its own decade, which are the digits 100 of the next.
    place = _DIGITS * (decades - exponent) + np.where(digits == 1000, _DIGITS, digits - 100).astype(np.int32) + 2
    place = np.where(magnitude < _power(exponent), 1, np.minimum(place, _DIGITS * _DECADES + 1))
    signed = np.where(magnitude == 0, 0, np.where(weights < 0, -place, place))
    return np.where(finite, signed + _ZERO, _NOT_FINITE).astype(np.uint16)


def _decades(magnitude: Float[np.ndarray, "*shape"]) -> Int[np.ndarray, "*shape"]:
    """Return the decimal exponents of positive numbers."""
    low = _DECADE_OF_BINARY[np.frexp(magnitude)[1] - _FIRST_BINARY]
    return np.asarray(low + (magnitude >= _power(low + 1)))


def _power(exponent: Int[np.ndarray, "*shape"] | int) -> Float[np.ndarray, "*shape"]:
    return np.asarray(_POWERS[np.clip(exponent, _LOW, _HIGH) - _LOW])


_FIRST_BINARY = -1080
# The decimal exponent of the smallest number with a binary exponent; the largest may be in the next decade.
_DECADE_OF_BINARY = np.array(
    [int(np.floor((binary - 1) * np.log10(2) + 1e-12)) for binary in range(_FIRST_BINARY, 1030)], np.int32
)
