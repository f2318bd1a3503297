"""Evaluation of SQL predicates (`where`), which see the columns of one table and nothing else.

DuckDB parses a predicate, and the tree may hold comparisons, functions of the list `_FUNCTIONS` and subqueries over the
table `data`. The connection that evaluates it can open no file, has no temporary folder, one thread, and settings that
are locked. Predicates of other people, such as those that come over HTTP, are evaluated in a process of their own,
because DuckDB's limit of memory does not hold for lists and texts, and its parser cannot be interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.core.printable import quoted_name
from qkv.core.progress import checkpoint
from qkv.core.threads import can_start_threads
from qkv.core.typing import Bool
from qkv.database.io.duckdb_file import CLOSED, interruptible, open_connection
from qkv.encoders import arrow_columns
from qkv.errors import QkvError, QueryError

_SECONDS = 300.0
"""Longest time of a predicate in this process."""
_LOOK = 0.02
"""Seconds between two checkpoints of a predicate that waits for the process."""
_LONGEST_PADDING = 1000


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NODES = _words("""
    COMPARISON CONJUNCTION CONSTANT COLUMN_REF FUNCTION OPERATOR CASE CAST BETWEEN COLLATE SUBQUERY LAMBDA LAMBDA_REF
    TYPE
    """)
_FUNCTIONS = _words("""
    ! !~~ !~~* !~~~ % & && * ** + - -> ->> / // <-> << <=> <@ >> @> ^ ^@ | || ~ ~~ ~~* ~~~
    like_escape not_like_escape ilike_escape not_ilike_escape
    abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees divide even exp
    factorial fdiv floor fmod gamma gcd greatest greatest_common_divisor hash if isfinite isinf isnan lcm least
    least_common_multiple lgamma ln log log10 log2 mod multiply nextafter nullif pi pow power radians random round
    round_even sign signbit sin sinh sqrt subtract tan tanh trunc typeof xor
    ascii base64 bit_length char_length character_length chr concat concat_ws contains damerau_levenshtein decode
    editdist3 encode ends_with from_base64 from_hex hamming hex instr jaccard jaro_similarity jaro_winkler_similarity
    lcase left left_grapheme len length length_grapheme levenshtein lower lpad ltrim md5 mismatches nfc_normalize
    octet_length ord position prefix regexp_escape regexp_extract regexp_extract_all regexp_full_match regexp_matches
    regexp_replace regexp_split_to_array replace reverse right right_grapheme rpad rtrim sha256 split split_part
    starts_with str_split str_split_regex string_split string_split_regex string_to_array strip_accents strlen strpos
    substr substring substring_grapheme suffix to_base64 to_hex translate trim ucase unhex unicode upper
    age ago century current_localtime current_localtimestamp date_add date_diff date_part date_sub date_trunc datediff
    datepart datesub datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns
    epoch_us era get_current_time get_current_timestamp hour isodow isoyear julian last_day make_date make_time
    make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute month
    monthname nanosecond now quarter second strftime strptime time_bucket timezone timezone_hour timezone_minute
    to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months
    to_quarters to_seconds to_timestamp to_weeks to_years today transaction_timestamp try_strptime week weekday
    weekofyear year yearweek
    array_contains array_cosine_distance array_cosine_similarity array_distance array_distinct array_dot_product
    array_extract array_has array_has_all array_has_any array_indexof array_inner_product array_intersect array_length
    array_position array_slice array_sort array_to_string array_unique array_value cardinality element_at flatten
    list_any_value list_avg list_cat list_concat list_contains list_cosine_distance list_cosine_similarity list_count
    list_distance list_distinct list_dot_product list_element list_extract list_first list_has list_has_all list_has_any
    list_indexof list_inner_product list_intersect list_last list_max list_median list_min list_mode list_pack
    list_position list_product list_reverse list_reverse_sort list_slice list_sort list_stddev_pop list_stddev_samp
    list_sum list_unique list_value list_var_pop list_var_samp map map_contains map_contains_entry map_contains_value
    map_entries map_extract map_extract_value map_keys map_values row struct_contains struct_extract struct_extract_at
    struct_keys struct_pack union_extract union_tag
    array_apply array_filter array_transform list_apply list_filter list_transform
    json json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text
    json_extract_string json_keys json_type json_valid json_value
    any_value approx_count_distinct approx_quantile arg_max arg_min argmax argmin array_agg avg bool_and bool_or corr
    count count_if count_star countif covar_pop covar_samp entropy favg first fsum geomean geometric_mean kahan_sum
    kurtosis last list mad max max_by mean median min min_by mode product quantile quantile_cont quantile_disc
    regr_intercept regr_r2 regr_slope sem skewness stddev stddev_pop stddev_samp sum sumkahan var_pop var_samp variance
    wavg weighted_avg
    """)
"""What a predicate may call: functions of cells whose results are not much longer than their arguments."""


def matching_rows(
    table: pa.Table, predicate: str, present: Bool[np.ndarray, " rows"] | None = None
) -> Bool[np.ndarray, " rows"]:
    """Return a boolean array that is True for each row of a table that satisfies a SQL predicate.

    The predicate may refer to the whole table as `data`: `income > (select avg(income) from data)`. Null is not
    true, as in SQL.

    Args:
        table: the table, read without a copy.
        predicate: one SQL expression.
        present: True for the rows that exist; other rows are not visible to the predicate. None: all rows exist.

    Raises:
        QueryError: The predicate does not parse, names an unknown column, uses a function that is not allowed or other
            data, or takes too long.
    """
    process = _PROCESS.get()
    if process is None:
        return _evaluate(table, predicate, present, table.column_names)[1]
    # The predicate is parsed there, so that the other columns need not be sent.
    names = named_columns(table, predicate)
    return process.evaluate(table.select(names), predicate, present, table.column_names)[1]


def named_columns(table: pa.Table, predicate: str) -> list[str]:
    """Return the columns of a table that a SQL predicate may read, at least one.

    Raises:
        QueryError: The predicate fails for a table without rows.
    """
    evaluate = _evaluate if (process := _PROCESS.get()) is None else process.evaluate
    return evaluate(table.slice(0, 0), predicate, None, table.column_names)[0]


def _evaluate(
    table: pa.Table, predicate: str, present: Bool[np.ndarray, " rows"] | None, columns: Sequence[str]
) -> tuple[list[str], Bool[np.ndarray, " rows"]]:
    """Return the columns that a predicate may read, and the rows that satisfy it."""
    failure = f"the predicate {predicate!r} failed"
    remedy = f"Write SQL over the columns {', '.join(map(quoted_name, columns))}, such as city = 'Oslo'."
    zone = _time_zone(table.schema, predicate)
    with _within(_SECONDS) as start, open_connection(CLOSED, QueryError, failure, remedy, zone) as connection:
        start(connection.interrupt)
        names, named = _check_tree(_parse(connection, predicate), predicate, table.column_names)
        # No column has these names, nor does DuckDB give them to columns that differ in case alone.
        row, exists = (
            _free_name(name, {*named, *map(str.casefold, table.column_names)}) for name in ("row_", "exists_")
        )
        numbered = _readable(table.select(names)).append_column(row, arrow_columns.row_numbers(table.num_rows))
        if present is not None:
            numbered = numbered.append_column(exists, pa.array(present))
        relation = connection.from_arrow(numbered)
        if present is not None:
            relation = relation.filter(quoted_name(exists)).project(f"* exclude ({quoted_name(exists)})")
        relation.project(f"* exclude ({quoted_name(row)})").create_view("data")
        # `filter` parses one expression, so a predicate cannot end the statement and begin another. DuckDB before 2.0
        # also accepts ORDER BY after it, which cannot be within parentheses.
        relation.filter(predicate)
        matches = relation.filter(f"({predicate}\n)").select(quoted_name(row)).to_arrow_table()
    mask = np.zeros(table.num_rows, bool)
    for chunk in matches.column(0).chunks:
        mask[arrow_columns.stored_numbers(chunk)] = True
    return names, mask


def _readable(table: pa.Table) -> pa.Table:
    """Return a table with decimals of at most 38 digits, as DuckDB reads no others, if no digit is lost."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal256(field.type):
            with contextlib.suppress(pa.ArrowInvalid, ValueError):
                column = table.column(index).cast(pa.decimal128(38, field.type.scale))
                table = table.set_column(index, field.with_type(column.type), column)
    return table


