"""Weights that a model computes itself: found in what its layers give, and read like any others.

Models that bypass the attention interface give their weights where `output_attentions=True` is asked. They
are arrays of all pairs, which is why this is the last resort.
"""

from __future__ import annotations

import inspect
import weakref
from typing import Any

import torch

from qkv.core.tile import Tile
from qkv.normalizers import Softmax
from qkv.readouts import LogSumExp, Readout

__all__ = ["request_weights", "read_weights", "find_weights"]


def request_weights(model: Any) -> list[Any]:
    """Let every part of the model that can be called by itself be asked for its weights; gives the hooks."""
    from transformers import PreTrainedModel

    def ask(module: Any, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, {**options, "output_attentions": True}

    hooks = []
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            names = inspect.signature(module.forward).parameters
            if "output_attentions" in names or any(p.kind is p.VAR_KEYWORD for p in names.values()):
                hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
    return hooks


def find_weights(output: Any, taken: list[weakref.ref[Any]]) -> torch.Tensor | None:
    """The weights `(batch, heads, q, k)` among what a layer gave: not negative, and no row above one."""
    if not isinstance(output, (tuple, list)) or not isinstance(output[0], torch.Tensor):
        return None
    length = output[0].shape[1] if output[0].ndim > 2 else None
    for x in output[1:]:
        if not isinstance(x, torch.Tensor) or x.ndim != 4 or not x.is_floating_point():
            continue
        if x.shape[-2] != length or any(known() is x for known in taken):
            continue
        total = x.detach().sum(-1)
        if bool((x >= 0).all()) and bool((total <= 1 + 1e-3).all()) and bool((total > 1e-3).any()):
            taken.append(weakref.ref(x))
            return x
    return None


def read_weights(readout: Readout, weights: torch.Tensor) -> Any:
    """What a readout shows of weights that are there; None of a total, which they no longer tell."""
    if isinstance(getattr(readout, "readout", readout), LogSumExp):
        return None
    batch, heads, q, k = weights.shape
    tile = Tile.whole(q, k, (batch, heads))
    readout.check(tile)
    found = readout.read(torch.log(weights), weights, Softmax(), tile)
    return readout.finalize(found, tile)
