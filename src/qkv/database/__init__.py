"""Databases, which are tables in memory or on disk that answer queries by attention over their rows."""

from qkv.core.extras import require_packages

require_packages("tables and stores need", "ask", "pyarrow", "duckdb")

from qkv.database.answer import Answer, Evidence
from qkv.database.candidates.candidates import Candidates
from qkv.database.database import Database
from qkv.database.protocol import Queryable

__all__ = ["Answer", "Candidates", "Database", "Evidence", "Queryable"]
