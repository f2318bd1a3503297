"""Registration of qkv with transformers, as an attention function and a mask function of the same name.

Both functions must be registered. Without a mask function transformers passes no mask, and the output would silently
ignore padding and causality.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch.utils.hooks import RemovableHandle

from qkv.core.checks import describe
from qkv.core.parts import Part
from qkv.core.tile import Tile
from qkv.core.tracing import tracing_mode
from qkv.core.typing import Array, Float, Shaped, Tensor
from qkv.engine import attend, observe
from qkv.errors import DataError, KindError, OptionError
from qkv.interop.huggingface.attention_call import AttentionCall, NormalizerFactory, Registration, ScoreFactory
from qkv.interop.huggingface.learned_parts import LearnedOption
from qkv.interop.huggingface.mask_interface import LazyMask, build_mask
from qkv.interop.huggingface.model_hooks import SAVED_PARTS, add_model_hooks
from qkv.interop.huggingface.saved_parts import Json, build_part, is_learned
from qkv.normalizers import Normalizer
from qkv.readouts import Dense
from qkv.scores import Score


def attend_step(
    query: Float[Tensor, "batch heads q width"],
    key: Float[Tensor, "batch key_heads k width"],
    value: Float[Tensor, "batch key_heads k value_width"],
    mask: Shaped[Tensor, "*_ keys"] | None,
    scaling: object,
) -> Float[Tensor, "batch heads 1 value_width"] | None:
    """Return the output of one query per sequence, or None if the call must be planned."""
    if query.shape[2] != 1 or value.shape[-1] != query.shape[-1] or not (key.shape[2] and query.numel()):
        return None
    if not (scaling is None or isinstance(scaling, (int, float))) or not query.dtype == key.dtype == value.dtype:
        return None
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return None
    if tracing_mode(query):
        return None
    added = None
    if mask is not None:
        found = _visible(mask, key.shape[2])
        if found is None:
            return None
        (start, stop), allowed = found
        key, value = key.narrow(2, start, stop - start), value.narrow(2, start, stop - start)
        if allowed is not None:
            added = allowed[..., start:stop].to(query.dtype)
    batch, heads, _, width = query.shape
    if heads % key.shape[1]:
        return None
    grouped = query if heads == key.shape[1] else query.reshape(batch, key.shape[1], -1, width)
    scale = None if scaling is None else float(scaling)
    output = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=added, scale=scale)
    # Data that is not finite is left to the kernels. It makes the output NaN or infinite, or 0 if all logits are −∞.
    low, high = output.abs().sum(-1).aminmax()
    if not (low.item() > 0 and math.isfinite(high.item())):
        return None
    return output.reshape(batch, heads, 1, width)


def without_mask(
    key: Float[Tensor, "batch key_heads k width"],
    value: Float[Tensor, "batch key_heads k value_width"],
    mask: Shaped[Tensor, "*_ keys"] | None,
) -> tuple[
    Float[Tensor, "batch key_heads n width"],
    Float[Tensor, "batch key_heads n value_width"],
    Shaped[Tensor, "*_ keys"] | None,
]:
    """Return the first keys and values, and no mask, if these are the keys that the mask of a step allows.

    Steps without a mask share plans. The arguments are returned unchanged if the mask allows other keys.
    """
    found = None if mask is None else _visible(mask, key.shape[2])
    if found is None or found[1] is not None or found[0][0] > 0:
        return key, value, mask
    return key.narrow(2, 0, found[0][1]), value.narrow(2, 0, found[0][1]), None


def _visible(
    mask: Shaped[Tensor, "*_ keys"], keys: int
) -> tuple[tuple[int, int], Float[Tensor, "batch 1 1 keys"] | None] | None:
    """Return the range of keys that a mask allows, and what it adds to the logits if not all of the range is allowed.

    The result is None if the mask is not lazy or allows no key. It is stored with the mask, because all layers of a
    model receive the same mask in a step.
    """
    if not isinstance(mask, LazyMask) or mask.array is not None or mask.shape[-1] < keys:
        return None
    if mask.step is None or mask.step[0] != keys:
        parts, positions = mask.parts()
        stop, limits, added = mask.shape[-1], (0, mask.shape[-1]), None
        if parts is not None:
            tile = Tile.whole(1, stop, (mask.shape[0], 1), positions)
            limits = parts.key_range(tile)
            if limits[0] < limits[1] and parts.coverage(tile.restrict(tile.rows, limits)) != "all":
                added = torch.zeros((mask.shape[0], 1, 1, stop), dtype=mask.dtype, device=mask.device)
                added.masked_fill_(~cast("Tensor", parts.allowed(tile, added)), -math.inf)
        mask.step = (keys, limits, added)
    _, (start, stop), added = mask.step
    return None if start >= min(stop, keys) else ((start, min(stop, keys)), added)


REGISTERED: dict[str, Registration] = {}
"""The options of each registered name."""

_Listener = Callable[[torch.nn.Module, AttentionCall, float], torch.Tensor | None]
"""A function of an attention layer, its call and the dropout probability, which may return the output."""

LISTENERS: WeakKeyDictionary[torch.nn.Module, OrderedDict[int, _Listener]] = WeakKeyDictionary()
"""Listeners of each attention layer, by the id of their handle."""

_OUTPUT_HOOKS: WeakKeyDictionary[torch.nn.Module, OrderedDict[int, Callable[[torch.Tensor], torch.Tensor]]] = (
    WeakKeyDictionary()
)
"""Functions that change the output of each attention layer, by the id of their handle."""

_EXTRA = ("softcap", "position_bias", "s_aux", "sinks", "indices", "block_indices")
"""Arguments of the interface that change the logits or the mask."""

_RESERVED = ("eager", "sdpa", "flex_attention")


def register(
    name: str = "qkv",
    *,
    score: Score | ScoreFactory | LearnedOption | None = None,
    normalizer: Normalizer | NormalizerFactory | None = None,
    kernel: str | None = None,
    memory: int | str | None = None,
) -> str:
    """Register qkv with transformers as the attention implementation `name`, for `attn_implementation=name`.

    The scaling, soft cap, sinks, position bias, masks and dropout of the model are applied. `score`
    replaces only the scaled dot product, `normalizer` only the softmax. Both are saved with a model that has them, by
    name and in its configuration; see `register_saved`.

    Args:
        name: name to register; it must not contain "flash", which transformers reserves for its own kernels.
        score: a score; a learned score, which becomes part of each attention layer, with parameters for each head:
            `nn.Additive`, with options `functools.partial(nn.Additive, hidden=16)`, or an instance
            `nn.Additive(64, heads=12)`, whose parameters are not shared with the layers; or a function from an
            attention layer to its score of `qkv.scores`: `lambda layer: Additive(layer.w, …)`.
        normalizer: a normalizer, or a function from an attention layer to its normalizer. A normalizer that holds a
            `torch.nn.Parameter`, such as `Entmax(torch.nn.Parameter(torch.full((12,), 1.5)))` with one α per head,
            becomes part of each attention layer, with parameters of its own that start at these values.
        kernel: name of the kernel to run; None lets the planner choose.
        memory: memory limit of a call, as in `qkv.attend`; None allows 256 MiB plus sixteen times the size of
            the inputs, which excludes arrays of q · k elements for long sequences.

    Returns:
        The name.

    Raises:
        OptionError: the name is empty, or transformers reserves it.
        KindError: score or normalizer is neither, such as the class `scores.Gaussian` instead of `scores.Gaussian()`.

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
            f'name must be a non-empty string that does not contain "flash" or "|" and is not one of '
            f'{", ".join(_RESERVED)}, which transformers reserves, got {name!r}. Use a name such as "qkv".'
        )
    _check_option("score", score, Score)
    _check_option("normalizer", normalizer, Normalizer)
    from transformers import AttentionInterface, AttentionMaskInterface

    add_model_hooks(REGISTERED)
    registration = Registration(score, normalizer, kernel, memory)
    AttentionInterface.register(name, functools.partial(_attention, registration))
    AttentionMaskInterface.register(name, build_mask)
    REGISTERED[name] = registration
    return name


