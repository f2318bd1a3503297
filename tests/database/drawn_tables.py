"""Drawn tables with known answers: names, times and identifiers in files as programs and people write them.

A table is drawn as rows of a key and a value, which are the truth. It is then written with titles, comments and blank
lines, a delimiter, line ends, decimal commas, quoted cells, a footer, missing cells, a format of times and a zone.

`drawn_cells` draws a column of any kind, and `containers` has the objects that hold columns.
"""

import csv
import datetime as dt
import io
import random
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

NAMES = (
    "Jon Anna Maria Li José Zoë Ken Olga Sean Mia Iran Omar Ute Paul Eva Nils",
    "Smith Niger Meyer O'Neil Zhang Garcia Berg Novak Kim Costa Iraq Lund Duval Rossi",
)
CLOCKS = (
    "%Y-%m-%d %H:%M",
    "%Y/%m/%d %H:%M",
    "%d.%m.%Y %H:%M",
    "%m/%d/%Y %I:%M %p",
    "%Y-%m-%d %I:%M %p",
    "%d-%b-%y %H:%M",
)
ZONES = {"": None, " CET": 60, " +0200": 120, "+02:00": 120, " EST": -300, "Z": 0, " UTC": 0, " UTC-3": -180}
MISSING = ("", "N/A", r"\N", "**", "none", "n.a.")
TITLES = (
    "",
    "Prices",
    "Report: 2024, all shops",
    "# made by hand\n# not checked",
    "Report{d}{d}\n{d}{d}",
    "\n\nTable 1\n",
)
FOOTERS = ("", "", "Total{d}{d}", "\nSource: an office{d} 2024", "Notes", "{d}{d}\n{d}{d}")


@dataclass(frozen=True)
class DrawnTable:
    """A file, a question and its answer.

    Attributes:
        content: the bytes of the file.
        key: the key column; the value column is `amount`.
        query: the question.
        options: options of `qkv ask`.
        value: the value of the key that is asked for; None if the key is in the table without a value.
        kind: "names", "times" or "identifiers".
    """

    content: bytes
    key: str
    query: str
    options: tuple[str, ...]
    value: float | None
    kind: str


