"""Arguments and options that several subcommands share, and rules by which options exclude or need each other.

A command may have parameters that are options objects: dataclasses whose fields are arguments and options.
`expand_options` shows their fields to Typer one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from qkv.core.checks import check_choice
from qkv.errors import OptionError, QkvError


def option(metavar: str, text: str, *names: str, min: float | None = None, show_default: bool = True) -> object:
    """Return the declaration of an option with a value for `Annotated`; its name is that of the field unless given."""
    return typer.Option(*names, metavar=metavar, help=text, min=min, show_default=show_default)


def flag(name: str, text: str) -> object:
    """Return the declaration of an option without a value for `Annotated`."""
    return typer.Option(name, help=text)


def argument(metavar: str, text: str) -> object:
    """Return the declaration of an argument for `Annotated`."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


class Rule(NamedTuple):
    """A condition that options must not meet, with the sentence that says why.

    Attributes:
        broken: function of the options object that returns whether the rule is broken.
        sentence: the message of the error, or a function of the options object that returns it.
        error: the class of the error.
    """

    broken: Callable[[Any], object]
    sentence: str | Callable[[Any], str]
    error: type[QkvError] = OptionError


def check_rules(options: object, rules: Iterable[Rule]) -> None:
    """Raise the error of the first rule that an options object breaks."""
    for broken, sentence, error in rules:
        if broken(options):
            raise error(sentence if isinstance(sentence, str) else sentence(options))


def exclusion_rules(by: Callable[[Any], str], *excluded: str) -> Iterator[Rule]:
    """Yield rules for options that must not be given with another one, which `by` names; "" if it is not given."""
    for option in excluded:

        def broken(options: object, name: str = option.removeprefix("--")) -> bool:
            value = getattr(options, name)
            return bool(by(options)) and value is not None and value is not False

        def sentence(options: object, option: str = option) -> str:
            return f"{option} must not be given with {by(options)}. Omit one of them."

        yield Rule(broken, sentence)


PORT_RULE = Rule(
    lambda options: not 0 <= options.port < 65536,
    lambda options: f"--port must be between 0 and 65535, got {options.port}. Pass 0 to use any free port.",
)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command for Typer, in whose signature the fields of each options object stand in its place."""

    def parameters(function: Callable[..., object]) -> Iterator[inspect.Parameter]:
        kinds = get_type_hints(function, include_extras=True)
        for name, parameter in inspect.signature(function).parameters.items():
            if is_dataclass(kinds[name]):
                yield from parameters(kinds[name])
            else:
                yield parameter.replace(annotation=kinds[name], kind=parameter.KEYWORD_ONLY)

    def build(function: Callable[..., object], values: dict[str, object]) -> object:
        kinds = get_type_hints(function)
        names = inspect.signature(function).parameters
        parts = {name: build(kinds[name], values) if is_dataclass(kinds[name]) else values[name] for name in names}
        return function(**parts)

    def expanded(**values: object) -> None:
        build(command, values)

    expanded.__doc__, expanded.__name__ = command.__doc__, command.__name__
    expanded.__signature__ = inspect.Signature(list(parameters(command)))  # type: ignore[attr-defined]
    expanded.__annotations__ = {}
    return expanded


# -- ask, join, store create ----------------------------------------------------------------------------

KeyColumns = Annotated[str, option("A[,B]", "Key column; several are separated as in CSV.", show_default=False)]
ValueColumn = Annotated[str, option("C", "Value column.", show_default=False)]
ScoreName = Annotated[str | None, option("NAME[:NUMBER]", "Score that compares query and key.")]
NormalizerName = Annotated[str | None, option("NAME[:NUMBER]", "Normalizer that turns scores into weights.")]
MinSimilarity = Annotated[float | None, option("NUMBER", "Least similarity of a match, for keys such as texts.")]
MaxDistance = Annotated[float | None, option("NUMBER", "Largest distance of a match, for keys such as numbers.")]


@dataclass(frozen=True)
class ReadingOptions:
    """Command-line options that say how the cells of a file of rows are read, as `ReadOptions` of a database."""

    encoding: Annotated[str | None, option("NAME", "Encoding of FILE: utf-16, latin-1, cp1252 …; default: utf-8.")] = (
        None
    )
    delimiter: Annotated[str | None, option("CHARACTER", "Delimiter of FILE; default: detected.")] = None
    decimal: Annotated[str | None, option(".|,", "Decimal separator of FILE; default: detected.")] = None
    date_format: Annotated[
        str | None,
        option("FORMAT", "Format of dates in FILE, such as %m/%d/%Y or %d-%b-%y; default: detected, day first."),
    ] = None
    header_row: Annotated[
        int | None, option("N", "Line of FILE with the names of columns, from 1; default: detected.")
    ] = None
    skip_footer: Annotated[int | None, option("N", "Lines at the end of FILE to leave out; default: detected.")] = None
    on_bad_cell: Annotated[
        str,
        option(
            "exclude|refuse|text",
            "Cells that are no finite numbers, or no dates, in a column of them: leave out and count, refuse, or "
            "read the column as texts.",
        ),
    ] = "exclude"

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of functions that read tables."""
        check_choice("--on-bad-cell", self.on_bad_cell, ("exclude", "refuse", "text"))
        return asdict(self)

    def given(self) -> dict[str, object]:
        """Return the arguments that differ from the defaults."""
        return {name: value for name, value in self.arguments().items() if value not in (None, "exclude")}


