"""Gaussian process regression with GPyTorch: exact, or with inducing points (Titsias 2009)."""

from __future__ import annotations

import gpytorch
import numpy as np
import torch
from gpytorch import kernels, settings
from scipy.special import ndtri

__all__ = ["GaussianProcess"]

_CHUNK = 1000


class _Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, inducing):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.average = gpytorch.means.ConstantMean()
        self.kernel = kernels.ScaleKernel(kernels.MaternKernel(2.5, ard_num_dims=x.shape[1]))
        if inducing is not None:
            self.kernel = kernels.InducingPointKernel(self.kernel, inducing, self.likelihood)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.average(x), self.kernel(x))


class GaussianProcess:
    """Gaussian process with a Matérn 5/2 kernel, one length scale per column, and Gaussian noise.

    Hyperparameters maximize the marginal likelihood, or the bound of Titsias, by Adam.

    Args:
        inducing: number of inducing points, initialized by k-means; 0 means the exact process.
        steps: steps of Adam.
        learning_rate: learning rate of Adam.
    """

    def __init__(self, inducing: int = 0, steps: int = 100, learning_rate: float = 0.1) -> None:
        self.inducing = inducing
        self.steps = steps
        self.learning_rate = learning_rate

    def fit(self, X: np.ndarray, y: np.ndarray) -> GaussianProcess:
        """Fit hyperparameters; X and y are expected to be standardized."""
        x, y = torch.as_tensor(X, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)
        centres = None
        if self.inducing:
            from sklearn.cluster import KMeans

            clusters = KMeans(min(self.inducing, len(x)), n_init=1, max_iter=20, random_state=0).fit(X)
            centres = torch.as_tensor(clusters.cluster_centers_, dtype=torch.float64)
        self.process_ = _Process(x, y, centres).double().train()
        bound = gpytorch.mlls.ExactMarginalLogLikelihood(self.process_.likelihood, self.process_)
        optimizer = torch.optim.Adam(self.process_.parameters(), lr=self.learning_rate)
        with settings.max_cholesky_size(10**6):
            for _ in range(self.steps):
                optimizer.zero_grad()
                loss = -bound(self.process_(x), y)
                loss.backward()
                optimizer.step()
        self.process_.eval()
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the posterior mean."""
        return self._posterior(X)[0]

    def predict_interval(self, X: np.ndarray, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of central intervals of new values."""
        mean, deviation = self._posterior(X)
        half = ndtri((1 + level) / 2) * deviation
        return mean - half, mean + half

    def _posterior(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = torch.as_tensor(X, dtype=torch.float64)
        means, deviations = [], []
        with torch.no_grad(), settings.max_cholesky_size(10**6):
            for part in x.split(_CHUNK):
                found = self.process_.likelihood(self.process_(part))
                means.append(found.mean)
                deviations.append(found.stddev)
        return torch.cat(means).numpy(), torch.cat(deviations).numpy()
