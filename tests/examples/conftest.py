"""Fixtures of the tests of the translator: a small language that is learned in seconds, and small models."""

import itertools

import pytest
from examples.translate.options import Options

WHO = {"I": "je", "you": "tu", "she": "elle", "Tom": "Tom", "he": "il"}
DOES = {"see": "vois", "want": "veux", "know": "connais"}
WHAT = {"the cat": "le chat", "a red house": "une maison rouge", "my old friend": "mon vieil ami"}


def language():
    """Return pairs of all sentences of a subject, a verb and an object, some with two translations."""
    for (who, qui), (does, fait), (what, quoi) in itertools.product(WHO.items(), DOES.items(), WHAT.items()):
        yield f"{who} {does} {what}.", f"{qui} {fait} {quoi}."
        if what == "the cat":
            yield f"{who} {does} {what}.", f"{qui} {fait} ce chat."


@pytest.fixture(scope="session")
def pairs_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    path.write_text("".join(f"{a}\t{b}\n" for a, b in language()), encoding="utf-8")
    return path


def small(**changes):
    """Return options of a model that trains in a second."""
    settings = {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "vocabulary": 320,
        "steps": 12,
        "warm_up": 2,
        "batch_tokens": 60,
        "rate": 0.01,
        "held_out": 6,
        "watched": 4,
        "report_every": 1,
        "check_every": 5,
    }
    return Options(**(settings | changes))


TRAINED = {"steps": 150, "width": 32, "check_every": 50}
"""Options of the model of the fixture `trained`, which translates the small language."""


@pytest.fixture(scope="session")
def trained(pairs_file, tmp_path_factory):
    """Return the folder of a trained small GRU with additive attention."""
    from examples.translate.training import train

    folder = tmp_path_factory.mktemp("trained") / "model"
    train(pairs_file, folder, small(**TRAINED))
    return folder
