"""The class `StreamedPlan`, which describes how queries are executed block by block over a store."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from qkv.core.formatting import counted, memory_text


@dataclass(frozen=True)
class StreamedPlan:
    """The plan of queries that are executed block by block over a store. `print(plan)` shows it.

    Attributes:
        name, version: the name and the open version of the store.
        rows, blocks: the number of rows and of blocks of the store.
        queries: number of queries.
        key: the key columns and their types.
        score, normalizer: the score and the normalizer in words.
        predicate: whether a predicate or mask excludes rows.
        logits: the computation of logits in words.
        sums: whether all rows are accumulated; otherwise only the top rows are kept.
        passes: number of passes over all rows; up to twice as many for a normalizer with many
            non-zero weights.
        bytes: number of bytes that one pass reads.
        memory: approximate memory use in bytes.
        grows: whether memory use depends on the number of rows.
        encoder: the encoder of keys and queries in words; "" if there is none.
        cluster: the workers that read the rows in words; "" if this process does.
        codes: what was read of the codes of a compressed store, and of its rows, in words; "" if all rows were read.
        read: the bytes and requests that were read from an object store in words; "" for a store on a disk.
        calls: an object whose text lists the calls of attention that ran.
        missing: the fragments and rows that could not be read in words; "" if all were read.
    """

    name: str
    version: int
    queries: int
    rows: int
    blocks: int
    key: str
    score: str
    normalizer: str
    predicate: bool
    logits: str
    sums: bool
    passes: int
    bytes: int
    memory: int
    grows: bool
    encoder: str = ""
    cluster: str = ""
    codes: str = ""
    read: str = ""
    calls: object = ""
    missing: str = ""

    def __str__(self) -> str:
        method = (
            "weights and values are accumulated; the rows with the largest weights are read again"
            if self.sums
            else "attention is computed in memory over the rows with the largest logits"
        )
        lines = [
            ("query", f"{counted(self.queries, 'query', 'queries')} × {counted(self.rows, 'row', 'rows')}"),
            ("store", f"{self.name}, version {self.version}; key {self.key}"),
            *([("encoder", self.encoder)] if self.encoder else []),
            ("score", self.score),
            ("normalizer", self.normalizer),
            ("rows", "those that satisfy the predicate" if self.predicate else "all"),
            ("kernel", f"streamed over {counted(self.blocks, 'block', 'blocks')}, {method}"),
            ("logits", self.logits),
            *([("cluster", self.cluster)] if self.cluster else []),
            *([("codes", self.codes)] if self.codes else []),
            *([("read", self.read)] if self.read else []),
            *([("missing", self.missing)] if self.missing else []),
            (
                "cost",
                f"{counted(self.passes, 'pass', 'passes')} over {memory_text(self.bytes)}, "
                f"{'in whole pages' if self.read else 'memory-mapped'}; "
                f"about {memory_text(self.memory)} in memory"
                + ("" if self.grows else ", independent of the number of rows"),
            ),
            *(("" if n else "calls", text) for n, text in enumerate(str(self.calls).splitlines())),
        ]
        return "\n".join(
            textwrap.fill(
                text, width=110, initial_indent=f"{name:<12}", subsequent_indent=" " * 12, break_on_hyphens=False
            )
            for name, text in lines
        )
