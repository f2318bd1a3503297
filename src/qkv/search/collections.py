"""Read test collections, which consist of documents, queries and relevance judgements."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from qkv.errors import DataError
from qkv.search.judgements import Judgements, read_judgements
from qkv.search.smart import is_smart, read_smart
from qkv.search.text_sources import Document, parse_lines, read_texts

__all__ = ["Collection", "judged_collection", "read_collection", "read_documents"]


@dataclass(frozen=True)
class Collection:
    """Documents, queries and relevance judgements with which the rankings of a search are evaluated.

    Attributes:
        name: name of the collection.
        documents: all documents.
        queries: the judged queries, in the order of their file.
        relevant: grades of judged documents, by query name and document name.
        notes: remarks about the data, in sentences.
    """

    name: str
    documents: list[Document]
    queries: list[Document]
    relevant: Judgements = field(repr=False)
    notes: tuple[str, ...] = ()


def read_documents(source: object, column: str | None = None) -> list[Document]:
    """Read documents from a SMART file, a BEIR folder, or a source that `read_texts` accepts.

    Raises:
        DataError: the source cannot be read, or contains no text.
    """
    path = Path(source) if isinstance(source, str | PathLike) else None
    if path is not None and path.is_dir():
        corpus = _first_file(path, ("corpus.jsonl", "corpus.jsonl.gz"))
        if corpus is not None:
            return _beir(corpus)
        if (smart := _smart_files(path)) is not None:
            return read_smart(smart[0])
    elif path is not None and path.is_file() and is_smart(path):
        return read_smart(path)
    return read_texts(source, column)


def read_collection(
    source: str | PathLike[str],
    *,
    queries: str | PathLike[str] | None = None,
    relevant: str | PathLike[str] | None = None,
    column: str | None = None,
    split: str = "test",
) -> Collection:
    """Read a test collection from a BEIR folder, a folder of SMART files, or single files.

    Args:
        source: a folder with corpus.jsonl, queries.jsonl and qrels/; or a folder with three SMART files, whose
            names contain `all`, end in `qry`, and contain `rel`; or a source of documents that `read_texts` accepts.
        queries: file of queries: SMART, .jsonl, or lines of number, tab and text; None for the file in the folder.
        relevant: file of judgements: TREC, BEIR or SMART; None for the file in the folder.
        column: column of texts, if the documents are a table.
        split: split of a BEIR collection, as in qrels/test.tsv.

    Raises:
        DataError: a file is missing or unreadable, or no query has a relevant document.
    """
    folder = Path(source)
    documents = read_documents(source, column)
    if folder.is_dir():
        smart = _smart_files(folder)
        if smart is not None:
            queries, relevant = queries or smart[1], relevant or smart[2]
        else:
            queries = queries or _first_file(folder, ("queries.jsonl", "queries.jsonl.gz"))
            relevant = relevant or _first_file(folder, (f"qrels/{split}.tsv",))
    name = folder.resolve().name if folder.is_dir() else folder.name.split(".")[0]
    return judged_collection(name, documents, queries, relevant)


def judged_collection(
    name: str,
    documents: list[Document],
    queries: str | PathLike[str] | None,
    relevant: str | PathLike[str] | None,
) -> Collection:
    """Return a test collection of the given documents, with queries and relevance judgements read from files.

    Raises:
        DataError: a file is missing, or the files have no queries or documents in common.
    """
    queries_file = _require_file(queries, "queries", "queries", name)
    judged = read_judgements(_require_file(relevant, "judgements", "relevant", name))
    given, notes = _queries(queries_file), []
    numbered = set(judged) <= {str(at) for at in range(1, len(given) + 1)}
    if numbered and not set(judged) <= {query.name for query in given}:
        # Cranfield's judgements number its queries from 1, regardless of their .I lines.
        given = [Document(str(at), query.text, query.title) for at, query in enumerate(given, 1)]
        notes.append("queries are numbered by their order, as in the judgements")
    kept = [query for query in given if any(grade > 0 for grade in judged.get(query.name, {}).values())]
    if not kept:
        raise DataError(
            f"queries of {name} must include at least one with a relevant document, got queries "
            f"{_first_names([query.name for query in given])} and judgements for {_first_names(judged)}. Pass queries "
            "and judgements of the same collection."
        )
    if skipped := len(given) - len(kept):
        notes.append(f"{skipped:,} of {len(given):,} queries are not judged and are skipped")
    names = {document.name for document in documents}
    grades = {query.name: judged[query.name] for query in kept}
    listed = {name for judgements in grades.values() for name, grade in judgements.items() if grade > 0}
    if not listed & names:
        raise DataError(
            f"judgements of {name} must include at least one of its documents, got judgements of "
            f"{_first_names(sorted(listed))} for the documents "
            f"{_first_names([document.name for document in documents])}. Pass documents and judgements of the same "
            "collection."
        )
    if missing := len(listed - names):
        notes.append(f"{missing:,} judged documents are missing from the collection and count as not found")
    if empty := sum(not document.whole.strip() for document in documents):
        notes.append(f"{empty:,} documents have no text")
    return Collection(name, documents, kept, grades, tuple(notes))


def _require_file(path: str | PathLike[str] | None, kind: str, option: str, name: str) -> Path:
    if path is None:
        raise DataError(
            f"{name!r} must contain a file of {kind}, got none. Name the file: {option}='…' in Python, --{option} FILE "
            "on the command line."
        )
    if not Path(path).is_file():
        raise DataError(f"{kind} must be in an existing file, got {str(path)!r}. Check the path.")
    return Path(path)


def _first_names(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(map(repr, names[:3])) + (", …" if len(names) > 3 else "")


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _smart_files(folder: Path) -> tuple[Path, Path, Path] | None:
    """Return the files of documents, queries and judgements in a folder of SMART files.

    Return None if the folder does not contain exactly one file of each kind.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and "readme" not in path.name.lower()]
    texts = [path for path in files if is_smart(path)]
    queries = [path for path in texts if _has_ending(path, "qry")]
    documents = [path for path in texts if path not in queries and "all" in path.name.lower()]
    judged = [path for path in files if path not in texts and "rel" in path.name.lower()]
    if len(queries) == len(documents) == len(judged) == 1:
        return documents[0], queries[0], judged[0]
    return None


def _has_ending(path: Path, ending: str) -> bool:
    """Return whether the name of a file ends with `ending` or `ending` + ".gz", regardless of case."""
    return path.name.lower().removesuffix(".gz").endswith(ending)


def _queries(path: Path) -> list[Document]:
    def parse(line: str) -> Document:
        name, text = line.split("\t", 1)
        return Document(name.strip(), text.strip())

    if is_smart(path):
        return read_smart(path)
    if _has_ending(path, ".jsonl"):
        return _beir(path)
    return parse_lines(path, "query", "a number, a tab and the text", parse)


def _beir(path: Path) -> list[Document]:
    def parse(line: str) -> Document:
        record = json.loads(line)
        return Document(str(record["_id"]), str(record.get("text") or ""), str(record.get("title") or ""))

    return parse_lines(path, "BEIR record", "a JSON object with _id and text", parse)
