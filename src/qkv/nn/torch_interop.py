"""Functions that convert modules and masks of `torch.nn` to those of this library, and modules back.

The two libraries differ in four ways:

polarity    True in a boolean mask means "may not attend" in PyTorch's modules, "may attend" in `qkv.masks`
layout      this library uses (batch, length, width); PyTorch (length, batch, width) unless `batch_first`
empty row   a query without any allowed key has weights 0 here (the output is the output bias), NaN in PyTorch
weights     readouts see the weights before dropout, PyTorch returns them after dropout
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import torch
from torch import Tensor, nn

from qkv.core.torch_names import explain_torch_names
from qkv.core.typing import Bool, Float, Shaped
from qkv.errors import KindError, OptionError, ShapeError
from qkv.masks import AllowedKeys, AllowedPairs, Mask
from qkv.masks.base import and_masks
from qkv.normalizers import Softmax
from qkv.scores import ScaledDot

if TYPE_CHECKING:
    from qkv.nn.multihead import MultiHeadAttention
    from qkv.nn.multihead_options import Bias, Extension
    from qkv.nn.transformer import Decoder, DecoderLayer, Encoder, EncoderLayer


M = TypeVar("M", bound=type[torch.nn.Module])

_OPTIONS = {
    "embed_dim": "width",
    "d_model": "width",
    "num_heads": "heads",
    "nhead": "heads",
    "kdim": "key_width",
    "vdim": "value_width",
    "add_bias_kv": 'extensions=["learned_key"]',
    "add_zero_attn": 'extensions=["zero_key"]',
    "dim_feedforward": "hidden",
    "layer_norm_eps": "epsilon",
    "norm_first": 'norm="pre" or norm="post"',
    "num_layers": "layers",
    "num_encoder_layers": "layers",
    "num_decoder_layers": "layers",
}
"""Argument of this library by the name of PyTorch's argument."""

_CONSTRUCTOR = {
    name: f"Pass {mine} instead, or convert a module of PyTorch with from_torch." for name, mine in _OPTIONS.items()
} | {
    "batch_first": "Leave it out: the layout is always (batch, length, width), also of modules from from_torch.",
    "encoder_layer": "Pass the options of the layers instead, or convert a module of PyTorch with from_torch.",
    "decoder_layer": "Pass the options of the layers instead, or convert a module of PyTorch with from_torch.",
}

_MASKS = (
    "attn_mask", "key_padding_mask", "src_mask", "tgt_mask", "memory_mask", "src_key_padding_mask",
    "tgt_key_padding_mask", "memory_key_padding_mask",
)  # fmt: skip
_CAUSAL = ("is_causal", "src_is_causal", "tgt_is_causal", "memory_is_causal")
_FORWARD = (
    dict.fromkeys(
        _MASKS, "Pass a mask of qkv.masks: nn.torch_masks translates PyTorch's masks, in which True excludes a pair."
    )
    | dict.fromkeys(_CAUSAL, "Pass mask=masks.Causal() instead.")
    | {
        "need_weights": "Pass readouts=[readouts.Dense()] to read the weights.",
        "average_attn_weights": "Pass readouts=[readouts.Dense()] to read the weights of each head.",
    }
)


def explain_torch_arguments(module: M) -> M:
    """Class decorator of modules whose constructor and call refuse PyTorch's argument names, with what to pass instead.

    Only methods that the class itself defines are changed.
    """
    for name, remedies in (("__init__", _CONSTRUCTOR), ("forward", _FORWARD)):
        if name in vars(module):
            setattr(module, name, explain_torch_names(remedies)(vars(module)[name]))
    return module


A = TypeVar("A", bound="MultiHeadAttention")
L = TypeVar("L", "EncoderLayer", "DecoderLayer")
S = TypeVar("S", "Encoder", "Decoder")


class TorchMasks(TypedDict):
    """Mask and bias that `torch_masks` returns, keyword arguments of a call: `module(query, **torch_masks(…))`."""

    mask: Mask | None
    bias: Float[Tensor, "*batch_heads q k"] | None


