"""A call of the fused kernel: lifted, padded, looked at and run; `flash.py` is what runs.

The operator multiplies what is masked by 0, and 0 · NaN is NaN; of a query that is NaN it makes 0. So its
answer is believed after a look: with a gradient at one sum of each input, without at what it says of rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from qkv.core.arrays import cast, is_array
from qkv.core.equation import BoundCall
from qkv.core.tile import Tile
from qkv.core.typing import Tensor
from qkv.kernels.fused.layout import Layout, layout_of, split
from qkv.kernels.fused.sdpa import Flash, attend, operators, public, told_finite
from qkv.kernels.row_blocks.autograd import RowBlocks, double_backward
from qkv.kernels.runtime.tile_sizes import ROW_BLOCK_BUDGET, row_block_arrays, row_block_size
from qkv.masks.base import Mask
from qkv.normalizers import Softmax
from qkv.plan.kernel_protocol import Result
from qkv.plan.problem import Problem
from qkv.scores import Dot

__all__ = ["run", "shortcut"]


def shortcut(problem: Problem) -> Callable[[Tensor, Tensor, Tensor], Result | None] | None:
    """For a plain dot product without or with a causal mask: a call that only looks and runs."""
    axes, score, mask = problem.axes, problem.score, problem.spec.mask
    keys, offset, known = split(mask, problem.tile)
    equal = axes.query_width == axes.key_width == axes.value_width
    temperature = getattr(problem.normalizer, "temperature", 1.0)
    if problem.traced or not (score.is_scaled_dot and equal and known) or keys is not None or offset:
        return None
    layout = layout_of(axes.batch, axes.query[:-2], axes.key[:-2], axes.value[:-2])
    if layout is None or is_array(temperature) or operators("cpu") is None:
        return None
    import torch

    one = torch.ones((1, axes.query_width))
    scale = score.scaled_lift(one, one, problem.tile)[2] / temperature
    flash = Flash(layout, scale, offset, None, _Again(problem, problem.tile, mask, scale))
    return partial(_short, flash, problem.gradient)


def _short(flash: Flash, gradient: bool, query: Tensor, key: Tensor, value: Tensor) -> Result | None:
    """What `run` would give; None where it is to be had the long way."""
    if not value.is_cpu:
        return None
    if gradient:
        if not math.isfinite(sum(x.detach().sum() for x in (query, key, value))):
            return None
        output = attend(flash, query, key, value, True)
    else:
        if not flash.tells(value):
            return None
        output, total = attend(flash, query, key, value, False)
        if not told_finite(output, total):
            return None
    return Result(flash.layout.output(output, value.shape[-1]), (), _FINITE)


_FINITE = ("all finite: fused",)


def run(call: BoundCall, problem: Problem) -> Result | None:
    """Lift, pad, look, call; None where the data is not finite."""
    fused = _Call.of(call, problem)
    if problem.traced:
        return Result(cast(fused.traced(), call.out_dtype), (), ("traced: not looked at",))
    output = fused.believed()
    if output is not None:
        return Result(cast(output, call.out_dtype), (), _FINITE)
    keys = split(call.mask, call.tile)[0] if call.mask is not None else None
    if keys is not None and (cleaned := _without_masked(call, keys)) is not None:
        fused = _Call.of(cleaned, problem)
        if fused.finite():
            return Result(cast(fused.output(), call.out_dtype), (), ("finite but for masked keys: fused",))
    return None


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call with its sides lifted and of one width."""

    call: BoundCall
    problem: Problem
    layout: Layout
    left: Tensor
    right: Tensor
    value: Tensor
    scale: float

    @classmethod
    def of(cls, call: BoundCall, problem: Problem) -> _Call:
        """Lift and pad."""
        if _autocast(call.value):
            import torch

            with torch.autocast(call.value.device.type, enabled=False):
                return cls._of(call, problem)
        return cls._of(call, problem)

    @classmethod
    def _of(cls, call: BoundCall, problem: Problem) -> _Call:
        left, right, scale = _lifted(call)
        sides = [left, right, call.value]
        width = max(left.shape[-1], sides[2].shape[-1])
        for n, x in enumerate(sides):
            if x.shape[-1] != width:
                import torch

                sides[n] = torch.nn.functional.pad(x, (0, width - x.shape[-1]))
        batch = call.tile.batch
        layout = layout_of(batch, *(x.shape[:-2] for x in sides))
        if layout is None:
            # Arrays of the score brought batch axes along which the inputs are shared.
            sides = [x.expand((*batch, *x.shape[-2:])) for x in sides]
            layout = layout_of(batch, batch, batch, batch)
            assert layout is not None
        return cls(call, problem, layout, sides[0], sides[1], sides[2], scale)

    def finite(self) -> bool:
        """Whether all that would be multiplied is finite."""
        sides = [x.detach() if x.requires_grad else x for x in (self.left, self.right, self.value)]
        # A finite sum has finite terms; it may overflow, though.
        if math.isfinite(sum(x.sum() for x in sides)):
            return True
        return all(bool(x.isfinite().all()) for x in sides)

    def believed(self) -> Any:
        """The output; None where it might be wrong since something is not finite."""
        import torch

        value, sides = self.value, (self.left, self.right, self.value)
        gradient = torch.is_grad_enabled() and any(x.requires_grad for x in sides)
        flash = self._flash()
        if gradient or not flash.tells(value):
            return self.output() if self.finite() else None
        # Without a gradient what the operator gives tells enough, and is less to read than what it was given.
        out, total = attend(flash, *sides, False)
        if not told_finite(out, total) and not self.finite():
            return None
        return self.layout.output(out, self.call.value.shape[-1])

    def output(self) -> Any:
        """Run."""
        flash, value = self._flash(), self.value
        sides = (self.left, self.right, value)
        if operators(value.device.type) is None:
            out = public(flash, *sides, traced=False)
        else:
            import torch

            gradient = torch.is_grad_enabled() and any(x.requires_grad for x in sides)
            out = attend(flash, *sides, gradient)
            out = out if gradient else out[0]
        return self.layout.output(out, self.call.value.shape[-1])

    def traced(self) -> Any:
        """Run where the data cannot be looked at: what is masked is taken out, not looked for."""
        keys, offset, _ = split(self.call.mask, self.call.tile)
        fused, poison = self, None
        if keys is not None:
            cleaned = _without_masked(self.call, keys)
            fused = _Call.of(cleaned, self.problem) if cleaned is not None else self
        if offset is not None:
            fused, poison = fused._causal()
        out = public(fused._flash(), fused.left, fused.right, fused.value, traced=True)
        out = fused.layout.output(out, self.call.value.shape[-1])
        return out if poison is None else out + poison

    def _causal(self) -> tuple[_Call, Any]:
        """The call of finite keys and values, and NaN for each query at or after one that is not finite."""
        import torch

        right, value = (torch.where(x.isfinite(), x, 0.0) for x in (self.right, self.value))
        wrong = (self.right.detach() * 0).sum(-1) + (self.value.detach() * 0).sum(-1)
        seen, q = torch.cumsum(wrong, dim=-1), self.left.shape[-2]
        if seen.shape[-1] < q:
            seen = torch.cat([seen, seen[..., -1:].expand((*seen.shape[:-1], q - seen.shape[-1]))], dim=-1)
        return dataclasses.replace(self, right=right, value=value), seen[..., :q, None]

    def _flash(self) -> Flash:
        mask = self.call.mask
        again = _Again(self.problem, self.call.tile, mask, self.scale)
        if mask is None:
            return Flash(self.layout, self.scale, None, None, again)
        keys, offset, _ = split(mask, self.call.tile)
        bias = None
        if keys is not None:
            import torch

            allowed = self.layout.mask(keys.allowed(self.call.tile, self.value))
            bias = torch.zeros(allowed.shape, dtype=self.value.dtype, device=self.value.device)
            bias = bias.masked_fill_(~allowed, -math.inf)
        return Flash(self.layout, self.scale, offset, bias, again)


