"""Misspelt names find their person among more than ten thousand, and nonsense finds nobody."""

import os
import random
import string
from pathlib import Path

import pytest

from qkv.database import Database
from qkv.encoders.columns import fold
from tests.effort import LONG, sample

pytestmark = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")


@pytest.fixture(name="names", scope="module")
def _names():
    files = sorted((Path(os.environ["QKV_DATA"]) / "names").glob("*.txt"))
    return sorted({fold(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()} - {""})


@pytest.fixture(name="people", scope="module")
def _people(names):
    return Database.open({"name": names, "row": list(range(len(names)))}, key="name", value="row")


def edited(draw, name, kinds):
    """The name with one letter put in, left out or changed, or two neighbours swapped."""
    while True:
        kind, at, letter = draw.choice(kinds), draw.randrange(len(name)), draw.choice(string.ascii_lowercase)
        changed = {
            "insert": name[:at] + letter + name[at:],
            "delete": name[:at] + name[at + 1 :],
            "change": name[:at] + letter + name[at + 1 :],
            "swap": name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
        }[kind]
        if changed != name:
            return changed


@pytest.mark.parametrize("swapped", sample([True, False], 2))
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_single_edit_finds_its_person_first_in_90_and_answers_by_another_in_2_of_100(names, people, swapped, seed):
    kinds = ("insert", "delete", "change", "swap")[: 4 if swapped else 3]
    assert len(names) >= 10_000
    draw = random.Random(seed)
    truth = draw.sample([name for name in names if len(name) >= 6], 310)
    known = set(names)
    # A misspelling that is the name of somebody else is answered from the rows of this name alone.
    pairs = [(name, query) for name in truth if (query := edited(draw, name, kinds)) not in known][:300]
    truth = [name for name, _ in pairs]
    answer = people.ask([query for _, query in pairs])
    found = [one.rows[0].record["name"] if one.found else None for one in answer]
    first = sum(bool(one.rows) and one.rows[0].record["name"] == name for one, name in zip(answer, truth, strict=True))
    answered = sum(one == name for one, name in zip(found, truth, strict=True))
    other = sum(one not in (name, None) for one, name in zip(found, truth, strict=True))
    listed = sum(name in one.candidates for one, name in zip(answer, truth, strict=True))
    assert first >= 0.90 * len(truth)
    assert other <= 0.02 * len(truth)
    assert answered + listed >= 0.97 * len(truth)
    assert answered >= 0.85 * len(truth)


def test_random_letters_are_no_match(people):
    draw = random.Random(7)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(6, 12))) for _ in range(300 if LONG else 100)]
    assert sum(people.ask(words).found) <= 0.02 * len(words)


@pytest.mark.parametrize("nonsense", ["xqzvkw", "asdfghjkl", "qwertyuiop", "zzzzzzzz", "12345678", "!!!???"])
def test_nonsense_is_no_match(people, nonsense):
    answer = people.ask(nonsense)
    assert not answer.found
    if nonsense.isdigit():
        assert answer.reason == f"no key contains {nonsense}"
    else:
        assert answer.reason.startswith("the nearest key, ")
        assert answer.reason.endswith(", under 0.8")


def test_a_name_spelt_right_is_found_alone(names, people):
    draw = random.Random(1)
    for name in draw.sample([name for name in names if len(name) >= 6], 30):
        assert people.ask(name).rows[0].record["name"] == name
