"""Base classes of scores.

    Score                    logits(query, key, tile)
    ├── InnerProductScore    lift(query, key, tile): the logit is the inner product of two vectors
    ├── PointwiseScore       offset(tile) or transform(logits, tile): changes each logit of another score
    └── GeneralScore         compare(query, key): any function of a pair

To add a score, subclass one of the three as a frozen dataclass and define that one method. Masks, kernels with
memory linear in the lengths, gradients, EXPLAIN and `Database.ask` then work with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias, final

from qkv.core.arrays import as_array, is_text, namespace
from qkv.core.axes import broadcast_batch
from qkv.core.parts import Part, delegates
from qkv.core.positions import Positions
from qkv.core.tile import Centre, Tile
from qkv.core.typing import Array, ArrayLike, Num, Shaped
from qkv.errors import KindError, ShapeError

__all__ = [
    "GeneralScore",
    "InnerProductScore",
    "LiftKind",
    "PointwiseScore",
    "Score",
    "WrapperScore",
    "check_same_width",
    "concat_features",
    "product_bound",
]

LiftKind: TypeAlias = Literal["exact", "up_to_query_constant"]


class Score(Part, ABC):
    """Compares every query with every key. Its results are called logits.

    Attributes are facts that the planner and the kernels read.

    Attributes:
        default_normalizer: name of the normalizer used where the call gives none.
        positional: whether the logit depends on positions.
        accepts: "numbers", "text" or "any".
        constant: whether every pair has the same logit.
        keeps_dtype: whether query and key are compared in their own dtype instead of the dtype of accumulation.
        lift_kind: "exact" if the logit is the inner product of the vectors of `lift`, "up_to_query_constant" if
            that holds up to a term that depends on the query alone, None otherwise.
        is_inner_product: whether `projected_logits` is the plain matrix product of the projections.
        is_scaled_dot: whether the logit is a number times the inner product of query and key themselves, so that
            `scaled_lift` copies nothing.
        tanh_vector: v if the logit is Σ_h v_h tanh(left_h + right_h) of the projections; otherwise None.
        gated_product: whether the logit is σ(left_w + right_w) · <left_:w, right_:w> of the projections, whose last
            column w is the gate's.
        inner: the score whose logits this score changes one by one; otherwise None.
        adds_offset: whether the logit is that of `inner` plus `offset(tile)`, which does not depend on logits.
        tanh_cap: c if the logit is c · tanh(logit of `inner` / c) with one number c; otherwise None.
    """

    default_normalizer: str = "softmax"
    positional: bool = False
    accepts: str = "numbers"
    constant: bool = False
    keeps_dtype: bool = False
    lift_kind: LiftKind | None = None
    is_scaled_dot: bool = False
    tanh_vector: Array | None = None
    gated_product: bool = False
    inner: Score | None = None
    adds_offset: bool = False
    tanh_cap: float | None = None

    @property
    def is_inner_product(self) -> bool:
        """Whether `projected_logits` is the plain matrix product of the projections."""
        return self.lift_kind is not None

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return the number of array elements in memory at once per logit of a tile."""
        return 1

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return the number of floating-point operations per logit."""
        return 2 * max(query_width, key_width)

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Return the width of the vectors of `lift`."""
        return max(query_width, key_width)

    def lift_description(self) -> str:
        """Return a few words for EXPLAIN about `lift`; "" if it does nothing."""
        return ""

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Raise a `ShapeError` if query and key of these widths cannot be compared."""
        check_same_width(self, query_width, key_width)

    @abstractmethod
    def logits(self, query: Array, key: Array, tile: Tile) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of a tile, `(*batch, q, k)`.

        Args:
            query: the tile's queries, `(*batch, q, query_width)`, or text `(*batch, q)`.
            key: the tile's keys, `(*batch, k, key_width)`, or text `(*batch, k)`.
            tile: the place of the tile in the call. Arrays of this score are already restricted to it.
        """

    def lift(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]:
        """Return vectors whose inner product is the logit, exactly or up to `query_term`; see `lift_kind`.

        Raises:
            KindError: the score is not an inner product.
        """
        raise KindError(f"{type(self).__name__} is not an inner product, so it has no lift.")

    def scaled_lift(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"], float]:
        """Return `lift` and a factor of the inner product, which a kernel applies without copying the vectors."""
        return *self.lift(query, key, tile), 1.0

    def query_term(self, query: Num[Array, "*#batch q query_width"], tile: Tile) -> Num[Array, "*#batch q"] | None:
        """Return the logit minus the inner product of `lift`, `(*batch, q)`; None where `lift` is exact."""
        return None

    def centre(self, key: Num[Array, "*batch k key_width"]) -> Centre:
        """Return a point `(*batch, 1, width)` to subtract from query and key before `lift`, or None.

        It reduces cancellation. Lifts that are compared with each other must use the same centre.
        """
        return None

    def simplify(self, q: int, k: int) -> Score:
        """Return a cheaper score with the same logits for `q` queries and `k` keys, or this score."""
        return self

    def flatten(self) -> Score:
        """Return the score without redundant nesting, or this score if there is none."""
        return self

    def project(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Return the part of the logit that depends on each side alone, in O(q + k) for the whole call.

        `projected_logits` of the projections are the `logits` of query and key. The default returns the vectors of
        `lift`, with `query_term` as one more column, and query and key themselves if there is no lift.
        """
        if self.lift_kind is None:
            return query, key
        left, right, term = self._lift_with_term(query, key, tile)
        if term is None:
            return left, right
        one = namespace(right).ones_like(right[..., :1])
        return concat_features(left, term[..., None]), concat_features(right, one)

    def _lift_with_term(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array, Array | None]:
        if tile.centre is None:
            tile = replace(tile, centre=self.centre(key))
        return *self.lift(query, key, tile), self.query_term(query, tile)

    def projected_logits(self, left: Array, right: Array, tile: Tile) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits of a tile, `(*batch, q, k)`, from the projections of its queries and keys."""
        if not self.is_inner_product:
            return self.logits(left, right, tile)
        return namespace(left).matmul(left, namespace(left).matrix_transpose(right))

    def bound(self, left: Array, right: Array) -> Shaped[Array, ""] | None:
        """Return an upper bound of |logit| over all pairs of these projections, in O(q + k); None if unknown.

        Below 60 it lets a kernel take exponentials without the maximum of each row.
        """
        return product_bound(left, right) if self.is_inner_product else None

    @final
    def __call__(self, query: ArrayLike, key: ArrayLike, positions: Positions | None = None) -> Array:
        """Return the logits of all pairs, `(*batch, q, k)`, with memory O(q · k).

        Args:
            query: `(*batch, q, query_width)`, or text `(*batch, q)`.
            key: `(*batch, k, key_width)`, or text `(*batch, k)`.
            positions: how query positions relate to key positions, for positional scores.

        Raises:
            ShapeError: widths or batch axes do not fit.
            KindError: the score does not accept text, or not numbers.
            PositionError: the score is positional, the lengths differ and `positions` is None.
        """
        query, key = as_array(query), as_array(key)
        core = 1 if is_text(query) else 2
        if query.ndim < core or key.ndim < core:
            raise ShapeError(f"query has shape {query.shape}, key {key.shape}; they must be (*batch, length, width).")
        self.check_kind(is_text(query), is_text(key))
        if core == 2:
            self.check_widths(query.shape[-1], key.shape[-1])
        q, k = query.shape[-core], key.shape[-core]
        batch = broadcast_batch(query=tuple(query.shape[:-core]), key=tuple(key.shape[:-core]))
        self.check_lengths(q, k)
        return self.logits(query, key, Tile.whole(q, k, batch, positions))

    def check_kind(self, text_query: bool, text_key: bool) -> None:
        """Raise a `KindError` if one side is text and the other numbers, or if the score does not accept them."""
        kinds = ["text" if text else "numbers" for text in (text_query, text_key)]
        if kinds[0] != kinds[1]:
            raise KindError(f"the query is {kinds[0]}, the key is {kinds[1]}. Give both as the same kind.")
        if self.accepts not in ("any", kinds[0]):
            advice = (
                "Choose a text score: Exact, Spelling, JaroWinkler, Levenshtein, TokenSetRatio."
                if kinds[0] == "text"
                else "Give arrays of text, or choose a score for numbers."
            )
            raise KindError(f"{type(self).__name__} compares {self.accepts}, query and key are {kinds[0]}. {advice}")


class InnerProductScore(Score):
    """A score that is an inner product of lifted vectors, plus at most a term of the query alone."""

    lift_kind: LiftKind | None = "exact"

    @abstractmethod
    def lift(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> tuple[Num[Array, "*#batch q lifted"], Num[Array, "*#batch k lifted"]]:
        """Return vectors whose inner product is the logit, exactly or up to `query_term`; see `lift_kind`."""

    def logits(
        self, query: Num[Array, "*#batch q query_width"], key: Num[Array, "*#batch k key_width"], tile: Tile
    ) -> Num[Array, "*#batch q k"]:
        """Return the inner products of the lifted vectors, plus the term of the query."""
        left, right, term = self._lift_with_term(query, key, tile)
        logits = namespace(left).matmul(left, namespace(left).matrix_transpose(right))
        return logits if term is None else logits + term[..., None]


@delegates("score", "accepts", "default_normalizer", "elements_per_logit", "lifted_width", "lift_description")
@delegates("score", "check_widths", "centre")
class WrapperScore(Score):
    """A score around another one, `score`, whose facts it has unless it overrides them."""

    score: Score
    uses_positions: ClassVar[bool] = False
    """Whether the wrapper itself depends on positions."""

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Whether the wrapper or its inner score depends on positions."""
        return self.uses_positions or self.score.positional

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return the number of the inner score plus 4."""
        return self.score.flop_per_logit(query_width, key_width) + 4

    def _lift_description_with(self, own: str) -> str:
        return ", ".join(words for words in (self.score.lift_description(), own) if words)


@delegates("score", "query_term")
class PointwiseScore(WrapperScore):
    """A score that changes each logit of another score. Define `offset` or `transform`."""

    @property
    def inner(self) -> Score:  # type: ignore[override]
        """The score whose logits are changed."""
        return self.score

    @property
    def adds_offset(self) -> bool:  # type: ignore[override]
        """True unless the class overrides `transform`."""
        return type(self).transform is PointwiseScore.transform

    @property
    def is_inner_product(self) -> bool:
        """Whether this score is an exact inner product itself."""
        return self.lift_kind == "exact"

    def offset(self, tile: Tile, reference: Array) -> Array:
        """Return the numbers to add to the logits of a tile, broadcasting to `(*batch, q, k)`.

        Args:
            tile: the place of the tile in the call.
            reference: an array of the library, device and dtype of the result.

        Raises:
            KindError: the class defines neither `offset` nor `transform`.
        """
        raise KindError(f"{type(self).__name__} is a pointwise score and defines neither offset nor transform.")

    def transform(self, logits: Num[Array, "*#batch #q #k"], tile: Tile) -> Num[Array, "*#batch #q #k"]:
        """Return the changed logits; the default adds `offset`."""
        return logits + self.offset(tile, logits)

    def logits(self, query: Array, key: Array, tile: Tile) -> Num[Array, "*#batch #q #k"]:
        """Return the changed logits of the inner score."""
        return self.transform(self.score.logits(query, key, tile), tile)

    def project(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Return the projections of the inner score, or of this score if it is an exact inner product."""
        if self.is_inner_product:
            return super().project(query, key, tile)
        return self.score.project(query, key, tile)

    def projected_logits(self, left: Array, right: Array, tile: Tile) -> Num[Array, "*#batch #q #k"]:
        """Return the logits of a tile from the projections."""
        if self.is_inner_product:
            return super().projected_logits(left, right, tile)
        return self.transform(self.score.projected_logits(left, right, tile), tile)


class GeneralScore(Score):
    """A score defined by any function of a tile of queries and a tile of keys."""

    @abstractmethod
    def compare(self, query: Array, key: Array) -> Shaped[Array, "*#batch #q #k"]:
        """Return the logits, `(*batch, q, k)`; each must depend on its own query and key alone."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return the wider width: `compare` may hold an array of all features of all pairs."""
        return max(query_width, key_width)

    @final
    def logits(self, query: Array, key: Array, tile: Tile) -> Shaped[Array, "*#batch #q #k"]:
        """Return `compare(query, key)`."""
        return self.compare(query, key)


def check_same_width(score: Score, query_width: int, key_width: int) -> None:
    """Raise a `ShapeError` if the widths differ."""
    if query_width != key_width:
        raise ShapeError(
            f"query has width {query_width}, key has width {key_width}; {type(score).__name__} compares "
            "equal widths. Project one onto the other first: Projected(score, query_weight, key_weight) or "
            f"Bilinear(weight) with a weight of shape ({query_width}, {key_width})."
        )


def concat_features(*arrays: Array) -> Num[Array, "*batch n width"]:
    """Concatenate arrays along the last axis after broadcasting the others."""
    xp = namespace(*arrays)
    lead = xp.broadcast_arrays(*(x[..., :1] for x in arrays))[0].shape[:-1]
    return xp.concat([xp.broadcast_to(x, (*lead, x.shape[-1])) for x in arrays], axis=-1)


def product_bound(left: Num[Array, "*#batch q width"], right: Num[Array, "*#batch k width"]) -> Num[Array, ""]:
    """Return the largest row norm of one side times that of the other, which bounds every inner product."""
    xp = namespace(left)
    # vector_norm needs no temporary array of squares.
    return xp.max(xp.linalg.vector_norm(left, axis=-1)) * xp.max(xp.linalg.vector_norm(right, axis=-1))