QuoteFormulas = Annotated[
    bool, flag("--quote-formulas", "In CSV, write an apostrophe before texts that spreadsheets execute.")
]

# -- search, evaluate, fit search -----------------------------------------------------------------------


@dataclass(frozen=True)
class IndexOptions:
    """Options of commands that build a search index from texts."""

    text: Annotated[str | None, option("COLUMN", "Text column, if the texts are a table.")] = None
    encoder: Annotated[str | None, option("NAME|FOLDER", "Text encoder; default: latent. Others: qkv search -h.")] = (
        None
    )
    n_components: Annotated[
        int | None, option("N", "Dimensions of latent semantics; default: chosen from the passages.")
    ] = None
    passage: Annotated[
        int | None,
        option("WORDS", "Maximum words per passage; 0: whole documents; default: 200, in evaluate 0.", min=0),
    ] = None
    stem: Annotated[bool, flag("--stem", "Compare English words by their stems.")] = False

    def given(self) -> list[str]:
        """Return the names of the options that are given."""
        given = [name for name, value in asdict(self).items() if value is not None and value is not False]
        return [name.replace("_", "-") for name in given]


@dataclass(frozen=True)
class JudgedCollection:
    """Arguments of commands that read documents, queries and relevance judgements."""

    collection: Annotated[str | None, argument("COLLECTION", "Collection, documents or index.")] = None
    queries: Annotated[str | None, option("FILE", "Queries in .tsv (name, text), .jsonl or SMART format.")] = None
    relevant: Annotated[str | None, option("FILE", "Relevance judgements in TREC, BEIR or SMART format.")] = None
    split: Annotated[
        str | None, option("NAME", "Split of a BEIR collection, in qrels/; default: test; for fit: train.")
    ] = None


@dataclass(frozen=True)
class LearningOptions:
    """Options of commands that learn W_Q and W_K from relevance judgements."""

    penalty: Annotated[float | None, option("NUMBER", "Penalty on changes of W_Q and W_K; default: 500.")] = None
    loss: Annotated[str | None, option("each|mass", "Loss of each relevant document, or of their total weight.")] = None

    def given(self) -> dict[str, object]:
        """Return the options that are given as keyword arguments."""
        return {name: value for name, value in asdict(self).items() if value is not None}


# -- join, fit join -------------------------------------------------------------------------------------

LeftTable = Annotated[str, argument("LEFT", "Table whose rows are the queries.")]
RightTable = Annotated[str | None, argument("RIGHT", "Table whose rows are the keys.")]
JoinedOn = Annotated[str | None, option("A[,B=C]", "Columns to compare; default: all common columns.")]
Candidates = Annotated[
    int | None, option("N", "Candidate rows per left row; default: all, or 50 for large tables.", min=1)
]

# -- look, roles ----------------------------------------------------------------------------------------

ModelFolder = Annotated[str | None, option("FOLDER", "Model saved by save_pretrained; default: all-MiniLM-L6-v2.")]


def _parse_periods(given: list[str] | None) -> dict[str, float] | None:
    """Return the periods of cyclic columns from texts such as "hour=24", or None without any.

    Raises:
        OptionError: A text is not a name and a number.
    """
    periods = {}
    for text in given or ():
        name, _, number = text.rpartition("=")
        try:
            periods[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise OptionError(f"--cyclic must be COLUMN=PERIOD, got {text!r}. Write, for example, hour=24.")
    return periods or None


@dataclass(frozen=True)
class TableOptions(ReadingOptions):
    """How the cells of a table are read, and which of its columns are cyclic."""

    cyclic: Annotated[
        list[str] | None, option("COLUMN=PERIOD", "Column whose numbers go round, such as hour=24 or direction=360.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {"cyclic": _parse_periods(self.cyclic)}
