"""Read the texts of a search index from a folder, a text file, or a table with a column of texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from qkv.core.cell_kinds import cell_kind, is_missing
from qkv.core.formatting import format_key
from qkv.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


T = TypeVar("T")

_SUFFIXES = (".txt", ".md", ".markdown", ".text", ".rst")
_TEXT_NAMES = ("text", "body", "content", "abstract", "document", "passage", "description")
_ID_NAMES = ("id", "_id", "docno", "docid", "doc_id")
_TITLE_NAMES = ("title", "name", "headline", "subject")


@dataclass(frozen=True)
class Document:
    """Text to search or to search for, with a unique name and an optional title.

    Attributes:
        name: unique name in rankings and judgements.
        text: text of the document.
        title: title, which is searched with the text, or "".

    Example:
        >>> from qkv.search import Document
        >>> Document("a", "A shepherd found it.", title="The ring").whole.splitlines()
        ['The ring', 'A shepherd found it.']
    """

    name: str
    text: str
    title: str = ""

    @property
    def whole(self) -> str:
        """Title and text, separated by a newline if neither is empty."""
        return "\n".join(part for part in (self.title, self.text) if part)


def read_texts(source: object, column: str | None = None) -> list[Document]:
    """Read the documents in a folder, a text file, a list of texts or a table.

    Args:
        source: a folder, of which all .txt and .md files that are not hidden are read, including subfolders; a
            single .txt or .md file; a list of texts; or a table in any form that `Database.open` reads.
        column: column of texts, if the source is a table; None for the column named text, body, content or
            similar, or the only column of text. Columns named id and title are used if present.

    Raises:
        DataError: the source contains no text or no column of texts, ids are not unique, or a file is not UTF-8.

    Example:
        >>> [document.name for document in read_texts({"id": ["a", "b"], "text": ["One.", "Two."]})]
        ['a', 'b']
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            return _folder(path)
        if not path.exists():
            raise DataError(f"source must be an existing file or folder, got {str(source)!r}. Check the path.")
        if _is_text(path):
            text = read_file(path)
            if not text.strip():
                raise DataError(
                    f"the file {str(path)!r} must contain text, got an empty or blank file. Name a file with text."
                )
            return [Document(path.name, text)]
    series = (getattr(source, name, None) for name in ("tolist", "to_list") if not hasattr(source, "columns"))
    texts = next((to_list() for to_list in series if to_list is not None), source)
    if not isinstance(texts, str) and isinstance(texts, Sequence) and any(isinstance(text, str) for text in texts):
        other = next((number for number, text in enumerate(texts) if not isinstance(text, str)), None)
        if other is not None:
            raise DataError(f"the texts of a list must be texts, got {texts[other]!r} at index {other}. Leave it out.")
        return [Document(str(number), text) for number, text in enumerate(texts, 1)]
    return _table(source, column)


def read_file(path: Path) -> str:
    """Return the text of a UTF-8 file, decompressed by gzip if the name ends in `.gz`.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
    """
    try:
        text = (_unpacked(path) if path.suffix == ".gz" else path.read_bytes()).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(
            f"the file {str(path)!r} must be UTF-8 text, got another encoding. Save the file as UTF-8."
        ) from None
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"the file {str(path)!r} must be readable, but reading it failed: {why}. Check the path and the file."
        ) from None
    return text.replace("\r\n", "\n")


def _unpacked(path: Path) -> bytes:
    from qkv.database.io.file_bytes import unpacked_blocks, unpacking_errors

    try:
        return b"".join(unpacked_blocks(path))
    except unpacking_errors() as error:
        raise error if isinstance(error, OSError) else OSError(str(error)) from None


def parse_lines(path: Path, kind: str, remedy: str, parse: Callable[[str], T], header: Sequence[str] = ()) -> list[T]:
    """Parse each non-blank line of a text file, and return the list of the values that `parse` returns.

    Args:
        path: the file.
        kind: name of what a line holds, for error messages.
        remedy: format of a line, for error messages.
        parse: function that returns the value of a line; it raises a TypeError, LookupError, AttributeError or
            ValueError if the line is invalid.
        header: names of a first column; a first line that begins with one of these names is skipped.

    Raises:
        DataError: the file cannot be read, all lines are blank, or a line is invalid.
    """
    found = []
    for number, line in enumerate(read_file(path).split("\n"), 1):
        if not line.strip() or (number == 1 and line.split()[0].lower() in header):
            continue
        try:
            found.append(parse(line))
        except (AttributeError, LookupError, TypeError, ValueError):
            raise DataError(
                f"line {number} of {str(path)!r} must be a {kind}, got {line[:60]!r}. Lines have the format: {remedy}."
            ) from None
    if not found:
        raise DataError(f"the file {str(path)!r} must contain at least one {kind}, got none. Name another file.")
    return found


def _is_text(path: Path) -> bool:
    return Path(path.name.lower().removesuffix(".gz")).suffix in _SUFFIXES


def _folder(folder: Path) -> list[Document]:
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and _is_text(path) and not any(part.startswith(".") for part in name.parts):
            text = read_file(path)
            if text.strip():
                found.append(Document(name.as_posix(), text))
    if not found:
        raise DataError(
            f"the folder {str(folder)!r} must contain a non-empty file that ends in {', '.join(_SUFFIXES)}, got none. "
            "Choose another folder, or a table with a column of texts."
        )
    return found


def _table(source: object, column: str | None) -> list[Document]:
    from qkv.database.io.read_options import ReadOptions
    from qkv.database.io.sources import describe, read, require_columns

    # Cells such as 007 and 05.01.2024 are read as they are written.
    known = (name for each in (*_TEXT_NAMES, *_ID_NAMES, *_TITLE_NAMES) for name in (each, each.title(), each.upper()))
    required, where = () if column is None else (column,), describe(source)
    table = read(source, required, ReadOptions(assumed=tuple((name, "text") for name in (*required, *known))))
    if column is None:
        column = _text_column(table, where)
    require_columns(table, [column], where)
    texts = _strings(table, column)
    lowered = {name.lower(): name for name in reversed(table.column_names) if name != column}
    titles = next((_strings(table, lowered[name]) for name in _TITLE_NAMES if name in lowered), None)
    names = next((_strings(table, lowered[name]) for name in _ID_NAMES if name in lowered), None)
    if names is None:
        names = [str(row) for row in range(1, len(texts) + 1)]
    elif len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"the ids of {where} must be unique, got {twice!r} more than once. Correct them, or rename their column to "
            "number the rows."
        )
    documents = [
        Document(name, text, title) for name, text, title in zip(names, texts, titles or [""] * len(texts), strict=True)
    ]
    if not any(document.whole.strip() for document in documents):
        raise DataError(f"column {column!r} of {where} must contain text, got only empty cells. Choose another column.")
    return documents


def _strings(table: pa.Table, column: str) -> list[str]:
    from qkv.encoders.arrow_columns import to_python

    cells = to_python(table.column(column))
    return [cell if isinstance(cell, str) else "" if is_missing(cell) else format_key(cell) for cell in cells]


def _text_column(table: pa.Table, where: str) -> str:
    texts = [field.name for field in table.schema if cell_kind(field.type) == "text"]
    named = [name for preferred in _TEXT_NAMES for name in texts if name.lower() == preferred]
    if named or len(texts) == 1:
        return str((named or texts)[0])
    names = ", ".join(table.column_names[:20])
    raise DataError(
        f"{where} must have a column named text, or exactly one column of strings, got {len(texts)} columns of strings "
        f"among {names}. Name the column to search: column='…' in Python, --text COLUMN on the command line."
    )
