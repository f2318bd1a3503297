"""Read test collections, which consist of documents, queries and relevance judgements."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from qkv.errors import DataError
from qkv.search.judgements import Judgements, read_judgements, require_judgements, without_zeros
from qkv.search.text_sources import Document, parse_lines, read_file, read_texts

_FIELD = re.compile(r"\.([A-Z])(?:\s+(.*))?$")


def read_smart(path: Path) -> list[Document]:
    """Read the records of a SMART file as documents, which are named by record number without leading zeros."""
    records: list[dict[str, list[str]]] = []
    field: list[str] | None = None
    for line in read_file(path).split("\n"):
        mark = _FIELD.match(line)
        if mark and mark[1] == "I" and mark[2]:
            records.append({"I": [mark[2].strip()]})
            field = None
        elif mark and mark[1] != "I" and records:
            field = records[-1].setdefault(mark[1], [])
            if mark[2]:
                field.append(mark[2])
        elif field is not None:
            field.append(line)
    if not records:
        raise DataError(
            f"the file {str(path)!r} must contain a SMART record, which begins with a line '.I NUMBER', got none. "
            "Name a file in the format of the SMART collections."
        )

    def read_field(record: dict[str, list[str]], name: str) -> str:
        return "\n".join(record.get(name, [])).strip()

    return [
        Document(read_field(record, "I").lstrip("0") or str(at), read_field(record, "W"), read_field(record, "T"))
        for at, record in enumerate(records, 1)
    ]


_QUERY_NAMES = re.compile(r"qry|quer|\bque\b|topic", re.IGNORECASE)
_SNIFFED_BYTES = 4000


@dataclass(frozen=True)
class RecordFormat:
    """Format of a file of records."""

    name: str
    queries: bool


def record_format(path: Path) -> RecordFormat | None:
    """Return the format of a file of records, judged by its beginning, or None if it is not a file of records.

    SMART and NPL files are queries if their name contains `qry`, `query` or `topic`.
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            head = stream.read(_SNIFFED_BYTES).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip()
    except (OSError, EOFError):
        return None
    head = head.replace("\r\n", "\n")
    named = _QUERY_NAMES.search(path.name) is not None
    if re.match(r"\.I\s+\S", head):
        return RecordFormat("SMART", named)
    if mark := re.match(r"\*(TEXT|FIND)\s+\d", head):
        return RecordFormat("TIME", mark[1] == "FIND")
    if re.match(r"Document\s+\d+\s*\n", head):
        return RecordFormat("LISA", False)
    if re.match(r"(?:<\?xml[^>]*>\s*)?(?:<\w+>\s*)?<(?:DOC|top)\b", head, re.IGNORECASE):
        return RecordFormat("TREC", re.search(r"<top\b", head, re.IGNORECASE) is not None)
    if re.match(r"\d+[ \t]*\n[^\n]*[A-Za-z]", head):
        if named and re.search(r"#[ \t]*$", head, re.MULTILINE):
            return RecordFormat("LISA", True)
        if (named or re.match(r"doc", path.name, re.IGNORECASE)) and re.search(r"^[ \t]*/[ \t]*$", head, re.MULTILINE):
            return RecordFormat("NPL", named)
    return None


def read_records(path: Path) -> list[Document]:
    """Read the documents or queries of a test collection from a file in any format that `record_format` recognizes."""
    found = record_format(path)
    if found is not None and found.name == "SMART":
        return read_smart(path)
    readers: dict[tuple[str, bool], Callable[[str], list[Document]]] = {
        ("TIME", False): _time,
        ("TIME", True): _time,
        ("LISA", False): _lisa_documents,
        ("LISA", True): lambda text: _numbered(text, r"#[ \t]*$"),
        ("NPL", False): lambda text: _numbered(text, r"^[ \t]*/[ \t]*$"),
        ("NPL", True): lambda text: _numbered(text, r"^[ \t]*/[ \t]*$"),
        ("TREC", False): _trec_documents,
        ("TREC", True): _trec_topics,
    }
    records = [] if found is None else readers[found.name, found.queries](read_file(path))
    if not records:
        raise DataError(
            f"the file {str(path)!r} must hold records in the format of SMART, TIME, LISA, NPL or TREC, got another "
            "format. Convert it, for example to lines of JSON with _id, title and text."
        )
    return records


def _time(text: str) -> list[Document]:
    parts = re.split(r"^\*(?:TEXT|FIND)\s+\d+.*$", text, flags=re.MULTILINE)[1:]
    bodies = [re.sub(r"^\*STOP\s*$", "", part, flags=re.MULTILINE) for part in parts]
    return [Document(str(at), _joined(body)) for at, body in enumerate(bodies, 1)]


def _joined(text: str) -> str:
    return "\n".join(line.strip() for line in text.split("\n") if line.strip())


