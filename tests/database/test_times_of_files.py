"""Times in files and questions: nothing behind a time is dropped, in any kind of file, row or column."""

import json
import random

import pytest

from qkv.database import Database
from qkv.database.io.cell_notes import cell_note_of
from qkv.database.io.sources import read
from qkv.errors import QueryError
from tests.cli.conftest import command
from tests.effort import sample

WORDS = (" PM", " EST", " +0200", " approx.", " IST", "Z")


def written(folder, cells, kind):
    """A file of the columns `n`, `shown` and `when`; only `when` is a key."""
    path = folder / f"t.{kind}"
    if kind == "csv":
        path.write_text("n,shown,when\n" + "".join(f"{n},{cell},{cell}\n" for n, cell in enumerate(cells)))
    else:
        path.write_text(
            "".join(json.dumps({"n": n, "shown": cell, "when": cell}) + "\n" for n, cell in enumerate(cells))
        )
    return path


@pytest.mark.parametrize(("kind", "word"), sample([(kind, word) for kind in ("csv", "jsonl") for word in WORDS], 4))
def test_a_late_cell_with_words_behind_its_time_is_never_another_time(kind, word, tmp_path):
    late = f"2024-01-01 01:30{word}"
    path = written(tmp_path, ["2024-01-01 01:30"] * 21_000 + [late], kind)
    table = read(path, ("when", "n"))
    assert table["when"][-1].as_py() is None
    shown = table["shown"][-1].as_py()
    assert shown is None or str(shown) == late
    assert f"such as {late!r}, left out" in cell_note_of(table, "when").text("when")


def test_a_table_of_queries_keeps_what_follows_a_time(tmp_path):
    cells = ["2024-01-01 01:30 PM", "2024-01-01 01:30 AM", "2024-01-02 01:30 PM"]
    path = written(tmp_path, cells, "csv")
    draw = random.Random(3)
    asked = draw.sample(cells, 3)
    (tmp_path / "q.csv").write_text("when\n" + "".join(f"{cell}\n" for cell in asked))
    words = ("ask", path.name, "--key", "when", "--value", "n", "--score", "exact", "--queries", "q.csv")
    done = command(*words, "--output", "a.csv", cwd=tmp_path)
    assert not done.returncode, done.stderr
    answers = [line.split(",") for line in (tmp_path / "a.csv").read_text().splitlines()]
    place = answers[0].index("value")
    assert [float(line[place]) for line in answers[1:]] == [cells.index(cell) for cell in asked]


def test_a_refused_query_names_the_format_and_the_order_of_the_column(tmp_path):
    database = Database.open(written(tmp_path, ["31.12.2024", "01.02.2025"], "csv"), "when", "n")
    assert database.ask("1/2/2025", score="exact").value == 1
    with pytest.raises(QueryError, match=r"in the format %d.%m.%Y, day first, got '12/31/2024'"):
        database.ask("12/31/2024")


def test_the_option_of_formats_reads_time_zones(tmp_path):
    cells = ["31.12.2024 01:30 +0200", "31.12.2024 00:30 CET"]
    path = written(tmp_path, cells, "csv")
    for form in ("%d.%m.%Y %H:%M %z", "%d.%m.%Y %H:%M %Z"):
        database = Database.open(path, "when", "n", date_format=form)
        assert [str(cell) for cell in database.table["when"].to_pylist()] == ["2024-12-30 23:30:00+00:00"] * 2
        assert any("converted to UTC from +0200, CET as +01:00" in note for note in database.ask(cells[0]).column_notes)
