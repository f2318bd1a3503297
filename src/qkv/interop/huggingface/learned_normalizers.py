"""Normalizers with parameters, such as a learned α of entmax, as parts of the attention layers of a Hugging Face model.

    layer.qkv_normalizer = PartModule(Entmax(alpha))          alpha: a parameter per head

The parameters of a registered normalizer are the initial values of those of each layer. They are trained, moved, saved
and loaded with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

from qkv.core.typing import Array, Shaped
from qkv.errors import OptionError
from qkv.interop.huggingface.model_layers import is_attention, uses_interface
from qkv.nn.part_module import Groups, PartModule, align_batch
from qkv.normalizers import Normalizer

__all__ = ["LayerNormalizer", "add_learned_normalizers", "layer_normalizer"]

_NAME = "qkv_normalizer"


class LayerNormalizer(PartModule[Normalizer]):
    """Module with the parameters of the normalizer of one attention layer.

    Args:
        registered: the registered normalizer, whose parameters are copied.
    """

    def __init__(self, registered: Normalizer) -> None:
        super().__init__(registered.map_arrays(_copy))
        self.registered = registered

    def reset_parameters(self) -> None:
        """Set the parameters to those of the registered normalizer, except those that were loaded."""
        with torch.no_grad():
            for n, initial in enumerate(self.registered.arrays()):
                x = getattr(self, f"array_{n}")
                if not getattr(x, "_is_hf_initialized", False):
                    x.copy_(cast("torch.Tensor", initial))


def _copy(x: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
    copied = torch.as_tensor(x).detach().clone()
    return torch.nn.Parameter(copied) if isinstance(x, torch.nn.Parameter) else copied


def _is_learned(option: object) -> bool:
    return isinstance(option, Normalizer) and any(isinstance(x, torch.nn.Parameter) for x in option.arrays())


def _equal(a: Normalizer, b: Normalizer) -> bool:
    """Return whether two normalizers are equal, also if one is a copy, such as that of a copied model."""
    if a is b:
        return True
    pairs = zip(a.arrays(), b.arrays(), strict=False)
    return a.signature() == b.signature() and all(
        torch.equal(cast("torch.Tensor", x), cast("torch.Tensor", y)) for x, y in pairs
    )


def layer_normalizer(layer: torch.nn.Module, option: object, groups: Groups) -> Normalizer | None:
    """Return the normalizer of an attention layer that has parameters, which broadcast over `(batch, heads)`.

    Args:
        layer: the attention layer.
        option: the registered normalizer.
        groups: (key_heads, group) if the heads are two axes of the call, else None.

    Returns:
        The normalizer, or None if the registered one has no parameters.

    Raises:
        OptionError: if the layer has no such normalizer.
    """
    if not _is_learned(option):
        return None
    module = getattr(layer, _NAME, None)
    if not isinstance(module, LayerNormalizer):
        raise OptionError(
            f"the attention layer must have the parameters of its normalizer, got a {type(layer).__name__} without "
            "them. Register the normalizer before the model is built, or call "
            "qkv.interop.huggingface.attach(model, name)."
        )
    normalizer: Normalizer = module()
    return align_batch(normalizer, 1, groups, True)


def add_learned_normalizers(model: torch.nn.Module, options: Callable[[torch.nn.Module], object]) -> None:
    """Add the normalizer to each attention layer whose registered one has parameters, unless the layer has it already.

    Args:
        model: the model; its parameters determine the device of the new ones.
        options: function from an attention layer to the normalizer that is registered for it, or None.
    """
    for layer in [x for x in model.modules() if is_attention(x) and uses_interface(x)]:
        option, old = options(layer), getattr(layer, _NAME, None)
        if not _is_learned(option):
            continue
        if isinstance(old, LayerNormalizer) and _equal(old.registered, cast("Normalizer", option)):
            continue
        like = next((x for x in layer.parameters(recurse=True) if x.is_floating_point()), None)
        module = LayerNormalizer(cast("Normalizer", option))
        if like is not None:
            module = module.to(like.device, like.dtype)
        module.train(layer.training)
        # Transformers initializes the parameters of modules that it knows, and would overwrite some of these.
        module._is_hf_initialized = like is None or like.device.type != "meta"  # type: ignore[assignment]
        layer.add_module(_NAME, module)
