"""A kernel that writes a call into an ONNX graph as one `Attention` node, where that operator can say it.

    softmax(softcap(scale · Q Kᵀ) + bias) V

Q and K are what the score lifts query and key to; what a score adds to logits is the bias; every mask becomes
booleans, which the graph computes from lengths and positions, so lengths may be dynamic. The rest is left to
the dense kernel and becomes plain operators.

The operator multiplies what is masked by 0, and 0 · NaN is NaN. So keys and values that are not finite are
set to 0 before the node, and a query that reads one is set to NaN after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from qkv.core.arrays import Array, is_array
from qkv.core.equation import BoundCall
from qkv.core.parts import expand_to_pairs
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem

__all__ = ["AttentionNode"]


class _OperatorScore(NamedTuple):
    """A score as the operator says it: a product, a soft cap of it, and what is added."""

    product: Any
    cap: float | None
    added: tuple[Any, ...]


@dataclass(frozen=True)
class AttentionNode(Kernel):
    """One node of the operator `Attention`.

    Attributes:
        version: of the operator.
        finite: keys and values are said to be finite, so nothing guards against those that are not.
    """

    version: int = 23
    finite: bool = False

    name: ClassVar[str] = "onnx"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    traceable: ClassVar[bool] = True

    def refuse(self, problem: Problem) -> str | None:
        """By facts of score and normalizer."""
        normalizer = problem.normalizer
        if sentence := self.refuse_library(problem):
            return sentence
        if not (normalizer.log_sum_exp and normalizer.online and normalizer.shift_invariant):
            return f"the operator knows softmax without a sink, not {normalizer}"
        said = _operator_score(problem.score)
        if said is None:
            return f"{problem.score} is no inner product with a soft cap and a bias"
        if said.cap is not None and is_array(getattr(normalizer, "temperature", 1.0)):
            return "the operator has one soft cap, not one for each batch element"
        if problem.readouts:
            return "the operator keeps nothing but the output"
        if problem.spec.dropout:
            return "the operator has no dropout"
        return None

    def cost(self, problem: Problem) -> Cost:
        """Nothing is run."""
        return Cost(0.0, 0.0, 0.0)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Lift, guard, put into four axes, write the node."""
        import torch

        said = _operator_score(call.score)
        assert said is not None
        tile, temperature = call.tile, getattr(call.normalizer, "temperature", 1.0)
        centre = said.product.centre(call.key)
        lifted = tile if centre is None else replace(tile, centre=centre)
        left, right, scale = said.product.scaled_lift(call.query, call.key, lifted)
        if is_array(temperature):
            temperature = expand_to_pairs(temperature)
            left = left / temperature
        else:
            scale = scale / temperature
        value = call.value
        causal = call.mask is not None and call.mask.causal_offset(tile) == 0
        allowed = None if call.mask is None or causal else call.mask.allowed(tile, value)
        bias = None
        for score in said.added:
            offset = score.offset(tile, value) / temperature
            bias = offset if bias is None else bias + offset
        poison = None
        if not self.finite and (causal or allowed is not None or bias is not None):
            readable = _readable(allowed, bias)
            bad = _not_finite(right) | _not_finite(value)
            right, value = (torch.where(x.isfinite(), x, 0.0) for x in (right, value))
            poison = _poisoned(bad, readable, causal, tile.q_total)
        mask = _one_mask(allowed, bias)

        attributes: dict[str, Any] = {"scale": float(scale)}
        if said.cap is not None:
            attributes["softcap"] = float(said.cap / temperature)
        if causal:
            attributes["is_causal"] = 1
        sides = _four(call.batch, left, right, value)
        inputs = [*sides, *(() if mask is None else (_four_mask(call, sides[0].shape[1], mask),))]
        output = torch.onnx.ops.symbolic(
            "Attention",
            inputs,
            attributes,
            dtype=value.dtype,
            shape=(*sides[0].shape[:3], value.shape[-1]),
            version=self.version,
        )
        output = output.reshape((*call.batch, tile.q_total, value.shape[-1]))
        if poison is not None:
            output = torch.where(poison, math.nan, output)
        return Result(output.to(call.out_dtype))


