"""Difference, search, changed heads, predictions and pairs, compared with known weights and with plain PyTorch."""

import copy
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import look
from qkv.errors import DataError, KindError, OptionError, ShapeError
from qkv.look.axis import Axis
from qkv.look.difference import rank_differences
from qkv.look.page import Page
from qkv.look.tiled_views import arrays_view
from qkv.look.token_groups import align_tokens, find_phrase
from tests.effort import cases

PIECES = Axis(
    ("[CLS]", "Hans", "un", "##happi", "##ly", "saw", "hans", "[SEP]"),
    ("[CLS]", "Hans", "un", "happi", "ly", "saw", "hans", "[SEP]"),
    (-1, 0, 1, 1, 1, 2, 3, -1),
    (True, False, False, False, False, False, False, True),
)


def random_weights(rng, layers, heads, q, k):
    return rng.dirichlet(np.full(k, 0.4), (layers, heads, q))


def rounded(weights):
    return np.array([float(f"{x:.2e}") for x in weights.ravel()]).reshape(weights.shape)


def test_the_difference_of_two_views_is_that_of_their_weights_at_common_tokens():
    rng = np.random.default_rng(0)
    first, second = (random_weights(rng, 2, 3, n, n) for n in (5, 6))
    a = look.View.from_weights(first, ["the", "dog", "was", "happy", "."])
    b = look.View.from_weights(second, ["the", "old", "dog", "was", "sad", "."])
    found = look.difference(a, b)
    assert found.query_names == ("the", "dog", "was", "happy | sad", ".")
    rows = [0, 2, 3, 4, 5]
    wanted = rounded(first) - rounded(second)[..., rows, :][..., rows]
    for layer in range(2):
        assert np.allclose(found.weights[layer], wanted[layer], atol=1e-12)
        exact = first[layer] - second[layer][:, rows][..., rows]
        assert (np.abs(found.weights[layer] - exact) <= found.error[layer] + 1e-15).all()
    # "old" has no counterpart: its weight in the second text moved.
    moved = np.abs(wanted).sum(axis=-1) + rounded(second)[..., rows, 1]
    best = found.heads()
    assert np.allclose([one.distance for one in best], np.sort(moved.mean(axis=-1).ravel() / 2)[::-1])
    assert {(one.layer, one.head) for one in best} == {(i, j) for i in range(2) for j in range(3)}
    ranked, pairs = rank_differences(a, b, 7)
    assert [(one.layer, one.head) for one in ranked] == [(one.layer, one.head) for one in best]
    assert np.allclose([one.distance for one in ranked], [one.distance for one in best], rtol=1e-6)
    exact = np.abs(first - second[..., rows, :][..., rows]).sum(axis=-1) + second[..., rows, 1]
    for one in (*ranked, *best):
        far = abs(exact[one.layer, one.head].mean() / 2 - one.distance)
        assert 0 < far <= one.error < 0.01 * one.distance
    # The pairs that differ most, of all heads together.
    sizes = np.abs(wanted).ravel()
    assert [abs(one.first - one.second) for one in pairs] == pytest.approx(sorted(sizes, reverse=True)[:7], rel=1e-6)
    for one in pairs:
        assert one.first == pytest.approx(rounded(first)[one.layer, one.head, one.query, one.key], rel=1e-6)
        other = rounded(second)[one.layer, one.head, rows[one.query], rows[one.key]]
        assert one.second == pytest.approx(other, rel=1e-6)
        assert one.errors == (0, 0)  # of single tokens


def test_two_heads_or_layers_of_one_view_are_compared():
    rng = np.random.default_rng(1)
    weights = random_weights(rng, 2, 3, 4, 4)
    view = look.View.from_weights(weights, list("abcd"))
    found = look.difference(view, heads=((0, 1), (1, 2)))
    assert np.allclose(found.weights[0][0], weights[0, 1] - weights[1, 2], atol=2e-2)
    means = look.difference(view, heads=((0, None), (1, None)))
    assert np.allclose(means.weights[0][0], rounded(weights)[0].mean(0) - rounded(weights)[1].mean(0), atol=1e-12)
    same = look.difference(view)
    assert all((layer == 0).all() for layer in same.weights)
    assert all(one.distance == 0 for one in same.heads())
    with pytest.raises(ShapeError, match="same layers and heads"):
        look.difference(view, look.View.from_weights(weights[:, :2], list("abcd")))


