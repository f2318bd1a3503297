"""The command `qkv ask`, which queries a table by similarity and shows the evidence for each answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared_options import (
    ON_BAD_CELL,
    Cyclic,
    DateFormat,
    Decimal,
    Delimiter,
    Encoding,
    HeaderRow,
    KeyColumns,
    NormalizerName,
    OnBadCell,
    QuoteFormulas,
    ScoreName,
    SkipFooter,
    Threshold,
    ValueColumn,
    parse_periods,
)
from qkv.core.checks import check_choice
from qkv.errors import DataError, OptionError, QueryError

if TYPE_CHECKING:
    from qkv.cli.answer_writer import AnswerWriter
    from qkv.cli.query_input import QueryLine
    from qkv.database.execute.ask_options import AskOptions
    from qkv.database.protocol import Queryable

__all__ = ["ask"]

_FORMATS = ("table", "json", "csv")


def ask(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Table or store to query.", show_default=False)
    ] = None,
    query: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY", help="One or more queries.", show_default=False)
    ] = None,
    key: KeyColumns = "",
    value: ValueColumn = "",
    sql: Annotated[
        str | None, typer.Option(metavar="SELECT", help="Query the result of this SQL instead of FILE.")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read queries from a file, one per line; - reads standard input."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the answers to a .parquet, .arrow, .csv or .jsonl file."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="KEY=COLUMN[,…]", help="Columns of a table of queries; default: the key columns."),
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="Column that names the rows of evidence in --output.")
    ] = None,
    score: ScoreName = None,
    normalizer: NormalizerName = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="mean|vote|local-linear",
            help="Weighted mean, vote of the values, or a line through the rows near the query.",
        ),
    ] = None,
    gradient: Annotated[
        bool, typer.Option("--gradient", help="Show the slope of the line along each key; needs --fit local-linear.")
    ] = False,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Use only rows that satisfy this SQL predicate.")
    ] = None,
    threshold: Threshold = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Rows of evidence to show; default: 10 for one query, 3 for several."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="table|json|csv", help="Output format: json prints one object per line, csv a header."
        ),
    ] = "table",
    quote_formulas: QuoteFormulas = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print the execution plan.")] = False,
    plot: Annotated[
        str | None,
        typer.Option(metavar="FILE.png", help="Plot the data, the weights and the answer (.png, .svg, .pdf)."),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Open a page on which the query is moved and the answer follows.")
    ] = False,
    export: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write the page to one self-contained file.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", help="Port of --page (0 = any free port).")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Print the address of --page without opening a browser.")
    ] = False,
    version: Annotated[int | None, typer.Option(metavar="N", help="Query an older version of a store.")] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory limit; a larger store is read block by block.")
    ] = "512 MiB",
    seed: Annotated[int | None, typer.Option(metavar="NUMBER", help="Seed of random normalizers.")] = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    date_format: DateFormat = None,
    header_row: HeaderRow = None,
    skip_footer: SkipFooter = None,
    cyclic: Cyclic = None,
    on_bad_cell: OnBadCell = "exclude",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Do not save or reuse the bandwidth and distances chosen for FILE.")
    ] = False,
) -> None:
    """Query a table. An answer is the mean of the values, or a vote, weighted by the similarity of keys and query.

    FILE is a .csv, .tsv, .txt, .jsonl, .json, .parquet, .arrow or .feather file, optionally compressed (.gz, .zst),
    a pattern ('parts/*.csv') or a folder of such files, several files, - for a table from standard input, or a
    store created by `qkv store create`, which defines the key and value columns. A QUERY is a value of the key
    column; for several key columns, separate the values by commas. Without QUERY, queries are read from --queries
    or from standard input, one per line, and answered as they arrive. One of several queries that cannot be read is
    answered by the reason, with the number of its line. With --output, --queries may be a table whose columns hold
    the key; its rows are written with their answers, whole or not at all.

    \b
    Examples:
      qkv ask people.csv --key name --value income "Jon Smiht"
      qkv ask gpa.csv --key gpa --value starting_salary 3.5 --explain
      qkv ask students.csv --key major --value name psychology
      qkv ask members.csv --key member --value joined 1200 1201 --format json
      qkv ask members.csv --key member,city --value active "1200,Oslo" --top 3
      qkv ask people.csv --key name --value income "Mario" --where "city = 'Lisbon'"
      qkv ask authors.csv --key last_name --value first_name Li --score exact
      qkv ask gpa.csv --key gpa --value starting_salary 3.5 --score gaussian:0.1
      qkv ask gpa.csv --key gpa --value starting_salary 3.9 --fit local-linear --gradient
      qkv ask --sql "select * from 'people.csv'" --key city --value income Oslo
      qkv ask people.csv --key name --value income --queries guests.csv --on name=guest --output /tmp/guests.parquet
      qkv ask gpa.csv --key gpa --value starting_salary --page
      printf '3.1\\n3.9\\n' | qkv ask gpa.csv --key gpa --value starting_salary --format csv

    Text keys are compared by words and spelling, numbers by a Gaussian kernel whose bandwidth is chosen by
    leave-one-out cross-validation. A query unlike every key is answered by "no match". For keys of numbers or dates,
    --fit local-linear fits a line to the rows near the query: without bias at the edges of the keys and on slopes.

    Scores: names, spelling, jaro-winkler, levenshtein, token-set-ratio, exact, gaussian[:bandwidth], laplace, boxcar,
    epanechnikov, triangular, constant, cosine, dot.

    Normalizers: softmax[:temperature], topk:K, sum, mean, hard, sparsemax, entmax15, sigmoid, identity, sample.
    """
    check_choice("--on-bad-cell", on_bad_cell, ON_BAD_CELL)
    arguments = _check_arguments([*([] if file is None else [file]), *(query or [])], format_)
    if output is not None:
        from qkv.cli.answer_file import check_output

        check_output(output, format_, plot)
    elif on is not None or id_ is not None:
        raise OptionError(
            f"--{'id' if on is None else 'on'} must be used with --output FILE. Add --output, or omit it."
        )
    from qkv.database.io.paths import is_stored

    stored = sql is None and bool(arguments) and is_stored(arguments[0])
    if sql is None and not arguments:
        raise DataError("FILE must be given. Name a table or a store, or pass --sql. Examples are in qkv ask --help.")
    if not stored and (not key or not value):
        raise OptionError(
            f"--{'value' if key else 'key'} must be given unless FILE is a store. "
            "Name the column, for example --key name --value income."
        )
    if fit is not None:
        check_choice("--fit", fit, ("mean", "vote", "local-linear"))
    if gradient and (fit != "local-linear" or output is not None or format_ == "csv"):
        raise OptionError(
            "--gradient must be used with --fit local-linear and --format table or json. Add or omit one of them."
        )
    paged = page or export is not None
    if paged:
        from qkv.cli.ask_page import check_page_options

        unused = {
            "--output": output,
            "--plot": plot,
            "--queries": queries,
            "--seed": seed,
            "--explain": explain or None,
        }
        unused |= {"--gradient": gradient or None, "--format": None if format_ == "table" else format_}
        check_page_options(page, export, port, unused)
    if quote_formulas and format_ != "csv" and not (output or "").lower().endswith(".csv"):
        given = f"--format {format_}" if output is None else f"--output {output}"
        raise OptionError(f"--quote-formulas must be used with --format csv, got {given}. Omit one of them.")
    if version is not None and not stored:
        raise OptionError("--version must be used with a store, got a table. Omit --version, or name a store.")
    if on_bad_cell != "exclude" and (stored or sql is not None):
        raise OptionError(
            f"--on-bad-cell must be used with a file of rows, got {'a store' if stored else '--sql'}. "
            f"{'Pass it to qkv store create and append.' if stored else 'Convert the cells with try_cast in the SQL.'}"
        )
    reading: dict[str, Any] = {"encoding": encoding, "delimiter": delimiter, "decimal": decimal}
    reading |= {"date_format": date_format, "header_row": header_row, "skip_footer": skip_footer}
    refused = [f"--{name.replace('_', '-')}" for name, option in reading.items() if option is not None]
    if refused and (stored or sql is not None):
        kind, place = ("a store", "qkv store create and append") if stored else ("--sql", "read_csv in the SQL")
        raise OptionError(f"{refused[0]} must be used with a table, got {kind}. Pass it to {place}.")

    if cyclic and stored:
        raise OptionError("--cyclic must be used with a table, got a store. Pass it to qkv store create.")
    periods = parse_periods(cyclic)
    reading["cyclic"] = periods

    from qkv.cli.json_csv import CsvWriter, JsonWriter
    from qkv.cli.query_input import number_lines, read_queries
    from qkv.cli.text_output import TableWriter
    from qkv.core.progress import ProgressBar
    from qkv.database.database import Database
    from qkv.plan.cost import memory_bytes

    memory_bytes(memory)  # refused before anything is read, also for a table, which does not use it
    database: Queryable
    files: list[str] = []
    if sql is not None:
        database = Database.sql(sql, key=key, value=value, cyclic=periods)
    else:
        files, arguments = (arguments[:1], arguments[1:]) if stored else _split_files(arguments)
        if stored:
            database = _open_store(files[0], key, value, version, memory, not no_cache)
        else:
            if files == ["-"] and not arguments and queries in (None, "-") and not paged:
                raise QueryError("QUERY must be given if standard input is the table. Write a query after -.")
            source = sys.stdin if files == ["-"] else files[0] if len(files) == 1 else files
            database = Database.open(
                source,
                key,
                value,
                on_bad_cell=on_bad_cell,
                cache=not no_cache,
                **reading,
            )
    if paged:
        from qkv.cli.ask_page import describe_table, open_page
        from qkv.look.answers.answer_settings import AnswerSettings

        settings = AnswerSettings.from_options(
            score=score, normalizer=normalizer, fit=fit, where=where, threshold=threshold, top=top
        )
        reading["on_bad_cell"] = None if on_bad_cell == "exclude" else on_bad_cell
        table = describe_table(files, sql, key, value, version, memory, reading)
        open_page(database, table, arguments, settings, export, port, not no_browser)
        return
    if output is not None:
        from qkv.cli.answer_file import check_distinct
        from qkv.database.execute.ask_options import AskOptions

        tables = [] if stored else [name for name in files if name != "-"]
        check_distinct(output, [*tables, *([] if queries is None or queries == "-" else [queries])])
        options = AskOptions(score, normalizer, None, where, top or 3, threshold, seed, fit=fit)
        _write_relation(database, arguments, queries, output, options, on, id_, explain, quote_formulas)
        return
    chunks, single = read_queries(arguments, queries, database.key), len(arguments) == 1
    if plot is not None:
        chunks = _check_single(chunks)
    default_rows = 10 if len(arguments) == 1 or plot is not None else 3 if arguments else 0
    rows = default_rows if top is None else top
    writers: dict[str, type[AnswerWriter]] = {"table": TableWriter, "json": JsonWriter, "csv": CsvWriter}
    writer = writers[format_](database, rows, explain, quote_formulas, gradient)
    with ProgressBar() as progress:
        for lines in chunks:
            ask_texts = partial(
                database.ask,
                score=score,
                normalizer=normalizer,
                where=where,
                threshold=threshold,
                top=rows if rows or top is not None else 1,
                seed=seed,
                progress=progress,
                on_bad_query="refuse" if single or plot is not None else "report",
                fit=fit,
                printed=True,
            )
            answer = number_lines(ask_texts([line.text if line.decoded else None for line in lines]), lines)
            if plot is not None:
                from qkv.look.query_plot import save_query_plot

                # The plot is saved before anything is printed, so that a closed pipe cannot prevent it.
                chosen = {"score": score, "normalizer": normalizer, "where": where, "fit": fit}
                save_query_plot(database, answer[0], plot, **chosen, threshold=threshold, seed=seed)
            progress.clear()
            writer.write(answer)
            sys.stdout.flush()
    writer.finish()
    if writer.invalid:
        count = f"{writer.invalid:,} quer{'y' if writer.invalid == 1 else 'ies'}"
        print(f"qkv: {count} could not be read; the reasons are in the answers.", file=sys.stderr)


def _write_relation(
    database: Queryable,
    arguments: list[str],
    queries: str | None,
    output: str,
    options: AskOptions,
    on: str | None,
    id_: str | None,
    explain: bool,
    quote_formulas: bool,
) -> None:
    """Write the answers to all queries to a file, and print how many there are."""
    from qkv.cli.answer_file import line_relation, write_answers
    from qkv.cli.query_input import is_query_table, read_queries
    from qkv.core.printable import printable
    from qkv.core.progress import ProgressBar
    from qkv.database.relations.answer_relation import AnswerRelation
    from qkv.database.relations.query_relation import open_relation

    if queries is not None and not arguments and is_query_table(queries):
        relation = open_relation(queries, database.key, on)
    elif on is not None:
        raise OptionError("--on must be used with a table of queries, got lines of text. Omit --on.")
    else:
        relation = line_relation(read_queries(arguments, queries, database.key), queries or "standard input")
        options = replace(options, printed=True)
    with ProgressBar() as progress:
        answers = AnswerRelation(database, relation, replace(options, progress=progress), id_)
        write_answers(answers, Path(output), quote_formulas)
    unread = f", {answers.invalid:,} could not be read" if answers.invalid else ""
    plural = "" if answers.answered == 1 else "s"
    print(f"{output}: {answers.answered:,} answer{plural}, {answers.found:,} with a match{unread}")
    for note in answers.notes:
        print(f"· {printable(note)}")
    if explain:
        print(f"\n{answers.plan}")


def _open_store(path: str, key: str, value: str, version: int | None, memory: str, cache: bool) -> Queryable:
    from qkv.database.storage.create import open_database

    opened = open_database(path, key or None, value or None, fold=None, memory=memory, damaged="refuse", cache=cache)
    return opened if version is None else opened.at(version)


def _check_arguments(arguments: list[str], format_: str) -> list[str]:
    """Return `arguments`, after checking that no argument is an option and that `format_` is an output format."""
    for argument in arguments:
        # A dash before a digit starts a negative number; before a letter, an unknown option.
        if argument.startswith("--") or (argument[:1] == "-" and argument[1:2].isalpha()):
            raise OptionError(
                f"options must be listed in qkv ask --help, got {argument.split('=')[0]}. "
                "To ask a query that starts with a dash, write it to a file and pass --queries FILE."
            )
    check_choice("--format", format_, _FORMATS)
    return arguments


def _split_files(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the tables and the queries. Tables after the first one come from a pattern that the shell has expanded.

    A query may have the name of a folder, so that a folder is a table only if it is named with a separator.
    """
    from qkv.database.io.sources import is_table_name

    count = 1
    if Path(arguments[0]).exists():
        while count < len(arguments):
            name, path = arguments[count], Path(arguments[count])
            if not (is_table_name(name) and path.is_file()) and not (os.sep in name and path.is_dir()):
                break
            count += 1
    return arguments[:count], arguments[count:]


def _check_single(chunks: Iterator[list[QueryLine]]) -> Iterator[list[QueryLine]]:
    """Yield the only chunk of queries, after checking that it contains exactly one query."""
    first = next(chunks, [])
    if len(first) != 1 or next(chunks, []):
        raise QueryError(
            "--plot must be used with exactly one query, got no query or several. Ask one query, or omit --plot."
        )
    yield first