def _check_option(name: str, option: object, kind: type[Part]) -> None:
    """Check that an option of `register` is None, a part, a learned score, or a function of the layer."""
    if option is None or isinstance(option, kind) or (kind is Score and is_learned(option)):
        return
    if isinstance(option, type) and issubclass(option, kind):
        advice = f"Pass an instance, such as {option.__name__}(…)."
    elif callable(option) and not isinstance(option, (type, Part)):
        return
    else:
        advice = f"Pass an instance of a class in qkv.{name}s, or a function of the attention layer that returns one."
    raise KindError(f"{name} must be a {name} or a function of an attention layer, got {describe(option)}. {advice}")


def register_saved(path: str | Path) -> str:
    """Register the score and normalizer with which a model was saved, under the name that it was saved with.

    `from_pretrained` then restores the model with them. It raises an error if the name is not registered, or is
    registered with other parts.

    Args:
        path: folder that `model.save_pretrained` wrote, or its configuration file.

    Returns:
        The name.

    Raises:
        DataError: the model has no such score or normalizer, or they are functions or hold arrays, which a
            configuration cannot store.

    Example:
        >>> import tempfile, transformers, qkv
        >>> name = register("qkv-entmax", normalizer=qkv.normalizers.Entmax15())
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
        >>> config = transformers.BertConfig(**sizes, num_attention_heads=2, attn_implementation=name)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     transformers.BertModel(config).save_pretrained(folder)
        ...     register_saved(folder)
        'qkv-entmax'
    """
    from transformers import PretrainedConfig

    path = Path(path)
    config, _ = PretrainedConfig.get_config_dict(path if path.is_dir() else path.parent)
    found = next(_saved_parts(config), None)
    if found is None:
        raise DataError(
            f"{path} must be a model that was saved with a score or normalizer of qkv, got one with the attention of "
            "transformers. Load it with from_pretrained."
        )
    name, saved = found
    # A description that was edited or written by another version may build anything; `register` and parts check.
    return register(name, score=build_part(saved["score"]), normalizer=build_part(saved["normalizer"]))  # type: ignore[arg-type]


