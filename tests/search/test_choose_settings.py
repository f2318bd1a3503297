"""The number of dimensions of the latent space and the share of the vectors are chosen from the passages alone."""

import functools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from qkv.encoders import LatentEncoder
from qkv.encoders.vocabulary import Vocabulary
from qkv.search import Document, Index
from qkv.search.choose_settings import DEFAULT_MIX, _draw, _log_ranks, _sample, choose_components_and_mix, choose_mix


def topics(synonyms, passages=120, subjects=8, words=30, seed=0):
    """Passages about subjects. Every word of a subject has that many synonyms, of which each passage picks one."""
    random = np.random.default_rng(seed)
    texts = []
    for at in range(passages):
        subject = at % subjects
        picked = random.integers(0, 12, words)
        which = random.integers(0, synonyms, words)
        texts.append(" ".join(f"s{subject}w{word}v{form}" for word, form in zip(picked, which, strict=True)))
    return texts


def unrelated(passages=120, words=30, seed=0):
    """Passages of random words, each with a name of its own that it repeats."""
    random = np.random.default_rng(seed)
    return [
        " ".join(f"n{at}" if random.random() < 0.3 else f"w{random.integers(400)}" for _ in range(words))
        for at in range(passages)
    ]


def choose(texts, mix=None, n_components=None):
    return _choose(tuple(texts), mix, n_components)


@functools.cache
def _choose(texts, mix, n_components):
    return choose_components_and_mix(texts, LatentEncoder(n_components), Vocabulary(), mix, None)


def test_vectors_count_where_meaning_tells_and_words_where_names_tell():
    meaning, names = choose(topics(8)), choose(unrelated())
    assert meaning.mix > 0.5 > names.mix
    assert meaning.n_components <= 40
    assert meaning.queries == names.queries == 300


def test_the_choice_is_the_same_each_time_and_respects_what_is_given():
    texts = topics(8)
    assert choose(texts) == _choose.__wrapped__(tuple(texts), None, None)
    assert choose(texts, mix=0.9).mix == 0.9
    assert choose(texts, n_components=7).n_components == 7
    index = Index.from_texts([Document(str(at), text) for at, text in enumerate(texts)], n_components=7, mix=0.25)
    assert (index.encoder.width, index.mix) == (7, 0.25)


def test_an_index_has_the_chosen_settings(tmp_path):
    texts = topics(8)
    index = Index.from_texts([Document(str(at), text) for at, text in enumerate(texts)])
    chosen = choose(texts)
    assert (index.encoder.width, index.mix) == (chosen.n_components, chosen.mix)
    index.save(tmp_path / "index")
    opened = Index.open(tmp_path / "index")
    assert (opened.encoder.width, opened.mix) == (chosen.n_components, chosen.mix)


@pytest.mark.parametrize("texts", [topics(2, passages=99), topics(2, passages=200, words=19), ["one word"] * 200])
def test_few_or_short_passages_have_the_defaults(texts):
    chosen = choose(texts)
    assert (chosen.n_components, chosen.mix, chosen.queries) == (None, DEFAULT_MIX, 0)


@pytest.mark.parametrize("encoder", ["counts", "tfidf", "latent"])
def test_any_encoder_gets_a_share(encoder):
    texts = topics(4)
    index = Index.from_texts([Document(str(at), text) for at, text in enumerate(texts)], encoder=encoder)
    assert 0 <= index.mix <= 1
    if encoder != "latent":
        assert index.mix == choose_mix(texts, index.encoder, index.keys, Vocabulary(), None).mix


def test_a_fitted_encoder_that_knows_the_meaning_gets_a_large_share():
    class Oracle(LatentEncoder):
        """Vectors that name the subject of a text."""

        def encode(self, inputs, *, progress=None):
            rows = np.zeros((len(inputs), 8), np.float32)
            for at, text in enumerate(inputs):
                rows[at, int(text.strip()[1])] = 1
            return rows

    # Words that occur once in the collection tell BM25 nothing, so the subject is all there is.
    random = np.random.default_rng(1)
    texts = [" ".join(f"s{at % 8}x{at}y{n}" for n in random.permutation(30)) for at in range(160)]
    oracle = Oracle()
    assert choose_mix(texts, oracle, oracle.encode(texts), Vocabulary(), None).mix > 0


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_ranks_are_those_of_a_sort(seed, mix, ties):
    random = np.random.default_rng(seed)
    first, second = random.standard_normal((2, 5, 40)).astype(np.float32)
    if ties:
        first, second = first.round(), second.round()
    rows = random.integers(0, 40, 5)

    def standard(scores):
        return (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)

    score = mix * standard(first) + (1 - mix) * standard(second)
    expected = 0.0
    for line, own in zip(score, rows, strict=True):
        above = (line > line[own] + 1e-5).sum()
        expected += np.log(above + ((np.abs(line - line[own]) <= 1e-5).sum() - 1) / 2 + 1)
    if ties and 0 < mix < 1:
        return  # equal sums of different terms differ by rounding
    np.testing.assert_allclose(_log_ranks(first, second, rows, [mix]), [expected], rtol=1e-5)


@given(st.integers(0, 2**32 - 1))
def test_the_words_of_a_query_are_removed_from_its_passage_only(seed):
    splitter = Vocabulary()
    texts = topics(3, passages=30, words=25, seed=seed % 1000)
    trial = _draw(_sample(texts, splitter), 10, splitter, np.random.default_rng(seed))
    assert len(set(trial.rows.tolist())) == 10
    for row, query, text in zip(trial.rows, trial.queries, trial.texts, strict=True):
        words = splitter(query)
        assert len(words) == 10
        assert sorted([*words, *trial.words[row]]) == sorted(splitter(texts[row]))
        assert splitter(text) == trial.words[row]
    for row in set(range(30)) - set(trial.rows.tolist()):
        assert trial.words[row] == splitter(texts[row])
