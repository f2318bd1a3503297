"""Keys at equal distances from a query, as between two decimal numbers, are chosen alike however the query is asked."""

import numpy as np
import pytest

from qkv import Database, normalizers, scores
from tests.database.databases import every_database
from tests.effort import cases


@pytest.mark.thinned
@pytest.mark.parametrize("normalizer", [normalizers.TopK(3), normalizers.Hard(), normalizers.Softmax()])
@pytest.mark.parametrize("columns", [1, 2])
def test_a_query_halfway_between_keys_is_answered_alone_as_among_others(columns, normalizer):
    rng = np.random.default_rng(columns)
    for _ in range(cases(40)):
        rows, step = int(rng.integers(5, 400)), float(rng.choice([0.01, 0.05, 0.1]))
        keys = np.round(rng.integers(0, 60, (rows, columns)) * step, 6)
        names = [f"x{i}" for i in range(columns)]
        table = dict(zip(names, keys.T, strict=True)) | {"y": rng.normal(size=rows)}
        database = Database.open(table, ",".join(names), "y")
        places = np.round(rng.integers(0, 120, (8, columns)) * step / 2, 6).tolist()
        queries = [tuple(place) if columns > 1 else place[0] for place in places]
        options = {"score": scores.Gaussian(float(rng.uniform(0.05, 1))), "normalizer": normalizer}
        together = [entry.value for entry in database.ask(queries, **options)]
        alone = [database.ask([query], **options)[0].value for query in queries]
        np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-12)


def test_the_plan_names_the_score_that_was_asked_for():
    database = Database.open({"x": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]}, "x", "y")
    plan = database.ask(2.5, score=scores.Gaussian(0.5), normalizer="topk:1").plan
    assert "Gaussian(0.5)" in str(plan)
    assert "Differences" not in str(plan)


@pytest.mark.thinned
@pytest.mark.parametrize("score", ["cosine", "gaussian:1"])
@pytest.mark.parametrize("normalizer", ["hard", "top_k:2"])
def test_of_rows_with_equal_vectors_the_first_take_part(normalizer, score, tmp_path):
    for seed in range(cases(20)):
        rng = np.random.default_rng(seed)
        rows, width = int(rng.integers(5, 60)), int(rng.integers(9, 70))
        keys = rng.normal(size=(rows, width))
        equal = np.sort(rng.choice(rows, 5, replace=False))
        keys[equal] = keys[equal[0]]
        table, folder = {"k": keys, "v": np.arange(float(rows))}, tmp_path / str(seed)
        for database in every_database(folder, table, "k", "v"):
            answer = database.ask([keys[equal[0]]] * 2, score=score, normalizer=normalizer)
            for rows_of_one in answer.rows:
                found = [row.index for row in rows_of_one if row.weight]
                assert found == equal[: len(found)].tolist()
            assert answer.value == [pytest.approx(np.mean(equal[: len(found)]))] * 2


def test_a_tie_of_votes_goes_to_the_first_label_however_far_other_rows_are(tmp_path):
    table = {"k": [0.0, 500.0, 500.0], "v": ["b", "a", "b"]}
    for database in every_database(tmp_path / "store", table, "k", "v"):
        assert database.ask([500.0, 499.0], score="gaussian:0.5", max_distance=9).value == ["a", "a"]


def test_labels_with_the_same_weights_in_another_order_tie(tmp_path):
    rng = np.random.default_rng(0)
    for seed in range(cases(20)):
        keys, labels = rng.normal(size=rng.integers(3, 30)), [str(label) for label in rng.permutation(5)]
        table = {"k": np.concatenate([rng.permutation(keys) for _ in labels]), "v": np.repeat(labels, len(keys))}
        for database in every_database(tmp_path / str(seed), table, "k", "v"):
            assert database.ask([0.0, 0.7], score="gaussian:1", max_distance=9).value == [labels[0]] * 2
