"""Kernel that writes a call into an ONNX graph as one `Attention` node, if the operator supports the call.

    softmax(softcap(scale · Q Kᵀ) + bias) V

Q and K are the lifted query and key, and pointwise additions to the logits are the bias. Every mask becomes a
boolean array, which the graph computes from lengths and positions, so lengths may be dynamic. The dense kernel
exports all other calls as elementary operators.

The operator multiplies masked values by 0, and 0 · NaN is NaN. Therefore keys and values that are not finite are set
to 0 before the node, and the output of each query that may attend to such a key or value is set to NaN after the node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, ClassVar, NamedTuple, cast

from qkv.core.arrays import is_array
from qkv.core.equation import BoundCall
from qkv.core.parts import expand_to_pairs
from qkv.core.typing import Array, Bool, Float, Shaped
from qkv.kernels.fused.call import lift_sides
from qkv.plan.cost import Cost
from qkv.plan.kernel_protocol import Kernel, Result
from qkv.plan.problem import Problem
from qkv.scores.base import Score
from qkv.scores.wrapper import PointwiseScore

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AttentionNode"]


class _OperatorScore(NamedTuple):
    """Score in the form of ONNX's operator: an inner product, an optional soft cap, and biases added to it."""

    product: Score
    cap: float | None
    offsets: tuple[PointwiseScore, ...]


@dataclass(frozen=True)
class AttentionNode(Kernel):
    """Kernel that exports a call as one node of ONNX's operator `Attention`.

    Attributes:
        version: version of the operator.
        finite: whether the caller promises finite keys and values, so that the graph needs no guard against NaN and
            infinity.
    """

    version: int = 23
    finite: bool = False

    name: ClassVar[str] = "onnx"
    libraries: ClassVar[tuple[str, ...]] = ("torch",)
    traceable: ClassVar[bool] = True

    def limits(self, problem: Problem) -> Iterator[str]:
        """Yield the reasons why ONNX's operator `Attention` does not support a call."""
        normalizer, score = problem.normalizer, _convert_score(problem.score)
        if not (normalizer.log_sum_exp and normalizer.online and normalizer.shift_invariant):
            yield f"the operator supports softmax without a sink, not {normalizer}"
        if score is None:
            yield f"{problem.score} is not an inner product with a soft cap and a bias"
        elif score.cap is not None and is_array(getattr(normalizer, "temperature", 1.0)):
            yield "the operator has one soft cap, not one for each batch element"
        if problem.readouts:
            yield "the operator returns the output alone, without readouts"
        if problem.spec.dropout:
            yield "the operator has no dropout"

    def cost(self, problem: Problem) -> Cost:
        """Return a cost of zero, because the node is written into a graph and not run."""
        return Cost(0.0, 0.0, 0.0)

    def run(self, call: BoundCall, problem: Problem) -> Result:
        """Write a call as one `Attention` node into the graph that PyTorch's exporter is tracing."""
        import torch

        score = _convert_score(call.score)
        assert score is not None
        tile, mask, value = call.tile, call.mask, cast("Tensor", call.value)
        query, key, scale = lift_sides(call, score.product)
        temperature = expand_to_pairs(getattr(call.normalizer, "temperature", 1.0))
        causal = mask is not None and mask.causal_offset(tile) == 0
        allowed = None if mask is None or causal else cast("Tensor", mask.allowed(tile, value))
        offsets = [cast("Tensor", part.offset(tile, value) / temperature) for part in score.offsets]
        bias = reduce(torch.add, offsets) if offsets else None
        merged = allowed if bias is None else bias  # the boolean mask, or the bias with −inf at masked pairs
        if allowed is not None and bias is not None:
            merged = torch.where(allowed, bias, -math.inf)
        reads_nonfinite = None
        if not self.finite and (causal or merged is not None):
            nonfinite = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
            key, value = (torch.where(x.isfinite(), x, 0.0) for x in (key, value))
            readable = merged if merged is None or bias is None else merged != -math.inf
            reads_nonfinite = _reads_nonfinite(nonfinite, readable, causal, tile.q_total)

        attributes: dict[str, int | float] = {"scale": float(scale)}
        if score.cap is not None:
            attributes["softcap"] = float(score.cap / temperature)
        if causal:
            attributes["is_causal"] = 1
        inputs = _with_four_axes(call.batch, query, key, value)
        batch_heads_q = inputs[0].shape[:3]
        if merged is not None:
            inputs.append(_mask_with_four_axes(call, inputs[0].shape[1], merged))
        output = torch.onnx.ops.symbolic(
            "Attention",
            inputs,
            attributes,  # type: ignore[arg-type]
            dtype=value.dtype,
            shape=(*batch_heads_q, value.shape[-1]),
            version=self.version,
        )
        output = output.reshape((*call.batch, tile.q_total, value.shape[-1]))
        if reads_nonfinite is not None:
            output = torch.where(reads_nonfinite, math.nan, output)
        return Result(cast(Array, output.to(call.out_dtype)))