def mentioned_columns(names: Sequence[str], predicate: str) -> list[str]:
    """Return the columns whose names occur in a predicate, which need not mean the columns.

    Example:
        >>> mentioned_columns(["day", "size", "d"], "year(Day) > 2020 or size = 1")
        ['day', 'size']
    """
    words = predicate.casefold()
    return [name for name in names if re.search(rf"(?<!\w){re.escape(name.casefold())}(?!\w)", words)]


def _time_zone(schema: pa.Schema, predicate: str) -> str:
    """Return the time zone of the timestamps that a predicate names, as DuckDB writes it; UTC if they have several."""
    named = [schema.field(name).type for name in mentioned_columns(schema.names, predicate)]
    zones = {type_.tz for type_ in named if pa.types.is_timestamp(type_) and type_.tz}
    zone = zones.pop() if len(zones) == 1 else "UTC"
    return f"GMT{zone}" if zone.startswith(("+", "-")) else zone.replace("'", "")


def _free_name(name: str, names: Collection[str]) -> str:
    """Return a name followed by underscores that is none of `names`."""
    while name in names:
        name += "_"
    return name


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield a function that starts the time of a block, at whose end another function is called to interrupt it.

    Raises:
        QueryError: The time is over.
    """
    late, timers = threading.Event(), list[threading.Timer]()

    def start(interrupt: Callable[[], None]) -> None:
        def end() -> None:
            late.set()
            interrupt()

        timers.append(threading.Timer(seconds, end))
        timers[0].daemon = True
        if can_start_threads():
            timers[0].start()

    try:
        yield start
    except KeyboardInterrupt:
        if not late.is_set():
            raise
        raise QueryError(
            f"a predicate must take at most {seconds:g} seconds, got one that takes longer. Simplify it, or select the "
            "rows with Database.sql."
        ) from None
    finally:
        for timer in timers:
            timer.cancel()


def _parse(connection: Any, predicate: str) -> Any:
    """Return the parsed tree of a predicate.

    Raises:
        QueryError: It is no SQL expression.
    """
    try:
        ((text,),) = connection.execute("select json_serialize_sql(?)", [f"select ({predicate}\n)"]).fetchall()
        tree = json.loads(text)
    except (RecursionError, UnicodeEncodeError) as error:
        reason = "is nested too deeply" if isinstance(error, RecursionError) else "has half of a surrogate pair"
        raise QueryError(f"the predicate must be one SQL expression, but it {reason}. Shorten or correct it.") from None
    if not tree["error"] and len(tree["statements"]) == 1:
        return tree["statements"][0]["node"]["select_list"]
    connection.from_arrow(_nothing()).filter(predicate)  # raises the error with its place
    raise QueryError(f"the predicate must be one SQL expression, got {predicate!r}. Correct it.")


def _nothing() -> pa.Table:
    return pa.table({"x": pa.array([], pa.int64())})


def _check_tree(tree: Any, predicate: str, columns: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the columns that a parsed predicate may read, and all names in it, after checking that it is allowed.

    Raises:
        QueryError: It uses a function, a table or syntax that is not allowed, or names two columns at once.
    """
    named, everything = set[str](), False

    def refuse(what: str) -> QueryError:
        return QueryError(
            f"a predicate must compare the columns {', '.join(columns)} by functions of numbers, texts, dates and "
            f"lists, got {what} in {predicate!r}. Compare the columns by name, or select the rows with Database.sql."
        )

    def walk(node: Any, subquery: bool, within: bool) -> None:
        nonlocal everything
        if isinstance(node, list):
            for each in node:
                walk(each, subquery, within)
        if not isinstance(node, dict):
            return
        kind, name = node.get("class"), str(node.get("function_name", "")).lower()
        if kind is not None and kind not in _NODES:
            # Within a subquery there are the columns of `data` alone.
            if not subquery or kind not in ("STAR", "POSITIONAL_REFERENCE"):
                raise refuse(f"{str(node.get('type', kind)).lower().replace('_', ' ')}")
            everything = True
        if name and name not in _FUNCTIONS:
            raise refuse(f"the function {name}")
        if name in ("lpad", "rpad") and not _is_short(node):
            raise refuse(f"{name} to a length that is no number up to {_LONGEST_PADDING:,}")
        if kind == "LAMBDA":
            if within:
                raise refuse("a lambda within another one")
            within = True
        if kind == "COLUMN_REF":
            names = {str(each).casefold() for each in node["column_names"]}
            everything = everything or "data" in names
            named.update(names)
        source = node.get("from_table")
        if isinstance(source, dict) and source.get("type") not in ("EMPTY", "SUBQUERY"):
            if source.get("type") != "BASE_TABLE" or str(source["table_name"]).lower() != "data":
                raise refuse(f"the table {source.get('table_name', 'of a function or a join')}")
            if source.get("schema_name") or source.get("catalog_name"):
                raise refuse("a table of another schema")
        if str(node.get("type", "")).endswith("_NODE") and (node["type"] != "SELECT_NODE" or node["cte_map"]["map"]):
            raise refuse("WITH or UNION")
        for each in node.values():
            walk(each, subquery or kind == "SUBQUERY", within)

    try:
        walk(tree, False, False)
    except RecursionError:
        raise refuse("expressions nested too deeply") from None
    found = [name for name in columns if name.casefold() in named]
    folded = [name.casefold() for name in found]
    for name in found:
        if folded.count(name.casefold()) > 1:
            alike = [each for each in columns if each.casefold() == name.casefold()]
            raise QueryError(
                f"a predicate must name columns that differ in more than case, got {' and '.join(alike)}, of which SQL "
                "names the first. Rename one of them."
            )
    return list(columns) if everything else found or list(columns)[:1], named


