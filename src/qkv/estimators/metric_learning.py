"""Learning of metrics by leave-one-out, in which each row of a minibatch is predicted from other rows.

    loss = mean over rows i of the batch of  error(y_i, t(x_i) + Σ_{j≠i} w_ij (y_j − t(x_j)))

The other rows are the rows of the same batch (see `batch_training`), or all fitted rows, or a new random sample for
every batch if there are many. In the last two cases, all members of an ensemble are trained at once along the first
axis. Each member holds out some rows, evaluates a running mean of its parameters on the held-out rows, and keeps the
best mean.

The first parameters have closed forms: a ridge regression as the trend, and a bandwidth for its residuals. The features
of the regression are the numbers and the one-hot encoded codes of a row. Its intercept is not needed,
because an estimate adds the weighted mean of the residuals. The bandwidth is the value of a grid with the smallest
leave-one-out loss of some rows. Each member uses its training rows only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from qkv.core.arrays import ignore_numpy_warnings
from qkv.core.typing import Float, Int
from qkv.estimators.analytic_gradient import (
    MIN_PROBABILITY,
    EncodedRows,
    MemberParameters,
    embed,
    encode_rows,
    leave_one_out_loss,
)
from qkv.estimators.batch_training import Trace, TrainingOptions, TrainingRows, learning_rate_factor, train_member
from qkv.estimators.effort import SMALL_TABLE
from qkv.estimators.features import Features
from qkv.estimators.metric import Metric, Parameters
from qkv.estimators.nadaraya_watson import Embedded, weighted_mean_with_trend
from qkv.estimators.ridge import fit_ridge, row_shares
from qkv.masks import Documents, Mask

_MOST_OPERATIONS = 5e7
"""Multiplications of the decomposition, which limit the rows that it uses."""
_START_BANDWIDTHS = 2.0 ** np.arange(-2.0, 6.0)
_BANDWIDTH_ROWS = 128


def warm_start(
    metric: Metric, parameters: Parameters, rows: Sequence[TrainingRows], training: Int[np.ndarray, "members training"]
) -> Parameters:
    """Return initial parameters with the trend and the bandwidth of closed forms.

    Args:
        metric: the metric.
        parameters: its random initial parameters.
        rows: all rows, for each member with the values that its trend is fitted to.
        training: indices of the training rows of each member, in any order.
    """
    with ignore_numpy_warnings():
        started = [
            _start_member(
                metric, {name: each[member].numpy().copy() for name, each in parameters.items()}, rows[member], own
            )
            for member, own in enumerate(training)
        ]
    return {name: torch.from_numpy(np.stack([each[name] for each in started])) for name in parameters}


def _start_member(
    metric: Metric, parameters: MemberParameters, rows: TrainingRows, training: Int[np.ndarray, " training"]
) -> MemberParameters:
    width = metric.encoded_width
    if metric.trend != "none" and width:
        count = len(training)
        while count * width * min(count, width) > _MOST_OPERATIONS and count > 1:
            count //= 2
        own = training[:count]
        encoded = rows.encoded[own]
        design = np.concatenate([encoded.numbers, encoded.dense_flags], axis=1)
        found = fit_ridge(design, rows.values[own], rows.weights_of(own)).slopes
        scale = parameters["scale"][0][-width:, None] if metric.has_network else 1.0
        parameters["C"][-width:] = found / scale
    some = training[:_BANDWIDTH_ROWS]
    keys, trends, _ = embed(metric, parameters, rows.encoded[some])
    losses = []
    for bandwidth in _START_BANDWIDTHS:
        inverse = np.full(len(parameters["log_bandwidth"]), 0.5 / bandwidth**2, np.float32)
        found_loss = leave_one_out_loss(
            keys, rows.values[some], trends, inverse, rows.weights_of(some), metric.classification
        ).loss
        losses.append(found_loss)
    parameters["log_bandwidth"][...] = np.log(_START_BANDWIDTHS[int(np.argmin(losses))])
    return parameters


_MOST_ROWS, _MOST_COLUMNS, _MOST_FLAGS = 2048, 256, 128
"""Larger tables are represented by random rows; wider ones have no linear part, or one without categories."""
_LOCAL_ROWS = 512
_BANDWIDTHS = 2.0 ** np.arange(-4.0, 2.0)
_FLAGS_SCALE = np.float32(0.3)
_MOST_ERROR = 0.95
"""Largest error relative to the first regression in tables of 256 rows or more, which learn much besides."""


def fit_linear_part(
    numbers: Float[np.ndarray, "rows numbers"],
    encoded: EncodedRows,
    values: Float[np.ndarray, "rows outputs"],
    sample_weight: Float[np.ndarray, "rows 1"] | None,
    training: Int[np.ndarray, "members training"],
) -> Float[np.ndarray, "members numbers outputs"] | None:
    """Return S of each member, or None if no output has a linear part.

    Args:
        numbers: x of all rows.
        encoded: encoded features of all rows.
        values: values of all rows.
        sample_weight: weights of the rows; None means equal weights.
        training: indices of the training rows of each member.
    """
    count = numbers.shape[1]
    if not 0 < count <= _MOST_COLUMNS:
        return None
    rows = _some_rows(np.arange(len(values)))
    with ignore_numpy_warnings():
        designs = _designs(numbers[rows], encoded[rows])
        weights = None if sample_weight is None else sample_weight[rows]
        factors = _mixture(designs, encoded[rows], values[rows], weights)
        if not factors.any():
            return None
        slopes = np.zeros((len(training), count, values.shape[1]), np.float32)
        for member, own in enumerate(training):
            own = _some_rows(own)
            _, design = _designs(numbers[own], encoded[own])
            own_weights = None if sample_weight is None else sample_weight[own]
            slopes[member] = factors * fit_ridge(design, values[own], own_weights).slopes[:count]
    return slopes


def _some_rows(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    return rows if len(rows) <= _MOST_ROWS else np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False)


def _designs(numbers: Float[np.ndarray, "n numbers"], encoded: EncodedRows) -> list[Float[np.ndarray, "n columns"]]:
    """Return the columns of the two regressions: encoded features, and numbers, both with the categories."""
    flags = encoded.dense_flags
    flags = flags if flags.shape[1] <= _MOST_FLAGS or len(flags) < SMALL_TABLE else flags[:, :0]
    return [np.concatenate([each, flags], axis=1) for each in (encoded.numbers, numbers)]


def _mixture(
    designs: Sequence[Float[np.ndarray, "n columns"]],
    encoded: EncodedRows,
    values: Float[np.ndarray, "n outputs"],
    sample_weight: Float[np.ndarray, "n 1"] | None,
) -> Float[np.ndarray, " outputs"]:
    """Return α of each output."""
    first, second = (fit_ridge(each, values, sample_weight).errors for each in designs)
    change, mean_square = first - second, np.square(first).sum(axis=0)
    factors = (change * first).sum(axis=0) / np.maximum(np.square(change).sum(axis=0), 1e-300)
    factors = np.clip(factors, 0.0, 1.0)
    mixed = np.square(first - factors * change).sum(axis=0)
    better = mixed < mean_square * (_MOST_ERROR if len(values) >= SMALL_TABLE else 1.0)
    for output in np.flatnonzero(better):
        better[output] = mixed[output] < _local_error(encoded, values[:, [output]], sample_weight)
    return np.where(better, factors, 0.0)


def _local_error(
    encoded: EncodedRows, values: Float[np.ndarray, "n 1"], sample_weight: Float[np.ndarray, "n 1"] | None
) -> float:
    """Return the smallest mean squared leave-one-out error of weighted means of the values of at most 512 rows."""
    some = np.random.default_rng(0).permutation(len(values))[:_LOCAL_ROWS]
    keys = np.concatenate([encoded.numbers[some], _FLAGS_SCALE * encoded.dense_flags[some]], axis=1)
    share = row_shares(len(some), None if sample_weight is None else sample_weight[some]) * len(some)
    weights = None if sample_weight is None else share.astype(np.float32)
    return min(
        leave_one_out_loss(keys, values[some], None, np.array([0.5 / h**2], np.float32), weights, False).loss
        for h in _BANDWIDTHS
    )


TrainingProgress = Callable[[int, int, float], None]
"""Called as `progress(step, max_steps, validation_loss)`."""

_MAX_HELD_OUT = 4096
"""Maximum number of rows that a member holds out, enough to estimate the error."""
_MAX_VALIDATION_KEYS = 16_384
_EMBEDDING_BLOCK = 2048


@dataclass(frozen=True)
class TrainedMetric:
    """The parameters of a trained metric, with the held-out rows and the validation loss of each member.

    Attributes:
        parameters: parameters by name, members first.
        held_out: indices of the rows that each member held out, `(members, rows)`.
        losses: validation loss of each member.
        steps: number of steps made.
    """

    parameters: Parameters
    held_out: Int[np.ndarray, "members rows"]
    losses: Float[np.ndarray, " members"]
    steps: int


def train_metric(
    metric: Metric,
    features: Features,
    values: Float[np.ndarray, "rows outputs"],
    sample_weight: Float[np.ndarray, " rows"] | None,
    options: TrainingOptions,
    seed: int,
    progress: TrainingProgress | None = None,
) -> TrainedMetric:
    """Train a metric, and return its parameters with the smallest loss on the held-out rows.

    Args:
        metric: the metric to train.
        features: features of the rows.
        values: float32 values, standardized, or 0 and 1 for classes.
        sample_weight: weights of the rows, with mean 1; None means equal weights.
        options: training options.
        seed: seed of all random numbers.
        progress: called after each evaluation on the held-out rows.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = metric.initial_parameters(options.members, generator)
    training, held_out = _split_rows(len(features), options.members, seed)
    if held_out.shape[1] == 0 or options.steps == 0 or training.shape[1] < 2:
        return TrainedMetric(parameters, held_out.numpy(), np.full(options.members, np.nan), 0)
    weights = None if sample_weight is None else sample_weight.astype(np.float32)[:, None]
    encoded, unlimited = encode_rows(features, metric), features.numbers[:, metric.numbers :]
    slopes = None
    if "slopes" in parameters:
        slopes = fit_linear_part(unlimited, encoded, values, weights, training.numpy())
    if slopes is not None:
        parameters["slopes"] = torch.from_numpy(slopes)
    if options.candidates == 0:
        targets = [values] * options.members if slopes is None else [values - unlimited @ each for each in slopes]
        own = [TrainingRows(encoded, each, weights) for each in targets]
        if len(features) < SMALL_TABLE:
            parameters = warm_start(metric, parameters, own, training.numpy())
        return _train_members(metric, parameters, own, training.numpy(), held_out.numpy(), options, seed, progress)
    rows = _TrainingRows.from_arrays(features, values, sample_weight)
    trainer = _Trainer(metric, parameters, rows, training, held_out, options, generator)
    steps = trainer.run(progress)
    return TrainedMetric(trainer.best, held_out.numpy(), trainer.best_losses.numpy(), steps)