def torch_masks(
    attn_mask: Bool[Tensor, "*batch_heads q k"] | Float[Tensor, "*batch_heads q k"] | None = None,
    key_padding_mask: Bool[Tensor, "*batch k"] | Float[Tensor, "*batch k"] | None = None,
    *,
    heads: int = 1,
) -> TorchMasks:
    """Translate the masks of `torch.nn.MultiheadAttention` into a mask and a bias for `MultiHeadAttention`.

    Args:
        attn_mask: `(q, k)` or `(batch · heads, q, k)`. True means that the query may not attend to the key;
            floating-point elements are added to the logits.
        key_padding_mask: `(batch, k)` or `(k,)`, with the same meaning.
        heads: number of heads, by which the first axis of a three-dimensional `attn_mask` is divided.

    Raises:
        KindError: if a mask holds integers.
        ShapeError: if a mask has another shape.

    Example:
        >>> torch_masks(torch.tensor([[False, True]]))["mask"].array
        tensor([[ True, False]])
    """
    mask: Mask | None = None
    bias: Float[Tensor, "*_"] | None = None
    if attn_mask is not None:
        if attn_mask.ndim not in (2, 3) or (attn_mask.ndim == 3 and attn_mask.shape[0] % heads):
            raise ShapeError(
                f"attn_mask must have shape (q, k) or (batch · heads, q, k) with {heads} heads, got "
                f"{tuple(attn_mask.shape)}. "
                "Leave out axes of other lengths, or repeat the mask for each head."
            )
        if attn_mask.ndim == 3:
            attn_mask = attn_mask.unflatten(0, (-1, heads))  # type: ignore[no-untyped-call]
        if _is_boolean("attn_mask", attn_mask):
            mask = AllowedPairs(~attn_mask)
        else:
            bias = attn_mask
    if key_padding_mask is not None:
        if key_padding_mask.ndim not in (1, 2):
            raise ShapeError(
                f"key_padding_mask must have shape (batch, k) or (k,), got {tuple(key_padding_mask.shape)}. "
                "Transpose it if the keys come first."
            )
        if _is_boolean("key_padding_mask", key_padding_mask):
            mask = and_masks(mask, AllowedKeys(~key_padding_mask))
        else:
            rows = key_padding_mask[..., None, None, :] if key_padding_mask.ndim == 2 else key_padding_mask
            bias = rows if bias is None else bias + rows
    return {"mask": mask, "bias": bias if bias is None or bias.ndim > 1 else bias[None]}


def _is_boolean(name: str, mask: Shaped[Tensor, "*_"]) -> bool:
    if mask.dtype == torch.bool:
        return True
    if not mask.is_floating_point():
        raise KindError(
            f"{name} must hold booleans, where True excludes a pair, or floating-point numbers that are added "
            f"to the logits, got {str(mask.dtype).removeprefix('torch.')}. Convert it, for example with {name}.bool()."
        )
    return False


def from_torch(module: nn.MultiheadAttention, cls: type[A]) -> A:
    """Return a new module of class `cls` with copies of the parameters of a `torch.nn.MultiheadAttention`."""
    require_module(module, nn.MultiheadAttention)
    weight = module.out_proj.weight
    bias: Bias = module.in_proj_bias is not None
    if bias != (module.out_proj.bias is not None):
        bias = "inputs" if bias else "output"
    extensions: dict[Extension, bool] = {"learned_key": module.bias_k is not None, "zero_key": module.add_zero_attn}
    ours = cls(
        module.embed_dim,
        heads=module.num_heads,
        key_width=module.kdim,
        value_width=module.vdim,
        bias=bias,
        dropout=module.dropout,
        extensions=[name for name, present in extensions.items() if present],
        device=weight.device,
        dtype=weight.dtype,
    )
    if module.in_proj_weight is not None:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    maps = (ours.query_map, ours.key_map, ours.value_map)
    for linear, torch_weight, torch_bias in zip(maps, weights, biases, strict=True):
        _copy_linear(linear, torch_weight, torch_bias)
    _copy_linear(ours.output_map, weight, module.out_proj.bias)
    with torch.no_grad():
        for extra, torch_extra in ((ours.extra_key, module.bias_k), (ours.extra_value, module.bias_v)):
            if extra is not None and torch_extra is not None:
                extra.copy_(torch_extra.reshape(extra.shape))
    return ours.train(module.training)