def _convert_score(score: Score) -> _OperatorScore | None:
    """Return a score in the form of ONNX's operator `Attention`, or None if it has no such form."""
    offsets = []
    while score.lift_kind is None and score.adds_offset:
        assert isinstance(score, PointwiseScore)
        offsets.append(score)
        score = score.score
    cap = None
    if score.lift_kind is None and score.tanh_cap is not None and score.inner is not None:
        cap, score = score.tanh_cap, score.inner
    # A term of the query alone cancels in softmax, but not inside a soft cap.
    if score.lift_kind is None or is_array(cap) or (cap is not None and score.lift_kind != "exact"):
        return None
    return _OperatorScore(score, cap, tuple(offsets))


def _reads_nonfinite(
    nonfinite: Bool[Tensor, "*#batch k"], readable: Bool[Tensor, "*#batch #q #k"] | None, causal: bool, q: int
) -> Bool[Tensor, "*batch #q 1"]:
    """Return a boolean array that is True for queries that may attend to a non-finite key or value.

    Its shape is `(*batch, q, 1)`.
    """
    import torch

    rows = torch.arange(q, device=nonfinite.device)
    if readable is not None:
        if causal:
            readable = readable & (torch.arange(nonfinite.shape[-1], device=nonfinite.device) <= rows[:, None])
        if readable.shape[-1] == 1:
            readable = readable.expand((*readable.shape[:-1], nonfinite.shape[-1]))
        return (readable.float() @ nonfinite.float()[..., None]) > 0
    # With causality alone, a query reads all keys up to its own position.
    count = nonfinite.float().cumsum(-1)
    return count.index_select(-1, rows.clamp(max=nonfinite.shape[-1] - 1))[..., None] > 0


def _with_four_axes(
    batch: tuple[int, ...],
    query: Float[Tensor, "*#batch q width"],
    key: Float[Tensor, "*#batch k width"],
    value: Float[Tensor, "*#batch k value_width"],
) -> list[Float[Tensor, "_ _ _ _"]]:
    """Return query, key and value reshaped to (batch, heads, length, width), without repeating shared key heads."""
    query, key, value = (x.reshape((*(1,) * (len(batch) - x.ndim + 2), *x.shape)) for x in (query, key, value))
    shared = len(batch) > 1 and key.shape[-3] == 1 and value.shape[-3] == 1
    key_batch = (*batch[:-1], 1) if shared else batch
    query = query.expand((*batch, *query.shape[-2:]))
    key, value = (x.expand((*key_batch, *x.shape[-2:])) for x in (key, value))
    if len(batch) <= 2:
        return [x.reshape((*(1,) * (4 - x.ndim), *x.shape)) for x in (query, key, value)]
    if shared:
        query, key, value = query.flatten(-4, -3), key.squeeze(-3), value.squeeze(-3)
    return [x.flatten(0, -4) if x.ndim > 4 else x for x in (query, key, value)]


def _mask_with_four_axes(
    call: BoundCall, heads: int, mask: Shaped[Tensor, "*#batch #q #k"]
) -> Shaped[Tensor, "#n #heads q k"]:
    """Return the mask reshaped to (batch, heads, q, k), with q and k expanded to their lengths in the call.

    Runtimes do not broadcast these axes.
    """
    batch, tile = call.batch, call.tile
    mask = mask.reshape((*(1,) * (len(batch) - mask.ndim + 2), *mask.shape))
    mask = mask.expand((*mask.shape[:-2], tile.q_total, tile.k_total))
    if len(batch) > 2:
        if all(n == 1 for n in mask.shape[:-2]):
            return mask.reshape((1, 1, *mask.shape[-2:]))
        mask = mask.expand((*batch, *mask.shape[-2:]))
        return mask.reshape((-1, heads, *mask.shape[-2:]))
    return mask.reshape((*(1,) * (4 - mask.ndim), *mask.shape))
