"""Compute latent semantics, a truncated singular value decomposition of a matrix of weighted counts.

    X ≈ U_k Σ_k V_kᵀ        row i of U_k Σ_k (or of U_k) represents row i of X in k dimensions

A new row x is projected to x V_k, or to x V_k Σ_k⁻¹. With `center=True` this is principal component analysis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np
import scipy.sparse as sparse
from scipy.linalg import qr, svd
from scipy.sparse.linalg import LinearOperator, svds
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.extmath import randomized_svd, svd_flip
from sklearn.utils.validation import check_is_fitted, validate_data

from qkv.core.checks import check_choice, check_integers
from qkv.core.typing import ArrayLike, Float
from qkv.encoders.weighting import Weighting, get_weighting

if TYPE_CHECKING:
    from sklearn.utils import Tags


_SOLVERS = ("auto", "exact", "randomized")
_MAX_FULL_CELLS = 2000 * 2000
"""Up to this number of cells, a full decomposition is faster than computing a few singular vectors."""


class LatentSemantics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Truncated singular value decomposition of a weighted matrix, which projects rows into a space of few dimensions.

    Args:
        n_components: number of dimensions k, limited by the numbers of rows and columns of the matrix.
        weighting: weighting of counts: None, `"tfidf"` or `"log-entropy"`, as in `qkv.encoders.weighting`. Weighted
            matrices must be non-negative.
        center: subtract the mean of each column (principal component analysis). Sparse matrices stay sparse.
        solver: `"exact"`; `"randomized"`, faster and accurate if the singular values decay; or `"auto"`, which
            is exact. Centered sparse matrices are always decomposed exactly.
        scale: divide by the singular values in `transform` (x V_k Σ_k⁻¹ instead of x V_k).
        random_state: seed of the randomized solver.

    Attributes:
        components_: V_kᵀ `(k, columns)`, signed so that the largest entry of each row is positive.
        singular_values_: `(k,)`, in descending order.
        mean_: `(columns,)`, mean of the weighted rows; zeros without `center`.
        n_samples_seen_: number of rows that were fitted.

    Raises:
        OptionError: an option is out of range; raised by `fit`.
        ValueError: an element of the matrix is not finite, or is negative although a weighting is used.

    Source:
        Deerwester, Dumais, Furnas, Landauer and Harshman 1990, Indexing by latent semantic analysis;
        updating: Brand 2006, Fast low-rank modifications of the thin singular value decomposition;
        randomized: Halko, Martinsson and Tropp 2011.

    Example:
        >>> ratings = np.array([[1, 1, 1, 0, 0], [3, 3, 3, 0, 0], [4, 4, 4, 0, 0], [5, 5, 5, 0, 0],
        ...                     [0, 2, 0, 4, 4], [0, 0, 0, 5, 5], [0, 1, 0, 2, 2]])
        >>> tastes = LatentSemantics(2).fit(ratings)
        >>> tastes.singular_values_.round(2).tolist()
        [12.48, 9.51]
        >>> new = np.array([[5, 0, 0, 0, 0], [0, 4, 5, 0, 0]])
        >>> a, b = tastes.fold_in(new)
        >>> round(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), 4)
        0.9926
    """

    def __init__(
        self,
        n_components: int = 100,
        *,
        weighting: str | None = None,
        center: bool = False,
        solver: str = "auto",
        scale: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.weighting = weighting
        self.center = center
        self.solver = solver
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit the weighting, the mean and the singular value decomposition to a dense or sparse matrix `X`."""
        self._check_options()
        weighting = get_weighting(self.weighting)
        X = self._validate(X, reset=True)
        self._weighting: Weighting = weighting.fit(X)
        X = self._weighting.apply(X)
        self.mean_ = np.asarray(X.mean(axis=0)).reshape(-1) if self.center else np.zeros(X.shape[1])
        self.n_samples_seen_ = X.shape[0]
        self._set_components(*self._decompose(X))
        return self

    def partial_fit(self, X: ArrayLike, y: object = None) -> Self:
        """Update the decomposition with further rows, without access to the rows that were fitted before.

        The result equals a fit to all rows if the earlier rows lie in the retained dimensions, and
        approximates it otherwise. The weighting of the first fit is used.
        """
        if not hasattr(self, "components_"):
            return self.fit(X)
        self._check_options()
        X = self._weighting.apply(self._validate(X, reset=False))
        dense = np.asarray(X.toarray() if sparse.issparse(X) else X, np.float64)
        before, new = self.n_samples_seen_, len(dense)
        if self.center:
            mean = dense.mean(axis=0)
            shift = np.sqrt(before * new / (before + new)) * (self.mean_ - mean)
            dense = np.concatenate([dense - mean, shift[None]])
            self.mean_ = (before * self.mean_ + new * mean) / (before + new)
        # [UΣVᵀ; X] has the right singular vectors of [ΣVᵀ; X]: a few rows instead of all.
        stacked = np.concatenate([self.singular_values_[:, None] * self.components_, dense])
        basis, _ = qr(np.concatenate([self.components_, dense]).T, mode="economic")
        _, values, right = svd(stacked @ basis, full_matrices=False)
        self.n_samples_seen_ = before + new
        count = min(self.n_components, self.n_samples_seen_, self.components_.shape[1])
        self._set_components(values[:count], right[:count] @ basis.T)
        return self

    def transform(self, X: ArrayLike) -> Float[np.ndarray, "rows k"]:
        """Project rows into the latent space by `fold_in(X, scale=self.scale)`."""
        return self.fold_in(X, scale=self.scale)

    def fold_in(self, X: ArrayLike, *, scale: bool = False) -> Float[np.ndarray, "rows k"]:
        """Project rows x into the latent space, and return x V_k, or x V_k Σ_k⁻¹ if `scale` is True.

        With `scale`, the rows of the fitted matrix give the rows of U_k. Dimensions with singular value 0 give 0.
        With `center`, x is the difference from the mean.

        Args:
            X: `(rows, columns)`, unweighted, in the units of the fitted matrix.
            scale: divide by the singular values.
        """
        check_is_fitted(self, "components_")
        X = self._weighting.apply(self._validate(X, reset=False))
        folded = np.asarray(X @ self.components_.T) - self.mean_ @ self.components_.T
        if scale:
            values = self.singular_values_
            tiny = values <= np.finfo(np.float64).eps * max(self.n_samples_seen_, len(values)) * values.max(initial=0)
            folded = np.where(tiny, 0.0, folded / np.where(tiny, 1.0, values))
        return np.asarray(folded)

    def inverse_transform(self, X: ArrayLike) -> Float[np.ndarray, "rows columns"]:
        """Reconstruct weighted rows `(rows, columns)` from their projections into the latent space `(rows, k)`."""
        check_is_fitted(self, "components_")
        points = np.asarray(X, np.float64)
        if self.scale:
            points = points * self.singular_values_
        return np.asarray(points @ self.components_ + self.mean_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self.weighting is not None
        return tags

    def _check_options(self) -> None:
        check_integers(n_components=self.n_components)
        check_choice("solver", self.solver, _SOLVERS)

    def _validate(self, X: ArrayLike, reset: bool) -> Float[np.ndarray, "rows columns"] | sparse.csr_matrix:
        return validate_data(
            self, X, reset=reset, accept_sparse="csr", dtype=np.float64, ensure_non_negative=self.weighting is not None
        )

    def _decompose(
        self, X: Float[np.ndarray, "rows columns"] | sparse.csr_matrix
    ) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "k columns"]]:
        k = min(self.n_components, *X.shape)
        is_sparse = sparse.issparse(X)
        if self.solver == "randomized" and k < min(X.shape) and not (is_sparse and self.center):
            state = check_random_state(self.random_state)
            rows = X if is_sparse else X - self.mean_
            _, values, right = randomized_svd(rows, k, n_iter=7, random_state=state, flip_sign=False)
            return values, right
        if X.shape[0] * X.shape[1] <= _MAX_FULL_CELLS or 3 * k >= min(X.shape):
            dense = X if isinstance(X, np.ndarray) else X.toarray()
            _, values, right = svd(dense - self.mean_, full_matrices=False)
            return values[:k], right[:k]
        start = check_random_state(0).uniform(-1, 1, min(X.shape))
        centered = self._center(X) if self.center else X
        _, values, right = svds(centered, k, v0=start, return_singular_vectors="vh")
        return values[::-1], right[::-1]

    def _center(self, X: sparse.csr_matrix) -> LinearOperator:
        """Return the matrix X minus the mean of its rows as a linear operator, without computing a dense matrix."""
        mean = self.mean_
        return LinearOperator(
            X.shape,
            matvec=lambda v: X @ v - mean @ v,
            rmatvec=lambda v: X.T @ v - mean * v.sum(),
            matmat=lambda v: X @ v - mean @ v,
            rmatmat=lambda v: X.T @ v - np.outer(mean, v.sum(axis=0)),
            dtype=np.float64,
        )

    def _set_components(self, values: Float[np.ndarray, " k"], right: Float[np.ndarray, "k columns"]) -> None:
        _, right = svd_flip(None, right, u_based_decision=False)
        self.singular_values_ = np.ascontiguousarray(values)
        self.components_ = np.ascontiguousarray(right)
