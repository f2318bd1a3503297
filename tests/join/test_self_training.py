"""Joins of several columns without labels: a regression on the first scores finds more, and knows when not to learn."""

import numpy as np
import pytest

from qkv.join import SoftJoin
from qkv.join.attention_weights import two_way_weights
from qkv.join.expectation_maximization import EstimationSample
from qkv.join.unsupervised import limit_sharpness, self_train

LETTERS = np.array(list("abcdefghijklmnoprstuvz"))


def words(draw, count, least, most):
    return ["".join(draw.choice(LETTERS, draw.integers(least, most))) for _ in range(count)]


def people(seed, count, common):
    """Two tables of people, of whom the first `common` are the same with misspelt names and some other towns."""
    draw = np.random.default_rng(seed)
    first, last, towns = words(draw, 40, 3, 7), words(draw, 300, 5, 9), words(draw, 20, 4, 8)

    def person():
        return f"{draw.choice(first)} {draw.choice(last)}", str(draw.choice(towns))

    def misspelt(name, town):
        place = int(draw.integers(1, len(name) - 1))
        name = name[:place] + name[place + 1 :] if draw.random() < 0.6 else name
        name = " ".join(reversed(name.split())) if draw.random() < 0.3 else name
        return name, str(draw.choice(towns)) if draw.random() < 0.2 else town

    left = [person() for _ in range(count)]
    right = [misspelt(*each) for each in left[:common]] + [person() for _ in range(count - common)]
    return tuple(dict(zip(("name", "town"), zip(*rows, strict=True), strict=True)) for rows in (left, right))


def f1(joined, common):
    found = [(pair.left, pair.right) for pair in joined]
    return 2 * sum(left == right < common for left, right in found) / (len(found) + common)


def joined(seed, count, common):
    left, right = ({name: list(cells) for name, cells in side.items()} for side in people(seed, count, common))
    return SoftJoin(("name", "town")).join(left, right)


def test_learning_from_the_first_scores_finds_more_misspelt_people(monkeypatch):
    cases = [(2, 226, 226), (6, 200, 180)]
    learned = [f1(joined(*case), case[2]) for case in cases]
    monkeypatch.setattr("qkv.join.unsupervised.self_train", lambda *_: None)
    before = [f1(joined(*case), case[2]) for case in cases]
    assert np.mean(learned) > np.mean(before) + 0.03
    assert min(learned) > 0.92


def test_the_scores_of_few_matches_are_kept():
    assert "learned" not in " ".join(joined(3, 120, 12).notes)
    assert "learned" in " ".join(joined(3, 180, 160).notes)


@pytest.mark.parametrize("seed", range(3))
def test_no_learned_similarity_counts_against_a_match(seed):
    draw = np.random.default_rng(seed)
    rows = np.repeat(np.arange(150), 4)
    keys = (rows + np.tile(np.arange(4), 150)) % 150
    same = rows == keys
    measures = np.clip(draw.normal(np.where(same[:, None], [0.9, 0.8, 0.1], 0.4), 0.1), 0, 1)
    sample = EstimationSample(rows, keys, measures, measures[~same], (150, 150))
    trained = self_train(sample, measures, two_way_weights(rows, keys, np.where(same, 2.0, -6.0)), sample.random)
    assert trained.separated
    assert (trained.weights >= 0).all()
    assert trained.weights[2] == 0  # smaller among matches than among other pairs
    logits = measures @ trained.weights + trained.bias
    assert (logits[same] > 0).mean() > 0.95
    assert (logits[~same] < 0).mean() > 0.98


def test_unlike_rows_leave_the_weight_of_a_row_to_its_candidates():
    draw = np.random.default_rng(5)
    unlike = draw.normal(-4, 1, 2**14)
    assert limit_sharpness(unlike - 10, 50) == 1
    sharpness = limit_sharpness(unlike, 5000)
    others = np.sort(unlike)[: int(len(unlike) * (1 - 20 / 5000))]
    assert 5000 * np.exp(others).mean() > 10
    assert 5000 * np.exp(sharpness * others).mean() <= 0.1
