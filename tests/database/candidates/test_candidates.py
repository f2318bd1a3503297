"""Answers from the candidates of an approximate index."""

from pathlib import Path

import numpy as np
import pytest

from qkv import masks
from qkv.database import Candidates, Database, Queryable
from qkv.database.storage.stored import StoredDatabase
from qkv.errors import DataError, KindError, OptionError

ROWS, WIDTH = 400, 8
RNG = np.random.default_rng(5)
CENTERS = RNG.normal(size=(20, WIDTH))
VECTORS = (CENTERS[RNG.integers(20, size=ROWS)] + 0.3 * RNG.normal(size=(ROWS, WIDTH))).astype(np.float32)
TABLE = {"number": np.arange(ROWS) * 7 + 3, "vector": VECTORS, "pay": RNG.normal(size=ROWS)}
QUERIES = list(VECTORS[:40] + 0.05 * RNG.normal(size=(40, WIDTH)).astype(np.float32))
TOP = {"score": "cosine", "normalizer": "topk:5"}


class Scan:
    """An index by cosine that never returns some of its vectors."""

    def __init__(self, vectors: np.ndarray, labels: np.ndarray, hidden: int = 0) -> None:
        self.unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        self.labels, self.hidden = labels, hidden

    def search(self, queries: np.ndarray, count: int) -> np.ndarray:
        near = queries @ self.unit.T
        if self.hidden:
            near[:, :: self.hidden] = -np.inf
        return self.labels[np.argsort(-near, axis=1)[:, :count]]


def scan(rows: int = ROWS, hidden: int = 0) -> Scan:
    return Scan(VECTORS[:rows], np.arange(rows), hidden)


def stored(path: Path, rows: int = ROWS, **options: object) -> StoredDatabase:
    first = {name: cells[:rows] for name, cells in TABLE.items()}
    return Database.create(path / "store", first, "vector", "pay", memory=1000, **options)


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", ["topk:5", "hard", "topk:5:0.1", "softmax:0.02", "sparsemax"])
@pytest.mark.parametrize("streamed", [False, True])
def test_all_rows_as_candidates_give_the_exact_answer(normalizer: str, streamed: bool, tmp_path: Path) -> None:
    table: Queryable = stored(tmp_path) if streamed else Database.open(TABLE, "vector", "pay")
    near = Candidates(scan(), ROWS, version=table.version if isinstance(table, StoredDatabase) else None)
    # In memory, where sums are in float64; those of a pass over a store are in float32 for vectors of float32.
    exact = Database.open(TABLE, "vector", "pay").ask(QUERIES, score="cosine", normalizer=normalizer)
    answer = table.ask(QUERIES, score="cosine", normalizer=normalizer, candidates=near)
    assert answer.recall == 1
    assert exact.recall is None
    for own, full in zip(answer.entries, exact.entries, strict=True):
        assert own.found == full.found
        assert np.isclose(own.value, full.value, rtol=1e-12, atol=1e-12)
        assert own.rows.tolist() == full.rows.tolist()


def test_recall_is_the_share_of_the_exact_rows_that_the_index_returned() -> None:
    table = Database.open(TABLE, "vector", "pay")
    exact = table.ask(QUERIES, **TOP)
    answer = table.ask(QUERIES, **TOP, candidates=Candidates(scan(hidden=3), 50))
    visible = [np.mean(entry.rows % 3 != 0) for entry in exact.entries]
    assert answer.recall == pytest.approx(np.mean(visible))
    assert 0.5 < answer.recall < 0.9
    text = f"recall {answer.recall:.4g}"
    assert text in answer.common_notes[-1]
    assert "50 rows for each query from Scan" in answer.common_notes[-1]
    assert text in " ".join(str(answer.plan).split())


def test_recall_is_measured_on_the_first_queries_alone() -> None:
    table, near = Database.open(TABLE, "vector", "pay"), Candidates(scan(hidden=3), 50, sample=10)
    first = table.ask(QUERIES[:6], **TOP, candidates=near)
    second = table.ask(QUERIES[6:], **TOP, candidates=near)
    third = table.ask(QUERIES, **TOP, candidates=near)
    assert "on 6 queries" in first.common_notes[-1]
    assert "on 10 queries" in second.common_notes[-1]
    assert third.common_notes[-1] == second.common_notes[-1]


def test_answers_do_not_depend_on_the_other_queries_of_a_call() -> None:
    table, near = Database.open(TABLE, "vector", "pay"), Candidates(scan(), 3)
    together = table.ask(QUERIES, score="cosine", normalizer="softmax:0.5", candidates=near)
    for query, entry in zip(QUERIES[:10], together.entries, strict=False):
        alone = table.ask([query], score="cosine", normalizer="softmax:0.5", candidates=near).entries[0]
        assert alone.rows.tolist() == entry.rows.tolist()
        assert len(alone.rows) == 3
        assert alone.value == pytest.approx(entry.value, rel=1e-12)


def test_rows_that_the_index_does_not_have_are_compared(tmp_path: Path) -> None:
    table = stored(tmp_path, 300)
    near = Candidates(scan(300), 40, version=table.version)
    for start in (300, 350):
        table.append({name: cells[start : start + 50] for name, cells in TABLE.items()})
    table.compact()
    answer = table.ask(list(VECTORS[300:340]), score="cosine", normalizer="hard", candidates=near)
    assert [entry.rows[0] for entry in answer.entries] == list(range(300, 340))
    assert answer.recall == 1
    assert "and 100 rows that it does not have" in answer.common_notes[-1]
    many, exact = table.ask(QUERIES, **TOP, candidates=near), table.ask(QUERIES, **TOP)
    assert [entry.rows.tolist() for entry in many.entries] == [entry.rows.tolist() for entry in exact.entries]


