"""Rollout, flow and scaled weights, compared with their definitions and with the minimum cut."""

import itertools

import numpy as np
import pytest

from qkv import look
from qkv.errors import OptionError, ShapeError


def weights(seed, layers=3, heads=2, tokens=4, causal=False):
    logits = np.random.default_rng(seed).normal(size=(layers, heads, tokens, tokens)) * 2
    if causal:
        logits = np.where(np.tri(tokens, dtype=bool), logits, -np.inf)
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def test_rollout_is_the_sum_over_all_paths():
    given = weights(0)
    mixed = 0.5 * np.eye(4) + 0.5 * given.mean(axis=1)
    summed = np.zeros((4, 4))
    for path in itertools.product(range(4), repeat=4):  # output, after layer 2, after layer 1, input
        out, two, one, start = path
        summed[out, start] += mixed[2, out, two] * mixed[1, two, one] * mixed[0, one, start]
    assert np.allclose(look.rollout(given), summed, atol=1e-15)


@pytest.mark.parametrize("causal", [False, True])
def test_rollout_has_rows_that_sum_to_one_and_preserves_causality(causal):
    through = look.rollout(weights(1, causal=causal))
    assert np.allclose(through.sum(axis=-1), 1.0)
    assert (np.triu(through, 1) == 0).all() == causal


def test_rollout_of_the_residual_alone_is_the_identity():
    assert np.array_equal(look.rollout(weights(2), residual=1.0), np.eye(4))


def test_flow_of_one_layer_is_its_weights():
    given = weights(3, layers=1)
    assert np.allclose(look.flow(given, residual=0.0), given[0].mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_flow_is_the_smallest_cut(seed):
    given = weights(seed, layers=2, tokens=3)
    mixed = 0.5 * np.eye(3) + 0.5 * given.mean(axis=1)
    found = look.flow(given)
    for out, key in itertools.product(range(3), repeat=2):
        # A cut puts each token of the middle layer on the side of the output or of the input; the other
        # inputs and outputs are on the side where they cost least.
        cuts = []
        for side in itertools.product([True, False], repeat=3):
            with_output = np.array(side)
            cuts.append(mixed[1, out, ~with_output].sum() + mixed[0, with_output, key].sum())
        assert found[out, key] == pytest.approx(min(cuts), abs=1e-6)


def test_flow_is_at_least_rollout_and_at_most_one():
    given = weights(5)
    flows = look.flow(given)
    assert (flows >= look.rollout(given) - 1e-6).all()
    assert (flows <= 1 + 1e-6).all()


def test_flow_of_some_queries_is_their_rows_of_the_whole():
    given = weights(6)
    assert np.array_equal(look.flow(given, queries=[3, 1]), look.flow(given)[[3, 1]])


def test_a_weight_with_a_negative_gradient_becomes_zero():
    given, gradient = weights(7), np.random.default_rng(8).normal(size=(3, 2, 4, 4))
    found = look.gradient_weighted(given, gradient)
    assert (found[gradient < 0] == 0).all()
    assert np.allclose(found[gradient > 0], (given * gradient)[gradient > 0])


def test_norm_weighted_attention_is_the_norm_of_each_summand_of_the_output():
    rng = np.random.default_rng(9)
    given, values, maps = weights(10)[0], rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 5, 6))
    found = look.norm_weighted(given, values, maps)
    for head, query, key in itertools.product(range(2), range(4), range(4)):
        summand = given[head, query, key] * (values[head, key] @ maps[head])
        assert found[head, query, key] == pytest.approx(np.linalg.norm(summand))


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (lambda: look.rollout(np.ones((2, 3, 4, 5))), ShapeError, r"\(layers, heads, tokens, tokens\)"),
        (lambda: look.rollout(np.ones((4, 4))), ShapeError, r"\(4, 4\)"),
        (lambda: look.rollout(np.ones((1, 1, 2, 2)), residual=2), OptionError, "between 0 and 1"),
        (lambda: look.gradient_weighted(np.ones((2, 2)), np.ones((2, 3))), ShapeError, r"\(2, 3\)"),
        (lambda: look.norm_weighted(np.ones((1, 2, 2)), np.ones((1, 3, 2))), ShapeError, "same heads and keys"),
        (
            lambda: look.norm_weighted(np.ones((1, 2, 2)), np.ones((1, 2, 3)), np.ones((1, 4, 5))),
            ShapeError,
            r"\(1, 3, width\)",
        ),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(wrong, error, says):
    with pytest.raises(error, match=says):
        wrong()


def test_the_flow_of_single_pairs_is_that_of_all_pairs():
    pytest.importorskip("scipy")
    weights = np.random.default_rng(0).dirichlet(np.full(9, 0.3), (3, 2, 9))
    whole = look.flow(weights)
    assert look.flow(weights, queries=[4, 7], keys=[0, 8, 3]) == pytest.approx(whole[[4, 7]][:, [0, 8, 3]], abs=1e-9)
