"""The command `qkv ask`, which queries a table by similarity and shows the evidence for each answer.

With `--page` and `--export` the query is moved over the rows on a page, and with `--output` the answers become a file.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from qkv.cli.shared_options import (
    PORT_RULE,
    KeyColumns,
    MaxDistance,
    MinSimilarity,
    NormalizerName,
    QuoteFormulas,
    Rule,
    ScoreName,
    TableOptions,
    ValueColumn,
    argument,
    check_rules,
    exclusion_rules,
    flag,
    option,
)
from qkv.core.checks import check_choice
from qkv.core.progress import ProgressBar
from qkv.errors import DataError, OptionError, QueryError

if TYPE_CHECKING:
    from qkv.cli.answer_writers import AnswerWriter
    from qkv.cli.query_input import QueryLine
    from qkv.database.answer import Answer
    from qkv.database.protocol import Queryable


@dataclass(frozen=True, kw_only=True)
class AskCommand:
    """The arguments and options of `qkv ask`."""

    file: Annotated[str | None, argument("FILE", "Table or store to query.")] = None
    query: Annotated[list[str] | None, argument("QUERY", "One or more queries.")] = None
    key: KeyColumns = ""
    value: ValueColumn = ""
    sql: Annotated[str | None, option("SELECT", "Query the result of this SQL instead of FILE.")] = None
    queries: Annotated[
        str | None, option("FILE", "Read queries from a file, one per line; - reads standard input.")
    ] = None
    output: Annotated[str | None, option("FILE", "Write the answers to a .parquet, .arrow, .csv or .jsonl file.")] = (
        None
    )
    on: Annotated[
        str | None, option("KEY=COLUMN[,…]", "Columns of a table of queries; default: the key columns.", "--on")
    ] = None
    id_: Annotated[str | None, option("COLUMN", "Column that names the rows of evidence in --output.", "--id")] = None
    score: ScoreName = None
    normalizer: NormalizerName = None
    aggregate: Annotated[
        str | None,
        option(
            "mean|vote|local-linear", "Weighted mean, vote of the values, or a line through the rows near the query."
        ),
    ] = None
    gradient: Annotated[
        bool, flag("--gradient", "Show the slope of the line along each key; needs --aggregate local-linear.")
    ] = False
    where: Annotated[str | None, option("SQL", "Use only rows that satisfy this SQL predicate.")] = None
    min_similarity: MinSimilarity = None
    max_distance: MaxDistance = None
    tolerance: Annotated[float, option("SHARE", "Weight of a softmax that may be left out to save time.")] = 0.0
    top: Annotated[
        int | None, option("N", "Rows of evidence to show; default: 10 for one query, 3 for several.", min=1)
    ] = None
    format_: Annotated[
        str, option("table|json|csv", "Output format: json prints one object per line, csv a header.", "--format")
    ] = "table"
    quote_formulas: QuoteFormulas = False
    explain: Annotated[bool, flag("--explain", "Print the execution plan.")] = False
    plot: Annotated[str | None, option("FILE.png", "Plot the data, the weights and the answer (.png, .svg, .pdf).")] = (
        None
    )
    page: Annotated[bool, flag("--page", "Open a page on which the query is moved and the answer follows.")] = False
    export: Annotated[str | None, option("FILE.html", "Write the page to one self-contained file.")] = None
    port: Annotated[int, option("N", "Port of --page (0 = any free port).")] = 0
    no_browser: Annotated[bool, flag("--no-browser", "Print the address of --page without opening a browser.")] = False
    version: Annotated[int | None, option("N", "Query an older version of a store.")] = None
    memory: Annotated[str, option("SIZE", "Memory limit; a larger store is read block by block.")] = "512 MiB"
    seed: Annotated[int | None, option("NUMBER", "Seed of random normalizers.")] = None
    reading: TableOptions
    no_cache: Annotated[
        bool, flag("--no-cache", "Do not save or reuse the bandwidth and distances chosen for FILE.")
    ] = False

    @cached_property
    def arguments(self) -> list[str]:
        """The tables and the queries."""
        return [*([] if self.file is None else [self.file]), *(self.query or [])]

    @cached_property
    def stored(self) -> bool:
        """Whether FILE is a store."""
        from qkv.database.io.paths import is_stored

        return self.sql is None and bool(self.arguments) and is_stored(self.arguments[0])

    @property
    def unread(self) -> str:
        """The first option for the cells of a file that FILE, a store or a SQL query, does not have; "" for none."""
        given = self.reading.given()
        allowed = () if self.stored else ("cyclic",) if self.sql is not None else given
        return next((name.replace("_", "-") for name in given if name not in allowed), "")

    @property
    def paged(self) -> str:
        """The option by which a page is written; "" if there is none."""
        return "--page" if self.page else "--export" if self.export is not None else ""

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of `Database.ask` that answers, plots and pages share."""
        return {
            "score": self.score,
            "normalizer": self.normalizer,
            "where": self.where,
            "min_similarity": self.min_similarity,
            "max_distance": self.max_distance,
            "aggregate": self.aggregate,
        }

    @property
    def unknown(self) -> str:
        """The first argument that is an unknown option: a dash before a digit starts a negative number."""
        unknown = (
            each for each in self.arguments if each.startswith("--") or (each[:1] == "-" and each[1:2].isalpha())
        )
        return next(unknown, "").split("=")[0]


