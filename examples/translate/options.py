"""Options of a run, stored with the model; a resumed run must have the same."""

from dataclasses import dataclass, fields
from typing import Any

from qkv.errors import OptionError

__all__ = ["MODELS", "SCORE_NAMES", "Options"]

MODELS = ("gru", "transformer")
SCORE_NAMES = ("additive", "scaled-dot", "bilinear", "gated", "gaussian", "none")


@dataclass(frozen=True)
class Options:
    """All options that determine the result, besides the pairs.

    Attributes:
        model: of `MODELS`.
        score: of `SCORE_NAMES`.
        width: of embeddings and states.
        layers, heads: of the Transformer; the GRU has one layer and one head.
        dropout: on embeddings and before the output; in the Transformer also after each part.
        vocabulary: subwords of each language at most.
        steps: of the optimizer. The rate falls to 0 at the last.
        batch_tokens: subwords in a batch at most, on the longer side.
        rate: the highest of Adam.
        warm_up: steps until it is reached.
        smoothing: share of the target's probability that is spread over all subwords.
        pairs: to train on at most; 0: all.
        longest: subwords of a training sentence at most, on either side.
        held_out, watched: numbers of English sentences.
        seed: of parameters, order and dropout.
        report_every, check_every: steps between reports, and between looks at the watched sentences.
    """

    model: str = "gru"
    score: str = "additive"
    width: int = 256
    layers: int = 3
    heads: int = 4
    dropout: float = 0.1
    vocabulary: int = 4000
    steps: int = 4000
    batch_tokens: int = 2000
    rate: float = 1e-3
    warm_up: int = 200
    smoothing: float = 0.1
    pairs: int = 0
    longest: int = 40
    held_out: int = 3000
    watched: int = 1000
    seed: int = 1
    report_every: int = 50
    check_every: int = 500

    def __post_init__(self) -> None:
        """Check ranges and names.

        Raises:
            OptionError: an option is out of range or not among the allowed names.
        """
        for name, allowed in (("model", MODELS), ("score", SCORE_NAMES)):
            if getattr(self, name) not in allowed:
                raise OptionError(f"{flag(name)} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        if self.model == "transformer" and self.score == "none":
            raise OptionError("--score must not be none for a Transformer. Use --model gru.")
        small = {"warm_up": 0, "pairs": 0}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int) and value < small.get(each.name, 1):
                raise OptionError(f"{flag(each.name)} must be at least {small.get(each.name, 1)}, got {value}.")
        for name in ("dropout", "smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise OptionError(f"{flag(name)} must be at least 0 and less than 1, got {getattr(self, name)}.")
        if not self.rate > 0:
            raise OptionError(f"{flag('rate')} must be greater than 0, got {self.rate}.")
        if self.width % 2 or (self.model == "transformer" and self.width % (2 * self.heads)):
            raise OptionError(
                f"--width must be even, and for a Transformer a multiple of 2 × --heads ({2 * self.heads}), "
                f"got {self.width}."
            )
        if self.warm_up >= self.steps:
            raise OptionError(f"--warm-up must be less than --steps ({self.steps}), got {self.warm_up}.")

    def differences(self, other: "Options") -> list[tuple[str, Any, Any]]:
        """Return flag and both values of each option that differs."""
        return [
            (flag(each.name), getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
            if getattr(self, each.name) != getattr(other, each.name)
        ]


def flag(name: str) -> str:
    """Return the command-line flag of an option."""
    return "--" + name.replace("_", "-")
