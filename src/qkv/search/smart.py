"""Read documents and queries in the SMART format of the test collections Cranfield, CISI, ADI and MED.

.I 12                        the record's number
.T                           its title, on the lines below
.W                           its text
"""

from __future__ import annotations

import re
from pathlib import Path

from qkv.errors import DataError
from qkv.search.text_sources import Document, read_file

__all__ = ["read_smart"]

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
