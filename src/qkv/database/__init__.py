"""Keys and values in the user's words: open a table, ask it."""

from qkv.database.answer import Answer, Evidence
from qkv.database.database import Database

__all__ = ["Answer", "Database", "Evidence"]
