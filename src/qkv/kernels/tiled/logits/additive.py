"""Logits of a tile for additive scores, Σ_h v_h tanh(left_ih + right_jh), mostly by matrix products.

The projections are prepared once, in O((q + k) h). Hidden units with arguments of moderate range are expanded into
products of exponentials, with one division for several units (`tanh_expansion.py`). The other units are evaluated by
one tanh per pair and unit, which is accurate at every range. The range of the units is a guard on the data, whose
outcome is reported in `HiddenUnits.note`.

    dL/da_ih = v_h Σ_j dL/dS_ij (1 − tanh²)    dL/db_jh likewise over i    dL/dv_h = Σ_ij dL/dS_ij tanh

Source: Bahdanau, Cho, Bengio (2015), Neural machine translation by jointly learning to align and translate,
appendix A.1.2, https://arxiv.org/abs/1409.0473, for the score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import cast

from qkv.core.typing import Float, Int, Tensor
from qkv.kernels.runtime.microbenchmarks import LARGEST_FACTOR, faster_ops
from qkv.kernels.runtime.workspace import Workspace
from qkv.kernels.tiled.logits.base import Backward, Gradients, Limits, TileLogits, scale_and_shift_
from qkv.kernels.tiled.logits.centering import center_sides
from qkv.kernels.tiled.logits.tanh_expansion import TanhExpansion, expand_tanh, expansion_limit
from qkv.scores.forms import Tanh

__all__ = ["AdditiveLogits", "HiddenUnits", "prepare_units"]

ELEMENTWISE_BYTES = 1 << 20
"""Largest size in bytes of the array of elementwise tanh that is computed at once: 1 MiB stays in the second-level
cache."""


class AdditiveLogits(TileLogits):
    """Logits and gradients of tiles of one batch element, for a score of the form `Tanh`."""

    def logits(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> Float[Tensor, "*#batch q k"]:
        out = workspace.take("logits", (rows[1] - rows[0], cols[1] - cols[0]), self.call.value).zero_()
        for units in self._units.forward:
            units.add_logits(rows, cols, out, workspace)
        return scale_and_shift_(out, self.factor, shift)

    def trace(
        self, rows: Limits, cols: Limits, workspace: Workspace, shift: Float[Tensor, "*#batch q 1"] | None = None
    ) -> tuple[Float[Tensor, "*#batch q k"], Backward]:

        def backward(gradient: Float[Tensor, "q k"], gradients: Gradients) -> None:
            vector = cast("Tensor", cast("Tanh", gradients.score.form).vector)
            for units in self._units.backward:
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
        forward: terms whose sum is the logits, each of which covers some of the units.
        expand: function that returns the expansion of the units of moderate range for 1 or 2 sign variables per unit
            (see `tanh_expansion.py`). Its expansion for 1 is the first term of `forward`. None if no unit is expanded.
        note: how many units are expanded, and how many are evaluated by an elementwise tanh.
    """

    forward: tuple[TanhExpansion | _ElementwiseTanh, ...]
    expand: Callable[[int], TanhExpansion] | None
    note: str

    @cached_property
    def backward(self) -> tuple[TanhExpansion | _ElementwiseTanh, ...]:
        """Terms for the backward pass, each of which adds the gradients of some of the hidden units."""
        return self.forward if self.expand is None else (self.expand(2), *self.forward[1:])


