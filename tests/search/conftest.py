"""A small library, and the public collections where they are."""

import os
from pathlib import Path

import pytest

from qkv.search import Document

TEXTS = {
    "cave": "Prisoners sit in a den and see shadows on the wall. They take the shadows for the truth.",
    "ring": "A shepherd found a golden ring in a chasm. When he turned the ring he was invisible.",
    "ship": "The sailors quarrel about the steering of the ship. The true pilot watches the stars and winds.",
    "sun": "The sun gives light to the eye, and the good gives truth to the mind.",
    "line": "A line is divided: images and shadows, things, numbers, and truth at the end.",
    "poets": "Poets imitate what they see. The painter of a bed is far from the truth of beds.",
    "city": "A city is founded on need: farmers, builders, weavers and shoemakers live together.",
    "dogs": "Guardians are like good dogs, gentle to friends and fierce to strangers.",
    "metals": "Some men are of gold, some of silver, others of brass and iron.",
    "er": "Er was slain in battle and came back to tell of souls that choose their lives.",
    "empty": "",
    "swans": "Orpheus chose the life of a swan, and Ajax the life of a lion.",
}


@pytest.fixture(name="library", scope="session")
def _library():
    return [Document(name, text, name.title() if text else "") for name, text in TEXTS.items()]


@pytest.fixture(name="public", scope="session")
def _public():
    """The folder of public data."""
    folder = os.environ.get("QKV_DATA")
    if not folder:
        pytest.skip("QKV_DATA does not name the folder of public data")
    return Path(folder)
