"""The border to PyTorch's own attention: parameters are copied, masks translated, and differences stated.

polarity    a boolean True in PyTorch's modules means "may not attend", in `qkv.masks` "may attend"
layout      ours is (batch, length, width), theirs (length, batch, width) unless batch_first
empty row   no key is left: ours has weights 0, so that the output map gives its bias, theirs is NaN
weights     readouts are of the weights before dropout, theirs come after
"""

from __future__ import annotations

from typing import Any, TypedDict, TypeVar

import torch

from qkv.errors import KindError, OptionError, ShapeError
from qkv.masks import Keys, Mask, Pairs
from qkv.nn.attention import both
from qkv.nn.multihead import MultiHeadAttention
from qkv.normalizers import Softmax
from qkv.scores import ScaledDot

__all__ = ["TorchMasks", "copy_from", "from_torch", "to_torch", "torch_masks"]

Tensor = torch.Tensor
M = TypeVar("M", bound=MultiHeadAttention)


class TorchMasks(TypedDict):
    """Arguments of a call: `module(query, **torch_masks(…))`."""

    mask: Mask | None
    bias: Tensor | None


def torch_masks(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int = 1
) -> TorchMasks:
    """The masks of `torch.nn.MultiheadAttention` as the mask and bias of a call of ours.

    Args:
        attn_mask: `(q, k)`, or `(batch · heads, q, k)`: booleans, True means may not attend; or numbers that
            are added to the logits.
        key_padding_mask: `(batch, k)`, or `(k,)`, likewise.
        heads: of the module, by which the first axis of three is divided.

    Raises:
        KindError: a mask of integers.
        ShapeError: other axes.

    Example:
        >>> torch_masks(torch.tensor([[False, True]]))["mask"].array
        tensor([[ True, False]])
    """
    mask: Mask | None = None
    bias: Tensor | None = None
    if attn_mask is not None:
        if attn_mask.ndim not in (2, 3) or (attn_mask.ndim == 3 and attn_mask.shape[0] % heads):
            raise ShapeError(
                f"attn_mask has shape {tuple(attn_mask.shape)}; it must be (q, k) or (batch · heads, q, k), "
                f"for {heads} heads."
            )
        if attn_mask.ndim == 3 and attn_mask.shape[0] != heads:
            attn_mask = attn_mask.unflatten(0, (-1, heads))  # type: ignore[no-untyped-call]
        if _excludes("attn_mask", attn_mask):
            mask = Pairs(~attn_mask)
        else:
            bias = attn_mask
    if key_padding_mask is not None:
        if key_padding_mask.ndim not in (1, 2):
            raise ShapeError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; it must be (batch, k) or (k,)."
            )
        if _excludes("key_padding_mask", key_padding_mask):
            mask = both(mask, Keys(~key_padding_mask))
        else:
            rows = key_padding_mask[..., None, None, :] if key_padding_mask.ndim == 2 else key_padding_mask
            bias = rows if bias is None else bias + rows
    return {"mask": mask, "bias": bias if bias is None or bias.ndim > 1 else bias[None]}


def _excludes(name: str, mask: Tensor) -> bool:
    if mask.dtype == torch.bool:
        return True
    if not mask.is_floating_point():
        raise KindError(
            f"{name} has {str(mask.dtype).removeprefix('torch.')} elements. Give booleans, True means may "
            "not attend, or numbers to add to the logits."
        )
    return False


def from_torch(module: torch.nn.MultiheadAttention, cls: type[M]) -> M:
    """Our module with the numbers of PyTorch's."""
    if not isinstance(module, torch.nn.MultiheadAttention):
        raise KindError(f"from_torch was given a {type(module).__name__}. Give a torch.nn.MultiheadAttention.")
    weight = module.out_proj.weight
    make: Any = cls
    ours: M = make(
        width=module.embed_dim,
        heads=module.num_heads,
        key_width=module.kdim,
        value_width=module.vdim,
        bias=module.in_proj_bias is not None,
        output_bias=module.out_proj.bias is not None,
        dropout=module.dropout,
        learned_key=module.bias_k is not None,
        zero_key=module.add_zero_attn,
        device=weight.device,
        dtype=weight.dtype,
    )
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    maps = (ours.query_map, ours.key_map, ours.value_map)
    for linear, its_weight, its_bias in zip(maps, weights, biases, strict=True):
        copy_from(linear, its_weight, its_bias)
    copy_from(ours.output_map, weight, module.out_proj.bias)
    with torch.no_grad():
        for ours_extra, theirs in ((ours.extra_key, module.bias_k), (ours.extra_value, module.bias_v)):
            if ours_extra is not None and theirs is not None:
                ours_extra.copy_(theirs.reshape(ours_extra.shape))
    return ours.train(module.training)


def to_torch(ours: MultiHeadAttention) -> torch.nn.MultiheadAttention:
    """PyTorch's module with our numbers."""
    lacks = {
        "a learned score": any(True for _ in ours.score.parameters()),
        str(ours.score): ours.score().signature() != ScaledDot().signature(),
        str(ours.normalizer()): not (ours.normalizer() is None or _plain(ours.normalizer())),
        "a mask of the module": ours.mask() is not None,
        f"{ours.key_heads} key heads": ours.key_heads != ours.heads,
        f"maps={ours.maps!r}": ours.maps != "both",
        "no value map": ours.value_map is None,
        "no output map": ours.output_map is None,
        f"head widths {ours.head_width} and {ours.head_value_width}": (
            not ours.head_width * ours.heads == ours.head_value_width * ours.heads == ours.width
        ),
        "positions": ours.positions is not None,
        "a norm of query and key": ours.query_norm is not None,
        "an output gate": ours.gate_map is not None,
        "temperatures": ours.log_temperature is not None,
        "sinks": ours.sink is not None,
        "talking heads": ours.logit_mix is not None,
    }
    found = [name for name, has in lacks.items() if has]
    if found:
        raise OptionError(f"torch.nn.MultiheadAttention cannot have {', '.join(found)}. Keep the module as it is.")
    assert ours.query_map is not None
    assert ours.key_map is not None
    assert ours.value_map is not None
    assert ours.output_map is not None
    linears = (ours.query_map, ours.key_map, ours.value_map)
    weight = ours.output_map.weight
    bias = ours.query_map.bias is not None
    if bias != (ours.output_map.bias is not None):
        raise OptionError("torch.nn.MultiheadAttention has a bias on all maps or on none.")
    theirs = torch.nn.MultiheadAttention(
        ours.width,
        ours.heads,
        ours.dropout,
        bias,
        add_bias_kv=ours.extra_key is not None,
        add_zero_attn=ours.zero_key,
        kdim=ours.key_width,
        vdim=ours.value_width,
        batch_first=True,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat([linear.weight for linear in linears]))
        else:
            places = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
            for tile, linear in zip(places, linears, strict=True):
                tile.copy_(linear.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))
        copy_from(theirs.out_proj, weight, ours.output_map.bias)
        for place_of, extra in ((theirs.bias_k, ours.extra_key), (theirs.bias_v, ours.extra_value)):
            if place_of is not None and extra is not None:
                place_of.copy_(extra.reshape(place_of.shape))
    return theirs.train(ours.training)


def copy_from(linear: torch.nn.Module | None, weight: Tensor, bias: Tensor | None) -> None:
    """Copy these numbers into a linear map."""
    assert isinstance(linear, torch.nn.Linear)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)


def _plain(normalizer: Any) -> bool:
    if type(normalizer) is not Softmax or normalizer.arrays():
        return False
    return bool(normalizer.temperature == 1 and normalizer.sink is None)
