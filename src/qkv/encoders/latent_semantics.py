"""Latent semantics: rows and columns of a matrix in a space of few dimensions, by singular values.

    X ≈ U_k Σ_k V_kᵀ        rows of U_k Σ_k (or U_k) are the rows of X in the space of V_k

A new row x is folded in as a query: x V_k, or x V_k Σ_k⁻¹. With `center=True` this is principal components.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from qkv.encoders.weighting import WEIGHTINGS, Weighting, get_weighting
from qkv.errors import MissingPackageError, OptionError

try:
    import scipy.sparse as sparse
    from scipy.linalg import qr, svd
    from scipy.sparse.linalg import LinearOperator, svds
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.extmath import randomized_svd, svd_flip
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingPackageError(
        'latent semantics need scikit-learn, which is not installed. Run: pip install "qkv[sklearn]"'
    ) from None

__all__ = ["LatentSemantics"]

_SOLVERS = ("auto", "exact", "randomized")
_DENSE = 2000 * 2000
"""A matrix of at most so many cells is decomposed whole: that is quicker than a search for a few vectors."""


class LatentSemantics(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Singular value decomposition of a weighted matrix, into which new rows can be folded.

    Args:
        n_components: k, how many dimensions are kept; no more than the matrix has.
        weighting: of counts, before anything else: None, `"tfidf"` or `"log-entropy"`; see
            `qkv.encoders.weighting`. Cells must then not be negative.
        center: subtract the mean of each column: principal component analysis. Sparse matrices stay sparse.
        solver: `"exact"`, to rounding; `"randomized"`, faster and near it where the singular values fall;
            `"auto"`: exact. Centred sparse matrices are always decomposed exactly.
        scale: whether `transform` divides by the singular values (x V_k Σ_k⁻¹) or not (x V_k).
        random_state: of the randomized solver.

    Attributes:
        components_: V_kᵀ `(k, columns)`; the sign of each makes its largest entry positive.
        singular_values_: `(k,)`, falling.
        mean_: `(columns,)` of the weighted rows; zeros without `center`.
        rows_seen_: how many rows were learned from.

    Raises:
        OptionError: an option outside what is allowed (when fitted).
        ValueError: cells that are not finite, or negative ones under a weighting.

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
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.weighting = weighting
        self.center = center
        self.solver = solver
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Decompose `(rows, columns)`, dense or sparse."""
        self._check_options()
        X = self._read(X, reset=True)
        self._weighting: Weighting = get_weighting(self.weighting).fit(X)
        X = self._weighting.apply(X)
        self.mean_ = np.asarray(X.mean(axis=0)).reshape(-1) if self.center else np.zeros(X.shape[1])
        self.rows_seen_ = X.shape[0]
        self._keep(*self._decompose(X))
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add rows to what is decomposed, without the rows seen before.

        The result is that of a fit to all rows as far as the kept dimensions can tell: exact where
        they held everything. The weighting stays that of the first rows.
        """
        if not hasattr(self, "components_"):
            return self.fit(X)
        self._check_options()
        X = self._weighting.apply(self._read(X, reset=False))
        dense = np.asarray(X.toarray() if sparse.issparse(X) else X, np.float64)
        before, new = self.rows_seen_, len(dense)
        if self.center:
            mean = dense.mean(axis=0)
            shift = np.sqrt(before * new / (before + new)) * (self.mean_ - mean)
            dense = np.concatenate([dense - mean, shift[None]])
            self.mean_ = (before * self.mean_ + new * mean) / (before + new)
        # [UΣVᵀ; X] has the right singular vectors of [ΣVᵀ; X]: a few rows instead of all.
        few = np.concatenate([self.singular_values_[:, None] * self.components_, dense])
        basis, _ = qr(np.concatenate([self.components_, dense]).T, mode="economic")
        _, values, right = svd(few @ basis, full_matrices=False)
        self.rows_seen_ = before + new
        kept = min(self.n_components, self.rows_seen_, self.components_.shape[1])
        self._keep(values[:kept], right[:kept] @ basis.T)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Rows in the latent space, as `fold_in` with the option `scale`."""
        return self.fold_in(X, scale=self.scale)

    def fold_in(self, X: Any, *, scale: bool = False) -> np.ndarray:
        """New rows in the latent space: x V_k, or x V_k Σ_k⁻¹ with `scale`.

        Scaled rows of the fitted matrix are the rows of U_k. A dimension of singular value 0 stays 0.

        Args:
            X: `(rows, columns)`, in the units of the fitted matrix; the weighting is applied.
            scale: divide by the singular values.
        """
        check_is_fitted(self, "components_")
        X = self._weighting.apply(self._read(X, reset=False))
        folded = np.asarray(X @ self.components_.T) - self.mean_ @ self.components_.T
        if scale:
            values = self.singular_values_
            tiny = values <= np.finfo(np.float64).eps * max(self.rows_seen_, len(values)) * values.max(initial=0)
            folded = np.where(tiny, 0.0, folded / np.where(tiny, 1.0, values))
        return np.asarray(folded)

    def inverse_transform(self, X: Any) -> np.ndarray:
        """The weighted rows that points of the latent space stand for."""
        check_is_fitted(self, "components_")
        points = np.asarray(X, np.float64)
        if self.scale:
            points = points * self.singular_values_
        return np.asarray(points @ self.components_ + self.mean_)

    # -- within -----------------------------------------------------------------------------------------

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = self.weighting is not None
        return tags

    def _check_options(self) -> None:
        k = self.n_components
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise OptionError(f"n_components is {k!r}, and a whole number from 1 is wanted.")
        if self.solver not in _SOLVERS:
            raise OptionError(f"the solver is {self.solver!r}, and one of {', '.join(_SOLVERS)} is wanted.")
        if self.weighting not in WEIGHTINGS:
            known = ", ".join(map(repr, WEIGHTINGS))
            raise OptionError(f"the weighting is {self.weighting!r}, and one of {known} is wanted.")

    def _read(self, X: Any, reset: bool) -> Any:
        return validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr",
            dtype=np.float64,
            ensure_non_negative=self.weighting is not None,
        )

    def _decompose(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        k = min(self.n_components, *X.shape)
        thin = sparse.issparse(X)
        if self.solver == "randomized" and k < min(X.shape) and not (thin and self.center):
            state = check_random_state(self.random_state)
            rows = X if thin else X - self.mean_
            _, values, right = randomized_svd(rows, k, n_iter=7, random_state=state, flip_sign=False)
            return values, right
        if X.shape[0] * X.shape[1] <= _DENSE or 3 * k >= min(X.shape):
            dense = X.toarray() if thin else X
            _, values, right = svd(dense - self.mean_, full_matrices=False)
            return values[:k], right[:k]
        start = check_random_state(0).uniform(-1, 1, min(X.shape))
        centred = self._centred(X) if self.center else X
        _, values, right = svds(centred, k, v0=start, return_singular_vectors="vh")
        return values[::-1], right[::-1]

    def _centred(self, X: Any) -> Any:
        """X minus its mean as an operator, so that a sparse matrix stays sparse."""
        mean = self.mean_
        return LinearOperator(
            X.shape,
            matvec=lambda v: X @ v - mean @ v,
            rmatvec=lambda v: X.T @ v - mean * v.sum(),
            matmat=lambda v: X @ v - mean @ v,
            rmatmat=lambda v: X.T @ v - np.outer(mean, v.sum(axis=0)),
            dtype=np.float64,
        )

    def _keep(self, values: np.ndarray, right: np.ndarray) -> None:
        _, right = svd_flip(None, right, u_based_decision=False)
        self.singular_values_ = np.ascontiguousarray(values)
        self.components_ = np.ascontiguousarray(right)
