"""The page of `qkv ask --page`, on which a query is moved over the rows of a table, and its export to a file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import OptionError, QueryError

if TYPE_CHECKING:
    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable
    from qkv.look.answers.answer_settings import AnswerSettings
    from qkv.look.answers.table_source import TableSource

__all__ = ["check_page_options", "describe_table", "open_page"]


def check_page_options(page: bool, export: str | None, port: int, unused: Mapping[str, object]) -> None:
    """Check the options of the page before the table is read.

    Args:
        page: whether the page is served.
        export: the file to which it is written; None: none.
        port: the port.
        unused: values of the options that the page has no use for; None where they are not given.

    Raises:
        OptionError: both ways of showing the page are chosen, the port is not allowed, or an unused option is given.
        DataError: the file cannot be written.
    """
    if page and export is not None:
        raise OptionError("--page must not be given with --export, which writes the page to a file. Omit one of them.")
    for name, value in unused.items():
        if value is not None:
            raise OptionError(f"{name} must not be given with {'--page' if page else '--export'}. Omit one of them.")
    if not 0 <= port < 65536:
        raise OptionError(f"--port must be between 0 and 65535, got {port}. Pass 0 to use any free port.")
    if export is not None:
        from qkv.core.files import check_writable
        from qkv.look.html_export import HTML_SUFFIXES

        check_writable(Path(export), "the page", HTML_SUFFIXES)


def describe_table(
    files: Sequence[str],
    sql: str | None,
    key: str,
    value: str,
    version: int | None,
    memory: str,
    reading: Mapping[str, Any],
) -> TableSource:
    """Return the command and the Python statements that open the table of the page.

    Args:
        files: the table, the parts of the table, or the store; empty for a SQL query.
        sql: the SQL query.
        key: the key columns; empty for those of a store.
        value: the value column; empty for that of a store.
        version: the version of a store.
        memory: the memory limit of a store.
        reading: the options of text files by name; None where they are not given.
    """
    from qkv.look.answers.table_source import TableSource

    if list(files) == ["-"]:
        return TableSource()
    columns: dict[str, Any] = {"key": key, "value": value} if key else {}
    options = columns | {name: text for name, text in reading.items() if text is not None}
    if memory != "512 MiB":
        options["memory"] = memory
    pairs = [(name, str(text)) for name, text in options.items() if name != "cyclic"]
    pairs += [("cyclic", f"{name}={period:g}") for name, period in options.get("cyclic", {}).items()]
    words = [part for name, text in pairs for part in (f"--{name.replace('_', '-')}", text)]
    words += [] if version is None else ["--version", str(version)]
    named = "".join(f", {name}={text!r}" for name, text in options.items())
    if sql is not None:
        return TableSource(("qkv", "ask", "--sql", sql, *words), _opened(f"Database.sql({sql!r}{named})"))
    source = files[0] if len(files) == 1 else list(files)
    call = f"Database.open({source!r}{named})" + ("" if version is None else f".at({version})")
    return TableSource(("qkv", "ask", *files, *words), _opened(call))


def _opened(call: str) -> str:
    return f"from qkv import Database\ndatabase = {call}"


def open_page(
    database: Queryable,
    source: TableSource,
    queries: Sequence[str],
    settings: AnswerSettings,
    export: str | None,
    port: int,
    browser: bool,
) -> None:
    """Serve the page of answers until the process is interrupted, or write it to a file.

    Raises:
        QueryError: there are several queries, or the query does not fit the key.
        DataError: the table is too large to be written to a file, or the file cannot be written.
    """
    if len(queries) > 1:
        raise QueryError(
            f"--{'page' if export is None else 'export'} must be used with at most one query, got {len(queries)}. "
            "Name the first query of the page, or none."
        )
    from qkv.core.progress import ProgressBar
    from qkv.look.answers.answer_page import AnswerPage

    with ProgressBar() as progress:
        progress("choosing the bandwidth", 0, 1)
        page = AnswerPage(
            database,
            source,
            query=queries[0] if queries else None,
            settings=settings,
            printed=lambda answer, rows: printed_text(database, answer, rows),
        )
        if export is not None:
            from qkv.look.answers.saved_answers import export_answers

            target = export_answers(page, export, progress)
    if export is not None:
        print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")
        return
    from qkv.look.answers.answer_server import serve_answers

    serve_answers(page, port=port, browser=browser)


def printed_text(database: Queryable, answer: Answer, rows: int) -> str:
    """Return what `qkv ask` prints for an answer to a pipe, with the slope of a line (`--gradient`)."""
    from qkv.cli.text_output import TableWriter

    text = io.StringIO()
    writer = TableWriter(database, rows, False, gradient=True, file=text)
    writer.write(answer)
    writer.finish()
    return text.getvalue()
