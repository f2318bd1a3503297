"""Opening of delimited, JSON and Parquet files as DuckDB relations with types that all their cells have."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from qkv.core.extras import require_packages
from qkv.core.printable import quoted_name
from qkv.core.times import ISO, has_format, is_compact_date, iso_sql
from qkv.database.io.exact_types import inexact_columns
from qkv.database.io.file_bytes import (
    check_lines,
    guess_encoding,
    in_utf_8,
    invalid_line,
    longest_line,
    read_ends,
    unpacked_blocks,
)
from qkv.database.io.identifiers import has_identifier_name
from qkv.database.io.read_options import ReadOptions
from qkv.database.io.table_layout import Layout, copy_table, find_fault, read_layout
from qkv.database.io.text_readings import first_texts, has_one_spelling
from qkv.errors import DataError, QkvError

if TYPE_CHECKING:
    import duckdb


DELIMITED = (".csv", ".tsv", ".txt")
JSON = (".jsonl", ".ndjson", ".json")
PARQUET = (".parquet", ".pq")

# By default DuckDB downloads a missing extension the first time a query names it, and may answer from bytes that it
# read before.
OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
OFFLINE |= {"enable_external_file_cache": "false"}
# One thread, so that sums over all rows do not depend on the order in which threads end. DuckDB reads its temporary
# folder whatever its access is, and variables of Python that are named like a table.
CLOSED = {**OFFLINE, "enable_external_access": "false", "temp_directory": "", "threads": "1"}
CLOSED |= {"python_enable_replacements": "false", "memory_limit": "2GiB"}
# DuckDB 1.5 adds "<EMPTY MESSAGE>" and the place of the call.
_INTERRUPTED = re.compile(r"\bKeyboardInterrupt: <EMPTY MESSAGE>\s|\bKeyboardInterrupt[:\s]*$")
_PREFIX = re.compile(rb"(\A|0)[xXbB]")  # a block may begin within a number
_ALIKE = re.compile("the keys '([^']*)' and '([^']*)' differ only in case|Duplicate name \"+([^\"]*)\"+ in struct")
_T = TypeVar("_T")


@contextmanager
def open_connection(
    settings: dict[str, str], error_class: type[QkvError], failure: str, remedy: str, zone: str = "UTC"
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a DuckDB connection, and raise its errors as `error_class` with the texts `failure` and `remedy`.

    Parts of timestamps with a time zone, such as their days, are those in `zone`, or in UTC if DuckDB does not know it.
    """
    require_packages("files, SQL and conditions need", "ask", "duckdb")
    with _signals_deferred():
        import duckdb

    with contextlib.closing(_connect(settings)) as connection, interruptible(connection):
        try:
            # DuckDB prints the progress of slow reads to standard output, where answers are.
            connection.execute("set enable_progress_bar = false")
            connection.execute("set TimeZone = 'UTC'")  # not that of the machine
            with contextlib.suppress(duckdb.Error):
                connection.execute(f"set TimeZone = '{zone}'")
            if settings is CLOSED:
                connection.execute("set lock_configuration = true")
            yield connection
        except (duckdb.Error, RuntimeError) as error:
            text = str(error)
            # Ctrl-C while DuckDB reads a table of Arrow is wrapped: "counting the rows … failed: KeyboardInterrupt: ",
            # or as the last line of a traceback.
            wrapped = isinstance(error, duckdb.InvalidInputException) and _INTERRUPTED.search(text) is not None
            if isinstance(error, duckdb.InterruptException) or text == "Query interrupted" or wrapped:
                raise KeyboardInterrupt from None  # Ctrl-C
            if not isinstance(error, duckdb.Error):
                raise
            raise error_class(f"{failure}: {_first_sentence(error)}. {remedy}") from None


_DATABASES: dict[int, duckdb.DuckDBPyConnection] = {}
"""The database in memory of each process: opening one takes 16 ms, and a fork has no threads of that of its parent."""


