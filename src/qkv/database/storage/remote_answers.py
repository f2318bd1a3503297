"""Answers from stores in object storage: which columns are loaded, and what was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qkv.database.answer import Answer
from qkv.database.execute.in_memory import InMemoryExecutor
from qkv.database.execute.row_reader import StoredRows
from qkv.database.execute.stream_plan import StreamedPlan
from qkv.plan.cost import counted, memory_text
from qkv.store import RemoteStore, Store, Traffic

__all__ = ["load_executor", "with_missing", "with_traffic"]


def load_executor(
    store: Store,
    key: Sequence[str],
    value: str,
    name: str,
    fold: bool,
    hidden: Sequence[str],
    columns: Sequence[str],
) -> InMemoryExecutor:
    """Return an executor over the rows of a store in memory.

    Of a store in an object store, the key and value columns are loaded; the others are read for the rows of evidence.

    Args:
        store: the store.
        key: as in `InMemoryExecutor`.
        value: as in `InMemoryExecutor`.
        name: as in `InMemoryExecutor`.
        fold: as in `InMemoryExecutor`.
        hidden: as in `InMemoryExecutor`.
        columns: the columns of the table.
    """
    if not isinstance(store, RemoteStore):
        return InMemoryExecutor(store.to_table(columns), tuple(key), value, name, fold, hidden)
    executor = InMemoryExecutor(store.to_table(list(dict.fromkeys((*key, value)))), tuple(key), value, name, fold)
    executor.table = StoredRows(store, hidden)
    return executor


def with_missing(answer: Answer, text: str) -> Answer:
    """Return a copy of an answer whose notes and plan state which fragments are missing."""
    before = getattr(answer.plan, "missing", "")
    return _with_note(answer, text, f"missing: {text}", missing=f"{before}; {text}" if before else text)


def with_traffic(answer: Answer, url: str, traffic: Traffic) -> Answer:
    """Return a copy of an answer whose notes and plan state the requests and bytes that it took."""
    text = f"{memory_text(traffic.read)} in {counted(traffic.requests, 'request', 'requests')} from {url}"
    if traffic.cached:
        text += f", {memory_text(traffic.cached)} from the block cache"
    return _with_note(answer, f"read {text}", f"rows read: {text}", read=text)


def _with_note(answer: Answer, note: str, rewrite: str, **fields: Any) -> Answer:
    plan = answer.plan
    fields = fields if isinstance(plan, StreamedPlan) else {"rewrites": (*plan.rewrites, rewrite)}
    plan = replace(plan, **fields)
    return replace(answer, plan=plan, common_notes=(*answer.common_notes, note))
