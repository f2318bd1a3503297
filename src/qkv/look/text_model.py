"""Texts through a Hugging Face model, and what its heads look at, as views."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.pretrained import default_model_folder, load_model
from qkv.errors import DataError, OptionError
from qkv.look.generation import generation_views
from qkv.look.rollout import flow, rollout
from qkv.look.tiled_map import TiledView
from qkv.look.tiled_views import heads_required_bytes, model_dimensions, recorded_view, refuse
from qkv.look.views import LayerMaps, TokenAxis, View
from qkv.plan.cost import memory_bytes, memory_text

__all__ = ["TextModel", "model_folder", "load", "token_axis", "text_views"]

_MOST_FLOW = 32
"""Tokens up to which the maximum flow is worth its time: one problem for each pair."""

_BEGINS = ("▁", "Ġ")
"""What words begin with in the pieces of SentencePiece and of byte pairs."""


class TextModel:
    """A model with its tokenizer.

    Fields:
        model: of transformers.
        tokenizer: its own.
        name: what it is called.
    """

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name

    @property
    def longest(self) -> int | None:
        """How many tokens the model was made for; None: it does not say."""
        stated = getattr(self.model.config, "max_position_embeddings", None)
        return int(stated) if isinstance(stated, int) and stated > 0 else None


def model_folder(path: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a model, looked at before anything is loaded.

    Args:
        path: as of `load`.

    Raises:
        DataError: there is no such folder, or no model in it.
        MissingPackageError: no path was given, and the small model is not installed.
    """
    folder = default_model_folder() if path is None else Path(path)
    try:
        (folder / "config.json").open("rb").close()
    except PermissionError:
        raise DataError(f"the model in {str(folder)!r} may not be read by this user. Change its permissions.") from None
    except OSError:
        raise DataError(
            f"{str(folder)!r} holds no model: there is no config.json. Name a folder that save_pretrained wrote."
        ) from None
    return folder


def load(path: str | os.PathLike[str] | None = None) -> TextModel:
    """Load a model and its tokenizer from a folder. Nothing is fetched, and no code that lies there is run.

    Args:
        path: a folder as `save_pretrained` writes it; None: the small sentence model.

    Raises:
        DataError: there is no such folder, or it holds no model with a tokenizer.
        MissingPackageError: transformers is not installed.
    """
    folder = model_folder(path)
    tokenizer, model = load_model(folder, writes=True)
    name = "all-MiniLM-L6-v2" if path is None else folder.resolve().name
    return TextModel(model, tokenizer, name)


def text_views(
    reader: TextModel,
    texts: Sequence[str],
    *,
    progress: Progress | None = None,
    together: bool = True,
    generate: int = 0,
    layers: Sequence[int] | None = None,
    memory: int | str = "1 GiB",
    say: Callable[[str], None] | None = None,
) -> list[View | TiledView]:
    """What every head of a model attends to in each text.

    Maps of all pairs are made where they fit the memory; of longer texts, maps in tiles.

    Args:
        reader: see `load`.
        texts: each by itself.
        progress: called after each.
        together: add maps of all heads together: their mean, rollout, and for short texts flow.
        generate: let the model write so many tokens, and look at what it looked at.
        layers: numbers of the layers of long texts; None: all.
        memory: what the maps of a text may take.
        say: told what a long text takes, before the model runs.

    Raises:
        DataError: a text is empty, or has more tokens than the model takes.
        OptionError: the model has no such layer.
        RefusedError: a long text does not fit the memory.

    Example:
        >>> views = text_views(load(), ["Hans said that he likes Mary"])  # doctest: +SKIP
        >>> views[0].layers[0].heads[:2]  # doctest: +SKIP
        ('head 0', 'head 1')
    """
    found: list[View | TiledView] = []
    _check_layers(reader, layers)
    for number, text in enumerate(texts):
        encoded, side = _encoded(reader, text)
        shown = text if len(text) <= 80 else text[:79] + "…"
        inputs = {name: value for name, value in encoded.items() if name in _taken(reader.model)}
        count = len(side.tokens)
        if generate:
            _refuse_longer(reader, count, generate)
            found += generation_views(reader, inputs, side, shown, generate)
        elif _whole(reader, count) <= memory_bytes(memory):
            if layers is not None and say is not None:
                say(f"{count:,} tokens are few: all layers are shown, and not only those of --layers")
            found += _views(reader, shown, inputs, side, together)
        else:
            _say_and_refuse(reader, count, layers, memory_bytes(memory), say)
            found.append(recorded_view(reader.model, inputs, side, name=shown, called=reader.name, layers=layers))
        if progress is not None:
            progress("reading", number + 1, len(texts))
    return found


def _check_layers(reader: TextModel, layers: Sequence[int] | None) -> None:
    count = model_dimensions(reader.model)[0]
    for layer in layers or ():
        if not 0 <= layer < count:
            raise OptionError(
                f"there is no layer {layer}: {reader.name} has {count}, counted from 0. Name one of them."
            )


