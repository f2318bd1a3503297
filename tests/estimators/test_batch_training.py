"""Batch training: the written-out gradient is that of PyTorch, and time, effort and held-out rows are respected."""

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkv.estimators import AttentionClassifier, AttentionRegressor, analytic_gradient
from qkv.estimators.analytic_gradient import encode_rows, loss_and_gradient
from qkv.estimators.batch_training import TrainingOptions, TrainingRows, learning_rate_factor, train_member
from qkv.estimators.features import Features
from qkv.estimators.metric import Metric
from qkv.estimators.metric_learning import as_tensors, row_losses
from qkv.estimators.nadaraya_watson import weighted_mean_with_trend
from qkv.masks import Documents

RNG = np.random.default_rng(0)
ROWS = 40
FEATURES = Features(RNG.normal(size=(ROWS, 3)).astype(np.float32), RNG.integers(0, 4, (ROWS, 2)).astype(np.int16) % 3)
METRICS = [
    (kind, trend, classes)
    for kind, trend, classes in itertools.product(
        ("none", "diagonal", "linear", "low_rank", "network"), ("none", "linear", "network"), (False, True)
    )
    if not (classes and trend != "none")
]


def metric_of(kind, trend="none", classes=False, outputs=2):
    return Metric(kind, 3, (4, 3), outputs, trend, 5, 8, 2, classes)


def random_parameters(metric):
    generator = torch.Generator().manual_seed(0)
    initial = metric.initial_parameters(1, generator)
    return {name: each + 0.1 * torch.randn(each.shape, generator=generator) for name, each in initial.items()}


def engine_loss(metric, parameters, values, sample_weight, dropout_mask):
    """The loss of all rows as a batch, computed by `qkv.attend` in PyTorch."""
    numbers, codes = as_tensors(FEATURES)
    mask = None if dropout_mask is None else torch.from_numpy(dropout_mask)[:, None]
    both = metric(parameters, numbers, codes, mask)
    target = torch.from_numpy(values)[None]
    weight = None if sample_weight is None else torch.from_numpy(sample_weight)[None]
    others = ~Documents(torch.arange(ROWS), torch.arange(ROWS))
    predicted = weighted_mean_with_trend(both, both, target, parameters["log_bandwidth"].exp(), weight, others)
    losses = row_losses(predicted, target, metric.classification)
    return (losses if weight is None else losses * weight[..., 0]).mean()


@pytest.mark.thinned
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kind", "trend", "classes"), METRICS)
def test_the_gradient_is_that_of_automatic_differentiation(kind, trend, classes, weighted, sparse, monkeypatch):
    monkeypatch.setattr(analytic_gradient, "_MAX_DENSE", 0 if sparse else 128)
    metric = metric_of(kind, trend, classes)
    values = RNG.normal(size=(ROWS, 2)).astype(np.float32)
    if classes:
        values = np.eye(2, dtype=np.float32)[RNG.integers(0, 2, ROWS)]
    weight = (RNG.random((ROWS, 1)) + 0.5).astype(np.float32) if weighted else None
    dropout = RNG.integers(0, 2, (2, ROWS, 8)).astype(np.float32) * 2 if metric.has_network else None
    parameters = {name: each.requires_grad_() for name, each in random_parameters(metric).items()}
    wanted_loss = engine_loss(metric, parameters, values, weight, dropout)
    wanted = torch.autograd.grad(wanted_loss, list(parameters.values()))
    own = {name: each[0].detach().numpy() for name, each in parameters.items()}
    found = {name: np.full_like(each, np.nan) for name, each in own.items()}
    loss = loss_and_gradient(metric, own, encode_rows(FEATURES, metric), values, weight, dropout, found)
    assert loss == pytest.approx(wanted_loss.item(), rel=1e-5)
    for (name, mine), theirs in zip(found.items(), wanted, strict=True):
        size = float(theirs.abs().max())
        np.testing.assert_allclose(mine, theirs[0], rtol=1e-3, atol=1e-5 * (1 + size), err_msg=name)


