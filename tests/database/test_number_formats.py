"""Numbers in texts: separated thousands, decimal commas, parentheses, currencies, percent and units."""

import random

import pytest

from qkv.cli.main import run
from qkv.database import Database
from qkv.database.io.sources import read
from qkv.database.keys.queries import Queries
from qkv.encoders.columns import Column
from qkv.encoders.number_formats import NumberFormat, affix_counts
from qkv.errors import DataError
from qkv.testing.libraries import turn
from tests.effort import sample

from .test_bad_cells import write

CODES = "x is read as an identifier, because every text is a code of letters and digits"


def with_format(number, decimal, group, before="", behind="", brackets=False):
    text = f"{abs(number):,.2f}".translate(str.maketrans({",": group, ".": decimal}))
    text = f"{before}{text}{behind}"
    return text if number >= 0 else f"({text})" if brackets else f"-{text}"


FORMATS = [
    (".", ","),
    (",", "."),
    (".", " "),
    (",", "\u202f"),
    (".", "'"),
    (".", ",", "$"),
    (",", ".", "€ "),
    (",", "", "", " €"),
    (".", "", "", "%"),
    (",", ".", "", " %"),
    (".", ",", "", " kg"),
    (".", ",", "$", "", True),
    (".", ",", "CHF "),
    (".", "", "", " °C"),
]


def test_formatted_numbers_are_numbers(tmp_path):
    draw = random.Random(0)
    names = [f"c{index}" for index in range(len(FORMATS))]
    numbers = [[round(draw.choice([1, 1, -1]) * 10 ** draw.uniform(-1, 7), 2) for _ in range(60)] for _ in FORMATS]
    cells = [[with_format(each, *form) for each in column] for column, form in zip(numbers, FORMATS, strict=True)]
    lines = [",".join(f'"{cell}"' for cell in row) for row in zip(*cells, strict=True)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    table = read(path, tuple(names))
    for name, column, texts in zip(names, numbers, cells, strict=True):
        assert table[name].to_pylist() == column
        read_column = Column.from_table(table, name)
        assert read_column.reading.startswith("is read as ")
        queries = [text for row in range(5) for text in (texts[row], repr(column[row]))]
        if read_column.number_format.decimal == ".":
            parsed = Queries.parse(queries, [read_column]).columns[0].cells
            assert parsed.tolist() == [number for number in column[:5] for _ in range(2)]
        assert Queries.parse(texts[:5], [read_column]).columns[0].cells.tolist() == column[:5]


def test_a_format_is_kept_in_a_store_and_bad_cells_are_counted(tmp_path):
    path = write(tmp_path / "t.csv", ['"$1,203.50"', "$5", "5 $", "n/a", '"$2,000"', "9"])
    for database in (Database.open(path, "x", "v"), Database.create(tmp_path / "s", path, "x", "v")):
        answer = database.ask("$1,203.50", score="exact")
        assert answer.value == 0
        assert "x is read as amounts of $, such as '$1,203.50' as 1203.50" in answer.column_notes
        assert database.ask(9, score="exact").value == 5
    assert "x: 1 cell is not a finite number, such as 'n/a', left out" in Database.open(path, "x", "v").ask(5).notes
    with pytest.raises(DataError, match=r"must be finite numbers in .*, got 'n/a'"):
        Database.open(path, "x", "v", on_bad_cell="refuse")
    assert Database.open(path, "x", "v", on_bad_cell="text").ask("n/a", score="exact").value == 3


@pytest.mark.parametrize(("delimiter", "value"), [(",", 1203), (";", 1.203)])
def test_a_decimal_separator_in_doubt_is_stated_and_can_be_given(tmp_path, delimiter, value):
    path = tmp_path / "t.csv"
    path.write_text(f'x{delimiter}v\n"1,203"{delimiter}1\n"2,500"{delimiter}2\n')
    database = Database.open(path, "x", "v")
    assert database.table["x"].to_pylist()[0] == value
    other, decimal = (1.203, ",") if value == 1203 else (1203, ".")
    note = f"no cell decides about the decimal separator, and --decimal {decimal} reads '1,203' as {other}"
    assert note in database.ask("1,203", score="exact").column_notes[0]
    if decimal == "." or delimiter != ",":
        given = Database.open(path, "x", "v", decimal=decimal)
        assert given.table["x"].to_pylist()[0] == other
        assert "no cell decides" not in given.ask(other, score="exact").column_notes[0]


@pytest.mark.parametrize("rows", ["1,5;2,5\n2,5;3,5\n", "1.203,5;2,5\n2,5;3\n", '"1,5";2\n"2";3,5\n'])
def test_decimal_commas_beside_semicolons_are_read_and_stated(tmp_path, rows, capfd):
    path = tmp_path / "t.csv"
    path.write_text("x;v\n" + rows)
    expected = [
        [float(cell.strip('"').replace(".", "").replace(",", ".")) for cell in row.split(";")]
        for row in rows.splitlines()
    ]
    database = Database.open(path, "x", "v")
    assert [list(map(float, row.values())) for row in database.table.to_pylist()] == expected
    assert any("with decimal commas" in note for note in database.ask(2.5).column_notes)
    assert run(["ask", str(path), "--key", "x", "--value", "v", "2,5"]) == 0
    assert "with decimal commas" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("cells", "number"),
    sample([(["1,203", "2,500"], 1.203), (["1.203", "950"], 1203), (["1.203", "n/a", "4.000"], 1203)], 2),
)
def test_one_of_several_files_decides_about_the_decimal_separator(tmp_path, cells, number):
    paths = [tmp_path / "0.csv", tmp_path / "1.csv"]
    for path, each in zip(paths, [cells, ["3,5", "2"]], strict=True):
        path.write_text("x;v\n" + "".join(f"{cell};1\n" for cell in each))
    stored = Database.create(tmp_path / "appended", paths[1], "x", "v")
    stored.append(paths[0])
    for database in (Database.open(paths, "x", "v"), Database.create(tmp_path / "s", paths, "x", "v"), stored):
        answer = database.ask(number, score="exact")
        assert answer.found
        assert not any("no cell decides" in note for note in answer.column_notes)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["5 kg", "7 g", "9 kg", "1 g"], "x holds texts, because its numbers have several units (g, kg)"),
        (["5 apples", "7 apples", "9 apples"], "x holds texts, although its cells are numbers with 'apples'"),
    ],
)
def test_units_that_are_not_read_are_mentioned(tmp_path, cells, said):
    answer = Database.open(write(tmp_path / "t.csv", cells), "x", "v").ask(cells[0])
    assert answer.column_notes[0].startswith(said)
    texts = Database.open({"x": ["$5", "$7"], "v": [1, 2]}, "x", "v").ask("$5")
    assert texts.column_notes == (
        "x holds texts, although its cells are numbers with '$', such as '$5'; convert them to compare numbers",
    )