def _train_members(
    metric: Metric,
    parameters: Parameters,
    rows: Sequence[TrainingRows],
    training: Int[np.ndarray, "members training"],
    held_out: Int[np.ndarray, "members held_out"],
    options: TrainingOptions,
    seed: int,
    progress: TrainingProgress | None,
) -> TrainedMetric:
    """Train one member after the other, as long as steps and time suffice for the next one."""
    start, members = time.monotonic(), options.members
    trained: list[MemberParameters] = []
    losses: list[float] = []
    counts: list[int] = []
    traces: list[Trace] = []
    together = members > 1 and training.shape[1] + held_out.shape[1] < SMALL_TABLE
    for member in range(members):
        if sum(counts) + np.mean(counts or 0) > options.total_steps:
            break
        seconds = max(1e-3, (options.seconds - (time.monotonic() - start)) / (members - member))

        def inform(step: int, loss: float) -> None:
            if progress is not None:
                mean = float(np.mean([*losses, loss]))
                progress(sum(counts) + step, _expected_steps(counts, options), mean)

        trace: Trace = []
        initial = {name: each[member].numpy() for name, each in parameters.items()}
        best, loss, steps = train_member(
            metric,
            initial,
            rows[member],
            training[member],
            held_out[member],
            replace(options, seconds=seconds),
            seed + member,
            inform,
            trace if together else None,
        )
        traces.append(trace)
        trained.append(best)
        losses.append(loss)
        counts.append(steps)
    if together:
        trained, losses = _stop_together(traces)
    stacked = {name: torch.from_numpy(np.stack([each[name] for each in trained])) for name in parameters}
    return TrainedMetric(stacked, held_out[: len(trained)], np.array(losses), max(counts))