_RULES = (
    Rule(
        lambda ask: ask.unknown,
        lambda ask: (
            f"options must be listed in qkv ask --help, got {ask.unknown}. "
            "To ask a query that starts with a dash, write it to a file and pass --queries FILE."
        ),
    ),
    Rule(
        lambda ask: ask.output is not None and ask.format_ != "table",
        "--format must not be given with --output, whose suffix is the format. Omit --format.",
    ),
    Rule(
        lambda ask: ask.output is not None and ask.plot is not None,
        "--plot must not be given with --output. Run the command once for each of them.",
    ),
    Rule(
        lambda ask: ask.output is None and (ask.on is not None or ask.id_ is not None),
        lambda ask: f"--{'id' if ask.on is None else 'on'} must be used with --output FILE. Add --output, or omit it.",
    ),
    Rule(
        lambda ask: ask.sql is None and not ask.arguments,
        "FILE must be given. Name a table or a store, or pass --sql. Examples are in qkv ask --help.",
        DataError,
    ),
    Rule(
        lambda ask: not ask.stored and not (ask.key and ask.value),
        lambda ask: (
            f"--{'value' if ask.key else 'key'} must be given unless FILE is a store. "
            "Name the column, for example --key name --value income."
        ),
    ),
    Rule(
        lambda ask: (
            ask.gradient and (ask.aggregate != "local-linear" or ask.output is not None or ask.format_ == "csv")
        ),
        "--gradient must be used with --aggregate local-linear and --format table or json. Add or omit one of them.",
    ),
    Rule(
        lambda ask: ask.page and ask.export is not None,
        "--page must not be given with --export, which writes the page to a file. Omit one of them.",
    ),
    *exclusion_rules(lambda ask: ask.paged, "--output", "--plot", "--queries", "--seed", "--explain", "--gradient"),
    Rule(
        lambda ask: ask.paged and ask.format_ != "table",
        lambda ask: f"--format must not be given with {ask.paged}. Omit one of them.",
    ),
    PORT_RULE,
    Rule(
        lambda ask: ask.quote_formulas and ask.format_ != "csv" and not (ask.output or "").lower().endswith(".csv"),
        lambda ask: (
            "--quote-formulas must be used with --format csv, got "
            f"{f'--format {ask.format_}' if ask.output is None else f'--output {ask.output}'}. Omit one of them."
        ),
    ),
    Rule(
        lambda ask: ask.version is not None and not ask.stored,
        "--version must be used with a store, got a table. Omit --version, or name a store.",
    ),
    Rule(
        lambda ask: ask.reading.on_bad_cell != "exclude" and (ask.stored or ask.sql is not None),
        lambda ask: (
            "--on-bad-cell must be used with a file of rows, got "
            + ("a store. Pass it to qkv store create and append." if ask.stored else "")
            + ("" if ask.stored else "--sql. Convert the cells with try_cast in the SQL.")
        ),
    ),
    Rule(
        lambda ask: ask.unread,
        lambda ask: (
            f"--{ask.unread} must be used with a table, got "
            + ("a store. Pass it to qkv store create" if ask.stored else "")
            + ("" if not ask.stored else "." if ask.unread == "cyclic" else " and append.")
            + ("" if ask.stored else "--sql. Pass it to read_csv in the SQL.")
        ),
    ),
)


