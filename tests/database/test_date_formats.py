"""Dates in texts: month names, months, day and month in doubt, two-digit years, and time zones."""

import datetime as dt
import gzip
import random

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from qkv.cli.main import run
from qkv.core.times import candidate_formats, parse_date
from qkv.database import Database
from qkv.database.io.sources import read
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column
from qkv.errors import DataError, OptionError, QueryError
from qkv.estimators.input_columns import parse_dates
from tests.database.databases import every_database
from tests.effort import LONG, sample, seeds

from .test_bad_cells import write

FORMATS = [
    *("%b %d %Y", "%d-%b-%y", "%d %B %Y", "%Y-%m", "%m/%Y", "%B %d, %Y", "%A, %d %B %Y", "%b %Y", "%Y %b %d"),
    *(
        "%d.%m.%Y",
        "%m/%d/%Y",
        "%d/%m/%y",
        "%m-%d-%y",
        "%d. %m. %Y",
        "%Y.%m.%d",
        "%m/%d/%Y %I:%M %p",
        "%d-%b-%Y %H:%M:%S",
    ),
]


def random_days(form):
    draw = random.Random(form)
    days = [
        dt.datetime(1970, 1, 1) + dt.timedelta(draw.randint(0, 20_000), 60 * draw.randint(0, 1439)) for _ in range(60)
    ]
    return [dt.datetime.strptime(day.strftime(form), form) for day in days]


def test_dates_in_many_formats_are_dates(tmp_path):
    expected = {form: random_days(form) for form in FORMATS}
    names = [f"c{index}" for index in range(len(FORMATS))]
    columns = [[f'"{day.strftime(form)}"' for day in expected[form]] for form in FORMATS]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join(names), *map(",".join, zip(*columns, strict=True))]) + "\n")
    table = read(path, tuple(names))
    for name, form in zip(names, FORMATS, strict=True):
        assert [dt.datetime.fromisoformat(day.isoformat()) for day in table[name].to_pylist()] == expected[form]
        column = Column.from_table(table, name)
        assert column.reading.startswith("is read in the format %")
        queries = [text for day in expected[form][:5] for text in (day.strftime(form), day.isoformat())]
        cells = Queries.parse(queries, [column]).columns[0].cells
        assert cells.tolist() == np.repeat(column.cells[:5], 2).tolist()


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".jsonl"])
def test_a_column_in_which_no_cell_decides_says_so(tmp_path, ending):
    cells = ["03/04/2024", "05/06/2024", "11/12/2024"]
    path = write(tmp_path / "t.csv", cells)
    if ending == ".csv.gz":
        path = tmp_path / f"t{ending}"
        path.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    elif ending == ".jsonl":
        path = tmp_path / f"t{ending}"
        path.write_text("".join(f'{{"x": "{cell}", "v": {row}}}\n' for row, cell in enumerate(cells)))
    (note,) = Database.open(path, "x", "v").ask("03/04/2024").column_notes
    said = "day first, as no cell decides; --date-format %m/%d/%Y (in Python: date_format) reads the month first"
    assert note == f"x is read in the format %d/%m/%Y, {said}"
    month_first = Database.open(path, "x", "v", date_format="%m/%d/%Y")
    assert month_first.table["x"].to_pylist()[0] == dt.date(2024, 3, 4)
    assert month_first.ask("2024-03-04", score="exact").column_notes == ("x is read in the format %m/%d/%Y",)
    decided = Database.open(write(tmp_path / "d.csv", [*cells, "13/04/2024"]), "x", "v").ask("03/04/2024")
    assert decided.column_notes == ("x is read in the format %d/%m/%Y",)


def test_the_command_states_how_dates_are_read(tmp_path, capfd):
    def printed(*arguments):
        assert run(list(arguments)) == 0
        return capfd.readouterr().out

    path, store = str(write(tmp_path / "t.csv", ["03/04/2024", "05/06/2024"])), str(tmp_path / "s")
    options = ("--key", "x", "--value", "v", "--format", "json", "--score", "exact")
    assert '"notes": ["x is read in the format %d/%m/%Y, day first' in printed("ask", path, "2024-04-03", *options)
    other = printed("ask", path, "2024-03-04", *options, "--date-format", "%m/%d/%Y")
    assert '"found": true' in other
    assert '"notes": ["x is read in the format %m/%d/%Y"]' in other
    created = printed("store", "create", store, path, "--key", "x", "--value", "v", "--date-format", "%m/%d/%Y")
    assert "x is read in the format %m/%d/%Y" in created
    # A file that does not decide is read like the store.
    printed("store", "append", store, path)
    assert '"effective_rows": 2.0' in printed("ask", store, "2024-03-04", "--format", "json", "--score", "exact")
    assert run(["ask", store, "2024-03-04", "--date-format", "%m/%d/%Y"]) == 2
    assert "--date-format must be used with a table, got a store" in capfd.readouterr().err


