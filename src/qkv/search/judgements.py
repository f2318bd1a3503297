"""Read relevance judgements (qrels) and rankings (runs) in the formats of TREC, BEIR and SMART.

TREC   query 0 document grade          BEIR   query document grade, with tabs, below a header
SMART  query document [grade]          run    query Q0 document rank score name
"""

from __future__ import annotations

import re
from pathlib import Path

from qkv.search.text_sources import parse_lines

__all__ = ["Judgements", "read_judgements", "read_run"]

Judgements = dict[str, dict[str, int]]
"""Grades of judged documents, by query and document; a grade above 0 is relevant."""


def read_judgements(path: Path) -> Judgements:
    """Read relevance judgements in the format of TREC, BEIR or SMART, and return grades by query and document name.

    Every pair in a SMART file gets the grade 1. The third column is ignored: in Cranfield, it is a scale from 1 (best)
    to 4, or -1 for the paper from which the query was taken.

    Raises:
        DataError: a line has none of these formats, or the file contains no judgement.
    """

    def parse(line: str) -> tuple[str, str, int]:
        if path.suffix == ".tsv" and line.count("\t") == 2:
            query, document, grade = map(str.strip, line.split("\t"))
            return query, document, round(float(grade))
        cells = line.split()
        if len(cells) in (2, 3) or (len(cells) == 4 and "." in cells[3]):
            return cells[0].lstrip("0") or "0", cells[1].lstrip("0") or "0", 1
        return cells[0], cells[2], int(cells[3])

    remedy = "a query, a document and a grade in the format of TREC, BEIR or SMART"
    found: Judgements = {}
    for query, document, grade in parse_lines(path, "judgement", remedy, parse, ("query-id", "query_id", "qid")):
        found.setdefault(query, {})[document] = grade
    return found


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a TREC run, and return the scores of documents by query and document name.

    Raises:
        DataError: a line does not have the format of a TREC run, or the file contains no line.
    """

    def parse(line: str) -> tuple[str, str, float]:
        query, _, document, _, score, _ = line.split()
        if not re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", score):
            raise ValueError(f"score must be a decimal number, got {score!r}")
        return query, document, float(score)

    found: dict[str, dict[str, float]] = {}
    for query, document, score in parse_lines(path, "line of a TREC run", "query Q0 document rank score name", parse):
        found.setdefault(query, {})[document] = score
    return found