def _refuse_longer(reader: TextModel, count: int, generate: int) -> None:
    both = getattr(reader.model.config, "is_encoder_decoder", False)
    total = max(count, generate) if both else count + generate
    if reader.longest is not None and total > reader.longest:
        raise DataError(
            f"a text of {count:,} tokens and {generate:,} that are written are more than the "
            f"{reader.longest:,} that {reader.name} takes. Generate fewer."
        )


def _say_and_refuse(
    reader: TextModel, count: int, layers: Sequence[int] | None, allowed: int, say: Callable[[str], None] | None
) -> None:
    all_layers, heads, width = model_dimensions(reader.model)
    chosen = all_layers if layers is None else len(layers)
    needed = heads_required_bytes(count, width, heads * chosen)
    what = f"{chosen} layers of {heads} heads over {count:,} tokens"
    if say is not None:
        say(f"{what}: about {memory_text(needed)} in tiles, {memory_text(allowed)} allowed")
    refuse(needed, allowed, what, "Name fewer layers (--layers 0,1), or allow more (--memory).")


def _whole(reader: TextModel, count: int) -> int:
    """Bytes of the maps of all pairs: weights as they come, and the byte of each that is kept."""
    layers, heads, _ = model_dimensions(reader.model)
    return 5 * layers * heads * count**2


def _encoded(reader: TextModel, text: str) -> tuple[Any, TokenAxis]:
    if not text.strip():
        raise DataError("a text is empty. Give it some words.")
    encoded = reader.tokenizer(text, return_tensors="pt", return_special_tokens_mask=True, verbose=False)
    count = encoded["input_ids"].shape[1]
    if reader.longest is not None and count > reader.longest:
        raise DataError(
            f"a text has {count:,} tokens, and {reader.name} takes {reader.longest:,}: {text[:40]!r}…. Shorten it."
        )
    return encoded, token_axis(reader.tokenizer, encoded)


def _views(
    reader: TextModel, name: str, inputs: dict[str, Any], side: TokenAxis, together: bool
) -> list[View | TiledView]:
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    model = reader.model
    if getattr(model.config, "is_encoder_decoder", False):
        # The text alone: what the decoder looks at is a matter of what it writes.
        model = model.get_encoder()
    with torch.no_grad(), record(model, [Dense()]) as seen:
        model(**inputs)
    maps = [(layer, calls[-1].readouts[0][0].float().numpy()) for layer, calls in seen.layers.items()]
    return [_view(name, reader.name, "self", side, maps, together)]


def _view(
    name: str, model: str, kind: str, side: TokenAxis, maps: list[tuple[str, np.ndarray]], together: bool
) -> View:
    layers = [LayerMaps.of(f"layer {i}", weights) for i, (_, weights) in enumerate(maps)]
    same = len({weights.shape for _, weights in maps}) == 1
    note = ""
    if together and kind == "self" and same:
        stacked = np.stack([weights for _, weights in maps])
        extra = {"mean": stacked.mean(axis=(0, 1)), "rollout": rollout(stacked)}
        if len(side.tokens) <= _MOST_FLOW:
            extra["flow"] = flow(stacked)
        else:
            note = (
                f"flow is left out: it is a maximum flow for each pair of tokens, and there are more than "
                f"{_MOST_FLOW} tokens"
            )
        layers.append(LayerMaps.of("together", np.stack(list(extra.values())), list(extra)))
    return View(name, model, kind, side, None, tuple(layers), note=note)


def token_axis(tokenizer: Any, encoded: Any) -> TokenAxis:
    """The words of an encoded text: tokens that can be read, and which of them make a word."""
    numbers = encoded["input_ids"][0].tolist()
    raw = tokenizer.convert_ids_to_tokens(numbers)
    special = set(tokenizer.all_special_ids)
    words = [
        -1 if word is None or number in special else int(word)
        for word, number in zip(_word_numbers(encoded, raw), numbers, strict=True)
    ]
    tokens, pieces = [], []
    for i, (number, token) in enumerate(zip(numbers, raw, strict=True)):
        if number in special:
            tokens.append(token)
            pieces.append(token)
            continue
        plain = tokenizer.convert_tokens_to_string([token]).strip() if token else ""
        # A piece of word-piece models is marked; that of byte models is read from its bytes.
        piece = token[2:] if token.startswith("##") else plain or token
        inside = i > 0 and words[i] >= 0 and words[i] == words[i - 1]
        tokens.append(f"##{piece}" if inside and not token.startswith("##") else token if inside else piece)
        pieces.append(piece)
    return TokenAxis(tuple(tokens), tuple(pieces), tuple(words), tuple(number in special for number in numbers))


def _word_numbers(encoded: Any, raw: list[str]) -> list[int | None]:
    try:
        return list(encoded.word_ids(0))
    except (ValueError, AttributeError):
        # A tokenizer written in Python does not say, and what was generated was never a text: pieces that
        # begin with ## go on, and where words begin with a mark, pieces without it do.
        marked = any(token.startswith(_BEGINS) for token in raw)
        numbers: list[int | None] = []
        for token in raw:
            inside = not token.startswith(_BEGINS) if marked else token.startswith("##")
            numbers.append(numbers[-1] if numbers and inside else len(numbers))
        return numbers


def _taken(model: Any) -> set[str]:
    import inspect

    return set(inspect.signature(model.forward).parameters)
