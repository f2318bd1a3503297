"""Load Hugging Face models with their tokenizers, and split texts into tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.encoders.pretrained import default_model_folder, load_model
from qkv.errors import DataError
from qkv.look.axis import Axis, text_spans
from qkv.look.token_text import is_byte_level, shown_bytes, word_pieces

if TYPE_CHECKING:
    import torch
    from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

    from qkv.core.typing import Int


_WORD_STARTS = ("▁", "Ġ")
"""Prefixes of the first token of a word in SentencePiece and in byte-pair encodings."""


@dataclass(frozen=True)
class TextModel:
    """A transformers model with its tokenizer and the name under which it is displayed."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    @property
    def encoder_decoder(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @property
    def max_tokens(self) -> int | None:
        """The context length of the model in tokens, or None if the configuration of the model does not define it."""
        config = self.model.config
        stated = getattr(getattr(config, "encoder", config), "max_position_embeddings", None)
        return int(stated) if isinstance(stated, int) and stated > 0 else None


def model_folder(path: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of a model folder, after checking that the folder contains a readable config.json.

    Raises:
        DataError: the folder does not exist, or contains no model.
        MissingPackageError: no path was given, and the sentence model is not installed.
    """
    folder = default_model_folder() if path is None else Path(path)
    try:
        (folder / "config.json").open("rb").close()
    except PermissionError:
        raise DataError(f"the model folder must be readable, got {str(folder)!r}. Change its permissions.") from None
    except OSError:
        raise DataError(
            f"the model folder must contain config.json, got {str(folder)!r}. Name a folder written by save_pretrained."
        ) from None
    return folder


def load_text_model(path: str | os.PathLike[str] | None = None) -> TextModel:
    """Load a model and its tokenizer from a folder, without network access and without executing code in the folder."""
    folder = model_folder(path)
    tokenizer, model = load_model(folder, lm_head=True)
    name = "all-MiniLM-L6-v2" if path is None else folder.resolve().name
    return TextModel(model, tokenizer, name)


def token_axis(
    tokenizer: PreTrainedTokenizerBase,
    encoded: BatchEncoding | Mapping[str, Int[torch.Tensor, "1 tokens"]],
    texts: Sequence[str] = (),
) -> Axis:
    """Return the tokens of one or two encoded texts, with the word and the characters to which each belongs."""
    numbers = encoded["input_ids"][0].tolist()
    raw = list(tokenizer.convert_ids_to_tokens(numbers))
    special = set(tokenizer.all_special_ids)
    # The words of the second text of a pair are counted from 0 again.
    sequences = _sequence_numbers(encoded, len(numbers))
    words = [
        -1 if word is None or number in special else int(word) + len(numbers) * max(0, sequence)
        for word, number, sequence in zip(_word_numbers(encoded, raw), numbers, sequences, strict=True)
    ]
    marks = [number in special for number in numbers]
    if is_byte_level(tokenizer):
        tokens = [token if mark else shown_bytes(token) for token, mark in zip(raw, marks, strict=True)]
        shown = word_pieces(raw, words)
    else:
        tokens = raw
        shown = [token.removeprefix("##").removeprefix("▁") or token for token in raw]
    pieces = [token if mark else text for token, mark, text in zip(raw, marks, shown, strict=True)]
    segments = tuple(sequences) if 1 in sequences else None
    axis = Axis(tuple(tokens), tuple(pieces), tuple(words), tuple(marks), segments=segments)
    encodings = getattr(encoded, "encodings", None)  # None for slow tokenizers
    if not texts or not encodings:
        return axis
    text, spans = text_spans(texts, encodings[0].offsets, sequences)
    return replace(axis, text=text, spans=spans)


def _sequence_numbers(encoded: BatchEncoding | Mapping[str, Int[torch.Tensor, "1 tokens"]], count: int) -> list[int]:
    """Return the index of the text of each token, 0 or 1; −1 for special tokens."""
    if hasattr(encoded, "sequence_ids"):
        with suppress(ValueError):  # slow tokenizers record only segment ids
            return [-1 if one is None else int(one) for one in encoded.sequence_ids(0)]
    if "token_type_ids" in encoded and "special_tokens_mask" in encoded:
        pairs = zip(encoded["token_type_ids"][0].tolist(), encoded["special_tokens_mask"][0].tolist(), strict=True)
        return [-1 if special else int(segment) for segment, special in pairs]
    return [0] * count


def _word_numbers(
    encoded: BatchEncoding | Mapping[str, Int[torch.Tensor, "1 tokens"]], raw: list[str]
) -> list[int | None]:
    if hasattr(encoded, "word_ids"):
        with suppress(ValueError):  # slow tokenizers do not record the word of each token
            return list(encoded.word_ids(0))
    marked = any(token.startswith(_WORD_STARTS) for token in raw)
    numbers: list[int | None] = []
    for token in raw:
        continues = not token.startswith(_WORD_STARTS) if marked else token.startswith("##")
        numbers.append(numbers[-1] if numbers and continues else len(numbers))
    return numbers


def model_dimensions(model: PreTrainedModel) -> tuple[int, int, int]:
    """Return the numbers of layers, of heads per layer and of features per head of a transformers model."""
    config = model.config
    layers = int(getattr(config, "num_hidden_layers", 1))
    heads = int(getattr(config, "num_attention_heads", 1))
    width = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 64) // heads
    return layers, heads, int(width)