def test_no_row_of_a_batch_is_predicted_from_itself():
    # Every row is the only one of its class: a probability of its own class could come from itself alone.
    metric = metric_of("linear", classes=True, outputs=ROWS)
    own = {name: each[0].numpy() for name, each in random_parameters(metric).items()}
    found = {name: np.zeros_like(each) for name, each in own.items()}
    rows = encode_rows(FEATURES, metric)
    loss = loss_and_gradient(metric, own, rows, np.eye(ROWS, dtype=np.float32), None, None, found)
    assert loss == pytest.approx(-np.log(1e-6), rel=1e-5)


def train(steps=60, patience=1000, seconds=float("inf"), values=None):
    metric = metric_of("network", "network", outputs=1)
    values = FEATURES.numbers[:, :1] * 2 if values is None else values
    rows = TrainingRows(encode_rows(FEATURES, metric), values, None)
    initial = {name: each[0].numpy() for name, each in random_parameters(metric).items()}
    reports = []
    options = TrainingOptions(1, steps, 16, 0, 0.01, 1e-3, 0.1, patience, seconds)
    trained = train_member(
        metric, initial, rows, np.arange(8, ROWS), np.arange(8), options, 0, lambda *report: reports.append(report)
    )
    return *trained, reports


def test_the_parameters_with_the_smallest_loss_on_held_out_rows_are_returned():
    _, loss, steps, reports = train()
    assert steps == 60
    losses = [each for _, each in reports]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == loss < 0.5 * losses[0]


def test_training_stops_when_the_loss_no_longer_decreases():
    noise = np.random.default_rng(1).normal(size=(ROWS, 1)).astype(np.float32)
    _, _, steps, _ = train(steps=2000, patience=20, values=noise)
    assert steps < 2000


def test_training_ends_after_the_allowed_time_with_a_usable_fit():
    parameters, loss, steps, _ = train(steps=10**7, patience=10**7, seconds=0.3)
    assert 0 < steps < 10**7
    assert np.isfinite(loss)
    assert all(np.isfinite(each).all() for each in parameters.values())


@pytest.mark.parametrize("effort", ["quick", "standard"])
def test_a_fit_with_less_effort_predicts_new_rows(effort):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(300, 3))
    y = np.sin(2 * x[:, 0]) + x[:, 1]
    new = rng.uniform(-1.5, 1.5, size=(50, 3))
    model = AttentionRegressor(effort=effort, random_state=0).fit(x, y)
    errors = model.predict(new) - np.sin(2 * new[:, 0]) - new[:, 1]
    assert np.sqrt(np.mean(errors**2)) < 0.2 * y.std()
    explained = model.explain_rows(new[:1], top=300)
    assert (explained.weights * explained.values).sum() == pytest.approx(model.predict(new[:1])[0])
    assert np.isfinite(model.predict_std(new)).all()


def test_noise_gives_an_ensemble_and_structure_a_longer_training():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(300, 3))
    noisy, exact = (
        AttentionRegressor(effort="standard", random_state=0).fit(x, y)
        for y in (rng.normal(size=300), np.sin(3 * x[:, 0]) * x[:, 1])
    )
    assert len(noisy.keys_) > len(exact.keys_) == 1
    assert exact.n_steps_ > noisy.n_steps_
    assert len(AttentionRegressor(effort="standard", n_estimators=2, max_steps=9).fit(x, x[:, 0]).keys_) == 2


@pytest.mark.parametrize("metric", ["diagonal", "linear", "low_rank", "network"])
def test_quick_classifiers_with_missing_cells_learn_the_classes(metric):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"x": rng.normal(size=200), "noise": rng.normal(size=200), "c": rng.choice(["a", "b"], 200)}
    )
    y = np.where(frame["c"] == "a", "low", np.where(frame["x"] > 0, "high", "low"))
    frame.loc[::17, "x"] = np.nan
    model = AttentionClassifier(metric, effort="quick", random_state=0).fit(frame[:150], y[:150])
    present = frame["x"].notna().to_numpy()[150:]
    assert (model.predict(frame[150:]) == y[150:])[present].mean() > 0.8


def test_the_learning_rate_rises_for_twenty_steps_and_falls_to_zero():
    rates = [learning_rate_factor(step, step / 1000) for step in (0, 9, 500, 1000)]
    assert rates == pytest.approx([0.05, 0.5, 0.5, 0.0], abs=1e-3)
