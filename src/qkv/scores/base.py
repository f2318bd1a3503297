"""What a score is: the door every call goes through, and the three kinds behind it.

    Score                    tile(query, key, place) -> logits
    ├── InnerProductScore    lift(query, key, place): the logit is a product of two vectors
    ├── PointwiseScore       point(logits, place): another score, changed logit by logit
    └── GeneralScore         compare(query, key): anything

To add a score, subclass one of the three as a frozen dataclass and write that one method. Masks,
memory-linear kernels, gradients, EXPLAIN and `ask` follow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from qkv.core.arrays import Array, as_array, is_text, namespace
from qkv.core.parts import Part
from qkv.core.positions import Positions
from qkv.core.tile import Tile
from qkv.errors import KindError, ShapeError

__all__ = [
    "GeneralScore",
    "InnerProductScore",
    "LiftKind",
    "PointwiseScore",
    "Score",
    "WrapperScore",
    "concat_features",
    "product_bound",
    "check_same_width",
]

LiftKind = Literal["exact", "up_to_query_constant"]


class Score(Part, ABC):
    """Compares every query with every key. Its results are logits.

    Facts, read by the planner:
        lift_kind: whether the logit is an inner product of lifted vectors, exactly, or up to a term that
            depends on the query alone; None where it is not.
        positional: the logit depends on positions.
        accepts: "numbers", "text" or "any".
        constant: every pair has the same logit.
        keeps_dtype: query and key are compared in the dtype they come in, not in that of the answer.
        default_normalizer: name of the normalizer used where none is given.
        is_inner_product: `pair` is the plain matrix product of the sides, without a loss of digits.
        tanh_vector: v if the logit is Σ_h v_h tanh(left_h + right_h) of the projections; otherwise None.
        gated_product: whether the logit is σ(left_w + right_w) · <left_:w, right_:w> of the projections, whose last
            column w is the gate's.
        inner: the score whose logits this score changes one by one; otherwise None.
        adds_offset: whether the logit is that of `inner` plus `offset(tile)`, which does not depend on logits.
        tanh_cap: c if the logit is c · tanh(logit of `inner` / c) with one number c; otherwise None.
        is_scaled_dot: `scaled_lift` gives query and key as they came, so nothing is copied.
    """

    default_normalizer: str = "softmax"
    positional: bool = False
    accepts: str = "numbers"
    constant: bool = False
    keeps_dtype: bool = False
    tanh_vector: Array | None = None
    gated_product: bool = False
    adds_offset: bool = False
    tanh_cap: float | None = None
    is_scaled_dot: bool = False

    @property
    def inner(self) -> Score | None:
        """The score whose logits this score changes one by one; None for other scores."""
        return None

    @property
    def is_inner_product(self) -> bool:
        """Fact: `pair` is the plain matrix product of the sides."""
        return self.lift_kind is not None

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: how far `lift` reproduces the logit."""
        return None

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: how many numbers are in memory at once for each logit of a tile."""
        return 1

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: floating-point operations for each logit."""
        return 2 * max(query_width, key_width)

    def check_widths(self, query_width: int, key_width: int) -> None:
        """Raise a `ShapeError` where these widths cannot be compared."""
        check_same_width(self, query_width, key_width)

    @abstractmethod
    def logits(self, query: Array, key: Array, tile: Tile) -> Array:
        """Logits `(*batch, q, k)` of a tile standing at `place`. The part is already cut to the tile."""

    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Vectors whose inner product is the logit, as far as `lift_kind` says."""
        raise KindError(f"{type(self).__name__} is no inner product.")

    def scaled_lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array, float]:
        """`lift`, and a number by which the product is still to be multiplied, where that saves a pass."""
        return *self.lift(query, key, tile), 1.0

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: how wide the lifted vectors are."""
        return max(query_width, key_width)

    def lift_description(self) -> str:
        """Fact: what `lift` does, in a few words for EXPLAIN; "" where there is nothing to say."""
        return ""

    def query_term(self, query: Array, tile: Tile) -> Array | None:
        """What `lift` leaves out: `(*batch, q)`, or None where it is exact."""
        return None

    def centre(self, key: Array) -> Any:
        """A point `(*batch, 1, width)` to measure from, which saves digits. Lifts that meet must share it."""
        return None

    # The same score, said more simply: what the planner's rewrites ask for.

    def simplify(self, q: int, k: int) -> Score:
        """The same logits for these lengths, from a score with less to do; itself where there is none."""
        return self

    def flatten(self) -> Score:
        """The same score without nesting that means nothing; itself where there is none."""
        return self

    # What kernels call that go tile by tile: the work of each side once, the work of a pair on tiles.

    def project(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """What each query and each key contributes by itself: rows stay rows, in O(q + k) for the whole call.

        `pair` of them is `tile` of query and key. By default the vectors of `lift`, with what it leaves out;
        query and key as they are where there is none.
        """
        if self.lift_kind is None:
            return query, key
        if tile.centre is None:
            tile = replace(tile, centre=self.centre(key))
        left, right = self.lift(query, key, tile)
        term = self.query_term(query, tile)
        if term is None:
            return left, right
        one = namespace(right).ones_like(right[..., :1])
        return concat_features([left, term[..., None]]), concat_features([right, one])

    def projected_logits(self, left: Array, right: Array, tile: Tile) -> Array:
        """Logits `(*batch, q, k)` of a tile, from its sides. The part is already cut to the tile."""
        if not self.is_inner_product:
            return self.logits(left, right, tile)
        return namespace(left).matmul(left, namespace(left).matrix_transpose(right))

    def bound(self, left: Array, right: Array) -> Array | None:
        """A number that no |logit| of these sides exceeds, in O(q + k); None where that is not known.

        A positive bound below 60 lets a kernel take exponentials without the maximum of each row.
        """
        if not self.is_inner_product:
            return None
        return product_bound(left, right)

    @final
    def __call__(self, query: Array, key: Array, positions: Positions | None = None) -> Array:
        """Logits of all pairs, `(*batch, q, k)`, in memory q · k."""
        query, key = as_array(query), as_array(key)
        core = 1 if is_text(query) else 2
        if query.ndim < core or key.ndim < core:
            raise ShapeError(f"query has shape {query.shape}, key {key.shape}; they must be (*batch, length, width).")
        self.check_kind(is_text(query), is_text(key))
        if core == 2:
            self.check_widths(query.shape[-1], key.shape[-1])
        q, k = (query.shape[-1], key.shape[-1]) if core == 1 else (query.shape[-2], key.shape[-2])
        batches = (tuple(query.shape[:-core]), tuple(key.shape[:-core]))
        try:
            batch = np.broadcast_shapes(*batches)
        except ValueError:
            raise ShapeError(
                f"the batch axes of query {batches[0]} and key {batches[1]} do not broadcast. Make them "
                "equal, or 1 where one side is shared."
            ) from None
        self.check_lengths(q, k)
        return self.logits(query, key, Tile.whole(q, k, batch, positions))

    def check_kind(self, text_query: bool, text_key: bool) -> None:
        """Raise a `KindError` where text meets numbers, or this score takes the other kind."""
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


def check_same_width(score: Score, query_width: int, key_width: int) -> None:
    """Raise a `ShapeError` where the widths differ."""
    if query_width != key_width:
        raise ShapeError(
            f"query has width {query_width}, key has width {key_width}; {type(score).__name__} compares "
            "equal widths. Project one onto the other first: Projected(score, query_weight, key_weight) or "
            f"Bilinear(weight) with a weight of shape ({query_width}, {key_width})."
        )


class InnerProductScore(Score):
    """A score that is an inner product of lifted vectors, plus at most a term of the query alone."""

    fact: ClassVar[LiftKind] = "exact"

    @property
    def lift_kind(self) -> LiftKind | None:
        """Fact: `exact`, unless the class says otherwise."""
        return self.fact

    @abstractmethod
    def lift(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """Lifted query `(*batch, q, w)` and key `(*batch, k, w)`."""

    def logits(self, query: Array, key: Array, tile: Tile) -> Array:
        """The inner product of the lifted vectors, plus the term of the query."""
        xp = namespace(query)
        if tile.centre is None:
            tile = replace(tile, centre=self.centre(key))
        left, right = self.lift(query, key, tile)
        logits = xp.matmul(left, xp.matrix_transpose(right))
        term = self.query_term(query, tile)
        return logits if term is None else logits + term[..., None]


class WrapperScore(Score):
    """A score around another one. Facts are those of the score within, unless the wrapper changes them."""

    score: Score
    uses_positions: ClassVar[bool] = False
    """Whether the wrapper itself looks at positions."""

    @property
    def positional(self) -> bool:  # type: ignore[override]
        """Fact: the wrapper or the score within looks at positions."""
        return self.uses_positions or self.score.positional

    @property
    def accepts(self) -> str:  # type: ignore[override]
        """Fact: what the score within takes."""
        return self.score.accepts

    @property
    def default_normalizer(self) -> str:  # type: ignore[override]
        """Fact: that of the score within."""
        return self.score.default_normalizer

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: as the score within."""
        return self.score.elements_per_logit(query_width, key_width)

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: as the score within, and a little."""
        return self.score.flop_per_logit(query_width, key_width) + 4

    def lifted_width(self, query_width: int, key_width: int) -> int:
        """Fact: as the score within."""
        return self.score.lifted_width(query_width, key_width)

    def lift_description(self) -> str:
        """Fact: as the score within."""
        return self.score.lift_description()

    def check_widths(self, query_width: int, key_width: int) -> None:
        """As the score within."""
        self.score.check_widths(query_width, key_width)

    def centre(self, key: Array) -> Any:
        """As the score within."""
        return self.score.centre(key)


class PointwiseScore(WrapperScore):
    """Another score, changed logit by logit, with positions if it wants them. Define `offset` or `transform`."""

    @property
    def inner(self) -> Score | None:
        """The score within."""
        return self.score

    @property
    def adds_offset(self) -> bool:  # type: ignore[override]
        """True unless the class overrides `transform`."""
        return type(self).transform is PointwiseScore.transform

    def offset(self, tile: Tile, reference: Array) -> Array:
        """What is added to the logits of a tile: broadcasts to `(*batch, q, k)`, like `reference`."""
        raise KindError(f"{type(self).__name__} is a pointwise score and defines neither offset nor point.")

    def transform(self, logits: Array, tile: Tile) -> Array:
        """The changed logits: by default, with `offset` added."""
        return logits + self.offset(tile, logits)

    def logits(self, query: Array, key: Array, tile: Tile) -> Array:
        """The inner logits, changed."""
        return self.transform(self.score.logits(query, key, tile), tile)

    @property
    def is_inner_product(self) -> bool:
        """Fact: where this is an inner product to the last digit."""
        return self.lift_kind == "exact"

    def project(self, query: Array, key: Array, tile: Tile) -> tuple[Array, Array]:
        """As the score within, unless this one is an inner product itself, to the last digit."""
        if self.is_inner_product:
            return super().project(query, key, tile)
        return self.score.project(query, key, tile)

    def projected_logits(self, left: Array, right: Array, tile: Tile) -> Array:
        """The inner logits, changed, unless this is an inner product itself."""
        if self.is_inner_product:
            return super().projected_logits(left, right, tile)
        return self.transform(self.score.projected_logits(left, right, tile), tile)

    def bound(self, left: Array, right: Array) -> Array | None:
        """Unknown, unless this is an inner product itself."""
        return super().bound(left, right) if self.is_inner_product else None

    def query_term(self, query: Array, tile: Tile) -> Array | None:
        """That of the score within."""
        return self.score.query_term(query, tile)


class GeneralScore(Score):
    """Any comparison of a tile of queries with a tile of keys."""

    @abstractmethod
    def compare(self, query: Array, key: Array) -> Array:
        """Logits `(*batch, q, k)`."""

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Fact: a tile of pairs, each as wide as the wider side, unless the score says less."""
        return max(query_width, key_width)

    @final
    def logits(self, query: Array, key: Array, tile: Tile) -> Array:
        """The comparison; it does not see the place."""
        return self.compare(query, key)


def concat_features(sides: list[Array]) -> Array:
    """Vectors put side by side, after their batch axes are made equal."""
    xp = namespace(*sides)
    widths = [side.shape[-1] for side in sides]
    lead = xp.broadcast_arrays(*(side[..., :1] for side in sides))[0].shape[:-1]
    return xp.concat(
        [xp.broadcast_to(side, (*lead, width)) for side, width in zip(sides, widths, strict=True)], axis=-1
    )


def product_bound(left: Array, right: Array) -> Array:
    """The longest row of one side times the longest of the other: no inner product is larger."""
    xp = namespace(left)
    # Norms, not sums of squares, which would be an array as large as the side.
    return xp.max(xp.linalg.vector_norm(left, axis=-1)) * xp.max(xp.linalg.vector_norm(right, axis=-1))