@dataclasses.dataclass(frozen=True)
class _Again:
    """Gradients that can be differentiated: the lifted call in strips."""

    problem: Problem
    tile: Tile
    mask: Mask | None
    scale: float

    def __call__(self, left: Tensor, right: Tensor, value: Tensor, gradient: Tensor) -> list[Tensor | None]:
        """Of left, right and value."""
        softmax = Softmax(1.0 / self.scale)
        call = BoundCall(left, right, value, Dot(), softmax, self.mask, self.tile, 0.0, value.dtype)
        rows = row_block_size(self.problem, ROW_BLOCK_BUDGET, row_block_arrays(self.problem))
        strips = RowBlocks(call, (), rows, with_output=True)
        gradient = gradient.reshape((*self.tile.batch, *gradient.shape[-2:]))
        return double_backward(strips, (left, right, value), [gradient])


def _autocast(x: Tensor) -> bool:
    import torch

    return torch.is_autocast_enabled(x.device.type)


def _lifted(call: BoundCall) -> tuple[Tensor, Tensor, float]:
    """Both sides, and what their product is multiplied by."""
    score, tile, temperature = call.score, call.tile, call.normalizer.temperature
    centre = score.centre(call.key)
    if centre is not None:  # one for all: two lifts of one key must agree
        tile = dataclasses.replace(tile, centre=centre)
    left, right, scale = score.scaled_lift(call.query, call.key, tile)
    if is_array(temperature):
        return left / (temperature[..., None, None] if temperature.ndim else temperature), right, scale
    return left, right, scale / temperature


def _without_masked(call: BoundCall, keys: Mask) -> BoundCall | None:
    """The same call with masked keys and values 0; None where a shared key would be needed in two forms."""
    import torch

    allowed = keys.allowed(call.tile, call.value).mT
    own = allowed.shape[:-2]
    for x in (call.key, call.value):
        shape = (1,) * (len(own) - x.ndim + 2) + tuple(x.shape[:-2])
        if any(n not in (1, m) for n, m in zip(own, shape[len(shape) - len(own) :], strict=True)):
            return None
    key, value = (torch.where(allowed, x, 0.0) for x in (call.key, call.value))
    return dataclasses.replace(call, key=key.reshape(call.key.shape), value=value.reshape(call.value.shape))