@pytest.mark.parametrize("reverse", [False, True])
def test_one_of_several_files_decides_for_all(tmp_path, reverse):
    cells = [["03/04/2024", "05/06/2024"], ["12/31/2024"]]
    paths = [write(tmp_path / f"{n}.csv", each) for n, each in enumerate(cells[::-1] if reverse else cells)]
    memory = Database.open(paths, "x", "v")
    stored = Database.create(tmp_path / "s", paths, "x", "v")
    for database in (memory, stored):
        answer = database.ask("2024-03-04", score="exact")
        assert answer.value == 0
        assert answer.column_notes == ("x is read in the format %m/%d/%Y",)


def test_years_of_two_digits_are_stated(tmp_path):
    database = Database.open(write(tmp_path / "t.csv", ["13/05/68", "14/05/69", "03/04/24"]), "x", "v")
    assert [day.year for day in database.table["x"].to_pylist()] == [2068, 1969, 2024]
    assert "years 69 to 99 are 1969 to 1999, 00 to 68 are 2000 to 2068" in database.ask("13/05/68").column_notes[0]


def test_a_table_that_states_its_types_has_no_format_of_dates():
    with pytest.raises(OptionError, match="date_format must be None for a table that states the types"):
        Database.open({"x": ["13/05/2024"], "v": [1]}, "x", "v", date_format="%d/%m/%Y")


def test_digits_without_separators_are_dates_if_all_are(tmp_path):
    days = [dt.date(2024, 1, 31), dt.date(2024, 2, 1)]
    path = write(tmp_path / "t.csv", ["20240131", "20240201"])
    for database in every_database(tmp_path / "s", path, "x", "v"):
        for query in ("20240201", 20240201, dt.date(2024, 2, 1), "2024-02-01"):
            answer = database.ask(query, score="exact")
            assert (answer.value, answer.rows[0].record["x"]) == (1, days[1])
        assert answer.column_notes == ("x is read in the format %Y%m%d; read_csv in --sql reads numbers",)
    given = Database.open(path, "x", "v", date_format="%Y%m%d")
    assert given.table["x"].to_pylist() == days
    assert given.ask("20240131").column_notes == ("x is read in the format %Y%m%d",)
    # One number that is no date, the name of an identifier, or a store of numbers decides otherwise.
    assert Database.open(write(tmp_path / "n.csv", ["20240131", "20241301"]), "x", "v").column("x").kind == "number"
    assert Database.open(write(tmp_path / "i.csv", ["20240131"], "order_no,v"), "order_no", "v").ask(20240131).found
    store = Database.create(tmp_path / "numbers", {"x": [5], "v": [0]}, "x", "v")
    store.append(path)
    assert store.ask(20240201, score="exact").value == 1


@pytest.mark.parametrize("mark", ["NA", "-", "n/a", ""])
def test_digits_beside_marks_of_missing_cells_are_dates(mark, tmp_path):
    path = write(tmp_path / "t.csv", ["20240131", mark, "20240202"])
    found = Database.open(path, "v", "x").table["x"].to_pylist()
    assert found == [dt.date(2024, 1, 31), None, dt.date(2024, 2, 2)]


@pytest.mark.parametrize("other", ["0", "99999999", "later", "2024-05-06"])
def test_digits_that_are_read_as_numbers_although_most_are_dates_are_named(other, tmp_path):
    notes = Database.open(write(tmp_path / "t.csv", ["20240131", other, "20240202"]), "v", "x").ask("0").column_notes
    assert any(note.startswith("x holds whole numbers that look like dates, such as 20240") for note in notes)