def _stop_together(traces: Sequence[Trace]) -> tuple[list[MemberParameters], list[float]]:
    """Return the parameters and the losses of all members at the evaluation with the smallest mean loss.

    The few rows that a member of a small table holds out do not tell when its training should stop.
    """
    shared = min(len(trace) for trace in traces)
    best = int(np.argmin(np.mean([[loss for _, loss in trace[:shared]] for trace in traces], axis=0)))
    parameters, losses = zip(*(trace[best] for trace in traces), strict=True)
    return list(parameters), list(losses)


def _expected_steps(counts: Sequence[int], options: TrainingOptions) -> int:
    """Return an upper estimate of the steps of all members, given the steps of those that are trained."""
    if not counts:
        return int(min(options.members * options.steps, max(options.steps, options.total_steps)))
    return int(min(sum(counts) + (options.members - len(counts)) * options.steps, options.total_steps + options.steps))


def row_losses(
    predicted: Float[Tensor, "members rows outputs"],
    target: Float[Tensor, "members rows outputs"],
    classification: bool,
) -> Float[Tensor, "members rows"]:
    """Return the loss of each row, which is its squared error, averaged over outputs, or the log loss of its class."""
    if classification:
        return -torch.log((predicted * target).sum(dim=-1).clamp_min(MIN_PROBABILITY))
    return (predicted - target).square().mean(dim=-1)


