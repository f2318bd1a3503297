"""Tokens of byte-level, WordPiece and SentencePiece tokenizers."""

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from qkv.look.text_model import token_axis  # noqa: E402


def fast(model, pre_tokenizer, decoder, **options):
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer, plain.decoder = pre_tokenizer, decoder
    return transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **options)


def words_of(axis):
    """Return the text of each word, as the page merges its tokens."""
    groups = {}
    for word, piece in zip(axis.words, axis.pieces, strict=True):
        groups.setdefault(word, []).append(piece)
    return ["".join(pieces) for pieces in groups.values()]


def test_byte_level_tokens_show_their_spaces_and_bytes():
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: i for i, letter in enumerate(sorted(alphabet))} | {"Ġt": 256, "Ġth": 257, "Ġthe": 258}
    model = tokenizers.models.BPE(vocabulary, [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e")])
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = fast(model, level, tokenizers.decoders.ByteLevel(), eos_token="<|end|>")
    text = "a the é🙂\n<|end|>"
    axis = token_axis(tokenizer, tokenizer(text, return_tensors="pt"))
    assert axis.tokens[:3] == ("a", "␣the", "␣")
    assert axis.tokens[3:5] == ("\\xc3", "\\xa9")
    assert axis.tokens[-2:] == ("↵", "<|end|>")
    assert axis.special == (False,) * (len(axis.tokens) - 1) + (True,)
    assert "".join(words_of(axis)).replace("\n", "") == "atheé🙂<|end|>"


def test_wordpiece_tokens_keep_their_marks():
    vocabulary = {"[UNK]": 0, "un": 1, "##happi": 2, "##ness": 3, "is": 4}
    model = tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")
    whitespace = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = fast(model, whitespace, tokenizers.decoders.WordPiece(), unk_token="[UNK]")
    axis = token_axis(tokenizer, tokenizer("unhappiness is", return_tensors="pt"))
    assert axis.tokens == ("un", "##happi", "##ness", "is")
    assert words_of(axis) == ["unhappiness", "is"]