def test_numbers_of_typed_tables_that_look_like_dates_are_mentioned(tmp_path):
    table = pa.table({"x": [20240131, 20240201], "v": [1, 2]})
    parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.jsonl").write_text('{"x": 20240131, "v": 1}\n{"x": 20240201, "v": 2}\n')
    note = "x holds whole numbers that look like dates, such as 20240131; convert them to compare them as dates"
    for source in (table, tmp_path / "t.parquet", tmp_path / "t.jsonl"):
        assert note in Database.open(source, "x", "v").ask(20240131).column_notes


LANGUAGES = ("de", "de_AT", "fr", "es", "it", "pt", "nl", "sv", "da", "nb", "fi", "pl", "ru", "en")
PATTERNS = [
    *("d MMMM y", "d. MMMM y", "EEEE d MMMM y", "d-MMM-y", "d MMMM y HH:mm", "y MMMM d", "MMMM y", "d MMM yy"),
    *("long",),
]


@pytest.mark.parametrize("language", sample(LANGUAGES, 12))
def test_names_of_months_of_many_languages_are_read(language, tmp_path):
    babel = pytest.importorskip("babel.dates")
    draw = random.Random(language)
    days = [dt.datetime(1990, 1, 1, 10, 30) + dt.timedelta(draw.randint(0, 12_000)) for _ in range(60 if LONG else 15)]
    texts = {form: [babel.format_datetime(day, form, locale=language) for day in days] for form in PATTERNS[:-1]}
    texts["long"] = [babel.format_date(day, "long", locale=language) for day in days]
    path, names = tmp_path / "t.csv", [f"c{index}" for index in range(len(PATTERNS))]
    rows = zip(*(texts[form] for form in PATTERNS), strict=True)
    path.write_text("\n".join([",".join(names), *(",".join(f'"{cell}"' for cell in row) for row in rows)]) + "\n")
    table = read(path, tuple(names))
    for name, form in zip(names, PATTERNS, strict=True):
        expected = [day if "H" in form else day.date().replace(day=1 if form == "MMMM y" else day.day) for day in days]
        assert table[name].to_pylist() == expected, texts[form][:3]
        column = Column.from_table(table, name)
        assert Queries.parse(texts[form], [column]).columns[0].cells.tolist() == column.cells.tolist()


def test_names_with_months_and_numbers_stay_names(tmp_path):
    names = [
        *("Mars 1", "Apollo 11 1969", "May Smith", "March of 3 Kings", "Julia 2", "Room 12 of 2024", "Dez 3"),
        *("Lis 4",),
    ]
    answer = Database.open(write(tmp_path / "t.csv", names), "x", "v").ask("May Smith")
    assert (answer.value, answer.column_notes) == (2, ())


@pytest.mark.parametrize("seed", seeds(6))
def test_cells_that_decide_differently_are_stated(seed, tmp_path):
    draw = random.Random(seed)
    counts = {"%d/%m/%Y": draw.randint(1, 5), "%m/%d/%Y": draw.randint(1, 5)}
    cells = [
        dt.date(2024, draw.randint(1, 12), 25).strftime(form) for form, count in counts.items() for _ in range(count)
    ]
    cells += ["03/04/2024"] * draw.randint(0, 3)
    draw.shuffle(cells)
    chosen = max(counts, key=lambda form: counts[form])
    other = min(counts, key=lambda form: form == chosen)
    path = write(tmp_path / "t.csv", cells)
    for database in every_database(tmp_path / "s", path, "x", "v"):
        note = database.ask("2024-04-03").column_notes[0]
        first = "month" if other == "%m/%d/%Y" else "day"
        said = "1 cell has" if counts[other] == 1 else f"{counts[other]} cells have"
        assert note.startswith(f"x is read in the format {chosen}, although {said} the {first} first, such as ")
        assert f"--date-format {other} (in Python: date_format) reads the {first} first" in note
    given = Database.open(path, "x", "v", date_format=chosen)
    assert given.ask("2024-04-03").column_notes[0] == f"x is read in the format {chosen}"


def test_underscores_are_no_part_of_numbers(tmp_path):
    path = write(tmp_path / "t.csv", ["3_5", "7", "8", "9"])
    database = Database.open(path, "x", "v")
    assert database.table["x"].to_pylist() == [None, 7, 8, 9]
    assert database.ask(7).column_notes == ("x: 1 cell is not a finite number, such as '3_5', left out",)
    with pytest.raises(QueryError, match="must be a finite number, got '3_5'"):
        database.ask("3_5")
    with pytest.raises(QueryError):
        Database.open({"x": [[1.0, 2.0]], "v": [1]}, "x", "v").ask("[1_0, 2]")


