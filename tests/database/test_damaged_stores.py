"""Answers over a store whose damaged files are skipped name the fragments and rows that are missing."""

import random

import numpy as np
import pyarrow as pa
import pytest

from qkv import store as stores
from qkv.cli.main import run
from qkv.database import Database
from qkv.serve import ServedStore
from qkv.serve.questions import Question
from tests.effort import seeds

KINDS = ["flipped", "cut off", "removed", "deletions"]


def damaged_store(folder, draw: random.Random) -> tuple[set[str], int]:
    """Write a store of several fragments, damage some of them, and return their files and the number of lost rows."""
    database = Database.create(folder, part(0), "x", "y")
    for number in range(1, 6):
        database.append(part(number))
    database.delete("x % 10 = 3")
    store = database.store
    lengths = dict(zip(store.block_names(), store.block_lengths(), strict=True))
    files, lost = set(), 0
    for name in draw.sample(sorted(lengths), draw.choice([1, 2, 5])):
        lost += lengths[name]
        kind = draw.choice(KINDS)
        path = folder / "rows" / name
        if kind == "deletions":
            path = folder / "rows" / next(f.deleted.name for f in store._manifest.row_files if f.name == name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        if kind == "removed":
            path.unlink()
        else:
            path.write_bytes(content[:-9] if kind == "cut off" else content)
        files.add(path.name)
    return files, lost


def part(number: int) -> pa.Table:
    x = np.arange(100.0 * number, 100.0 * (number + 1))
    return pa.table({"x": x, "y": np.sin(x / 50)})


@pytest.mark.parametrize("seed", seeds(6))
def test_answers_plans_and_the_database_name_the_missing_fragments_and_rows(seed, tmp_path, capsys):
    files, lost = damaged_store(tmp_path / "s", random.Random(seed))
    opened = [Database.open(tmp_path / "s", damaged="skip"), Database.open(tmp_path / "s", damaged="skip", memory=1)]
    if seed == 0:
        opened.append(Database.open(tmp_path / "s", damaged="skip", cluster="processes:1"))
    total = len(opened[0].store.block_names()) + len(files)
    text = f"{len(files)} of {total} fragments could not be read, {lost:,} rows left out: "
    for database in opened:
        answer = database.ask([60.0, 250.0], where="x > 20" if seed % 2 else None)
        for place in (answer.common_notes[-1], str(answer.plan).replace("\n            ", " "), repr(database)):
            assert text in place
        assert sum(file in answer.common_notes[-1] for file in files) == min(3, len(files))
        database.close()
    with ServedStore(opened[0]) as served:
        assert text in served.submit(Question((60.0,), True)).result().answer.common_notes[-1]
    opened[1].append(part(9))
    assert f"{lost:,} rows left out" in opened[1].ask(60.0).common_notes[-1]
    with pytest.warns(UserWarning, match="rows left out"):
        opened[0].row_fragments()  # from which estimators learn
    capsys.readouterr()
    assert run(["store", "copy", str(tmp_path / "s"), str(tmp_path / "copy"), "--damaged", "skip"]) == 2
    printed = capsys.readouterr()
    assert f"{lost:,} rows left out" in " ".join(printed.err.split())
    assert all(file in printed.out for file in files)
    assert "of versions ," not in printed.out
    assert len(stores.open(tmp_path / "copy")) == len(stores.open(tmp_path / "s", damaged="skip"))
    assert run(["store", "versions", str(tmp_path / "s")]) == 2


def test_an_intact_store_that_may_be_skipped_says_nothing(tmp_path):
    Database.create(tmp_path / "s", part(0), "x", "y")
    database = Database.open(tmp_path / "s", damaged="skip")
    assert not any("left out" in note for note in database.ask(5.0).notes)
    assert "left out" not in repr(database)
    assert database.store.skipped == ""
