"""AttentionRanker: its loss is the formula, in linear memory, and learning lowers it."""

import numpy as np
import pytest

from qkv.errors import DataError, OptionError, ShapeError
from qkv.estimators import AttentionRanker

torch = pytest.importorskip("torch")


def problem(seed=0, queries=7, documents=40, width=5):
    rng = np.random.default_rng(seed)
    relevant = [rng.choice(documents, size=rng.integers(1, 4), replace=False).tolist() for _ in range(queries)]
    return rng.normal(size=(queries, width)), rng.normal(size=(documents, width)), relevant


def dense_loss(queries, documents, relevant, groups, temperature, loss, maps):
    """The formula as it stands, over a matrix of all pairs, in float64."""
    logits = (queries @ maps[0].T) @ (documents @ maps[1].T).T / temperature
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    costs = []
    for row, wanted in zip(weights, relevant, strict=True):
        each = [row[groups == owner].sum() for owner in wanted]
        if each:
            costs.append(-np.log(sum(each)) if loss == "mass" else -np.log(each).mean())
    return np.mean(costs)


@pytest.mark.parametrize("loss", ["each", "mass"])
@pytest.mark.parametrize("passages", [False, True])
def test_the_loss_is_that_of_the_formula(loss, passages):
    queries, documents, relevant = problem()
    relevant[2] = []  # teaches nothing
    groups = np.arange(40) // 2 if passages else np.arange(40)
    relevant = [[number // 2 for number in numbers] for numbers in relevant] if passages else relevant
    relevant = [sorted(set(numbers)) for numbers in relevant]
    options = {"temperature": 0.5, "penalty": 3.0, "loss": loss}
    ranker = AttentionRanker(**options).fit(queries, documents, relevant, document_ids=groups)
    one = np.eye(5)
    start = dense_loss(queries, documents, relevant, groups, 0.5, loss, (one, one))
    maps = ranker.query_weight_.astype(float), ranker.key_weight_.astype(float)
    cost = 3.0 * sum(np.square(weight - one).sum() for weight in maps) / sum(map(len, relevant))
    end = dense_loss(queries, documents, relevant, groups, 0.5, loss, maps) + cost
    assert ranker.losses_[0] == pytest.approx(start, rel=1e-5)
    assert min(ranker.losses_) == pytest.approx(end, rel=1e-4)
    assert end < start


def test_the_gradient_is_that_of_the_loss():
    from qkv.estimators.ranker import _relevant_pairs, _RelevantPairs

    queries, documents, relevant = problem(1, 4, 12, 3)
    pairs = _relevant_pairs(relevant, 4, np.arange(12), False)
    at = _RelevantPairs(*(torch.from_numpy(np.asarray(part)) for part in pairs))
    at = at._replace(group_weight=at.group_weight.double())
    query, key = torch.from_numpy(queries), torch.from_numpy(documents)
    ranker = AttentionRanker(temperature=0.7)
    maps = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(lambda left, right: ranker._attention_loss(query, key, [left, right], at), maps)


@pytest.mark.filterwarnings("ignore::qkv.errors.MemoryBudgetWarning")
def test_the_softmax_fits_a_memory_that_its_weights_would_not():
    queries, documents, relevant = problem(2, 500, 4000, 8)
    few = AttentionRanker(temperature=1.0, steps=3, memory="2 MiB").fit(queries, documents, relevant)
    much = AttentionRanker(temperature=1.0, steps=3).fit(queries, documents, relevant)
    assert 500 * 4000 * 4 > 2 * 2**20
    np.testing.assert_allclose(few.losses_, much.losses_, rtol=1e-4)
    np.testing.assert_allclose(few.metric_, much.metric_, atol=1e-3)


def test_without_steps_or_with_a_large_penalty_the_projections_stay_at_1():
    queries, documents, relevant = problem()
    for options in ({"steps": 0}, {"penalty": 1e9}):
        ranker = AttentionRanker(**options).fit(queries, documents, relevant)
        np.testing.assert_allclose(ranker.metric_, np.eye(5), atol=1e-3)


def test_ranks_are_those_of_the_weights():
    queries, documents, relevant = problem()
    ranker = AttentionRanker(temperature=0.9, penalty=1.0).fit(queries, documents, relevant)
    logits = queries @ ranker.metric_ @ documents.T / 0.9
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    found = ranker.rank(queries, top=4)
    np.testing.assert_array_equal(found.documents, np.argsort(-weights, axis=1)[:, :4])
    np.testing.assert_allclose(found.weights, -np.sort(-weights, axis=1)[:, :4], rtol=1e-3)
    assert ranker.rank(queries, top=99, documents=documents[:3]).documents.shape == (7, 3)


@pytest.mark.parametrize(
    ("options", "change", "error", "says"),
    [
        ({"loss": "all"}, {}, OptionError, "one of each, mass"),
        ({"temperature": 0}, {}, OptionError, "temperature must be positive"),
        ({"penalty": -1.0}, {}, OptionError, "penalty must be at least 0"),
        ({}, {"relevant": [[0]]}, ShapeError, "each of 7 queries, got 1 lists"),
        ({}, {"relevant": [[40]] * 7}, DataError, "must hold only ids of documents, got 40"),
        ({}, {"relevant": [[]] * 7}, DataError, "at least one document"),
        ({}, {"queries": np.zeros((7, 4))}, ShapeError, r"got 4\. Use the same encoder for both\.$"),
        ({}, {"queries": np.zeros(7)}, ShapeError, r"shape \(rows, width\)"),
        ({}, {"document_ids": [1]}, ShapeError, "document_ids"),
        ({}, {"documents": np.full((40, 5), np.nan)}, DataError, "must be finite"),
    ],
)
def test_invalid_options_and_data_are_refused(options, change, error, says):
    queries, documents, relevant = problem()
    given = {"queries": queries, "documents": documents, "relevant": relevant} | change
    with pytest.raises(error, match=says):
        AttentionRanker(**options).fit(**given)


def test_progress_is_reported_while_a_ranker_is_trained():
    told = []
    rows = np.eye(4)
    AttentionRanker(steps=3).fit(rows, rows, [[0], [1], [2], [3]], progress=lambda *each: told.append(each))
    assert told