def _is_short(node: dict[str, Any]) -> bool:
    """Return whether the second argument of a function is a small number."""
    arguments = node.get("arguments") or node.get("children") or []
    second = arguments[1] if len(arguments) > 1 else {}
    second = second.get("expression", second)
    constant = second.get("literal") or second.get("value") or {}
    text = str(constant.get("text", constant.get("value", "")))
    return text.isascii() and text.isdigit() and len(text) < 5 and int(text) <= _LONGEST_PADDING


# -- predicates of other people -------------------------------------------------------------------------


class PredicateProcess:
    """A process that evaluates predicates of other people, such as those that come over HTTP.

    It is started by the first predicate. Beyond its columns it has little memory. It is ended when a predicate takes
    too long or is abandoned, and the next predicate starts another one. Its results are those of `matching_rows`.

    Args:
        seconds: longest time of a predicate.
        memory: bytes of memory for a predicate beside its columns.

    Example:
        >>> import pyarrow as pa
        >>> process = PredicateProcess()
        >>> with process.used():
        ...     matching_rows(pa.table({"x": [1, 2]}), "x > 1").tolist()
        [False, True]
        >>> process.close()
    """

    def __init__(self, seconds: float = 60.0, memory: int = 2**30) -> None:
        self.seconds, self.memory = seconds, memory
        self._lock = threading.Lock()
        self._interrupted = False
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Evaluate the predicates of a block by the process."""
        token = _PROCESS.set(self)
        try:
            yield
        finally:
            _PROCESS.reset(token)

    def evaluate(
        self, table: pa.Table, predicate: str, present: Bool[np.ndarray, " rows"] | None, columns: Sequence[str]
    ) -> tuple[list[str], Bool[np.ndarray, " rows"]]:
        """Return what `_evaluate` returns.

        Raises:
            QueryError: The predicate fails, or needs too much time or memory.
        """
        with self._turn(), _within(self.seconds) as start, interruptible(self):
            if self._process is None:
                self._process = _start()
            if self._interrupted:  # while the process was started
                raise KeyboardInterrupt
            start(self.interrupt)
            try:
                return self._ask(self._process, table, predicate, present, columns)
            except (OSError, EOFError):
                killed = self._process.wait() == -9
            finally:
                if self._process.poll() is not None:
                    self.close()
            if killed:  # at the end of the time, or because nobody waits for the answer
                raise KeyboardInterrupt
            raise QueryError(f"the predicate {predicate[:100]!r} must need less memory. Simplify it.")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for the process, and use it alone during a `with` block.

        A scan that waits may be suspended or ended by its checkpoint, so that the lock is not held meanwhile.
        """
        while not self._lock.acquire(timeout=_LOOK):
            checkpoint()
        self._interrupted = False
        try:
            yield
        finally:
            self._lock.release()

    def interrupt(self) -> None:
        """End the process, and with it the predicate that it evaluates."""
        self._interrupted = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # type: ignore[union-attr]

    def _ask(
        self,
        process: subprocess.Popen[bytes],
        table: pa.Table,
        predicate: str,
        present: Bool[np.ndarray, " rows"] | None,
        columns: Sequence[str],
    ) -> tuple[list[str], Bool[np.ndarray, " rows"]]:
        assert process.stdin is not None
        assert process.stdout is not None
        bits = [] if present is None else [np.packbits(present).tobytes().hex()]
        request = {"predicate": predicate, "columns": list(columns), "present": bits, "size": table.nbytes}
        process.stdin.write(json.dumps({**request, "memory": self.memory}).encode() + b"\n")
        with pa.ipc.new_stream(process.stdin, table.schema) as stream:
            stream.write_table(table)
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        reply = json.loads(line)
        if "error" in reply:
            raise QueryError(reply["error"])
        rows = np.frombuffer(bytes.fromhex(reply["rows"]), np.uint8)
        return reply["names"], np.unpackbits(rows, count=table.num_rows).astype(bool)


