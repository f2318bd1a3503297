"""The description of what a server serves, which `GET /store` returns."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from qkv.database.storage.stored import StoredDatabase
from qkv.encoders.columns import Column

if TYPE_CHECKING:
    from qkv.database.protocol import Queryable
    from qkv.serve.limits import Limits
    from qkv.serve.served_store import ServedStore

__all__ = ["describe_store"]


def describe_store(served: ServedStore, limits: Limits) -> dict[str, object]:
    """Return the columns, rows and version of a served database, its index and the limits, for `json.dumps`."""
    database, index = served.database, served.index
    found: dict[str, object] = {"database": None if database is None else _describe_database(database, served.version)}
    found["problem"] = served.problem
    found["index"] = None
    if index is not None:
        found["index"] = {"passages": len(index), "documents": index.documents, "encoder": index.encoder.name}
    found["limits"] = asdict(limits)
    return found


def _describe_database(database: Queryable, version: int | None) -> dict[str, object]:
    return {
        "name": database.name,
        "key": [{"name": name, "kind": _kind(database, name)} for name in database.key],
        "value": {"name": database.value, "kind": _kind(database, database.value)},
        "votes": database.votes,
        "rows": len(database),
        "version": version,
        "missing": database.store.skipped if isinstance(database, StoredDatabase) else "",
    }


def _kind(database: Queryable, name: str) -> str:
    """Return the kind of a column; that of a store is known without reading rows."""
    if isinstance(database, StoredDatabase):
        return Column.from_table(database.store.empty([name]), name).kind
    return database.column(name).kind