def prepare_units(
    left: Float[Tensor, "q hidden"],
    right: Float[Tensor, "k hidden"],
    vector: Float[Tensor, " hidden"],
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
        '1 of 1 hidden units: products of exponentials, 4 at a time'
    """
    import torch

    left, right, vector = left.detach(), right.detach(), vector.detach()
    center, measured = center_sides(left, right)
    half_ranges: list[float] = measured.tolist()
    most = expansion_limit(left.element_size())
    # NaN in v would spread to the other units of its group, and a huge element would overflow the numerator.
    moderate_vector = float(vector.abs().sum()) <= LARGEST_FACTOR
    near = [h for h, half_range in enumerate(half_ranges) if moderate_vector and half_range <= most]
    far = [h for h, half_range in enumerate(half_ranges) if not (moderate_vector and half_range <= most)]
    forward: list[TanhExpansion | _ElementwiseTanh] = []
    expand, notes = None, []
    if near:
        expand = partial(expand_tanh, left, right, center, vector, near, [half_ranges[h] for h in near])
        expansion = expand(1)
        forward.append(expansion)
        notes.append(
            f"{len(near)} of {len(half_ranges)} hidden units: products of exponentials, "
            f"{expansion.group_size} at a time"
        )
    if far or not near:
        index = torch.tensor(far, device=left.device) if near else None
        # With tanh s = 2 σ(2s) − 1, Σ v is subtracted from the sum, so it must be finite.
        sigmoid = moderate_vector and faster_ops(left).sigmoid_tanh
        forward.append(_ElementwiseTanh.of_units(left, right, vector, sigmoid, index))
        function = "sigmoid" if sigmoid else "tanh"
        notes.append(f"{len(far)} of {len(half_ranges)} hidden units: one {function} for each pair")
    return HiddenUnits(tuple(forward), expand, "; ".join(notes))


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

    def add_logits(self, rows: Limits, cols: Limits, out: Float[Tensor, "q k"], workspace: Workspace) -> None:
        """Add the sum of v_h tanh(left_ih + right_jh) over the hidden units of this term to `out`."""
        vector = self.vector * 2 if self.sigmoid else self.vector
        for start, stop, tanh in self._row_steps(rows, cols, ELEMENTWISE_BYTES, workspace):
            target = out[start:stop]
            target += (vector @ tanh.flatten(1)).view(target.shape)
        if self.sigmoid:
            out -= self.vector.sum()

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
        import torch

        ones = gradient.new_ones(max(gradient.shape))
        weight = self.vector * 4 if self.sigmoid else self.vector
        d_keys = self.right.new_zeros(len(self.right), cols[1] - cols[0])
        for start, stop, tanh in self._row_steps(rows, cols, ELEMENTWISE_BYTES // 2, workspace):
            part = gradient[start:stop]
            summed = tanh.flatten(1) @ part.flatten()
            self._add(summed * 2 - part.sum() if self.sigmoid else summed, d_vector)
            # The derivative of tanh is 1 − tanh², and that of 2 σ(2s) − 1 is 4 (σ − σ²).
            square = workspace.take("square of tanh", tuple(tanh.shape), tanh)
            torch.mul(tanh, tanh, out=square)
            if self.sigmoid:
                torch.sub(tanh, square, out=tanh).mul_(part)
            else:
                torch.addcmul(part, square, part, value=-1, out=tanh)
            d_queries = (tanh @ ones[: tanh.shape[2]]) * weight[:, None]
            self._add(d_queries.T, d_left[rows[0] + start : rows[0] + stop])
            d_keys += ones[: tanh.shape[1]] @ tanh
        self._add((d_keys * weight[:, None]).T, d_right[slice(*cols)])

    def _add(self, gradient: Float[Tensor, "*rows units"], target: Float[Tensor, "*rows hidden"]) -> None:
        if self.units is None:
            target += gradient
        else:
            target.index_add_(-1, self.units, gradient)

    def _row_steps(
        self, rows: Limits, cols: Limits, size: int, workspace: Workspace
    ) -> Iterator[tuple[int, int, Float[Tensor, "units rows k"]]]:
        """Yield the start and stop of each block of rows, and its tanh or sigmoid, `(h, rows, cols)`.

        A block has at most `size` bytes, or a single row.
        """
        import torch

        right = self.right[:, None, slice(*cols)]
        step = max(1, size // max(1, right.numel() * right.element_size()))
        for start in range(0, rows[1] - rows[0], step):
            stop = min(start + step, rows[1] - rows[0])
            left = self.left[:, rows[0] + start : rows[0] + stop, None]
            tanh = workspace.take("tanh", (len(left), stop - start, right.shape[2]), left)
            torch.add(left, right, out=tanh)
            yield start, stop, tanh.sigmoid_() if self.sigmoid else tanh.tanh_()