def ask(options: AskCommand) -> None:
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
      qkv ask gpa.csv --key gpa --value starting_salary 3.9 --aggregate local-linear --gradient
      qkv ask --sql "select * from 'people.csv'" --key city --value income Oslo
      qkv ask people.csv --key name --value income --queries guests.csv --on name=guest --output /tmp/guests.parquet
      qkv ask gpa.csv --key gpa --value starting_salary --page
      printf '3.1\\n3.9\\n' | qkv ask gpa.csv --key gpa --value starting_salary --format csv

    Text keys are compared by words and spelling, numbers by a Gaussian kernel whose bandwidth is chosen by
    leave-one-out cross-validation. A query unlike every key is answered by "no match". For keys of numbers or dates,
    --aggregate local-linear fits a line to the rows near the query: no bias at the edges of the keys and on slopes.

    Scores: names, spelling, jaro-winkler, levenshtein, token-set-ratio, exact, gaussian[:bandwidth], laplace, boxcar,
    epanechnikov, triangular, constant, cosine, dot.

    Normalizers: softmax[:temperature], topk:K, sum, mean, hard, sparsemax, entmax15, sigmoid, identity, sample.
    """
    from qkv.core.formatting import memory_bytes

    reading = options.reading.arguments()
    check_choice("--format", options.format_, ("table", "json", "csv"))
    if options.aggregate is not None:
        check_choice("--aggregate", options.aggregate, ("mean", "vote", "local-linear"))
    check_rules(options, _RULES)
    _check_files(options)
    memory_bytes(options.memory)  # refused before anything is read, also for a table, which does not use it
    files, queries = _split_arguments(options)
    database = _open(options, files, queries, reading)
    if options.paged:
        _open_page(options, database, files, queries)
    elif options.output is not None:
        _write_answers(options, database, files, queries, Path(options.output))
    else:
        _print_answers(options, database, queries)


def _check_files(options: AskCommand) -> None:
    """Check, before the table is read, that the files of the answers can be written."""
    from qkv.core.files import check_writable

    if options.output is not None:
        from qkv.cli.output_file import SUFFIXES

        check_writable(Path(options.output), "the answers", SUFFIXES)
    if options.export is not None:
        from qkv.look.html_export import HTML_SUFFIXES

        check_writable(Path(options.export), "the page", HTML_SUFFIXES)


def _split_arguments(options: AskCommand) -> tuple[list[str], list[str]]:
    """Return the tables and the queries. Tables after the first one come from a pattern that the shell has expanded.

    A query may have the name of a folder, so that a folder is a table only if it is named with a separator.
    """
    from qkv.database.io.sources import is_table_name

    arguments, count = options.arguments, 0 if options.sql is not None else 1
    if count and not options.stored and Path(arguments[0]).exists():
        while count < len(arguments):
            name, path = arguments[count], Path(arguments[count])
            if not (is_table_name(name) and path.is_file()) and not (os.sep in name and path.is_dir()):
                break
            count += 1
    return arguments[:count], arguments[count:]


def _open(options: AskCommand, files: list[str], queries: list[str], reading: dict[str, Any]) -> Queryable:
    """Return the database of a SQL query, a store or a table."""
    from qkv.database.database import Database

    if options.sql is not None:
        return Database.sql(options.sql, key=options.key, value=options.value, cyclic=reading["cyclic"])
    if options.stored:
        from qkv.database.storage.create import open_database

        columns = options.key or None, options.value or None
        cache = not options.no_cache
        stored = open_database(files[0], *columns, fold=None, memory=options.memory, damaged="refuse", cache=cache)
        return stored if options.version is None else stored.at(options.version)
    if files == ["-"] and not queries and options.queries in (None, "-") and not options.paged:
        raise QueryError("QUERY must be given if standard input is the table. Write a query after -.")
    source = sys.stdin if files == ["-"] else files[0] if len(files) == 1 else files
    return Database.open(source, options.key, options.value, cache=not options.no_cache, **reading)


def _print_answers(options: AskCommand, database: Queryable, queries: list[str]) -> None:
    """Print answers as they are computed."""
    from qkv.cli.answer_writers import CsvWriter, JsonWriter, TableWriter
    from qkv.cli.query_input import number_lines, read_queries

    chunks, single = read_queries(queries, options.queries, database.key), len(queries) == 1
    if options.plot is not None:
        chunks, single = _check_single(chunks), True
    default_rows = 10 if single else 3 if queries else 0
    rows = default_rows if options.top is None else options.top
    writers: dict[str, type[AnswerWriter]] = {"table": TableWriter, "json": JsonWriter, "csv": CsvWriter}
    writer = writers[options.format_](database, rows, options.explain, options.quote_formulas, options.gradient)
    with ProgressBar() as progress:
        for lines in chunks:
            answer = database.ask(
                [line.text if line.decoded else None for line in lines],
                **options.asked,
                top=rows or 1,
                seed=options.seed,
                tolerance=options.tolerance,
                progress=progress,
                on_bad_query="refuse" if single else "report",
                printed=True,
            )
            answer = number_lines(answer, lines)
            if options.plot is not None:
                from qkv.look.query_plot import save_query_plot

                # The plot is saved before anything is printed, so that a closed pipe cannot prevent it.
                save_query_plot(database, answer[0], options.plot, **options.asked, seed=options.seed)
            progress.clear()
            writer.write(answer)
            sys.stdout.flush()
    writer.finish()
    if writer.invalid:
        count = f"{writer.invalid:,} quer{'y' if writer.invalid == 1 else 'ies'}"
        print(f"qkv: {count} could not be read; the reasons are in the answers.", file=sys.stderr)


def _write_answers(
    options: AskCommand, database: Queryable, files: list[str], queries: list[str], output: Path
) -> None:
    """Write the answers to all queries to a file, and print how many there are."""
    from qkv.cli.output_file import check_distinct, write_rows
    from qkv.cli.query_input import is_query_table, line_relation, read_queries
    from qkv.core.printable import printable
    from qkv.database.execute.ask_options import AskOptions
    from qkv.database.relations.answer_relation import AnswerRelation
    from qkv.database.relations.query_relation import open_relation

    inputs = [*([] if options.stored else files), options.queries or "-"]
    check_distinct(output, [name for name in inputs if name != "-"])
    asked = AskOptions(**options.asked, top=options.top or 3, seed=options.seed, tolerance=options.tolerance)
    if options.queries is not None and not queries and is_query_table(options.queries):
        relation = open_relation(options.queries, database.key, options.on)
    elif options.on is not None:
        raise OptionError("--on must be used with a table of queries, got lines of text. Omit --on.")
    else:
        chunks = read_queries(queries, options.queries, database.key)
        relation = line_relation(chunks, options.queries or "standard input")
        asked = replace(asked, printed=True)
    with ProgressBar() as progress:
        answers = AnswerRelation(database, relation, replace(asked, progress=progress), options.id_)
        write_rows(answers.batches(), answers.schema, output, options.quote_formulas)
    unread = f", {answers.invalid:,} could not be read" if answers.invalid else ""
    plural = "" if answers.answered == 1 else "s"
    print(f"{options.output}: {answers.answered:,} answer{plural}, {answers.found:,} with a match{unread}")
    for note in answers.notes:
        print(f"· {printable(note)}")
    if options.explain:
        print(f"\n{answers.plan}")


def _check_single(chunks: Iterator[list[QueryLine]]) -> Iterator[list[QueryLine]]:
    """Yield the only chunk of queries, after checking that it contains exactly one query."""
    first = next(chunks, [])
    if len(first) != 1 or next(chunks, []):
        raise QueryError(
            "--plot must be used with exactly one query, got no query or several. Ask one query, or omit --plot."
        )
    yield first


def _open_page(options: AskCommand, database: Queryable, files: Sequence[str], queries: list[str]) -> None:
    """Serve the page of answers until the process is interrupted, or write it to a file."""
    if len(queries) > 1:
        raise QueryError(
            f"{options.paged} must be used with at most one query, got {len(queries)}. "
            "Name the first query of the page, or none."
        )
    from qkv.look.answers.answer_page import AnswerPage
    from qkv.look.answers.answer_settings import AnswerSettings, TableSource

    memory = {} if options.memory == "512 MiB" else {"memory": options.memory}
    reading: dict[str, Any] = options.reading.given() | memory
    columns = {"key": options.key, "value": options.value}
    with ProgressBar() as progress:
        progress("choosing the bandwidth", 0, 1)
        page = AnswerPage(
            database,
            TableSource.of_table(*files, sql=options.sql, **columns, version=options.version, **reading),
            query=queries[0] if queries else None,
            settings=AnswerSettings.from_options(**options.asked, top=options.top or 10),
            printed=lambda answer, rows: printed_text(database, answer, rows),
        )
        if options.export is not None:
            from qkv.look.answers.saved_answers import export_answers

            target = export_answers(page, options.export, progress)
    if options.export is not None:
        print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")
        return
    from qkv.look.server import serve

    with page.responding() as respond:
        serve(lambda _: page, port=options.port, browser=not options.no_browser, respond=respond)


def printed_text(database: Queryable, answer: Answer, rows: int) -> str:
    """Return what `qkv ask` prints for an answer to a pipe, with the slope of a line (`--gradient`)."""
    from qkv.cli.answer_writers import TableWriter

    text = io.StringIO()
    writer = TableWriter(database, rows, False, gradient=True, file=text)
    writer.write(answer)
    writer.finish()
    return text.getvalue()
