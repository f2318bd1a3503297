"""Create attention views of texts with a Hugging Face model."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from qkv.core.formatting import memory_bytes
from qkv.core.progress import Progress, track
from qkv.errors import DataError, OptionError
from qkv.look.axis import Axis
from qkv.look.live_model import LiveModel
from qkv.look.predictions import Targets
from qkv.look.recorded_layers import DenseCall, RecordedLayers, check_shapes, run_dense
from qkv.look.text_model import TextModel, model_dimensions, token_axis
from qkv.look.text_roles import mark_roles
from qkv.look.tiled_map import TiledView
from qkv.look.tiled_views import check_memory, heads_required_bytes, recorded_view
from qkv.look.token_text import shortened
from qkv.look.views import View

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding, PreTrainedModel

    from qkv.core.typing import Int
    from qkv.look.roles import RoleTable


_Run = tuple["Int[torch.Tensor, '1 inputs']", "Int[torch.Tensor, '1 outputs']"]
"""The tokens that a decoder reads, and those that it predicts from the last of them."""


def _generate(
    text_model: TextModel, encoded: Mapping[str, Int[torch.Tensor, "1 tokens"]], name: str, count: int
) -> _Run:
    import torch

    model = text_model.model
    if not getattr(model, "can_generate", lambda: False)():
        raise DataError(
            f"text_model must have a language model head, got {text_model.name}, which cannot generate text. "
            "Name a model that was trained to generate text, or omit generate (--generate on the command line)."
        )
    # The tokens of a text do not exceed the context length, because `_tokenize` has checked them.
    length, tokens = text_model.max_tokens, encoded["input_ids"].shape[1]
    if length is not None and count > (most := length if text_model.encoder_decoder else length - tokens):
        raise DataError(
            f"generate (--generate on the command line) must be at most {most:,} for a text of {tokens:,} tokens, "
            f"because {text_model.name} has a context length of {length:,} tokens, got {count:,}. "
            "Generate fewer tokens, or shorten the text."
        )
    with torch.no_grad():
        generated = cast("Callable[..., torch.Tensor]", model.generate)(
            **encoded, max_new_tokens=count, do_sample=False, num_beams=1, pad_token_id=_padding_token(text_model)
        )[:1]
    start = 1 if text_model.encoder_decoder else encoded["input_ids"].shape[1]
    if generated.shape[1] <= start:
        raise DataError(
            f"the model must generate at least one token, got none from {text_model.name} for the text {name!r}. "
            "Try another text or another model."
        )
    return generated[:, :-1], generated[:, start:]


def _continue(text_model: TextModel, encoded: Mapping[str, Int[torch.Tensor, "1 tokens"]], target: str) -> _Run:
    """Return the tokens of a target text, which continues the text if the model has only a decoder."""
    import torch

    model, tokenizer = text_model.model, text_model.tokenizer
    if not text_model.encoder_decoder and not getattr(model, "can_generate", lambda: False)():
        raise DataError(
            f"text_model must have a decoder, got {text_model.name} without one. Name an encoder-decoder model or a "
            "language model, or omit the target (--target on the command line)."
        )
    if not target.strip():
        raise DataError(f"target must not be empty, got {target!r}. Add at least one word.")
    if text_model.encoder_decoder:
        labels = tokenizer(text_target=target, return_tensors="pt", verbose=False)["input_ids"]
        inputs = _shifted(model, labels)
    else:
        labels = tokenizer(target, add_special_tokens=False, return_tensors="pt", verbose=False)["input_ids"]
        inputs = torch.cat([encoded["input_ids"], labels], dim=1)[:, :-1]
    count = inputs.shape[1]
    if text_model.max_tokens is not None and count > text_model.max_tokens:
        raise DataError(
            f"target (--target on the command line) must fit in the context of {text_model.name}, "
            f"{text_model.max_tokens:,} tokens, got {count:,} tokens. Shorten the target."
        )
    return inputs, labels


def _shifted(model: PreTrainedModel, labels: Int[torch.Tensor, "1 tokens"]) -> Int[torch.Tensor, "1 tokens"]:
    """Return the decoder inputs from which an encoder-decoder model predicts labels."""
    import torch

    # Some models, such as mBART, move the last token to the front instead of the start token.
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return cast("torch.Tensor", shift(labels=labels))
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    first = next((token for name in names if (token := getattr(model.config, name, None)) is not None), 0)
    return torch.cat([torch.full_like(labels[:, :1], first), labels[:, :-1]], dim=1)


def _sequence_views(
    text_model: TextModel,
    encoded: Mapping[str, Int[torch.Tensor, "1 tokens"]],
    tokens: Axis,
    name: str,
    run: _Run,
    origin: str,
) -> list[View]:
    """Return views of one run of a model whose decoder predicts tokens.

    Those of an encoder-decoder model are cross-attention to the text, self-attention to previous tokens of the decoder,
    and self-attention of the encoder; that of a decoder-only model is self-attention to all previous tokens.
    """
    inputs, outputs = run
    model = text_model.model
    encoder_decoder = text_model.encoder_decoder
    start = inputs.shape[1] - outputs.shape[1] + 1
    arguments = {**encoded, "decoder_input_ids": inputs} if encoder_decoder else {"input_ids": inputs}
    steps, previous = (token_axis(text_model.tokenizer, {"input_ids": numbers}) for numbers in (outputs, inputs))
    groups: dict[str, RecordedLayers] = defaultdict(RecordedLayers)

    def collect(call: DenseCall) -> None:
        in_decoder = not encoder_decoder or "decoder" in call.name
        kind = "cross" if call.kind == "cross" else "decoder" if in_decoder else "self"
        rows = slice(-len(steps.tokens) if kind == "decoder" else None, None)
        allowed = None if call.allowed is None else call.allowed[..., rows, :]
        weights = call.weights[:, rows]
        first = call.weights.shape[1] - weights.shape[1]
        calls = None if call.calls is None else tuple(head._replace(first=first) for head in call.calls)
        groups[kind].add(call._replace(weights=weights, allowed=allowed, calls=calls))

    whole = {**arguments, "use_cache": False}
    output = run_dense(model, whole, collect)
    has_head = getattr(output, "logits", None) is not None
    targets = Targets("step", outputs[0].cpu().numpy(), text_model.tokenizer) if has_head else None
    parts = {
        "cross": (f"{origin}: attention to the text", steps, tokens),
        "decoder": (f"{origin}: attention to previous tokens", steps, previous),
        "self": ("encoder", tokens, None),
    }
    if not groups:
        check_shapes(model, text_model.name, [], (len(steps.tokens), len(previous.tokens)))
    views = []
    for kind, (part, queries, keys) in parts.items():
        if kind in groups:
            shape = len(queries.tokens), len((keys or queries).tokens)
            check_shapes(model, text_model.name, [one.codes.shape[1:] for one in groups[kind].maps], shape)
            layers, title = tuple(groups[kind].maps), f"{name} ({part})"
            note = _STEP_NOTE if keys is not None and origin == "generated" else ""
            view = View(title, text_model.name, kind, queries, keys, layers, note=note)
            if keys is not None:
                live = LiveModel(model, whole, tuple(groups[kind].modules), start - 1, targets)
                view = replace(view, predictions=live.predict(output), live=live)
            views.append(mark_roles(view))
    return views


def _padding_token(text_model: TextModel) -> int | None:
    """Return the id of the padding token of a model, or of its end token, without which `generate` warns; or None."""
    config = text_model.model.generation_config
    padding, end = (getattr(config, name, None) for name in ("pad_token_id", "eos_token_id"))
    return padding if padding is not None else end[0] if isinstance(end, list) else end


_STEP_NOTE = "Each row is named by the token that was generated, with the weights of the step that produced it."
_BYTES_PER_WEIGHT = 6
"""A dense map stores each weight in float32 and as a code of 16 bits."""


def text_views(
    text_model: TextModel,
    texts: Sequence[str],
    *,
    progress: Progress | None = None,
    all_heads: bool = True,
    generate: int = 0,
    targets: Sequence[str] | None = None,
    pairs: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    memory: int | str = "1 GiB",
    roles: RoleTable | None = None,
    notify: Callable[[str], None] | None = None,
) -> list[View | TiledView]:
    """Run a model on each text and return attention views of all its heads.

    A text whose dense maps fit in the memory limit gives a `View`; a longer text gives a `TiledView`.

    Args:
        text_model: from `load_text_model`.
        texts: the texts; the model runs on each text separately.
        progress: called after each text.
        all_heads: add a layer of maps that aggregate all layers and heads: the mean, the rollout and, for short
            texts, the flow.
        generate: maximum number of tokens to generate; if positive, the views show the attention of the generated
            tokens.
        targets: a target text for each text, such as its translation; the views show the attention of the tokens of
            the target. Without targets, an encoder-decoder model shows its encoder.
        pairs: a second text for each text, such as an answer to a question; the model reads both as one input, and the
            page can show only the attention from one text to the other.
        layers: indices of the layers to show for texts that exceed the memory limit; None: all.
        memory: limit on the memory of the maps of one text.
        roles: the roles of the heads, measured over many sentences; None: the roles that heads have in the text.
        notify: function that prints messages, such as the predicted memory of a long text before the model runs.

    Raises:
        DataError: a text is empty, or exceeds the context length of the model.
        OptionError: a layer does not exist, the numbers of texts and of targets or pairs differ, or both `generate` and
            `targets` are given.
        RefusedError: the maps of a long text exceed the memory limit.

    Example:
        >>> from qkv.look.text_model import load_text_model
        >>> views = text_views(load_text_model(), ["Hans said that he likes Mary"])  # doctest: +SKIP
        >>> views[0].layers[0].heads[:2]  # doctest: +SKIP
        ('head 0', 'head 1')
    """
    views: list[View | TiledView] = []
    all_layers, heads, width = model_dimensions(text_model.model)
    if wrong := [layer for layer in layers or () if not 0 <= layer < all_layers]:
        raise OptionError(
            f"layers (--layers on the command line) must be between 0 and {all_layers - 1} for {text_model.name}, got "
            f"{wrong[0]}. Omit this layer."
        )
    if targets is not None and generate:
        raise OptionError(
            f"generate must be 0 if targets are given, which take the place of generated tokens, got {generate}. Omit "
            "generate or targets (--generate or --target on the command line)."
        )
    for name, given in (("target", targets), ("pair", pairs)):
        if given is not None and len(given) != len(texts):
            raise OptionError(
                f"{name}s must be as many as texts, got {len(given)} {name}s for {len(texts)} texts. Pass one {name} "
                f"for each text, in the same order (--{name} on the command line)."
            )
    labels = None if roles is None else roles.labels()
    for i, text in enumerate(track(texts, "reading", progress)):
        pair = None if pairs is None else pairs[i]
        encoded, tokens = _tokenize(text_model, text, pair)
        title = shortened(text if pair is None else f"{text} | {pair}", 80)
        accepted = inspect.signature(text_model.model.forward).parameters
        inputs: dict[str, torch.Tensor] = {name: value for name, value in encoded.items() if name in accepted}
        count = len(tokens.tokens)
        if generate:
            generated = _generate(text_model, inputs, title, generate)
            views += _sequence_views(text_model, inputs, tokens, title, generated, "generated")
        elif targets is not None:
            target = _continue(text_model, inputs, targets[i])
            views += _sequence_views(text_model, inputs, tokens, title, target, "target")
        elif _BYTES_PER_WEIGHT * all_layers * heads * count**2 <= memory_bytes(memory):
            if layers is not None and notify is not None:
                notify(f"--layers has no effect on a text of {count:,} tokens, so all layers are shown")
            view = _dense_view(text_model, title, inputs, tokens, all_heads)
            views.append(mark_roles(view, labels))
        else:
            shown = range(all_layers) if layers is None else layers
            required = heads_required_bytes(count, width, heads * len(shown))
            subject = f"{len(shown)} layers of {heads} heads over {count:,} tokens"
            advice = "Name fewer layers, or increase memory (--layers and --memory on the command line)."
            check_memory(required, memory_bytes(memory), subject, advice, detail="in tiles", notify=notify)
            model, name = text_model.model, text_model.name
            long = recorded_view(model, inputs, tokens, name=title, model_name=name, layers=layers)
            found = labels or {}
            own = {(i, head): found.get((layer, head), ()) for i, layer in enumerate(shown) for head in range(heads)}
            views.append(mark_roles(long, None if labels is None else own))
    return views


def _tokenize(text_model: TextModel, text: str, pair: str | None) -> tuple[BatchEncoding, Axis]:
    for part in (text, pair):
        if part is not None and not part.strip():
            raise DataError(f"text must not be empty, got {part!r}. Add at least one word.")
    encoded = text_model.tokenizer(text, pair, return_tensors="pt", return_special_tokens_mask=True, verbose=False)
    count = encoded["input_ids"].shape[1]
    if text_model.max_tokens is not None and count > text_model.max_tokens:
        raise DataError(
            f"text must have at most {text_model.max_tokens:,} tokens for {text_model.name}, got {count:,} tokens in "
            f"the text that starts with {text[:40]!r}. Shorten the text."
        )
    return encoded, token_axis(text_model.tokenizer, encoded, [part for part in (text, pair) if part is not None])


def _dense_view(
    text_model: TextModel, name: str, inputs: Mapping[str, Int[torch.Tensor, "1 tokens"]], tokens: Axis, all_heads: bool
) -> View:
    model = text_model.model
    if text_model.encoder_decoder:
        # Without generated tokens, the decoder has no input, so that only the encoder runs.
        model = model.get_encoder()
    found = RecordedLayers()
    output = run_dense(model, inputs, found.add)
    size = len(tokens.tokens)
    check_shapes(model, text_model.name, [one.codes.shape[1:] for one in found.maps], (size, size))
    live = LiveModel(model, inputs, tuple(found.modules))
    logits = getattr(output, "logits", None)
    if logits is not None and logits.ndim == 3:
        numbers = inputs["input_ids"][0].cpu().numpy()
        targets = np.append(numbers[1:], -1) if found.causal else np.where(tokens.special, -1, numbers)
        live = replace(live, targets=Targets("next" if found.causal else "own", targets, text_model.tokenizer))
    combined = all_heads and len({mean.shape for mean in found.means}) == 1
    predictions = live.predict(output)
    return found.view(name, text_model.name, "self", tokens, None, combined, predictions=predictions, live=live)