def as_tensors(features: Features) -> tuple[Float[Tensor, "1 rows numbers"], Int[Tensor, "1 rows categories"]]:
    """Return features as a tensor of numbers `(1, rows, columns)` and a tensor of codes `(1, rows, categories)`."""
    return torch.from_numpy(features.numbers)[None], torch.from_numpy(features.codes)[None]


@torch.no_grad()
def embed_rows(
    metric: Metric,
    parameters: Parameters,
    numbers: Float[Tensor, "#members rows numbers"],
    codes: Int[Tensor, "#members rows categories"],
) -> Embedded:
    """Return the keys and the trends of rows, which are computed from their features block by block."""
    blocks = zip(*(torch.split(each, _EMBEDDING_BLOCK, dim=1) for each in (numbers, codes)), strict=True)
    keys, trends = zip(*(metric(parameters, *block) for block in blocks), strict=True)
    return torch.cat(keys, dim=1), None if trends[0] is None else torch.cat(trends, dim=1)


def residuals(
    values: Float[np.ndarray, "rows outputs"], trends: Float[Tensor, "members rows outputs"] | None
) -> Float[np.ndarray, "#members rows outputs"]:
    """Return the values of rows minus their trends."""
    return values[None] if trends is None else values[None] - trends.numpy()


@dataclass(frozen=True)
class _TrainingRows:
    numbers: Float[Tensor, "rows numbers"]
    codes: Int[Tensor, "rows categories"]
    values: Float[Tensor, "rows outputs"]
    sample_weight: Float[Tensor, "rows 1"] | None

    @classmethod
    def from_arrays(
        cls,
        features: Features,
        values: Float[np.ndarray, "rows outputs"],
        sample_weight: Float[np.ndarray, " rows"] | None,
    ) -> _TrainingRows:
        weights = None if sample_weight is None else torch.from_numpy(sample_weight.astype(np.float32))[:, None]
        return cls(
            torch.from_numpy(features.numbers), torch.from_numpy(features.codes), torch.from_numpy(values), weights
        )

    def weight_of(self, index: Int[Tensor, "members n"]) -> Float[Tensor, "members n 1"] | None:
        return None if self.sample_weight is None else self.sample_weight[index]


