"""Base classes of scores, and functions that their subclasses share.

    Score                    logits(query, key, tile)
    ├── InnerProductScore    lift(query, key, tile): the logit is the inner product of two vectors
    ├── PointwiseScore       offset(tile) or transform(logits, tile): changes each logit of an inner score (wrapper.py)
    └── GeneralScore         compare(query, key): any function of a pair

To add a score, subclass one of the three base classes as a frozen dataclass and define the method shown next to it.
Masks, kernels with memory linear in the lengths, gradients, EXPLAIN and `Database.ask` then support the new score.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import final

from qkv.core.arrays import as_array, dtype_name, is_array, is_text, library, namespace
from qkv.core.axes import broadcast_batch
from qkv.core.batch import with_equal_batch
from qkv.core.checks import describe, wrong_part
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, ArrayLike, KeyArray, LiftedArrays, Num, QueryArray, Shaped
from qkv.errors import KindError, ShapeError
from qkv.scores.forms import Form, Pairwise, Product, SavedArrays, ScaledProduct, column_of_ones, concat_features

__all__ = ["broadcasts_to", "check_same_width", "GeneralScore", "InnerProductScore", "require_score", "Score"]


def check_same_width(score: object, query_width: int, key_width: int) -> None:
    """Raise a `ShapeError` if the widths of query and key differ."""
    if query_width != key_width:
        raise ShapeError(
            f"query and key must have the same width for {type(score).__name__}, got widths {query_width} and "
            f"{key_width}. Project them to the same width with Projected(score, query_weight, key_weight), or use "
            f"Bilinear(weight) with a weight of shape ({query_width}, {key_width})."
        )


_REAL = ("float", "bfloat", "int", "uint", "bool")


def check_logits(
    owner: str, logits: object, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
) -> Shaped[Array, "*#batch #q #k"]:
    """Return the logits of a tile, or raise an error if they are not an array that suits the tile.

    Args:
        owner: name of the score in error messages.
        logits: the result of the function.

    Raises:
        KindError: `logits` is not an array of real numbers, or not of the library of `query`.
        ShapeError: its shape does not broadcast to `(*batch, q, k)`.
    """
    axis = -1 if is_text(query) else -2
    lengths = query.shape[axis], key.shape[axis]
    if type(logits).__module__ == "torch" and isinstance(logits, type(query)):  # a fast path for PyTorch
        usual = logits.dtype == query.dtype and logits.dtype.is_floating_point
        if usual and logits.shape == (*tile.batch, *lengths):
            return logits
    if not is_array(logits) or library(logits) != library(query):
        got = f"a {library(logits)} array" if is_array(logits) else describe(logits)
        raise KindError(
            f"logits of {owner} must be a {library(query)} array of shape (*batch, q, k), got {got}. Return an array "
            "of the same library as query and key."
        )
    if not dtype_name(logits).startswith(_REAL):
        raise KindError(
            f"logits of {owner} must be real numbers, got {dtype_name(logits)} elements. Convert them to real numbers."
        )
    shape = tuple(logits.shape)
    extra = len(shape) - 2 - len(tile.batch)
    if 0 < extra <= tile.removed_axes and all(n == 1 for n in shape[:extra]):
        shape = shape[extra:]
        logits = namespace(logits).reshape(logits, shape)
    # Lengths are symbols or unknown under torch.export and tf.function, which check the shapes by themselves.
    known = all(type(n) is int for n in (*shape, *lengths, *tile.batch))
    if known and not broadcasts_to(shape, (*tile.batch, *lengths)):
        remedy = "Return one logit for each pair of a query and a key, and pass arrays with batch axes as parameters."
        whole = tile.q_total, tile.k_total
        names = [
            f'"{name}"'
            for name, n, all_, own in zip("qk", shape[-2:], whole, lengths, strict=False)
            if n == all_ != own
        ]
        if names:
            what = "pairs" if len(names) == 2 else "queries" if "q" in names[0] else "keys"
            remedy = (
                f"Make an array of all {what} a field of a score class, qkv.core.parts.array_field({', '.join(names)}),"
                ' which is divided like queries and keys, or pass kernel="dense", which computes all pairs at once.'
            )
        raise ShapeError(
            f"logits of {owner} must have shape (*batch, q, k), here {(*tile.batch, *lengths)}, got {shape}. {remedy}"
        )
    return logits


def broadcasts_to(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Return whether an array of shape `shape` with at least two axes broadcasts to `expected`."""
    if shape == expected:
        return True
    if not 2 <= len(shape) <= len(expected):
        return False
    return all(n in (1, m) for n, m in zip(reversed(shape), reversed(expected), strict=False))


