"""Which documents are relevant to which queries, and rankings, from the files of TREC, BEIR and SMART.

TREC   query 0 document grade          BEIR   query document grade, with tabs, below a header
SMART  query document [grade]          run    query Q0 document rank score name
"""

from __future__ import annotations

import re
from pathlib import Path

from qkv.errors import DataError
from qkv.search.text_sources import read_file

__all__ = ["Judgements", "read_judgements", "read_run"]

Judgements = dict[str, dict[str, int]]
"""For each query, the grade of documents that were judged; above 0 is relevant."""


def read_judgements(path: Path) -> Judgements:
    """The judgements of a file, in any of the three formats.

    Every pair that a SMART file lists is relevant, with grade 1, whatever its third column says: in Cranfield
    that is a scale on which 1 is best, 4 the least that was listed, and -1 the paper the question came from.

    Raises:
        DataError: a line is none of the three, or there is none.
    """
    found: Judgements = {}
    for number, line in enumerate(read_file(path).split("\n"), 1):
        tabs = path.suffix == ".tsv" and line.count("\t") == 2
        cells = [cell.strip() for cell in (line.split("\t") if tabs else line.split())]
        if not any(cells) or (number == 1 and cells[0].lower() in ("query-id", "query_id", "qid")):
            continue
        smart = not tabs and (len(cells) in (2, 3) or (len(cells) == 4 and "." in cells[3]))
        try:
            if smart:
                query, document, grade = cells[0].lstrip("0"), cells[1].lstrip("0"), 1
            elif tabs:
                query, document, grade = cells[0], cells[1], round(float(cells[2]))
            else:
                query, document, grade = cells[0], cells[2], int(cells[3])
        except (IndexError, ValueError):
            raise DataError(
                f"line {number} of {str(path)!r} is no judgement: {line[:60]!r}. Wanted is a query, a "
                "document and a grade, as TREC, BEIR or SMART write them."
            ) from None
        found.setdefault(query, {})[document] = grade
    if not found:
        raise DataError(f"{str(path)!r} has no judgement. Name another file.")
    return found


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """The ranking that a TREC run gives for each query, as scores.

    Raises:
        DataError: a line is not of that format, or there is none.
    """
    found: dict[str, dict[str, float]] = {}
    for number, line in enumerate(read_file(path).split("\n"), 1):
        if not line.strip():
            continue
        cells = line.split()
        if len(cells) != 6 or not re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", cells[4]):
            raise DataError(
                f"line {number} of {str(path)!r} is of no run: {line[:60]!r}. Wanted is: "
                "query Q0 document rank score name."
            )
        found.setdefault(cells[0], {})[cells[2]] = float(cells[4])
    if not found:
        raise DataError(f"{str(path)!r} has no ranking. Name another file.")
    return found
