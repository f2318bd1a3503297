"""Hybrid search, in which a query attends to the passages of texts by the similarity of vectors and by BM25.

score(q, p) = m · z(latent(q) · latent(p)) + (1 − m) · z(BM25(q, p))        z: standardized over all passages
weights = softmax(score / T)                                                over all passages

read_texts(source)        a folder, a file or a table of texts
read_collection(source)   texts with queries and relevance judgements: SMART, BEIR, TREC
Index.from_texts(texts)   an index of passages, which can be searched and saved
measure(…)                nDCG, mean average precision and recall of rankings
"""

from qkv.core.extras import lazy_attributes

_HOMES = {
    "Collection": "collections",
    "Document": "text_sources",
    "Hit": "hits",
    "Index": "index",
    "measure": "evaluation",
    "read_collection": "collections",
    "read_texts": "text_sources",
}

__all__ = ["Collection", "Document", "Hit", "Index", "measure", "read_collection", "read_texts"]

__getattr__ = lazy_attributes(__name__, _HOMES, "search needs", "search", "pyarrow", "sklearn")