class Score(Part, ABC):
    """Base class of scores, which compute a logit for each pair of a query and a key.

    Attributes:
        form: what kernels need to know to compute the logits in a faster way than pair by pair.
        default_normalizer: name of the normalizer used if the call gives none.
        positional: whether the logit depends on positions.
        accepts: the kind of queries and keys, "numbers", "text" or "any".
        accepts_records: whether queries and keys may be structured arrays, with a field per column.
        keeps_dtype: whether query and key are compared in their own dtype instead of the dtype of accumulation.
        cancels: whether logits are differences of numbers that may be much larger, see `lift_range`.

    Example:
        >>> import numpy as np, qkv
        >>> from qkv import scores
        >>> query, key = np.array([[1.0, 0.0]]), np.array([[2.0, 0.0], [0.0, 2.0]])
        >>> scores.Dot()(query, key), scores.Gaussian(1.0)(query, key)
        (array([[2., 0.]]), array([[-0.5, -2.5]]))
        >>> qkv.attend(query, key, np.array([[1.0], [3.0]]), score=scores.Gaussian(0.1))
        array([[1.]])
    """

    form: Form = Pairwise()
    default_normalizer: str = "softmax"
    positional: bool = False
    accepts: str = "numbers"
    accepts_records: bool = False
    keeps_dtype: bool = False
    cancels: bool = False

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return the number of array elements per logit that are in memory while a tile is computed."""
        return 1

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return an estimate of the number of floating-point operations per logit."""
        return 2 * max(query_width, key_width)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Return the width of the vectors that `lift` returns."""
        return max(query_width, key_width)

    def lift_description(self) -> str:
        """Return a short description of what `lift` computes, for the printed plan; the default is ""."""
        return ""

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Raise a `ShapeError` if queries of width `query_width` and keys of width `key_width` cannot be compared."""
        check_same_width(self, query_width, key_width)

    @abstractmethod
    def logits(
        self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
    ) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of a tile, `(*batch, q, k)`.

        Args:
            query: the tile's queries, `(*batch, q, query_width)`, or text `(*batch, q)`.
            key: the tile's keys, `(*batch, k, key_width)`, or text `(*batch, k)`.
            tile: the tile, to which the arrays of this score are already restricted.
        """

    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return vectors of queries and keys whose inner products are the logits, or the logits minus `query_term`.

        Raises:
            KindError: the score is not an inner product.
        """
        name = type(self).__name__
        raise KindError(
            f"score must be an inner product to have a lift, got {name}. Choose Dot or Gaussian, for example."
        )

    def complete_lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return the vectors of `lift` with `query_term` as another column, if there is one.

        Under softmax the term cancels, and Σ_j dl_ij, which is its gradient, is 0. But rounding errors of dl_ij cancel
        in the gradient of a query that equals a key only with this term.
        """
        left, right, term = self._lift_with_term(query, key, tile)
        if term is None:
            return left, right
        return concat_features(left, term[..., None]), concat_features(right, column_of_ones(right))

    def scaled_lift(
        self, query: QueryArray, key: KeyArray, tile: Tile, complete: bool = False
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"], float]:
        """Return vectors of queries and keys, and a factor that turns their inner products into those of `lift`.

        The vectors of a scaled inner product are the queries and keys themselves. If `complete`, the others are those
        of `complete_lift`.
        """
        form = self.form
        if isinstance(form, ScaledProduct):
            return query, key, form.factor(query.shape[-1])
        return *(self.complete_lift if complete else self.lift)(query, key, tile), 1.0

    def query_term(self, query: QueryArray, tile: Tile) -> Num[Array, "*#batch q"] | None:
        """Return the part of each query's logits that `lift` omits, `(*batch, q)`, or None if it omits nothing."""
        return None

    def centre(self, key: Num[Array, "*batch k key_width"]) -> Centre:
        """Return a point `(*batch, 1, width)` for `lift` to subtract from queries and keys, or None for no subtraction.

        It reduces cancellation errors. Queries and keys must be lifted with the same point.
        """
        return None

    def simplify(self, q: int, k: int) -> Score:
        """Return a cheaper or more precise score with the same logits for `q` queries and `k` keys, or this score."""
        return self

    def by_differences(self, query: Array | None = None, key: Array | None = None) -> Score:
        """Return a score with the same logits whose rounding errors are small relative to each logit.

        Args:
            query: queries; None if they are unknown, or if the logits must not differ by a constant per query.
            key: keys; None if `query` is None.
        """
        return self

    def lift_range(
        self, query: QueryArray, key: KeyArray, centre: Centre = None, cheap: bool = False
    ) -> tuple[Num[Array, ""] | float, Num[Array, ""] | float]:
        """Return the largest ‖k‖² and ‖q‖² of lifted keys and queries, if `cancels`; elements not finite are left out.

        The rounding errors of logits are about as large as those of the first number, or of the logit.

        Args:
            query: queries.
            key: keys.
            centre: the point that is subtracted from both; None: `centre(key)`.
            cheap: whether upper bounds suffice, of any such point, which are infinite where they would take long.
        """
        raise NotImplementedError

    def flatten(self) -> Score:
        """Return an equivalent score without redundant nesting, or this score if nothing can be removed."""
        return self

    def project(
        self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
    ) -> tuple[Shaped[Array, "*_"], Shaped[Array, "*_"]]:
        """Return the projections of query and key, which are computed once per call in O(q + k).

        The default returns the vectors of `complete_lift`, or both unchanged without a lift.
        """
        return (query, key) if self.form.lift is None else self.complete_lift(query, key, tile)

    def _lift_with_term(
        self, query: QueryArray, key: KeyArray, tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"], Num[Array, "*#batch q"] | None]:
        if tile.centre is None:
            tile = replace(tile, centre=self.centre(key))
        return *self.lift(query, key, tile), self.query_term(query, tile)

    def projected_logits(
        self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"], tile: Tile
    ) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of a tile, `(*batch, q, k)`, from the projections of its queries and keys."""
        if not isinstance(self.form, Product):
            return self.logits(left, right, tile)
        return namespace(left).matmul(left, namespace(left).matrix_transpose(right))

    def bound(self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"]) -> Shaped[Array, ""] | None:
        """Return an upper bound of |logit| over all pairs of `left` and `right` in O(q + k), or None if none is known.

        If the bound is below 60, kernels compute exponentials without subtracting the maximum of each row.
        """
        return self.form.bound(left, right)

    @final
    def __call__(
        self, query: ArrayLike, key: ArrayLike, positions: Positions | None = None
    ) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of all pairs of a query and a key, `(*batch, q, k)`, at once in O(q · k) memory.

        Args:
            query: `(*batch, q, query_width)`, or text `(*batch, q)`.
            key: `(*batch, k, key_width)`, or text `(*batch, k)`.
            positions: how query positions relate to key positions, for positional scores.

        Raises:
            ShapeError: the widths or batch axes of query and key do not match.
            KindError: query and key are text and the score accepts only numbers, or the reverse.
            PositionError: the score is positional, the lengths differ and `positions` is None.
        """
        query, key = as_array(query), as_array(key)
        core = 1 if is_text(query) else 2
        if query.ndim < core or key.ndim < core:
            raise ShapeError(
                "query and key must have shape (*batch, length, width), or (*batch, length) if they are text, got "
                f"shapes {tuple(query.shape)} and {tuple(key.shape)}. Add the missing axes, for example with "
                "x[:, None] if an array x has one number per row."
            )
        self.check_kind(is_text(query), is_text(key))
        if core == 2:
            self.check_widths(query.shape[-1], key.shape[-1])
        q, k = query.shape[-core], key.shape[-core]
        batch = broadcast_batch(query=tuple(query.shape[:-core]), key=tuple(key.shape[:-core]))
        self.check_shapes(None, {"q": q, "k": k})
        return self.logits(query, key, Tile.whole(q, k, batch, positions))

    def radius(self, exponent: float) -> float:
        """Return a distance of query and key beyond which logits are less than −`exponent`; inf if none is known."""
        return math.inf

    def check_kind(self, text_query: bool, text_key: bool) -> None:
        """Raise a `KindError` if only one of query and key is text, or if the score does not accept their kind."""
        kinds = ["text" if text else "numbers" for text in (text_query, text_key)]
        if kinds[0] != kinds[1]:
            raise KindError(
                f"query and key must be of the same kind, got {kinds[0]} and {kinds[1]}. "
                "Give both as text or both as numbers."
            )
        if self.accepts not in ("any", kinds[0]):
            advice = (
                "Choose a text score: Exact, Names, Spelling, JaroWinkler, Levenshtein, TokenSetRatio."
                if kinds[0] == "text"
                else "Give arrays of text, or choose a score for numbers, such as Dot or Gaussian."
            )
            raise KindError(
                f"query and key must be {self.accepts} for the score {type(self).__name__}, got {kinds[0]}. {advice}"
            )


class InnerProductScore(Score):
    """Base class of scores that are an inner product of two vectors, plus optionally a term of the query alone.

    Example:
        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> from qkv import scores
        >>> @dataclass(frozen=True, eq=False)
        ... class Signs(scores.InnerProductScore):
        ...     def lift(self, query, key, tile):
        ...         return np.sign(query), np.sign(key)
        >>> Signs()(np.array([[5.0, -1.0]]), np.array([[1.0, -3.0], [1.0, 1.0]]))
        array([[2., 0.]])
    """

    form: Form = Product()

    @abstractmethod
    def lift(self, query: QueryArray, key: KeyArray, tile: Tile) -> LiftedArrays:
        """Return vectors of queries and keys whose inner products are the logits, or the logits minus `query_term`."""

    def logits(self, query: QueryArray, key: KeyArray, tile: Tile) -> Num[Array, "*#batch q k"]:
        """Return the logits: the inner products of the vectors of `lift`, plus `query_term` if there is one."""
        left, right, term = self._lift_with_term(query, key, tile)
        logits = namespace(left).matmul(left, namespace(left).matrix_transpose(right))
        return logits if term is None else logits + term[..., None]


class GeneralScore(Score):
    """Base class of scores that compute the logit of a pair by an arbitrary function of query and key.

    Example:
        >>> from dataclasses import dataclass
        >>> import numpy as np
        >>> from qkv import scores
        >>> @dataclass(frozen=True, eq=False)
        ... class Shared(scores.GeneralScore):
        ...     def compare(self, query, key):  # the number of equal elements
        ...         return (query[..., None, :] == key[..., None, :, :]).sum(-1).astype(float)
        >>> Shared()(np.array([[1.0, 2.0]]), np.array([[1.0, 2.0], [1.0, 9.0]]))
        array([[2., 1.]])
    """

    form: Form = Pairwise(saved=SavedArrays(logits=2.0))

    @abstractmethod
    def compare(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"]) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of all pairs, `(*batch, q, k)`. Each logit may depend only on its own query and key."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return max(query_width, key_width), because `compare` may need an array of all features of all pairs."""
        return max(query_width, key_width)

    @final
    def logits(
        self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
    ) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of a tile, `(*batch, q, k)`, as `compare` computes them.

        Raises:
            KindError: `compare` did not return an array of real numbers of the library of `query`.
            ShapeError: the shape of this array does not broadcast to `(*batch, q, k)`.
        """
        query, key = with_equal_batch(query, key)
        return check_logits(type(self).__name__, self.compare(query, key), query, key, tile)


def require_score(score: object, name: str = "score") -> Score:
    """Return `score`, or raise a `KindError` that names the argument `name` if it is not a `Score`."""
    if isinstance(score, Score):
        return score
    raise wrong_part(name, "Score", "ScaledDot()", score)
