"""Databases on disk: creation, opening, writing, and encoding of keys as vectors."""
