"""`qkv roles`: what the heads of a model do, measured over many sentences."""

from pathlib import Path
from typing import Annotated

import typer

from qkv.errors import DataError, OptionError

__all__ = ["roles"]

_HELP = """Measure what every head of a model does, over the sentences of one file or several.

Roles of position (previous, next, self, first, separator, duplicate, induction, broad) are measured on any
text. Annotated files ask more: --kind gap (pronouns with two names), winobias (pronouns with two
occupations), conllu (syntax: a role for each relation). Each score has a 95 % interval and stands beside a
rule that needs no model: uniform weights, the nearest candidate, the best fixed distance.

\b
Examples:
  qkv roles sentences.txt
  qkv roles sentences.txt --model models/bert-base --groups --best 5
  qkv roles gap-development.tsv.gz --kind gap --json roles.json --plot roles.png
  qkv roles en-dev.conllu --kind conllu
  qkv roles anti.dev pro.dev --kind winobias --occupations female.txt --occupations male.txt

A head is said to have a role only where the interval is clear of the rule and there were 30 sentences.
"""

_KINDS = ("text", "gap", "winobias", "conllu")


def roles(
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Sentences.", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The model, as save_pretrained writes it.")
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="|".join(_KINDS), help="What the files are; text: a sentence on each line.")
    ] = "text",
    occupations: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="With winobias: occupations, one on each line; several are fine."),
    ] = None,
    most: Annotated[int, typer.Option(metavar="N", min=0, help="Read this many sentences of each file; 0: all.")] = 0,
    best: Annotated[int, typer.Option(metavar="N", min=1, help="Heads shown for each role.")] = 3,
    groups: Annotated[bool, typer.Option("--groups", help="Also by length and by condition.")] = False,
    json: Annotated[str | None, typer.Option(metavar="FILE.json", help="Write every row.")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE.png", help="Draw a map for each role.")] = None,
) -> None:
    if not files:
        raise OptionError("there is no FILE. Name a text file with a sentence on each line.")
    if kind not in _KINDS:
        raise OptionError(f"--kind is {kind!r}, and it is one of {', '.join(_KINDS)}.")
    if kind == "winobias" and not occupations:
        raise OptionError("winobias wants --occupations: a file with an occupation on each line.")

    from qkv.core.files import check_writable
    from qkv.core.progress import ProgressBar
    from qkv.look.figure import check_figure_path, save_figure
    from qkv.look.roles import (
        AnnotatedSentence,
        measure_roles,
        plain_sentences,
        read_conllu,
        read_gap,
        read_winobias,
    )
    from qkv.look.text_model import load_text_model

    target = None if plot is None else check_figure_path(plot)
    if json is not None:
        check_writable(Path(json))

    def read(path: str) -> list[AnnotatedSentence]:
        if kind == "gap":
            return read_gap(path)
        if kind == "conllu":
            return read_conllu(path)
        if kind == "winobias":
            named = Path(path).name.split(".")[0].replace("_stereotyped", "").replace("_", " ")
            return read_winobias(path, [line for each in occupations or [] for line in _lines(each)], named)
        return plain_sentences(_lines(path))

    sentences = [sentence for path in files for sentence in (read(path)[:most] if most else read(path))]
    with ProgressBar() as progress:
        table = measure_roles(load_text_model(model), sentences, progress=progress)
    print(table.to_text(best, groups))
    if json is not None:
        table.save(json)
    if target is not None:
        save_figure(table.plot(), target)


roles.__doc__ = _HELP


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path!r} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path!r} is no text in UTF-8. Convert it, or say what it is with --kind.") from None
