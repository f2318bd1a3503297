"""Which models there are, and what training, search and pictures ask of one."""

from typing import Any, Protocol

from torch import Tensor

from examples.translate.options import Options

__all__ = ["Translator", "build"]


class Translator(Protocol):
    """A `torch.nn.Module` from source sentences to translations, in numbers.

    `step` and `pick` may change the state they are given: go on with the one they give back.
    """

    def forward(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor:
        """Logits `(batch, length, targets)` of every next subword, where `given` has been said."""

    def align(self, source: Tensor, lengths: Tensor, given: Tensor) -> Tensor | None:
        """Weights `(batch, length, source length)` of each step on the source; None without attention."""

    def encode(self, source: Tensor, lengths: Tensor) -> Any:
        """Read the source sentences, once."""

    def begin(self, memory: Any) -> Any:
        """The state before anything is said."""

    def step(self, memory: Any, state: Any, token: Tensor) -> tuple[Tensor, Any]:
        """Say one subword `(batch,)`: logits of the next `(batch, targets)`, and the state after it."""

    def pick(self, memory: Any, state: Any, rows: Tensor) -> tuple[Any, Any]:
        """Memory and state of these rows of the batch, in this order."""


def build(options: Options, sources: int, targets: int) -> Any:
    """A fresh model; its parameters are drawn from torch's generator."""
    if options.model == "gru":
        from examples.translate.recurrent import Recurrent

        return Recurrent(sources, targets, options.width, options.score, options.dropout)
    from examples.translate.transformer import Transformer

    return Transformer(sources, targets, options.width, options.score, options.dropout, options.layers, options.heads)
