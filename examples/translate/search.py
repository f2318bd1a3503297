"""Beam search: keep the most likely partial translations at every step.

Source: Graves (2012), Sequence transduction with recurrent neural networks, https://arxiv.org/abs/1211.3711.
Finished translations are compared by log-probability / length^alpha (a simple form of Wu et al., 2016,
section 7, https://arxiv.org/abs/1609.08144); with a beam of 1 the search is greedy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from examples.translate.batches import padded
from examples.translate.vocabulary import BEGIN, END, PAD

__all__ = ["Found", "search", "translate"]


@dataclass(frozen=True)
class Found:
    """A translation: its token ids, with END unless it was cut off, and its log probability."""

    numbers: tuple[int, ...]
    log_probability: float


@torch.inference_mode()
def search(
    model: Any, source: Tensor, lengths: Tensor, beam: int = 4, most: Tensor | None = None, alpha: float = 1.0
) -> list[Found]:
    """Return the best translation of each source sentence.

    Args:
        model: see `models.Translator`; in evaluation mode.
        source: `(batch, length)`, padded.
        lengths: `(batch,)`.
        beam: number of partial translations after each step.
        most: maximum number of subwords of each translation `(batch,)`; None: twice those of its source plus ten.
        alpha: exponent of the length; 0 compares log-probabilities, which favours short translations.
    """
    count = source.shape[0]
    most = 2 * lengths + 10 if most is None else most
    memory = model.encode(source, lengths)
    state = model.begin(memory)
    # The beams of all sentences one after another; at first only one entry of each beam is active.
    rows = torch.arange(count).repeat_interleave(beam)
    memory, state = model.pick(memory, state, rows)
    total = torch.full((count, beam), -torch.inf)
    total[:, 0] = 0.0
    said = torch.full((count * beam, 1), BEGIN)
    size = torch.zeros(count, beam)
    ended = torch.zeros(count, beam, dtype=torch.bool)
    for done in range(1, int(most.max()) + 1):
        logits, state = model.step(memory, state, said[:, -1])
        steps = torch.log_softmax(logits.float(), -1).view(count, beam, -1)
        # PAD and BEGIN are never generated, but a finished translation continues with PAD at no cost.
        steps[:, :, [PAD, BEGIN]] = -torch.inf
        steps[ended] = -torch.inf
        steps[..., PAD].masked_fill_(ended, 0.0)
        targets = steps.shape[-1]
        total, chosen = (total[..., None] + steps).flatten(1).topk(beam)
        parent, token = chosen // targets, chosen % targets
        rows = (parent + beam * torch.arange(count)[:, None]).flatten()
        size = size.gather(1, parent) + ~ended.gather(1, parent)
        ended = ended.gather(1, parent) | (token == END) | (done >= most)[:, None]
        said = torch.cat([said[rows], token.reshape(-1, 1)], 1)
        if ended.all():
            break
        memory, state = model.pick(memory, state, rows)
    best = (total / size.clamp(min=1) ** alpha).argmax(1)
    numbers = said.view(count, beam, -1)[torch.arange(count), best]
    return [
        Found(tuple(row[1 : 1 + int(length)]), float(value))
        for row, length, value in zip(
            numbers.tolist(), size.gather(1, best[:, None])[:, 0], total.gather(1, best[:, None])[:, 0], strict=True
        )
    ]


def translate(
    model: Any,
    sources: Sequence[list[int]],
    beam: int = 4,
    at_once: int = 64,
    told: Callable[[int], None] = lambda done: None,
) -> list[Found]:
    """Return the best translation of each encoded sentence, in batches of similar length.

    Args:
        model, beam: as in `search`.
        sources: token ids, each ending in END.
        at_once: sentences per batch.
        told: called with the number of finished sentences.
    """
    model.eval()
    order = sorted(range(len(sources)), key=lambda place: len(sources[place]))
    found: list[Found | None] = [None] * len(sources)
    for start in range(0, len(order), at_once):
        places = order[start : start + at_once]
        answers = search(model, *padded([sources[place] for place in places]), beam=beam)
        for place, answer in zip(places, answers, strict=True):
            found[place] = answer
        told(start + len(places))
    return found  # type: ignore[return-value]
