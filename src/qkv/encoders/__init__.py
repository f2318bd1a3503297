"""Encoders that map texts, words or table rows to vectors: latent semantics, word vectors, sentence models, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.core.extras import lazy_attributes, require_packages

__all__ = [
    "ContextualVectors",
    "Encoder",
    "LatentEncoder",
    "LatentSemantics",
    "SentenceModel",
    "TableVectors",
    "WordVectors",
    "load_encoder",
    "save_encoder",
]

if TYPE_CHECKING:
    from qkv.encoders.contextual_vectors import ContextualVectors
    from qkv.encoders.encoder import Encoder, load_encoder, save_encoder
    from qkv.encoders.latent_semantics import LatentSemantics
    from qkv.encoders.sentence_model import SentenceModel
    from qkv.encoders.table_vectors import TableVectors
    from qkv.encoders.text_encoders import LatentEncoder
    from qkv.encoders.word_vectors import WordVectors

_MODULES = {
    "ContextualVectors": "contextual_vectors",
    "Encoder": "encoder",
    "LatentEncoder": "text_encoders",
    "LatentSemantics": "latent_semantics",
    "SentenceModel": "sentence_model",
    "TableVectors": "table_vectors",
    "WordVectors": "word_vectors",
    "load_encoder": "encoder",
    "save_encoder": "encoder",
}

_load = lazy_attributes(__name__, _MODULES)


def __getattr__(name: str) -> object:
    if name in ("LatentSemantics", "TableVectors"):
        require_packages(f"{name} requires", "search", "sklearn")
    return _load(name)
