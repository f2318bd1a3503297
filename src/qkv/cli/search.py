"""`qkv search`: the passages that a question attends to, and the words that they were attended for."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli.shared_options import Passage, Rank, Stem, TextColumn
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    from qkv.search.hits import Hit
    from qkv.search.index import Index

__all__ = ["build_index", "open_index", "search"]

_HELP = """Search texts: passages are ranked by the attention that the query pays to them.

SOURCE is a folder of .txt and .md files, such a file, a table with a column of texts (.csv, .jsonl,
.parquet, …), a collection (SMART, BEIR), or an index that --save wrote. Texts are cut into passages where
paragraphs and sentences end. Without a QUERY, they are read from --queries or from standard input, one on
each line.

\b
Examples:
  qkv search notes "who found the golden ring"
  qkv search notes --save notes.index
  qkv search notes.index "shepherd" "what happens in the den" --top 3
  qkv search films.csv --text plot "a robot learns to love" --encoder sentences
  qkv search papers "wing flutter" --mix 0 --stem
  printf 'ring\\nden\\n' | qkv search notes --json

A score is half latent semantics (log-entropy weights), half BM25, each in deviations from its mean over all
passages; --mix says otherwise, from 0 (words) to 1 (vectors). The weight is the softmax of the scores. The
words below a passage are those that its score rests on, with what each adds. Encoders: latent,
latent-tfidf, tfidf, log-entropy, counts, sentences (all-MiniLM-L6-v2, if its package is installed), or the
folder of a sentence model.
"""


def search(
    source: Annotated[
        str | None, typer.Argument(metavar="SOURCE", help="Texts, or an index.", show_default=False)
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Argument(metavar="QUERY", help="What is searched for; one or several.", show_default=False),
    ] = None,
    queries: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read queries from a file; - is standard input.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Passages shown for each query.")] = 5,
    text: TextColumn = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="NAME|FOLDER", help="What makes vectors of texts; else latent.")
    ] = None,
    rank: Rank = None,
    mix: Annotated[
        float | None, typer.Option(metavar="SHARE", help="0: words alone, 1: vectors alone; else 0.5.")
    ] = None,
    temperature: Annotated[float, typer.Option(metavar="T", help="Of the softmax; less is sharper.")] = 1.0,
    passage: Passage = None,
    stem: Stem = False,
    save: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Keep the index there, to be searched at once.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="One object for each query.")] = False,
) -> None:
    if source is None:
        raise DataError("there is no SOURCE. Name a folder of texts, a table, or an index.")
    given = list(query or [])

    from qkv.core.progress import ProgressBar

    if save is not None:
        from qkv.search.index_files import may_be_saved

        may_be_saved(Path(save))

    with ProgressBar() as progress:
        held = open_index(source, encoder=encoder, rank=rank, stem=stem, text=text, passage=passage)
        index = held or build_index(
            source, progress, encoder=encoder, rank=rank, stem=stem, text=text, passage=passage, mix=mix
        )
        if save is not None:
            index.save(save)
            progress.clear()
            print(
                f'{save}: {len(index):,} passages of {index.documents:,} documents. Search them: qkv search {save} "…"',
                file=sys.stderr if json_ else sys.stdout,
            )
            if not given and queries is None:
                return
        write = _json if json_ else _Page(index).write
        for one in _asked(given, queries):
            hits = index.search(one, top, mix=mix, temperature=temperature)
            progress.clear()
            write(one, hits)
            sys.stdout.flush()


search.__doc__ = _HELP


def open_index(source: str, **making: Any) -> "Index | None":
    """The index in a folder; None where there is none.

    Args:
        source: a path.
        making: options that say how an index is made, which must not be given for one that is.

    Raises:
        OptionError: one was given.
    """
    from qkv.search.index_files import is_index

    if not is_index(Path(source)):
        return None
    for name, value in making.items():
        if value is not None and value is not False:
            raise OptionError(
                f"{source!r} is an index already, and --{name} is for texts. Give the texts, or leave it out."
            )
    from qkv.search.index import Index

    return Index.open(source)


def build_index(
    source: Any,
    progress: Any,
    *,
    encoder: str | None,
    rank: int | None,
    stem: bool,
    text: str | None = None,
    passage: int | None = None,
    mix: float | None = None,
) -> "Index":
    """Index texts, as the options of the command line say."""
    from qkv.search.index import Index

    words = 200 if passage is None else passage
    return Index.from_texts(
        source,
        encoder=encoder or "latent",
        rank=rank,
        stem="english" if stem else None,
        column=text,
        words=words,
        overlap=words // 5,
        mix=0.5 if mix is None else mix,
        progress=progress,
    )


def _asked(given: list[str], queries: str | None) -> Any:
    from qkv.cli.query_input import read_queries

    for chunk in read_queries(given, queries, ("query",)):
        yield from chunk


def _json(query: str, hits: "list[Hit]") -> None:
    found = []
    for hit in hits:
        assert hit.evidence is not None
        words, asked = hit.evidence.of_words(), hit.evidence.of_asked()
        found.append(
            {
                "document": hit.document,
                "title": hit.title,
                "weight": hit.weight,
                "score": hit.score,
                "start": hit.start,
                "end": hit.end,
                "text": hit.text,
                "words": words,
                "asked": asked,
                "rest": hit.evidence.rest,
            }
        )
    print(json.dumps({"query": query, "hits": found}, ensure_ascii=False))


class _Page:
    """Passages for people, with the words that were attended in colour, or in [brackets] without it."""

    def __init__(self, index: "Index") -> None:
        from rich.console import Console

        self._index = index
        self._console = Console(highlight=False)
        if not self._console.is_terminal and "COLUMNS" not in self._console._environ:
            self._console.width = 100

    def write(self, query: str, hits: "list[Hit]") -> None:
        from rich.padding import Padding
        from rich.text import Text

        line = Text(query, style="bold")
        if not hits:
            line.append(" → ", style="dim").append("nothing", style="bold yellow")
            line.append(": no word of the query is known", style="yellow")
        self._console.print(line, soft_wrap=True)
        for number, hit in enumerate(hits, 1):
            assert hit.evidence is not None
            shares = hit.evidence.of_words()
            head = Text(f"{number:>3}  ", style="dim")
            head.append(hit.document, style="bold cyan")
            if hit.title:
                head.append("  " + " ".join(hit.title.split()), style="cyan")
            head.append(f"   weight {hit.weight:.3f}, score {hit.score:.2f}", style="dim")
            self._console.print(head, soft_wrap=True)
            self._console.print(Padding(self._marked(hit, shares), (0, 0, 0, 5), expand=False))
            named = [f"{word} {share:+.2f}" for word, share in shares.items() if word and share >= _LEAST][:8]
            if named:
                self._console.print(
                    Padding(Text("attended: " + ", ".join(named), style="dim"), (0, 0, 0, 5), expand=False)
                )

    def _marked(self, hit: "Hit", shares: dict[str, float]) -> Any:
        """The part of a passage where most of what was attended stands, its white space made single."""
        from rich.text import Text

        text = " ".join(hit.text.removeprefix(hit.title).split()) or hit.title
        places = self._places(text)
        heavy = [(start, end, shares.get(word, 0.0)) for start, end, word in places]
        start, end = _window(text, heavy)
        largest = max(shares.values(), default=0.0)
        shown = Text("…" if start else "")
        at = start
        colour = self._console.color_system is not None
        for left, right, share in heavy:
            if left < start or right > end or share < max(0.1 * largest, _LEAST):
                continue
            shown.append(text[at:left])
            word = text[left:right]
            style = "bold red" if share >= 0.5 * largest else "yellow"
            shown.append(word if colour else f"[{word}]", style=style)
            at = right
        return shown.append(text[at:end]).append("…" if end < len(text) else "")

    def _places(self, text: str) -> list[tuple[int, int, str]]:
        return self._index.splitter.find_words(text)


_LEAST = 0.005
"""What a word adds to a score, before it is said to be attended."""
_SHOWN = 480
"""Characters of a passage that are shown."""


def _window(text: str, heavy: list[tuple[int, int, float]]) -> tuple[int, int]:
    """Where to begin and end, between words: the stretch on which most shares fall."""
    if len(text) <= _SHOWN:
        return 0, len(text)
    best, begin = -1.0, 0
    for start, _, _ in [(0, 0, 0.0), *heavy]:
        start = max(0, min(start - 40, len(text) - _SHOWN))
        held = sum(share for left, right, share in heavy if start <= left and right <= start + _SHOWN and share > 0)
        if held > best + 1e-9:
            best, begin = held, start
    end = begin + _SHOWN
    if begin:
        begin = text.rfind(" ", 0, begin) + 1
    if end < len(text):
        end = max(text.rfind(" ", begin, end), begin + 1)
    return begin, min(end, len(text))