@pytest.mark.parametrize(("zoned", "naive"), [(5, 2), (2, 5), (3, 3)])
def test_timestamps_without_a_time_zone_beside_others_are_counted(tmp_path, zoned, naive):
    cells = [f"2024-01-0{n + 1}T10:00:00+02:00" for n in range(zoned)]
    cells += [f"2024-02-0{n + 1}T10:00:00" for n in range(naive)]
    path = write(tmp_path / "t.csv", cells)
    database = Database.open(path, "x", "v")
    kind, other = ("with", naive) if zoned > naive else ("without", zoned)
    answer = database.ask("2024-01-01T08:00:00+00:00" if kind == "with" else "2024-02-01T10:00:00", score="exact")
    assert answer.value == (0 if kind == "with" else zoned)
    assert any(f"x: {other} cells are not dates {kind} a time zone, such as" in note for note in answer.column_notes)
    with pytest.raises(DataError, match=f"must be dates {kind} a time zone"):
        Database.open(path, "x", "v", on_bad_cell="refuse")
    texts = Database.open(path, "x", "v", on_bad_cell="text")
    assert texts.ask(cells[-1], score="exact").value == len(cells) - 1


def test_texts_that_look_like_dates_are_mentioned(tmp_path):
    quarters = ["2024Q1", "2024Q2", "2024Q3"]
    answer = Database.open(write(tmp_path / "t.csv", quarters), "x", "v").ask("2024Q1")
    assert "x holds texts that look like dates, such as '2024Q1'" in " ".join(answer.column_notes)
    table = pa.table({"x": ["15-Jun-06", "16-Jun-06"], "v": [1, 2]})
    parquet.write_table(table, tmp_path / "t.parquet")
    for source in (table, tmp_path / "t.parquet"):
        notes = Database.open(source, "x", "v").ask("15-Jun-06").column_notes
        assert any("x holds texts that look like dates" in note for note in notes)


def test_a_table_of_queries_has_the_dates_of_the_key(tmp_path, capfd):
    path = write(tmp_path / "t.csv", ["03/04/2024", "12/31/2024"])
    queries, out = write(tmp_path / "q.csv", ["03/04/2024"], "x,n"), tmp_path / "out.csv"
    assert run(["ask", str(path), "--key", "x", "--value", "v", "--queries", str(queries), "--output", str(out)]) == 0
    assert out.read_text().splitlines()[1].startswith("03/04/2024,0,0.0")
    assert "x is read in the format %m/%d/%Y" in capfd.readouterr().out


def test_shapes_that_are_no_dates():
    assert candidate_formats(["02139-1234", "12-34-567", "1.2.3.4", "x 12 2006", "2006.06", "", "2024-01-02"]) == []
    assert parse_date("Thursday, June 15th, 2006", "%b %d, %Y") == dt.datetime(2006, 6, 15)


def test_dates_in_a_format_and_in_iso_8601_are_both_read_and_counted(tmp_path):
    cells = ["03/04/2024", "13/04/2024", "14/04/2024", "2024-05-01", "2024-05-02"]
    path = write(tmp_path / "t.csv", cells, "day,price")
    days = Database.open(path, "day", "price")
    Database.create(tmp_path / "store", path, "day", "price")
    for database in (days, Database.open(tmp_path / "store")):
        answer = database.ask(["2024-05-01", "01/05/2024", "03/04/2024"], score="exact")
        assert answer.value == [3, 3, 0]
        assert "day is read in the format %d/%m/%Y; 2 cells are in ISO 8601, such as '2024-05-01'" in answer.notes
    texts = Database.open({"day": ["03/04/2024", "2024-05-01"], "price": [1, 2]}, "day", "price").ask("2024-05-01")
    assert "holds texts that look like dates" in " ".join(texts.column_notes)
    units, form, _ = parse_dates(np.array(["13/04/2024", "2024-05-01", "\0missing"], object))
    assert (form, (units[1] - units[0]) / 86_400e6) == ("%d/%m/%Y", 18)
