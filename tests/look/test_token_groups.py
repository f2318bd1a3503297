"""Groups of tokens: alignment by characters, weights between groups, sentences, and spans that attend to spans."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv import look
from qkv.errors import OptionError
from qkv.look.axis import Axis, Patches
from qkv.look.difference import rank_differences
from qkv.look.token_groups import align_axes, find_phrase, group_tokens, merge, merge_allowed
from tests.effort import cases

TEXT = "Unhappily, tokenizers disagree. Dr. Ada likes naïve 🙂 ones! Does she?"


def pieces(text, cuts):
    """An axis whose tokens are the pieces of a text between cuts, without spaces around them."""
    spans = []
    for start, stop in itertools.pairwise(sorted({0, *cuts, len(text)})):
        part = text[start:stop]
        if part.strip():
            spans.append((start + len(part) - len(part.lstrip()), start + len(part.rstrip())))
    names = tuple(text[start:stop] for start, stop in spans)
    words = tuple(text[:start].count(" ") for start, _ in spans)
    return Axis(names, names, words, (False,) * len(names), text=text, spans=tuple(spans))


def with_marks(axis, before, after):
    """The axis with special tokens that stand for no text around it."""
    names = (*before, *axis.tokens, *after)
    spans = ((0, 0),) * len(before) + axis.spans + ((len(axis.text),) * 2,) * len(after)
    words = (-1,) * len(before) + axis.words + (-1,) * len(after)
    special = tuple(start == stop for start, stop in spans)
    return Axis(names, names, words, special, text=axis.text, spans=spans)


def view_of(axis, seed, name="one text", model="", layers=2, heads=3):
    rng = np.random.default_rng(seed)
    count = len(axis.tokens)
    weights = rng.dirichlet(np.full(count, 0.4), (layers, heads, count))
    view = look.View.from_weights(weights, axis, name=name, model=model)
    return view, np.array([[view.weights(i, j) for j in range(heads)] for i in range(layers)], np.float64)


def sums(weights, rows, columns):
    """The weights between groups, computed one by one."""
    return np.array(
        [[sum(weights[q, k] for q in row for k in column) / len(row) for column in columns] for row in rows]
    )


CUTS = st.sets(st.integers(1, len(TEXT) - 1))


@given(CUTS, CUTS)
@settings(derandomize=True, max_examples=cases(150), deadline=None)
def test_aligned_groups_are_the_smallest_ranges_that_both_tokenizations_divide(one, other):
    axes = pieces(TEXT, one), pieces(TEXT, other)
    found = align_axes(*axes)
    covered = [{(i, at) for i, (a, b) in enumerate(axis.spans) for at in range(a, b)} for axis in axes]
    # Between two characters both divide if no token of either has both.
    crossed = [{at for i, at in own if (i, at + 1) in own} for own in covered]
    groups, last = [], -1
    for at in range(len(TEXT)):
        if at in crossed[0] | crossed[1]:
            continue
        tokens = tuple(tuple(sorted({i for i, place in own if last < place <= at})) for own in covered)
        groups += [tokens] if all(tokens) else []
        last = at
    assert list(found.pairs) == groups
    for side in (0, 1):
        everything = sorted([i for group in found.groups(side) for i in group] + list(found.others[side]))
        assert everything == list(range(len(axes[side].tokens)))


def test_special_tokens_without_text_are_aligned_by_their_place_and_others_are_listed():
    plain = pieces(TEXT, {2, 9, 11})
    bert, other = with_marks(plain, ["[CLS]"], ["[SEP]"]), with_marks(plain, ["<s>", "<lang>"], [])
    found = align_axes(bert, other)
    assert found.pairs[0] == ((0,), (0,))
    assert found.others == ((len(bert.tokens) - 1,), (1,))
    one, other = view_of(bert, 0, model="one")[0], view_of(other, 1, model="other")[0]
    result = look.difference(one, other)
    assert result.query_names[0] == "[CLS] | <s>"
    assert result.unaligned == (("[SEP]",), ("<lang>",))


def test_the_difference_of_two_tokenizations_is_that_of_the_sums_over_their_groups():
    axes = (
        with_marks(pieces(TEXT, {2, 9, 12, 20, 31, 36, 43, 50}), ["[CLS]"], []),
        pieces(TEXT, {4, 9, 15, 20, 31, 43, 47}),
    )
    (one, first), (other, second) = view_of(axes[0], 0, model="one"), view_of(axes[1], 1, model="other")
    found = look.difference(one, other)
    rows = [found.queries.groups(side) for side in (0, 1)]
    assert any(len(group) > 1 for side in rows for group in side)
    assert found.query_names[:2] == ("Unhappily", ", tokenizer")
    moved = {}
    for layer, head in itertools.product(range(2), range(3)):
        parts = [sums(maps[layer, head], rows[side], rows[side]) for side, maps in enumerate((first, second))]
        assert np.allclose(found.weights[layer][head], parts[0] - parts[1], atol=1e-12)
        share = np.abs(parts[0] - parts[1]).sum(axis=1)
        share += sums(first[layer, head], rows[0], [found.queries.others[0]])[:, 0]
        moved[layer, head] = share.mean() / 2
    assert found.queries.others == ((0,), ())
    ranked, (best,) = rank_differences(one, other, 1)
    assert [(each.layer, each.head) for each in ranked] == sorted(moved, key=moved.get, reverse=True)
    assert [each.distance for each in ranked] == pytest.approx(sorted(moved.values(), reverse=True))
    sizes = np.stack([np.abs(layer) for layer in found.weights])
    assert abs(best.first - best.second) == pytest.approx(sizes.max())
    layer, head, row, column = np.unravel_index(sizes.argmax(), sizes.shape)
    assert (best.layer, best.head) == (layer, head)
    assert (best.query, best.key) == (rows[0][row][0], rows[0][column][0])


def test_two_texts_of_two_tokenizers_are_aligned_by_words_and_within_equal_words_by_characters():
    def axis(*words):
        tokens = [piece for word in words for piece in word]
        owners = [i for i, word in enumerate(words) for _ in word]
        return Axis(tuple(tokens), tuple(tokens), tuple(owners), (False,) * len(tokens))

    first = axis(["the"], ["un", "happy"], ["dog"], ["sat"], ["down"])
    second = axis(["The"], ["unhap", "py"], ["old"], ["cat", "tle"], ["sat"], ["down"])
    found = align_axes(first, second, same_tokenizer=False)
    assert found.pairs == (((0,), (0,)), ((1, 2), (1, 2)), ((4,), (6,)), ((5,), (7,)))
    assert found.others == ((3,), (3, 4, 5))
    other = axis(["un", "happy"], ["ones"])
    # Equal words whose tokens are equal, too, are not merged.
    assert align_axes(first, other, same_tokenizer=False).pairs[:2] == (((1,), (0,)), ((2,), (1,)))


def test_weights_between_groups_are_means_over_queries_of_sums_over_keys():
    rng = np.random.default_rng(3)
    weights = rng.normal(size=(2, 5, 6))
    rows, columns = [(0,), (1, 3), (4, 2)], [(5, 0, 2), (1,), (3, 4)]
    assert np.allclose(merge(weights, rows, columns), [sums(one, rows, columns) for one in weights])
    allowed = np.tril(np.ones((5, 6), bool))
    assert merge_allowed(allowed, rows, columns).tolist() == [
        [any(allowed[q, k] for q in row for k in column) for column in columns] for row in rows
    ]
    weights[0, 0, 0] = np.nan  # stays in its own groups
    assert np.isnan(merge(weights, rows, columns)).sum() == 1


def test_sentences_end_at_their_marks_and_not_at_abbreviations_or_decimal_points():
    text = "Dr. Ada paid 3.5 dollars. She left!” Why? e.g. this. 她走了。他来了。\n\nThe end"
    axis = pieces(
        text, {i for i, letter in enumerate(text) if letter == " "} | {text.index("。") + 1, text.index("The")}
    )
    found = [axis.name(group) for group in group_tokens(axis, "sentences")]
    assert found == ["Dr. Ada paid 3.5 dollars.", "She left!”", "Why? e.g. this.", "她走了。", "他来了。", "The end"]
    assert with_marks(axis, ["[CLS]"], []).sentences[0] == -1


def test_a_view_of_sentences_has_the_sums_of_its_tokens():
    cuts = {*range(3, len(TEXT), 3), TEXT.index(" Dr."), TEXT.index(" Does")}
    axis = with_marks(pieces(TEXT, cuts), ["[CLS]"], ["[SEP]"])
    view, weights = view_of(axis, 4)
    found = view.grouped("sentences")
    groups = group_tokens(axis, "sentences")
    assert found.queries.tokens[1] == "Unhappily, tokenizers disagree."
    assert len(found.queries.tokens) == 5
    for layer, head in itertools.product(range(2), range(3)):
        assert np.allclose(found.weights(layer, head), sums(weights[layer, head], groups, groups), rtol=6e-3)
    # Sentences open into tokens, and phrases are groups, too.
    opened = [
        group for sentence in groups for group in ([(i,) for i in sentence] if sentence == groups[1] else [sentence])
    ]
    part = view.grouped(opened, [groups[2], groups[1]])
    assert part.keys.tokens == (found.queries.tokens[2], found.queries.tokens[1])
    assert np.allclose(part.weights(1, 2), sums(weights[1, 2], opened, [groups[2], groups[1]]), rtol=6e-3)
    for wrong in ([()], [(0, 999)]):
        with pytest.raises(OptionError, match="indices of tokens from 0 to"):
            view.grouped(wrong)
    with pytest.raises(OptionError, match="unit must be one of tokens, words, sentences"):
        view.grouped("letters")


def test_causal_sentences_stay_masked_where_all_their_pairs_are():
    weights = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]
    view = look.View.from_weights(weights[None, None], ["A", ".", "B", "."]).grouped("sentences")
    assert view.queries.tokens == ("A .", "B .")
    assert view.allowed(0, 0).tolist() == [[True, False], [True, True]]


def test_a_span_attends_to_a_span_in_each_head():
    view, weights = view_of(pieces(TEXT, {i for i, letter in enumerate(TEXT) if letter == " "}), 5)
    query, key = find_phrase(view.queries, "does she?")[0], (0, 1)
    found = look.search(view, "does she?", key)
    wanted = {(i, j): sums(weights[i, j], [query], [key])[0, 0] for i in range(2) for j in range(3)}
    assert {(each.layer, each.head): each.weight for each in found} == pytest.approx(wanted)
    assert found[0].weight == max(each.weight for each in found)
    assert (found[0].places[0].query, found[0].places[0].key) == (query, key)


def test_a_region_of_an_image_is_a_span():
    names = ("[CLS]", *(f"{row},{column}" for row in range(3) for column in range(4)), "dog")
    patches = Patches((3, 4), (-1, *range(12), -1))
    axis = Axis(names, names, (-1, *range(13)), (True, *[False] * 13), patches=patches)
    assert find_phrase(axis, "1,1–2,2") == find_phrase(axis, "2,2-1,1") == [(6, 7, 10, 11)]
    assert find_phrase(axis, "5,5–6,6") == []
    view, weights = view_of(axis, 6)
    found = {(each.layer, each.head): each.weight for each in look.search(view, "dog", "1,1–2,2")}
    assert found == pytest.approx({(i, j): weights[i, j, 13, [6, 7, 10, 11]].sum() for i in range(2) for j in range(3)})
    assert find_phrase(Axis.from_patches(3, 4, 1), "0,0–0,1") == [(1, 2)]


def test_models_with_two_tokenizers_are_compared_by_the_characters_of_one_text():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from qkv.look.text_model import TextModel
    from qkv.look.text_views import text_views

    from .test_pairs import pair_model

    words = pair_model()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    bpe.train_from_iterator(["a bca ef", "bca ef"], trainers.BpeTrainer(vocab_size=262, show_progress=False))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe)
    size = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), **size)
    letters = TextModel(transformers.GPT2Model(config).eval(), tokenizer, "letters")
    text = "a  bca ef"
    (one,), (other,) = text_views(words, [text]), text_views(letters, [text])
    assert one.queries.tokens == ("[CLS]", "a", "b", "##c", "##a", "e", "##f", "[SEP]")
    assert one.queries.text == other.queries.text == text
    found = look.difference(one, other)
    assert found.unaligned[0] == ("[CLS]", "[SEP]")
    for groups in found.queries.pairs:
        spans = [
            [axis.spans[i] for i in group] for axis, group in zip((one.queries, other.queries), groups, strict=True)
        ]
        assert len({(min(side)[0], max(side)[1]) for side in spans}) == 1
    assert "".join(found.query_names) == "abcaef"
    pair = text_views(words, ["a bc"], pairs=["d ef"])[0].queries
    assert [pair.text[start:stop] for start, stop in pair.spans] == ["", "a", "b", "c", "", "d", "e", "f", ""]
    assert [pair.name(group) for group in group_tokens(pair, "sentences")][1:-1] == ["a bc", "[SEP]", "d ef"]
