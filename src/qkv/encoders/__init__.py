"""Things become key vectors: latent semantics, word vectors, table vectorizers, sentence models."""

from importlib import import_module
from typing import Any

_HOMES = {
    "Encoder": "contract",
    "Latent": "texts",
    "LatentSemantics": "latent",
    "SentenceModel": "sentences",
    "TableVectors": "tables",
    "WordVectors": "words",
}

__all__ = ["Encoder", "Latent", "LatentSemantics", "SentenceModel", "TableVectors", "WordVectors"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
