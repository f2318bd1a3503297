"""Alignment by attention, measured on words that are copied into the translation, such as names.

A subword of at least three letters that occurs once in the source and once in the translation is a copy. It is
aligned if the step that generated it gave its largest weight to it.
"""

from collections.abc import Sequence
from typing import Any

import torch

from examples.translate.batches import padded
from examples.translate.vocabulary import BEGIN, Vocabulary

__all__ = ["copies", "copies_aligned"]


def copies(read: Sequence[str], said: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions, in translation and source, of subwords that occur once in both.

    Example:
        >>> copies(["·Tom", "·met", "·Mary", ".", "END"], ["·Tom", "·a", "·vu", "·Mary", ".", "END"])
        [(0, 0), (3, 2)]
    """
    return [
        (place, read.index(piece))
        for place, piece in enumerate(said)
        if len(piece.strip("·")) >= 3
        and piece.strip("·").isalpha()
        and piece != "END"
        and list(read).count(piece) == list(said).count(piece) == 1
    ]


@torch.inference_mode()
def copies_aligned(
    model: Any,
    source: Vocabulary,
    target: Vocabulary,
    read: Sequence[Sequence[int]],
    said: Sequence[Sequence[int]],
    at_once: int = 64,
) -> dict[str, float] | None:
    """Return the numbers of copies, of aligned copies, and of copies aligned by chance; None without attention.

    Args:
        model: a model in evaluation mode.
        source, target: its vocabularies.
        read, said: token ids of sentences and of their translations.
        at_once: sentences per batch.
    """
    count = hits = 0
    chance = 0.0
    order = sorted(range(len(read)), key=lambda place: len(read[place]))
    for start in range(0, len(order), at_once):
        places = order[start : start + at_once]
        given, _ = padded([[BEGIN, *said[place][:-1]] for place in places])
        weights = model.align(*padded([read[place] for place in places]), given)
        if weights is None:
            return None
        strongest = weights.argmax(-1)
        for row, place in zip(strongest, places, strict=True):
            for step, there in copies(source.pieces(read[place]), target.pieces(said[place])):
                count, hits = count + 1, hits + int(row[step] == there)
                chance += 1 / len(read[place])
    return {"copies": count, "aligned": hits, "by_chance": round(chance, 1)}
