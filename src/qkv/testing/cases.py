"""Define example calls for the contract tests, as combinations of scores, normalizers, masks and shapes.

Every kernel is tested with every part in these tables, so each new part but kernels of the distance needs one row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from qkv import masks, normalizers, scores
from qkv.core.arrays import is_floating, namespace
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.typing import Array, ArrayLike, Float
from qkv.scores.distance import DistanceKernel

P = TypeVar("P", bound=Part)


class PairIndex(NamedTuple):
    """Pair of a query and a key: their indices `row` and `col`, and their positions `i` and `j`."""

    row: int
    col: int
    i: int
    j: int


class WeightRow(NamedTuple):
    """Row of weights: flat index of the batch element, index of the query, indices of its unmasked keys, and seed."""

    batch: int
    row: int
    keys: list[int]
    seed: int


class Draw:
    """Generator of random NumPy arrays, all of which have the same batch axes.

    Example:
        >>> draw = Draw(seed=0, q=2, k=3, batch=(4,))
        >>> draw(draw.q, draw.k).shape, draw.positive().shape
        ((4, 2, 3), (4,))
    """

    def __init__(self, seed: int, q: int = 4, k: int = 6, batch: tuple[int, ...] = ()) -> None:
        self.rng = np.random.default_rng(seed)
        self.q, self.k, self.batch = q, k, batch

    def __call__(self, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of standard normal random numbers."""
        return np.asarray(self.rng.normal(size=(*self.batch, *shape)))

    def positive(self, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of random numbers, uniform in [0.7, 1.8)."""
        return np.asarray(self.rng.uniform(0.7, 1.8, size=(*self.batch, *shape)))

    def integers(self, below: int, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of random integers from 0 to `below` − 1."""
        return np.asarray(self.rng.integers(0, below, size=(*self.batch, *shape)))

    def booleans(self, *shape: int) -> ArrayLike:
        """Return an array `(*batch, *shape)` of random booleans, each True with probability 2/3."""
        return np.asarray(self.rng.random(size=(*self.batch, *shape)) < 2 / 3)


def element(part: P, batch: tuple[int, ...], index: tuple[int, ...]) -> P:
    """Return one batch element of a part for a contract test, without `Part.select_batch`, which is tested.

    Args:
        batch: batch axes of the arrays of the part; () if they have none.
        index: index of the batch element.
    """
    if not batch:
        return part
    own = tuple(0 if length == 1 else i for i, length in zip(index, batch, strict=True))
    return part._map(lambda array, names: array if names is None else array[own])


def floats(part: Part) -> list[Float[Array, "*_"]]:
    """Return a list of the floating-point arrays of a part, which can have gradients."""
    return [array for array in part.arrays() if is_floating(array)]


def with_floats(part: P, new: ArrayLike) -> P:
    """Return a part with its floating-point arrays replaced by `new`, in the order of `floats`."""
    queue = list(new)
    return part.replace_arrays([queue.pop(0) if is_floating(array) else array for array in part.arrays()])


@dataclass(frozen=True)
class Shape:
    """Lengths, widths and batch axes of an example call. If `strided` is True, its arrays are not contiguous."""

    q: int
    k: int
    width: int = 4
    value_width: int = 5
    batch: tuple[int, ...] = ()
    key_batch: tuple[int, ...] | None = None
    strided: bool = False


SHAPES: dict[str, Shape] = {
    "heads that share keys": Shape(7, 11, batch=(2, 3), key_batch=(2, 1)),
    "as many queries as keys": Shape(6, 6, batch=(3,)),
    "no batch axes": Shape(5, 9),
    "more queries than keys": Shape(9, 4, batch=(2,)),
    "strided": Shape(7, 11, batch=(2, 3), strided=True),
    "three batch axes": Shape(3, 5, batch=(2, 1, 2), key_batch=(2, 1, 1)),
    "width 1": Shape(5, 6, width=1, value_width=1, batch=(2,)),
    "width 0": Shape(5, 6, width=0, batch=(2,)),
    "value width 0": Shape(5, 6, value_width=0, batch=(2,)),
    "one query": Shape(1, 9, batch=(2, 2)),
    "one key": Shape(4, 1, batch=(2,)),
    "one query and one key": Shape(1, 1),
    "no queries": Shape(0, 5, batch=(2,)),
    "no keys": Shape(5, 0, batch=(2,)),
    "no batch elements": Shape(4, 5, batch=(0, 2)),
}


class PartFactory:
    """Width of an example call and generators of its random arrays, from which the parts of the call are created.

    Attributes:
        shape: shape of the call.
        width: width of query and key.
        draw: generator of arrays without batch axes.
        heads: generator of arrays with one element per head.
        all: generator of arrays with one element per batch element.
    """

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.width = shape, shape.width
        one = (1,) * (len(shape.batch) - 1) + shape.batch[-1:]
        self.draw = Draw(seed, shape.q, shape.k)
        self.heads = Draw(seed + 1, shape.q, shape.k, one)
        self.all = Draw(seed + 2, shape.q, shape.k, shape.batch)


def _scaled_product(query: ArrayLike, key: ArrayLike, scale: ArrayLike) -> ArrayLike:
    xp = namespace(query)
    return xp.matmul(query, xp.matrix_transpose(key)) * scale


def _similarity(query: ArrayLike, key: ArrayLike) -> ArrayLike:
    xp = namespace(query)
    return xp.exp(xp.matmul(query, xp.matrix_transpose(key)) / 4)


def _squares(x: ArrayLike, weight: ArrayLike) -> ArrayLike:
    xp = namespace(x)
    return xp.matmul(x, xp.matrix_transpose(weight)) ** 2 / 4


def _squared_shares(logits: ArrayLike, scale: ArrayLike) -> ArrayLike:
    xp = namespace(logits)
    squares = xp.maximum(logits, xp.zeros_like(logits)) ** 2
    return scale * squares / (1 + xp.sum(squares, axis=-1, keepdims=True))


def _with_bandwidth(kind: type[DistanceKernel], factory: PartFactory) -> scores.Score:
    return kind(3.0)


_PUBLIC: list[object] = [getattr(scores, name) for name in scores.__all__]
_DISTANCE_KERNELS = [kind for kind in _PUBLIC if isinstance(kind, type) and issubclass(kind, DistanceKernel)]

SCORES: dict[str, Callable[[PartFactory], scores.Score]] = {
    "dot": lambda m: scores.Dot(),
    "scaled dot": lambda m: scores.ScaledDot(),
    "bilinear": lambda m: scores.Bilinear(m.draw(m.width, m.width)),
    "bilinear low rank": lambda m: scores.Bilinear(m.draw(m.width, 2), m.draw(m.width, 2)),
    "bilinear per head": lambda m: scores.Bilinear(m.heads(m.width, m.width)),
    "additive": lambda m: scores.Additive(m.draw(6, m.width), m.draw(6, m.width), m.draw(6), m.draw(6)),
    "additive per head": lambda m: scores.Additive(m.heads(m.width, m.width), None, None, m.heads(m.width)),
    "gated": lambda m: scores.Gated(m.draw(m.width), m.draw(m.width), m.draw()),
    "separable gate": lambda m: scores.SeparableGate(m.draw(m.width), m.draw(m.width), m.draw(), m.draw()),
    "cosine": lambda m: scores.Cosine(m.draw.positive()),
    "features": lambda m: scores.Features(),
    "learned features": lambda m: scores.Features(_squares, (m.draw(3, m.width),), 3),
    "projected": lambda m: scores.Projected(scores.Gaussian(1.3), m.draw(3, m.width), m.draw(3, m.width)),
    "sum of": lambda m: scores.SumOf((scores.Dot(), scores.Gaussian(2.0))),
    "gaussian": lambda m: scores.Gaussian(m.heads.positive()),
    **{kind.__name__.lower(): partial(_with_bandwidth, kind) for kind in _DISTANCE_KERNELS},
    "laplace": lambda m: scores.Laplace(m.draw.positive()),
    "constant": lambda m: scores.Constant(),
    "softcap": lambda m: scores.Softcap(scores.Dot(), 2.0),
    "biased": lambda m: scores.Biased(scores.Dot(), m.all(m.draw.q, m.draw.k)),
    "biased per key": lambda m: scores.Biased(scores.Dot(), per_key=m.draw(m.draw.k)),
    "alibi": lambda m: scores.ALiBi(scores.Dot(), m.heads.positive()),
    "relative position": lambda m: scores.RelativePosition(scores.Dot(), m.heads(8)),
    "quadratic position": lambda m: scores.QuadraticPosition(scores.Dot(), m.draw.positive() / 8),
    "decay": lambda m: scores.Decay(scores.Dot(), -m.heads.positive() / 4),
    "decay per key": lambda m: scores.Decay(scores.Features(), None, -abs(m.heads(m.draw.k, 1))),
    "decay per feature": lambda m: scores.Decay(scores.Dot(), None, -abs(m.all(m.draw.k, m.width)) / 2),
    "class table": lambda m: scores.ClassTable(
        scores.Dot(), m.draw(2, 3), m.draw.integers(2, m.draw.q), m.draw.integers(3, m.draw.k)
    ),
    "custom": lambda m: scores.Custom(_scaled_product, (m.draw.positive(),)),
    "exact": lambda m: scores.Exact(),
    "similarity": lambda m: scores.Custom(_similarity),
}

NONNEGATIVE = ("constant", "exact", "similarity", "features", "learned features", "decay per key")
"""Names of the scores without negative logits, which `Sum` requires."""

NORMALIZERS: dict[str, Callable[[PartFactory], normalizers.Normalizer]] = {
    "softmax": lambda m: normalizers.Softmax(),
    "softmax with temperature": lambda m: normalizers.Softmax(m.heads.positive()),
    "softmax with sink": lambda m: normalizers.Softmax(0.8, sink=m.heads()),
    "sum": lambda m: normalizers.Sum(),
    "mean": lambda m: normalizers.Mean(),
    "identity": lambda m: normalizers.Identity(),
    "sigmoid": lambda m: normalizers.Sigmoid(m.draw()),
    "hard": lambda m: normalizers.Hard(),
    "top-k": lambda m: normalizers.TopK(3),
    "top-k with temperature and sink": lambda m: normalizers.TopK(
        3, normalizer=normalizers.Softmax(m.draw.positive(), sink=m.heads())
    ),
    "top-k of sigmoid": lambda m: normalizers.TopK(2, normalizer=normalizers.Sigmoid()),
    "top-k of mean": lambda m: normalizers.TopK(2, normalizer=normalizers.Mean()),
    "top-k of sparsemax": lambda m: normalizers.TopK(3, normalizer=normalizers.Sparsemax()),
    "sparsemax": lambda m: normalizers.Sparsemax(),
    "entmax15": lambda m: normalizers.Entmax15(),
    "entmax": lambda m: normalizers.Entmax(1.3),
    # For α above 2, derivatives of small weights are unbounded: float32 would need a tolerance of its own.
    "entmax per head": lambda m: normalizers.Entmax(np.asarray(1.1 + m.heads.positive() / 2.5)),
    "custom": lambda m: normalizers.Custom(_squared_shares, (m.draw.positive(),)),
    "sample": lambda m: normalizers.Sample(),
}


def _pairs(m: PartFactory) -> masks.Mask:
    allowed = m.all.booleans(m.draw.q, m.draw.k)
    allowed[..., 2:3, :] = False  # query 2 may attend to no key
    return masks.AllowedPairs(allowed)


def _blocks(m: PartFactory) -> masks.Mask:
    return masks.Blocks(m.draw.booleans(-(-m.draw.q // 4), -(-m.draw.k // 4)), 4)


def _same_group(query: ArrayLike, key: ArrayLike, groups: ArrayLike) -> ArrayLike:
    xp = namespace(groups)  # indexing by `[]` is not portable
    return xp.take(groups, abs(query[:, 0]), axis=0)[:, None] == xp.take(groups, key[0], axis=0)


MASKS: dict[str, Callable[[PartFactory], masks.Mask | None]] = {
    "none": lambda m: None,
    "causal at the end": lambda m: masks.Causal("end"),
    "causal from the start": lambda m: masks.Causal("start"),
    "causal by positions": lambda m: masks.Causal(),
    "window": lambda m: masks.Window(3, 1),
    "keys": lambda m: masks.AllowedKeys(m.draw.booleans(m.draw.k)),
    "lengths": lambda m: masks.Lengths(m.all.integers(m.draw.k + 1)),
    "pairs": _pairs,
    "prefix": lambda m: masks.Prefix(2),
    "documents": lambda m: masks.Documents(np.arange(m.draw.q) // 3, np.arange(m.draw.k) // 4),
    "blocks": _blocks,
    "custom": lambda m: masks.Custom(lambda q, k: (k <= q) & ((q - k) % 3 != 1)),
    "custom of parameters": lambda m: masks.Custom(_same_group, (np.arange(m.draw.q + m.draw.k + 1) // 3,)),
    "causal and keys": lambda m: masks.Causal("end") & masks.AllowedKeys(m.all.booleans(m.draw.k)),
    "causal but not the last two": lambda m: masks.Causal("end") & ~masks.Window(1, 0),
}


@dataclass(frozen=True)
class Call:
    """Arguments of an example call, with all floating-point arrays as float64 NumPy arrays."""

    query: ArrayLike
    key: ArrayLike
    value: ArrayLike
    score: scores.Score
    normalizer: normalizers.Normalizer = field(default_factory=normalizers.Softmax)
    mask: masks.Mask | None = None
    positions: Positions | None = None
    dropout: float = 0.0
    seed: int | None = 5
    strided: bool = False


@dataclass(frozen=True)
class Case:
    """Example call, defined by the names of a score, a normalizer, a mask and a shape in the tables of this module."""

    score: str = "scaled dot"
    normalizer: str = "softmax"
    mask: str = "none"
    shape: str = "heads that share keys"
    dropout: float = 0.0

    @property
    def sensible(self) -> bool:
        """Whether the normalizer accepts the score. `Sum` accepts only scores without negative logits."""
        return self.normalizer != "sum" or self.score in NONNEGATIVE

    def call(self, seed: int = 3) -> Call:
        """Return the example call, with random arrays generated from `seed`."""
        shape = SHAPES[self.shape]
        key_batch = shape.batch if shape.key_batch is None else shape.key_batch
        factory = PartFactory(shape, seed)
        key = Draw(seed + 4, batch=key_batch)(shape.k, shape.width)
        query = Draw(seed + 3, batch=shape.batch)(shape.q, shape.width)
        if self.score == "exact" and shape.k:
            # Choose the queries among the keys, so that exact matches exist.
            rows = np.arange(shape.q) % shape.k
            query = np.array(np.broadcast_to(key, (*shape.batch, *key.shape[-2:]))[..., rows, :])
        return Call(
            query,
            key,
            Draw(seed + 5, batch=key_batch)(shape.k, shape.value_width),
            SCORES[self.score](factory),
            NORMALIZERS[self.normalizer](factory),
            MASKS[self.mask](factory),
            Positions(align="end"),
            self.dropout,
            strided=shape.strided,
        )