def test_masked_pairs_have_no_difference():
    weights = np.tril(np.full((1, 1, 3, 3), 0.25)) + 0.25 * np.eye(3)
    view = look.View.from_weights(weights, list("abc"))
    found = look.difference(view, look.View.from_weights(weights[..., ::-1], list("abc"), mask=np.ones((3, 3), bool)))
    assert np.isnan(found.weights[0][0]).tolist() == np.triu(np.ones((3, 3), bool), 1).tolist()


def test_tiled_views_are_left_out_or_refused():
    rows = np.random.default_rng(3).normal(size=(1, 50, 4)).astype(np.float32)
    tiled = arrays_view(rows, rows)
    with pytest.raises(KindError, match="dense views, got TiledView"):
        look.difference(tiled)
    with pytest.raises(DataError, match="no text with dense maps"):
        look.search(tiled, "1", "2")
    dense = look.View.from_weights(np.full((1, 1, 2, 2), 0.5), ["1", "2"])
    assert look.search([tiled, dense], "1", "2")[0].places[0].view == 1


@given(st.lists(st.sampled_from("abc"), max_size=9), st.lists(st.sampled_from("abc"), max_size=9))
@settings(derandomize=True, max_examples=cases(150), deadline=None)
def test_alignments_increase_and_contain_a_longest_common_subsequence(first, second):
    pairs = align_tokens(first, second)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(pairs))
    assert all(i < len(first) and j < len(second) for i, j in pairs)
    lengths = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, x in enumerate(first):
        for j, y in enumerate(second):
            lengths[i + 1, j + 1] = lengths[i, j] + 1 if x == y else max(lengths[i, j + 1], lengths[i + 1, j])
    assert sum(first[i] == second[j] for i, j in pairs) == lengths[-1, -1]
    if len(first) == len(second) and not set(first) & set(second):
        assert pairs == [(i, i) for i in range(len(first))]


def test_texts_without_a_common_token_differ_in_no_pair():
    one, other = (
        look.View.from_weights(np.full((1, 1, 2, 2), 0.5), words) for words in (["a", "b"], ["c", "d", "e"][:2])
    )
    longer = look.View.from_weights(np.full((1, 1, 3, 3), 1 / 3), ["x", "y", "z"])
    assert rank_differences(one, longer, 3)[1] == []
    assert len(rank_differences(one, other, 3)[0]) == 1


def test_phrases_are_found_as_whole_words_of_any_number_of_tokens():
    assert find_phrase(PIECES, "hans") == [(1,), (6,)]
    assert find_phrase(PIECES, "UNHAPPILY saw") == [(2, 3, 4, 5)]
    assert find_phrase(PIECES, "happi") == []
    assert find_phrase(PIECES, "##ly") == [(4,)]
    assert find_phrase(PIECES, "[CLS]") == [(0,)]
    assert find_phrase(PIECES, " ") == find_phrase(PIECES, "nobody") == []


