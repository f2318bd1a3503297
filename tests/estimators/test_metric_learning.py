"""Metric learning: the loss of a batch and its gradient equal the dense form, and no row predicts itself."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkv.estimators.batch_training import TrainingOptions
from qkv.estimators.features import Features
from qkv.estimators.metric import Metric, _one_hot
from qkv.estimators.metric_learning import _split_rows, _Trainer, _TrainingRows, as_tensors, embed_rows, train_metric

RNG = np.random.default_rng(0)
ROWS, COLUMNS = 70, 3
FEATURES = Features(RNG.normal(size=(ROWS, COLUMNS)).astype(np.float32), RNG.integers(0, 3, (ROWS, 1)).astype(np.int16))


def training_options(**options):
    defaults = {"members": 2, "steps": 5, "batch": 20, "candidates": 1000, "rate": 0.01, "decay": 0.0}
    return TrainingOptions(**{**defaults, "dropout": 0.0, "patience": 100, **options})


def run(metric, values, shares=None, **options):
    how = training_options(**options)
    kept, held = _split_rows(ROWS, how.members, 0)
    generator = torch.Generator().manual_seed(0)
    rows = _TrainingRows.from_arrays(FEATURES, values, shares)
    return _Trainer(metric, metric.initial_parameters(how.members, generator), rows, kept, held, how, generator)


def metric_of(kind, outputs, shares=False, trend="none"):
    return Metric(kind, COLUMNS, (4,), outputs, trend, 5, 8, 2, shares)


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("trend", ["none", "network"])
@pytest.mark.parametrize("kind", ["diagonal", "linear", "low_rank", "network"])
def test_the_loss_and_its_gradient_are_those_of_the_dense_form(kind, trend, weighed):
    values = RNG.normal(size=(ROWS, 2)).astype(np.float32)
    shares = RNG.random(ROWS) + 0.5 if weighed else None
    learning = run(metric_of(kind, 2, trend=trend), values, shares, batch=ROWS)
    with torch.no_grad():
        learning.parameters["log_bandwidth"] += torch.tensor([0.1, 0.4])
    order = learning._shuffle()
    found = learning._batch_loss(order, 0)
    names = list(learning.parameters)
    gradients = torch.autograd.grad(found, [learning.parameters[name] for name in names])

    double = {name: each.detach().double().requires_grad_() for name, each in learning.parameters.items()}
    total = 0.0
    for member, index in enumerate(order):
        mine = {name: each[member : member + 1] for name, each in double.items()}
        numbers, codes = (torch.from_numpy(x)[index] for x in (FEATURES.numbers, FEATURES.codes))
        keys, trends = learning.metric(mine, numbers[None].double(), codes[None])
        keys, moves = keys[0], 0.0 if trends is None else trends[0]
        y = torch.from_numpy(values).double()[index]
        weight = torch.ones(len(index)).double() if shares is None else torch.from_numpy(shares).float()[index]
        apart = (keys[:, None] - keys[None]).square().sum(-1)
        predicted = []
        for output in range(2):
            logits = -apart / (2 * mine["log_bandwidth"][0, output].exp() ** 2) + weight.log()
            logits = logits.masked_fill(torch.eye(len(index), dtype=torch.bool), -torch.inf)
            predicted.append(torch.softmax(logits, dim=1) @ (y - moves)[:, output])
        errors = (torch.stack(predicted, dim=1) + moves - y).square().mean(dim=1)
        total = total + (errors * weight).mean()
    wanted = torch.autograd.grad(total, [double[name] for name in names])
    assert found.item() == pytest.approx(total.item(), rel=1e-5)
    for name, mine, theirs in zip(names, gradients, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-5 * (1 + float(theirs.abs().max())), err_msg=name)


@pytest.mark.parametrize("candidates", [21, 40, 1000])
def test_no_row_of_a_batch_is_predicted_from_itself(candidates):
    # Every row is the only one of its class: a share on its own class could come from itself alone.
    learning = run(metric_of("linear", ROWS, shares=True), np.eye(ROWS, dtype=np.float32), candidates=candidates)
    order = learning._shuffle()
    for number in range(3):
        loss = learning._batch_loss(order, number).item() / 2
        assert loss == pytest.approx(-np.log(1e-6), rel=1e-5)


def test_members_hold_out_different_rows_and_train_on_all_others():
    kept, held = (x.numpy() for x in _split_rows(100, 8, 3))
    assert held.shape == (8, 12)
    assert len(np.unique(held)) == held.size
    for mine, out in zip(kept, held, strict=True):
        assert sorted([*mine, *out]) == list(range(100))


def test_members_are_trained_independently_of_each_other():
    values = (FEATURES.numbers[:, :1] * 2).astype(np.float32)
    both = run(metric_of("linear", 1), values)
    both.run(None)
    alone = run(metric_of("linear", 1), values)
    # The other member's start is spoilt: nothing of it may reach the first.
    with torch.no_grad():
        alone.parameters["A"][1] *= 3
    alone.run(None)
    np.testing.assert_allclose(both.parameters["A"][0].detach(), alone.parameters["A"][0].detach(), atol=1e-6)
    assert (both.parameters["A"][1] - alone.parameters["A"][1]).abs().max() > 0.1


def test_the_parameters_with_the_smallest_loss_on_held_out_rows_are_kept():
    values = (FEATURES.numbers[:, :1] * 2).astype(np.float32)
    seen = []
    metric = metric_of("network", 1, trend="network")
    learned = train_metric(
        metric, FEATURES, values, None, training_options(steps=60), 0, lambda *report: seen.append(report)
    )
    assert [done for done, _, _ in seen] == [10, 20, 30, 40, 50, 60]
    losses = [loss for _, _, loss in seen]
    assert losses == sorted(losses, reverse=True)
    assert learned.losses.mean() == pytest.approx(losses[-1])
    assert losses[-1] < 0.5 * losses[0]


def test_keys_of_many_rows_are_those_of_the_rows_one_by_one(monkeypatch):
    from qkv.estimators import metric_learning as learning

    metric = metric_of("network", 1, trend="network")
    parameters = metric.initial_parameters(2, torch.Generator().manual_seed(0))
    whole = embed_rows(metric, parameters, *as_tensors(FEATURES))
    monkeypatch.setattr(learning, "_EMBEDDING_BLOCK", 9)
    for found, wanted in zip(embed_rows(metric, parameters, *as_tensors(FEATURES)), whole, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_the_code_of_a_rare_level_has_no_element_of_its_own():
    (flags,) = _one_hot(torch.tensor([[0, 1], [2, 0], [1, 1]]), (3, 2))
    assert flags.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 1, 0, 0, 0]]


def test_held_out_rows_are_predicted_from_the_training_rows_alone():
    trainer = run(metric_of("linear", 1), FEATURES.numbers[:, :1])
    assert torch.equal(trainer.validation_keys, trainer.training)


def test_progress_is_reported_at_every_check_of_the_held_out_rows_with_their_loss():
    told = []
    trainer = run(metric_of("linear", 1), FEATURES.numbers[:, :1], steps=25)
    assert trainer.run(lambda *each: told.append(each)) == 25
    assert [each[:2] for each in told] == [(10, 25), (20, 25), (25, 25)]
    assert told[-1][2] == pytest.approx(float(trainer.best_losses.mean()))
    assert all(np.isfinite(each[2]) for each in told)


def test_dropout_keeps_the_expected_value():
    trainer = run(metric_of("network", 1), FEATURES.numbers[:, :1], dropout=0.25)
    mask = trainer._dropout_mask(2000)
    assert sorted(set(mask.flatten().tolist())) == pytest.approx([0.0, 4 / 3])
    assert float(mask.mean()) == pytest.approx(1.0, abs=0.02)
