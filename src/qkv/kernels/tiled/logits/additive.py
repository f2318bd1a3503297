"""Logits of a tile for additive scores, Σ_h v_h tanh(a_ih + b_jh), with a sum and a division for each pair and unit.

    tanh(a + b) = 1 − 2r        r = t / (t + y)        t = e^{−2a}        y = e^{2b}

The exponentials of each query and each key are computed once. With G = dL/dS, the gradients are sums over one array of
pairs for each unit, E = G / (t + y)²:

    dL/da_i = 4 v t_i Σ_j E_ij y_j        dL/db_j = 4 v y_j Σ_i t_i E_ij
    dL/dv = Σ_ij G_ij − 2 Σ_ij G_ij r_ij        Σ_j G_ij r_ij = t_i (t_i Σ_j E_ij + Σ_j E_ij y_j)

The narrower of a and b is centered at 0 for each unit (a + c, b − c). Units with wide ranges on both sides are
evaluated by one tanh per pair, which is accurate at every range. The range of the units is a guard on the data, whose
outcome is reported in `HiddenUnits.note`.

Source: Bahdanau, Cho, Bengio (2015), Neural machine translation by jointly learning to align and translate,
appendix A.1.2, https://arxiv.org/abs/1409.0473, for the score.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch

from qkv.core.typing import Float, Int, Tensor
from qkv.kernels.runtime.faster_ops import LARGEST_FACTOR, faster_ops
from qkv.kernels.runtime.tile_loop import Limits
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import (
    Gradients,
    Shift,
    TileLogits,
    TileTensor,
    Traced,
    center_sides,
    scale_and_shift_,
)
from qkv.scores.forms import Tanh

ELEMENTWISE_BYTES = 1 << 20
"""Largest size in bytes of the array of elementwise tanh that is computed at once: 1 MiB stays in the second-level
cache."""


@dataclass(frozen=True)
class _ExponentRange:
    """Limits within which no exponential, square or sum of a tile overflows or loses precision, for a dtype.

    Attributes:
        half_range: largest min(max|a_h|, max|b_h|) of a unit that is evaluated from exponentials.
        clip: largest |2a| and |2b|. Beyond it tanh is 1 to the precision of the dtype, whatever the other side is.
        scale: exponent of the largest gradient of a tile, which is multiplied by a power of two.
    """

    half_range: float
    clip: float
    scale: int


EXPONENT_RANGES = {4: _ExponentRange(13.25, 44.0, 26), 8: _ExponentRange(150.0, 350.0, 60)}
"""Limits for float32 and float64, by the bytes of an element."""
_MAX_SCALE = 100
"""Largest exponent of the factor of a gradient: a gradient of 0 remains 0, and no factor overflows."""


class AdditiveLogits(TileLogits):
    """Logits and gradients of tiles of one batch element, for a score of the form `Tanh`."""

    def logits(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> TileTensor:
        out = workspace.take("logits", (rows[1] - rows[0], cols[1] - cols[0]), self.call.value)
        out.fill_(self._units.constant)
        for units in self._units.terms:
            units.add_logits(rows, cols, out, workspace)
        return scale_and_shift_(out, self.factor, shift)

    def trace(self, rows: Limits, cols: Limits, workspace: Workspace, shift: Shift = None) -> Traced:

        def backward(gradient: Float[Tensor, "q k"], gradients: Gradients) -> None:
            vector = cast("Tensor", cast("Tanh", gradients.score.form).vector)
            for units in self._units.terms:
                units.add_gradient(rows, cols, gradient, gradients.query, gradients.key, vector, workspace)

        return self.logits(rows, cols, workspace, shift), backward

    def guard_notes(self) -> tuple[str, ...]:
        return (self._units.note,)

    @cached_property
    def _units(self) -> HiddenUnits:
        return prepare_units(self.call.query, self.call.key, cast("Tensor", cast("Tanh", self.call.score.form).vector))


@dataclass(frozen=True, eq=False)
class HiddenUnits:
    """Hidden units of an additive score, grouped by the method that evaluates their tanh.

    The object is immutable and can be shared by threads.

    Attributes:
        terms: functions of a tile, each of which covers some of the units.
        constant: number whose sum with the terms is the logit of a pair.
        note: how many units are evaluated from exponentials, and how many by an elementwise tanh.
    """

    terms: tuple[_ExponentialTanh | _ElementwiseTanh, ...]
    constant: float
    note: str


def prepare_units(
    left: Float[Tensor, "q hidden"], right: Float[Tensor, "k hidden"], vector: Float[Tensor, " hidden"]
) -> HiddenUnits:
    """Return the hidden units of an additive score, each with the method that suits the range of its arguments.

    The range of each unit is determined in O((q + k) h).

    Args:
        left: projected queries W₁ q + b, float32 or float64.
        right: projected keys W₂ k.
        vector: vector v of the score.

    Example:
        >>> import torch
        >>> units = prepare_units(torch.tensor([[0.5], [9.0]]), torch.tensor([[-0.5], [0.5]]), torch.ones(1))
        >>> units.note
        '1 of 1 hidden units: one division for each pair'
    """
    left, right, vector = left.detach(), right.detach(), vector.detach()
    center, half_ranges = center_sides(left, right)
    # NaN in v would spread to all pairs. With a huge element, an error of the size of eps would show in the logits.
    moderate_vector = float(vector.abs().sum()) <= LARGEST_FACTOR
    near = (half_ranges <= EXPONENT_RANGES[left.element_size()].half_range) & moderate_vector
    count, total = int(near.sum()), len(near)
    terms: list[_ExponentialTanh | _ElementwiseTanh] = []
    notes = []
    if count:
        index = None if count == total else near.nonzero()[:, 0]
        terms.append(_ExponentialTanh.of_units(left, right, center, vector, index))
        notes.append(f"{count} of {total} hidden units: one division for each pair")
    if count < total or not total:
        index = (~near).nonzero()[:, 0] if count else None
        # With tanh s = 2 σ(2s) − 1, Σ v is subtracted from the sum, so it must be finite.
        sigmoid = moderate_vector and faster_ops(left).sigmoid_tanh
        terms.append(_ElementwiseTanh.of_units(left, right, vector, sigmoid, index))
        function = "sigmoid" if sigmoid else "tanh"
        notes.append(f"{total - count} of {total} hidden units: one {function} for each pair")
    return HiddenUnits(tuple(terms), sum(term.constant for term in terms), "; ".join(notes))


@dataclass(frozen=True, eq=False)
class _ExponentialTanh:
    """Hidden units of an additive score, with one division for each unit and each pair of query and key.

    Args:
        left: t = e^{−2a} of the queries, `(h, q)`.
        right: y = e^{2b} of the keys, `(h, k)`.
        vector: vector v of the score, `(h,)`.
        units: indices of these units among those of the score, `(h,)`; None for all units.
    """

    left: Tensor
    right: Tensor
    vector: Tensor
    units: Tensor | None

    @classmethod
    def of_units(
        cls,
        left: Float[Tensor, "q hidden"],
        right: Float[Tensor, "k hidden"],
        center: Float[Tensor, " hidden"],
        vector: Float[Tensor, " hidden"],
        units: Int[Tensor, " units"] | None,
    ) -> _ExponentialTanh:
        """Create the term of the hidden units at the indices `units`, or of all if `units` is None.

        The center of each unit is added to `left` and subtracted from `right`.
        """
        clip = EXPONENT_RANGES[left.element_size()].clip

        def exponentials(side: Float[Tensor, "n hidden"], sign: int) -> Float[Tensor, "units n"]:
            out = side.new_empty(len(vector) if units is None else len(units), len(side))
            torch.add(*(x if units is None else x[units] for x in (side.T, center[:, None])), alpha=sign, out=out)
            return out.mul_(-2 * sign).clamp_(-clip, clip).exp_()

        return cls(exponentials(left, 1), exponentials(right, -1), vector if units is None else vector[units], units)

    @cached_property
    def coefficients(self) -> list[float]:
        """−2 v, the coefficients of r."""
        return cast("list[float]", (self.vector * -2).tolist())

    @property
    def constant(self) -> float:
        """Σ v, to which −2 Σ v r is added."""
        return -sum(self.coefficients) / 2

    def add_logits(self, rows: Limits, cols: Limits, out: Float[Tensor, "q k"], workspace: Workspace) -> None:
        """Add the sum of −2 v_h r_ijh over the hidden units of this term to `out`."""
        left, right = self.left[:, slice(*rows), None], self.right[:, slice(*cols)]
        total = workspace.take("t + y", tuple(out.shape), out)
        for t, y, coefficient in zip(left, right, self.coefficients, strict=True):
            torch.add(t, y, out=total)
            out.addcdiv_(t, total, value=coefficient)

    def add_gradient(
        self,
        rows: Limits,
        cols: Limits,
        gradient: Float[Tensor, "rows cols"],
        d_left: Float[Tensor, "q hidden"],
        d_right: Float[Tensor, "k hidden"],
        d_vector: Float[Tensor, " hidden"],
        workspace: Workspace,
    ) -> None:
        """Add the gradients of a tile to `d_left`, `d_right` and `d_vector`, in place."""
        if not gradient.numel():  # without queries
            return
        left, right = self.left[:, slice(*rows)], self.right[:, slice(*cols)]
        largest = float(torch.linalg.vector_norm(gradient, math.inf))
        scale = EXPONENT_RANGES[gradient.element_size()].scale - math.frexp(largest)[1]
        factor = 2.0 ** min(scale, _MAX_SCALE)
        scaled = workspace.take("scaled gradient", tuple(gradient.shape), gradient)
        torch.mul(gradient, factor, out=scaled)
        quotient = workspace.take("t + y", tuple(gradient.shape), gradient)
        row_sums, d_rows = (workspace.take(name, tuple(left.shape), left) for name in ("row sums", "d_rows"))
        d_cols = workspace.take("d_cols", tuple(right.shape), right)
        for t, y, row_sum, d_row, d_col in zip(left, right, row_sums, d_rows, d_cols, strict=True):
            torch.add(t[:, None], y, out=quotient)
            torch.div(scaled, quotient.square_(), out=quotient)
            torch.sum(quotient, dim=1, out=row_sum)
            torch.mv(quotient, y, out=d_row)
            torch.mv(quotient.T, t, out=d_col)
        d_rows *= left
        d_cols *= right
        reciprocals = row_sums.mul_(left).mul_(left).add_(d_rows).sum(dim=1)
        weight = self.vector[:, None] * (4 / factor)
        _add_units(gradient.sum() - reciprocals * (2 / factor), self.units, d_vector)
        _add_units((d_rows * weight).T, self.units, d_left[slice(*rows)])
        _add_units((d_cols * weight).T, self.units, d_right[slice(*cols)])


@dataclass(frozen=True, eq=False)
class _ElementwiseTanh:
    """Hidden units of an additive score, with one tanh for each unit and each pair of query and key.

    Their arguments may have any range.

    Args:
        left: projected queries `(h, q)`, multiplied by 2 if `sigmoid`.
        right: projected keys `(h, k)`, multiplied by 2 if `sigmoid`.
        vector: vector v of the score, `(h,)`.
        sigmoid: whether tanh s is computed as 2 σ(2s) − 1.
        units: indices of these units among those of the score, `(h,)`; None for all units.
    """

    left: Tensor
    right: Tensor
    vector: Tensor
    sigmoid: bool
    units: Tensor | None

    @classmethod
    def of_units(
        cls,
        left: Float[Tensor, "q hidden"],
        right: Float[Tensor, "k hidden"],
        vector: Float[Tensor, " hidden"],
        sigmoid: bool,
        units: Int[Tensor, " units"] | None,
    ) -> _ElementwiseTanh:
        """Create the term of the hidden units at the indices `units`, or of all if `units` is None."""
        picked = [x if units is None else x[units] for x in (left.T, right.T, vector)]
        scale = 2 if sigmoid else 1
        return cls(picked[0].contiguous() * scale, picked[1].contiguous() * scale, picked[2], sigmoid, units)

    @property
    def constant(self) -> float:
        """−Σ v with the sigmoid, to which 2 Σ v σ is added, otherwise 0."""
        return -float(self.vector.sum()) if self.sigmoid else 0.0

    def add_logits(self, rows: Limits, cols: Limits, out: Float[Tensor, "q k"], workspace: Workspace) -> None:
        """Add the sum of v_h tanh(left_ih + right_jh) over the hidden units of this term to `out`, minus `constant`."""
        vector = self.vector * 2 if self.sigmoid else self.vector
        for start, stop, tanh in self._row_steps(rows, cols, ELEMENTWISE_BYTES, workspace):
            target = out[start:stop]
            target += (vector @ tanh.flatten(1)).view(target.shape)

    def add_gradient(
        self,
        rows: Limits,
        cols: Limits,
        gradient: Float[Tensor, "rows cols"],
        d_left: Float[Tensor, "q hidden"],
        d_right: Float[Tensor, "k hidden"],
        d_vector: Float[Tensor, " hidden"],
        workspace: Workspace,
    ) -> None:
        """Add the gradients of a tile to `d_left`, `d_right` and `d_vector`, in place."""
        ones = gradient.new_ones(max(gradient.shape))
        weight = self.vector * 4 if self.sigmoid else self.vector
        d_keys = self.right.new_zeros(len(self.right), cols[1] - cols[0])
        for start, stop, tanh in self._row_steps(rows, cols, ELEMENTWISE_BYTES // 2, workspace):
            part = gradient[start:stop]
            summed = tanh.flatten(1) @ part.flatten()
            _add_units(summed * 2 - part.sum() if self.sigmoid else summed, self.units, d_vector)
            # The derivative of tanh is 1 − tanh², and that of 2 σ(2s) − 1 is 4 (σ − σ²).
            square = workspace.take("square of tanh", tuple(tanh.shape), tanh)
            torch.mul(tanh, tanh, out=square)
            if self.sigmoid:
                torch.sub(tanh, square, out=tanh).mul_(part)
            else:
                torch.addcmul(part, square, part, value=-1, out=tanh)
            d_queries = (tanh @ ones[: tanh.shape[2]]) * weight[:, None]
            _add_units(d_queries.T, self.units, d_left[rows[0] + start : rows[0] + stop])
            d_keys += ones[: tanh.shape[1]] @ tanh
        _add_units((d_keys * weight[:, None]).T, self.units, d_right[slice(*cols)])

    def _row_steps(
        self, rows: Limits, cols: Limits, size: int, workspace: Workspace
    ) -> Iterator[tuple[int, int, Float[Tensor, "units rows k"]]]:
        """Yield the start and stop of each block of rows, and its tanh or sigmoid, `(h, rows, cols)`.

        A block has at most `size` bytes, or a single row.
        """
        right = self.right[:, None, slice(*cols)]
        step = max(1, size // max(1, right.numel() * right.element_size()))
        for start in range(0, rows[1] - rows[0], step):
            stop = min(start + step, rows[1] - rows[0])
            left = self.left[:, rows[0] + start : rows[0] + stop, None]
            tanh = workspace.take("tanh", (len(left), stop - start, right.shape[2]), left)
            torch.add(left, right, out=tanh)
            yield start, stop, tanh.sigmoid_() if self.sigmoid else tanh.tanh_()


def _add_units(
    gradient: Float[Tensor, "*rows units"], units: Int[Tensor, " units"] | None, target: Float[Tensor, "*rows hidden"]
) -> None:
    """Add gradients of the hidden units at the indices `units`, or of all if `units` is None, to `target`."""
    if units is None:
        target += gradient
    else:
        target.index_add_(-1, units, gradient)
