"""First pass over a delimited file: where its table begins and ends, and how its lines and cells are separated.

The first and the last 64 KiB of the file are read. The delimiter and the quotation mark are those with which a line
holds the required columns and the lines below it have as many cells. Lines above the header, such as titles, comments
and blank lines, and lines at the end that are no rows, such as sources and totals, are not part of the table. DuckDB
then reads the table with these options: the file itself, or a copy of its table if the lines end in several ways, or
if there are lines at the end or comments between the rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from qkv.database.io.file_bytes import open_binary
from qkv.database.io.read_options import ReadOptions
from qkv.errors import DataError, OptionError

_DELIMITERS = ",;\t|"
_MOST_LINES = 50
"""Maximum number of lines at the end that are no rows."""
_COMMENT = re.compile(r"\s*(#|//|--)")
_TOTAL = re.compile(r"((grand|sub)[ -]?)?(totals?|totale|sum|summe|gesamt|insgesamt|somme|suma|average|mean)\W*", re.I)
_REMARK = re.compile(
    r"[*#©]|//|(sources?|notes?|footnotes?|quellen?|hinweise?|anmerkung(en)?|fuente|nota|remarks?|copyright|generated|"
    r"exported|downloaded|last updated?)\b",
    re.I,
)


@dataclass(frozen=True)
class Layout:
    """The place and the separators of the table in a delimited file.

    Attributes:
        delimiter: the character between cells; "" if the file has one column that holds every delimiter.
        quote: the quotation mark; "" for none.
        escape: the character before a quotation mark within a quoted cell.
        width: the number of cells of the header.
        header: the cells of the header; () if it is not known whether the first line of the table is one.
        above: the number of lines above the table.
        below: the number of lines below it.
        comments: whether comment lines between the rows are left out.
        mixed: whether lines end in several ways, or in CR.
        note: which lines are left out, as a sentence; "" for none.
    """

    delimiter: str = ""
    quote: str = '"'
    escape: str = '"'
    width: int = 0
    header: tuple[str, ...] = ()
    above: int = 0
    below: int = 0
    comments: bool = False
    mixed: bool = False
    note: str = ""

    @property
    def copied(self) -> bool:
        """Whether the table must be copied for DuckDB."""
        return self.mixed or self.comments or self.below > 0

    def options(self) -> dict[str, object]:
        """The options with which DuckDB reads the file, or the copy of its table."""
        given: dict[str, object] = {"quotechar": self.quote, "escapechar": self.escape}
        given |= {"skiprows": 0 if self.copied else self.above}
        given |= {"delimiter": self.delimiter} if self.delimiter else {}
        return given | {"header": True} if self.header else given

    def fits(self, cells: list[str]) -> bool:
        """Return whether a line may be a row; an empty cell may follow the last one."""
        return len(cells) == self.width or (len(cells) == self.width + 1 and not cells[-1])

    def rows(self, lines: Iterable[str], strict: bool = False) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of the first line of each row, from 1, and its cells.

        Raises:
            DataError: A cell is not well formed, and `strict` is True.
        """
        reader = csv.reader(
            lines,
            delimiter=self.delimiter or "\x1f",
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            doublequote=self.escape == self.quote,
            escapechar=None if self.escape == self.quote else self.escape or None,
            strict=strict,
        )
        first = 1
        try:
            for cells in reader:
                yield first, cells
                first = reader.line_num + 1
        except csv.Error as error:  # also a cell of more than 128 KiB
            if strict:
                raise DataError(f"line {first:,} cannot be read: {error}. Check its quotation marks.") from None


