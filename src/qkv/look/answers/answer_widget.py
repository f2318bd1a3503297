"""Notebook widget that shows the page of answers and answers its requests in Python."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import cache
from os import PathLike, fspath
from typing import TYPE_CHECKING

from qkv.core.extras import require_packages
from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_settings import AnswerSettings, TableSource
from qkv.look.bundle import bundle, read_web_file
from qkv.look.widget import display_with_picture

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
    return _widget_class()(AnswerPage(database, source, query=query, settings=settings))


@cache
def _widget_class() -> Callable[[AnswerPage], AnyWidget]:
    require_packages("the widget needs", "look", "anywidget")
    import anywidget
    import traitlets

    class AnswerWidget(anywidget.AnyWidget):
        """A notebook widget that sends answers to the browser on request."""

        _esm = bundle("answers.js")
        _css = read_web_file("style.css") + read_web_file("answers.css")
        meta = traitlets.Dict().tag(sync=True)
        picture = traitlets.Unicode().tag(sync=True)

        def __init__(self, page: AnswerPage) -> None:
            super().__init__(meta=page.meta())
            self._page = page
            self.on_msg(self._respond)

        def _respond(self, _: object, message: object, buffers: Sequence[bytes]) -> None:
            request = message if isinstance(message, dict) else {}
            self.send({"id": request.get("id"), "response": self._page.respond(request.get("request"))})

        def _ipython_display_(self) -> None:
            picture = base64.b64encode(self._page.picture()).decode()
            display_with_picture(self, ({"image/png": picture, "text/plain": repr(self._page)}, {}))

    return AnswerWidget
