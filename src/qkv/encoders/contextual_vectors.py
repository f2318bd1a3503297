"""Encode words in their text with a pretrained Transformer.

    vector(word) = mean of h_t over the tokens t of the word          h_t: a hidden state of token t, see `layer`

The same word has different vectors in different texts, because attention adds parts of the vectors of other words.

Source: Devlin, Chang, Lee and Toutanova (2019), BERT, section 5.3 (hidden states as features) and the overlapping
windows of long texts of its programs for question answering, https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from qkv.core.checks import check_integers
from qkv.core.progress import Progress, report
from qkv.core.typing import Float
from qkv.encoders.pretrained import default_model_folder, load_model, max_positions, max_sequence_length
from qkv.encoders.word_spans import WordChoice, WordSpan, find_word, split_words
from qkv.errors import DataError, KindError, OptionError, QkvError, ShapeError
from qkv.kernels.runtime.context import with_torch_defaults

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_DEFAULT_LENGTH = 512


class _Window(NamedTuple):
    """Tokens of a part of a text that the model encodes at once.

    `spans` holds the range of characters of each token; that of a special token is empty.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...] | None
    spans: tuple[tuple[int, int], ...]

    def tokens(self, word: WordSpan) -> list[int]:
        """Return the positions of the tokens that share a character with a word."""
        return [at for at, (start, stop) in enumerate(self.spans) if max(start, word.start) < min(stop, word.stop)]


class _Place(NamedTuple):
    """Tokens of a word: positions in a window of a text."""

    window: _Window
    tokens: list[int]