def read_layout(ends: tuple[bytes, bytes], options: ReadOptions, required: tuple[str, ...]) -> Layout:
    """Return the layout of a delimited file in UTF-8.

    Args:
        ends: its first and its last bytes, as `read_ends` returns them.
        options: the delimiter, the line of the header and the number of lines at the end, if they are given.
        required: columns that the header holds, if it has them.

    Raises:
        OptionError: The file has no line of the number of the header.
    """
    head, tail = (part.decode("utf-8-sig", "replace") for part in ends)
    whole = ends[0].endswith(ends[1])
    mixed = len(_line_ends(head) | _line_ends(tail)) > 1 or "\r" in _line_ends(head)
    lines = re.split("\r\n?|\n", head)
    if not whole:
        lines = lines[:-1]
    given = options.header_row
    if given and not "".join(lines[given - 1 : given]).strip():
        raise OptionError(f"header_row must be the number of a line with names, got {given}. Correct it.")
    layout = _best_layout(lines[given - 1 if given else 0 :], options.delimiter, None if given else required)
    layout = replace(layout, above=given - 1) if given else layout
    rows = list(layout.rows(f"{line}\n" for line in lines[layout.above :]))
    comments = any(_is_comment(layout, cells) for _, cells in rows)
    last = lines[max(layout.above + 1, 1) :] if whole else re.split("\r\n?|\n", tail)[1:]
    last = last[:-1] if last and not last[-1] else last
    below = _lines_below(layout, last) if options.skip_footer is None else options.skip_footer
    layout = replace(layout, below=below, comments=comments, mixed=mixed)
    total = last[-1] if last and not below and options.skip_footer is None else ""
    return replace(layout, note=_note(lines[: layout.above], last[len(last) - below :], comments, total))


def _line_ends(text: str) -> set[str]:
    return set(re.findall("\r\n|\r|\n", re.sub('"[^"]*"', "", text.removesuffix("\r"))))


def _best_layout(lines: list[str], delimiter: str | None, required: tuple[str, ...] | None) -> Layout:
    """Return the layout with which a line holds the required columns, and most lines have as many cells.

    If `required` is None, the first line is the header.
    """
    text = "\n".join(lines)
    quotes = [('"', '"')]
    quotes += [('"', "\\")] if '\\"' in text else []
    quotes += [("'", "'")] if "'" in text else []
    quotes += [("", "")] if '"' in text else []
    best = Layout()
    most: tuple[float, ...] = (-1.0,) * 5
    for quote, escape in quotes:
        for each in delimiter or _DELIMITERS:
            layout = Layout(each, quote, escape)
            rows = [row for row in layout.rows(f"{line}\n" for line in lines) if any(cell.strip() for cell in row[1])]
            layout, score = _scored(layout, rows, required)
            if score > most:
                best, most = layout, score
        if most[0] and most[2] == 1:
            break
    if best.width < 2 and delimiter is None:
        best = replace(best, delimiter=next((each for each in _DELIMITERS if each not in text), ""))
    return best


def _scored(
    layout: Layout, rows: list[tuple[int, list[str]]], required: tuple[str, ...] | None
) -> tuple[Layout, tuple[float, ...]]:
    """Return a layout with the header, and how well it fits: more is better."""
    if not rows:
        return layout, (0.0,) * 5
    stripped = [[cell.strip(" \"'") for cell in cells] for _, cells in rows]
    places = [index for index, cells in enumerate(stripped) if required and set(required) <= set(cells)]
    places = [0] if required is None else places
    widths = Counter(len(cells) for cells in stripped if len(cells) > 1) or Counter([1])
    if places:
        place, width = places[0], len(stripped[places[0]])
    else:
        width = widths.most_common(1)[0][0]
        fitting = [index for index, cells in enumerate(stripped) if len(cells) == width] or [0]
        # The cells of a title are empty but for the first.
        place = next((index for index in fitting[:_MOST_LINES] if all(stripped[index][1:])), fitting[0])
    layout = replace(layout, width=width, above=rows[place][0] - 1)
    layout = replace(layout, header=tuple(stripped[place])) if places else layout
    fit = sum(layout.fits(cells) for _, cells in rows[place:]) / len(rows[place:])
    return layout, (float(bool(places)), float(width > 1), fit, -place, width)


def _is_comment(layout: Layout, cells: list[str]) -> bool:
    return bool(cells) and not layout.fits(cells) and _COMMENT.match(cells[0]) is not None


