"""Hybrid search: texts are split into passages, and a query attends to them by vectors and by BM25.

score(q, p) = m · z(latent(q) · latent(p)) + (1 − m) · z(BM25(q, p))        z: standardised over all passages
weights = softmax(score / T)                                                over all passages

read_texts(source)        a folder, a file or a table of texts
read_collection(source)   texts with queries and relevance judgements: SMART, BEIR, TREC
Index.from_texts(texts)   an index of passages, vectors and words to search, save and open
measure(…)                nDCG, average precision and recall of rankings
"""

from importlib import import_module
from typing import Any

from qkv.core.extras import require_packages

_HOMES = {
    "Collection": "qkv.search.collections",
    "Document": "qkv.search.text_sources",
    "Hit": "qkv.search.hits",
    "Index": "qkv.search.index",
    "measure": "qkv.search.evaluation",
    "read_collection": "qkv.search.collections",
    "read_texts": "qkv.search.text_sources",
}

__all__ = [
    "Collection",
    "Document",
    "Hit",
    "Index",
    "measure",
    "read_collection",
    "read_texts",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_packages("search needs", "search", "pyarrow", "sklearn")
    return getattr(import_module(_HOMES[name]), name)
