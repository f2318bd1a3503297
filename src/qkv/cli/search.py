"""The command `qkv search`, which searches texts and shows the matching words of each result."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.shared_options import IndexOptions, argument, flag, option
from qkv.core.printable import escaped_json
from qkv.core.progress import Progress, ProgressBar
from qkv.errors import DataError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from qkv.search.hits import Hit
    from qkv.search.index import Index
    from qkv.search.text_sources import Document


def search(
    source: Annotated[str | None, argument("SOURCE", "Texts, a collection or an index.")] = None,
    query: Annotated[list[str] | None, argument("QUERY", "One or more queries.")] = None,
    queries: Annotated[
        str | None, option("FILE", "Read queries from a file, one per line; - reads standard input.")
    ] = None,
    top: Annotated[int, option("N", "Passages to show per query.", min=1)] = 5,
    *,
    texts: IndexOptions,
    mix: Annotated[float | None, option("SHARE", "Share of vectors, from 0 (BM25 only) to 1; default: chosen.")] = None,
    temperature: Annotated[float, option("T", "Temperature of the softmax; lower is sharper.")] = 1.0,
    save: Annotated[str | None, option("FOLDER", "Save the index in this folder.")] = None,
    json_: Annotated[bool, flag("--json", "Print one JSON object per query.")] = False,
) -> None:
    """Search texts by ranking their passages by their attention weight for the query.

    SOURCE is a folder of .txt and .md files, one such file, a table with a text column (.csv, .jsonl, .parquet, …), a
    collection (Glasgow, BEIR, TREC), or an index saved by --save. Texts are split into passages at the ends of
    paragraphs and sentences. Without QUERY, queries are read from --queries or from standard input, one per line.

    \b
    Examples:
      qkv search notes "who found the golden ring"
      qkv search notes --save notes.index
      qkv search notes.index "shepherd" "what happens in the den" --top 3
      qkv search films.csv --text plot "a robot learns to love" --encoder sentences
      qkv search papers "wing flutter" --mix 0 --stem
      printf 'ring\\nden\\n' | qkv search notes --json

    The score of a passage is a mixture of latent semantics (log-entropy weights) and BM25, each standardized over all
    passages. The number of dimensions of the latent space and the shares are chosen from the passages, unless
    --n-components and --mix are given. The weight is the softmax of the scores. The words below a passage are those
    that contributed most to its score.

    Encoders: latent, latent-tfidf, tfidf, log-entropy, counts, sentences (all-MiniLM-L6-v2, if its package is
    installed), or the folder of a sentence model.
    """
    if source is None:
        raise DataError("SOURCE must be given. Name a folder of texts, a table, or an index.")
    queries_given = list(query or [])

    from qkv.cli.query_input import read_queries

    if save is not None:
        from qkv.search.index_files import check_index_path

        check_index_path(Path(save))

    with ProgressBar() as progress:
        index = open_index(source, texts) or build_index(source, texts, progress, mix)
        if save is not None:
            index.save(save)
            progress.clear()
            print(
                f"{save}: {len(index):,} passages of {index.documents:,} documents; {index.encoder}; share of vectors "
                f'{index.mix:g}. Search them: qkv search {save} "…"',
                file=sys.stderr if json_ else sys.stdout,
            )
            if not queries_given and queries is None:
                return
        write = _print_json if json_ else _HitsWriter(index).write
        for one in chain.from_iterable(read_queries(queries_given, queries, ("query",))):
            if not one.decoded:
                raise DataError(
                    f"queries must be text in UTF-8, got other bytes on line {one.number}. Convert the file, for "
                    "example with iconv."
                )
            hits = index.search(one.text, top, mix=mix, temperature=temperature)
            progress.clear()
            write(one.text, hits)
            sys.stdout.flush()


def open_index(source: str, options: IndexOptions) -> Index | None:
    """Open the search index in a folder. Return None if the path is not the folder of a search index.

    Raises:
        OptionError: the path is an index, and an option is given, which only defines how an index is built.
    """
    from qkv.search.index_files import is_index

    if not is_index(Path(source)):
        return None
    for name in options.given():
        raise OptionError(
            f"--{name} must not be given for an existing index, got the index {source!r}. "
            f"Omit --{name}, or name the texts to build a new index."
        )
    from qkv.search.index import Index

    return Index.open(source)


def build_index(
    source: str | Sequence[Document], options: IndexOptions, progress: Progress, mix: float | None = None
) -> Index:
    """Build a search index of a path or of documents. Without `mix`, it is chosen from the passages."""
    from qkv.search.index import Index

    words = 200 if options.passage is None else options.passage
    return Index.from_texts(
        source,
        encoder=options.encoder or "latent",
        n_components=options.n_components,
        stem="english" if options.stem else None,
        column=options.text,
        words=words,
        overlap=words // 5,
        mix=mix,
        progress=progress,
    )


def _print_json(query: str, hits: list[Hit]) -> None:
    found = [hit.record() for hit in hits]
    print(escaped_json(json.dumps({"query": query, "hits": found}, ensure_ascii=False)))


class _HitsWriter:
    """Writer that prints the passages found for a query. Matching words are colored, or in [brackets] without color."""

    def __init__(self, index: Index) -> None:
        from qkv.cli.console import new_console

        self._index = index
        self._console = new_console(100)

    def write(self, query: str, hits: list[Hit]) -> None:
        from rich.padding import Padding
        from rich.text import Text

        line = Text(query, style="bold")
        if not hits:
            line.append(" → ", style="dim").append("no match", style="bold yellow")
            line.append(": no word of the query is in the index", style="yellow")
        self._console.print(line, soft_wrap=True)
        for number, hit in enumerate(hits, 1):
            assert hit.contributions is not None
            shares = hit.contributions.by_word()
            head = Text(f"{number:>3}  ", style="dim")
            head.append(hit.document, style="bold cyan")
            if hit.title:
                head.append("  " + " ".join(hit.title.split()), style="cyan")
            head.append(f"   weight {hit.weight:.3f}, score {hit.score:.2f}", style="dim")
            self._console.print(head, soft_wrap=True)
            self._console.print(Padding(self._mark_words(hit, shares), (0, 0, 0, 5), expand=False))
            named = [f"{word} {share:+.2f}" for word, share in shares.items() if word and share >= _MIN_SHARE][:8]
            if named:
                self._console.print(
                    Padding(Text("matched: " + ", ".join(named), style="dim"), (0, 0, 0, 5), expand=False)
                )

    def _mark_words(self, hit: Hit, shares: dict[str, float]) -> Text:
        """Return the excerpt of a passage whose words contribute most to its score, with these words marked.

        `shares` contains the contribution of each word.
        """
        from rich.text import Text

        text = " ".join(hit.text.removeprefix(hit.title).split()) or hit.title
        words = [(start, end, shares.get(word, 0.0)) for start, end, word in self._index.splitter.find_words(text)]
        start, end = _excerpt(text, words)
        maximum = max(shares.values(), default=0.0)
        marked = Text("…" if start else "")
        at = start
        color = self._console.color_system is not None
        for left, right, share in words:
            if left < start or right > end or share < max(0.1 * maximum, _MIN_SHARE):
                continue
            marked.append(text[at:left])
            word = text[left:right]
            style = "bold red" if share >= 0.5 * maximum else "yellow"
            marked.append(word if color else f"[{word}]", style=style)
            at = right
        return marked.append(text[at:end]).append("…" if end < len(text) else "")


_MIN_SHARE = 0.005
"""Minimum contribution of a word to the score for it to be shown as matched."""
_EXCERPT_LENGTH = 480
"""Maximum characters of a passage to show."""


def _excerpt(text: str, words: list[tuple[int, int, float]]) -> tuple[int, int]:
    """Return the start and the end of the excerpt of `text` whose words contribute most to the score.

    `words` contains the start, the end and the share of each word. The excerpt starts and ends between words.
    """
    if len(text) <= _EXCERPT_LENGTH:
        return 0, len(text)
    starts = [0, *(max(0, min(first - 40, len(text) - _EXCERPT_LENGTH)) for first, _, _ in words)]

    def total(start: int) -> float:
        stop = start + _EXCERPT_LENGTH
        # Rounded, so that of excerpts with the same words the first is shown.
        return round(sum(max(share, 0.0) for left, right, share in words if start <= left and right <= stop), 9)

    begin = max(starts, key=total)
    end = begin + _EXCERPT_LENGTH
    if begin:
        begin = text.rfind(" ", 0, begin) + 1
    if end < len(text):
        end = max(text.rfind(" ", begin, end), begin + 1)
    return begin, min(end, len(text))
