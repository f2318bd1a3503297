"""Readouts of attention calls of Hugging Face models, and records of these calls.

The readouts and the output of a call are computed in the same pass if possible. Weights are recomputed tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from qkv.core.equation import BoundCall, bind_call
from qkv.core.parts import Part
from qkv.core.typing import Array, Bool, Float, ReadoutResult, Tensor
from qkv.engine import observe
from qkv.errors import OptionError
from qkv.interop.huggingface.attention_call import AttentionCall
from qkv.interop.huggingface.model_layers import AttentionKind
from qkv.normalizers import Softmax
from qkv.readouts import Heads, LogSumExp, Readout
from qkv.readouts.base import flatten, unflatten

if TYPE_CHECKING:
    from qkv.plan.plan import Plan


@dataclass(frozen=True)
class SavedCall:
    """Inputs of an attention call and the log-sum-exp of its logits, from which its weights are recomputed.

    Attributes:
        call: the call; its value is a placeholder.
        log_sum_exp: `(batch, heads, q)`; None if the normalizer is not softmax.
        value_norms: `(batch, heads, k)`, the Euclidean norms of the values.
    """

    call: AttentionCall
    log_sum_exp: Float[Tensor, "*batch q"] | None
    value_norms: Float[Tensor, "*batch k"] | None = None

    @classmethod
    def of(cls, call: AttentionCall, log_sum_exp: Float[Tensor, "*batch q"] | None = None) -> SavedCall:
        """Return the saved inputs of a call; without a given log-sum-exp, it is computed if the normalizer has one."""
        call = call.detached()
        if log_sum_exp is None and isinstance(call.options["normalizer"] or Softmax(), Softmax):
            log_sum_exp = observe_call(call, [LogSumExp()], None, 0.0).readouts[0]
        norms = call.value.float().norm(dim=-1)
        norms = call.merge_heads(norms.expand(*call.query.shape[:-2], norms.shape[-1]))
        # The key is copied, because caches write the keys of later steps into the same tensor.
        key = call.key.clone()
        return cls(AttentionCall(call.query, key, key[..., :1], call.options, call.heads), log_sum_exp, norms)

    def bind(self, element: int, head: int) -> BoundCall:
        """Return the call of one head for one batch element."""
        call = self.call.select_head(head)
        options = call.options
        return bind_call(
            call.query,
            call.key,
            call.value,
            score=options["score"],
            normalizer=options["normalizer"] or Softmax(),
            mask=options["mask"],
            positions=options["positions"],
        ).select_batch((element,))

    def tile(
        self, element: int, head: int, rows: tuple[int, int], cols: tuple[int, int]
    ) -> Float[Tensor, "tile_q tile_k"]:
        """Return the weights e^(logit − log-sum-exp) of a range of queries and keys of one head.

        Raises:
            OptionError: the normalizer is not softmax.
        """
        bound = self.bind(element, head)
        if self.log_sum_exp is None:
            raise OptionError(
                f"the normalizer of the call must be softmax to recompute weights with tile, got {bound.normalizer}. "
                "Record weights with the readouts Rows or Dense."
            )
        logits = bound.logits(rows, cols)
        if logits is None:
            return self.log_sum_exp.new_zeros((rows[1] - rows[0], cols[1] - cols[0]))
        log_sum_exp = self.log_sum_exp[element, head, rows[0] : rows[1], None]
        # A fully masked row has log-sum-exp −inf; −inf − (−inf) would be NaN.
        shift = torch.where(log_sum_exp == -torch.inf, 0.0, log_sum_exp)
        prepared = cast(torch.Tensor, bound.normalizer.prepare(logits))
        return torch.exp(prepared - shift).to(log_sum_exp.dtype)


@dataclass(frozen=True)
class AttentionRecord:
    """Readouts, shapes and plan of one attention call of one layer.

    Attributes:
        step: index of the forward pass of the model, which in `generate` is the index of the generation step.
        kind: "self", or "cross" if the keys come from another sequence.
        causal: whether the mask excludes keys after each query; False for a call with a single query.
        output_shape: shape of the layer's output, (batch, queries, heads, width).
        readouts: one result for each readout, in the order given, with axes (batch, heads, …).
        heads: indices of the recorded heads.
        queries: number of queries.
        keys: number of keys.
        query_start: position of the first query among the keys.
        key_mask: `(batch, keys)`, True for keys that are not padding; None if all keys are real.
        plan: the plan of the call; None if the model computed the weights itself.
        saved: the saved inputs, if `record` was called with `save_inputs=True`; None for layers whose weights the model
            computed itself, and for calls of modules of `qkv.nn` with two or more batch axes.
        unsaved: what the call is of which `save_inputs=True` could save no inputs; empty for other calls.

    Example:
        >>> import torch, transformers
        >>> from qkv import readouts
        >>> from qkv.interop import huggingface
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
        >>> model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=1, **sizes)).eval()
        >>> with huggingface.record(model, [readouts.Entropy()]) as recorder:
        ...     _ = model(torch.tensor([[1, 2, 3]]))
        >>> (call,) = recorder.layers["encoder.layer.0.attention.self"]
        >>> call.kind, call.causal, call.keys, call.readouts[0].shape
        ('self', False, 3, torch.Size([1, 2, 3]))
    """

    step: int
    kind: AttentionKind
    causal: bool
    output_shape: tuple[int, ...]
    readouts: tuple[ReadoutResult, ...]
    heads: tuple[int, ...]
    queries: int
    keys: int
    query_start: int = 0
    key_mask: Bool[Tensor, "batch k"] | None = None
    plan: Plan | None = field(default=None, repr=False)
    saved: SavedCall | None = field(default=None, repr=False)
    unsaved: str = field(default="", repr=False)

    @property
    def exact(self) -> bool:
        """Whether qkv computed the readouts. If False, they were computed from weights that the model returned."""
        return self.plan is not None

    def tile(
        self, rows: tuple[int, int], cols: tuple[int, int], *, element: int = 0, head: int = 0
    ) -> Float[Tensor, "tile_q tile_k"]:
        """Return the exact weights of a range of queries and keys of one head, recomputed from saved inputs.

        Args:
            rows: range of queries, (start, stop).
            cols: range of keys, (start, stop).
            element: index of the batch element.
            head: index of the head in the layer.

        Returns:
            Weights of shape `(rows[1] - rows[0], cols[1] - cols[0])`.

        Raises:
            OptionError: `record` was called without `save_inputs=True`, or could not save the inputs of this call.
        """
        if self.saved is None and self.unsaved:
            raise OptionError(
                f"tile must be called on a record with saved inputs, got one of {self.unsaved}, which has none. "
                "Record weights with the readouts Rows or Dense."
            )
        if self.saved is None:
            raise OptionError(
                "save_inputs must be True to recompute weights with tile, got False. Call record(…, save_inputs=True), "
                "or record weights with the readouts Rows or Dense."
            )
        return self.saved.tile(element, head, rows, cols)


class ObservedCall(NamedTuple):
    """Plan, readouts and output of an attention call, as returned by `observe_call`.

    Attributes:
        plan: the plan of the call; None if no head was observed.
        readouts: one result for each readout, with axes (batch, heads, …).
        output: `(*batch, q, value_width)` with the batch axes of the call; None if it was not computed.
    """

    plan: Plan | None
    readouts: tuple[ReadoutResult, ...]
    output: Float[Tensor, "*batch q value_width"] | None


def requires_gradient(call: AttentionCall) -> bool:
    """Return whether the output of a recorded call requires a gradient."""
    arrays = [x for part in call.options.values() if isinstance(part, Part) for x in part.arrays()]
    tensors = (call.query, call.key, call.value, *arrays)
    return torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)


def observe_call(
    call: AttentionCall, readouts: Sequence[Readout], heads: Sequence[int] | None, dropout: float
) -> ObservedCall:
    """Return the plan and the readouts of a call, and its output if the same pass can compute it.

    Returns:
        The plan, the readouts and the output. The output is None if it requires a gradient, or if only
        some heads were observed.

    Raises:
        OptionError: a head index is out of range.
    """
    gradient = requires_gradient(call)
    detached = call.detached()
    with torch.no_grad():
        if heads is not None:
            return _observe_heads(detached, readouts, heads)
        # `Heads` selects along the last batch axis, which must then hold all heads.
        if detached.grouped and any(isinstance(x, Heads) for x in readouts):
            detached = detached.ungrouped()
        observation = observe(
            detached.query,
            detached.key,
            detached.value,
            readouts=readouts,
            dropout=0.0 if gradient else dropout,
            **detached.options,
        )
    merge = cast("Callable[[Array], Array]", detached.merge_heads)
    results = tuple(unflatten(tuple(map(merge, flatten(x))), x) for x in observation.readouts)
    output = None if gradient else cast(torch.Tensor, observation.output).reshape(*call.query.shape[:-1], -1)
    return ObservedCall(observation.plan, results, output)


def check_heads(heads: Sequence[int], count: int) -> None:
    """Raise an `OptionError` if an index is that of none of `count` heads."""
    for head in heads:
        if not -count <= head < count:
            raise OptionError(
                f"each index in heads must be between {-count} and {count - 1}, got {head}. The layer has "
                f"{count} heads."
            )


def _observe_heads(call: AttentionCall, readouts: Sequence[Readout], heads: Sequence[int]) -> ObservedCall:
    plan, per_head = None, []
    check_heads(heads, call.heads)
    for head in heads:
        head_call = call.select_head(head % call.heads)
        observation = observe(head_call.query, head_call.key, head_call.value, readouts=readouts, **head_call.options)
        plan = observation.plan
        per_head.append(observation.readouts)
    results = tuple(
        unflatten(tuple(torch.stack(arrays, 1) for arrays in zip(*map(flatten, pieces), strict=True)), pieces[0])
        for pieces in zip(*per_head, strict=True)
    )
    return ObservedCall(plan, results, None)
