"""Sentence models: a text becomes the mean of what a Transformer makes of its tokens, at unit length.

    vector(text) = Σ_t h_t / ‖Σ_t h_t‖          h_t: the last hidden state of token t

so a vector is a sum over the words of its text, and an inner product of two texts a sum over pairs of words.

Source: Reimers and Gurevych (2019), Sentence-BERT, section 3 (mean pooling), https://arxiv.org/abs/1908.10084.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv.core.progress import Progress
from qkv.encoders.pretrained import default_model_folder, load_model
from qkv.errors import DataError

__all__ = ["SentenceModel"]


class SentenceModel:
    """A Transformer that makes vectors of texts, from a folder. Nothing is fetched, and no code there is run.

    Args:
        path: a folder as `save_pretrained` or sentence-transformers writes it; None: all-MiniLM-L6-v2, from
            its package.
        longest: tokens that are read of a text; None: what the folder says for sentences, or 256.
        batch: texts at once.

    Attributes:
        path: the folder; None where none was named.
        width: of the vectors.
        longest: tokens that are read of a text.

    Raises:
        DataError: the folder holds no model with a tokenizer, or one whose vectors are not means of tokens.
        MissingPackageError: transformers, torch or the package of the small model is not installed.

    Example:
        >>> vectors = SentenceModel().encode(["A cat sat.", "A kitten was sitting."])  # doctest: +SKIP
        >>> float(vectors[0] @ vectors[1])  # doctest: +SKIP
        0.82...
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, longest: int | None = None, batch: int = 32
    ) -> None:
        folder = default_model_folder() if path is None else Path(path)
        self.path = None if path is None else str(folder.resolve())
        self._tokenizer, self._model = _load(folder)
        _check_pooling(folder)
        self.width = int(self._model.config.hidden_size)
        most = int(getattr(self._model.config, "max_position_embeddings", 512) or 512)
        self.longest = min(longest or _stated_length(folder) or 256, most)
        self._batch = batch

    def encode(self, texts: Sequence[str], progress: Progress | None = None) -> np.ndarray:
        """One vector of unit length for each text, `(texts, width)`; zeros for an empty one.

        Args:
            texts: each as long as it likes; what is beyond `longest` tokens is not read.
            progress: called with what is done.
        """
        import torch

        found = np.zeros((len(texts), self.width), np.float32)
        # Of like length together, so that little is padded.
        order = sorted((at for at, text in enumerate(texts) if text.strip()), key=lambda at: len(texts[at]))
        for begin in range(0, len(order), self._batch):
            rows = order[begin : begin + self._batch]
            given = self._tokenized([texts[at] for at in rows])
            with torch.no_grad():
                states = self._model(**given).last_hidden_state
            sums = (states * given["attention_mask"][..., None].to(states.dtype)).sum(1).float().numpy()
            found[rows] = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
            if progress is not None:
                progress("encoding", begin + len(rows), len(order))
        return found

    def word_contributions(self, text: str) -> tuple[list[str], np.ndarray]:
        """The words of a text, and for each the part of the vector that it makes.

        Returns:
            Words in lower case, each once, "" for the model's own tokens; and `(words, width)`, whose sum is
            the vector.
        """
        import torch

        if not text.strip():
            return [], np.zeros((0, self.width))
        with torch.no_grad():
            given = self._tokenized([text])
            states = self._model(**given).last_hidden_state[0].double().numpy()
        states = states / max(float(np.linalg.norm(states.sum(axis=0))), 1e-12)
        pieces = self._tokenizer(text, truncation=True, max_length=self.longest, return_offsets_mapping=True)
        parts: dict[str, np.ndarray] = {}
        for state, word in zip(states, _words(text, pieces), strict=True):
            parts[word] = parts.get(word, 0) + state
        return list(parts), np.stack(list(parts.values()))

    def _tokenized(self, texts: list[str]) -> Any:
        return self._tokenizer(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")


def _words(text: str, pieces: Any) -> list[str]:
    """The word that each token is a piece of, in lower case; "" for tokens of the model's own."""
    numbers, spans = pieces.word_ids(), pieces["offset_mapping"]
    limits: dict[int, tuple[int, int]] = {}
    for number, (start, end) in zip(numbers, spans, strict=True):
        if number is not None:
            first, last = limits.get(number, (start, end))
            limits[number] = min(first, start), max(last, end)
    words = {number: text[start:end].strip().lower() for number, (start, end) in limits.items()}
    return ["" if number is None else words[number] for number in numbers]


def _load(folder: Path) -> tuple[Any, Any]:
    tokenizer, model = load_model(folder)
    if getattr(model.config, "is_encoder_decoder", False):
        raise DataError(f"the model in {str(folder)!r} has a decoder. Name one that only encodes.")
    return tokenizer, model


def _settings(path: Path) -> dict[str, Any]:
    import json

    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _stated_length(folder: Path) -> int | None:
    stated = _settings(folder / "sentence_bert_config.json").get("max_seq_length")
    return stated if isinstance(stated, int) and stated > 0 else None


def _check_pooling(folder: Path) -> None:
    """Sentence-transformers writes how tokens become one vector; a mean is what is done here."""
    pooling = _settings(folder / "1_Pooling" / "config.json")
    mean = not pooling or pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode") == "mean")
    if not mean or (folder / "2_Dense").is_dir():
        raise DataError(
            f"the model in {str(folder)!r} makes its vectors in another way than by the mean of its tokens. "
            "Name one whose 1_Pooling/config.json says mean, without a layer after it."
        )
