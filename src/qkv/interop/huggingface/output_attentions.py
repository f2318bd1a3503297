"""Computation of readouts from the weights that a model returns with `output_attentions=True`.

This is only used for models that bypass the attention interface, because the weights are arrays of q · k elements.
"""

from __future__ import annotations

import inspect
import weakref
from typing import TYPE_CHECKING

import torch
from torch.utils.hooks import RemovableHandle

from qkv.core.tile import Tile
from qkv.core.typing import Float, Tensor
from qkv.interop.huggingface.model_layers import pretrained_models
from qkv.normalizers import Softmax
from qkv.readouts import LogSumExp, Readout

if TYPE_CHECKING:
    from qkv.interop.huggingface.attention_record import ReadoutResult

__all__ = ["find_weights", "read_weights", "request_weights"]


def request_weights(model: torch.nn.Module) -> list[RemovableHandle]:
    """Add hooks that pass `output_attentions=True` to each submodel that accepts it, and return the hooks."""
    if not pretrained_models(model):
        return []  # without an import of transformers, which need not be installed
    from transformers import PreTrainedModel

    def request(
        module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        return args, {**kwargs, "output_attentions": True}

    hooks = []
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            parameters = inspect.signature(module.forward).parameters
            if "output_attentions" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                hooks.append(module.register_forward_pre_hook(request, with_kwargs=True))
    return hooks


def find_weights(output: object, found: list[weakref.ref[torch.Tensor]]) -> Float[Tensor, "batch heads q k"] | None:
    """Return the attention weights in the output of a layer, or None if the output contains no weights.

    Weights are recognized as a tensor of four axes that is non-negative and whose rows sum to at most 1.

    Args:
        output: the output of the layer.
        found: weights that inner layers returned, which are skipped; the returned weights are appended.
    """
    if not isinstance(output, (tuple, list)) or not isinstance(output[0], torch.Tensor):
        return None
    length = output[0].shape[1] if output[0].ndim > 2 else None
    for x in output[1:]:
        if not isinstance(x, torch.Tensor) or x.ndim != 4 or not x.is_floating_point():
            continue
        if x.shape[-2] != length or any(weights() is x for weights in found):
            continue
        total = x.detach().sum(-1)
        if bool((x >= 0).all()) and bool((total <= 1 + 1e-3).all()) and bool((total > 1e-3).any()):
            found.append(weakref.ref(x))
            return x
    return None


def read_weights(readout: Readout, weights: Float[Tensor, "batch heads q k"]) -> ReadoutResult:
    """Return the result of a readout computed from `weights`, or None for `LogSumExp`, which needs logits."""
    if isinstance(getattr(readout, "readout", readout), LogSumExp):
        return None
    batch, heads, q, k = weights.shape
    tile = Tile.whole(q, k, (batch, heads))
    readout.check(tile)
    result = readout.read(torch.log(weights), weights, Softmax(), tile)
    return readout.finalize(result, tile)