def test_deleted_rows_make_positions_an_error_and_ids_are_followed(tmp_path: Path) -> None:
    table = stored(tmp_path)
    version = table.version
    table.delete("number < 150")
    with pytest.raises(DataError, match="is the result of delete"):
        table.ask(QUERIES, **TOP, candidates=Candidates(scan(), 50, version=version))
    near = Candidates(Scan(VECTORS, TABLE["number"]), ROWS, id="number")
    answer, exact = table.ask(QUERIES, **TOP, candidates=near), table.ask(QUERIES, **TOP)
    assert answer.recall == 1
    assert [entry.rows.tolist() for entry in answer.entries] == [entry.rows.tolist() for entry in exact.entries]


def test_predicates_and_masks_exclude_candidates_and_recall_counts_it() -> None:
    table = Database.open(TABLE, "vector", "pay")
    some = np.asarray(TABLE["pay"]) > 1
    by_predicate = table.ask(QUERIES, **TOP, where="pay > 1", candidates=Candidates(scan(), 30))
    by_mask = table.ask(QUERIES, **TOP, mask=masks.AllowedKeys(some), candidates=Candidates(scan(), 30))
    for answer in (by_predicate, by_mask):
        assert answer.recall < 1
        assert all(some[entry.rows].all() for entry in answer.entries)
    none = table.ask(list(VECTORS[~some][:2]), **TOP, where="pay > 1", candidates=Candidates(scan(), 1))
    assert none.entries[0].reason == "the index returned no row that can be compared"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalizer": "mean"}, "normalizer must give most weight to few rows"),
        ({"normalizer": "sigmoid"}, "normalizer must give most weight to few rows"),
        ({"mask": masks.Causal()}, "mask must be masks.AllowedKeys"),
    ],
)
def test_what_needs_all_rows_is_refused(options: dict[str, object], message: str) -> None:
    table = Database.open(TABLE, "vector", "pay")
    with pytest.raises(OptionError, match=message):
        table.ask(QUERIES, score="cosine", candidates=Candidates(scan()), **options)


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    table = stored(tmp_path, 300)
    for near, kind, message in (
        (Candidates(scan(300)), OptionError, "version must be the version of store"),
        (Candidates(scan(), version=table.version), DataError, "indices of the 300 rows"),
        (Candidates(scan(), version=99), DataError, "a version in between cannot be read"),
        (Candidates(scan(), id="vector"), DataError, "a column of whole numbers"),
        (Candidates(Scan(VECTORS, np.zeros(ROWS, int)), id="number"), DataError, "must be different"),
    ):
        with pytest.raises(kind, match=message):
            table.ask(QUERIES, candidates=near)
    with pytest.raises(KindError, match="index must be"):
        Candidates(object())
    names = Database.open({"name": ["Li"], "pay": [1]}, "name", "pay")
    with pytest.raises(OptionError, match="one column of vectors"):
        names.ask("Li", candidates=Candidates(scan(1)))


@pytest.mark.parametrize("ids", [False, True])
def test_an_index_of_faiss_gives_candidates(ids: bool) -> None:
    faiss = pytest.importorskip("faiss")
    table, index = Database.open(TABLE, "vector", "pay"), faiss.index_factory(WIDTH, "IVF4,Flat")
    index.train(VECTORS)
    if ids:
        index.add_with_ids(VECTORS[::2], np.ascontiguousarray(TABLE["number"][::2]))
    else:
        index.add(VECTORS)
    index.nprobe = 4
    answer = table.ask(QUERIES, **TOP, candidates=Candidates(index, 60, id="number" if ids else None))
    assert answer.recall > 0.9
    assert "FAISS IndexIVFFlat" in answer.common_notes[-1]
    assert ("200 rows that it does not have" in answer.common_notes[-1]) == ids


@pytest.mark.parametrize("ids", [False, True])
def test_an_index_of_usearch_gives_candidates(ids: bool) -> None:
    index = pytest.importorskip("usearch.index").Index(ndim=WIDTH, metric="cos")
    table = Database.open(TABLE, "vector", "pay")
    index.add(TABLE["number"] if ids else np.arange(ROWS), VECTORS)
    answer = table.ask(QUERIES, **TOP, candidates=Candidates(index, 60, id="number" if ids else None))
    assert answer.recall > 0.9


def test_an_index_of_lance_over_the_store_itself_gives_candidates(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance")
    table = stored(tmp_path, 380, backend="lance")
    lance.dataset(tmp_path / "store").create_index("vector", "IVF_FLAT", num_partitions=4)
    table.refresh()
    near = Candidates(lance.dataset(tmp_path / "store"), 60, options={"nprobes": 4})
    assert table.ask(QUERIES, **TOP, candidates=near).recall > 0.9
    table.append({name: cells[380:] for name, cells in TABLE.items()})
    table.delete("number < 150")
    answer = table.ask(list(VECTORS[380:]), score="cosine", normalizer="hard", candidates=near)
    assert [entry.rows[0] for entry in answer.entries] == list(range(359, 379))
