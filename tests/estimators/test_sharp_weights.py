"""Leave-one-out losses and bandwidths where weights range from 1 to numbers that float32 cannot represent."""

import numpy as np
import pytest

pytest.importorskip("torch")

from qkv.estimators import AttentionClassifier
from qkv.estimators.analytic_gradient import leave_one_out_loss, weighted_means
from qkv.estimators.bandwidth_search import search_bandwidth
from tests.effort import seeds


def dense_means(queries, keys, values, inverse, weight, own=None):
    """Return the weighted means by their definition in float64; `own` are rows that do not contribute."""
    logits = np.log(weight) - inverse * np.square(queries[:, None] - keys[None]).sum(axis=-1)
    if own is not None:
        logits[np.arange(len(queries)), own] = -np.inf
    logits -= logits.max(axis=1, keepdims=True)
    shares = np.exp(logits)
    return shares @ values / shares.sum(axis=1, keepdims=True)


def draw(seed):
    generator = np.random.default_rng(seed)
    rows, width, outputs = int(generator.integers(2, 90)), int(generator.integers(1, 5)), int(generator.integers(1, 3))
    keys = generator.normal(size=(rows, width)).astype(np.float32)
    values = generator.normal(size=(rows, outputs)).astype(np.float32)
    weight = generator.uniform(0.2, 3.0, (rows, 1)).astype(np.float32)
    return generator, keys, values, weight, float(np.exp(generator.uniform(-5, 6)))


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_the_loss_and_the_gradient_in_the_keys_are_those_of_the_definition(seed):
    generator, keys, values, weight, inverse = draw(seed)
    share = weight if seed % 2 else None
    factor = np.ones_like(weight) if share is None else share

    def loss(at):
        errors = dense_means(at, at, values, inverse, factor[:, 0], np.arange(len(at))) - values
        return float((np.square(errors).mean(axis=1) * factor[:, 0]).sum() / len(at))

    found = leave_one_out_loss(keys, values, None, np.array([inverse], np.float32), share, False)
    assert found.loss == pytest.approx(loss(keys.astype(np.float64)), rel=2e-3)
    direction, step = generator.normal(size=keys.shape), 1e-6
    at = keys.astype(np.float64)
    slope = (loss(at + step * direction) - loss(at - step * direction)) / (2 * step)
    size = float(np.linalg.norm(found.keys) * np.linalg.norm(direction))
    assert float(np.vdot(found.keys, direction)) == pytest.approx(slope, abs=5e-3 * size + 1e-5)


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_weighted_means_are_those_of_the_definition(seed):
    generator, keys, values, weight, inverse = draw(seed)
    queries = generator.normal(size=(7, keys.shape[1])).astype(np.float32)
    share = weight if seed % 2 else None
    wanted = dense_means(queries, keys, values, inverse, (np.ones_like(weight) if share is None else share)[:, 0])
    found = weighted_means(queries, keys, values, np.array([inverse], np.float32), share)
    np.testing.assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("classes", [False, True])
@pytest.mark.parametrize("seed", seeds(12, 6))
def test_the_chosen_bandwidth_has_the_smallest_left_out_loss(seed, classes):
    generator, keys, values, weight, inverse = draw(seed)
    if classes:
        values = np.eye(2, dtype=np.float32)[generator.integers(0, 2, len(keys))]
    share = weight if seed % 2 else None
    factor = np.ones_like(weight) if share is None else share
    members = np.stack([keys, 1.5 * keys])
    trends = None if classes else generator.normal(size=(2, *values.shape)).astype(np.float32)
    out_of_bag = np.stack([generator.permutation(len(keys))[: 1 + len(keys) // 2] for _ in range(2)])
    bandwidth = np.full((2, 1 if classes else values.shape[1]), (0.5 / inverse) ** 0.5, np.float32)
    bandwidth *= 1.1 ** np.arange(bandwidth.shape[1])
    factors = (0.3, 1.0, 4.0)
    found = search_bandwidth(members, trends, values, share, out_of_bag, bandwidth, factors, classes, 1e9)
    for member, own in enumerate(out_of_bag):
        at = members[member].astype(np.float64)
        trend = np.zeros_like(values) if trends is None else trends[member]
        losses = []
        for scale in factors:
            columns = []
            for output, h in enumerate(bandwidth[member].astype(np.float64) * scale):
                part = slice(None) if classes else slice(output, output + 1)
                residuals = (values - trend)[:, part].astype(np.float64)
                means = dense_means(at[own], at, residuals, 0.5 / h**2, factor[:, 0], own) + trend[own, part]
                columns.append(means)
            predicted = np.concatenate(columns, axis=1)
            if classes:
                loss = -np.log(np.maximum((predicted * values[own]).sum(axis=1, keepdims=True), 1e-6))
            else:
                loss = np.square(predicted - values[own])
            losses.append(np.average(loss, axis=0, weights=factor[own, 0]))
        wanted = np.min(losses, axis=0)
        places = np.abs(np.log(np.divide.outer(found.bandwidth[member] / bandwidth[member], factors))).argmin(axis=1)
        chosen = np.array([losses[place][output] for output, place in enumerate(places)])
        np.testing.assert_allclose(chosen, wanted, rtol=1e-4, atol=1e-6)
        assert found.loss[member] == pytest.approx(wanted.mean(), rel=1e-4, abs=1e-6)


def test_a_row_unlike_its_neighbours_has_a_limited_log_loss():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 2))
    y = np.where(x[:, 0] > 0, "right", "left")
    model = AttentionClassifier(effort="quick", random_state=0, verbose=False).fit(x, y)
    share, prior = model.uniform_share_, np.array([(y == name).mean() for name in model.classes_])
    assert 0 < share < 0.2
    new = np.concatenate([generator.normal(size=(50, 2)), [[50.0, 0.0], [-50.0, 3.0]]])
    found = model.predict_proba(new)
    assert (found >= share * prior * (1 - 1e-9)).all()
    seen = model.explain_rows(new, top=300)
    assert seen.weights.min() >= share / 300 * (1 - 1e-9)
    model.uniform_share_ = 0.0
    np.testing.assert_allclose(found, (1 - share) * model.predict_proba(new) + share * prior, atol=1e-12)


def test_more_misleading_rows_raise_the_uniform_share():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(600, 2))
    shares = []
    for wrong in (0.0, 0.1):
        y = (x[:, 0] > 0) ^ (generator.random(600) < wrong)
        keys, values = x[None].astype(np.float32), np.eye(2, dtype=np.float32)[y.astype(int)]
        own, bandwidth = generator.permutation(600)[None, :200], np.full((1, 1), 0.02, np.float32)
        options = {"classification": True, "max_pairs": 1e9, "shares": (0.0, 0.001, 0.01, 0.1)}
        shares.append(search_bandwidth(keys, None, values, None, own, bandwidth, (1.0,), **options).uniform)
    assert shares[0] < shares[1]


def test_a_fixed_bandwidth_has_no_uniform_share():
    x = np.linspace(-1, 1, 40)[:, None]
    assert AttentionClassifier(metric="none", bandwidth=0.1).fit(x, x[:, 0] > 0).uniform_share_ == 0