@pytest.mark.parametrize(
    ("cells", "notes"),
    [
        (["10 Elm St", "12 Oak Rd", "9 Elm St"], ()),
        (["007,5", "008,5"], (CODES,)),
        (["1.2.3", "1.2.4"], (CODES,)),
        (["A1", "B2"], (CODES,)),
    ],
)
def test_other_texts_are_not_called_numbers(tmp_path, cells, notes):
    database = Database.open(write(tmp_path / "t.csv", [f'"{cell}"' for cell in cells]), "x", "v")
    assert database.table["x"].to_pylist() == cells
    assert database.ask(cells[0], score="exact").column_notes == notes


def test_large_numbers_with_separators_stay_exact(tmp_path):
    numbers = [2**63 - 1, 2**63 - 2, 2**53 + 1]
    database = Database.open(write(tmp_path / "t.csv", [f'"{number:,}"' for number in numbers]), "x", "v")
    assert [database.ask(f"{number:,}", score="exact").value for number in numbers] == [0, 1, 2]


def test_cells_that_are_no_numbers_of_a_format():
    bad = ["", "$", "1,20", "1,2034", "1,203,", "--5", "(5", "5)", "5 kg", "1.2.3", "$5$", "1e", "5 5"]
    assert [NumberFormat().parse(text) for text in bad] == [None] * len(bad)
    assert affix_counts(["$5 kg", "x5", "5 5 a 5"]) == {}


@pytest.mark.parametrize("cells", ["1.203;12.500;950;-9", "1.203;;0;7.125", "1.203;n/a;7.125;x"])
def test_points_that_may_separate_thousands_are_said_unless_commas_delimit_cells(cells, tmp_path):
    file = tmp_path / "t.csv"
    for number, contradiction in enumerate(("", "12.5", "0.512", "1203", "1.2030")):
        values = [*cells.split(";"), contradiction] if contradiction else cells.split(";")
        for delimiter in turn(";\t|,", number, 4) if contradiction else ";\t|,":
            file.write_text(
                "k;v\n".replace(";", delimiter) + "".join(f"{k}{delimiter}{v}\n" for k, v in enumerate(values))
            )
            answer = Database.open(file, "k", "v").ask(0, score="exact")
            said = any("no cell decides" in note and "reads '1.203' as 1203" in note for note in answer.column_notes)
            assert answer.value == 1.203
            assert said == (delimiter != "," and not contradiction), (values, answer.column_notes)
    file.write_text("k;v\n" + "".join(f"{k};{v}\n" for k, v in enumerate(cells.split(";"))))
    assert Database.open(file, "k", "v", decimal=",").ask(0, score="exact").value == 1203
    given = Database.open(file, "k", "v", decimal=".").ask(0, score="exact")
    assert not any("no cell decides" in note for note in given.column_notes)


