"""The command `qkv roles`, which measures the roles of attention heads over many sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from qkv.cli.shared_options import ModelFolder, argument, flag, option
from qkv.core.checks import check_choice
from qkv.core.progress import ProgressBar
from qkv.errors import OptionError

_KINDS = ("text", "gap", "winobias", "conllu")


def roles(
    files: Annotated[list[str] | None, argument("FILE", "Files of sentences.")] = None,
    model: ModelFolder = None,
    kind: Annotated[str, option("|".join(_KINDS), "Format of the files; text has one sentence per line.")] = "text",
    occupations: Annotated[
        list[str] | None, option("FILE", "Occupations for winobias, one per line; may be repeated.")
    ] = None,
    most: Annotated[int, option("N", "Maximum sentences to read per file; 0 reads all.", "--max", min=0)] = 0,
    best: Annotated[int, option("N", "Heads to show per role.", min=1)] = 3,
    groups: Annotated[bool, flag("--groups", "Also show groups by length and condition.")] = False,
    json: Annotated[str | None, option("FILE.json", "Write all scores to a JSON file.")] = None,
    plot: Annotated[str | None, option("FILE.png", "Plot one heatmap per role.")] = None,
) -> None:
    """Measure the roles of every attention head of a model over the sentences of one or more files.

    Positional roles (previous, next, self, first, separator, duplicate, induction, broad) are measured on any text.
    Annotated files give more roles: --kind gap (pronouns with two names), winobias (pronouns with two occupations)
    and conllu (syntax trees, one role per relation). Each score has a 95 % interval, and a baseline that needs no
    model: uniform weights, the nearest candidate, or the best fixed offset. "neither" is the share of questions in
    which another word than the candidates has the largest weight. docs/roles.md describes the formats of the files.

    \b
    Examples:
      qkv roles sentences.txt
      qkv roles sentences.txt --model models/bert-base --groups --best 5
      qkv roles gap-development.tsv.gz --kind gap --json roles.json --plot roles.png
      qkv roles en-dev.conllu --kind conllu
      qkv roles anti.dev pro.dev --kind winobias --occupations female.txt --occupations male.txt

    Treat a head as having a role only if its interval exceeds the baseline by 0.1, over at least 30 sentences.
    """
    if not files:
        raise OptionError("FILE must be given. Name a text file with one sentence per line.")
    check_choice("--kind", kind, _KINDS)
    if kind == "winobias" and not occupations:
        raise OptionError("--occupations must be given with --kind winobias. Name a file with one occupation per line.")

    from qkv.core.files import check_writable
    from qkv.look.figure import check_figure_path, save_figure
    from qkv.look.roles import (
        AnnotatedSentence,
        count_neither,
        measure_roles,
        plain_sentences,
        read_conllu,
        read_gap,
        read_winobias,
    )
    from qkv.look.text_model import load_text_model
    from qkv.search.text_sources import read_file

    target = None if plot is None else check_figure_path(plot)
    if json is not None:
        check_writable(Path(json))

    def read(path: str) -> list[AnnotatedSentence]:
        if kind == "gap":
            return read_gap(path)
        if kind == "conllu":
            return read_conllu(path)
        if kind == "winobias":
            condition = Path(path).name.split(".")[0].replace("_stereotyped", "").replace("_", " ")
            names = [name for each in occupations or [] for name in read_file(Path(each)).splitlines()]
            return read_winobias(path, names, condition)
        return plain_sentences(read_file(Path(path)).splitlines())

    neither = sum(count_neither(path) for path in files) if kind == "gap" else 0
    sentences = [sentence for path in files for sentence in (read(path)[:most] if most else read(path))]
    with ProgressBar() as progress:
        table = measure_roles(load_text_model(model), sentences, progress=progress)
    print(table.to_text(best, groups))
    if neither:
        print(f"· left out: {neither:,} texts whose pronoun refers to neither name, or to both")
    if json is not None:
        table.save(json)
    if target is not None:
        save_figure(table.plot(), target)
