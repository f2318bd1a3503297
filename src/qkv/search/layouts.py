"""Find the documents, queries and relevance judgements in the folder of a test collection."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import DataError
from qkv.search.judgements import Judgements, read_judgements
from qkv.search.record_files import record_format

__all__ = ["Layout", "find_layout", "require_judgements"]

_JUDGED_NAMES = re.compile(r"rel|rlv|lisarj|judg", re.IGNORECASE)
_OTHER_NAMES = re.compile(r"readme|vecs?\b|\.bln", re.IGNORECASE)
_SEVERAL = ("LISA", "TREC")
"""Formats whose documents may be in several files."""


@dataclass(frozen=True)
class Layout:
    """Files of a test collection, by what they contain.

    Attributes:
        format: `"SMART"`, `"TIME"`, `"LISA"`, `"NPL"`, `"TREC"` or `"BEIR"`.
        documents: files of documents.
        queries: files that could be the queries.
        judgements: files that could be the relevance judgements.
    """

    format: str
    documents: tuple[Path, ...]
    queries: tuple[Path, ...]
    judgements: tuple[Path, ...]


def find_layout(folder: Path, split: str = "test") -> Layout | None:
    """Return the files of a test collection in a folder, or None if the folder contains no file of records.

    BEIR has precedence: corpus.jsonl, queries.jsonl and qrels/. Otherwise all files of the folder and, for TREC, of its
    subfolders are sorted by their content and name.

    Raises:
        DataError: it is not clear which files are the documents.
    """
    corpus = _existing(folder, "corpus.jsonl")
    if corpus:
        return Layout("BEIR", corpus, _existing(folder, "queries.jsonl"), _existing(folder, f"qrels/{split}.tsv"))
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]
    files = [path for path in files if not _OTHER_NAMES.search(path.name)]
    formats = {path: found for path in files if (found := record_format(path)) is not None}
    if not any(not found.queries for found in formats.values()):
        below = [path for path in sorted(folder.glob("*/**/*")) if path.is_file() and not path.name.startswith(".")]
        inner = {path: found for path in below if (found := record_format(path)) is not None and found.name == "TREC"}
        formats |= inner
    documents = [path for path, found in formats.items() if not found.queries]
    if not documents:
        return None
    names = sorted({formats[path].name for path in documents})
    if len(names) > 1:
        raise DataError(
            f"documents of {folder.name!r} must have one format, got {' and '.join(names)} in {_list(documents)}. Keep "
            "one of them in the folder, or name the file of documents."
        )
    if len(documents) > 1 and names[0] not in _SEVERAL:
        raise DataError(
            f"documents of {folder.name!r} must be in one file, got {_list(documents)}. Name the file of documents "
            "instead of the folder, with --queries FILE and --relevant FILE."
        )
    judged = [path for path in files if path not in formats and _JUDGED_NAMES.search(path.name)]
    if current := [path for path in judged if not path.name.lower().endswith((".old", ".bak", "~"))]:
        judged = current
    queries = [path for path, found in formats.items() if found.queries]
    return Layout(names[0], tuple(documents), tuple(queries), tuple(judged))


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


def _existing(folder: Path, name: str) -> tuple[Path, ...]:
    return tuple(path for path in (folder / name, folder / f"{name}.gz") if path.is_file())[:1]


def _list(paths: Sequence[Path]) -> str:
    names = [repr(path.name) for path in paths[:3]]
    return ", ".join(names) + (", …" if len(paths) > 3 else "")
