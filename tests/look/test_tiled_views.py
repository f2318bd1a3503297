"""Tiled views of saved arrays and of models, compared with the dense weights, within the predicted memory."""

from dataclasses import replace

import numpy as np
import pytest

from qkv.errors import DataError, RefusedError, ShapeError
from qkv.look.axis import Axis
from qkv.look.page import Page
from qkv.look.text_roles import mark_roles
from qkv.look.tiled_views import arrays_required_bytes, arrays_view, check_memory, heads_required_bytes, read_array

torch = pytest.importorskip("torch")


def arrays(heads, key_heads, q, k, width=8):
    rng = np.random.default_rng(3)
    return [rng.normal(size=(h, n, width)).astype(np.float32) for h, n in ((heads, q), (key_heads, k))]


def weights(query, key, causal):
    logits = query.astype(float) @ key.astype(float).T / np.sqrt(query.shape[-1])
    q, k = logits.shape
    if causal:
        logits = np.where(np.arange(k) <= np.arange(q)[:, None] + k - q, logits, -np.inf)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
def test_saved_arrays_become_the_maps_of_their_heads(tmp_path, causal):
    query, key = arrays(4, 2, 150, 200)
    np.save(tmp_path / "query.npy", query)
    np.save(tmp_path / "key.npy", key.astype(np.float64))
    read = [read_array(tmp_path / f"{name}.npy") for name in ("query", "key")]
    view = arrays_view(*read, causal=causal)
    for head in range(4):
        found = view.head(0, head).weights((0, 150), (0, 200))
        assert np.allclose(found, weights(query[head], key[head // 2], causal), atol=1e-6)
    assert view.meta()["queries"] == {"count": 150}
    assert view.meta()["keys"] == {"count": 200}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (np.zeros(3), "(tokens, width)"),
        (np.array([["a"]]), "must be numeric"),
        (np.array([[object()]], dtype=object), "must be in .npy format"),
        (np.zeros((0, 4)), "got shape (0, 4)"),
        (b"<script>alert(1)</script>", "must be in .npy format"),
        (None, "must be readable"),
    ],
)
def test_a_file_without_a_suitable_array_is_refused(tmp_path, content, says):
    path = tmp_path / "a.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(DataError) as caught:
        read_array(path)
    assert says in str(caught.value)


def test_heads_and_widths_that_do_not_fit_are_refused():
    query, key = arrays(3, 2, 5, 5)
    with pytest.raises(ShapeError, match="multiple"):
        arrays_view(query, key)
    with pytest.raises(ShapeError, match="widths"):
        arrays_view(query[..., :4], key[:1])


def test_a_map_over_the_memory_limit_is_refused_in_advance():
    query = np.zeros((12, 5000, 4), np.float32)
    needed = arrays_required_bytes(query, query)
    overviews = 12 * (2 * 1024**2 * 4 + 5000 * 4)
    assert overviews <= needed < 2 * overviews
    with pytest.raises(RefusedError, match=r"for 12 heads, got 100 MiB\. Save fewer"):
        check_memory(needed, 100 * 2**20, "12 heads", "Save fewer.")
    check_memory(needed, needed, "12 heads", "Save fewer.")
    # Query and key of 64 numbers each, the total, and an overview of 512 x 512, twice.
    assert heads_required_bytes(16_384, 64, 1) == 4 * 16_384 * 129 + 8 * 512**2 + 4 * 16_384


@pytest.fixture(scope="module")
def reader():
    transformers = pytest.importorskip("transformers")
    from qkv.look.text_model import TextModel

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=4096,
    )
    return TextModel(transformers.BertModel(config).eval(), tokenizer(transformers), "tiny")


def tokenizer(transformers):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {name: number for number, name in enumerate(["[UNK]", "[PAD]", "[EOS]", *"abcdefghij"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="[UNK]", pad_token="[PAD]", eos_token="[EOS]"
    )


def test_a_text_whose_maps_do_not_fit_the_memory_comes_in_tiles_with_the_same_weights(reader):
    from qkv.look.text_views import text_views

    text = " ".join("abcdefghij"[i * i % 10] for i in range(700))
    (short,) = text_views(reader, [text], all_heads=False)
    said = []
    (long,) = text_views(reader, [text], memory="4 MiB", layers=[0, 2], notify=said.append)
    assert said == ["2 layers of 2 heads over 700 tokens take about 2.19 MiB in tiles; the limit is 4 MiB"]
    assert [name for name, _ in long.layers] == ["layer 0", "layer 2"]
    for layer, number in ((0, 0), (1, 2)):
        for head in range(2):
            found = long.head(layer, head).weights((0, 700), (0, 700))
            assert np.allclose(found, short.weights(number, head), rtol=5.1e-3)
            assert np.allclose(found.sum(axis=1), 1, atol=1e-5)
    assert long.queries == Axis.from_words(text.split())


def test_a_long_text_over_the_memory_limit_is_refused_with_advice(reader):
    from qkv.look.text_views import text_views

    with pytest.raises(RefusedError, match="--layers"):
        text_views(reader, ["a b " * 500], memory="1 MiB")


def test_a_long_text_opens_on_the_head_with_a_role_in_its_first_tokens():
    words = [f"w{i}" for i in range(298)] + ["dog", "barked"]
    places = 40 * np.eye(300, dtype=np.float32)
    previous = np.roll(places, -1, axis=0)  # the key of each token is the query of the next one
    view = arrays_view(np.stack([0 * places, places]), np.stack([places, previous]))
    view = replace(view, queries=Axis.from_words(words))
    dense = view.beginning(256)
    assert np.allclose(dense.weights(0, 1), view.head(0, 1).weights((0, 256), (0, 256)), rtol=1e-3, atol=1e-9)
    marked = mark_roles(view)
    meta = marked.coarser().meta()
    assert (meta["opening"]["layer"], meta["opening"]["head"]) == (0, 1)
    assert [role["role"] for role in meta["roles"]["0,1"]] == ["previous"]
    assert meta["note"] == "Roles are those in the first 256 tokens."
    assert mark_roles(arrays_view(places[None], places[None])).opening is None  # numbers are no words


def test_a_map_of_very_many_sentences_is_refused_before_it_is_computed():
    rows = np.zeros((2001, 2), np.float32)
    view = replace(arrays_view(rows, rows), queries=Axis.from_words([f"W{i}." for i in range(2001)]))
    with pytest.raises(LookupError, match="fewer than 2,000 sentences, got 2,001"):
        Page.from_views(view).read("sentences", (0, 0, 0))
