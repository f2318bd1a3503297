"""Read documents and queries from files of records in the formats of the Glasgow collections and of TREC.

SMART   .I 12, .T title, .W text                        ADI, CACM, CISI, Cranfield, MED
TIME    *TEXT 017 01/04/63 PAGE 020, *FIND 1            TIME; its judgements number the articles by their order
LISA    Document 12, title, blank line, text, ****      queries: number, text, #
NPL     number, text, /                                 documents and queries
TREC    <DOC><DOCNO>…</DOCNO><TEXT>…, <top><num>…       documents and topics
"""

from __future__ import annotations

import gzip
import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qkv.errors import DataError
from qkv.search.text_sources import Document, read_file

__all__ = ["read_records", "record_format", "RecordFormat"]


_FIELD = re.compile(r"\.([A-Z])(?:\s+(.*))?$")


def read_smart(path: Path) -> list[Document]:
    """Read the records of a SMART file as documents, which are named by record number without leading zeros.

    Raises:
        DataError: the file cannot be read, or contains no record.
    """
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
    """Format of a file of records.

    Attributes:
        name: name of the format.
        queries: whether the records are queries; otherwise they are documents.
    """

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
    """Read the documents or queries of a file in any format that `record_format` recognizes.

    Raises:
        DataError: the file cannot be read, or has another format.
    """
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
