"""`python -m examples.gallery_records RUN`: record the attention of the example models for `qkv look --gallery`.

RUN is a folder that `python -m examples.translate train` wrote. The picture model and the vision transformer are
trained here, in 10 s.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.translate.vocabulary import BEGIN
from qkv import nn
from qkv.nn import observe
from qkv.readouts import Dense

__all__ = ["DigitTransformer", "picture_record", "train_digits", "translation_record", "vision_record"]

TARGET = Path(__file__).parents[1] / "src" / "qkv" / "look" / "gallery_records.json"
_SENTENCE = "Tom asked me not to help him."
_SPACE = "·"
"""Mark of the first subword of a word."""
_PHRASES = (
    "a 0", "nul", "a un", "number un", "2", "a zwei", "3", "a drei", "number four", "a vier", "a five", "fünf", "a six",
    "sechs", "a 7", "the digit 7", "a 8", "number huit", "a 9", "neuf",
)  # fmt: skip
"""Two phrases for each digit that are captions of no picture."""


def translation_record(folder: Path, sentence: str = _SENTENCE) -> dict[str, Any]:
    """Return the tokens of a translation by a trained model, and the weights of its attention to the source.

    The weights are those of the layers and heads of a Transformer, or of the only head of a GRU.
    """
    from examples.translate.reading import Reader

    reader = Reader(folder)
    found = reader.aligned(sentence)
    [source], [target] = reader.source.encode([sentence]), reader.target.encode([found.translation])
    with torch.no_grad():
        given = torch.tensor([source]), torch.tensor([len(source)]), torch.tensor([[BEGIN, *target[:-1]]])
        if reader.options.model == "transformer":
            seen = observe(reader.model, {"decoder.layers.*.cross": [Dense()]}, *given).readouts
            weights = [weights[0].tolist() for (weights,) in seen.values()]
        else:
            weights = [[found.weights.tolist()]]
    return {
        "pair": {
            "name": "translation",
            "title": "The alignment of a translation",
            "layer": 0,
            "head": 0,
            "query": "m",
            "key": "me",
            "see": "A decoder that was trained on sentence pairs only attends to the word that it translates. French "
            "has the pronoun before the verb, so the weights cross.",
        },
        "text": f"{sentence} → {found.translation}",
        "layers": [f"decoder {i}" for i in range(len(weights))] if len(weights) > 1 else ["decoder"],
        "model": f"{folder.name}, {sum(x.numel() for x in reader.model.parameters()):,} parameters",
        "queries": [piece.removeprefix(_SPACE) for piece in found.said],
        "keys": [piece.removeprefix(_SPACE) for piece in found.read],
        "weights": [[_rounded(head) for head in layer] for layer in weights],
    }


def picture_record(steps: int = 250) -> dict[str, Any]:
    """Return the weights of phrases over pictures, added up for each name of a digit in their captions."""
    from examples.pictures.learning import Album, ask, learn
    from examples.pictures.wordings import NAMES

    album = Album.digits_of(0)
    found = ask(album, learn(album, steps, 0), list(_PHRASES))
    names = [name for of_digit in NAMES for name in of_digit]
    captions = [album.wordings.texts[caption].split() for caption in album.captions.tolist()]
    which = [next(i for i, name in enumerate(names) if name in words) for words in captions]
    weights = np.stack([np.bincount(which, row, minlength=len(names)) for row in found.weights])
    return {
        "pair": {
            "name": "pictures",
            "title": "Pictures found by words",
            "layer": 0,
            "head": 0,
            "query": "number huit",
            "key": "eight",
            "see": f"Phrases attend to {len(which)} pictures of digits with captions in three languages; weights are "
            "added up for each name. Which names mean the same was learned from the pictures.",
        },
        "text": "phrases and captions",
        "layers": ["attention"],
        "model": "pictures",
        "queries": list(_PHRASES),
        "keys": names,
        "weights": [[_rounded(weights)]],
    }


_SIDE, _PATCH, _WIDTH = 8, 2, 32
"""Pixels of a side of the pictures of scikit-learn and of a patch, and width of the layers."""
_TRAINED = 1500
"""Number of the 1,797 pictures that the model is trained on."""


class DigitTransformer(torch.nn.Module):
    """Vision transformer with two layers of four heads, a class token, and patches of 2 × 2 pixels.

        logits = W encoder([class, E patch_1, …, E patch_16] + positions)_class

    Source: Dosovitskiy et al. (2021), An image is worth 16x16 words, https://arxiv.org/abs/2010.11929.

    Shapes:
        pictures `(n, 64)` -> logits `(n, 10)`
    """

    def __init__(self) -> None:
        super().__init__()
        count = (_SIDE // _PATCH) ** 2
        self.embedding = torch.nn.Linear(_PATCH**2, _WIDTH)
        self.class_token = torch.nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.positions = torch.nn.Parameter(torch.randn(1, count + 1, _WIDTH))
        self.encoder = nn.Encoder(2, _WIDTH, 4, 2 * _WIDTH)
        self.output = torch.nn.Linear(_WIDTH, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the logits of the ten digits."""
        side = _SIDE // _PATCH
        patches = pictures.reshape(-1, side, _PATCH, side, _PATCH).transpose(2, 3).reshape(-1, side**2, _PATCH**2)
        tokens = torch.cat([self.class_token.expand(len(patches), 1, -1), self.embedding(patches)], dim=1)
        logits: torch.Tensor = self.output(self.encoder(tokens + self.positions)[:, 0])
        return logits


