"""Things become key vectors: latent semantics, word vectors, table vectorizers, sentence models."""

from importlib import import_module
from typing import Any

_HOMES = {
    "Encoder": "encoder",
    "LatentEncoder": "text_encoders",
    "LatentSemantics": "latent_semantics",
    "SentenceModel": "sentence_model",
    "TableVectors": "table_vectors",
    "WordVectors": "word_vectors",
}

__all__ = ["Encoder", "LatentEncoder", "LatentSemantics", "SentenceModel", "TableVectors", "WordVectors"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