def test_heads_are_ranked_by_the_weight_of_all_occurrences_in_all_texts():
    rng = np.random.default_rng(2)
    weights = [random_weights(rng, 2, 2, 8, 8) for _ in range(3)]
    views = [look.View.from_weights(one, PIECES) for one in weights]
    views.append(look.View.from_weights(random_weights(rng, 2, 2, 2, 2), ["other", "words"]))
    found = look.search(views, "unhappily", "Hans")
    wanted = {
        (layer, head): np.mean([one[layer, head, 2:5][:, [1, 6]].sum(axis=1).mean() for one in weights])
        for layer in range(2)
        for head in range(2)
    }
    assert [(match.layer, match.head) for match in found] == sorted(wanted, key=wanted.get, reverse=True)
    for match in found:
        assert match.weight == pytest.approx(wanted[match.layer, match.head], rel=6e-3)
        assert len(match.places) == 3
        assert match.places[0].weight == max(place.weight for place in match.places)
        for place in match.places:
            row = weights[place.view][match.layer, match.head, 2:5].mean(axis=0)
            words = [row[0], row[2:5].sum(), row[5], row[7]]
            assert place.rank == 1 + sum(other > place.weight for other in words)
            assert place.key == ((1,) if row[1] > row[6] else (6,))
    assert look.search(views, "unhappily", "Hans", count=1) == found[:1]
    with pytest.raises(DataError, match="no text with dense maps contains both"):
        look.search(views, "Hans", "words")


def test_maps_over_all_heads_are_no_heads():
    view = look.View.from_weights(np.full((2, 1, 2, 2), 0.5), ["a", "b"], layers=["layer 0", "all heads"])
    assert [(match.layer, match.head) for match in look.search(view, "b", "a")] == [(0, 0)]
    assert len(look.difference(view).heads()) == 1


def test_a_view_without_a_model_says_so():
    view = look.View.from_weights(np.full((1, 1, 2, 2), 0.5), ["a", "b"])
    for ask in (lambda: view.effect({(0, 0): 0.0}), lambda: view.pair(0, 0, 0, 0)):
        with pytest.raises(DataError, match="made with a model"):
            ask()
    page = Page.from_views(view)
    for request, place in (
        ("effect", [0, 0, 0, 0, 0]),
        ("pair", [0, 0, 0, 0, 0]),
        ("predictions", [0]),
        ("value_norms", [0, 0]),
        ("rows", [0, 1, 1]),
        ("rows", [0, 0, 3]),
        ("differences", [0]),
        ("differences", [0, 1]),
    ):
        with pytest.raises(LookupError):
            page.read(request, place)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("kind", ["gpt2", "bart", "bert"])
