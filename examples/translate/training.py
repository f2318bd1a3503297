"""Training loop: prepare a folder, resume from its checkpoint, save the best model.

options.json                    the options, and the digest of the pairs
source.json, target.json        subwords
held_out.tsv, watched.tsv       test and validation sentences
last.pt, best.pt                the latest checkpoint; the parameters of lowest validation loss
log.jsonl                       one line per report
"""

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from examples.translate import checkpoints, files
from examples.translate.batches import Batch, Examples
from examples.translate.checkpoints import State
from examples.translate.models import build
from examples.translate.options import Options
from examples.translate.preparing import kept_options, prepared
from examples.translate.vocabulary import PAD, Vocabulary

__all__ = ["Stop", "adam", "learn", "open_model", "rate", "stopping", "train", "watched_loss"]

Told = Callable[[State, dict[str, float] | None], None]


class Stop:
    """Whether the run should stop after this step."""

    wanted = False


@contextlib.contextmanager
def stopping() -> Iterator[Stop]:
    """Stop and save the run after its current step on Ctrl-C or SIGTERM."""
    stop = Stop()

    def ask(*_: Any) -> None:
        stop.wanted = True

    before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def train(
    path: Path,
    folder: Path,
    options: Options,
    save_every: int = 200,
    told: Told = lambda state, report: None,
    stop: Stop | None = None,
) -> State:
    """Train, or resume an interrupted run, until the last step or until `stop` returns True.

    Args:
        path: file of the pairs.
        folder: folder of all files of the run; created if it does not exist.
        options: the options; a run that already exists in the folder must have the same.
        save_every: steps between checkpoints.
        told: called after each step, with the reported numbers if there are any.
        stop: condition to stop, such as the result of `stopping`.

    Raises:
        DataError: the pairs or the files in the folder cannot be used.
        OptionError: the folder contains a run with other options or pairs.
    """
    examples, watched, sizes = prepared(path, folder, options)
    torch.manual_seed(options.seed)
    model = build(options, *sizes)
    optimizer = adam(model, options)
    state, last = State(), folder / "last.pt"
    if last.exists():
        state = checkpoints.load(last, model, optimizer)
    saved = state.step
    before = time.process_time() - state.cpu_seconds, time.monotonic() - state.seconds
    order = examples.epoch(options.seed, state.epoch)
    model.train()
    while state.step < options.steps and not (stop and stop.wanted):
        if state.batch == len(order):
            state.epoch, state.batch = state.epoch + 1, 0
            order = examples.epoch(options.seed, state.epoch)
        batch = examples.batch(order[state.batch])
        for group in optimizer.param_groups:
            group["lr"] = rate(options, state.step + 1)
        loss = learn(model, optimizer, batch, options.smoothing)
        state.step, state.batch = state.step + 1, state.batch + 1
        state.loss_sum += loss * batch.tokens
        state.tokens, state.said = state.tokens + batch.tokens, state.said + batch.tokens
        state.cpu_seconds = time.process_time() - before[0]
        state.seconds = time.monotonic() - before[1]
        report = _reported(state, options, model, watched, folder)
        if state.step % save_every == 0:
            checkpoints.save(last, state, model, optimizer)
            saved = state.step
        if report is not None:
            _write_log(folder, state)
        told(state, report)
    if state.step > saved:
        checkpoints.save(last, state, model, optimizer)
    return state


def adam(model: Any, options: Options) -> torch.optim.Adam:
    """Return the optimiser of all parameters."""
    return torch.optim.Adam(model.parameters(), lr=options.rate, betas=(0.9, 0.98), fused=True)


def learn(model: Any, optimizer: torch.optim.Adam, batch: Batch, smoothing: float) -> float:
    """Make one step of the optimiser and return the loss before it."""
    loss = _loss(model, batch, smoothing)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def rate(options: Options, step: int) -> float:
    """Return Adam's learning rate: linear warm-up, then linear decay to 0 after the last step."""
    rising = step / max(1, options.warm_up)
    falling = (options.steps + 1 - step) / (options.steps + 1 - options.warm_up)
    return options.rate * min(rising, falling)


def open_model(folder: Path) -> tuple[Any, Vocabulary, Vocabulary, Options, State]:
    """Return a trained model with its best parameters, its vocabularies, its options, and the step of the best.

    Raises:
        DataError: the folder contains no trained model.
    """
    options, _ = kept_options(folder)
    source, target = (Vocabulary.load(folder / f"{side}.json") for side in ("source", "target"))
    model = build(options, len(source), len(target))
    best = folder / "best.pt"
    state = checkpoints.load(best if best.exists() else folder / "last.pt", model)
    model.eval()
    return model, source, target, options, state


def _loss(model: Any, batch: Batch, smoothing: float) -> torch.Tensor:
    logits = model(batch.source, batch.lengths, batch.given)
    return cross_entropy(logits.flatten(0, 1), batch.wanted.flatten(), ignore_index=PAD, label_smoothing=smoothing)


@torch.no_grad()
def watched_loss(model: Any, examples: Examples) -> float:
    """Return the mean negative log-probability of the subwords of all pairs."""
    training = model.training
    model.eval()
    total, tokens = 0.0, 0
    for rows in examples.in_order():
        batch = examples.batch(rows)
        total += float(_loss(model, batch, 0.0)) * batch.tokens
        tokens += batch.tokens
    model.train(training)
    return total / tokens


def _reported(state: State, options: Options, model: Any, watched: Examples, folder: Path) -> dict[str, float] | None:
    check = state.step % options.check_every == 0 or state.step == options.steps
    if not check and state.step % options.report_every:
        return None
    report = {
        "step": state.step,
        "epoch": state.epoch,
        "loss": state.loss_sum / state.tokens,
        "rate": rate(options, state.step),
        "tokens": state.said,
        "cpu_seconds": round(state.cpu_seconds, 1),
        "seconds": round(state.seconds, 1),
        "peak_mib": _peak_mib(),
    }
    state.loss_sum, state.tokens = 0.0, 0
    if check:
        report["watched_loss"] = watched_loss(model, watched)
        if report["watched_loss"] < state.best:
            state.best = report["watched_loss"]
            state.history.append(report)
            checkpoints.save(folder / "best.pt", state, model)
            return report
    state.history.append(report)
    return report


def _peak_mib() -> int:
    """Return the peak memory of this process in MiB; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def _write_log(folder: Path, state: State) -> None:
    text = "".join(json.dumps(report) + "\n" for report in state.history)
    files.write(folder / "log.jsonl", text.encode())
