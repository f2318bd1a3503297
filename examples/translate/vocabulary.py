"""Subwords by byte-pair encoding, learned from the training side only.

Source: Sennrich, Haddow, Birch (2016), Neural machine translation of rare words with subword units,
https://arxiv.org/abs/1508.07909. The base vocabulary is bytes, so that every sentence can be encoded.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from examples.translate.files import write
from qkv.errors import DataError, MissingPackageError, OptionError

__all__ = ["BEGIN", "END", "PAD", "Vocabulary"]

PAD, BEGIN, END = 0, 1, 2
_SMALLEST = 3 + 256


class Vocabulary:
    """Subword tokenizer.

    Args:
        tokenizer: tokenizer of the package `tokenizers`, from `learn` or `load`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        # "<end>" in a sentence is text, not the special token.
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int) -> "Vocabulary":
        """Learn at most `size` subwords, including the special tokens for padding, begin and end.

        Raises:
            OptionError: the size is smaller than the number of bytes and special tokens.
            MissingPackageError: tokenizers is not installed.
        """
        if size < _SMALLEST:
            raise OptionError(f"--vocabulary must be at least {_SMALLEST}, which includes every byte, got {size}.")
        tokenizers = _package()
        models, trainers = tokenizers.models, tokenizers.trainers
        bytewise = tokenizers.pre_tokenizers.ByteLevel
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = bytewise(add_prefix_space=True)
        made.decoder = tokenizers.decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=["<pad>", "<begin>", "<end>"],
            initial_alphabet=sorted(bytewise.alphabet()),
            show_progress=False,
        )
        made.train_from_iterator(sentences, trainer)
        return cls(made)

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a vocabulary that `save` wrote.

        Raises:
            DataError: the file does not exist or is damaged.
        """
        tokenizers = _package()
        try:
            return cls(tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8")))
        except Exception as error:  # tokenizers raises instances of Exception itself
            raise DataError(f"the vocabulary {str(path)!r} cannot be read: {error}.") from None

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        text = self._tokenizer.to_str(pretty=True)
        write(path, text.encode())

    def __len__(self) -> int:
        """Return the number of subwords."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each sentence, followed by END."""
        return [[*one.ids, END] for one in self._tokenizer.encode_batch(list(sentences))]

    def decode(self, numbers: Sequence[Sequence[int]]) -> list[str]:
        """Return the sentences without the special tokens."""
        return [text.strip() for text in self._tokenizer.decode_batch([list(one) for one in numbers])]

    def pieces(self, numbers: Sequence[int]) -> list[str]:
        """Return a readable form of each token: "·" marks the beginning of a word, "END" the end of the sentence."""
        named = {PAD: "PAD", BEGIN: "BEGIN", END: "END"}
        texts = [self._tokenizer.decode([number]) for number in numbers]
        return [
            named.get(number) or (f"·{text[1:]}" if text.startswith(" ") else text)
            for number, text in zip(numbers, texts, strict=True)
        ]


def _package() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise MissingPackageError(
            'tokenizers must be installed for subwords. Run: pip install "qkv[hf,look]"'
        ) from None
    return tokenizers