def _lines_below(layout: Layout, lines: list[str]) -> int:
    """Return how many lines at the end of a file are no rows."""
    below = 0
    for count, line in enumerate(reversed(lines), 1):
        if layout.quote and line.count(layout.quote) % 2:
            return below  # the last line of a cell of several lines
        cells = next(iter(layout.rows([line])), (1, []))[1]
        filled = [cell.strip() for cell in cells if cell.strip()]
        if not filled:
            # DuckDB skips blank lines, but not those with delimiters.
            below = count if below or line else 0
            continue
        remark = _TOTAL.fullmatch(filled[0]) or _REMARK.match(filled[0])
        # A line with more cells than the header is an error, unless it is a remark with commas.
        row = layout.fits(cells) and not (remark and (len(filled) < layout.width or filled[0].find(":") > 0))
        if row or (len(cells) > layout.width and not remark):
            return below
        below = count
        if count > _MOST_LINES:
            break
    return 0


def _note(above: list[str], below: list[str], comments: bool, last: str) -> str:
    """Return which lines of a file are left out, as a sentence."""
    parts = []
    for lines, where in ((above, "above the header"), (below, "at the end")):
        shown = [line.strip() for line in lines if line.strip(" ,;|\t")]
        texts = ", ".join(repr(line if len(line) < 40 else f"{line[:39]}…") for line in shown[:3])
        if shown:
            parts.append(f"{len(shown)} line{'s' * (len(shown) > 1)} {where} ({texts}{', …' * (len(shown) > 3)})")
    parts += ["comments between the rows"] * comments
    said = f"the table is read without {' and '.join(parts)}; --header-row and --skip-footer set it" if parts else ""
    first = re.split("[,;\t|]", last)[0].strip(" \"'")
    if first and _TOTAL.fullmatch(first):
        said += f"{'; ' * bool(said)}the last row may be a total ({last!r}); --skip-footer 1 leaves it out"
    return said


def copy_table(path: Path, layout: Layout, out: TextIO) -> None:
    """Write the lines of the table in a file in UTF-8, which end in LF."""
    pending: deque[str] = deque()
    with _open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if number <= layout.above or (layout.comments and _COMMENT.match(line) and _is_comment_line(layout, line)):
                continue
            pending.append(line)
            if len(pending) > layout.below:
                out.write(pending.popleft())


def _is_comment_line(layout: Layout, line: str) -> bool:
    return any(_is_comment(layout, cells) for _, cells in layout.rows([line]))


@contextmanager
def _open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    with open_binary(path) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline=newline)
        try:
            yield lines
        finally:
            lines.detach()


def find_fault(path: Path, layout: Layout, name: str) -> Layout | None:
    """Return a layout with which a file can be read that DuckDB cannot read, or None, after one pass over all lines.

    Args:
        path: the file, or its copy in UTF-8.
        layout: the layout of its first and last lines.
        name: the name of the file, for errors.

    Raises:
        DataError: A row has another number of cells than the header.
    """
    ends: set[str] = set()
    starts: deque[int] = deque(maxlen=layout.below + 1)

    def lines() -> Iterator[str]:
        for line in text:
            bare = line.rstrip("\r\n")
            ends.add(line[len(bare) :])
            yield bare + "\n"

    comments, ragged = layout.comments, list[tuple[int, list[str]]]()
    with _open_text(path, newline="") as text:
        for number, cells in layout.rows(lines(), strict=True):
            starts.append(number)
            if number <= layout.above or not any(cells) or layout.fits(cells):
                continue
            if _is_comment(layout, cells):
                comments = True
            elif len(ragged) <= _MOST_LINES:
                ragged.append((number, cells))
    ragged = [(number, cells) for number, cells in ragged if number <= starts[0] or not layout.below]
    if ragged and layout.width:
        number, cells = ragged[0]
        line = layout.delimiter.join(cells)
        raise DataError(
            f"line {number:,} of {name!r} must have {layout.width} cells, as the header has, got {len(cells)}: "
            f"{line if len(line) < 80 else line[:79] + '…'!r}. Correct the line, or quote its cells; --delimiter, "
            "--header-row and --skip-footer (in Python: header_row …) set the place of the table."
        )
    note = layout.note
    if comments > layout.comments:
        note = f"{note}{'; ' * bool(note)}comments between the rows are left out"
    mixed = layout.mixed or len(ends - {""}) > 1 or "\r" in ends
    found = replace(layout, comments=comments, mixed=mixed, note=note)
    return None if found == layout else found
