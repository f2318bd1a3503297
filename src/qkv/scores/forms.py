"""Forms of scores: what a kernel needs to know of a score to compute its logits in a faster way than pair by pair.

    Pairwise              any function of a query and a key
    Tanh                  Σ_h v_h tanh(left_h + right_h)
    Gated                 <left, right> σ(l + r)
    Distance              a function of the distance ‖q − k‖
    Product               <left, right>, with the projections that `Score.project` returns
    ├── ScaledProduct     f <q, k>
    ├── MappedProduct     f <W q, U k>
    ├── UnitProduct       <q, k> / (‖q‖ ‖k‖ T)
    ├── GatedSides        <q σ(<w, q> + b), k σ(<u, k> + c)>
    └── SquaredDistance   −a ‖q − k‖²
    Wrapped               a function of the logit of an inner score
    ├── Offset            the logit plus a number that does not depend on it
    ├── Capped            c tanh(logit / c)
    └── Decayed           the logit times a decay for each position between query and key

A kernel matches `score.form` against the forms that it knows, and computes or refuses the others. A form that is not
listed here is a subclass of one that is: kernels then treat it as this one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from qkv.core.arrays import asarray_like, is_tensor, itemsize, namespace, zeros
from qkv.core.typing import Array, Num, Shaped

if TYPE_CHECKING:
    from qkv.scores.base import Score


__all__ = [
    "Capped",
    "column_of_ones",
    "concat_features",
    "Decayed",
    "Distance",
    "Form",
    "Gated",
    "GatedSides",
    "lift_limits",
    "LIFT_RANGES",
    "LiftKind",
    "MappedProduct",
    "of_projections",
    "Offset",
    "Pairwise",
    "Product",
    "SavedArrays",
    "ScaledProduct",
    "SquaredDistance",
    "Tanh",
    "UnitProduct",
    "Wrapped",
]


LIFT_RANGES = {"float32": (2.0**8, 2.0**22), "float64": (2.0**24, 2.0**46)}
"""Largest squared lengths of lifted keys and of lifted queries for which a sum that cancels is accurate, by dtype.

