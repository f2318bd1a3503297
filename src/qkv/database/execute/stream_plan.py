"""The plan of an `ask` that reads blocks one after another: `print(plan)` is EXPLAIN."""

import textwrap
from dataclasses import dataclass

from qkv.plan.cost import counted, memory_text

__all__ = ["StreamedPlan"]


@dataclass(frozen=True)
class StreamedPlan:
    """How a store was asked.

    Fields:
        name, version, rows, blocks: of the store.
        queries: how many were asked.
        key: the key columns and their types.
        score, normalizer: what was asked for.
        predicate: some rows were told to take no part.
        logits: how they are computed.
        sums: every row leaves its part of the sums; else only the best rows are kept.
        passes: over all rows; one more for each where a normalizer's support is wide.
        bytes: read in one pass.
        memory: what is in memory at once, about.
        grows: it depends on the number of rows.
        encoder: what made the vectors of keys and queries; "" where nothing did.
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

    def __str__(self) -> str:
        how = (
            "each row leaves its part of the sums, which merge; the rows of most weight are read again"
            if self.sums
            else "the rows of highest score are kept, and asked in memory"
        )
        lines = [
            ("asked", f"{counted(self.queries, 'query', 'queries')} × {counted(self.rows, 'row', 'rows')}"),
            ("store", f"{self.name}, version {self.version}; key {self.key}"),
            *([("encoder", self.encoder)] if self.encoder else []),
            ("score", self.score),
            ("normalizer", self.normalizer),
            ("rows", "those that satisfy the predicate" if self.predicate else "all"),
            ("kernel", f"streamed over {counted(self.blocks, 'block', 'blocks')}, {how}"),
            ("logits", self.logits),
            (
                "cost",
                f"{counted(self.passes, 'pass', 'passes')} of {memory_text(self.bytes)} read where it lies; "
                f"about {memory_text(self.memory)} in memory" + ("" if self.grows else ", however many rows there are"),
            ),
        ]
        return "\n".join(
            textwrap.fill(
                text,
                width=110,
                initial_indent=f"{name:<12}",
                subsequent_indent=" " * 12,
                break_on_hyphens=False,
            )
            for name, text in lines
        )
