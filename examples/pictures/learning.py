"""Train on pictures with captions, and measure retrieval of pictures without."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from examples.pictures.model import WordsToPictures
from examples.pictures.wordings import Wordings
from qkv.errors import MissingPackageError
from qkv.readouts import Dense

__all__ = ["Album", "Found", "ask", "by_pixels", "learn", "measure"]

_ASKED, _REMEMBERED = 128, 384
"""Numbers of pictures in a step whose captions are queries, and of pictures that are values."""


@dataclass(frozen=True)
class Album:
    """Pictures with captions, and pictures without.

    Attributes:
        wordings: all texts.
        pictures: the pictures with a caption, `(n, 64)`.
        captions: index of the wording of each picture.
        digits: the digit of each picture, used for evaluation only.
        others: pictures without a caption.
        other_digits: the digits of those.
    """

    wordings: Wordings
    pictures: Tensor
    captions: Tensor
    digits: np.ndarray
    others: Tensor
    other_digits: np.ndarray

    @classmethod
    def digits_of(cls, seed: int) -> "Album":
        """Return scikit-learn's digits, one half with captions drawn from those of its digit.

        Raises:
            MissingPackageError: scikit-learn is not installed.
        """
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise MissingPackageError(
                "scikit-learn, which contains the pictures, must be installed. Run: pip install scikit-learn"
            ) from None
        rng = np.random.default_rng(seed)
        wordings = Wordings.drawn(seed)
        pixels, digits = load_digits(return_X_y=True)
        order = rng.permutation(len(pixels))
        half, rest = np.array_split(order, 2)
        may = [wordings.captions[wordings.digits[wordings.captions] == digit] for digit in range(10)]
        captions = np.array([rng.choice(may[digit]) for digit in digits[half]])
        pictures = torch.tensor(pixels / 16, dtype=torch.float32)
        return cls(wordings, pictures[half], torch.tensor(captions), digits[half], pictures[rest], digits[rest])

    def read(self, model: WordsToPictures, texts: list[str] | None = None) -> Tensor:
        """Return the vectors of some phrases, or of all."""
        numbers = self.wordings.numbered(self.wordings.texts if texts is None else texts)
        return model.read(*map(torch.from_numpy, numbers))


def learn(album: Album, steps: int, seed: int, progress: Callable[[int, int], None] | None = None) -> WordsToPictures:
    """Train so that the output for a caption, from the other pictures, resembles its own picture.

    Args:
        album: pictures with captions to train on.
        steps: number of optimizer steps.
        seed: seed of the initial parameters and the order.
        progress: called with the finished steps and the total.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WordsToPictures(len(album.wordings.vocabulary) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for step in range(steps):
        drawn = torch.randperm(len(album.pictures), generator=generator)
        # The two sets are disjoint: a picture that is retrieved by its own caption would train nothing.
        asked, remembered = drawn[:_ASKED], drawn[_ASKED : _ASKED + _REMEMBERED]
        texts = album.read(model)
        answers = model.look(
            texts[album.captions[asked]], texts[album.captions[remembered]], album.pictures[remembered]
        )[0]
        alike = model.compare(answers, album.pictures[asked]) * model.sharpness.exp()
        right = torch.arange(len(asked))
        loss = sum(torch.nn.functional.cross_entropy(each, right) for each in (alike, alike.T))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
    return model.eval()


@dataclass(frozen=True)
class Found:
    """Pictures retrieved for several phrases.

    Attributes:
        texts: the wordings.
        weights: attention weights of the captioned pictures, `(wordings, pictures)`.
        alike: cosines with the pictures without caption, `(wordings, others)`.
    """

    texts: list[str]
    weights: np.ndarray
    alike: np.ndarray


@torch.no_grad()
def ask(album: Album, model: WordsToPictures, texts: list[str], pictures: Tensor | None = None) -> Found:
    """Attend from phrases to the captioned pictures, and compare the outputs with pictures without caption.

    Args:
        album: the pictures.
        model: the result of `learn`.
        texts: the wordings.
        pictures: values that replace the captioned pictures, to test that the output depends on them.

    Raises:
        OptionError: a word occurs in no caption.
    """
    values = album.pictures if pictures is None else pictures
    captions = album.read(model)[album.captions]
    looked = model.look(album.read(model, texts), captions, values, [Dense()])
    weights = looked.readouts[0].reshape(len(texts), -1)
    return Found(texts, weights.numpy(), model.compare(looked.output[0], album.others).numpy())


def measure(album: Album, found: Found, means: np.ndarray) -> dict[str, float]:
    """Measure the retrieval of pictures without caption by phrases of known meaning.

    Args:
        album: the pictures.
        found: the result of `ask`.
        means: the digit that each wording means.

    Returns:
        first: share of wordings whose first picture is right (precision@1); precision: mean average
        precision; mass: mean total weight of the pictures of the correct digit.
    """
    from sklearn.metrics import average_precision_score

    right = album.other_digits[None] == means[:, None]
    first = right[np.arange(len(means)), found.alike.argmax(-1)].mean()
    precision = np.mean([average_precision_score(a, b) for a, b in zip(right, found.alike, strict=True)])
    mass = (found.weights * (album.digits[None] == means[:, None])).sum(-1).mean()
    return {"first": float(first), "precision": float(precision), "mass": float(mass)}


def by_pixels(album: Album, means: np.ndarray) -> np.ndarray:
    """Return the cosine of each picture without caption with the mean captioned picture of the same digit.

    This baseline knows the meaning of each wording and compares pixels, without learning.
    """
    pictures, others = album.pictures.numpy(), album.others.numpy()
    mean = np.stack([pictures[album.digits == digit].mean(0) for digit in means])
    lengths = np.linalg.norm(mean, axis=-1)[:, None] * np.linalg.norm(others, axis=-1)
    return mean @ others.T / lengths