def _connect(settings: dict[str, str]) -> duckdb.DuckDBPyConnection:
    """Return a connection to the shared database of the process or, with the settings `CLOSED`, to a new database."""
    import duckdb

    if settings is CLOSED:
        return duckdb.connect(config=settings)
    process = os.getpid()
    try:
        connection = _DATABASES[process].cursor()
        connection.execute("select 1")  # after an internal error a database refuses all statements
    except (KeyError, duckdb.Error):
        _DATABASES[process] = duckdb.connect(config=settings)
        connection = _DATABASES[process].cursor()
    return connection


class Interruptible(Protocol):
    """Something that runs, and can be ended from another thread."""

    def interrupt(self) -> None:
        """End what runs, which then raises an error in its own thread."""


@contextmanager
def interruptible(running: Interruptible) -> Iterator[None]:
    """Let `interrupt_thread` end what runs in this thread during a `with` block."""
    thread = threading.get_ident()
    before = _RUNNING.get(thread)
    _RUNNING[thread] = running
    try:
        yield
    finally:
        if before is None:
            del _RUNNING[thread]
        else:
            _RUNNING[thread] = before


def interrupt_thread(thread: int) -> None:
    """Interrupt the query or predicate that runs in a thread, if any: as by Ctrl-C, it raises `KeyboardInterrupt`."""
    running = _RUNNING.get(thread)
    if running is not None:
        running.interrupt()


