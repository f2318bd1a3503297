"""PyTorch's Transformer, converted: layers, stacks of them and the whole, in one call each.

What is stated in `torch_border.py` holds here: the layout is `(batch, length, width)`, in masks True means
may attend, and a token that may attend to nothing gets 0 from attention where PyTorch gives NaN.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from qkv.errors import KindError
from qkv.nn.layers import DecoderLayer, EncoderLayer
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.transformer import Decoder, Encoder, Transformer

__all__ = ["decoder_layer", "decoder_of", "encoder_layer", "encoder_of", "transformer"]

M = TypeVar("M", bound=nn.Module)
S = TypeVar("S", Encoder, Decoder)


def encoder_layer(layer: nn.TransformerEncoderLayer) -> EncoderLayer:
    """`EncoderLayer.from_torch`"""
    _require(layer, nn.TransformerEncoderLayer)
    ours = EncoderLayer(**_options(layer))
    ours.attention = MultiHeadAttention.from_torch(layer.self_attn)
    _copy(ours.attention_norm, layer.norm1)
    _copy(ours.feed_forward_norm, layer.norm2)
    return _finished(ours, layer)


def decoder_layer(layer: nn.TransformerDecoderLayer, causal: bool) -> DecoderLayer:
    """`DecoderLayer.from_torch`"""
    _require(layer, nn.TransformerDecoderLayer)
    ours = DecoderLayer(causal=causal, **_options(layer))
    mask = ours.attention.mask
    ours.attention = MultiHeadAttention.from_torch(layer.self_attn)
    ours.attention.mask = mask
    ours.cross = MultiHeadAttention.from_torch(layer.multihead_attn)
    for norm, theirs in (
        (ours.attention_norm, layer.norm1),
        (ours.cross_norm, layer.norm2),
        (ours.feed_forward_norm, layer.norm3),
    ):
        _copy(norm, theirs)
    return _finished(ours, layer)


def encoder_of(encoder: nn.TransformerEncoder) -> Encoder:
    """`Encoder.from_torch`"""
    _require(encoder, nn.TransformerEncoder)
    return _stack(Encoder(1, 1), [encoder_layer(layer) for layer in encoder.layers], encoder)


def decoder_of(decoder: nn.TransformerDecoder, causal: bool) -> Decoder:
    """`Decoder.from_torch`"""
    _require(decoder, nn.TransformerDecoder)
    return _stack(Decoder(1, 1), [decoder_layer(layer, causal) for layer in decoder.layers], decoder)


def transformer(model: nn.Transformer, causal: bool) -> Transformer:
    """`Transformer.from_torch`"""
    _require(model, nn.Transformer)
    ours = Transformer(1, 1, encoder_layers=1, decoder_layers=1)
    ours.encoder, ours.decoder = encoder_of(model.encoder), decoder_of(model.decoder, causal)
    return ours.train(model.training)


def _options(layer: Any) -> dict[str, Any]:
    weight = layer.linear1.weight
    return {
        "width": weight.shape[1],
        "heads": layer.self_attn.num_heads,
        "hidden": weight.shape[0],
        "norm": "pre" if layer.norm_first else "post",
        "activation": layer.activation,
        "dropout": layer.dropout1.p,
        "epsilon": layer.norm1.eps,
        "bias": layer.linear1.bias is not None,
        "device": weight.device,
        "dtype": weight.dtype,
    }


def _finished(ours: M, layer: Any) -> M:
    made: Any = ours
    _copy(made.feed_forward.inward, layer.linear1)
    _copy(made.feed_forward.outward, layer.linear2)
    made.feed_forward.dropout.p = layer.dropout.p
    return ours.train(layer.training)


def _stack(ours: S, layers: list[Any], theirs: Any) -> S:
    ours.layers = nn.ModuleList(layers)
    ours.final_norm = None
    if theirs.norm is not None:
        _require(theirs.norm, nn.LayerNorm)
        weight = theirs.norm.weight
        made_as = {"bias": theirs.norm.bias is not None, "device": weight.device, "dtype": weight.dtype}
        ours.final_norm = nn.LayerNorm(weight.shape[0], theirs.norm.eps, **made_as)
        _copy(ours.final_norm, theirs.norm)
    return ours.train(theirs.training)


def _copy(ours: nn.Module, theirs: nn.Module) -> None:
    with torch.no_grad():
        ours.load_state_dict(theirs.state_dict())


def _require(module: Any, kind: type) -> None:
    if not isinstance(module, kind):
        raise KindError(f"from_torch was given a {type(module).__name__}. Give a torch.nn.{kind.__name__}.")