def _saved_parts(config: Mapping[str, object]) -> Iterator[tuple[str, dict[str, Json]]]:
    """Iterate over the names and descriptions of the parts that a configuration or its nested ones store."""
    parts = config.get(SAVED_PARTS)
    if isinstance(parts, dict) and {"name", "score", "normalizer"} <= parts.keys():
        yield str(parts["name"]), parts
    for value in config.values():
        if isinstance(value, dict):
            yield from _saved_parts(value)


def add_listener(module: torch.nn.Module, listener: _Listener) -> RemovableHandle:
    """Call `listener` in every call of an attention layer until `remove` of the returned handle is called."""
    listeners = LISTENERS.setdefault(module, OrderedDict())
    handle = RemovableHandle(listeners)
    listeners[handle.id] = listener
    return handle


def add_output_hook(module: torch.nn.Module, hook: Callable[[torch.Tensor], torch.Tensor]) -> RemovableHandle:
    """Replace the output `(batch, q, heads, value_width)` of an attention layer by `hook(output)` in every call.

    Hooks are called in the order in which they were added, until `remove` of the returned handle is called.
    """
    hooks = _OUTPUT_HOOKS.setdefault(module, OrderedDict())
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _attention(
    registration: Registration,
    module: torch.nn.Module,
    query: Float[Tensor, "batch heads q width"],
    key: Float[Tensor, "batch key_heads k width"],
    value: Float[Tensor, "batch key_heads k value_width"],
    attention_mask: Shaped[Tensor, "*_ keys"] | None,
    dropout: float = 0.0,
    output_attentions: bool | None = False,
    **arguments: Any,
) -> tuple[Float[Tensor, "batch q heads value_width"], Float[Tensor, "batch heads q k"] | None]:
    """Compute the attention of a layer for transformers, and return the output and the weights or None.

    `arguments` are the further arguments of the interface, as in `AttentionCall.from_interface`.
    """
    listeners = tuple(LISTENERS.get(module, {}).values())
    output_hooks = tuple(_OUTPUT_HOOKS.get(module, {}).values())
    plain = not (listeners or output_hooks or dropout or output_attentions)
    if plain and query.shape[2] == 1 and all(arguments.get(name) is None for name in _EXTRA):
        if not (registration.replaces_parts or registration.kernel):
            step = attend_step(query, key, value, attention_mask, arguments.get("scaling"))
            if step is not None:
                return step.transpose(1, 2).contiguous(), None
        elif registration.replaces_parts and not tracing_mode(query):
            key, value, attention_mask = without_mask(key, value, attention_mask)
    call = AttentionCall.from_interface(registration, module, query, key, value, attention_mask, **arguments)
    output: Array | None = None
    weights: torch.Tensor | None = None
    for listener in listeners:
        computed = listener(module, call, dropout)
        output = computed if computed is not None else output
    if output_attentions:
        observed = observe(call.query, call.key, call.value, readouts=[Dense()], dropout=dropout, **call.options)
        output, weights = observed.output, call.merge_heads(observed.readouts[0])
    elif output is None:
        output = attend(call.query, call.key, call.value, dropout=dropout, **call.options)
    merged = call.merge_heads(cast(torch.Tensor, output)).transpose(1, 2).contiguous()
    for hook in output_hooks:
        merged = hook(merged)
    return merged, weights


def switch_implementation(model: torch.nn.Module, name: str) -> bool:
    """Select an attention implementation of a model by name, and return whether the model supports it.

    Raises:
        OptionError: the name is not registered.
    """
    if name not in REGISTERED:
        if name != "qkv":
            names = ", ".join(dict.fromkeys(["qkv", *REGISTERED]))
            raise OptionError(
                f'name must be a registered name, one of {names}, got "{name}". Register it first with '
                f'qkv.interop.huggingface.register("{name}").'
            )
        register()
    supported = getattr(model, "_can_set_attn_implementation", None)
    if supported is None or not supported():
        return False
    model.set_attn_implementation(name)  # type: ignore[operator]
    return True
