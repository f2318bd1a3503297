"""Checkpoints from which a run resumes exactly, written atomically.

Parameters, moments of the optimizer, the state of the random generator, the place in the order of batches,
and the sums since the last report. The order itself is not kept: a seed and an epoch number give it again.
"""

import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from examples.translate.files import write
from qkv.errors import DataError

__all__ = ["State", "load", "save"]


@dataclass
class State:
    """Progress of a run.

    Attributes:
        step: of the optimizer, done.
        epoch, batch: which batch is next.
        loss_sum, tokens: since the last report.
        best: lowest loss on the watched sentences.
        cpu_seconds, seconds: spent, over all sittings.
        said: target subwords learned from, over all sittings.
        history: one entry for each report.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    tokens: int = 0
    best: float = float("inf")
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    said: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def save(path: Path, state: State, model: Any, optimizer: Any = None) -> None:
    """Write the state and the model and, with an optimiser, its moments and the random state."""
    held: dict[str, Any] = {"state": asdict(state), "model": model.state_dict()}
    if optimizer is not None:
        held |= {"optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    write(path, lambda stream: torch.save(held, stream))


def load(path: Path, model: Any, optimizer: Any = None) -> State:
    """Restore model, optimiser and random state, and return the state.

    Raises:
        DataError: the file is not there, is damaged, or is of another model.
    """
    try:
        held = torch.load(path, weights_only=True)
        model.load_state_dict(held["model"])
        if optimizer is not None:
            optimizer.load_state_dict(held["optimizer"])
            torch.set_rng_state(held["random"])
        return State(**held["state"])
    except OSError as error:
        raise DataError(f"the checkpoint {str(path)!r} cannot be read: {error.strerror}. Train first.") from None
    except (RuntimeError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"the checkpoint {str(path)!r} is damaged or belongs to another model: {said}. Train into a new folder."
        ) from None