_RUNNING: dict[int, Interruptible] = {}
"""What runs in each thread and can be interrupted."""


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: DuckDB aborts the process if its import is interrupted."""
    if not hasattr(signal, "pthread_sigmask") or "duckdb" in sys.modules:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_sentence(error: Exception) -> str:
    """Return the first line of the message of a DuckDB error, without the name of the error class."""
    first = str(error).strip().split("\n")[0]
    head, colon, rest = first.partition("Error: ")
    return (rest if colon and len(head) < 40 else first).rstrip(".!: ")


@dataclass
class OpenFile:
    """A file that is open in DuckDB.

    Attributes:
        path: the path, for errors.
        kind: its suffix without that of the compression.
        connection: the connection.
        readable: the path of the file, or of a temporary copy in UTF-8, which DuckDB reads.
        folder: a folder for copies.
        given: the encoding, the separators and the place of the table.
        layout: for delimited files, the place and the separators of the table.
        detected: for JSON files, the types of the columns.
        texts: for delimited files, the columns with cells such as 0x10 and 0b101, which DuckDB reads as whole numbers.
    """

    path: str
    kind: str
    connection: duckdb.DuckDBPyConnection
    readable: Path
    folder: Path
    given: ReadOptions
    layout: Layout
    detected: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def open(self, **more: object) -> duckdb.DuckDBPyRelation:
        """Return the file as a relation, with more options of DuckDB; for JSON, first without `dtype`."""
        file = self.readable
        if self.layout.copied:
            file = self.folder / "rows.csv"
            if not file.exists():
                with file.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as out:
                    copy_table(self.readable, self.layout, out)
        # Glob characters in a path are escaped as character classes, so that the path names one file; a path that
        # begins with "~" would be that of a home folder.
        named = os.path.abspath(file) if str(file).startswith("~") else str(file)
        literal = "".join(f"[{c}]" if c in "*?[" else c for c in named)
        if self.kind in PARQUET:
            return self.connection.read_parquet(literal)
        if self.kind in JSON:
            # Types of the first rows would round 1.5 in a column of whole numbers, and leave out later fields. Records
            # of more than 200 fields, or of rare ones, are no maps.
            if isinstance(types := more.pop("dtype", None), dict):
                return self.connection.read_json(literal, columns={**self.detected, **types})
            detection = {"sample_size": -1, "map_inference_threshold": -1, "field_appearance_threshold": 0.0}
            rows = self.connection.read_json(literal, **{**more, **detection})
            self.detected = dict(zip(rows.columns, map(str, rows.types), strict=True))
            return rows
        options: dict[str, object] = {"decimal": self.given.decimal} if self.given.decimal else {}
        options |= {"max_line_size": longest_line()} if longest_line() > 2_000_000 else {}
        more |= {"dtype": {**self.texts, **cast("dict[str, str]", more.get("dtype", {}))}} if self.texts else {}
        return self.connection.read_csv(literal, **{**self.layout.options(), **options, **more})

    def correct(self) -> bool:
        """Look for the fault of a delimited file that DuckDB cannot read, and return whether it can be read now.

        Raises:
            DataError: A row has another number of cells than the header, or the file is in another encoding.
        """
        _check_utf_8(self.kind, self.given, Path(self.path))
        found = find_fault(self.readable, self.layout, self.path) if self.kind in DELIMITED else None
        if found is None:
            return False
        self.layout = found
        (self.folder / "rows.csv").unlink(missing_ok=True)
        return True


@contextmanager
def open_file(path: str, kind: str, given: ReadOptions, required: tuple[str, ...]) -> Iterator[OpenFile]:
    """Yield a file that DuckDB can open.

    Args:
        path: an existing file.
        kind: its suffix without that of the compression.
        given: the encoding, the separators and the place of the table.
        required: the columns by which the header of a delimited file is found.
    """
    given = replace(given, delimiter="\t") if kind == ".tsv" and given.delimiter is None else given
    failure = f"{path!r} cannot be read as {kind[1:]}"
    remedy = "Check the file, or rename it with the suffix of its format."
    encoding = None if kind in PARQUET else given.encoding
    # A reader that is closed when the interpreter ends cannot import modules.
    duckdb_error = _duckdb_error()
    with (
        in_utf_8(Path(path), encoding) as file,
        tempfile.TemporaryDirectory(prefix="qkv-") as folder,
        open_connection(OFFLINE, DataError, failure, remedy) as connection,
    ):
        if kind in DELIMITED:
            check_lines(file)
        ends = read_ends(file)
        layout = read_layout(ends, given, required) if kind in DELIMITED else Layout()
        try:
            yield OpenFile(path, kind, connection, file, Path(folder), given, layout)
        except duckdb_error as error:
            _check_utf_8(kind, given, Path(path))
            if alike := _ALIKE.search(str(error)):
                names = " and ".join(map(repr, filter(None, alike.groups())))
                raise DataError(
                    f"the keys of records in {path!r} must differ in more than case, got {names}. Rename one of them."
                ) from None
            message = re.sub("^Error when sniffing.*", "its lines do not have the same cells", _first_sentence(error))
            for copy in (Path(folder) / "rows.csv", file):
                message = message.replace(f'"{copy}"', repr(path)).replace(str(copy), path)
            raise DataError(f"{failure}: {message}. {remedy}") from None


def _check_utf_8(kind: str, given: ReadOptions, path: Path) -> None:
    """Raise a `DataError` that names the encoding of a text file that is not in UTF-8, if none is given."""
    if kind in PARQUET or given.encoding is not None:
        return
    guess = guess_encoding(path)
    line = invalid_line(path) if guess == "latin-1" else 1
    if line:
        windows = " (or cp1252, if it is from Windows)" if guess == "latin-1" else ""
        # A file of queries is read in UTF-8, whatever the encoding of the table is.
        options_of_table = (
            f"Pass --encoding {guess} to qkv ask (in Python: encoding={guess!r} to Database.open), or convert"
        )
        raise DataError(
            f"{str(path)!r} must be text in UTF-8, got other bytes in line {line:,}, probably {guess}{windows}. "
            f"{'Convert' if given.as_written else options_of_table} the file with iconv."
        )


def _duckdb_error() -> type[Exception]:
    import duckdb

    error: type[Exception] = duckdb.Error
    return error


_FIRST_ROWS = 20_480


def run_typed(
    file: OpenFile, required: tuple[str, ...], options: ReadOptions, run: Callable[[duckdb.DuckDBPyRelation], _T]
) -> tuple[_T, duckdb.DuckDBPyRelation, list[str]]:
    """Open a file with types that all its cells have, and return the result of `run`, the relation and some columns.

    DuckDB detects types from the first 20,480 rows of a delimited file. If a later cell contradicts them, they are
    detected from all rows.
    The columns are those that are read as texts although DuckDB would read them as dates or numbers, see `_open_typed`.
    """
    import duckdb

    lowered = [name.strip().lower() for name in file.layout.header]
    repeated = [name for name in required if lowered.count(name.lower()) > 1]
    if repeated:
        # DuckDB would read the first of them, and give the others names of its own.
        raise DataError(
            f"column names must be unique in {file.path!r}, got {repeated[0]!r} more than once. Rename the repeated "
            "columns."
        )
    contradictions = (duckdb.ConversionException, duckdb.InvalidInputException)
    with contextlib.suppress(*contradictions):
        rows, dates = _open_typed(file, required, options, {})
        return run(rows), rows, dates
    try:
        rows, dates = _open_typed(file, required, options, {"sample_size": -1})
        return run(rows), rows, dates
    except contradictions:
        if not file.correct():
            raise
    rows, dates = _open_typed(file, required, options, {"sample_size": -1})
    return run(rows), rows, dates


def _open_typed(
    file: OpenFile, required: tuple[str, ...], options: ReadOptions, dialect: dict[str, object]
) -> tuple[duckdb.DuckDBPyRelation, list[str]]:
    """Open a file, and read columns as texts whose dates or numbers this package reads, which are returned."""
    rows = file.open(**dialect)
    types = dict(zip(rows.columns, map(str, rows.types), strict=True))
    delimited, integers = file.kind in DELIMITED, [name for name, type_ in types.items() if type_ == "BIGINT"]
    later = delimited and not dialect and len(rows.limit(_FIRST_ROWS + 1).project("1").to_arrow_table()) > _FIRST_ROWS
    # Whole numbers of a long file are compared with their texts below.
    if delimited and integers and not later and any(map(_PREFIX.search, unpacked_blocks(file.readable))):
        tests = ", ".join(f"bool_or(regexp_matches({quoted_name(name)}, '0[xXbB]'))" for name in integers)
        (found,) = file.open(**dialect, dtype=dict.fromkeys(integers, "VARCHAR")).aggregate(tests).fetchall()
        file.texts |= {name: "VARCHAR" for name, some in zip(integers, found, strict=True) if some}
        rows, types = file.open(**dialect), types | file.texts
    numbers = inexact_columns(types, required, delimited) if not options.as_written else []
    as_texts = [name for name, form in options.assumed if form == "text" and types.get(name, "VARCHAR") != "VARCHAR"]
    numbers += [name for name in as_texts if name not in numbers]
    if delimited and not options.as_written:
        numbers += _perhaps_thousands(
            rows, [n for n, type_ in types.items() if type_ == "DOUBLE" and n not in numbers], file
        )
    if numbers and delimited:
        # Raises an error if the first rows contradict the types, from which `run_typed` learns the dialect.
        rows.limit(_FIRST_ROWS).to_arrow_table()
    if not delimited:
        return (file.open(**dialect, dtype=dict.fromkeys(numbers, "VARCHAR")) if numbers else rows), numbers
    tested = [name for name, type_ in types.items() if type_ in ("DATE", "BOOLEAN") or type_.startswith("TIMESTAMP")]
    tested = [name for name in tested if name not in as_texts]
    form = options.date_format
    whole = [name for name in dict.fromkeys(required) if types.get(name) == "BIGINT"]
    stated = dict(options.assumed)
    compact = whole if form else _compact_dates(rows, [name for name in whole if stated.get(name) != "number"])
    tested += compact
    # A cast rounds 1.5 to a whole number.
    exact = [name for name, type_ in types.items() if type_ == "BIGINT" and later and name not in (*compact, *numbers)]
    if not tested and not exact:
        return (file.open(**dialect, dtype=dict.fromkeys(numbers, "VARCHAR")) if numbers else rows), numbers
    # Opening a file takes 0.1 s, as DuckDB detects its dialect again.
    texts = file.open(**dialect, dtype=dict.fromkeys([*tested, *exact, *numbers], "VARCHAR"))
    dates, casts = [], {name: _strict_cast(quoted_name(name), "BIGINT", ()) for name in exact}
    for name in tested:
        every = texts.select(quoted_name(name)).distinct() if dialect and types[name] == "BOOLEAN" else texts
        written = first_texts(every, name)
        if types[name] == "BOOLEAN":
            read = name in required or not has_one_spelling(written)
        elif types[name] == "BIGINT":
            read = form is None or sum(map(partial(has_format, form=form), written)) > len(written) / 2
        else:
            # DuckDB ignores what follows a time, such as AM and PM, and converts times with and without time zones in
            # one column without a word.
            read = types[name] != "DATE" and (name in required or types[name] != "TIMESTAMP") and not options.as_written
            read = read or not all(map(ISO.fullmatch, written)) or not _all_iso(texts, name, types[name], dialect)
        if read:
            dates.append(name)
        elif types[name] == "BIGINT":
            casts[name] = f"nullif({quoted_name(name)}, '')::BIGINT"
        else:
            casts[name] = _strict_cast(quoted_name(name), types[name], written)
    replaced = ", ".join(f"{cast} as {quoted_name(name)}" for name, cast in casts.items())
    return texts.project(f"* replace ({replaced})") if casts else texts, dates + numbers


def _perhaps_thousands(rows: duckdb.DuckDBPyRelation, names: Sequence[str], file: OpenFile) -> list[str]:
    """Return the columns whose first numbers may have points as separators of thousands, such as 1.203 beside ";"."""
    if not names or file.given.decimal or file.layout.delimiter in ("", ","):
        return []
    tests = ", ".join(
        f"bool_and(abs({x}) < 1000 and round({x} * 1000) = {x} * 1000) and bool_or(round({x} * 1000) % 10 <> 0)"
        for x in map(quoted_name, names)
    )
    (found,) = rows.limit(_FIRST_ROWS).aggregate(tests).fetchall()
    return [name for name, may in zip(names, found, strict=True) if may]


def _strict_cast(cell: str, type_: str, written: Sequence[str]) -> str:
    """Return the SQL expression of a cell as a type, which raises an error for a cell that a cast would change.

    Args:
        cell: the SQL expression of the cell.
        type_: the type.
        written: the first cells of the column; booleans must have their spelling.
    """
    if type_ in ("DATE", "TIMESTAMP"):
        exact = iso_sql(cell, type_.lower())
    elif type_ == "BOOLEAN":
        spelling = next(f for f in (str.lower, str.upper, str.title) if f(written[0]) == written[0])
        exact = f"case trim({cell}) when '{spelling('true')}' then true when '{spelling('false')}' then false end"
    elif type_ == "BIGINT":
        exact = f"case when {cell}::BIGINT::VARCHAR = {cell} then {cell}::BIGINT end"
    else:
        return f"nullif({cell}, '')::{type_}"
    return f"coalesce({exact}, case when trim({cell}) <> '' then ('?' || {cell})::{type_} end)"


def _all_iso(texts: duckdb.DuckDBPyRelation, name: str, type_: str, dialect: Mapping[str, object]) -> bool:
    """Return whether all cells of a column are in ISO 8601; True unless types are detected from all rows."""
    if "sample_size" not in dialect:
        return True
    cell = quoted_name(name)
    ((some,),) = texts.aggregate(
        f"count(*) filter (trim({cell}) <> '' and {iso_sql(cell, type_.lower())} is null)"
    ).fetchall()
    return not some


def _compact_dates(rows: duckdb.DuckDBPyRelation, names: Sequence[str]) -> list[str]:
    """Return the columns of whole numbers whose first cells are all dates such as 20240131."""
    names = [name for name in names if not has_identifier_name(name)]
    if not names:
        return []
    first = rows.limit(_FIRST_ROWS)
    ends = ", ".join(f"min({quoted_name(name)}), max({quoted_name(name)})" for name in names)
    (found,) = first.aggregate(ends).fetchall()
    ranges = zip(names, found[::2], found[1::2], strict=True)
    bounded = [name for name, least, most in ranges if least is not None and 19000101 <= least <= most < 21000101]
    return [name for name in bounded if all(map(is_compact_date, first_texts(rows, name)))]
