"""Records of the calls of the attention modules of `qkv.nn` inside a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch

from qkv.cache.kernel import concat_chunks
from qkv.core.map_batch import align_batch
from qkv.core.typing import ReadoutResult, Shaped, Tensor
from qkv.interop.huggingface.attention_call import AttentionCall, is_causal, key_padding
from qkv.interop.huggingface.attention_record import AttentionRecord, SavedCall, check_heads
from qkv.nn.attention import Attention
from qkv.nn.cache import StateCache
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.observe_model import ModuleCall, readout_hooks
from qkv.nn.protocols import COLLECT, CallInputs
from qkv.normalizers import NORMALIZERS
from qkv.readouts import ColumnSum, Readout
from qkv.readouts.base import flatten, unflatten
from qkv.scores import ScaledDot


def is_module(module: torch.nn.Module) -> bool:
    """Return whether a module is an attention module of `qkv.nn` that accepts readouts."""
    return isinstance(module, (Attention, MultiHeadAttention))


def hook_module(
    module: torch.nn.Module,
    readouts: Sequence[Readout],
    collect: Callable[[ModuleCall, CallInputs | None], None],
    save_inputs: bool,
) -> list[torch.utils.hooks.RemovableHandle]:
    """Make an attention module compute readouts in each call, and call `collect` after it, until the hooks are removed.

    Calls with a `StateCache`, which has no weights, are left alone.
    """
    inputs: list[CallInputs] = []

    def finish(call: ModuleCall) -> None:
        if save_inputs:
            COLLECT.set(None)
        collect(call, inputs.pop() if inputs else None)

    # A readout makes the module return its plan, from which the shapes of the call are known.
    before, after = readout_hooks(tuple(readouts) or (ColumnSum(),), finish)

    def without_state(
        module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        if isinstance(kwargs.get("cache"), StateCache):
            return args, kwargs
        if save_inputs:
            inputs.clear()
            COLLECT.set(inputs.append)
        return before(module, args, kwargs)

    def result(module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> object:
        if isinstance(kwargs.get("cache"), StateCache):
            return output
        return after(module, args, kwargs, output)  # type: ignore[arg-type]

    return [
        module.register_forward_pre_hook(without_state, with_kwargs=True),
        module.register_forward_hook(result, with_kwargs=True),
    ]


def record_module(
    call: ModuleCall, inputs: CallInputs | None, count: int, heads: Sequence[int] | None, step: int
) -> AttentionRecord:
    """Return the record of a call of a module, whose readouts get the axes (batch, heads)."""
    plan = call.output.plan
    problem = plan.requested
    several = isinstance(call.module, MultiHeadAttention)
    query = call.args[0] if call.args else call.kwargs["query"]
    key = call.args[1] if len(call.args) > 1 else call.kwargs.get("key")
    assert isinstance(query, torch.Tensor)
    # The batch axes of the readouts: those of the query, and the heads.
    lead = query.ndim - 2 + several
    total = call.module.heads if several else query.shape[-3] if lead > 1 else 1
    assert isinstance(total, int)
    check_heads(heads or (), total)

    def reshape(x: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "batch heads *rest"]:
        x = x.detach()
        if lead < 2:
            x = x[None] if several or lead == 0 else x[:, None]
            x = x[None] if lead == 0 else x
        elif lead > 2:
            x = x.flatten(0, lead - 2)
        return x if heads is None else x[:, list(heads)]

    def convert(result: ReadoutResult) -> ReadoutResult:
        return unflatten(tuple(reshape(cast(Tensor, x)) for x in flatten(result)), result)

    # Extra keys come after the others, and all queries attend to them.
    mask = problem.spec.mask
    causal = is_causal(mask)
    start = mask.causal_offset(problem.tile) if mask is not None and causal else None
    saved = None if inputs is None else _save_inputs(inputs, lead - several, total, several)
    return AttentionRecord(
        step=step,
        kind="self" if key is None or key is query else "cross",
        causal=causal,
        output_shape=tuple(call.output.output.shape),
        readouts=tuple(map(convert, call.output.readouts[:count])),
        heads=tuple(range(total)) if heads is None else tuple(heads),
        queries=problem.axes.q,
        keys=problem.axes.k,
        query_start=start or 0,
        key_mask=None if saved is None else key_padding(saved.call.options["mask"]),
        plan=plan,
        saved=saved,
        unsaved="" if inputs is None or saved is not None else "a call of a module of qkv.nn with other batch axes",
    )


def _save_inputs(inputs: CallInputs, axes: int, total: int, several: bool) -> SavedCall | None:
    """Return the saved call of a module whose inputs have at most one batch axis besides the heads, otherwise None."""
    arrays = [inputs.query, *(concat_chunks(x) for x in (inputs.key, inputs.value))]
    options = inputs.options
    score = options["score"] or ScaledDot()
    normalizer = options["normalizer"] or NORMALIZERS[score.default_normalizer]()
    mask, positions = options["mask"], options["positions"]
    if not several:
        # The last batch axis of a module without heads takes the place of heads, if there are two.
        if axes not in (1, 2):
            return None
        if axes == 1:
            score, normalizer = align_batch(score, 1, None, False), align_batch(normalizer, 1, None, False)
            mask, positions = align_batch(mask, 1, None, False), align_batch(positions, 1, None, False)
            arrays = [x.unsqueeze(-3) for x in arrays]
    elif axes > 1:
        return None
    ndim = max(x.ndim for x in arrays) if several else 4
    if several and axes == 0:
        ndim += 1
    arrays = [x[(None,) * (ndim - x.ndim)] for x in arrays]
    batch = max(x.shape[0] for x in arrays)
    query, key, value = (x.expand(batch, *x.shape[1:]) for x in arrays)
    parts = score, normalizer, mask, positions
    return SavedCall.of(AttentionCall.of(query, key, value, total, *parts))
