"""Relevance judgements (qrels) and rankings (runs) from files of TREC, BEIR and SMART.

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
"""Grades of judged documents, by query and document; a grade above 0 is relevant."""


def read_judgements(path: Path) -> Judgements:
    """Read relevance judgements in the format of TREC, BEIR or SMART.

    Every pair that a SMART file lists is relevant with grade 1, regardless of its third column: in Cranfield that
    is a scale from 1, best, to 4, and -1 for the paper from which the query was taken.

    Raises:
        DataError: a line has none of these formats, or the file has no judgement.
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
                f"line {number} of {str(path)!r} must be a judgement, got {line[:60]!r}. Write a query, a "
                "document and a grade in the format of TREC, BEIR or SMART."
            ) from None
        found.setdefault(query, {})[document] = grade
    if not found:
        raise DataError(f"{str(path)!r} contains no judgement. Give another file.")
    return found


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a TREC run: the scores of documents by query.

    Raises:
        DataError: a line does not have that format, or the file has no ranking.
    """
    found: dict[str, dict[str, float]] = {}
    for number, line in enumerate(read_file(path).split("\n"), 1):
        if not line.strip():
            continue
        cells = line.split()
        if len(cells) != 6 or not re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", cells[4]):
            raise DataError(
                f"line {number} of {str(path)!r} must be of a TREC run, got {line[:60]!r}. Write: "
                "query Q0 document rank score name."
            )
        found.setdefault(cells[0], {})[cells[2]] = float(cells[4])
    if not found:
        raise DataError(f"{str(path)!r} contains no ranking. Give another file.")
    return found
