"""Learning a metric: each row of a minibatch is predicted from the other rows, and the error goes back.

    loss = mean over rows i of the batch of  error(y_i, t(x_i) + Σ_{j≠i} w_ij (y_j − t(x_j)))

The other rows are all of the fitted ones, or a sample drawn anew for every batch where they are many. Members
of an ensemble learn at once, side by side on the first axis; each holds out rows of its own, on which a
running mean of its parameters is judged, and keeps the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.estimators.features import Features
from qkv.estimators.metric import Metric, Parameters
from qkv.estimators.nadaraya_watson import answer
from qkv.masks import Documents, Mask

__all__ = ["Learned", "Recipe", "keys_of", "learn", "loss_of"]

Progress = Callable[[int, int, float], None]

_JUDGED = 4096
"""No member holds out more rows than this: they tell the error well enough."""
_KEYS_WHILE_JUDGING = 16_384
_EMBEDDED = 8192
_LEAST_SHARE = 1e-6


@dataclass(frozen=True)
class Recipe:
    """How long and how fast.

    Fields:
        members: of the ensemble.
        steps: at most.
        batch, candidates: rows that are predicted, and rows they are predicted from, in one step.
        rate, decay, dropout: learning rate, weight decay, dropout of hidden values.
        patience: steps without a better error on the rows held out before it ends.
    """

    members: int
    steps: int
    batch: int
    candidates: int
    rate: float
    decay: float
    dropout: float
    patience: int


@dataclass(frozen=True)
class Learned:
    """What learning gives.

    Fields:
        parameters: by name, with members first.
        held: `(members, rows held out)`, indices.
        losses: of each member on its rows held out.
        steps: how many were made.
    """

    parameters: Parameters
    held: np.ndarray
    losses: np.ndarray
    steps: int


def learn(
    metric: Metric,
    features: Features,
    values: np.ndarray,
    shares: np.ndarray | None,
    recipe: Recipe,
    seed: int,
    progress: Progress | None = None,
) -> Learned:
    """The parameters with the least error on rows held out.

    Args:
        metric: what is learned.
        features: of the rows.
        values: `(rows, outputs)` float32, standardised, or 0 and 1 for classes.
        shares: `(rows,)` weights of the rows, of mean 1; None: all alike.
        recipe: how.
        seed: of every draw.
        progress: called with steps made, steps at most and the error on the rows held out.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = metric.start(recipe.members, generator)
    rows = _Rows.of(features, values, shares)
    kept, held = _split(len(features), recipe.members, seed)
    if held.shape[1] == 0 or recipe.steps == 0 or kept.shape[1] < 2:
        return Learned(parameters, held.numpy(), np.full(recipe.members, np.nan), 0)
    run = _Run(metric, parameters, rows, kept, held, recipe, generator)
    steps = run.until_done(progress)
    return Learned(run.best, held.numpy(), run.least.numpy(), steps)


def loss_of(predicted: Tensor, wanted: Tensor, shares: bool) -> Tensor:
    """For each row: the squared error, or −log of the share of its class."""
    if shares:
        return -torch.log((predicted * wanted).sum(dim=-1).clamp_min(_LEAST_SHARE))
    return (predicted - wanted).square().mean(dim=-1)


@torch.no_grad()
def keys_of(metric: Metric, parameters: Parameters, features: Features) -> tuple[Tensor, Tensor | None]:
    """Keys and trends of many rows, some thousands at a time."""
    keys, trends = [], []
    for start in range(0, max(len(features), 1), _EMBEDDED):
        part = slice(start, start + _EMBEDDED)
        numbers, codes = torch.from_numpy(features.numbers[part]), torch.from_numpy(features.codes[part])
        key, trend = metric(parameters, numbers[None], codes[None])
        keys.append(key)
        if trend is not None:
            trends.append(trend)
    return torch.cat(keys, dim=1), torch.cat(trends, dim=1) if trends else None


@dataclass(frozen=True)
class _Rows:
    numbers: Tensor
    codes: Tensor
    values: Tensor
    shares: Tensor | None

    @classmethod
    def of(cls, features: Features, values: np.ndarray, shares: np.ndarray | None) -> _Rows:
        weights = None if shares is None else torch.from_numpy(shares.astype(np.float32))[:, None]
        return cls(
            torch.from_numpy(features.numbers),
            torch.from_numpy(features.codes),
            torch.from_numpy(values),
            weights,
        )

    def share(self, index: Tensor) -> Tensor | None:
        return None if self.shares is None else self.shares[index]


