"""Latent semantics: a worked example, scikit-learn's checks, and solvers that agree."""

import numpy as np
import pytest
import scipy.sparse as sparse
from sklearn.decomposition import PCA

from qkv.encoders import LatentSemantics
from qkv.encoders.weighting import get_weighting
from qkv.errors import OptionError
from tests.sklearn_checks import parametrize_with_checks

RATINGS = np.array(
    [
        [1, 1, 1, 0, 0],
        [3, 3, 3, 0, 0],
        [4, 4, 4, 0, 0],
        [5, 5, 5, 0, 0],
        [0, 2, 0, 4, 4],
        [0, 0, 0, 5, 5],
        [0, 1, 0, 2, 2],
    ],
    float,
)
NEW = np.array([[5, 0, 0, 0, 0], [0, 4, 5, 0, 0]], float)


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def same_up_to_sign(a, b, atol=1e-10):
    """Columns of a are those of b or their opposites."""
    signs = np.sign((a * b).sum(axis=0))
    np.testing.assert_allclose(a, b * signs, atol=atol)


@parametrize_with_checks([LatentSemantics(2), LatentSemantics(2, center=True)])
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def test_the_singular_values_of_the_ratings_are_those_of_the_worked_example():
    found = LatentSemantics(5).fit(RATINGS).singular_values_
    np.testing.assert_allclose(found, [12.48, 9.51, 1.35, 0, 0], atol=0.005)


def test_two_viewers_without_a_film_in_common_are_near_each_other():
    assert cosine(*NEW) == 0
    fitted = LatentSemantics(2).fit(RATINGS)
    plain, scaled = fitted.fold_in(NEW), fitted.fold_in(NEW, scale=True)
    same_up_to_sign(plain, np.array([[-2.81, -0.63], [-5.18, -0.52]]), atol=0.005)
    same_up_to_sign(scaled, np.array([[-0.23, -0.07], [-0.42, -0.05]]), atol=0.005)
    assert cosine(*plain) == pytest.approx(0.9926, abs=5e-5)
    assert cosine(*scaled) == pytest.approx(0.9877, abs=5e-5)


def test_folding_in_the_rows_that_were_fitted_gives_the_left_singular_vectors():
    left = np.linalg.svd(RATINGS, full_matrices=False)[0][:, :2]
    same_up_to_sign(LatentSemantics(2, scale=True).fit_transform(RATINGS), left)


def test_centred_latent_semantics_are_principal_components():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 6)) @ rng.normal(size=(6, 6)) + 3
    ours, theirs = LatentSemantics(3, center=True).fit(rows), PCA(3).fit(rows)
    same_up_to_sign(ours.transform(rows), theirs.transform(rows))
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_)
    np.testing.assert_allclose(ours.mean_, theirs.mean_)
    np.testing.assert_allclose(
        ours.inverse_transform(ours.transform(rows)), theirs.inverse_transform(theirs.transform(rows))
    )


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("solver", ["exact", "randomized"])
@pytest.mark.parametrize("weighting", [None, "tfidf", "log-entropy"])
def test_sparse_and_dense_matrices_have_the_same_space(center, solver, weighting, monkeypatch):
    from qkv.encoders import latent_semantics as latent

    monkeypatch.setattr(latent, "_MAX_FULL_CELLS", 0)  # the way of large matrices
    rng = np.random.default_rng(1)
    # Six topics: the singular values beyond them fall steeply, as a randomized solver wants.
    counts = rng.poisson(3 * rng.random((60, 6)) @ (rng.random((6, 40)) ** 8))
    options = {"weighting": weighting, "center": center, "solver": solver, "random_state": 0}
    dense = LatentSemantics(6, **options).fit(counts)
    thin = LatentSemantics(6, **options).fit(sparse.csr_array(counts))
    exact = get_weighting(weighting).fit(counts.astype(float)).apply(counts.astype(float))
    values = np.linalg.svd(exact - exact.mean(axis=0) * center, compute_uv=False)[:6]
    tolerance = 1e-9 if solver == "exact" else 1e-3
    np.testing.assert_allclose(dense.singular_values_, values, rtol=tolerance)
    np.testing.assert_allclose(thin.singular_values_, values, rtol=tolerance)
    if solver == "exact":
        same_up_to_sign(dense.transform(counts), thin.transform(sparse.csr_array(counts)), atol=1e-7)


@pytest.mark.parametrize("center", [False, True])
def test_adding_rows_is_fitting_all_of_them_where_the_space_holds_everything(center):
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(40, 5)) @ rng.normal(size=(5, 12)) + 1
    whole = LatentSemantics(8, center=center).fit(rows)
    parts = LatentSemantics(8, center=center)
    for start in range(0, 40, 10):
        parts.partial_fit(rows[start : start + 10])
    np.testing.assert_allclose(parts.singular_values_[:5], whole.singular_values_[:5], rtol=1e-9)
    np.testing.assert_allclose(parts.mean_, whole.mean_, atol=1e-12)
    same_up_to_sign(parts.transform(rows)[:, :5], whole.transform(rows)[:, :5], atol=1e-8)
    assert parts.n_samples_seen_ == 40


def test_log_entropy_weights_are_those_of_their_formula():
    counts = np.random.default_rng(3).poisson(1.0, (9, 5)).astype(float)
    share = counts / counts.sum(axis=0)
    entropy = np.where(share > 0, share * np.log(np.where(share > 0, share, 1)), 0).sum(axis=0)
    expected = np.log1p(counts) * (1 + entropy / np.log(9))
    found = get_weighting("log-entropy").fit(counts)
    np.testing.assert_allclose(found.apply(counts), expected, atol=1e-12)
    np.testing.assert_allclose(found.apply(sparse.csr_array(counts)).toarray(), expected, atol=1e-12)


def test_tf_idf_is_scikit_learns():
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = np.random.default_rng(4).poisson(1.0, (9, 5)).astype(float)
    expected = TfidfTransformer(norm=None).fit_transform(counts).toarray()
    np.testing.assert_allclose(get_weighting("tfidf").fit(counts).apply(counts), expected)


def test_a_word_without_occurrences_has_a_finite_weight():
    counts = np.array([[1.0, 0.0], [2.0, 0.0]])
    for weighting in ("tfidf", "log-entropy"):
        assert np.isfinite(LatentSemantics(2, weighting=weighting).fit_transform(counts)).all()


def test_a_dimension_of_singular_value_zero_folds_to_zero():
    folded = LatentSemantics(5, scale=True).fit(RATINGS).transform(NEW)
    assert np.isfinite(folded).all()
    assert (folded[:, 3:] == 0).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"solver": "magic"}, "auto, exact, randomized"),
        ({"weighting": "bm25"}, "tfidf, log-entropy"),
    ],
)
def test_invalid_options_are_refused(options, says):
    with pytest.raises(OptionError, match=says):
        LatentSemantics(**options).fit(RATINGS)


def test_negative_cells_are_refused_under_a_weighting():
    with pytest.raises(ValueError, match="Negative"):
        LatentSemantics(2, weighting="tfidf").fit(-RATINGS)
