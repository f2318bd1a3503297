"""ModernNCA: a learned metric, and a prediction by the softmax of negative distances to the training rows.

    p(i → j) = softmax_j(−‖z(x_i) − z(x_j)‖ / T)        prediction(x_i) = Σ_j p(i → j) y_j

The encoder z embeds numbers by PLR(lite), appends the columns of categories, and applies a linear layer and optional
blocks of batch norm, linear, ReLU, dropout and linear. While training, the candidates j are the rows of the batch other
than i and a random share of the other training rows, drawn anew for each batch; predictions use all training rows. The
loss is the mean squared error of the standardized target, or −log of the probability of the true class.

Defaults are those that the authors publish. A fifth of the rows ends the training, after 20 epochs without improvement.

Sources: Ye, Yin, Zhan, Chao (2024), Revisiting Nearest Neighbor for Tabular Data: A Deep Tabular Baseline Two Decades
Later, arXiv 2407.03257, and the configuration in the authors' toolbox LAMDA-TALENT; PLR(lite) is of Gorishniy et al.
(2022), On Embeddings for Numerical Features in Tabular Deep Learning.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

__all__ = ["ModernNCA"]

_CHUNK = 1024
_SMALLEST = 1e-7


class _Periodic(nn.Module):
    """PLR(lite): ReLU of a linear layer, shared by all numbers, of the sine and cosine of learned frequencies."""

    def __init__(self, numbers: int, frequencies: int, scale: float, width: int) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(scale * torch.randn(numbers, frequencies))
        self.linear = nn.Linear(2 * frequencies, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = 2 * math.pi * self.frequencies * x[..., None]
        return torch.relu(self.linear(torch.cat([angles.cos(), angles.sin()], -1))).flatten(1)


class _Encoder(nn.Module):
    def __init__(self, columns: int, numbers: int, model: ModernNCA) -> None:
        super().__init__()
        self.numbers = numbers
        self.embed = _Periodic(numbers, model.frequencies, model.frequency_scale, model.embedding) if numbers else None
        self.linear = nn.Linear(columns - numbers + numbers * model.embedding, model.width)
        blocks = [self._block(model.width, model.block_width, model.dropout) for _ in range(model.blocks)]
        self.after = nn.Sequential(*blocks, nn.BatchNorm1d(model.width)) if blocks else nn.Identity()

    @staticmethod
    def _block(width: int, inner: int, dropout: float) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inner, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = torch.cat([self.embed(x[:, : self.numbers]), x[:, self.numbers :]], 1)
        return self.after(self.linear(x))


class ModernNCA:
    """ModernNCA on numbers that are standardized and categories that have a column for each level.

    Args:
        classes: whether the target is a class, an integer from 0.
        numbers: how many of the first columns are numbers; None means all.
        width: width of the embedding z.
        blocks, block_width, dropout: number of blocks after the linear layer, their inner width and dropout.
        frequencies, frequency_scale, embedding: of PLR(lite).
        temperature: T.
        share: share of the other training rows that are candidates of a batch.
        learning_rate, weight_decay: of AdamW.
        batch, epochs, patience: rows of a batch, largest number of epochs, and epochs without improvement.
        random_state: seed.
    """

    def __init__(
        self,
        classes: bool = False,
        numbers: int | None = None,
        width: int = 128,
        blocks: int = 0,
        block_width: int = 512,
        dropout: float = 0.1,
        frequencies: int = 77,
        frequency_scale: float = 0.04431360576139521,
        embedding: int = 34,
        temperature: float = 1.0,
        share: float = 0.5,
        learning_rate: float = 0.01,
        weight_decay: float = 0.0002,
        batch: int = 1024,
        epochs: int = 200,
        patience: int = 20,
        random_state: int = 0,
    ) -> None:
        for name, value in locals().items():
            if name != "self":
                setattr(self, name, value)

    def fit(self, X: np.ndarray, y: np.ndarray) -> ModernNCA:
        """Train the encoder; a regression target is expected to be standardized."""
        from sklearn.model_selection import train_test_split

        common = self.classes and np.bincount(y).min() > 1
        train, held = train_test_split(
            np.arange(len(y)), test_size=0.2, random_state=self.random_state, stratify=y if common else None
        )
        x = torch.as_tensor(np.asarray(X), dtype=torch.float32)
        target = self._target(y)
        self.x_, self.y_ = x[train], target[train]
        with torch.random.fork_rng():
            torch.manual_seed(self.random_state)
            self._train(x[held], target[held])
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predicted numbers, or the most likely classes."""
        found = self._predict(torch.as_tensor(np.asarray(X), dtype=torch.float32))
        return (found.argmax(1) if self.classes else found[:, 0]).numpy()

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of each class."""
        return self._predict(torch.as_tensor(np.asarray(X), dtype=torch.float32)).numpy()

    def _target(self, y: np.ndarray) -> torch.Tensor:
        if self.classes:
            return nn.functional.one_hot(torch.as_tensor(y, dtype=torch.long)).float()
        return torch.as_tensor(y, dtype=torch.float32)[:, None]

    def _train(self, x_held: torch.Tensor, y_held: torch.Tensor) -> None:
        columns = self.x_.shape[1]
        self.encoder_ = _Encoder(columns, columns if self.numbers is None else self.numbers, self)
        optimizer = torch.optim.AdamW(self.encoder_.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        best, best_state, waited = math.inf, self.encoder_.state_dict(), 0
        for _ in range(self.epochs):
            self.encoder_.train()
            for rows in torch.randperm(len(self.x_)).split(self.batch):
                optimizer.zero_grad()
                self._loss(rows).backward()
                optimizer.step()
            error = self._error(x_held, y_held)
            waited += 1
            if error <= best:
                best, waited = error, 0
                best_state = {name: value.clone() for name, value in self.encoder_.state_dict().items()}
            if waited > self.patience:
                break
        self.encoder_.load_state_dict(best_state)

    def _loss(self, rows: torch.Tensor) -> torch.Tensor:
        others = torch.ones(len(self.x_), dtype=torch.bool)
        others[rows] = False
        others = others.nonzero()[:, 0]
        others = others[torch.randperm(len(others))[: int(self.share * len(others))]]
        z = self.encoder_(self.x_[rows])
        # The blocks' batch norm gets the batch and the candidates separately, as in the authors' code.
        candidates = torch.cat([z, self.encoder_(self.x_[others])]) if len(others) > 1 else z
        distance = torch.cdist(z, candidates) / self.temperature
        own = torch.eye(*distance.shape, dtype=torch.bool)
        weights = distance.neg().masked_fill(own, -math.inf).softmax(1)
        found = weights @ torch.cat([self.y_[rows], self.y_[others]])[: len(candidates)]
        if self.classes:
            return -((found + _SMALLEST).log() * self.y_[rows]).sum(1).mean()
        return ((found - self.y_[rows]) ** 2).mean()

    def _error(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Return the mean squared error, or the share of wrong classes."""
        found = self._predict(x)
        if self.classes:
            return float((found.argmax(1) != y.argmax(1)).float().mean())
        return float(((found - y) ** 2).mean())

    def _predict(self, x: torch.Tensor) -> torch.Tensor:
        self.encoder_.eval()
        with torch.no_grad():
            candidates = torch.cat([self.encoder_(part) for part in self.x_.split(_CHUNK)])
            parts = [torch.cdist(self.encoder_(part), candidates) for part in x.split(_CHUNK)]
            return torch.cat([(-part / self.temperature).softmax(1) @ self.y_ for part in parts])