The errors of logits are up to 3e-5 and 2e-9 with these lengths of keys. Those of the queries alone, which all logits of
a query share, change a logit by less than 1.
"""


def lift_limits(dtype: str) -> tuple[float, float]:
    """Return the limits of `LIFT_RANGES` for arrays of a dtype; half precision is computed in float32."""
    return LIFT_RANGES["float64" if itemsize(dtype) == 8 else "float32"]


def concat_features(*arrays: Num[Array, "*#batch #n _"]) -> Num[Array, "*batch n width"]:
    """Concatenate arrays along the last axis after broadcasting all other axes."""
    xp = namespace(*arrays)
    first = tuple(arrays[0].shape[:-1])
    # Broadcasting takes longer than the concatenation of short sequences. Under tracers, lengths may be unknown.
    if all(type(n) is int for n in first) and all(tuple(x.shape[:-1]) == first for x in arrays[1:]):
        return xp.concat(arrays, axis=-1)
    lead = xp.broadcast_arrays(*(x[..., :1] for x in arrays))[0].shape[:-1]
    return xp.concat([xp.broadcast_to(x, (*lead, x.shape[-1])) for x in arrays], axis=-1)


def column_of_ones(x: Num[Array, "*batch n width"]) -> Num[Array, "*batch n 1"]:
    """Return an array of ones with the axes of `x`, except that the last has length 1."""
    # Slicing needs no lengths, which are unknown under some tracers, but a width of 0 leaves nothing to slice.
    return namespace(x).ones_like(x[..., :1]) if x.shape[-1] else zeros(x, (*x.shape[:-1], 1)) + 1


LiftKind: TypeAlias = Literal["exact", "up_to_query_constant"]

Gates: TypeAlias = tuple[Array, Array, Array | float, Array | float]
"""Weights w and u and biases b and c of the gates of queries and keys."""


class SavedArrays(NamedTuple):
    """Estimates of the arrays that autograd saves of a score.

    Attributes:
        logits: arrays of the size of the logits, besides the logits.
        copies: arrays of the size of a side that `Score.lift` computes of it.
        sides: those of the queries and of the keys besides the result of `Score.lift`.
        peak: those of one side that are in memory while `Score.lift` is differentiated, without the gradient that it
            returns; 0 if there are never more than before.
    """

    logits: float = 0.0
    copies: float = 1.0
    sides: tuple[float, float] = (0.0, 0.0)
    peak: float = 0.0


_NOTHING_ELSE = SavedArrays()


# Forms are not frozen: a frozen class takes four times as long to construct, and most are constructed at each access.
@dataclass(eq=False, slots=True, kw_only=True)
class Form:
    """Base class of the forms of scores.

    Attributes:
        lift: "exact" if the logit is the inner product of the vectors of `Score.lift`, "up_to_query_constant" if that
            holds up to a term that depends on the query alone, None otherwise.
        nonnegative: whether no logit is negative, whatever query and key are.
        inner: the inner score, if the score changes each logit of an inner score; otherwise None.
        saved: estimates of the arrays that autograd saves.
    """

    lift: LiftKind | None = None
    nonnegative: bool = False
    inner: Score | None = None
    saved: SavedArrays = _NOTHING_ELSE

    @property
    def copies_keys(self) -> bool:
        """Whether `Score.lift` computes new vectors for the keys; an inner product may use keys unchanged."""
        return True

    def bound(self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"]) -> Num[Array, ""] | None:
        """Return an upper bound of |logit| over all pairs of projections in O(q + k), or None if none is known."""
        return None

    def rounding(
        self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"], logits: Num[Array, "*#batch q k"]
    ) -> Num[Array, "*#batch q k"] | None:
        """Return a bound of the rounding errors of logits computed from projections, or None if none is known.

        The errors are those of the dtype of the logits. Those of the projections are not included.
        """
        return None


@dataclass(eq=False, slots=True)
class Pairwise(Form):
    """A function of a query and a key, of any kind.

    Attributes:
        constant: whether every pair has the same logit.
    """

    constant: bool = False


@dataclass(eq=False, slots=True)
class Tanh(Form):
    """Σ_h v_h tanh(left_h + right_h), with the projections left and right.

    Attributes:
        vector: v `(*batch, hidden)`.
        maps: (W, U, b) if the projections are W q + b and U k, with None for an array that is left out; otherwise None.
    """

    vector: Num[Array, "*batch hidden"]
    maps: tuple[Array | None, Array | None, Array | None] | None = None

    def bound(self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"]) -> Num[Array, ""]:
        """Return Σ |v|, or the largest of these sums if v has batch axes."""
        xp = namespace(left)
        return xp.max(xp.sum(xp.abs(self.vector), axis=-1))


@dataclass(eq=False, slots=True)
class Gated(Form):
    """<left_:w, right_:w> σ(left_w + right_w), with the last column w of both projections.

    Attributes:
        gates: (w, u, b, c) if the logit is <q, k> σ(<w, q> + b + <u, k> + c); otherwise None.
    """

    gates: Gates | None = None

    def bound(self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"]) -> Num[Array, ""]:
        """Return a bound of the inner products, which a gate makes smaller."""
        return product_bound(left[..., :-1], right[..., :-1])


@dataclass(eq=False, slots=True)
class Distance(Form):
    """A function of the Euclidean distance of query and key.

    Attributes:
        slope: a if the logit is −a ‖q − k‖ with a single number a; otherwise None.
    """

    slope: float | None = None

    def rounding(
        self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"], logits: Num[Array, "*#batch q k"]
    ) -> Num[Array, "*#batch q k"] | None:
        """Return a bound of the errors of −a ‖q − k‖ as a multiple of each logit."""
        return None if self.slope is None else (left.shape[-1] + 4) * _eps(logits) * abs(logits)


@dataclass(eq=False, slots=True)
class Product(Form):
    """Inner product of the projections, which are the vectors of `Score.lift`.

    If the lift is not exact, the projections have the missing term of the query as another column. `inner` is not None
    if columns of a bias, which may be −inf, are joined to the vectors of an inner score.
    """

    lift: LiftKind | None = field(default="exact", kw_only=True)

    def bound(self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"]) -> Num[Array, ""]:
        """Return the product of the largest norms of both projections."""
        return product_bound(left, right)

    def rounding(
        self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"], logits: Num[Array, "*#batch q k"]
    ) -> Num[Array, "*#batch q k"]:
        """Return a bound of the errors of sums of products, in any order, from the sums of their magnitudes."""
        xp = namespace(left)
        return (left.shape[-1] + 1) * _eps(logits) * xp.matmul(abs(left), xp.matrix_transpose(abs(right)))


@dataclass(eq=False, slots=True)
class ScaledProduct(Product):
    """f <q, k> for one number f.

    Attributes:
        scale: f; None: one over the root of the width.
    """

    scale: float | None = 1.0

    def factor(self, width: int) -> float:
        """Return f for queries and keys of a width."""
        return 1 / math.sqrt(max(1, width)) if self.scale is None else self.scale


@dataclass(eq=False, slots=True)
class MappedProduct(Product):
    """f <W q, U k> for one number f.

    Attributes:
        query_map: W; None: no map.
        key_map: U; None: no map.
        factor: f.
        transposed: whether Wᵀ and Uᵀ are given instead, which only the kernels that use them transpose.
    """

    query_map: Array | None
    key_map: Array | None
    factor: float = 1.0
    transposed: bool = False

    def maps(self) -> tuple[Array | None, Array | None]:
        """Return W and U."""
        if not self.transposed:
            return self.query_map, self.key_map
        # The function of PyTorch's namespace takes 5 µs.
        query_map, key_map = (
            x if x is None else x.mT if is_tensor(x) else namespace(x).matrix_transpose(x)
            for x in (self.query_map, self.key_map)
        )
        return query_map, key_map

    @property
    def copies_keys(self) -> bool:
        return self.key_map is not None


@dataclass(eq=False, slots=True)
class UnitProduct(Product):
    """Inner product of a vector of the query and the key divided by its norm.

    Attributes:
        temperature: T, a number or array of one element, if the logit is <q, k> / (‖q‖ ‖k‖ T); otherwise None.
    """

    temperature: Array | float | None = None


@dataclass(eq=False, slots=True)
class GatedSides(Product):
    """<q σ(<w, q> + b), k σ(<u, k> + c)>.

    Attributes:
        gates: (w, u, b, c).
    """

    gates: Gates


@dataclass(eq=False, slots=True)
class SquaredDistance(Product):
    """−a ‖q − k‖², whose lift omits the term of the query.

    Attributes:
        factor: the number a; None if batch elements have different ones.
    """

    factor: float | None = None
    lift: LiftKind | None = field(default="up_to_query_constant", kw_only=True)


@dataclass(eq=False, slots=True)
class Wrapped(Form):
    """A function of the logit of an inner score and of the tile, of any kind."""

    inner: Score


@dataclass(eq=False, slots=True)
class Offset(Wrapped):
    """The logit of an inner score plus `PointwiseScore.offset`, which does not depend on logits."""


@dataclass(eq=False, slots=True)
class Capped(Wrapped):
    """cap · tanh(logit of an inner score / cap).

    Attributes:
        cap: the cap, a number or one number per batch element.
    """

    cap: Array | float

    def bound(self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"]) -> Num[Array, ""]:
        """Return the cap, or the largest cap if it is an array."""
        return namespace(left).max(asarray_like(left, self.cap, left.dtype))


@dataclass(eq=False, slots=True)
class Decayed(Wrapped):
    """The logit of an inner score times e^(g |i − j|) for positions i and j, or with a decay for each key.

    Attributes:
        log_decay: g; None for decays per key.
        log_decay_per_key: g_t if each product of features in the logit of the inner score is multiplied by e^(Σ g_t),
            with the sum over the positions t after the earlier one of query and key; otherwise None. See `Decay`.
    """

    log_decay: Array | float | None
    log_decay_per_key: Array | None

    @property
    def decay(self) -> Array | float:
        """The one of both that is given."""
        decay = self.log_decay_per_key if self.log_decay is None else self.log_decay
        assert decay is not None
        return decay

    @property
    def per_feature(self) -> bool:
        """Whether features decay differently."""
        return self.log_decay_per_key is not None and self.log_decay_per_key.shape[-1] != 1


def of_projections(form: Form, query_map: Array | None, key_map: Array | None) -> Form:
    """Return the form of a score that compares linear maps of queries and keys by a score of a form."""
    weight = key_map if query_map is None else query_map
    match form:
        case ScaledProduct() if weight is not None:
            return MappedProduct(query_map, key_map, form.factor(weight.shape[-2]))
        case Product():
            return Product(lift=form.lift, nonnegative=form.nonnegative)
        case Tanh(vector):
            return Tanh(vector)
        case Gated():
            return Gated()
    return Pairwise(lift=form.lift, nonnegative=form.nonnegative)


def product_bound(left: Num[Array, "*#batch q width"], right: Num[Array, "*#batch k width"]) -> Num[Array, ""]:
    """Return an upper bound of |<left_i, right_j>| for all rows: the product of both arrays' largest row norms."""
    xp = namespace(left)
    # vector_norm needs no temporary array of squares.
    return xp.max(xp.linalg.vector_norm(left, axis=-1)) * xp.max(xp.linalg.vector_norm(right, axis=-1))


def _eps(x: Num[Array, "*_"]) -> float:
    return float(namespace(x).finfo(x.dtype).eps)
