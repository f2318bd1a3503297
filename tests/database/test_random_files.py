"""Random delimited files are read as the cells from which they were written, whatever their dialect and formats."""

import csv
import datetime as dt
import gzip
import io
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from qkv.database import Database
from tests.effort import LONG

DATES = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%y", "%d-%b-%Y", "%b %d, %Y", "%B %d %Y", "%Y-%m", "%Y/%m/%d")
DATES += ("%d %B %Y", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%m/%d/%Y %I:%M %p")
MISSING = ("", "NA", "n/a", "-", "null", "?", "N/A", "nan")
NAMES = ("Åsa", "Li", "O'Neil", "Ann; B", "x,y", 'say "hi"')


def number_text(number, form):
    sign, english = "-" * (number < 0), f"{abs(number):,.2f}"
    german = english.translate(str.maketrans(",.", ".,"))
    return {
        "plain": f"{number:.2f}",
        "whole": str(int(number)),
        "english": sign + english,
        "german": sign + german,
        "spaces": sign + german.replace(".", " "),
        "percent": f"{number:.2f}%",
        "dollar": f"{sign}${english}",
        "pound": f"{sign}{german} £",
        "brackets": f"({english})" if number < 0 else english,
        "unit": f"{number:.2f} kg",
    }[form]


FORMS = ("plain", "whole", "english", "german", "spaces", "percent", "dollar", "pound", "brackets", "unit")


def random_file(draw):
    """Return a name, the bytes of a file, its encoding, and its cells as a name, a timestamp and a number each."""
    date, form, rate = draw.choice(DATES), draw.choice(FORMS), draw.choice([0, 0.1, 0.3])
    mark, rows, written = draw.choice(MISSING), [], []
    for index in range(draw.randint(30, 80)):
        day = dt.datetime(1971, 1, 1) + dt.timedelta(draw.randint(0, 20_000), 60 * draw.randint(0, 1439))
        number = draw.choice([1, 1, -1]) * 10 ** draw.uniform(-1, 6)
        name = f"{draw.choice(NAMES)}{index}"
        texts = [mark if draw.random() < rate else text for text in (day.strftime(date), number_text(number, form))]
        written.append([name, *texts])
        cell = int(number) if form == "whole" else round(number, 2)
        read = dt.datetime.strptime(texts[0], date) if texts[0] != mark else None
        rows.append((name, read, None if texts[1] == mark else cell))
    out = io.StringIO()
    quoting = draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    ends = draw.choice(["\n", "\r\n"])
    writer = csv.writer(out, delimiter=draw.choice(",;\t|"), quoting=quoting, lineterminator=ends)
    writer.writerows([["name", "day", "number"], *written])
    encoding = draw.choice(["utf-8", "utf-8-sig", "latin-1", "utf-16"])
    packed, content = draw.choice(["", ".gz", ".zst"]), out.getvalue().encode(encoding)
    if packed == ".gz":
        content = gzip.compress(content)
    elif packed:
        content = pa.Codec("zstd").compress(content, asbytes=True)
    return f"t.csv{packed}", content, encoding, rows


def cells_of(database):
    columns = [database.table[name].to_pylist() for name in ("name", "day", "number")]
    columns[1] = [day and dt.datetime.fromisoformat(day.isoformat()).replace(tzinfo=None) for day in columns[1]]
    columns[2] = [None if number != number else number for number in columns[2]]
    return list(zip(*columns, strict=True))


def test_random_files_are_read_as_their_cells(tmp_path):
    draw = random.Random(1)
    for _ in range(300 if LONG else 4):
        name, content, encoding, rows = random_file(draw)
        path = tmp_path / name
        path.write_bytes(content)
        given = {"encoding": encoding} if encoding in ("latin-1", "utf-16") else {}
        opened = Database.open(path, "day", "number", **given)
        assert cells_of(opened) == rows
        with path.open("rb") as piped:
            assert cells_of(Database.open(piped, "day", "number", **given)) == rows
        typed = pa.table({title: [row[at] for row in rows] for at, title in enumerate(("name", "day", "number"))})
        parquet.write_table(typed, tmp_path / "t.parquet")
        query = next(day for _, day, number in rows if day is not None and number is not None)
        expected = Database.open(tmp_path / "t.parquet", "day", "number").ask(query, score="exact").value
        zoned = getattr(opened.table.schema.field("day").type, "tz", None)
        asked = query.replace(tzinfo=dt.UTC) if zoned else query
        assert opened.ask(asked, score="exact").value == pytest.approx(expected)


LATER = {
    "1": ("1.5", "true", '"2.5"', "1e2"),
    "0.5": ("true", '"1.5"', "12345678901234567891"),
    "true": ("1", '"no"', "0.4"),
}
LATER |= {"[1]": ("[1.5]",), '{"a": 1}': ('{"a": 1.5, "b": 2}',), '"2024-01-02"': ('"2024-01-02 12:30:00"', '"x"', "7")}
LATER |= {
    '"2024-01-02 01:00"': ('"2024-01-02 12:30:00+02:00"', '"2024-01-02 01:00 PM"', '"2024-01-02"'),
    '"7:00"': ('"25:00"',),
}
LATER |= {'"1.234"': ('"0,5"', '"1.234.567"', '"12.5"'), '"1,234"': ('"1.5"',), "7": ('"1,234.5"', '"(5)"', '"7 kg"')}


def test_a_cell_behind_the_first_rows_is_read_as_in_a_short_file(tmp_path):
    draw, quote = random.Random(2), '"'
    pairs = [(first, last, kind) for first in LATER for last in LATER[first] for kind in ("csv", "jsonl")]
    for first, last, kind in pairs if LONG else draw.sample(pairs, 2):
        if kind == "csv" and first[0] in "[{":
            continue
        read = {}
        for count in (3, 20_500):
            cells = [*[first] * count, last]
            if kind == "csv":
                lines = ["name;cell", *(f"n{row};{cell.strip(quote)}" for row, cell in enumerate(cells))]
            else:
                lines = [f'{{"name": "n{row}", "cell": {cell}}}' for row, cell in enumerate(cells)]
            (tmp_path / f"t.{kind}").write_text("\n".join(lines) + "\n")
            for key, value in (("name", "name"), ("cell", "name"), ("name", "cell")):
                if (key != value and first[0] in "[{") or (key == value and kind == "csv" and first[0] == quote):
                    continue  # no key or value, or a shown time that is missing if few others are written so
                table = Database.open(tmp_path / f"t.{kind}", key, value).table
                found = [str(table["cell"][row].as_py()).removesuffix(" 00:00:00") for row in (0, count)]
                assert read.setdefault((key, value), found) == found, (first, last, kind, key, value)
