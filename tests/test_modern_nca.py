"""ModernNCA of the benchmark of tables, a reference after its paper."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from benchmarks._modern_nca import ModernNCA


def curve(rows, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))  # two columns decide, one of them a level; two are noise
    x[:, 3] = x[:, 3] > 0
    return x, np.sin(2 * x[:, 0]) + x[:, 3]


def test_numbers_are_predicted_with_a_fifth_of_their_deviation():
    (x, y), (new, true) = curve(400), curve(200, seed=1)
    model = ModernNCA(numbers=3, batch=128, epochs=30, frequencies=16, embedding=8).fit(x, (y - y.mean()) / y.std())
    found = model.predict(new) * y.std() + y.mean()
    assert np.sqrt(np.mean((found - true) ** 2)) < 0.2 * true.std()


def test_classes_have_probabilities_that_find_them():
    (x, y), (new, true) = curve(400), curve(200, seed=1)
    model = ModernNCA(classes=True, numbers=3, batch=128, epochs=20, blocks=1, block_width=32)
    found = model.fit(x, (y > 0.5).astype(int)).predict_proba(new)
    assert found.shape == (200, 2)
    assert found.sum(axis=1) == pytest.approx(np.ones(200), abs=1e-5)
    assert np.mean(found.argmax(axis=1) == (true > 0.5)) > 0.9
    assert (model.predict(new) == found.argmax(axis=1)).all()


def test_a_row_of_a_batch_is_no_candidate_for_itself():
    model = ModernNCA(numbers=1, frequencies=2, embedding=2, width=3)
    model.x_, model.y_ = torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [2.0]])
    model._train(model.x_, model.y_)
    assert model._loss(torch.arange(2)).item() == pytest.approx(9.0)  # each row is predicted by the other


def test_equal_seeds_give_equal_predictions_and_leave_the_generator_alone():
    x, y = curve(60)
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    found = [ModernNCA(numbers=3, epochs=3).fit(x, y).predict(x) for _ in range(2)]
    assert (found[0] == found[1]).all()
    assert torch.equal(torch.get_rng_state(), expected)