def to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """Return a new `torch.nn.MultiheadAttention` with copies of the parameters of a `MultiHeadAttention`.

    Raises:
        OptionError: if PyTorch's module does not support an option of this library's module.
    """
    normalizer = ours.normalizer()
    unsupported = {
        "a learned score": any(True for _ in ours.score.parameters()),
        str(ours.score): ours.score().signature() != ScaledDot().signature(),
        str(normalizer): (normalizer or Softmax()).signature() != Softmax().signature(),
        "a mask of the module": ours.mask() is not None,
        f"{ours.key_heads} key heads": ours.key_heads != ours.heads,
        "no projection of its own of query or key": ours.query_map is None or ours.key_map is None,
        "no value projection": ours.value_map is None,
        "no output projection": ours.output_map is None,
        f"head widths {ours.head_width} and {ours.head_value_width}": (
            not ours.head_width * ours.heads == ours.head_value_width * ours.heads == ours.width
        ),
        "positions": ours.positions is not None,
        "a norm of query and key": ours.query_norm is not None,
        "an output gate": ours.gate_map is not None,
        "temperatures": ours.log_temperature is not None,
        "sinks": ours.sink is not None,
        "talking heads": ours.logit_mix is not None,
        "a process group": ours.process_group is not None,
    }
    found = [name for name, present in unsupported.items() if present]
    if found:
        raise OptionError(
            f"module must only use options of torch.nn.MultiheadAttention, got {', '.join(found)}. "
            "Keep this module, or build it without these options."
        )
    maps = (ours.query_map, ours.key_map, ours.value_map, ours.output_map)
    *linears, output_map = cast("tuple[nn.Linear, ...]", maps)
    weight, bias = output_map.weight, linears[0].bias is not None
    if bias != (output_map.bias is not None):
        raise OptionError(
            "bias must be True or False, because torch.nn.MultiheadAttention has biases on all projections or on none, "
            f"got {'inputs' if bias else 'output'!r}. Build the module with bias={bias}."
        )
    theirs = nn.MultiheadAttention(
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
            targets = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
            for target, linear in zip(targets, linears, strict=True):
                target.copy_(linear.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([linear.bias for linear in linears]))
        _copy_linear(theirs.out_proj, weight, output_map.bias)
        for torch_extra, extra in ((theirs.bias_k, ours.extra_key), (theirs.bias_v, ours.extra_value)):
            if torch_extra is not None and extra is not None:
                torch_extra.copy_(extra.reshape(torch_extra.shape))
    return theirs.train(ours.training)


def convert_layer(
    cls: type[L],
    kind: type[nn.TransformerEncoderLayer | nn.TransformerDecoderLayer],
    theirs: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer,
    attentions: dict[str, str],
    **options: Any,
) -> L:
    """Return a new layer of class `cls` with copies of the parameters of a Transformer layer of `torch.nn`.

    Raises:
        KindError: if PyTorch's layer is of another class.
    """
    require_module(theirs, kind)
    weight = theirs.linear1.weight
    ours = cls(
        weight.shape[1],
        theirs.self_attn.num_heads,
        weight.shape[0],
        norm="pre" if theirs.norm_first else "post",
        activation=theirs.activation,
        dropout=theirs.dropout1.p,
        epsilon=theirs.norm1.eps,
        bias=theirs.linear1.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
        **options,
    )
    for torch_name, name in attentions.items():
        attention = from_torch(getattr(theirs, torch_name), type(ours.attention))
        attention.mask = getattr(ours, name).mask
        setattr(ours, name, attention)
    norms = {f"norm{number}": f"{name}_norm" for number, name in enumerate([*attentions.values(), "feed_forward"], 1)}
    for torch_name, name in {"linear1": "feed_forward.inward", "linear2": "feed_forward.outward", **norms}.items():
        ours.get_submodule(name).load_state_dict(theirs.get_submodule(torch_name).state_dict())
    ours.feed_forward.dropout.p = theirs.dropout.p
    return ours.train(theirs.training)


def copy_stack(ours: S, layers: list[L], theirs: nn.TransformerEncoder | nn.TransformerDecoder) -> S:
    """Replace the layers of `ours`, copy the final norm of `theirs` into it, and return it."""
    ours.layers = nn.ModuleList(layers)
    ours.final_norm = None
    if theirs.norm is not None:
        require_module(theirs.norm, nn.LayerNorm)
        assert isinstance(theirs.norm, nn.LayerNorm)
        ours.final_norm = copy.deepcopy(theirs.norm).requires_grad_()
    return ours.train(theirs.training)


def require_module(module: object, kind: type[nn.Module]) -> None:
    """Check that the argument of `from_torch` is an instance of the PyTorch class `kind`.

    Raises:
        KindError: if the argument is of another class.
    """
    if not isinstance(module, kind):
        raise KindError(
            f"argument of from_torch must be a torch.nn.{kind.__name__}, got a {type(module).__name__}. Call "
            "from_torch of the class with the same name."
        )


def _copy_linear(
    linear: nn.Linear | None, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"] | None
) -> None:
    assert linear is not None
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
