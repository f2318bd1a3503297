"""Export of the page of answers as one HTML file, which holds the answers to a grid of queries.

The answers are those of the engine, as texts and coordinates: the file computes nothing, and works without a network.
Between the places of the grid it shows the answer to the nearest place, and names its query. Queries for keys of texts
have no grid, so that these pages are not exported.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from qkv.core.progress import Progress, report
from qkv.errors import DataError
from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_settings import AnswerSettings
from qkv.look.html_export import document_pieces, part_text, write_pieces

MOST_SAVED_ROWS = 20_000
_PLACES, _CELLS = 301, 29
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_NEIGHBOURS = ("", "1", "5", "20")
_QUERIES_AT_ONCE = 50
_MOST_DRAWN = 80


def export_answers(page: AnswerPage, path: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Write a page of answers to a self-contained HTML file atomically.

    The file has 301 queries along an axis, or 29 × 29 on a map, for five bandwidths and four numbers of neighbours.

    Raises:
        DataError: the key is of another kind, the table has more than 20,000 rows, the path does not end in .html, or
            the file cannot be written.
    """
    if page.mode == "typed":
        raise DataError(
            "the key of an exported page must be one or two columns of numbers or dates, got "
            f"{', '.join(page.database.key)}. Serve the page instead, on which queries are typed: qkv ask … --page."
        )
    if len(page.database) > MOST_SAVED_ROWS:
        raise DataError(
            f"the table of an exported page must have at most {MOST_SAVED_ROWS:,} rows, got {len(page.database):,}. "
            "Export a part of the table, or serve the page instead: qkv ask … --page."
        )
    meta = page.meta()
    choices = _choices(page.settings, meta)
    queries, places = _grid(page)
    meta["printed"] = False
    meta["saved"] = {
        "bandwidths": list(dict.fromkeys(choice.bandwidth for choice in choices)),
        "neighbours": list(dict.fromkeys(choice.neighbours for choice in choices)),
        "queries": queries,
        "places": places,
        "cells": _CELLS if page.mode == "map" else 0,
    }
    parts = _parts(page, choices, queries, progress)
    return write_pieces(path, document_pieces(page.title, "answers_exported.js", meta, parts))


def _choices(settings: AnswerSettings, meta: dict[str, object]) -> list[AnswerSettings]:
    """Return the settings whose answers are saved: those of the page, and others of bandwidth and neighbours."""
    found = meta["bandwidth"]
    chosen = [float(settings.bandwidth)] if settings.bandwidth else found if isinstance(found, list) else []
    bandwidths = [settings.bandwidth]
    if chosen:
        middle = math.exp(sum(map(math.log, chosen)) / len(chosen))
        bandwidths = [settings.bandwidth if each == 1 else f"{middle * each:.3g}" for each in _FACTORS]
    neighbours = dict.fromkeys([settings.neighbours, *_NEIGHBOURS])
    return [replace(settings, bandwidth=b, neighbours=n) for b, n in itertools.product(bandwidths, neighbours)]


def _grid(page: AnswerPage) -> tuple[list[str], list[list[float]]]:
    """Return the queries of the grid with the first query of the page at the end, and their coordinates."""
    if len(page.axes) == 1:
        places = [[at] for at in np.linspace(*page.axes[0].ends, _PLACES).tolist()]
        queries = list(dict.fromkeys(map(page.query_at, places)))
    else:
        steps = [np.linspace(*axis.ends, 2 * _CELLS + 1)[1::2].tolist() for axis in page.axes]
        queries = [page.query_at([across, up]) for up in steps[1] for across in steps[0]]
    queries.append(page.query)
    return queries, [page.place_of(query) or [] for query in queries]


def _parts(
    page: AnswerPage, choices: list[AnswerSettings], queries: list[str], progress: Progress | None
) -> Iterator[tuple[str, str]]:
    points = page.respond({"what": "points", "settings": {"where": page.settings.where}})
    yield "points", part_text(_encoded(points))
    for number, choice in enumerate(choices):
        answers: list[dict[str, object]] = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            some = queries[start : start + _QUERIES_AT_ONCE]
            answers += page.describe(some, page.options(choice), _MOST_DRAWN)
            report(progress, "answering", number * len(queries) + len(answers), len(choices) * len(queries))
        yield f"answers/{number}", part_text(_encoded(answers))


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
