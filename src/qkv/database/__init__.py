"""Databases, which are tables in memory or on disk that answer queries by attention over their rows."""

import sys

from qkv.core.extras import require_packages

# In Pyodide tables answer without DuckDB; files other than .csv, .tsv and .txt, SQL and `where` require it when used.
require_packages("tables and stores need", "ask", "pyarrow", *([] if sys.platform == "emscripten" else ["duckdb"]))

from qkv.database.answer import Answer, Evidence
from qkv.database.candidates.candidates import Candidates
from qkv.database.database import Database
from qkv.database.protocol import Queryable

__all__ = ["Answer", "Candidates", "Database", "Evidence", "Queryable"]
