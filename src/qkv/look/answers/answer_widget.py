"""Notebook widget that shows the page of answers and answers its requests in Python."""

from __future__ import annotations

import base64
from os import PathLike, fspath
from typing import TYPE_CHECKING

from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_settings import AnswerSettings, TableSource
from qkv.look.widget import page_widget

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from qkv.database.protocol import Queryable

__all__ = ["explorer"]


def explorer(
    database: Queryable,
    query: str | None = None,
    *,
    file: str | PathLike[str] | None = None,
    score: str | None = None,
    normalizer: str | None = None,
    aggregate: str | None = None,
    where: str | None = None,
    min_similarity: float | None = None,
    max_distance: float | None = None,
    top: int | None = None,
) -> AnyWidget:
    """Create a notebook widget on which a query is moved over the rows of a database, and the answer follows.

    A key of one column of numbers or dates has an axis, one of two such columns a map; other queries are typed. The
    widget shows the weights of the rows, the answer with its errors, and the call that gives the same answer.

    Args:
        database: a database in memory or on disk.
        query: the first query; None: near the middle of the keys.
        file: the file or store of the database, from which the page makes the command `qkv ask`; None: no command.
        score: the first score, by name as in `Database.ask`.
        normalizer: the first normalizer, by name as in `Database.ask`.
        aggregate: "mean", "vote" or "local-linear", as in `Database.ask`.
        where: a SQL predicate, as in `Database.ask`.
        min_similarity: the least similarity of a match, as in `Database.ask`.
        max_distance: the largest distance of a match, as in `Database.ask`.
        top: number of rows of evidence; None: 10.

    Raises:
        MissingPackageError: anywidget is not installed.
        QueryError: the query does not fit the key, or the predicate fails.
        OptionError: the name of a score or of a normalizer is unknown.

    Example:
        >>> from qkv import Database, look
        >>> pay = Database.open({"years": [1, 2, 3, 4], "pay": [10, 12, 14, 16]}, key="years", value="pay")
        >>> shown = look.explorer(pay, "2.5")  # doctest: +SKIP
    """
    settings = AnswerSettings.from_options(
        score=score,
        normalizer=normalizer,
        aggregate=aggregate,
        where=where,
        min_similarity=min_similarity,
        max_distance=max_distance,
        top=top,
    )
    source = (
        None if file is None else TableSource.of_table(fspath(file), key=",".join(database.key), value=database.value)
    )
    page = AnswerPage(database, source, query=query, settings=settings)

    def respond(message: object) -> tuple[dict[str, object], list[bytes]]:
        request = message if isinstance(message, dict) else {}
        return {"id": request.get("id"), "response": page.respond(request.get("request"))}, []

    def image() -> tuple[dict[str, str], dict[str, object]]:
        return {"image/png": base64.b64encode(page.picture()).decode(), "text/plain": repr(page)}, {}

    return page_widget("answers.js", ("style.css", "answers.css"), page.meta(), respond, image)