def _split_rows(
    rows: int, members: int, seed: int
) -> tuple[Int[Tensor, "members training"], Int[Tensor, "members held_out"]]:
    """Return the indices of the training rows and of the held-out rows of each ensemble member.

    No row is held out by two members.
    """
    order = np.random.default_rng(seed).permutation(rows)
    count = min(rows // max(members, 8), _MAX_HELD_OUT)
    held_out = np.stack([order[member * count : (member + 1) * count] for member in range(members)])
    training = np.stack([np.setdiff1d(order, own, assume_unique=True) for own in held_out])
    return torch.from_numpy(training), torch.from_numpy(held_out)


class _Trainer:
    def __init__(
        self,
        metric: Metric,
        parameters: Parameters,
        rows: _TrainingRows,
        training: Int[Tensor, "members training"],
        held_out: Int[Tensor, "members held_out"],
        options: TrainingOptions,
        generator: torch.Generator,
    ) -> None:
        self.metric, self.rows, self.training, self.held_out = metric, rows, training, held_out
        self.options, self.generator = options, generator
        self.parameters = {name: each.requires_grad_(name != "slopes") for name, each in parameters.items()}
        self.mean = {name: each.detach().clone() for name, each in parameters.items()}
        self.best = {name: each.clone() for name, each in self.mean.items()}
        self.best_losses = torch.full((options.members,), math.inf, dtype=torch.float32)
        self.batch = min(options.batch, training.shape[1])
        self.candidates = min(max(options.candidates, self.batch + 1), training.shape[1])
        # The first candidates are the rows of the batch; none is predicted from itself.
        self.others: Mask = ~Documents(torch.arange(self.batch), torch.arange(self.candidates))
        sample = torch.randperm(training.shape[1], generator=generator)[:_MAX_VALIDATION_KEYS]
        self.validation_keys = training[:, sample] if training.shape[1] > _MAX_VALIDATION_KEYS else training

    def run(self, progress: TrainingProgress | None) -> int:
        options = self.options
        named = list(self.parameters.items())
        optimizer = torch.optim.AdamW(
            [
                {"params": [x for name, x in named if Metric.decays(name)], "weight_decay": options.decay},
                {"params": [x for name, x in named if not Metric.decays(name)], "weight_decay": 0.0},
            ],
            lr=options.rate,
            betas=(0.9, 0.95),
        )
        epoch_steps = max(1, self.training.shape[1] // self.batch)
        every = max(10, min(epoch_steps, 50) // 2)
        waited, start = 0, time.monotonic()
        for step in range(options.steps):
            if step % epoch_steps == 0:
                order = self._shuffle()
            done = max(step / options.steps, (time.monotonic() - start) / options.seconds)
            for group in optimizer.param_groups:
                group["lr"] = options.rate * learning_rate_factor(step, done)
            loss = self._batch_loss(order, step % epoch_steps)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            self._update_mean(min(0.98, (1 + step) / (10 + step)))
            if (step + 1) % every == 0 or step + 1 == options.steps or done >= 1.0:
                waited = 0 if self._keep_best() else waited + every
                if progress is not None:
                    progress(step + 1, options.steps, float(self.best_losses.mean()))
                if done >= 1.0 or waited >= max(options.patience, 2 * min(epoch_steps, options.steps)):
                    return step + 1
        return options.steps

    def _shuffle(self) -> Int[Tensor, "members training"]:
        count = self.training.shape[1]
        order = [torch.randperm(count, generator=self.generator) for _ in range(self.options.members)]
        return torch.gather(self.training, 1, torch.stack(order))

    def _batch_loss(self, order: Int[Tensor, "members training"], number: int) -> Float[Tensor, ""]:
        """Return the loss of the batch with the index `number`, summed over the ensemble members.

        The first candidates are the rows of the batch.
        """
        count, start = order.shape[1], number * self.batch
        if self.candidates == count:
            index = torch.roll(order, -start, dims=1)
        else:
            shape = (len(order), self.candidates - self.batch)
            offsets = torch.randint(count - self.batch, shape, generator=self.generator)
            others = torch.gather(order, 1, (offsets + start + self.batch) % count)
            index = torch.cat([order[:, start : start + self.batch], others], dim=1)
        rows, batch = self.rows, self.batch
        dropout_mask = self._dropout_mask(index.shape[1])
        keys, trends = self.metric(self.parameters, rows.numbers[index], rows.codes[index], dropout_mask)
        query = keys[:, :batch], None if trends is None else trends[:, :batch]
        values = rows.values[index]
        predicted = weighted_mean_with_trend(
            query, (keys, trends), values, self.parameters["log_bandwidth"].exp(), rows.weight_of(index), self.others
        )
        losses = row_losses(predicted, values[:, :batch], self.metric.classification)
        weights = rows.weight_of(index[:, :batch])
        if weights is not None:
            losses = losses * weights[..., 0]
        return losses.mean(dim=1).sum()

    def _dropout_mask(self, rows: int) -> Float[Tensor, "layers 1 rows hidden"] | None:
        """Return random dropout factors of the hidden units that all members share, or None if nothing is dropped.

        They are shared because sampling takes longer than multiplying. None means no dropout or no network.
        """
        rate = self.options.dropout
        if rate == 0 or not self.metric.has_network:
            return None
        shape = self.metric.layers, 1, rows, self.metric.hidden
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float32)
        return (drawn >= rate).float() / (1 - rate)

    @torch.no_grad()
    def _update_mean(self, decay: float) -> None:
        torch._foreach_lerp_(list(self.mean.values()), list(self.parameters.values()), 1 - decay)

    @torch.no_grad()
    def _keep_best(self) -> bool:
        """Store the mean parameters of the members whose validation loss improved, and return whether any improved."""
        losses = self._validation_losses(self.mean)
        better = losses < self.best_losses
        self.best_losses = torch.where(better, losses, self.best_losses)
        for name, best in self.best.items():
            best[better] = self.mean[name][better]
        return bool(better.any())

    def _validation_losses(self, parameters: Parameters) -> Float[Tensor, " members"]:
        index, rows = self.validation_keys, self.rows
        known = embed_rows(self.metric, parameters, rows.numbers[index], rows.codes[index])
        query = self.metric(parameters, rows.numbers[self.held_out], rows.codes[self.held_out])
        bandwidth = parameters["log_bandwidth"].exp()
        predicted = weighted_mean_with_trend(query, known, rows.values[index], bandwidth, rows.weight_of(index))
        losses = row_losses(predicted, rows.values[self.held_out], self.metric.classification)
        weights = rows.weight_of(self.held_out)
        if weights is None:
            return losses.mean(dim=1)
        return (losses * weights[..., 0]).sum(dim=1) / weights[..., 0].sum(dim=1)
