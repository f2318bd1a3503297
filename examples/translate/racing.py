"""Speed of a training step with each score, measured in turns on the same batches in one process.

The recorded runs share the machine with other work, so their times cannot be compared; these can.
"""

import statistics
import time
from pathlib import Path
from typing import Any

import torch

from examples.translate.models import build
from examples.translate.options import SCORE_NAMES, Options
from examples.translate.preparing import prepared
from examples.translate.training import adam, learn

__all__ = ["race"]


def race(path: Path, folder: Path, options: Options, rounds: int = 7, batches: int = 4) -> dict[str, Any]:
    """Return target subwords per CPU second for each score, and the time of a step relative to `scaled-dot`.

    Args:
        path, folder, options: as in `train`; the score of the options is ignored.
        rounds: number of rounds; their median is reported, with the lowest and highest ratio.
        batches: batches per score and round, after an untimed first round.
    """
    examples, _, sizes = prepared(path, folder, options)
    order = examples.epoch(options.seed, 0)[:batches]
    learned = [examples.batch(rows) for rows in order]
    tokens = sum(batch.tokens for batch in learned)
    runners = {}
    for score in SCORE_NAMES:
        torch.manual_seed(options.seed)
        model = build(Options(**vars(options) | {"score": score}), *sizes)
        runners[score] = (model, adam(model, options))
    seconds: dict[str, list[float]] = {score: [] for score in runners}
    for turn in range(rounds + 1):
        for score, (model, optimizer) in runners.items():
            began = time.process_time()
            for batch in learned:
                learn(model, optimizer, batch, options.smoothing)
            if turn:
                seconds[score].append(time.process_time() - began)
    result = {}
    for score, spent in seconds.items():
        ratios = [mine / other for mine, other in zip(spent, seconds["scaled-dot"], strict=True)]
        result[score] = {
            "subwords_per_second": round(tokens / statistics.median(spent)),
            "times_scaled_dot": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
        }
    return result
