"""`python -m examples.gallery_records RUN`: record the attention of the example models for `qkv look --gallery`.

RUN is a folder that `python -m examples.translate train` wrote. The picture model is trained here, in 5 s.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.translate.vocabulary import BEGIN
from qkv.nn import observe
from qkv.readouts import Dense

__all__ = ["picture_record", "translation_record"]

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
        "text": sentence,
        "translation": found.translation,
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
    return {"pictures": len(which), "queries": list(_PHRASES), "keys": names, "weights": [[_rounded(weights)]]}


def _rounded(weights: Any) -> list[list[float]]:
    return [[float(f"{weight:.4g}") for weight in row] for row in weights]


def main() -> None:
    """Write the records to the file that the gallery reads."""
    parser = argparse.ArgumentParser(prog="python -m examples.gallery_records", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a trained translation model")
    given = parser.parse_args()
    records = {"translation": translation_record(given.run), "pictures": picture_record()}
    TARGET.write_text(json.dumps(records, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
