"""Databases: tables with key and value columns that answer queries, in memory or on disk."""

from qkv.core.extras import require_packages

require_packages("tables and stores need", "ask", "pyarrow", "duckdb")

from qkv.database.answer import Answer, Evidence
from qkv.database.database import Database
from qkv.database.protocol import Queryable

__all__ = ["Answer", "Database", "Evidence", "Queryable"]
