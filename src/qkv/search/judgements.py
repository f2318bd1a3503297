"""Read relevance judgements (qrels) in the formats of TREC, BEIR and the Glasgow collections, and rankings (runs).

TREC   query 0 document grade          BEIR   query document grade, with tabs, below a header
SMART  query document [grade]          CACM   query document 0 0
TIME   query document document …       LISA   query count document document …, or "Query 1", "2 Relevant Refs:", …
NPL    query document document … /     run    query Q0 document rank score name
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from qkv.errors import DataError
from qkv.search.text_sources import T, parse_lines, read_file

Judgements = dict[str, dict[str, int]]
"""Grades of judged documents, by query and document; a grade above 0 is relevant."""


def read_judgements(path: Path) -> Judgements:
    """Read relevance judgements, and return grades by query and document name.

    Files of TREC and BEIR have grades; in other files, every pair gets the grade 1. The third column of SMART is
    ignored: in Cranfield, it is a scale from 1 (best) to 4, or -1 for the paper from which the query was taken. A 0
    beside other numbers is the grade 0.

    Raises:
        DataError: a line has none of these formats, the file contains no judgement, or a pair has two grades.
    """
    text = read_file(path)
    found: Judgements = {}
    if (listed := _lists(text)) is not None:
        for query, documents in listed:
            found.setdefault(query, {}).update((document, 1) for document in documents)
        return {query: grades for query, grades in found.items() if grades}
    rows = [line.split() for line in text.split("\n") if line.strip()]
    zero = "0" if len({cells[2] for cells in rows if len(cells) == 3}) > 1 else None
    # CACM: query, document and two columns of zeros. The third column of TREC is the document.
    is_cacm = bool(rows) and all(len(cells) == 4 and cells[2:] == ["0", "0"] for cells in rows)

    def parse(line: str) -> tuple[str, str, int]:
        if path.name.removesuffix(".gz").endswith(".tsv") and line.count("\t") == 2:
            query, document, grade = map(str.strip, line.split("\t"))
            return query, document, round(float(grade))
        cells = line.split()
        if is_cacm or len(cells) in (2, 3) or (len(cells) == 4 and "." in cells[3]):
            return cells[0], cells[1], int(cells[2:] != [zero])
        query, _, document, grade = cells
        return query, document, int(grade)

    remedy = "a query, a document and a grade in the format of TREC, BEIR or SMART"
    for query, document, grade in parse_lines(path, "judgement", remedy, parse, ("query-id", "query_id", "qid")):
        _add(found, query, document, grade, path)
    return found


def _add(found: dict[str, dict[str, T]], query: str, document: str, number: T, path: Path) -> None:
    """Add the grade or score of a document to those of a query, which must not have another one."""
    if found.setdefault(query, {}).setdefault(document, number) != number:
        raise DataError(
            f"the file {str(path)!r} must have one number for each query and document, got {found[query][document]} "
            f"and {number} for query {query} and document {document}. Remove one of the lines."
        )


def require_judgements(files: Sequence[Path], name: str) -> tuple[Path, Judgements] | None:
    """Return the file of relevance judgements with its content, or None if there is none.

    Of several files with the same relevant pairs, the first is returned.

    Raises:
        DataError: the files cannot be read as judgements, or two of them differ.
    """
    read: dict[Path, Judgements] = {}
    reasons: list[DataError] = []
    for path in files:
        try:
            read[path] = read_judgements(path)
        except DataError as error:
            reasons.append(error)
    if not read:
        if reasons:
            raise reasons[0]
        return None
    first, *others = read
    for other in others:
        if count := len(_relevant_pairs(read[first]) ^ _relevant_pairs(read[other])):
            raise DataError(
                f"judgements of {name!r} must be in one file, got {first.name!r} and {other.name!r}, which differ in "
                f"{count:,} relevant pairs. Name the file: relevant='…' in Python, --relevant FILE on the command line."
            )
    return first, read[first]


def _relevant_pairs(judged: Judgements) -> set[tuple[str, str]]:
    """Return the pairs of a query and a relevant document, without leading zeros in their names."""
    return {
        (query.lstrip("0"), document.lstrip("0"))
        for query, grades in judged.items()
        for document, grade in grades.items()
        if grade > 0
    }


def without_zeros(judged: Judgements, queries: Collection[str], documents: Collection[str]) -> Judgements:
    """Return judgements without leading zeros in those names of queries and documents that exist only without zeros."""

    def known(name: str, names: Collection[str]) -> str:
        short = name.lstrip("0") or "0"
        return short if name not in names and short in names else name

    found: Judgements = {}
    for query, grades in judged.items():
        one = found.setdefault(known(query, queries), {})
        for document, grade in grades.items():
            one[known(document, documents)] = grade
    return found


def _lists(text: str) -> list[tuple[str, list[str]]] | None:
    """Return each query with its list of documents, or None if the judgements are not lists of NPL, LISA or TIME."""
    if queries := re.findall(r"^Query[ \t]+(\d+)\s*\n\s*\d+[ \t]+Relevant Refs:([\d\s]*)", text, re.MULTILINE):
        return [(query, documents.split()) for query, documents in queries]
    if re.fullmatch(r"[\d\s/]*", text) is None or not text.strip():
        return None
    if "/" in text:
        blocks = [block.split() for block in text.split("/") if block.strip()]
        return [(block[0], block[1:]) for block in blocks]
    rows = [line.split() for line in text.split("\n") if line.strip()]
    if max(map(len, rows)) <= 4:
        return None
    counted = _counted(text.split())
    firsts = [int(row[0]) for row in rows]
    # LISA's lists continue on further lines, which begin with any document.
    continued = any(after <= before for before, after in pairwise(firsts))
    complete = all(len(row) > 1 and len(row) == int(row[1]) + 2 for row in rows)
    if counted is not None and (continued or complete):
        return counted
    return [(row[0], row[1:]) for row in rows]


def _counted(cells: list[str]) -> list[tuple[str, list[str]]] | None:
    """Return LISA's judgements, in which a query and the number of its documents precede the documents."""
    found: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(cells):
        count = int(cells[at + 1]) if at + 1 < len(cells) else 0
        if int(cells[at]) != len(found) + 1 or count < 1 or at + 2 + count > len(cells):
            return None
        found.append((cells[at], cells[at + 2 : at + 2 + count]))
        at += 2 + count
    return found


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Read a TREC run, and return the scores of documents by query and document name.

    Raises:
        DataError: a line does not have the format of a TREC run, the file contains no line, or a pair has two scores.
    """

    def parse(line: str) -> tuple[str, str, float]:
        query, _, document, _, score, _ = line.split()
        if not re.fullmatch(r"[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?", score):
            raise ValueError(f"score must be a decimal number, got {score!r}")
        return query, document, float(score)

    found: dict[str, dict[str, float]] = {}
    for query, document, score in parse_lines(path, "line of a TREC run", "query Q0 document rank score name", parse):
        _add(found, query, document, score, path)
    return found
