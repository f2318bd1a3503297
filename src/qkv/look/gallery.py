"""A static gallery of attention pages and pages of answers, which works from disk and from any web host."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from qkv.core.files import write_atomic
from qkv.core.progress import Progress, report
from qkv.database.database import Database
from qkv.errors import DataError
from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_settings import TableSource
from qkv.look.answers.saved_answers import export_answers
from qkv.look.axis import Axis
from qkv.look.bundle import read_web_file
from qkv.look.difference import difference
from qkv.look.figure import figure_png
from qkv.look.html_export import export_html
from qkv.look.page import Page
from qkv.look.text_model import load_text_model
from qkv.look.text_views import text_views
from qkv.look.view_plot import plot_view
from qkv.look.views import View


@dataclass(frozen=True)
class GalleryPair:
    """A page of the gallery that opens on the weight of one pair of tokens in one head.

    Attributes:
        name: name of the file, without its suffix.
        title: title of the page.
        text: the text, or the name of another view.
        layer, head: indices of the head; of the aggregated maps, the layer is −1.
        query, key: the pair, as tokens.
        see: what to see; the weight of the pair is added.
    """

    name: str
    title: str
    text: str
    layer: int
    head: int
    query: str
    key: str
    see: str


def recorded_pages() -> Iterator[tuple[GalleryPair, View]]:
    """Yield the pages of models whose weights were recorded, with their views.

    `python -m examples.gallery_records RUN` writes the records of a translation model, of a model of pictures and of a
    vision transformer.
    """
    for found in json.loads(Path(__file__).with_name("gallery_records.json").read_text(encoding="utf-8")):
        queries, keys = found["queries"], found["keys"]
        if keys is None:  # the image is white on black, so that bright patches show it
            grey = np.array(found["pixels"], np.uint8)
            rows, columns = found["grid"]
            queries = Axis.from_patches(rows, columns, 1, np.repeat(grey[..., None], 3, axis=2))
        weights = [np.array(layer) for layer in found["weights"]]
        text, model, layers = found["text"], found["model"], found["layers"]
        view = View.from_weights(weights, queries, keys, name=text, model=model, layers=layers)
        yield GalleryPair(**found["pair"], text=text), view


_OWNER = "When he saw his owner, the dog was happy"
_HANS = "Hans said that he likes Mary because she is kind"
_BANK = "He sat on the bank of the river", "He took money from the bank"


_SPREAD = "Rollout multiplies the layers, which spreads the weight."
_PAIRS = (
    GalleryPair("previous", "The previous token", _OWNER, 0, 2, "owner", "his", "A token attends to the one before."),
    GalleryPair("pronoun", "A pronoun and its name", _HANS, 1, 3, "he", "hans", "The pronoun attends to the name."),
    GalleryPair("sink", "An attention sink", _OWNER, 1, 11, "dog", "[CLS]", "Weight goes to a token without meaning."),
    GalleryPair("rollout", "Six layers at once", _HANS, -1, 1, "she", "mary", _SPREAD),
)


@dataclass(frozen=True)
class _Card:
    """A page of the gallery: file name, address, title, a sentence on the picture, and the bytes of its thumbnail."""

    name: str
    address: str
    title: str
    see: str
    picture: bytes


def write_gallery(folder: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Write ten pages with an index page: all-MiniLM-L6-v2, models of the examples and tables.

    The attention of the examples' models comes with the package.

    Args:
        folder: a folder that does not exist or is empty.
        progress: called as `progress("writing the gallery", done, 10)`.

    Raises:
        DataError: the folder is not empty, or a file cannot be written.
        MissingPackageError: transformers, matplotlib or the model's package is not installed.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"the folder of the gallery must be new or empty, got {str(target)!r}. Name another folder.")
    model = load_text_model(None)
    target.mkdir(parents=True, exist_ok=True)
    texts = (_OWNER, _HANS, *_BANK)
    views = {text: view for text, view in zip(texts, text_views(model, texts), strict=True) if isinstance(view, View)}
    cards = []
    for card in _write_pages(target, views):
        cards.append(card)
        report(progress, "writing the gallery", len(cards), 10)
    for card in cards:
        _write(target / f"{card.name}.png", card.picture)
    _write(target / "index.html", _index(cards).encode())
    return target / "index.html"


def _write_pages(target: Path, views: Mapping[str, View]) -> Iterator[_Card]:
    for pair in _PAIRS:
        yield _write_pair(target, pair, views[pair.text])
    river, money = (views[text] for text in _BANK)
    (most,) = difference(river, money).heads(1)
    see = "The same head in two texts; of all heads, it differs most between the bank of a river and that with money."
    bank = GalleryPair("two-texts", "Two meanings of a word", _BANK[0], most.layer, most.head, "bank", "bank", see)
    yield _write_pair(target, bank, river, money)
    yield from (_write_pair(target, pair, view) for pair, view in recorded_pages())
    yield from _write_answers(target)


def _write_pair(target: Path, pair: GalleryPair, view: View, other: View | None = None) -> _Card:
    layer = pair.layer % len(view.layers)
    queries, keys = ([token.lower() for token in axis.tokens] for axis in (view.queries, view.columns))
    query, key = queries.index(pair.query.lower()), keys.index(pair.key.lower())
    weight = float(view.weights(layer, pair.head)[query, key])
    head = f"{view.layers[layer].name}, {view.layers[layer].heads[pair.head]}"
    see = f"{pair.see} In {head}, “{pair.query}” gives {weight:.0%} of its weight to “{pair.key}”."
    export_html(Page.from_views([view, *([other] if other else [])], pair.title), target / f"{pair.name}.html")
    place = {"view": 0, "layer": layer, "head": pair.head, "query": query, "key": key}
    address = f"{pair.name}.html#{urlencode(place | ({'compare': 1} if other else {}))}"
    picture = figure_png(plot_view(view, layer, pair.head, width="single", title=""), 120)
    return _Card(pair.name, address, pair.title, see, picture)


def _write_answers(target: Path) -> Iterator[_Card]:
    """Write two pages of answers, with the tables to which their commands refer."""
    random = np.random.default_rng(0)
    x = np.sort(random.uniform(0, 5, 120)).round(2)
    y = (2 * np.sin(x) + x**0.8 + random.normal(0, 0.5, 120)).round(2)
    across, up = random.uniform(0, 10, (2, 300)).round(1)
    height = (np.sin(across / 2) * np.cos(up / 3) * 100 + random.normal(0, 10, 300) + 300).round(0)
    tables = (
        ("curve", "A soft query", {"x": x, "y": y}, "x", "y", "2.5", "Drag the line: rows near it have weight, and the "
         "answer is their mean. A larger bandwidth smooths, a smaller one follows the noise."),
        ("map", "A soft query on a map", {"east": across, "north": up, "height": height}, "east,north", "height", "5,5",
         "Move the marker: rows around it have weight. With one neighbour, the map falls into cells."),
    )  # fmt: skip
    for name, title, table, key, value, query, see in tables:
        rows = zip(*table.values(), strict=True)
        lines = [",".join(table), *(",".join(f"{cell:g}" for cell in row) for row in rows)]
        _write(target / f"{name}.csv", ("\n".join(lines) + "\n").encode())
        database = Database.open(target / f"{name}.csv", key, value, cache=False)
        source = TableSource.of_table(f"{name}.csv", key=",".join(database.key), value=value)
        page = AnswerPage(database, source, query=query)
        export_answers(page, target / f"{name}.html")
        yield _Card(name, f"{name}.html", title, see, page.picture())


def _write(path: Path, content: bytes) -> None:
    write_atomic(path, lambda stream: stream.write(content), "the gallery")


def _index(cards: list[_Card]) -> str:
    """Return the HTML text of the index page, which has no scripts."""
    items = "".join(
        f'<li><a href="{html.escape(card.address)}"><img src="{card.name}.png" alt="" loading="lazy">'
        f"<strong>{html.escape(card.title)}</strong></a><p>{html.escape(card.see)}</p></li>\n"
        for card in cards
    )
    return read_web_file("gallery.html").replace("<!-- items -->\n", items)
