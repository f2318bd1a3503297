"""`qkv ask`: a table answers soft queries, with evidence."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from qkv.errors import DataError, OptionError, QueryError

__all__ = ["ask"]

_HELP = """Ask a table: the answer is the weighted combination of the values whose keys resemble the query.

FILE is .csv, .tsv, .txt, .jsonl, .json, .parquet, .arrow or .feather, each also with .gz, or a store that
`qkv store create` made, which knows its key and value. Each QUERY is a
key as it could stand in the table; with several key columns, their cells with commas. Without a QUERY they
are read from --queries or from standard input, one per line, and answered as they come.

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
  qkv ask --sql "select * from 'people.csv'" --key city --value income Oslo
  printf '3.1\\n3.9\\n' | qkv ask gpa.csv --key gpa --value starting_salary --format csv

Text keys are compared by spelling, numbers by a Gaussian whose bandwidth leave-one-out chooses. A query
unlike every key is answered "no match". Scores: spelling, jaro-winkler, levenshtein, token-set-ratio,
exact, gaussian[:bandwidth], laplace, boxcar, epanechnikov, triangular, constant, cosine, dot. Normalizers:
softmax[:temperature], topk:K, sum, mean, hard, sparsemax, entmax15, sigmoid, identity, sample.
"""

_FORMATS = ("table", "json", "csv")


def ask(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="The table.", show_default=False)] = None,
    query: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="What is asked; one or several.", show_default=False),
    ] = None,
    key: Annotated[str, typer.Option(metavar="A[,B]", help="The key column, or several.", show_default=False)] = "",
    value: Annotated[str, typer.Option(metavar="C", help="The value column.", show_default=False)] = "",
    sql: Annotated[
        str | None, typer.Option(metavar="SELECT", help="Ask what this query gives, in place of FILE.")
    ] = None,
    queries: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read queries from a file, one per line; - is standard input."),
    ] = None,
    score: Annotated[str | None, typer.Option(metavar="NAME[:NUMBER]", help="How keys are compared.")] = None,
    normalizer: Annotated[str | None, typer.Option(metavar="NAME[:NUMBER]", help="How scores become weights.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows that satisfy this predicate take part.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="Least similarity, or largest distance, of a match."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Rows of evidence shown: 10 for one query, 3 for several."),
    ] = None,
    format_: Annotated[
        str,
        typer.Option("--format", metavar="table|json|csv", help="json is one object per line; csv has a header."),
    ] = "table",
    explain: Annotated[bool, typer.Option("--explain", help="Print the plan that ran.")] = False,
    plot: Annotated[
        str | None,
        typer.Option(metavar="FILE.png", help="Draw the data, the weights and the answer (.png, .svg, .pdf)."),
    ] = None,
    version: Annotated[int | None, typer.Option(metavar="N", help="Ask a store as it was in this version.")] = None,
    memory: Annotated[
        str, typer.Option(metavar="AMOUNT", help="A store that needs more is read block by block.")
    ] = "512 MiB",
    seed: Annotated[int | None, typer.Option(metavar="NUMBER", help="For normalizers that draw.")] = None,
) -> None:
    given = _checked([*([] if file is None else [file]), *(query or [])], format_)
    from qkv.store import is_store

    stored = sql is None and bool(given) and is_store(given[0])
    if sql is None and not given:
        raise DataError("there is no FILE. Name a table, or give --sql; qkv ask --help shows examples.")
    if not stored and (not key or not value):
        raise OptionError(
            f"there is no --{'value' if key else 'key'}. Name the column, as in --key name --value income."
        )
    if version is not None and not stored:
        raise OptionError("--version is of a store, and this is none. Leave it out.")

    from qkv.cli.query_input import read_queries
    from qkv.core.progress import ProgressBar
    from qkv.database.database import Database

    if sql is not None:
        database = Database.sql(sql, key=key, value=value)
    elif stored:
        database, given = _opened(given[0], key, value, version, memory), given[1:]
    else:
        database, given = Database.open(given[0], key=key, value=value), given[1:]
    chunks = read_queries(given, queries, database.key)
    if plot is not None:
        chunks = _only_one(chunks)
    usual = 10 if len(given) == 1 or plot is not None else 3 if given else 0
    shown = usual if top is None else top
    writer = _writer(format_)(database, shown, explain)
    with ProgressBar() as progress:
        for chunk in chunks:
            answer = database.ask(
                chunk,
                score=score,
                normalizer=normalizer,
                where=where,
                threshold=threshold,
                top=shown if shown or top is not None else 1,
                seed=seed,
                progress=progress,
            )
            if plot is not None:
                from qkv.look.query_plot import save_query_plot

                # Before anything is printed: a reader that goes away must not cost the picture.
                save_query_plot(database, answer[0], plot, score=score, normalizer=normalizer, where=where)
            progress.clear()
            writer.write(answer)
            sys.stdout.flush()
    writer.finish()


ask.__doc__ = _HELP


def _opened(path: str, key: str, value: str, version: int | None, memory: str) -> Any:
    """The database of a store, at a version or the newest."""
    from qkv.database.storage.create import open_database

    opened = open_database(path, key or None, value or None, fold=None, memory=memory, damaged="refuse")
    return opened if version is None else opened.at(version)


def _checked(arguments: list[str], format_: str) -> list[str]:
    """The arguments, none of which is an option that was not understood."""
    for argument in arguments:
        # A dash before a digit is a negative number; before a letter it is an option that does not exist.
        if argument.startswith("--") or (argument[:1] == "-" and argument[1:2].isalpha()):
            raise OptionError(
                f"there is no option {argument.split('=')[0]}; see qkv ask --help. "
                "A query that begins so can come by --queries."
            )
    if format_ not in _FORMATS:
        raise OptionError(f"--format is {format_!r}, and it is one of {', '.join(_FORMATS)}.")
    return arguments


def _writer(format_: str) -> Any:
    if format_ == "table":
        from qkv.cli.text_output import Table

        return Table
    from qkv.cli.json_csv import Csv, Json

    return Json if format_ == "json" else Csv


def _only_one(chunks: Iterator[list[str]]) -> Iterator[list[str]]:
    """The chunks, if they hold one query together."""
    first = next(chunks, [])
    if len(first) != 1 or next(chunks, []):
        raise QueryError("--plot draws the answer to one query. Ask one, or leave --plot out.")
    yield first
