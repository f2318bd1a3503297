"""Decay: a score that is multiplied by a factor for each position between query and key.

    logit(q_i, k_j) = score(q_i, k_j) · e^(g |i − j|)                                fixed, one g per head
    logit(q_i, k_j) = Σ_f φ_f(q_i) φ_f(k_j) e^(Σ_{j < t ≤ i} g_tf)                   from the data, one g per key

For a key after the query the sum is over i < t ≤ j. With the normalizer `Identity` and a causal mask this is a linear
recurrence, state_t = e^(g_t) state_{t−1} + φ(k_t) v_tᵀ and output_t = φ(q_t) state_t.

Source: Sun et al. (2023), Retentive Network, section 2.1, https://arxiv.org/abs/2307.08621 (fixed); Yang et al. (2024),
Gated linear attention transformers, section 4, https://arxiv.org/abs/2312.06635 (per key and feature); Dao and Gu
(2024), Transformers are SSMs, section 3, https://arxiv.org/abs/2405.21060 (Mamba-2: per key).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from qkv.core.arrays import cast, gather, is_array, library, namespace, stop_gradient, zeros
from qkv.core.batch import with_equal_batch
from qkv.core.parts import array_field, expand_to_pairs, require_number
from qkv.core.tile import Tile
from qkv.core.typing import Array, Float, Int, Num, Shaped
from qkv.errors import KindError, OptionError, ShapeError
from qkv.scores.base import Score
from qkv.scores.forms import Decayed
from qkv.scores.wrapper import WrapperScore

__all__ = ["Decay"]


@dataclass(frozen=True, eq=False)
class Decay(WrapperScore):
    """Inner score, multiplied by a decay for each position between query and key, as in RetNet, GLA and Mamba-2.

    With the normalizer `Identity`, which is its default, or `Sum`, and with a causal mask, a call is computed as a
    recurrence over chunks of the keys, in time and memory linear in the number of keys. `nn.StateCache` continues it
    token by token.

    Args:
        score: the inner score, such as `Dot(1 / sqrt(width))` or `Features()`.
        log_decay: g, the logarithm of the decay per position, a number or one number per batch element (heads are a
            batch axis), at most 0.
        log_decay_per_key: g_t, the logarithm of the decay at each key, `(*batch, k, 1)`, or for each of its features,
            `(*batch, k, features)`, finite and at most 0. Key t decays everything before it, but not itself.

    Shapes:
        query `(*batch, q, width)`, key `(*batch, k, width)` -> logits `(*batch, q, k)`

    Raises:
        OptionError: not exactly one of `log_decay` and `log_decay_per_key` is given, or the number is above 0.
        KindError: there is a decay per feature, and the inner score is not an inner product.
        ShapeError: the decays have another number of keys or features than the call.
        PositionError: query and key differ in length and no positions are given.

    Example:
        >>> import numpy as np
        >>> from qkv.scores import Dot
        >>> Decay(Dot(), np.log(0.5))(np.ones((3, 1)), np.ones((3, 1)))
        array([[1.  , 0.5 , 0.25],
               [0.5 , 1.  , 0.5 ],
               [0.25, 0.5 , 1.  ]])
        >>> forget = np.log([[1.0], [0.1], [0.5]])  # key 1 decays what came before it to a tenth
        >>> Decay(Dot(), log_decay_per_key=forget)(np.ones((3, 1)), np.ones((3, 1)))[2].round(2)
        array([0.05, 0.5 , 1.  ])
    """

    score: Score
    log_decay: Array | float | None = array_field(default=None)
    log_decay_per_key: Array | None = array_field("positions", "features", default=None)
    uses_positions: ClassVar[bool] = True
    default_normalizer = "identity"

    def validate(self) -> None:
        number, per_key = self.log_decay, self.log_decay_per_key
        if (number is None) == (per_key is None):
            given = "none" if number is None else "both"
            raise OptionError(
                f"exactly one of log_decay and log_decay_per_key must be given, got {given}. Pass log_decay=-0.1, or "
                "the logarithms of gates (*batch, k, 1) as log_decay_per_key."
            )
        if number is not None:
            require_number("Decay", "log_decay", number, lambda g: g <= 0, "a number of at most 0")
        elif not is_array(per_key):
            raise KindError(
                f"log_decay_per_key of Decay must be an array, got {type(per_key).__name__}. Pass an array of shape "
                "(*batch, k, 1), or a number as log_decay."
            )
        elif per_key.ndim and per_key.shape[-1] != 1 and self.score.form.lift != "exact":
            raise KindError(
                f"score of Decay must be an inner product for a decay per feature, got {self.score}. Pass Dot() or "
                "Features(), or one decay per key, of shape (*batch, k, 1)."
            )

    @property
    def form(self) -> Decayed:  # type: ignore[override]
        """The inner score with decays, which change no sign."""
        nonnegative = self.score.form.nonnegative
        return Decayed(self.score, self.log_decay, self.log_decay_per_key, nonnegative=nonnegative)

    def elements_per_logit(self, query_width: int, key_width: int) -> int:
        """Return the elements of the inner score plus those of the decays: 1, or 2 per feature."""
        per_feature = 2 * self.lifted_width(query_width, key_width) if self.form.per_feature else 1
        return self.score.elements_per_logit(query_width, key_width) + per_feature

    def flop_per_logit(self, query_width: int, key_width: int) -> int:
        """Return an estimate of the number of floating-point operations per logit, 20 for each exponential."""
        exponentials = self.lifted_width(query_width, key_width) if self.form.per_feature else 1
        return self.score.flop_per_logit(query_width, key_width) + 22 * exponentials

    def check_widths(self, query_width: int, key_width: int) -> None:
        self.score.check_widths(query_width, key_width)
        features = self.score.lifted_width(query_width, key_width)
        if self.form.per_feature and self.log_decay_per_key.shape[-1] != features:  # type: ignore[union-attr]
            raise ShapeError(
                f"log_decay_per_key of Decay must have width 1 or {features}, the number of features of {self.score}, "
                f"got width {self.log_decay_per_key.shape[-1]}. "  # type: ignore[union-attr]
                "Give one decay per key or one per feature."
            )

    def check_shapes(self, batch: tuple[int, ...] | None, lengths: dict[str, int]) -> None:
        super().check_shapes(batch, lengths)
        per_key, k = self.log_decay_per_key, lengths.get("k")
        if per_key is not None and k is not None and (per_key.ndim < 2 or per_key.shape[-2] != k):
            raise ShapeError(
                f"log_decay_per_key of Decay must have shape (*batch, {k}, 1) or (*batch, {k}, features) for {k} keys, "
                f"got shape {tuple(per_key.shape)}. Give one row per key."
            )

    def project(
        self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile
    ) -> tuple[Shaped[Array, "*_"], Shaped[Array, "*_"]]:
        return self.score.project(query, key, tile)

    def logits(self, query: Shaped[Array, "*_"], key: Shaped[Array, "*_"], tile: Tile) -> Num[Array, "*#batch #q #k"]:
        if self.form.per_feature:
            return self.projected_logits(*self.project(query, key, tile), tile)
        logits = self.score.logits(query, key, tile)
        return logits * self._factors(tile, logits)[..., 0]

    def projected_logits(
        self, left: Shaped[Array, "*_"], right: Shaped[Array, "*_"], tile: Tile
    ) -> Num[Array, "*#batch #q #k"]:
        if self.form.per_feature:
            left, right = with_equal_batch(left, right)
            products = left[..., :, None, :] * right[..., None, :, :]
            return namespace(left).sum(products * self._factors(tile, left), axis=-1)
        logits = self.score.projected_logits(left, right, tile)
        return logits * self._factors(tile, logits)[..., 0]

    def _factors(self, tile: Tile, reference: Array) -> Float[Array, "*#batch q k #features"]:
        """Return the decays of all pairs of a tile."""
        xp, per_key = namespace(reference), self.log_decay_per_key
        if per_key is None:
            slope = expand_to_pairs(self.log_decay)  # type: ignore[arg-type]
            # Integer distances, as in ALiBi: differences of products would cancel at long range.
            exponent = tile.map_relative_positions(reference, lambda d: slope * cast(xp.abs(d), reference.dtype))
            return xp.exp(exponent)[..., None]
        query, key = tile.query_positions(reference), tile.key_positions(reference)[None, :]
        # Differences of long sums lose digits in float32.
        if library(reference) in ("numpy", "torch"):
            parts: tuple[Array, ...] = (cast(per_key, xp.float64),)
        else:
            parts = _split(per_key)
        difference: Array | float = 0.0  # (*batch, features, q, k)
        for part in parts:
            # The sum before key 0 is 0.
            sums = xp.cumulative_sum(part, axis=part.ndim - 2)
            first = zeros(sums, (*sums.shape[:-2], 1, sums.shape[-1]), sums.dtype)
            sums = xp.matrix_transpose(xp.concat([first, sums], axis=-2))
            at_query, at_key = _take(sums, query, tile.k_total), _take(sums, key, tile.k_total)
            difference = at_query - xp.matrix_transpose(at_key) + difference
        earlier = (query < key)[..., None, :, :] if query.ndim > 2 else query < key
        exponent = xp.where(earlier, -difference, difference)
        return cast(xp.moveaxis(xp.exp(exponent), -3, -1), reference.dtype)


def _split(x: Float[Array, "*batch n features"]) -> tuple[Float[Array, "*batch n features"], ...]:
    """Return two arrays with the sum `x`: multiples of a number that have exact partial sums, and the rest.

    (x + c) − c is x rounded to a multiple of the spacing of numbers near 3 c / 4, and partial sums are at most c / 4.
    """
    xp = namespace(x)
    total = 0.0 if 0 in x.shape else stop_gradient(xp.max(xp.sum(xp.abs(x), axis=-2)))
    rounded = (x + 4 * total) - 4 * total
    return rounded, x - rounded


def _take(
    sums: Float[Array, "*#batch features n"], positions: Int[Array, "*#batch q k"], keys: int
) -> Float[Array, "*#batch features m _"]:
    """Return the sums up to each position. Positions beyond the first or last key have the sum of 0 or all keys."""
    xp = namespace(sums)
    index = positions + 1
    index = xp.where(index < 0, xp.zeros_like(index), xp.where(index > keys, xp.zeros_like(index) + keys, index))
    column = xp.reshape(index, (*index.shape[:-2], math.prod(index.shape[-2:]), 1))
    return gather(sums, column[..., None, :, :] if column.ndim > 2 else column)
