"""An index: its scores are their formula, its weights their softmax, and its contributions add up."""

import os
import re
from itertools import pairwise

import numpy as np
import pytest

from qkv.core import extras
from qkv.core.equation import attend_dense
from qkv.encoders import vocabulary
from qkv.encoders.text_encoders import default_components
from qkv.encoders.vocabulary import Vocabulary
from qkv.errors import DataError, MissingPackageError, OptionError, StoreBusyError
from qkv.normalizers import Softmax
from qkv.scores import Dot
from qkv.search import Document, Index
from qkv.search.bm25 import BM25
from qkv.search.index_files import is_index

QUERY = "Which shepherd saw shadows, and a golden truth?"
ENCODERS = ["latent", "latent-tfidf", "tfidf", "log-entropy", "counts"]


def standard(scores):
    return (scores - scores.mean()) / scores.std()


def expected(index, query, mix):
    """The score of every passage, from texts alone."""
    texts = index.table.column("text").to_pylist()
    vectors, asked = index.encoder.encode(texts), index.encoder.encode([query])
    if not isinstance(vectors, np.ndarray):
        vectors, asked = vectors.toarray(), asked.toarray()
    metric = np.eye(vectors.shape[1]) if index.metric is None else index.metric
    words = Vocabulary()
    worded = BM25.fit([words(text) for text in texts]).score([words(query)])[0].astype(float)
    near = (vectors @ (asked[0] @ metric)).astype(float)
    return (mix * standard(near) if mix else 0) + ((1 - mix) * standard(worded) if mix < 1 else 0)


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_scores_weights_and_contributions_are_those_of_the_formula(library, encoder, mix):
    index = Index.from_texts(library, encoder=encoder, words=8, overlap=2, mix=mix)
    if encoder == "latent" and mix == 0.3:  # maps that were learned
        width = index.keys.rows.shape[1]
        index = index.with_metric(np.eye(width) + 0.3 * np.random.default_rng(0).normal(size=(width, width)))
    hits = index.search(QUERY, top=len(index), temperature=0.7)
    scores = expected(index, QUERY, mix)
    order = [(row["name"], row["start"]) for row in index.table.to_pylist()]
    rows = [order.index((hit.document, hit.start)) for hit in hits]
    assert len(hits) == len(index)
    np.testing.assert_allclose([hit.score for hit in hits], scores[rows], atol=2e-5)
    weights = attend_dense(
        np.ones((1, 1)), scores[:, None] / 0.7, np.eye(len(index)), score=Dot(), normalizer=Softmax()
    ).output[0]
    np.testing.assert_allclose([hit.weight for hit in hits], weights[rows], rtol=1e-4, atol=1e-7)
    assert all(before.weight >= after.weight for before, after in pairwise(hits))
    for hit in hits:
        assert hit.contributions.score == pytest.approx(hit.score, abs=2e-5)
        assert sum(hit.contributions.by_word().values()) == pytest.approx(hit.score - hit.contributions.rest, abs=2e-5)
        assert sum(hit.contributions.by_query_word().values()) == pytest.approx(
            hit.score - hit.contributions.rest, abs=2e-5
        )


def test_words_that_only_resemble_those_of_the_query_contribute_too(library):
    index = Index.from_texts(library, n_components=4, words=0, mix=1.0)
    hit = next(hit for hit in index.search("shadows", top=12) if hit.document == "cave")
    assert hit.contributions.query_words == ["shadows"]
    shares = hit.contributions.by_word()
    assert {"prisoners", "den", "wall"} <= {word for word, share in shares.items() if share > 0.05}


def test_a_document_is_ranked_by_its_best_passage(library):
    index = Index.from_texts(library, words=8, overlap=0)
    ranked = next(index.rank([QUERY], top=len(index)))
    weights = {}
    for hit in index.search(QUERY, top=len(index)):
        weights.setdefault(hit.document, hit.weight)
    assert ranked == pytest.approx(weights)
    assert len(index) > len(library)


@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_a_word_that_occurs_twice_in_the_query_contributes_twice(library, mix):
    index = Index.from_texts(library, words=0, mix=mix)
    for query in ("ring ring shepherd", "shadows truth shadows wall shadows"):
        for hit in index.search(query):
            assert hit.contributions.score == pytest.approx(hit.score, abs=1e-4)
    words = ["ring", "ring", "shepherd"]
    row = next(n for n, text in enumerate(index.table.column("text").to_pylist()) if "golden ring" in text)
    contributions = index.words.contributions(words, row)
    assert contributions["ring"] == pytest.approx(2 * index.words.contributions(["ring"], row)["ring"])
    assert sum(contributions.values()) == pytest.approx(float(index.words.score([words])[0, row]))


@pytest.mark.parametrize("encoder", ["latent", "tfidf"])
def test_an_index_that_was_saved_answers_as_before(library, encoder, tmp_path):
    index = Index.from_texts(library, encoder=encoder, words=8, overlap=2, mix=0.4)
    if encoder == "latent":
        width = index.keys.rows.shape[1]
        index = index.with_metric(np.eye(width) + 0.1)
    index.save(tmp_path / "i")
    opened = Index.open(tmp_path / "i")
    assert opened.mix == 0.4
    for before, after in zip(index.search(QUERY), opened.search(QUERY), strict=True):
        assert (before.document, before.start, before.text) == (after.document, after.start, after.text)
        assert before.weight == pytest.approx(after.weight, rel=1e-6)
        assert before.contributions.by_word() == pytest.approx(after.contributions.by_word(), abs=1e-6)


