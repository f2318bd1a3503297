"""The models, and the interface that training, search and pictures use."""

from typing import Any, Protocol

from torch import Tensor

from examples.translate.options import Options

__all__ = ["Translator", "build"]


class Translator(Protocol):
    """A `torch.nn.Module` from encoded source sentences to translations.

    `step` and `pick` may change the state they are given: go on with the one they give back.
    """

    def forward(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor:
        """Return logits `(batch, length, targets)` of every next subword, given the previous ones."""

    def align(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor | None:
        """Return the weights `(batch, length, source length)` of each step; None without attention."""

    def encode(self, source: Tensor, lengths: Tensor) -> Any:
        """Encode the source sentences once."""

    def begin(self, memory: Any) -> Any:
        """Return the state before the first step."""

    def step(self, memory: Any, state: Any, token: Tensor) -> tuple[Tensor, Any]:
        """Append one subword `(batch,)` and return logits of the next `(batch, targets)` and the new state."""

    def pick(self, memory: Any, state: Any, rows: Tensor) -> tuple[Any, Any]:
        """Return memory and state of the given batch elements, in the given order."""


def build(options: Options, sources: int, targets: int) -> Any:
    """Build a model; its parameters are drawn from torch's generator."""
    if options.model == "gru":
        from examples.translate.recurrent import Recurrent

        return Recurrent(sources, targets, options.width, options.score, options.dropout)
    from examples.translate.transformer import Transformer

    return Transformer(sources, targets, options.width, options.score, options.dropout, options.layers, options.heads)