def drawn_table(number: int) -> DrawnTable:
    """Return the table of a number."""
    draw = random.Random(f"table {number}")
    kind = ("names", "times", "identifiers")[number % 3]
    key, keys, query = {"names": _names, "times": _times, "identifiers": _identifiers}[kind](draw)
    amounts: list[float | None] = [draw.randint(1000, 99_999) / 1000 for _ in keys]
    asked = draw.randrange(len(keys))
    for row in draw.sample(range(len(keys)), len(keys) // 8):
        amounts[row] = None
    if kind == "names" and draw.random() < 0.5:
        amounts[asked] = None
    elif amounts[asked] is None:
        amounts[asked] = 1.759
    options = () if kind == "names" else ("--score", "exact")
    return DrawnTable(_written(draw, key, keys, amounts), key, query(asked), options, amounts[asked], kind)


def _names(draw):
    """Full names of which some differ by a letter or two."""
    firsts, lasts = (names.split() for names in NAMES)
    names = {f"{first} {last}" for first in draw.sample(firsts, 6) for last in draw.sample(lasts, 3)}
    for name in sorted(names)[:6]:
        place = draw.randrange(1, len(name) - 1)
        names.add((name[:place] + name[place + 1 :]).strip())
    names = sorted(names)
    draw.shuffle(names)
    return draw.choice(("name", "Full Name", "person")), names, lambda row: names[row]


def _times(draw):
    """Times in one format and zone; they are asked in it, or in ISO 8601."""
    form, zone = draw.choice(CLOCKS), draw.choice(list(ZONES))
    start = dt.datetime(2024, 1, 1) + dt.timedelta(hours=draw.randrange(3000))
    moments = [start + dt.timedelta(hours=12 * step) for step in range(40)]  # 01:30 AM and PM
    offset = ZONES[zone]
    iso = "" if offset is None else f"{'-' if offset < 0 else '+'}{abs(offset) // 60:02d}:{abs(offset) % 60:02d}"
    other = draw.random() < 0.5

    def query(row):
        return moments[row].isoformat(" ", "minutes") + iso if other else moments[row].strftime(form) + zone

    return draw.choice(("when", "time", "Date")), [moment.strftime(form) + zone for moment in moments], query


def _identifiers(draw):
    """Numbers with leading zeros, in scientific notation or with letters, and plain ones that are far from all."""
    key = draw.choice(("part_no", "Roll No", "Event No", "Inv No", "Nr", "Postleitzahl", "order id"))
    plain = draw.sample(range(10_000, 200_000), 20)
    written = {
        "plain": [str(number) for number in plain],
        "zeros": [f"{number:07d}" for number in plain],
        "exponents": ["1E05", "100000", "2E4", "20000", *map(str, plain)]
        if key == "part_no"
        else list(map(str, plain)),
        "letters": [f"AB-{number}" for number in plain],
    }[draw.choice(("plain", "zeros", "exponents", "letters"))]
    return key, written, lambda row: written[row]


def _written(draw, key, keys, amounts):
    """Return the bytes of a file of the columns `id` (or a note), the key and `amount`."""
    delimiter = draw.choice(",;;\t|")
    decimal = "," if delimiter == ";" and draw.random() < 0.7 else "."
    missing = draw.choice(MISSING)
    out = io.StringIO()
    writer = csv.writer(
        out, delimiter=delimiter, lineterminator="\n", quoting=draw.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    )
    writer.writerow(["remark", key, "amount"])
    for row, (cell, amount) in enumerate(zip(keys, amounts, strict=True)):
        remark = draw.choice(("ok", "a, b; c", "new\nline", 'said "no"', "")) if row else "first"
        writer.writerow([remark, cell, missing if amount is None else f"{amount:.3f}".replace(".", decimal)])
    title, footer = (draw.choice(each).replace("{d}", delimiter) for each in (TITLES, FOOTERS))
    text = (f"{title}\n" if title else "") + out.getvalue() + (f"{footer}\n" if footer else "")
    text = text.removesuffix("\n") if draw.random() < 0.3 else text
    lines = text.split("\n")
    end = draw.choice(("\n", "\n", "\r\n", "\r", "mixed"))
    if end == "mixed":
        text = "".join(line + draw.choice(("\n", "\r\n")) for line in lines[:-1]) + lines[-1]
    else:
        text = text.replace("\n", end)
    return text.encode(draw.choice(("utf-8", "utf-8-sig")))


_DAY, _HOUR, _START = dt.timedelta(days=1), dt.timedelta(hours=1), dt.datetime(2020, 1, 1)
CELLS = {
    "integer": (lambda draw: draw.randint(-50, 50), pa.int64()),
    "large integer": (lambda draw: 2**62 + draw.randint(0, 20) * 1024, pa.int64()),
    "float": (lambda draw: draw.randint(-90, 90) / 10, pa.float64()),
    "float32": (lambda draw: float(np.float32(draw.randint(-90, 90) / 10)), pa.float32()),
    "decimal": (lambda draw: Decimal(draw.randint(-900, 900)) / 100, pa.decimal128(10, 2)),
    "boolean": (lambda draw: draw.random() < 0.5, pa.bool_()),
    "date": (lambda draw: (_START + draw.randint(0, 60) * _DAY).date(), pa.date32()),
    "time": (lambda draw: _START + draw.randint(0, 900) * _HOUR, pa.timestamp("us")),
    "zoned time": (
        lambda draw: (_START + draw.randint(0, 900) * _HOUR).replace(tzinfo=dt.UTC),
        pa.timestamp("us", "UTC"),
    ),
    "duration": (lambda draw: draw.randint(0, 900) * _HOUR, pa.duration("us")),
    "text": (lambda draw: draw.choice(["red x", "green y", "blue z", "07", "1"]), pa.string()),
    "identifier": (lambda draw: f"K{draw.randint(0, 40):04d}", pa.string()),
}
"""For each kind of cells, a function that draws one and its Arrow type."""


def drawn_cells(draw, kind, count, missing):
    """Return cells of a kind, of which a share is missing but not all."""
    cells = [CELLS[kind][0](draw) for _ in range(count)]
    return [cells[0], *(None if draw.random() < missing else cell for cell in cells[1:])]


def containers(columns, kinds):
    """Return the same columns in every container that keeps all digits, by name; the first one is that of Arrow."""
    table = pa.table({name: pa.array(cells, CELLS[kinds[name]][1]) for name, cells in columns.items()})
    texts = [name for name, kind in kinds.items() if CELLS[kind][1] == pa.string()]
    found = {"arrow": table, "chunks": pa.concat_tables([table.slice(0, 3), table.slice(3)])}
    found["pandas of arrow"] = table.to_pandas(types_mapper=pd.ArrowDtype)
    found["pandas objects"] = pd.DataFrame({name: pd.Series(each, dtype=object) for name, each in columns.items()})
    found["pandas categories"] = found["pandas of arrow"].astype(dict.fromkeys(texts, "category"))
    found["polars"] = pl.from_arrow(table)
    if not any(kind == "large integer" and None in columns[name] for name, kind in kinds.items()):
        found["pandas"] = table.to_pandas()  # has floats in place of integers beside missing cells
    return found
