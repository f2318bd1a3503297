"""The models of the translator: padding, steps, alignments; and beam search."""

import importlib.util
import itertools

import pytest

if any(importlib.util.find_spec(name) is None for name in ("torch", "tokenizers", "sacrebleu")):
    pytest.skip("the extra qkv[hf,look] is not installed", allow_module_level=True)

import torch
from examples.translate.aligning import copies, copies_aligned
from examples.translate.batches import padded
from examples.translate.models import build
from examples.translate.options import MODELS, SCORE_NAMES, Options
from examples.translate.search import search, translate
from examples.translate.vocabulary import BEGIN, END, PAD, Vocabulary

from qkv.errors import OptionError

from .conftest import small

KINDS = [(model, score) for model in MODELS for score in SCORE_NAMES if (model, score) != ("transformer", "none")]
SOURCES, TARGETS = 30, 24


def made(model, score, **changes):
    torch.manual_seed(0)
    return build(small(model=model, score=score, layers=2, **changes), SOURCES, TARGETS).eval()


def sentences(count, size, most=9, seed=0):
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, most, (count,), generator=draw).tolist()
    return [[*torch.randint(3, size, (n,), generator=draw).tolist(), END] for n in lengths]


def given_to(rows):
    return padded([[BEGIN, *row[:-1]] for row in rows])[0]


@pytest.mark.parametrize(("model", "score"), KINDS)
@torch.no_grad()
def test_padding_does_not_change_the_logits_of_a_sentence(model, score):
    translator = made(model, score)
    sources, targets = sentences(6, SOURCES), sentences(6, TARGETS, seed=1)
    together = translator(*padded(sources), given_to(targets))
    for logits, source, target in zip(together, sources, targets, strict=True):
        alone = translator(*padded([source]), given_to([target]))[0]
        torch.testing.assert_close(logits[: len(target)], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("model", "score"), KINDS)
@torch.no_grad()
def test_decoding_step_by_step_gives_the_logits_of_training(model, score):
    translator = made(model, score)
    source, lengths = padded(sentences(4, SOURCES))
    given = given_to(sentences(4, TARGETS, seed=1))
    memory = translator.encode(source, lengths)
    state, rows = translator.begin(memory), []
    for token in given.unbind(1):
        logits, state = translator.step(memory, state, token)
        rows.append(logits)
    torch.testing.assert_close(torch.stack(rows, 1), translator(source, lengths, given), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("model", "score"), KINDS)
