"""What a normalizer is: from a row of logits to weights, whole or piece by piece.

A logit of −inf excludes its key. Where no key is left the weights are 0, for every normalizer.

The whole row: `weights(logits, place)`, portable and differentiable: the definition.
Piece by piece, for normalizers whose `passes` is "one":

    prepare(logits)                            logit by logit, differentiable (a temperature)
    fold(logits, value, place, ...) -> PartialResult what one tile of these contributes; partials merge in any order
    finish(partial, ...) -> output, summary    the answer, and a few numbers per row from which ...
    tile_weights(logits, summary, place)       ... the weights of any tile can be had again, and
    logit_gradient(...)                        the gradient of its prepared logits
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from qkv.core.arrays import Array, namespace
from qkv.core.online_softmax import PartialResult
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.errors import RefusedError

__all__ = ["Normalizer", "Summary", "excluded"]

Summary = tuple[Array, ...]


class Normalizer(Part, ABC):
    """Turns logits `(*batch, q, k)` into weights of the same shape.

    Facts, read by the planner:
        passes: "one" where a row can be folded tile by tile, "rows" where it must be seen whole.
        shift_invariant: a number added to a whole row of logits changes nothing.
        even: equal logits get equal weights, whatever they are.
        sums_to_one: weights of a row that has a key add up to 1.
        log_sum_exp: the logarithm of the row's total is defined.
        chooses: it picks keys by their rank and index, so its fold cannot run over keys that were reordered.
        keeps: so many keys of the highest rank, the first of equal ones, get weight; None where more decides.
        stochastic: the weights are drawn and need a seed.
        trains_logits: a gradient reaches the logits.
        power: p if weights are max(0, scale · logit − τ)^p with τ such that they add up to 1; otherwise None.
        scale: `prepare` multiplies by this number and does nothing else; None where it does more.
    """

    online: bool = True
    shift_invariant: bool = False
    symmetric: ClassVar[bool] = False
    sums_to_one: bool = True
    log_sum_exp: bool = False
    selects_keys: ClassVar[bool] = False
    top_k: int | None = None
    stochastic: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    power: int | None = None
    scale: float | None = None

    def simplify(self, k: int) -> Normalizer:
        """A simpler normalizer that does the same where there are only `k` keys; else itself."""
        return self

    def accumulator_width(self, value_width: int) -> int:
        """Fact: how many numbers a partial holds for each query."""
        return value_width + 2

    @abstractmethod
    def weights(self, logits: Array, tile: Tile | None = None) -> Array:
        """Weights of whole rows."""

    def support(self, logits: Array, weights: Array) -> Array:
        """Which values are read, as booleans: by default all keys that are not excluded."""
        return ~excluded(logits)

    # Where few keys of a row get weight: how a kernel finds them, and that it need not look at the others.

    def selection_logits(self, logits: Array, tile: Tile) -> Array:
        """What decides which keys get weight: the logits, unless something is added to them."""
        return logits

    def threshold_bound(self, largest: Array) -> Array | None:
        """A rank, `(*batch, q, 1)`, below which no key gets weight, nor changes that of another.

        Args:
            largest: the largest rank of each of some groups of keys that share no key, `(*batch, q, groups)`;
                the row's largest is among them, and none is NaN or +inf.

        Returns:
            A number for each row, as near to the smallest rank with a weight as that can be said cheaply, and
            NaN where the row has no key; None where every key may get weight.
        """
        return None

    def candidate_weights(self, logits: Array, ranks: Array, tile: Tile) -> Array:
        """Weights of the keys that reach the floor, in the order of their keys; −inf fills up a row."""
        return self.weights(logits, tile)

    def prepare(self, logits: Array) -> Array:
        """What is done to each logit by itself, before the fold; differentiable. −inf stays −inf."""
        return logits

    def accumulate(self, logits: Array, value: Array, tile: Tile, dropout: float, clean: bool) -> PartialResult:
        """What the tile's keys contribute; `clean`: the values are known to be finite."""
        raise self._needs_rows()

    def finalize(self, partial: Any, tile: Tile, dropout: float) -> tuple[Array, Summary]:
        """Output `(*batch, q, value_width)`; and the summary that gives tiles their weights."""
        raise self._needs_rows()

    def tile_weights(self, logits: Array, summary: Summary, tile: Tile) -> Array:
        """Weights of a tile, before dropout."""
        raise self._needs_rows()

    def logit_gradient(
        self,
        logits: Array,
        weights: Array,
        weight_gradient: Array,
        row_dot: Array,
        summary: Summary,
        tile: Tile,
    ) -> Array:
        """Gradient of the tile's prepared logits.

        Args:
            logits: of the tile, prepared.
            weights: of the tile, before dropout.
            weight_gradient: gradient of these weights.
            row_dot: Σ over all keys of weight · weight_gradient, `(*batch, q, 1)`.
            summary: what `finish` gave.
            place: where the tile stands.
        """
        raise self._needs_rows()

    def array_gradients(self, summary: Summary, row_dot: Array) -> tuple[Array | None, ...]:
        """Row by row, gradients of `arrays()` beside those through `prepare`; None where there is none."""
        return (None,) * len(self.arrays())

    def _needs_rows(self) -> RefusedError:
        return RefusedError(f"{type(self).__name__} has no fold: it must see whole rows.")


def excluded(logits: Array) -> Array:
    """Which keys are excluded. NaN is not: it is read, and shows."""
    return logits == -namespace(logits).inf