def _split(rows: int, members: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows that each member learns from and rows that it holds out; no row is held out by two members."""
    order = np.random.default_rng(seed).permutation(rows)
    count = min(rows // max(members, 8), _JUDGED)
    held = np.stack([order[member * count : (member + 1) * count] for member in range(members)])
    kept = np.stack([np.setdiff1d(order, mine, assume_unique=True) for mine in held])
    return torch.from_numpy(kept), torch.from_numpy(held)


class _Run:
    def __init__(
        self,
        metric: Metric,
        parameters: Parameters,
        rows: _Rows,
        kept: Tensor,
        held: Tensor,
        recipe: Recipe,
        generator: torch.Generator,
    ) -> None:
        self.metric, self.rows, self.kept, self.held = metric, rows, kept, held
        self.recipe, self.generator = recipe, generator
        self.parameters = {name: each.requires_grad_() for name, each in parameters.items()}
        self.mean = {name: each.detach().clone() for name, each in parameters.items()}
        self.best = {name: each.clone() for name, each in self.mean.items()}
        self.least = torch.full((recipe.members,), math.inf)
        self.batch = min(recipe.batch, kept.shape[1])
        self.candidates = min(max(recipe.candidates, self.batch + 1), kept.shape[1])
        nobody = Documents(torch.arange(self.batch), torch.arange(self.candidates))
        self.others: Mask = ~nobody
        some = torch.randperm(kept.shape[1], generator=generator)[:_KEYS_WHILE_JUDGING]
        self.judged_from = kept[:, some] if kept.shape[1] > _KEYS_WHILE_JUDGING else kept

    def until_done(self, progress: Progress | None) -> int:
        recipe = self.recipe
        named = list(self.parameters.items())
        optimizer = torch.optim.AdamW(
            [
                {"params": [x for name, x in named if Metric.decays(name)], "weight_decay": recipe.decay},
                {"params": [x for name, x in named if not Metric.decays(name)], "weight_decay": 0.0},
            ],
            lr=recipe.rate,
            betas=(0.9, 0.95),
        )
        in_epoch = max(1, self.kept.shape[1] // self.batch)
        every = max(10, min(in_epoch, 50) // 2)
        waited = 0
        for step in range(recipe.steps):
            if step % in_epoch == 0:
                order = self._shuffled()
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * _pace(step, recipe.steps)
            loss = self._loss(order, step % in_epoch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self._average(min(0.98, (1 + step) / (10 + step)))
            if (step + 1) % every == 0 or step + 1 == recipe.steps:
                waited = 0 if self._judge() else waited + every
                if progress is not None:
                    progress(step + 1, recipe.steps, float(self.least.mean()))
                if waited >= max(recipe.patience, 2 * min(in_epoch, recipe.steps)):
                    return step + 1
        return recipe.steps

    def _shuffled(self) -> Tensor:
        count = self.kept.shape[1]
        order = [torch.randperm(count, generator=self.generator) for _ in range(self.recipe.members)]
        return torch.gather(self.kept, 1, torch.stack(order))

    def _loss(self, order: Tensor, number: int) -> Tensor:
        """Of one batch, all members; the rows of the batch are the first of its candidates."""
        count, start = order.shape[1], number * self.batch
        if self.candidates == count:
            index = torch.roll(order, -start, dims=1)
        else:
            shape = (len(order), self.candidates - self.batch)
            places = torch.randint(count - self.batch, shape, generator=self.generator)
            others = torch.gather(order, 1, (places + start + self.batch) % count)
            index = torch.cat([order[:, start : start + self.batch], others], dim=1)
        rows, batch = self.rows, self.batch
        drop = self._drop(index.shape[1])
        keys, trends = self.metric(self.parameters, rows.numbers[index], rows.codes[index], drop)
        asked = keys[:, :batch], None if trends is None else trends[:, :batch]
        wanted = rows.values[index]
        predicted = answer(
            asked,
            (keys, trends),
            wanted,
            self.parameters["log_bandwidth"].exp(),
            rows.share(index),
            self.others,
        )
        errors = loss_of(predicted, wanted[:, :batch], self.metric.shares)
        weights = rows.share(index[:, :batch])
        if weights is not None:
            errors = errors * weights[..., 0]
        return errors.mean(dim=1).sum()

    def _drop(self, rows: int) -> Tensor | None:
        """Drawn for each row and hidden value; members share it, since draws take longer than products."""
        rate = self.recipe.dropout
        if rate == 0 or not self.metric.deep:
            return None
        drawn = torch.rand(self.metric.layers, 1, rows, self.metric.hidden, generator=self.generator)
        return (drawn >= rate).float() / (1 - rate)

    @torch.no_grad()
    def _average(self, slowness: float) -> None:
        torch._foreach_lerp_(list(self.mean.values()), list(self.parameters.values()), 1 - slowness)

    @torch.no_grad()
    def _judge(self) -> bool:
        """Keep the mean parameters of the members that are better than ever; whether any is."""
        losses = self._held_out(self.mean, self._embedded(self.mean, self.judged_from))
        better = losses < self.least
        self.least = torch.where(better, losses, self.least)
        for name, best in self.best.items():
            best[better] = self.mean[name][better]
        return bool(better.any())

    def _embedded(self, parameters: Parameters, index: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        keys, trends = [], []
        for part in torch.split(index, _EMBEDDED, dim=1):
            key, trend = self.metric(parameters, self.rows.numbers[part], self.rows.codes[part])
            keys.append(key)
            trends.append(trend)
        trend = None if trends[0] is None else torch.cat([x for x in trends if x is not None], dim=1)
        return torch.cat(keys, dim=1), trend, index

    def _held_out(self, parameters: Parameters, embedded: tuple[Tensor, Tensor | None, Tensor]) -> Tensor:
        keys, trends, index = embedded
        rows = self.rows
        asked = self.metric(parameters, rows.numbers[self.held], rows.codes[self.held])
        bandwidth = parameters["log_bandwidth"].exp()
        predicted = answer(asked, (keys, trends), rows.values[index], bandwidth, rows.share(index))
        errors = loss_of(predicted, rows.values[self.held], self.metric.shares)
        weights = rows.share(self.held)
        if weights is None:
            return errors.mean(dim=1)
        return (errors * weights[..., 0]).sum(dim=1) / weights[..., 0].sum(dim=1)


def _pace(step: int, steps: int) -> float:
    """Up for 20 steps, then down along a cosine."""
    return min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