_PROCESS: ContextVar[PredicateProcess | None] = ContextVar("qkv_predicates", default=None)


def _start() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "from qkv.database.io.predicates import serve_predicates; serve_predicates()"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None
    process.stdout.readline()  # its start counts as time of no predicate
    return process


def serve_predicates() -> None:
    """Evaluate the predicates that come by the standard input until it ends; see `PredicateProcess`."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _evaluate(_nothing(), "true", None, ())  # loads what must not count as memory of a predicate
    output.write(b"ready\n")
    output.flush()
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        _limit_memory(3 * request["size"] + request["memory"])
        reply: dict[str, object]
        try:
            with pa.ipc.open_stream(sys.stdin.buffer) as stream:
                table = stream.read_all()
            bits = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in request["present"]]
            present = np.unpackbits(bits[0], count=table.num_rows).astype(bool) if bits else None
            names, rows = _evaluate(table, request["predicate"], present, request["columns"])
            reply = {"names": names, "rows": np.packbits(rows).tobytes().hex()}
        except QkvError as error:
            reply = {"error": str(error)}
        del table
        output.write(json.dumps(reply).encode() + b"\n")
        output.flush()


def _limit_memory(more: int) -> None:
    """Limit the address space of this process to what it has and some bytes more, where the platform can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.getrlimit(resource.RLIMIT_AS)[1]))