def test_ablated_heads_predictions_and_pairs_equal_plain_pytorch(kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from qkv.look.text_model import TextModel
    from qkv.look.text_views import text_views

    from .test_generation import TEXT, reader

    if kind == "bert":
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
        torch.manual_seed(1)
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=13, **sizes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(6.0)
        found = TextModel(model, reader("gpt2").tokenizer, kind)
    else:
        found = reader(kind)
    view = text_views(found, [TEXT], generate=4 if kind == "bart" else 0)[0]
    model = copy.deepcopy(found.model)
    model.set_attn_implementation("eager")
    layers = {
        "gpt2": lambda: [(block.attn, block.attn.c_proj) for block in model.transformer.h],
        "bart": lambda: [(layer.encoder_attn, layer.encoder_attn.out_proj) for layer in model.model.decoder.layers],
        "bert": lambda: [(x.attention.self, x.attention.output.dense) for x in model.bert.encoder.layer],
    }[kind]()
    ids = found.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    options = {"input_ids": ids}
    if kind == "bart":
        out = found.model.generate(input_ids=ids, max_new_tokens=4, do_sample=False, num_beams=1, pad_token_id=1)
        options["decoder_input_ids"] = out[:, :-1]
    values = []
    for attention, _ in layers:
        name = "v_proj" if kind == "bart" else "value" if kind == "bert" else "c_attn"
        getattr(attention, name).register_forward_hook(lambda *args: values.append(args[2][0, :, -16:]))
    with torch.no_grad():
        plain = model(**options, output_attentions=True)
        before = plain.logits[0]
        # The predictions beside the map.
        shares = before.softmax(-1).numpy()
        best = shares.argmax(-1)
        names = found.tokenizer.convert_ids_to_tokens(best.tolist())
        assert [row[0] for row in view.predictions.tokens] == names
        assert np.allclose(view.predictions.probabilities[:, 0], shares.max(-1), atol=1e-5)
        targets = {"gpt2": ids[0, 1:], "bert": ids[0]}.get(kind)
        targets = out[0, 1:] if targets is None else targets
        loss = torch.nn.functional.cross_entropy(before[: len(targets)], targets)
        assert view.predictions.loss == pytest.approx(float(loss), rel=1e-4)
        # A head that is ablated, and one that is doubled.
        effect = view.effect({(1, 0): 0.0, (0, 1): 2.0})
        for layer, head, factor in ((1, 0, 0.0), (0, 1, 2.0)):
            weight = layers[layer][1].weight.data
            (weight.T if kind == "gpt2" else weight)[:, 8 * head : 8 * head + 8] *= factor
        changed = model(**options).logits[0]
        after = changed.softmax(-1).numpy()
    assert torch.allclose(effect.before, before, rtol=1e-4, atol=1e-4)
    assert torch.allclose(effect.after, changed, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(changed, before, rtol=1e-2, atol=1e-2)
    new_loss = torch.nn.functional.cross_entropy(changed[: len(targets)], targets)
    assert effect.loss == pytest.approx((float(loss), float(new_loss)), rel=1e-4)
    wanted = (shares * np.log(shares / np.maximum(after, 1e-38))).sum(-1)
    assert np.allclose(effect.divergence, wanted, rtol=1e-3, atol=1e-5)
    (token, first, second), *_ = effect.tokens(1)
    number = found.tokenizer.convert_tokens_to_ids(token)
    assert (first, second) == pytest.approx((shares[1, number], after[1, number]), abs=1e-5)
    # A pair, and its weighted value.
    weights = (plain.cross_attentions if kind == "bart" else plain.attentions)[1][0]
    product = view.pair(1, 0, 2, 1)
    assert product.weight == pytest.approx(float(weights[0, 2, 1]), rel=1e-4, abs=1e-6)
    assert product.logit == pytest.approx(product.product.sum(), rel=1e-4, abs=1e-5)
    rest = [view.pair(1, 0, 2, key).logit for key in range(3)]
    ratio = float(torch.log(weights[0, 2, 1] / weights[0, 2, 0]))
    assert rest[1] - rest[0] == pytest.approx(ratio, rel=1e-3, abs=1e-4)
    norms = values[1].reshape(-1, 2, 8).norm(dim=-1)
    assert product.value_norm == pytest.approx(float(norms[1, 0]), rel=1e-4)
    assert np.allclose(view.layers[1].value_norms, norms.T, rtol=1e-4)
    if kind == "gpt2":
        masked = view.pair(1, 0, 1, 4)
        assert (masked.logit, masked.weight) == (-np.inf, 0.0)
        assert json.loads(Page.from_views(view).read("pair", [0, 1, 0, 1, 4]))["logit"] is None
    # The page says the same.
    page = Page.from_views(view)
    answer = json.loads(page.read("effect", [0, 1, 1, 0, 0, 0, 1, 200]))
    assert answer["loss"] == pytest.approx(effect.loss, rel=1e-3)
    assert answer["tokens"][0] == [token, pytest.approx(first, rel=1e-3), pytest.approx(second, rel=1e-3)]
    assert json.loads(page.read("predictions", [0]))["rows"][1]["tokens"][0] == names[1]
    with pytest.raises(LookupError, match="head must be between"):
        page.read("effect", [0, 1, 1, 9, 0])
    with pytest.raises(OptionError):
        view.pair(1, 0, 99, 0)


def test_heads_of_any_recorded_module_are_ablated_and_read():
    torch = pytest.importorskip("torch")
    torch.manual_seed(2)
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    x = torch.randn(3, 5, 8)
    (view,) = look.model(model, x, element=1)
    effect = view.effect({(1, 0): 0.0})
    with torch.no_grad():
        before = model(x)[1]
        model.layers[1].self_attn.out_proj.weight[:, :4] = 0
        after = model(x)[1]
    assert torch.allclose(effect.before, before, atol=1e-5)
    assert torch.allclose(effect.after, after, atol=1e-5)
    assert np.allclose(effect.divergence, ((after - before).norm(dim=-1) / before.norm(dim=-1)).numpy(), atol=1e-5)
    product = view.pair(0, 1, 3, 2)
    assert product.weight == pytest.approx(view.weights(0, 1)[3, 2], rel=6e-3)
    assert product.logit == pytest.approx(product.product.sum(), rel=1e-4)
    assert product.query.shape == (4,)


def test_heads_of_modules_of_qkv_are_ablated_and_read():
    torch = pytest.importorskip("torch")
    from qkv import masks, nn, normalizers

    torch.manual_seed(3)
    model = nn.Encoder(2, 8, 2, mask=masks.Causal()).eval()
    grouped = nn.MultiHeadAttention(8, 4, key_heads=2, normalizer=normalizers.Sparsemax(), mask=masks.Causal())
    model.layers[1].attention = grouped
    x = torch.randn(3, 5, 8)
    (view,) = look.model(model, x, element=1)
    assert [len(layer.heads) for layer in view.layers[:2]] == [2, 4]
    assert not view.allowed(1, 3)[2, 3]
    changed = copy.deepcopy(model)
    changed.layers[0].attention.output_map.weight.data[:, 4:] = 0
    changed.layers[1].attention.output_map.weight.data[:, 2:4] *= -0.5
    effect = view.effect({(0, 1): 0.0, (1, 1): -0.5})
    with torch.no_grad():
        before, after = model(x)[1], changed(x)[1]
    assert torch.equal(effect.before, before)
    assert torch.allclose(effect.after, after, atol=1e-6)
    assert (effect.divergence > 1e-3).any()
    # Head 2 of the second layer reads the second head of keys.
    received = []
    handle = grouped.register_forward_pre_hook(lambda _, args: received.append(args[0][1]))
    with torch.no_grad(), handle:
        model(x)
        query, (key, value) = grouped.queries(received[0])[2, 3], grouped.key_value(received[0])
        key, value = key[1], value[1]
    product = view.pair(1, 2, 3, 1)
    assert np.allclose(product.query, query, atol=1e-6)
    assert np.allclose(product.product, (query * key[1]).numpy() / 2**0.5, atol=1e-6)
    assert product.logit == pytest.approx(product.product.sum(), rel=1e-5)
    assert product.weight == pytest.approx(view.weights(1, 2)[3, 1], rel=6e-3, abs=1e-7)
    assert product.value_norm == pytest.approx(float(value[1].norm()), rel=1e-5)
    assert view.layers[1].value_norms[2, 1] == pytest.approx(product.value_norm, rel=1e-5)
    additive = nn.MultiHeadAttention(8, 2, score=nn.Additive)
    (other,) = look.model(additive, x)
    assert (other.effect({(0, 0): 0.0}).divergence > 0).all()
    with pytest.raises(DataError, match="must be a scaled dot product"):
        other.pair(0, 0, 0, 0)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_without_language_head_has_changed_vectors():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from qkv.look.text_model import TextModel
    from qkv.look.text_views import text_views

    from .test_generation import reader

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(1)
    model = transformers.BertModel(transformers.BertConfig(vocab_size=13, **sizes)).eval()
    (view,) = text_views(TextModel(model, reader("gpt2").tokenizer, "bert"), ["a b c"])
    assert view.predictions is None
    effect = view.effect({(0, 0): 0.0, (0, 1): 0.0})
    assert effect.predictions is effect.loss is None
    assert effect.tokens(0) == []
    assert (effect.divergence > 1e-4).all()
    assert view.effect({(0, 0): 1.0}).divergence.max() == pytest.approx(0, abs=1e-6)
    assert json.loads(Page.from_views(view).read("effect", [0, 2, 0, 0, 50]))["loss"] is None
    with pytest.raises(OptionError, match="no model"):
        view.effect({(1, 0): 0.0})
