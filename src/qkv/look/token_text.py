r"""Text of single tokens, as their tokenizer defines them.

Tokens of byte-level encodings, such as those of GPT-2 and Llama 3, are bytes: a leading space is shown as ␣, and bytes
that are only a part of a character as \xc3. Marks of other tokenizers are kept: ##ness of WordPiece, ▁the of
SentencePiece.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_SPACES = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether the tokens of a tokenizer are bytes, written by the alphabet of GPT-2."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return hasattr(tokenizer, "byte_decoder") or "ByteLevel" in repr(decoder)


def shown_bytes(token: str) -> str:
    r"""Return the text of a byte-level token with visible spaces.

    Example:
        >>> shown_bytes("Ġhello"), shown_bytes("Ã"), shown_bytes("ĊĊ")
        ('␣hello', '\\xc3', '↵↵')
    """
    return _to_bytes(token).decode("utf-8", errors="backslashreplace").translate(_SPACES)


def shortened(text: str, length: int) -> str:
    """Return a text, of which the end is replaced by … if it has more characters than `length`."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def word_pieces(tokens: Sequence[str], words: Sequence[int]) -> list[str]:
    """Return the text that each byte-level token adds to its word, without the space before the word.

    A character of several tokens belongs to the last of them.

    Example:
        >>> word_pieces(["Ġcaf", "Ã", "©"], [0, 0, 0])
        ['caf', '', 'é']
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces: list[str] = []
    empty = True
    for i, token in enumerate(tokens):
        starts = i == 0 or words[i] < 0 or words[i] != words[i - 1]
        ends = i + 1 == len(tokens) or words[i] < 0 or words[i] != words[i + 1]
        if starts:
            decoder.reset()
            empty = True
        piece = decoder.decode(_to_bytes(token), final=ends)
        # A word that is only a space keeps it.
        text = piece.lstrip() or (piece if ends else "") if empty else piece
        empty = empty and not text
        pieces.append(text)
    return pieces


def _to_bytes(token: str) -> bytes:
    alphabet = _alphabet()
    # Tokens that were added to the vocabulary are written as text.
    return b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode("utf-8", "replace") for c in token)


@cache
def _alphabet() -> dict[str, int]:
    """Return the byte of each letter: printable bytes stand for themselves, the others for the letters from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
