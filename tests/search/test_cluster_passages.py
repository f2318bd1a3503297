"""Search of an index by workers: the hits of one process."""

from itertools import pairwise

import numpy as np
import pytest

from qkv.database.cluster.scheduler import Scheduler
from qkv.errors import DataError, OptionError
from qkv.search import Document, Index, cluster_passages
from qkv.search.passage_range import PassageRange, QueryWords, Selection
from tests.database.cluster.local_worker import LocalWorker

NOUNS = [
    *("ring", "den", "shepherd", "shadow", "truth", "gold", "light", "cave", "king", "river", "wolf", "bread"),
    *("song",),
]
QUERIES = ["a golden ring", "shadow and truth in the den", "wolf wolf wolf", "nothing known", "bread of the king"]


def draw_documents(count, seed=0):
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(NOUNS, draw.integers(1, 9))) for _ in range(count - 3)]
    return [Document(str(number), text) for number, text in enumerate([*texts, *texts[:2], "gold bread"])]


def read(hits):
    return [hit.document for hit in hits], np.array([[hit.weight, hit.score] for hit in hits])


@pytest.mark.parametrize("encoder", ["latent", "tfidf"])
def test_workers_find_what_one_process_finds(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_passages, "_PASSAGES", 18)
    monkeypatch.setattr(cluster_passages, "open_cluster", lambda _: Scheduler(LocalWorker, 3, "threads"))
    Index.from_texts(draw_documents(90), encoder=encoder, mix=0.4).save(tmp_path / "index")
    one, many = Index.open(tmp_path / "index"), Index.open(tmp_path / "index", "processes:3")
    assert len(many.passages.ranges) == 5
    for mix in (0, 0.4, 1):
        for query in QUERIES:
            every = {hit.document: hit.score for hit in one.search(query, 200, mix=mix, contributions=False)}
            for top, temperature in ((1, 1.0), (50, 0.3)):
                options = {"top": top, "mix": mix, "temperature": temperature, "contributions": False}
                (names, numbers), (found, others) = (read(index.search(query, **options)) for index in (one, many))
                assert len(set(found)) == len(names)
                assert np.allclose(others, numbers, rtol=1e-5, atol=1e-6)
                # Scores that are equal but for rounding may be in another order.
                assert np.allclose([every[name] for name in found], [score for _, score in others], atol=1e-5)
    for ours, theirs in zip(one.rank(QUERIES), many.rank(QUERIES), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    why = many.search(QUERIES[1])[0]
    assert why.contributions is not None
    assert why.contributions.by_word() == pytest.approx(one.search(QUERIES[1])[0].contributions.by_word(), rel=1e-5)


def test_ranges_merge_to_the_same_result_in_any_grouping():
    index = Index.from_texts(draw_documents(60, 1), encoder="tfidf", mix=0.5)
    whole, draw = PassageRange(index.keys, index.words), np.random.default_rng(2)
    queries = QueryWords([index.splitter(query) for query in QUERIES], index.vectors(QUERIES))
    scale = draw.uniform(0.1, 2, (2, len(QUERIES)))
    selection = Selection(*scale, 5, 0.7, True)
    expected, moments = whole.bind(queries).select(selection), whole.bind(queries).statistics()
    for _ in range(20):
        cuts = np.unique([0, *draw.integers(1, len(index), draw.integers(1, 12)), len(index)])
        parts = [whole.slice(*pair).bind(queries) for pair in pairwise(cuts)]
        for name, merged in (("select", [part.select(selection) for part in parts]), ("statistics", None)):
            merged = merged or [part.statistics() for part in parts]
            while len(merged) > 1:
                at = draw.integers(len(merged) - 1)
                merged[at : at + 2] = [merged[at].merge(merged[at + 1])]
            if name == "select":
                assert np.allclose(merged[0].scores, expected.scores, rtol=1e-6)
                assert np.allclose(merged[0].weights, expected.weights, rtol=1e-5)
            else:
                assert np.allclose(merged[0].variance, moments.variance, rtol=1e-9)
                assert np.allclose(merged[0].mean, moments.mean, rtol=1e-9)


def test_an_index_that_was_saved_again_is_an_error_and_so_is_another_kind_of_cluster(tmp_path, monkeypatch):
    Index.from_texts(draw_documents(20), encoder="tfidf").save(tmp_path / "index")
    with pytest.raises(OptionError, match="cluster must be 'processes'"):
        Index.open(tmp_path / "index", "spark")
    monkeypatch.setattr(cluster_passages, "open_cluster", lambda _: Scheduler(LocalWorker, 2, "threads"))
    many = Index.open(tmp_path / "index", "processes")
    Index.from_texts(draw_documents(21), encoder="tfidf").save(tmp_path / "index")
    with pytest.raises(DataError, match="another one was saved there"):
        many.search("gold")
    with pytest.raises(DataError, match="path must be a folder with a search index"):
        Index.open(tmp_path / "none", "processes")