def test_stems_are_kept_with_the_index(tmp_path):
    pytest.importorskip("Stemmer")
    index = Index.from_texts([Document("a", "Two rings shone."), Document("b", "A dark den.")], stem="english", mix=0)
    index.save(tmp_path / "i")
    assert Index.open(tmp_path / "i").search("ringing")[0].document == "a"
    assert Index.from_texts([Document("a", "Two rings."), Document("b", "A den.")]).search("ringing") == []


def test_saving_again_replaces_the_index_and_leaves_nothing_behind(library, tmp_path):
    Index.from_texts(library).save(tmp_path / "i")
    reader = Index.open(tmp_path / "i")
    Index.from_texts(library[:3], encoder="tfidf").save(tmp_path / "i")
    assert [path.name for path in (tmp_path / "i").iterdir() if path.name != "writer.lock"] == ["index.qkv"]
    assert Index.open(tmp_path / "i").documents == 3
    assert reader.search(QUERY)[0].text  # what was opened before stays as it was


def test_a_save_that_fails_leaves_the_index_that_was_there(library, tmp_path, monkeypatch):
    Index.from_texts(library).save(tmp_path / "i")
    before = sorted(path.name for path in (tmp_path / "i").rglob("*"))
    monkeypatch.setattr(os, "fsync", _full)
    with pytest.raises(DataError, match="No space left"):
        Index.from_texts(library[:3]).save(tmp_path / "i")
    assert sorted(path.name for path in (tmp_path / "i").rglob("*")) == before
    assert Index.open(tmp_path / "i").documents == len(library)


def _full(*arguments, **options):
    raise OSError(28, "No space left on device")


def test_a_second_writer_is_refused(library, tmp_path):
    from filelock import FileLock

    index = Index.from_texts(library)
    index.save(tmp_path / "i")
    with FileLock(tmp_path / "i" / "writer.lock"), pytest.raises(StoreBusyError, match="another process"):
        index.save(tmp_path / "i")


def test_a_folder_of_something_else_is_neither_opened_nor_overwritten(library, tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(DataError, match="must be a folder with a search index"):
        Index.open(tmp_path)
    with pytest.raises(DataError, match="must be a folder with a search index, an empty folder"):
        Index.from_texts(library).save(tmp_path)
    assert not is_index(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_query_without_a_known_word_finds_nothing(library):
    assert Index.from_texts(library).search("zeppelin xylophone") == []
    assert next(Index.from_texts(library).rank(["zeppelin"])) == {}


def test_a_word_of_any_script_is_found_as_it_is_written():
    texts = ["我喜欢猫。", "東京 タワー", "हिन्दी भाषा", "a \ufb01nance report", "l'e\u0301cole", "the golden ring"]
    index = Index.from_texts([Document(str(number), text) for number, text in enumerate(texts)])
    for number, word in enumerate(["猫", "東京", "हिन्दी", "Finance", "École", "rings ring"]):
        hit = index.search(word, top=1)[0]
        assert hit.document == str(number)
        assert set(hit.contributions.query_words) <= set(hit.contributions.by_word())


def test_an_index_whose_texts_were_divided_into_other_words_is_refused(library, tmp_path, monkeypatch):
    texts = [*library, Document("hill", "山の上に白い雲がある")]
    Index.from_texts(texts).save(tmp_path / "new")
    Index.open(tmp_path / "new")
    monkeypatch.setattr(vocabulary, "_TOKEN", re.compile(r"\w\w+"))
    Index.from_texts(texts).save(tmp_path / "old")
    monkeypatch.undo()
    with pytest.raises(DataError, match="another version of qkv has divided the texts into words"):
        Index.open(tmp_path / "old")


def test_an_index_of_one_document(library):
    index = Index.from_texts(library[:1])
    (hit,) = index.search("shadows")  # nothing to tell it from: all attention, no deviation
    assert (hit.document, hit.weight, hit.score) == ("cave", 1.0, 0.0)
    assert index.search("zeppelin") == []


def test_the_rank_is_half_of_the_texts_from_thirty_to_three_hundred():
    assert [default_components(texts) for texts in (1, 12, 50, 80, 499, 1_000_000)] == [1, 12, 30, 48, 300, 300]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mix": 1.5}, "mix must be from 0 .* got 1.5"),
        ({"encoder": "magic"}, "one of latent, latent-tfidf"),
        ({"encoder": "tfidf", "n_components": 3}, "n_components must be None"),
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"stem": "french"}, "stem must be one of None, english, got 'french'"),
        ({"words": 10, "overlap": 5}, "less than half"),
    ],
)
def test_invalid_options_are_refused(library, options, says):
    with pytest.raises(OptionError, match=says):
        Index.from_texts(library, **options)


def test_searching_requires_a_query_a_number_and_a_temperature(library):
    index = Index.from_texts(library)
    for arguments, says in (
        ((" ",), "at least one word"),
        ((["ring"],), "at least one word"),
        (("x", 0), "top must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(OptionError, match=says):
            index.search(*arguments)
    with pytest.raises(OptionError, match="temperature"):
        index.search("ring", temperature=0.0)


def test_texts_without_words_are_refused():
    with pytest.raises(DataError, match="must contain at least one word"):
        Index.from_texts([Document("a", "of the"), Document("b", "")])
    with pytest.raises(DataError, match="at least one document"):
        Index.from_texts([])


@pytest.mark.parametrize(("package", "named"), [("bm25s", "bm25s"), ("sklearn", "scikit-learn")])
def test_a_missing_package_is_named_with_the_extra(library, monkeypatch, package, named):
    monkeypatch.setattr(extras, "_installed", lambda name: name != package)
    with pytest.raises(MissingPackageError, match=rf'{named}.*pip install "qkv\[search\]"'):
        Index.from_texts(library)