def train_digits(steps: int = 250) -> tuple[DigitTransformer, torch.Tensor, torch.Tensor]:
    """Return the model trained on 1,500 pictures of scikit-learn's digits, and the other pictures with their digits.

    The result depends on the machine only by rounding. 250 steps take about 4 s of CPU time.
    """
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(pixels), generator=generator)
    pictures, labels = torch.tensor(pixels / 16, dtype=torch.float32)[order], torch.tensor(digits)[order]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = DigitTransformer()
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
    for _ in range(steps):
        drawn = torch.randint(_TRAINED, (48,), generator=generator)
        loss = torch.nn.functional.cross_entropy(module(pictures[drawn]), labels[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return module.eval(), pictures[_TRAINED:], labels[_TRAINED:]


def vision_record() -> dict[str, Any]:
    """Return the weights of the vision transformer for a picture of an 8 that it recognises."""
    module, pictures, digits = train_digits()
    with torch.no_grad():
        recognised = (module(pictures).argmax(dim=-1) == digits) & (digits == 8)
        picture = pictures[int(recognised.nonzero()[0])]
        seen = observe(module, {"encoder.layers.*.attention": [Dense()]}, picture[None]).readouts
    weights = np.stack([weights[0].numpy() for (weights,) in seen.values()])
    head, key = np.unravel_index(weights[-1, :, 0].argmax(), weights.shape[1:3])
    side = _SIDE // _PATCH
    return {
        "pair": {
            "name": "vision",
            "title": "Patches of a picture",
            "layer": len(weights) - 1,
            "head": int(head),
            "query": "[CLS]",
            "key": "[CLS]" if key == 0 else f"{(key - 1) // side},{(key - 1) % side}",
            "see": "A vision transformer recognises the 8. The picture beside the map shows which of its patches, "
            "named by row and column, the class token attends to.",
        },
        "text": "a handwritten 8",
        "layers": [f"layer {i}" for i in range(len(weights))],
        "model": "DigitTransformer",
        "queries": None,
        "keys": None,
        "grid": [side, side],
        "pixels": np.rint(picture.numpy().reshape(_SIDE, _SIDE) * 255).astype(int).tolist(),
        "weights": [[_rounded(head) for head in layer] for layer in weights],
    }


def _rounded(weights: Any) -> list[list[float]]:
    return [[float(f"{weight:.4g}") for weight in row] for row in weights]


def main() -> None:
    """Write the records to the file that the gallery reads."""
    parser = argparse.ArgumentParser(prog="python -m examples.gallery_records", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a trained translation model")
    given = parser.parse_args()
    records = [translation_record(given.run), picture_record(), vision_record()]
    TARGET.write_text(json.dumps(records, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
