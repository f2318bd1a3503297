"""Keys and values in the user's words: open a table, ask it."""

from qkv.core.extras import require_packages

require_packages("tables and stores need", "ask", "pyarrow", "duckdb")

from qkv.database.answer import Answer, Evidence
from qkv.database.database import Database

__all__ = ["Answer", "Database", "Evidence"]