@torch.no_grad()
def test_picked_rows_continue_as_they_would_alone(model, score):
    translator = made(model, score)
    source, lengths = padded(sentences(3, SOURCES))
    memory = translator.encode(source, lengths)
    tokens = torch.tensor([[5, 6, 7], [8, 9, 10]])
    _, state = translator.step(memory, translator.begin(memory), tokens[0])
    expected, _ = translator.step(memory, state, tokens[1])
    state = translator.begin(memory)
    _, state = translator.step(memory, state, tokens[0])
    rows = torch.tensor([2, 0, 0])
    picked, state = translator.pick(memory, state, rows)
    logits, _ = translator.step(picked, state, tokens[1][rows])
    torch.testing.assert_close(logits, expected[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("model", "score"), [kind for kind in KINDS if kind[1] != "none"])
@torch.no_grad()
def test_each_step_spreads_one_over_the_source_and_none_over_padding(model, score):
    translator = made(model, score)
    source, lengths = padded(sentences(5, SOURCES))
    given = given_to(sentences(5, TARGETS, seed=1))
    weights = translator.align(source, lengths, given)
    assert weights.shape == (5, given.shape[1], source.shape[1])
    torch.testing.assert_close(weights.sum(-1), torch.ones(given.shape))
    assert not weights.masked_select((source == PAD)[:, None]).any()
    # Uniform weights would pass the test of the sums.
    assert weights.max() > 1.05 / lengths.max()


@torch.no_grad()
def test_a_model_without_attention_has_nothing_to_align():
    translator = made("gru", "none")
    source, lengths = padded(sentences(2, SOURCES))
    assert translator.align(source, lengths, torch.tensor([[BEGIN], [BEGIN]])) is None


def test_without_attention_a_model_has_all_the_same_parameters_but_those_of_the_score():
    def shapes(score):
        state = made("gru", score).state_dict()
        return {name: each.shape for name, each in state.items() if not name.startswith("attention.")}

    assert shapes("none") == shapes("additive") == shapes("gaussian")


@torch.no_grad()
def test_the_weights_that_are_read_are_those_that_made_the_translation():
    translator = made("gru", "additive")
    source, lengths = padded(sentences(3, SOURCES))
    given = torch.full((3, 1), BEGIN)
    weights = translator.align(source, lengths, given)[:, 0]
    memory = translator.encode(source, lengths)
    context = (weights[:, None] @ memory.annotations)[:, 0]
    said, state = translator.target(given[:, 0]), translator.begin(memory)
    state = translator.decoder(torch.cat([said, context], -1), state)
    logits, _ = translator.step(memory, translator.begin(memory), given[:, 0])
    torch.testing.assert_close(translator._logits(state, said, context), logits)


@pytest.mark.parametrize(("model", "score"), KINDS)
def test_every_parameter_learns(model, score):
    translator = made(model, score)
    source, lengths = padded(sentences(4, SOURCES))
    # In float64, so that no gradient is rounded to 0.
    translator.double()(source, lengths, given_to(sentences(4, TARGETS, seed=1))).square().sum().backward()
    still = [name for name, each in translator.named_parameters() if each.grad is None or not each.grad.any()]
    # A bias of the key map shifts all logits of a query equally, which softmax cancels.
    assert [name for name in still if "key_map.bias" not in name] == []


class Looks:
    """Attends to the first source subword at every step, or to the position of the step."""

    def __init__(self, along):
        self.along = along

    def align(self, source, lengths, given):
        places = torch.arange(given.shape[1]) * self.along
        return torch.nn.functional.one_hot(places, source.shape[1]).float().expand(len(source), -1, -1)


def test_a_copied_subword_is_aligned_where_the_largest_weight_is_on_it():
    words = Vocabulary.learn(["Tom Mary Anna"] * 9, 320)
    read = words.encode(["Tom Mary Anna", "Anna Tom"])
    assert copies(words.pieces(read[0]), words.pieces(read[1])) == [(0, 2), (1, 0)]
    along = copies_aligned(Looks(1), words, words, read, read)
    assert along == {"copies": 5, "aligned": 5, "by_chance": round(3 / 4 + 2 / 3, 1)}
    assert copies_aligned(Looks(0), words, words, read, read)["aligned"] == 2
    assert copies_aligned(Looks(1), words, words, read, read[::-1])["aligned"] == 0


def test_repeated_subwords_and_punctuation_are_not_copies():
    assert copies(["·Tom", "·Tom", "·an", ".", "END"], ["·Tom", "·an", ".", "END"]) == []


@torch.no_grad()
def greedy(translator, source, lengths):
    memory = translator.encode(source, lengths)
    state, said = translator.begin(memory), [BEGIN]
    while said[-1] != END and len(said) <= 2 * int(lengths[0]) + 10:
        logits, state = translator.step(memory, state, torch.tensor(said[-1:]))
        logits[:, [PAD, BEGIN]] = -torch.inf
        said.append(int(logits.argmax()))
    return tuple(said[1:])


@pytest.mark.parametrize("model", MODELS)
def test_a_beam_of_one_is_greedy(model):
    translator = made(model, "additive")
    rows = sentences(8, SOURCES)
    found = translate(translator, rows, beam=1)
    assert [one.numbers for one in found] == [greedy(translator, *padded([row])) for row in rows]
    assert len({one.numbers for one in found}) > 1


@pytest.mark.parametrize("model", MODELS)
@torch.no_grad()
def test_a_beam_wide_enough_for_everything_finds_the_best_of_all(model):
    torch.manual_seed(0)
    size, most = 6, 3
    translator = build(small(model=model, score="additive"), SOURCES, size).eval()
    translator.bias.data.normal_()
    source, lengths = padded(sentences(1, SOURCES))
    real = range(END, size)
    every = [
        said
        for n in range(1, most + 1)
        for said in itertools.product(real, repeat=n)
        if END not in said[:-1] and (said[-1] == END or n == most)
    ]
    given = given_to(every)
    logits = translator(source.expand(len(every), -1), lengths.expand(len(every)), given)
    wanted, sizes = padded(every)
    steps = torch.log_softmax(logits, -1).gather(2, wanted[..., None])[..., 0]
    totals = steps.where(wanted != PAD, 0.0).sum(1)
    best = int((totals / sizes).argmax())
    [found] = search(translator, source, lengths, beam=len(every), most=torch.tensor([most]))
    assert found.numbers == every[best]
    assert found.log_probability == pytest.approx(float(totals[best]), abs=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_a_translation_does_not_depend_on_what_is_translated_with_it(model):
    translator = made(model, "scaled-dot")
    rows = sentences(7, SOURCES)
    together, alone = translate(translator, rows, beam=3), translate(translator, rows, beam=3, at_once=1)
    assert [one.numbers for one in together] == [one.numbers for one in alone]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "cosine"}, "additive, scaled-dot"),
        ({"model": "lstm"}, "gru, transformer"),
        ({"model": "transformer", "score": "none"}, "must not be none"),
        ({"width": 15}, "even"),
        ({"model": "transformer", "width": 20, "heads": 4}, "multiple"),
        ({"dropout": 1.0}, "less than 1"),
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"rate": 0.0}, "--rate"),
        ({"warm_up": 12}, r"less than --steps \(12\)"),
    ],
)
def test_an_invalid_option_is_refused_in_a_sentence(changes, said):
    with pytest.raises(OptionError, match=said):
        small(**changes)


def test_different_options_are_named_by_their_flags():
    assert Options().differences(Options(batch_tokens=7)) == [("--batch-tokens", 2000, 7)]
