"""Ctrl-C while DuckDB reads rows is an interruption, and no failed predicate or damaged file."""

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest

from qkv.database.io.duckdb_file import CLOSED, OFFLINE, open_connection
from qkv.errors import QueryError

FAILURE = "the predicate failed"


def read_until(error: BaseException, connection: duckdb.DuckDBPyConnection) -> None:
    """Let an error arise within a read of DuckDB, as the signal of Ctrl-C does between two batches."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1, 2]})
        raise error

    rows = pa.RecordBatchReader.from_batches(pa.schema({"id": pa.int64()}), batches())
    connection.from_arrow(rows).aggregate("sum(id)").fetchall()


def call_until(error: BaseException, connection: duckdb.DuckDBPyConnection) -> None:
    """Let an error arise in a Python call of DuckDB, which appends its name and its empty message to its own error."""

    def function(number: int) -> int:
        raise error

    connection.create_function("interrupted", function, ["BIGINT"], "BIGINT")
    connection.execute("select interrupted(1)").fetchall()


WAYS = (read_until, call_until)


@pytest.mark.parametrize("way", WAYS)
def test_duckdb_wraps_ctrl_c_in_an_error_of_its_own(way):
    with pytest.raises(duckdb.InvalidInputException, match="KeyboardInterrupt"), duckdb.connect() as connection:
        way(KeyboardInterrupt(), connection)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", [OFFLINE, CLOSED])
def test_ctrl_c_within_duckdb_is_an_interruption(way, settings):
    with pytest.raises(KeyboardInterrupt), open_connection(settings, QueryError, FAILURE, "Write SQL.") as connection:
        way(KeyboardInterrupt(), connection)


@pytest.mark.parametrize("way", WAYS)
def test_other_errors_within_duckdb_remain_errors(way):
    with pytest.raises(QueryError, match=FAILURE), open_connection(CLOSED, QueryError, FAILURE, "Write.") as connection:
        way(ValueError("no KeyboardInterrupt, but a bad cell"), connection)


def test_a_cell_that_holds_the_name_of_the_exception_is_no_interruption():
    with pytest.raises(QueryError), open_connection(CLOSED, QueryError, FAILURE, "Write SQL.") as connection:
        connection.execute("select 'KeyboardInterrupt'::integer").fetchall()
