"""Pages of the gallery whose weights were recorded from the models of the examples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qkv.look.views import View

__all__ = ["GalleryPair", "recorded_pages"]


@dataclass(frozen=True)
class GalleryPair:
    """A page of the gallery that opens on the weight of one pair of tokens in one head.

    Attributes:
        name: name of the file, without its suffix.
        title: title of the page.
        text: the text, or the name of another view.
        layer, head: indices of the head; of the aggregated maps, the layer is −1.
        query, key: the pair, as tokens.
        see: what to see; the weight of the pair is added.
    """

    name: str
    title: str
    text: str
    layer: int
    head: int
    query: str
    key: str
    see: str


def recorded_pages() -> Iterator[tuple[GalleryPair, View]]:
    """Yield the pages of a translation model and of a model of pictures, with their views.

    `python -m examples.gallery_records RUN` writes the records.
    """
    records = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    found = records["translation"]
    weights = np.array(found["weights"])
    name = f"{found['text']} → {found['translation']}"
    yield (
        GalleryPair(
            "translation",
            "The alignment of a translation",
            "",
            0,
            0,
            "m",
            "me",
            "A decoder that was trained on sentence pairs only attends to the word that it translates. French has the "
            "pronoun before the verb, so the weights cross.",
        ),
        View.from_weights(
            weights, found["queries"], found["keys"], name=name, model=found["model"], layers=["decoder"]
        ),
    )
    found = records["pictures"]
    weights = np.array(found["weights"])
    yield (
        GalleryPair(
            "pictures",
            "Pictures found by words",
            "",
            0,
            0,
            "number huit",
            "eight",
            f"Phrases attend to {found['pictures']} pictures of digits with captions in three languages; weights are "
            "added up for each name. Which names mean the same was learned from the pictures.",
        ),
        View.from_weights(
            weights,
            found["queries"],
            found["keys"],
            name="phrases and captions",
            model="pictures",
            layers=["attention"],
        ),
    )
