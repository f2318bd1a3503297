"""Names under which transformers finds the engine: an attention function and its mask function together.

One without the other would be wrong in silence: without a mask function transformers hands over no mask, and
padding and causality are gone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from qkv.engine import attend, observe
from qkv.errors import OptionError
from qkv.interop.huggingface.attention_call import AttentionCall, Registration
from qkv.interop.huggingface.mask_interface import build_mask
from qkv.normalizers import Normalizer
from qkv.readouts import Dense
from qkv.scores import Score

__all__ = ["LISTENERS", "REGISTERED", "Listener", "register"]

REGISTERED: dict[str, Registration] = {}
"""What was registered under each name."""

Listener = Callable[[Any, AttentionCall, float], torch.Tensor | None]
"""Called with the layer, its call and the dropout; gives the output if it made it."""

LISTENERS: WeakKeyDictionary[Any, list[Listener]] = WeakKeyDictionary()
"""Who is told of the calls of which layer."""

_RESERVED = ("eager", "sdpa", "flex_attention")


def register(
    name: str = "qkv",
    *,
    score: Score | Callable[[Any], Score] | None = None,
    normalizer: Normalizer | Callable[[Any], Normalizer] | None = None,
    kernel: str | None = None,
    memory: int | str | None = None,
) -> str:
    """Put the engine under a name that `attn_implementation=` and `set_attn_implementation` take.

    The model's scaling, soft cap, sinks, position bias, masks and dropout are honoured. A score of your own
    stands in for the scaled dot product, a normalizer for the softmax; all else stays.

    Args:
        name: must not contain "flash", by which transformers knows kernels of its own.
        score: a score, or a function that gives the score of a layer: `lambda layer: Additive(layer.w, …)`.
        normalizer: likewise.
        kernel: name of the kernel that must run it; None: the planner chooses.
        memory: of a call, as in `qkv.attend`; None: 256 MiB and sixteen times its inputs, which no array of
            all pairs fits into where it would matter.

    Returns:
        The name.

    Raises:
        OptionError: a name that transformers understands otherwise.

    Example:
        >>> from qkv.interop import huggingface
        >>> huggingface.register()
        'qkv'
        >>> import qkv
        >>> huggingface.register("qkv-sparsemax", normalizer=qkv.normalizers.Sparsemax())
        'qkv-sparsemax'
    """
    if not name or "flash" in name or "|" in name or name in _RESERVED:
        raise OptionError(
            f'{name!r} cannot be the name: transformers reads "flash", "|" and the names '
            f'{", ".join(_RESERVED)} in its own way. Choose another, such as "qkv".'
        )
    from transformers import AttentionInterface, AttentionMaskInterface

    asked = Registration(score, normalizer, kernel, memory)
    AttentionInterface.register(name, functools.partial(_attention, asked))
    AttentionMaskInterface.register(name, build_mask)
    REGISTERED[name] = asked
    return name


def _attention(
    asked: Registration,
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: Any = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    block_indices: torch.Tensor | None = None,
    output_attentions: bool | None = False,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention interface of transformers: output `(batch, q, heads, width)`, and weights if wanted.

    What else models give (sliding windows, lengths of packed texts) is in the mask already.
    """
    call = AttentionCall.of(
        asked, module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal,
        softcap=softcap, position_bias=position_bias, sink=s_aux if s_aux is not None else sinks,
        indices=indices, block_indices=block_indices,
    )  # fmt: skip
    output, weights = None, None
    for listener in LISTENERS.get(module, ()):
        made = listener(module, call, dropout)
        output = made if made is not None else output
    if output_attentions:
        seen = observe(call.query, call.key, call.value, readouts=[Dense()], dropout=dropout, **call.options)
        output, weights = seen.output, call.per_head(seen.readouts[0])
    elif output is None:
        output = attend(call.query, call.key, call.value, dropout=dropout, **call.options)
    return call.per_head(output).transpose(1, 2).contiguous(), weights
