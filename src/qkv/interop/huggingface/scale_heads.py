"""Scaling and ablation of attention heads of a model while it runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

import torch

from qkv.core.typing import Float, Tensor
from qkv.errors import DataError, OptionError
from qkv.interop.huggingface.coverage import engine_attention
from qkv.interop.huggingface.model_layers import attention_layers, module_names, nested
from qkv.interop.huggingface.module_record import is_module
from qkv.interop.huggingface.registration import add_output_hook
from qkv.nn.multihead import MultiHeadAttention
from qkv.nn.protocols import AttentionOutput


@contextlib.contextmanager
def scale_heads(
    model: torch.nn.Module, factors: Mapping[tuple[str | int, int], float], *, name: str = "qkv"
) -> Iterator[None]:
    """Multiply the outputs of attention heads of a model by factors in a `with` block.

        output_h = factor_h · Σ_j weight_hj · value_hj        before the output projection

    The factor 0 ablates a head, which equals setting to 0 the columns of the output projection that belong to it. The
    model is restored at the end of the block, even after an exception. Gradients flow through the scaled outputs.

    Args:
        model: a model of transformers, or a PyTorch module with attention layers of `torch.nn` or `qkv.nn`.
        factors: factor of each head, by layer and index of the head. A layer is its name, or its index in the order of
            the model, as in `record`.
        name: a registered name, used if the model does not use qkv yet.

    Raises:
        OptionError: a layer or head does not exist, or a factor is not finite.
        DataError: when the block ends, if a layer ran without calling qkv, so that its heads were not scaled.

    Source:
        Michel, Levy and Neubig 2019, Are sixteen heads really better than one?, section 2.3.

    Example:
        >>> layer = torch.nn.MultiheadAttention(4, 2, batch_first=True).eval()
        >>> x = torch.randn(1, 3, 4)
        >>> with torch.no_grad(), scale_heads(layer, {(0, 0): 0.0, (0, 1): 0.0}):
        ...     bool((layer(x, x, x)[0] == layer.out_proj.bias).all())
        True
    """
    names = module_names(model)
    by_layer = _check_factors(attention_layers(names), factors)
    modules = {layer: module for module, layer in names.items() if layer in by_layer}
    with contextlib.ExitStack() as stack:
        counter = stack.enter_context(engine_attention(model, name))
        for layer, of_heads in by_layer.items():
            module = modules[layer]
            if isinstance(module, torch.nn.MultiheadAttention):
                _check_heads(layer, of_heads, module.num_heads)
                stack.enter_context(_scaled_projection(module, of_heads))
            elif is_module(module):
                stack.enter_context(_scaled_module(layer, module, of_heads))
            else:
                stack.enter_context(add_output_hook(module, _HeadScaler(layer, of_heads)))
        yield
        waiting = [layer for layer in by_layer if not _is_hooked(modules[layer])]
        missed = [layer for layer in counter.result().missed if nested(layer, waiting)]
    if missed:
        raise DataError(
            f"layers whose heads are scaled must use the attention interface of transformers, got {missed[0]!r}, which "
            "computes attention in its own code. Scale the columns of its output projection instead."
        )


def _check_factors(layers: list[str], factors: Mapping[tuple[str | int, int], float]) -> dict[str, dict[int, float]]:
    """Return the factors of the heads of each layer."""
    by_layer: dict[str, dict[int, float]] = {}
    for (layer, head), factor in factors.items():
        if not math.isfinite(factor):
            raise OptionError(f"each factor must be finite, got {factor} for head {head}. Pass 0 to ablate a head.")
        if isinstance(layer, int) and not -len(layers) <= layer < len(layers):
            raise OptionError(
                f"each layer must be between 0 and {len(layers) - 1}, got {layer}. The model has {len(layers)} "
                "attention layers."
            )
        layer_name = layers[layer] if isinstance(layer, int) else layer
        if layer_name not in layers:
            raise OptionError(
                f"each layer must be the name of an attention layer, got {layer_name!r}. Use a name such as "
                f"{layers[0] if layers else 'none'!r}, or an index."
            )
        by_layer.setdefault(layer_name, {})[head] = float(factor)
    return by_layer


def _check_heads(layer: str, of_heads: Mapping[int, float], count: int) -> None:
    for head in of_heads:
        if not 0 <= head < count:
            raise OptionError(
                f"each head must be between 0 and {count - 1} in layer {layer!r}, got {head}. Pass the index of a head."
            )


def _is_hooked(module: torch.nn.Module) -> bool:
    """Return whether the heads of a module are scaled without a call of the attention interface."""
    return isinstance(module, torch.nn.MultiheadAttention) or is_module(module)


class _HeadScaler:
    """Function that multiplies the outputs of the heads of a layer, `(batch, q, heads, value_width)`, by factors."""

    def __init__(self, layer: str, of_heads: Mapping[int, float]) -> None:
        self.layer, self.of_heads = layer, of_heads

    def __call__(
        self, output: Float[Tensor, "batch q heads value_width"]
    ) -> Float[Tensor, "batch q heads value_width"]:
        count = output.shape[2]
        _check_heads(self.layer, self.of_heads, count)
        return output * output.new_tensor([self.of_heads.get(head, 1.0) for head in range(count)])[:, None]


@contextlib.contextmanager
def _scaled_projection(module: torch.nn.MultiheadAttention, of_heads: Mapping[int, float]) -> Iterator[None]:
    """Scale the columns of the output projection of a PyTorch module, which it reads without calling it."""
    original = module.out_proj.weight.data
    width = module.embed_dim // module.num_heads
    scale = original.new_ones(module.num_heads)
    for head, factor in of_heads.items():
        scale[head] = factor
    try:
        module.out_proj.weight.data = original * scale.repeat_interleave(width)
        yield
    finally:
        module.out_proj.weight.data = original


@contextlib.contextmanager
def _scaled_module(layer: str, module: torch.nn.Module, of_heads: Mapping[int, float]) -> Iterator[None]:
    """Scale the heads of a module of `qkv.nn`: before its output projection, or in its output if it has none."""
    if isinstance(module, MultiHeadAttention):
        _check_heads(layer, of_heads, module.heads)
        factors = [of_heads.get(head, 1.0) for head in range(module.heads)]
        width, projection = module.head_value_width, module.output_map

        def scale(x: Float[Tensor, "*batch q all_heads"]) -> Float[Tensor, "*batch q all_heads"]:
            return x * x.new_tensor(factors).repeat_interleave(width)

        if projection is not None:
            handle = projection.register_forward_pre_hook(lambda _, args: (scale(args[0]), *args[1:]))
        else:
            handle = module.register_forward_hook(_of_output(scale))
    else:

        def scale_axis(x: Float[Tensor, "*batch q value_width"]) -> Float[Tensor, "*batch q value_width"]:
            count = x.shape[-3] if x.ndim > 3 else 1
            _check_heads(layer, of_heads, count)
            return x * x.new_tensor([of_heads.get(head, 1.0) for head in range(count)])[:, None, None]

        handle = module.register_forward_hook(_of_output(scale_axis))
    with handle:
        yield


def _of_output(
    scale: Callable[[Float[Tensor, "*batch q width"]], Float[Tensor, "*batch q width"]],
) -> Callable[[torch.nn.Module, tuple[object, ...], Tensor | AttentionOutput], Tensor | AttentionOutput]:
    """Return a hook that scales the output of a module, which has readouts or not."""

    def hook(
        module: torch.nn.Module, args: tuple[object, ...], output: Tensor | AttentionOutput
    ) -> Tensor | AttentionOutput:
        return output._replace(output=scale(output.output)) if isinstance(output, AttentionOutput) else scale(output)

    return hook