@pytest.mark.parametrize("plain", [20, 60])
def test_amounts_of_which_some_lack_the_currency_are_numbers(tmp_path, plain):
    numbers = [1000.5 + n for n in range(100)]
    cells = [f"{number:,.2f}" if n < plain else f"${number:,.2f}" for n, number in enumerate(numbers)]
    path = tmp_path / "t.csv"
    path.write_text("pay\n" + "".join(f'"{cell}"\n' for cell in cells))
    assert read(path, ("pay",))["pay"].to_pylist() == numbers


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_predicate_says_that_points_beside_other_delimiters_than_commas_may_separate_thousands(delimiter, tmp_path):
    rows = [f"{n};{n};{n}.20{n};{n}.5" for n in range(1, 9)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["k;v;w;decided", *rows, ""]).replace(";", delimiter))
    Database.create(tmp_path / "s", path, "k", "v")
    note = "'1.201' as 1.201; no cell decides about the decimal separator, and --decimal , reads '1.201' as 1201"
    for database in (Database.open(path, "k", "v"), Database.open(tmp_path / "s")):
        assert database.ask(3, score="exact", where="w > 2").value == 3.0
        assert any(note in each for each in database.ask(3, score="exact", where="w > 2").notes)
        assert not any("decides" in each for each in database.ask(3, score="exact", where="decided > 2").notes)
    stated = Database.open(path, "k", "v", decimal=",")
    assert stated.ask([3, 1], score="exact", where="w > 2000").value == [3.0, None]


@pytest.mark.parametrize(("first", "second"), [("5 kg", "500 g"), ("$5", "€50"), ("5%", "0.05"), ("0.05", "5%")])
def test_numbers_of_several_units_are_refused_in_several_files_and_in_rows_for_a_store(first, second, tmp_path):
    cells = {"a": first, "b": second}
    files = [tmp_path / f"{name}.csv" for name in cells]
    for file, (name, cell) in zip(files, cells.items(), strict=True):
        file.write_text(f"name,x\n{name},{cell}\n{name}2,{cell}\n")
    with pytest.raises(DataError, match="numbers of 'x' must have one unit, got"):
        Database.open(files, "name", "x")
    store = Database.create(tmp_path / "store", files[0], "name", "x")
    with pytest.raises(DataError, match="numbers of 'x' must have one unit, got"):
        store.append(files[1])
    if first in ("5 kg", "$5"):
        assert store.append({"name": ["c"], "x": [7]}) == 2


@pytest.mark.thinned
@pytest.mark.parametrize("code", ["04713", "+04", "00.5"])
@pytest.mark.parametrize("rows", [30, 21_000])
def test_a_code_in_the_last_row_makes_decimals_texts_in_files_of_any_length(tmp_path, rows, code):
    path = write(tmp_path / "t.csv", ["-1.5"] * rows + [code])
    assert read(path, ("x",))["x"].to_pylist()[-2:] == ["-1.5", code]


@pytest.mark.thinned
@pytest.mark.parametrize("code", ["0x10", "0b101", "0X1F"])
@pytest.mark.parametrize("rows", [30, 21_000])
def test_a_hexadecimal_or_binary_cell_among_whole_numbers_is_left_out_with_a_note(tmp_path, rows, code):
    path = tmp_path / "t.csv"
    lines = [f"{number},{number},{number}" for number in range(rows)]
    path.write_text("\n".join(["x,v,shown", *lines, f"{code},{code},{code}", "7,7,0"]))
    database = Database.open(path, "x", "v")
    assert database.table["x"].to_pylist()[-3:] == database.table["v"].to_pylist()[-3:] == [rows - 1, None, 7]
    assert database.table["shown"].to_pylist()[-2:] == [code, "0"]
    left_out = f"1 cell is not a finite number, such as {code!r}, left out"
    assert database.ask(7).column_notes == (f"x: {left_out}", f"v: {left_out}")


def test_columns_of_hexadecimal_cells_are_texts(tmp_path):
    table = read(write(tmp_path / "t.csv", ["0x10", "0x1F", "7"]), ("x",))
    assert table["x"].to_pylist() == ["0x10", "0x1F", "7"]