def _operator_score(score: Any) -> _OperatorScore | None:
    """The score in the operator's words; None where it has none."""
    added = []
    while score.lift_kind is None and score.adds_offset:
        added.append(score)
        score = score.score
    cap = None
    if score.lift_kind is None and score.tanh_cap is not None:
        cap, score = score.cap, score.score
    # A term of the query alone cancels in softmax, but not through a soft cap.
    if score.lift_kind is None or is_array(cap) or (cap is not None and score.lift_kind != "exact"):
        return None
    return _OperatorScore(score, cap, tuple(added))


def _readable(allowed: Array | None, bias: Array | None) -> Array | None:
    """Which pairs are read; None: all, but for causality."""
    if bias is None:
        return allowed
    finite = bias != -math.inf
    return finite if allowed is None else finite & allowed


def _not_finite(x: Array) -> Array:
    """Rows in which something is not finite, `(*batch, k)`."""
    return ~x.isfinite().all(-1)


def _poisoned(bad: Array, readable: Array | None, causal: bool, q: int) -> Array:
    """Which queries read a key or value that is not finite: `(*batch, q, 1)`."""
    import torch

    rows = torch.arange(q, device=bad.device)
    if readable is not None:
        if causal:
            readable = readable & (torch.arange(bad.shape[-1], device=bad.device) <= rows[:, None])
        if readable.shape[-1] == 1:
            readable = readable.expand((*readable.shape[:-1], bad.shape[-1]))
        return (readable.float() @ bad.float()[..., None]) > 0
    # Causal and nothing else: a query reads the bad keys up to its own position.
    seen = bad.float().cumsum(-1)
    return seen.index_select(-1, rows.clamp(max=bad.shape[-1] - 1))[..., None] > 0


def _one_mask(allowed: Array | None, bias: Array | None) -> Array | None:
    """Booleans, or a bias of −inf where they are False."""
    import torch

    if allowed is None or bias is None:
        return allowed if bias is None else bias
    return torch.where(allowed, bias, -math.inf)


def _four(batch: tuple[int, ...], query: Array, key: Array, value: Array) -> list[Array]:
    """Query, key and value as (batch, heads, length, width); heads of the query may share one of the key."""
    sides = [x.reshape((*(1,) * (len(batch) - x.ndim + 2), *x.shape)) for x in (query, key, value)]
    if len(batch) > 2 and sides[1].shape[-3] == 1 and sides[2].shape[-3] == 1:
        sides[0] = sides[0].expand((*batch, *query.shape[-2:])).flatten(-4, -3)
        sides[1:] = [x.squeeze(-3) for x in sides[1:]]
        sides[1:] = [x.expand((*batch[:-1], *x.shape[-2:])) for x in sides[1:]]
    else:
        shared = len(batch) == 2 and sides[1].shape[1] == 1 and sides[2].shape[1] == 1
        sides[0] = sides[0].expand((*batch, *query.shape[-2:]))
        own = (batch[0], 1) if shared else batch
        sides[1:] = [x.expand((*own, *x.shape[-2:])) for x in sides[1:]]
    if len(batch) > 2:
        return [x.flatten(0, -4) if x.ndim > 4 else x for x in sides]
    return [x.reshape((*(1,) * (4 - x.ndim), *x.shape)) for x in sides]


def _four_mask(call: BoundCall, heads: int, mask: Array) -> Array:
    """The mask as (batch, heads, q, k), with every row and column: runtimes do not broadcast those."""
    batch, tile = call.batch, call.tile
    mask = mask.reshape((*(1,) * (len(batch) - mask.ndim + 2), *mask.shape))
    mask = mask.expand((*mask.shape[:-2], tile.q_total, tile.k_total))
    if len(batch) > 2:
        if all(n == 1 for n in mask.shape[:-2]):
            return mask.reshape((1, 1, *mask.shape[-2:]))
        mask = mask.expand((*batch, *mask.shape[-2:]))
        return mask.reshape((-1, heads, *mask.shape[-2:]))
    return mask.reshape((*(1,) * (4 - mask.ndim), *mask.shape))
