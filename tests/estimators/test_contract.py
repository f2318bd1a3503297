"""scikit-learn's contract, and use with its tools: pipelines, searches, frames, copies, pickles."""

import pickle
from contextlib import ExitStack

import joblib
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

from qkv.core.threads import one_blas_thread
from qkv.estimators import AttentionClassifier, AttentionRegressor
from tests.sklearn_checks import parametrize_with_checks

REPEATED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "a row of weight 2 is not the same as two rows: leaving one row out keeps its twin, from which it is "
        "predicted without error"
    )
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
Y = np.sin(2 * X[:, 0]) + X[:, 1]


def quick(kind=AttentionRegressor, **options):
    return kind(**{"max_steps": 20, "random_state": 0, **options})


@parametrize_with_checks(
    [AttentionRegressor(max_steps=5), AttentionClassifier(max_steps=5)],
    expected_failed_checks=lambda estimator: REPEATED,
)
def test_scikit_learns_contract(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks(
    [
        AttentionRegressor(),
        AttentionClassifier(),
        *(
            kind(metric, max_steps=40)
            for kind in (AttentionRegressor, AttentionClassifier)
            for metric in ("none", "diagonal", "linear", "low_rank")
        ),
    ],
    expected_failed_checks=lambda estimator: REPEATED,
)
def test_scikit_learns_contract_with_all_metrics_and_default_training(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [AttentionRegressor, AttentionClassifier])
def test_rows_of_weight_0_are_left_out(kind):
    y = Y if kind is AttentionRegressor else Y > 0
    weights = np.ones(90)
    weights[::3] = 0
    weighed, without = quick(kind).fit(X, y, weights), quick(kind).fit(X[weights > 0], y[weights > 0])
    found, wanted = (
        model.predict_proba(X) if kind is AttentionClassifier else model.predict(X) for model in (weighed, without)
    )
    np.testing.assert_array_equal(found, wanted)
    weighed.partial_fit(X[:10], y[:10])
    without.partial_fit(X[:10], y[:10])
    named, stored = weighed.explain_rows(X, top=70).rows, without.explain_rows(X, top=70).rows
    np.testing.assert_array_equal(named, np.append(np.flatnonzero(weights), np.arange(90, 100))[stored])


def test_it_works_in_a_pipeline_a_search_and_a_cross_validation():
    pipe = make_pipeline(StandardScaler(), quick())
    search = GridSearchCV(pipe, {"attentionregressor__metric": ["none", "linear"]}, cv=3).fit(X, Y)
    assert search.best_score_ > 0.5
    assert (cross_val_score(quick(AttentionClassifier), X, Y > 0, cv=3) > 0.7).all()


def test_fitting_in_two_threads_gives_the_same_predictions():
    with joblib.parallel_config("threading"):
        scores = [cross_val_score(quick(), X, Y, cv=2, n_jobs=jobs) for jobs in (1, 2)]
    np.testing.assert_allclose(*scores, rtol=1e-6)


@pytest.mark.thinned
@pytest.mark.parametrize("metric", ["none", "network"])
@pytest.mark.parametrize("kind", [AttentionRegressor, AttentionClassifier])
def test_a_copy_through_pickle_joblib_and_skops_predicts_the_same(kind, metric, tmp_path):
    model = quick(kind, metric=metric).fit(X, Y if kind is AttentionRegressor else Y > 0)
    copies = [pickle.loads(pickle.dumps(model))]
    joblib.dump(model, tmp_path / "model.joblib")
    copies.append(joblib.load(tmp_path / "model.joblib"))
    skops = pytest.importorskip("skops.io")
    kept = skops.dumps(model)
    strange = skops.get_untrusted_types(data=kept)
    assert strange == [f"{kind.__module__}.{kind.__name__}"], "only the estimator itself is to be trusted"
    copies.append(skops.loads(kept, trusted=strange))
    for copy in copies:
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        np.testing.assert_array_equal(copy.explain_rows(X[:2]).rows, model.explain_rows(X[:2]).rows)


def test_models_pickled_under_the_former_attribute_names_load():
    model = quick().fit(X, Y, np.arange(90) + 1.0)
    former = {"residuals_": "moved_", "sample_weight_": "shares_"}
    former |= {"out_of_bag_rows_": "asked_", "out_of_bag_errors_": "errors_"}
    old = AttentionRegressor()
    old.__setstate__({former.get(name, name): value for name, value in model.__getstate__().items()})
    np.testing.assert_array_equal(old.predict(X), model.predict(X))
    np.testing.assert_array_equal(old.predict_std(X), model.predict_std(X))


def test_fitted_attributes_hold_no_objects_of_pytorch():
    import torch

    def things(value):
        if isinstance(value, dict):
            value = list(value.values())
        return [x for each in value for x in things(each)] if isinstance(value, list | tuple) else [value]

    model = quick().fit(X, Y)
    kept = things(vars(model))
    assert not any(isinstance(each, torch.Tensor | torch.nn.Module) for each in kept)
    assert all(isinstance(each, np.ndarray | str | int | float | bool | None.__class__) for each in kept), {
        type(each) for each in kept
    }


def test_the_same_seed_gives_the_same_predictions_and_other_seeds_others():
    first, again, other = (quick(random_state=seed).fit(X, Y).predict(X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_fitting_leaves_the_generator_of_pytorch_and_its_threads_as_they_were():
    import torch

    state, threads, pools = torch.get_rng_state(), torch.get_num_threads(), threadpool_info()
    quick().fit(X, Y)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert threadpool_info() == pools


def test_fits_that_overlap_leave_the_threads_of_blas_as_they_were():
    inner, outer = ExitStack(), ExitStack()
    with threadpool_limits(2, "blas"):
        before = threadpool_info()
        outer.enter_context(one_blas_thread())
        inner.enter_context(one_blas_thread())
        assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        outer.close()
        inner.close()
        assert threadpool_info() == before