def _lisa_documents(text: str) -> list[Document]:
    parts = re.split(r"^Document\s+(\d+)[ \t]*$", text, flags=re.MULTILINE)[1:]
    found = []
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        whole = re.sub(r"^\*{20,}\s*$", "", body, flags=re.MULTILINE).strip("\n")
        title, _, rest = re.sub(r"\n[ \t]+\n", "\n\n", whole).partition("\n\n")
        found.append(Document(name.lstrip("0") or "0", _joined(rest), _joined(title)))
    return found


def _numbered(text: str, end: str) -> list[Document]:
    """Return the records of a file whose records begin with a line of their number and end with a mark."""
    found = []
    for part in re.split(end, text, flags=re.MULTILINE):
        number, _, body = part.strip().partition("\n")
        if number.strip().isdigit():
            found.append(Document(number.strip().lstrip("0") or "0", _joined(body)))
    return found


def _trec_documents(text: str) -> list[Document]:
    found = []
    for body in re.findall(r"<DOC>(.*?)</DOC>", text, re.DOTALL | re.IGNORECASE):
        name = re.search(r"<DOCNO>(.*?)</DOCNO>", body, re.DOTALL | re.IGNORECASE)
        if name is None:
            raise DataError(f"each <DOC> must have a <DOCNO>, got {_plain(body)[:60]!r} without. Add its number.")
        title = re.search(r"<(TITLE|HEADLINE|HL)>(.*?)</\1>", body, re.DOTALL | re.IGNORECASE)
        parts = re.findall(r"<TEXT>(.*?)</TEXT>", body, re.DOTALL | re.IGNORECASE)
        rest = body.replace(name[0], "").replace(title[0] if title else "", "")
        content = "\n".join(parts) if parts else rest
        found.append(Document(name[1].strip(), _plain(content), _plain(title[2] if title else "")))
    return found


def _trec_topics(text: str) -> list[Document]:
    """Return the topics with their title as text; the description and the narrative are left out."""
    found = []
    for body in re.findall(r"<top\b[^>]*>(.*?)</top>", text, re.DOTALL | re.IGNORECASE):
        fields = {name.lower(): value for name, value in re.findall(r"<(\w+)>([^<]*)", body)}
        number = re.sub(r"^\s*Number:\s*", "", fields.get("num", ""), flags=re.IGNORECASE).strip()
        title = re.sub(r"^\s*Topic:\s*", "", fields.get("title", ""), flags=re.IGNORECASE)
        described = re.sub(r"^\s*Description:\s*", "", fields.get("desc", ""), flags=re.IGNORECASE)
        if number:
            found.append(Document(number.lstrip("0") or "0", _plain(title) or _plain(described)))
    return found


def _plain(marked: str) -> str:
    return _joined(html.unescape(re.sub(r"<[^>]*>", " ", marked)))


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


def _existing(folder: Path, name: str) -> tuple[Path, ...]:
    return tuple(path for path in (folder / name, folder / f"{name}.gz") if path.is_file())[:1]


def _list(paths: Sequence[Path]) -> str:
    names = [repr(path.name) for path in paths[:3]]
    return ", ".join(names) + (", …" if len(paths) > 3 else "")


@dataclass(frozen=True)
class Collection:
    """Documents, queries and relevance judgements with which the rankings of a search are evaluated.

    Attributes:
        name: name of the collection.
        documents: all documents.
        queries: the judged queries, in the order of their file.
        relevant: grades of judged documents, by query name and document name.
        notes: remarks about the data, in sentences.

    Example:
        >>> from qkv.search import Collection, Document
        >>> texts = [Document("a", "a golden ring"), Document("b", "a dark den")]
        >>> question = Document("1", "who found a ring?")
        >>> Collection("tiny", texts, [question], {"1": {"a": 1}}).relevant["1"]
        {'a': 1}
    """

    name: str
    documents: list[Document]
    queries: list[Document]
    relevant: Judgements = field(repr=False)
    notes: tuple[str, ...] = ()


def read_documents(source: object, column: str | None = None) -> list[Document]:
    """Read documents from a folder or file of a test collection, or from a source that `read_texts` accepts.

    Raises:
        DataError: the source cannot be read, or contains no text, or it is not clear which file holds the documents.
    """
    path = Path(source) if isinstance(source, str | PathLike) else None
    if path is not None and path.is_dir():
        layout = find_layout(path)
        if layout is not None:
            return _documents(layout.documents)
    elif path is not None and path.is_file() and record_format(path) is not None:
        return read_records(path)
    return read_texts(source, column)


def _documents(files: Sequence[Path]) -> list[Document]:
    found: dict[str, Document] = {}
    for path in files:
        records = _beir(path) if _has_ending(path, ".jsonl") else read_records(path)
        for each in records:
            found.setdefault(each.name, each)
    return list(found.values())


