"""Hooks in transformers' base class of models, for scores and normalizers that are saved with a model.

Transformers leaves the name of the attention implementation out of a saved configuration, so that a model which was
trained with another score or normalizer would be loaded with softmax of the scaled dot product without an error. It
reads the name, though, if it is there. `post_init`, which ends the construction of every model, and
`set_attn_implementation` therefore note it in the configuration, together with a description of the parts, and add
the parameters of learned scores and normalizers before weights are loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from qkv.errors import OptionError
from qkv.interop.huggingface.learned_parts import (
    LayerNormalizer,
    add_learned_normalizers,
    add_learned_scores,
    initialize_score,
)
from qkv.interop.huggingface.model_layers import attention_configs
from qkv.nn import LearnedScore

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from qkv.interop.huggingface.attention_call import Registration


SAVED_PARTS = "qkv_attention"
"""Name of the entry in a configuration that describes score and normalizer."""


def add_model_hooks(registered: Mapping[str, Registration]) -> None:
    """Add the hooks to the base class of models, once."""
    from transformers import PreTrainedModel

    if getattr(PreTrainedModel.post_init, "__qkv__", False):
        return
    post_init = PreTrainedModel.post_init
    set_implementation = PreTrainedModel.set_attn_implementation
    initialize = PreTrainedModel._initialize_weights

    @functools.wraps(post_init)
    def post_init_with_parts(self: torch.nn.Module) -> None:
        apply_registration(self, registered, built=True)
        post_init(self)  # type: ignore[arg-type, no-untyped-call]

    @functools.wraps(set_implementation)
    def set_with_parts(self: torch.nn.Module, *args: object, **options: object) -> None:
        set_implementation(self, *args, **options)  # type: ignore[arg-type]
        apply_registration(self, registered)

    @functools.wraps(initialize)
    def initialize_with_scores(self: torch.nn.Module, module: torch.nn.Module, *args: object) -> None:
        if isinstance(module, LearnedScore) and not getattr(module, "_is_hf_initialized", False):
            initialize_score(module)
        if isinstance(module, LayerNormalizer) and not getattr(module, "_is_hf_initialized", False):
            module.reset_parameters()
            module._is_hf_initialized = True  # type: ignore[assignment]
        initialize(self, module, *args)  # type: ignore[arg-type]

    post_init_with_parts.__qkv__ = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = post_init_with_parts  # type: ignore[method-assign]
    PreTrainedModel.set_attn_implementation = set_with_parts  # type: ignore[method-assign]
    PreTrainedModel._initialize_weights = initialize_with_scores  # type: ignore[method-assign, assignment]


def apply_registration(model: torch.nn.Module, registered: Mapping[str, Registration], *, built: bool = False) -> None:
    """Note the parts of a model's attention in its configurations, and add the learned parts of its layers.

    Raises:
        OptionError: if the model was saved with other parts than those that are registered now.
    """
    for config in attention_configs(model):
        note_parts(config, registered, built=built)

    def registration(layer: torch.nn.Module) -> Registration | None:
        config: PretrainedConfig | None = getattr(layer, "config", None)
        return registered.get(getattr(config, "_attn_implementation", None) or "")

    if any(each.score is not None for each in registered.values()):
        add_learned_scores(model, lambda layer: getattr(registration(layer), "score", None))
    if any(each.normalizer is not None for each in registered.values()):
        add_learned_normalizers(model, lambda layer: getattr(registration(layer), "normalizer", None))


def note_parts(config: PretrainedConfig, registered: Mapping[str, Registration], *, built: bool = False) -> None:
    """Note the name and the parts of the selected attention in a configuration, or remove the note of other parts.

    Arguments and errors are those of `apply_registration`.
    """
    name = config._attn_implementation or ""
    registration = registered.get(name)
    if registration is None or not registration.replaces_parts:
        for attribute in ("attn_implementation", SAVED_PARTS):
            config.__dict__.pop(attribute, None)
        return
    saved, described = getattr(config, SAVED_PARTS, None), {"name": name, **registration.describe()}
    if built and isinstance(saved, dict) and saved.get("name") == name and saved != described:
        raise OptionError(
            f'"{name}" must be registered with the score and normalizer that the model was saved with, {saved}, got '
            f"{described}. Call qkv.interop.huggingface.register_saved(path), or register the other parts under "
            "another name and pass it as attn_implementation."
        )
    config.attn_implementation = name
    setattr(config, SAVED_PARTS, described)
