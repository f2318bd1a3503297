"""Ask a table in DuckDB, one range of its rows at a time: `python -m examples.engines.duckdb_fragments`.

Each query of SQL returns one fragment, so that no more than a fragment is in memory.
"""

import duckdb

from qkv.database import partials

ROWS, FRAGMENT = 100_000, 20_000
QUERIES = [0.5, 2.0, 3.0]


def main() -> list[float]:
    """Return the average of sin(x) near each query, from five fragments."""
    connection = duckdb.connect()
    connection.execute(f"create table points as select i, i / {ROWS} * 4 as x, sin(x) as y from range({ROWS}) t(i)")
    parts = [
        partials.compute(
            QUERIES,
            connection.sql(f"select x, y from points where i >= {start} and i < {start + FRAGMENT}").to_arrow_table(),
            key="x",
            value="y",
            score="gaussian:0.05",
            fragment=start // FRAGMENT,
        )
        for start in range(0, ROWS, FRAGMENT)
    ]
    return partials.finalize(partials.merge(parts))["value"].to_pylist()


if __name__ == "__main__":
    print(main())