def read_collection(
    source: str | PathLike[str],
    *,
    queries: str | PathLike[str] | None = None,
    relevant: str | PathLike[str] | None = None,
    column: str | None = None,
    split: str = "test",
) -> Collection:
    r"""Read a test collection from a folder of a Glasgow collection, of BEIR or of TREC, or from single files.

    Args:
        source: a folder with corpus.jsonl, queries.jsonl and qrels/; or a folder with the files of ADI, CACM, CISI,
            Cranfield, LISA, MED, NPL or TIME; or a folder with TREC's documents (`<DOC>`), topics (`<top>`) and a file
            of judgements whose name contains `rel`; or a source of documents that `read_texts` accepts.
        queries: file of queries in one of these formats, or lines of number, tab and text; None for the file in the
            folder.
        relevant: file of judgements: TREC, BEIR or Glasgow; None for the file in the folder.
        column: column of texts, if the documents are a table.
        split: split of a BEIR collection, as in qrels/test.tsv.

    Raises:
        DataError: a file is missing or unreadable, several files could be the documents, queries or judgements, or no
            query has a relevant document.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> (folder / "qrels").mkdir()
        >>> _ = (folder / "corpus.jsonl").write_text('{"_id": "a", "text": "a golden ring"}')
        >>> _ = (folder / "queries.jsonl").write_text('{"_id": "1", "text": "who found a ring?"}')
        >>> _ = (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n")
        >>> read_collection(folder).relevant
        {'1': {'a': 1}}
    """
    folder = Path(source)
    layout = find_layout(folder, split) if folder.is_dir() else None
    name = folder.resolve().name if folder.is_dir() else folder.name.split(".")[0]
    if layout is None:
        return judged_collection(name, read_documents(source, column), queries, relevant)
    if queries is None and len(layout.queries) > 1:
        listed = _first_names([path.name for path in layout.queries])
        raise DataError(
            f"queries of {name!r} must be in one file, got {listed}. Name the file: queries='…' in Python, --queries "
            "FILE on the command line."
        )
    queries = queries or next(iter(layout.queries), None)
    if relevant is None:
        found = require_judgements(layout.judgements, name)
        relevant = None if found is None else found[0]
        if relevant is None and layout.format == "BEIR":
            splits = sorted(path.name.split(".")[0] for path in folder.glob("qrels/*.tsv*"))
            if splits:
                raise DataError(
                    f"split must be one of {', '.join(splits)}, the files in qrels/ of {name!r}, got {split!r}. "
                    "Name the split: split='…' in Python, --split on the command line."
                )
    return judged_collection(name, _documents(layout.documents), queries, relevant)


def judged_collection(
    name: str, documents: list[Document], queries: str | PathLike[str] | None, relevant: str | PathLike[str] | None
) -> Collection:
    """Return a test collection of the given documents, with queries and relevance judgements read from files.

    Raises:
        DataError: a file is missing, or the files have no queries or documents in common.
    """
    queries_file = _require_file(queries, "queries", "queries", name)
    judged = read_judgements(_require_file(relevant, "judgements", "relevant", name))
    given, notes = _queries(queries_file), []
    names, numbers = {document.name for document in documents}, {str(at) for at in range(1, len(given) + 1)}
    judged = without_zeros(judged, {query.name for query in given} | numbers, names)
    if set(judged) <= numbers and not set(judged) <= {query.name for query in given}:
        # Cranfield's judgements number its queries from 1, regardless of their .I lines.
        given = [Document(str(at), query.text, query.title) for at, query in enumerate(given, 1)]
        notes.append("queries are numbered by their order, as in the judgements")
    judged_queries = [query for query in given if any(grade > 0 for grade in judged.get(query.name, {}).values())]
    if not judged_queries:
        raise DataError(
            f"queries of {name} must include at least one with a relevant document, got queries "
            f"{_first_names([query.name for query in given])} and judgements for {_first_names(judged)}. Pass queries "
            "and judgements of the same collection."
        )
    if skipped := len(given) - len(judged_queries):
        notes.append(f"{skipped:,} of {len(given):,} queries are not judged and are skipped")
    grades = {query.name: judged[query.name] for query in judged_queries}
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
    return Collection(name, documents, judged_queries, grades, tuple(notes))


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


def _has_ending(path: Path, ending: str) -> bool:
    """Return whether the name of a file ends with `ending` or `ending` + ".gz", regardless of case."""
    return path.name.lower().removesuffix(".gz").endswith(ending)


def _queries(path: Path) -> list[Document]:
    def parse(line: str) -> Document:
        name, text = line.split("\t", 1)
        return Document(name.strip(), text.strip())

    if record_format(path) is not None:
        return read_records(path)
    if _has_ending(path, ".jsonl"):
        return _beir(path)
    return parse_lines(path, "query", "a number, a tab and the text", parse)


def _beir(path: Path) -> list[Document]:
    def parse(line: str) -> Document:
        record = json.loads(line)
        return Document(str(record["_id"]), str(record.get("text") or ""), str(record.get("title") or ""))

    return parse_lines(path, "BEIR record", "a JSON object with _id and text", parse)
