"""Files as people export them: the table is found between what is above, below and between its rows."""

import random
import tempfile

import pytest

from qkv.database import Database
from qkv.errors import DataError, OptionError
from tests.effort import LONG, seeds

ROWS = [("Ann, Lee", "1.759"), ("Bob", "2.500"), ('C "C" C', "3.250"), ("Dora", "40.125")]
ABOVE = ["Prices", "Prices{d} in shops{d} and stalls", "# comment", "{d}", "", "Report{d}{d}", "// made; by, hand"]
BELOW = ["Total{d}{d}", "Source: an office", "Note{d} all prices", "{d}{d}", "", "4{d}Dora"]


def file_of(draw, delimiter, rows=ROWS):
    """The lines above a drawn file, its table and those below it."""
    decimal = "," if delimiter == ";" else "."
    quoted = [['"' + name.replace('"', '""') + '"', pay.replace(".", decimal)] for name, pay in rows]
    table = [
        delimiter.join(cells) for cells in [["no", "name", "pay"], *([str(n), *row] for n, row in enumerate(quoted))]
    ]
    above = [draw.choice(ABOVE).format(d=delimiter) for _ in range(draw.randint(0, 4))]
    below = [draw.choice(BELOW).format(d=delimiter) for _ in range(draw.randint(0, 3))]
    return above, table, below


def opened(path, content, **options):
    path.write_bytes(content.encode())
    return Database.open(path, "name", "pay", cache=False, **options)


@pytest.mark.parametrize("seed", seeds(20))
def test_the_table_is_read_whatever_is_above_and_below_it_and_however_its_lines_end(seed, tmp_path):
    draw = random.Random(seed)
    delimiter = draw.choice(",;\t|")
    above, table, below = file_of(draw, delimiter)
    ends = draw.choice((["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"], ["\n", "\r\n", "\r"]))
    content = "".join(line + draw.choice(ends) for line in [*above, *table, *below])
    found = opened(tmp_path / "t.csv", content)
    assert list(zip(found.table["name"].to_pylist(), found.table["pay"].to_pylist(), strict=True)) == [
        (name, float(pay)) for name, pay in ROWS
    ]
    said = " ".join(found.ask("Bob").column_notes)
    for lines, where in ((above, "above the header"), (below, "at the end")):
        shown = [line for line in lines if line.strip(f" {delimiter}")]
        assert (where in said) == bool(shown), said
    given = opened(tmp_path / "g.csv", content, header_row=len(above) + 1, skip_footer=len(below), delimiter=delimiter)
    assert given.table.equals(found.table)


@pytest.mark.thinned
@pytest.mark.parametrize("place", [1, 2, 5_000, 40_000])
@pytest.mark.parametrize("cells", ["5;", "5;Eve;1,5;x", '5;"Eve', "# a comment", "5;J\udce9r;1,5"])
def test_a_line_between_the_rows_that_is_no_row_is_named_or_left_out(place, cells, tmp_path):
    rows = [f"{n};name {n % 7};{n % 10},5" for n in range(40_001)]
    path = tmp_path / "t.csv"
    lines = ["Prices, all", "no;name;pay", *rows[:place], cells, *rows[place:]]
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    if cells[0] == "#":
        found = Database.open(path, "name", "pay", cache=False)
        assert found.table.num_rows == len(rows)
        assert "comments between the rows" in " ".join(found.ask("name 3").column_notes)
        return
    with pytest.raises(DataError) as error:
        Database.open(path, "name", "pay", cache=False)
    assert f"line {place + 3:,}" in str(error.value)
    assert ("latin-1" in str(error.value)) == ("\udce9" in cells)
    assert tempfile.gettempdir() + "/qkv-" not in str(error.value)


def test_one_other_line_end_far_from_both_ends_of_a_file_changes_nothing(tmp_path):
    ends = [("\r\n", "\n"), ("\n", "\r\n"), ("\r", "\n"), ("\n", "\r")]
    for end, other in ends if LONG else ends[1:3]:
        content = "name,pay" + end + f"Ann,1{end}" * 40_000 + f"Bob,2{other}" + f"Ann,1{end}" * 40_000
        assert opened(tmp_path / "t.csv", content).ask("Bob").value == 2


def test_a_total_of_which_all_cells_are_filled_is_a_row_and_mentioned(tmp_path):
    content = "name,pay\nAnn,1\nBob,2\nTotal,3\n"
    found = opened(tmp_path / "t.csv", content)
    assert found.table.num_rows == 3
    assert "the last row may be a total ('Total,3')" in " ".join(found.ask("Bob").column_notes)
    assert opened(tmp_path / "t.csv", content, skip_footer=1).table.num_rows == 2


def test_a_last_row_with_too_many_cells_is_an_error_and_a_remark_is_not(tmp_path):
    with pytest.raises(DataError, match=r"line 3 of .* must have 2 cells, as the header has, got 3: 'Bob,2,5'"):
        opened(tmp_path / "t.csv", "name,pay\nAnn,1\nBob,2,5\n")
    assert opened(tmp_path / "t.csv", "name,pay\nAnn,1\nSource: a, b, c and d\n").table.num_rows == 1


@pytest.mark.thinned
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("title", ["", "Prices, in euros\n"])
def test_the_delimiter_is_that_of_the_header_row(tmp_path, delimiter, title):
    path, row = tmp_path / "t.csv", 1 + bool(title)
    pay = '"2,5"' if delimiter == "," else "2,5"
    path.write_text(f"{title}name{delimiter}pay\n" + f"Ann{delimiter}{pay}\nBo{delimiter}{pay}\n")
    assert Database.open(path, "name", "pay", header_row=row).ask("Ann").value == 2.5
    for options in ({"header_row": row}, *[{}] * (not title)):
        with pytest.raises(DataError, match=r"column must be one of name, pay in t\.csv, got 'Name'"):
            Database.open(path, "Name", "pay", **options)


@pytest.mark.parametrize("row", [0, 2, 9])
def test_a_header_row_that_is_no_line_is_refused(row, tmp_path):
    with pytest.raises(OptionError, match="header_row must be"):
        opened(tmp_path / "t.csv", "name,pay\n\nAnn,1\n", header_row=row)
    with pytest.raises(OptionError, match="skip_footer must be at least 0"):
        opened(tmp_path / "t.csv", "name,pay\nAnn,1\n", skip_footer=-1)


def test_a_store_is_created_from_the_table_below_other_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("first,second,third\nname,city,pay\nAnn,Ulm,5\nBen,Bonn,7\n")
    stored = Database.create(tmp_path / "stored", path, key="name", value="pay", header_row=2)
    assert stored.ask("Ben").value == 7