class ContextualVectors:
    """Vectors of words in their texts: means of hidden states over the tokens of a word.

    Nothing is downloaded, and no code in the folder is run. Every model that `transformers.AutoModel` loads with a fast
    tokenizer is supported; of an encoder-decoder the encoder is used. A token of a causal decoder depends on the
    preceding tokens only.

    A text of more than `longest` tokens is split into windows of `longest` tokens, each sharing `overlap` tokens with
    the next. A word is read in the window in which the smaller of its two distances to a cut is largest. Therefore the
    vector of a word depends on about `overlap` / 2 tokens or more on each side of it, as far as the text has them.

    Args:
        path: a folder that `save_pretrained` or sentence-transformers wrote; None for all-MiniLM-L6-v2 from
            its package.
        layer: index of the hidden state: 0 is the input of the first layer, 1 the output of the first layer, -1 the
            output of the last one; or several indices, whose mean is used.
        longest: maximum number of tokens of a window, special tokens included; None for the maximum in the
            configuration of the model (256 for all-MiniLM-L6-v2), or 512.
        overlap: number of tokens that consecutive windows share; None for half of a window.
        batch: number of windows per batch.

    Attributes:
        width: number of elements of each vector, the hidden size of the model.
        layers: number of layers of the model.
        longest: maximum number of tokens of a window.
        overlap: number of tokens that consecutive windows share.

    Raises:
        DataError: the folder contains no model, or one without a fast tokenizer.
        OptionError: an argument is out of range.
        MissingPackageError: transformers, torch or the package of the default model is not installed.

    Example:
        >>> words = ContextualVectors()  # doctest: +SKIP
        >>> texts = ["We sat on the bank of the river.", "Reeds grow on its bank.", "The bank raised its rates."]
        >>> river, reeds, money = words.encode(texts, "bank")  # doctest: +SKIP
        >>> cosine(river, reeds) > cosine(river, money)  # doctest: +SKIP
        True
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        layer: int | Sequence[int] = -1,
        longest: int | None = None,
        overlap: int | None = None,
        batch: int = 32,
    ) -> None:
        check_integers(longest=longest, batch=batch)
        check_integers(0, overlap=overlap)
        folder = default_model_folder() if path is None else Path(path)
        self._tokenizer, model = load_model(folder)
        self._model = _encoder(model)
        if not self._tokenizer.is_fast:
            raise DataError(
                f"the tokenizer in {str(folder)!r} must be fast (tokenizer.json), because others do not locate tokens "
                "in the text, got a slow one. Choose another model."
            )
        self.width = int(model.config.hidden_size)
        self.layers = int(model.config.num_hidden_layers)
        self._layers = _check_layers(layer, self.layers)
        limit = min(max_positions(model) or 10**9, int(self._tokenizer.model_max_length))
        if longest is not None and longest > limit:
            raise OptionError(
                f"longest must be at most {limit}, the limit of the model, got {longest}. Longer texts "
                "are read in windows."
            )
        self.longest = longest or min(max_sequence_length(folder) or _DEFAULT_LENGTH, limit)
        content = self.longest - self._tokenizer.num_special_tokens_to_add()
        self.overlap = max(content, 0) // 2 if overlap is None else overlap
        if content < 1 or self.overlap >= content:
            raise OptionError(
                f"longest must exceed overlap by at least {self.longest - content + 1}, got longest={self.longest} and "
                f"overlap={self.overlap}. Increase longest, or decrease overlap."
            )
        self._batch = batch

    def vector(self, text: str, word: WordChoice, occurrence: int = 0) -> Float[np.ndarray, " width"]:
        """Return the vector of one word of a text, in float32. The arguments are those of `find`.

        Raises:
            DataError: the text has no such word.
        """
        return cast("Float[np.ndarray, ' width']", self.encode([text], [word], occurrence)[0])

    def encode(
        self,
        texts: Sequence[str],
        words: WordChoice | Sequence[WordChoice],
        occurrence: int | Sequence[int] = 0,
        *,
        progress: Progress | None = None,
    ) -> Float[np.ndarray, "words width"]:
        """Return the vector of one word of each text, in float32.

        Args:
            texts: texts. For several words of a text, repeat the text; it is encoded once.
            words: the word of each text, or one word for all texts, as described in `find`.
            occurrence: index of the occurrence of a spelling, for each text or for all.
            progress: called after each batch.

        Raises:
            DataError: a text has no such word.
            ShapeError: the numbers of texts and of words or occurrences differ.
        """
        states = self.encode_layers(texts, words, occurrence, progress=progress)
        return np.asarray(states[:, self._layers].mean(axis=1))

    def encode_layers(
        self,
        texts: Sequence[str],
        words: WordChoice | Sequence[WordChoice],
        occurrence: int | Sequence[int] = 0,
        *,
        progress: Progress | None = None,
    ) -> Float[np.ndarray, "words states width"]:
        """Return the vectors of one word of each text before the first layer and after each layer.

        The arguments are those of `encode`.
        """
        if isinstance(texts, str):
            raise KindError(f"texts must be a list of texts, got the string {texts[:40]!r}. Pass the text in a list.")
        chosen = _one_each("words", words, len(texts), isinstance(words, str | int) or _is_range(words))
        numbers = _one_each("occurrences", occurrence, len(texts), not isinstance(occurrence, Sequence))
        spans = []
        for at, (text, word, number) in enumerate(zip(texts, chosen, numbers, strict=True)):
            try:
                spans.append(find_word(text, cast("WordChoice", word), cast("int", number)))
            except QkvError as error:
                raise type(error)(f"{error} The text is texts[{at}].") from None
        return self._encode_spans(texts, spans, progress)

    def encode_text(
        self, text: str, *, progress: Progress | None = None
    ) -> tuple[list[WordSpan], Float[np.ndarray, "words width"]]:
        """Return all words of a text with their places, and their vectors in float32."""
        spans = split_words(text)
        states = self._encode_spans([text] * len(spans), spans, progress)
        return spans, states[:, self._layers].mean(axis=1)

    @staticmethod
    def words(text: str) -> list[WordSpan]:
        """Return the words of a text with their ranges of characters, in the order in which an index counts them."""
        return split_words(text)

    @staticmethod
    def find(text: str, word: WordChoice, occurrence: int = 0) -> WordSpan:
        """Return the place of a word in a text.

        Args:
            text: the text.
            word: the spelling of a word or phrase, which is found as a whole word, as written or else in any case; its
                index among `words(text)`, negative from the end; or its range of characters `(start, stop)`.
            occurrence: index of the occurrence of a spelling, negative from the end.

        Raises:
            DataError: the text has no such word.

        Example:
            >>> ContextualVectors.find("The bank by the bank of the river", "bank", occurrence=-1)
            WordSpan(word='bank', start=16, stop=20)
        """
        return find_word(text, word, occurrence)

    def __str__(self) -> str:
        return f"words in their texts, {self.width} numbers, windows of {self.longest} tokens"

    @with_torch_defaults
    def _encode_spans(
        self, texts: Sequence[str], spans: Sequence[WordSpan], progress: Progress | None
    ) -> Float[np.ndarray, "words states width"]:
        encoded = np.zeros((len(texts), 1 + self.layers, self.width), np.float32)
        windows = {text: self._windows(text) for text in dict.fromkeys(texts)}
        by_window: dict[_Window, list[tuple[int, list[int]]]] = {}
        for at, (text, span) in enumerate(zip(texts, spans, strict=True)):
            for place in _places(windows[text], span):
                by_window.setdefault(place.window, []).append((at, place.tokens))
        counts = np.zeros(len(texts), np.int64)
        for window, states in self._run(list(by_window), progress):
            for at, tokens in by_window[window]:
                encoded[at] += states[:, tokens].sum(axis=1)
                counts[at] += len(tokens)
        if not counts.all():
            word = spans[int(counts.argmin())].word
            raise DataError(
                f"word must have a token, got {word!r}, for which the tokenizer has none. Choose another word or model."
            )
        encoded /= counts[:, None, None]
        return encoded

    def _windows(self, text: str) -> list[_Window]:
        tokens = self._tokenizer(
            text,
            truncation=True,
            max_length=self.longest,
            stride=self.overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        ids, spans = tokens["input_ids"], tokens["offset_mapping"]
        segments = tokens["token_type_ids"] if "token_type_ids" in tokens else [None] * len(ids)
        return [
            _Window(tuple(row), None if kinds is None else tuple(kinds), tuple(map(tuple, places)))
            for row, kinds, places in zip(ids, segments, spans, strict=True)
        ]

    def _run(
        self, windows: list[_Window], progress: Progress | None
    ) -> Iterator[tuple[_Window, Float[np.ndarray, "states tokens width"]]]:
        """Yield each window with its hidden states before the first layer and after each layer."""
        import torch

        # Windows of similar length need little padding.
        order = sorted(windows, key=lambda window: len(window.ids))
        for begin in range(0, len(order), self._batch):
            batch = order[begin : begin + self._batch]
            ids = torch.full((len(batch), len(batch[-1].ids)), self._tokenizer.pad_token_id or 0)
            mask, segments = torch.zeros_like(ids), torch.zeros_like(ids)
            for row, window in enumerate(batch):
                ids[row, : len(window.ids)] = torch.tensor(window.ids)
                mask[row, : len(window.ids)] = 1
                if window.segments is not None:
                    segments[row, : len(window.ids)] = torch.tensor(window.segments)
            extra = {} if batch[0].segments is None else {"token_type_ids": segments}
            with torch.no_grad():
                outputs = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True, **extra)
            states = torch.stack(outputs.hidden_states, dim=1).float().numpy()
            for row, window in enumerate(batch):
                yield window, states[row, :, : len(window.ids)]
            report(progress, "encoding", begin + len(batch), len(order))


def _places(windows: list[_Window], span: WordSpan) -> list[_Place]:
    """Return the tokens of a word in the window with the most context on the word's shorter side.

    If no window holds all characters that tokens of the word cover, each token is taken from its own best window.
    """
    found = [(number, window.tokens(span)) for number, window in enumerate(windows)]
    covered = {window.spans[at] for (_, tokens), window in zip(found, windows, strict=True) for at in tokens}
    whole = [
        (number, tokens)
        for number, tokens in found
        if tokens and {windows[number].spans[at] for at in tokens} == covered
    ]
    if whole:
        number, tokens = max(whole, key=lambda pair: _context(windows, *pair))
        return [_Place(windows[number], tokens)]
    parts = []
    for piece in sorted(covered):
        holders = [
            (number, [at for at in tokens if windows[number].spans[at] == piece])
            for number, tokens in found
            if any(windows[number].spans[at] == piece for at in tokens)
        ]
        number, tokens = max(holders, key=lambda pair: _context(windows, *pair))
        parts.append(_Place(windows[number], tokens))
    return parts


def _context(windows: list[_Window], number: int, tokens: list[int]) -> float:
    """Return the smaller of the numbers of tokens between a word and each cut of its window; infinity without cuts."""
    before = tokens[0] if number else np.inf
    after = len(windows[number].ids) - 1 - tokens[-1] if number + 1 < len(windows) else np.inf
    return float(min(before, after))


def _encoder(model: PreTrainedModel) -> PreTrainedModel:
    return cast("PreTrainedModel", model.get_encoder()) if model.config.is_encoder_decoder else model


def _check_layers(layer: int | Sequence[int], layers: int) -> list[int]:
    chosen = list(layer) if isinstance(layer, Sequence) else [layer]
    wrong = [n for n in chosen if isinstance(n, bool) or not isinstance(n, int) or not -layers <= n + 1 <= layers + 1]
    if wrong or not chosen:
        raise OptionError(
            f"layer must be an index from {-layers - 1} to {layers}, or several, got {layer!r}. The model has {layers} "
            "layers; 0 is the input of the first one."
        )
    return chosen


def _is_range(words: object) -> bool:
    return isinstance(words, tuple) and all(isinstance(end, int | np.integer) for end in words)


def _one_each(name: str, given: object, count: int, single: bool) -> list[object]:
    if single or isinstance(given, np.integer) or not isinstance(given, Sequence):
        return [given] * count
    if len(given) != count:
        raise ShapeError(
            f"{name} must be one for all texts or one for each of the {count} texts, got {len(given)}. Repeat a text "
            "for each of its words."
        )
    return list(given)
