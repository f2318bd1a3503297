"""Notebook widget that shows the page of answers and answers its requests in Python."""

from __future__ import annotations

import base64
from os import PathLike, fspath
from typing import TYPE_CHECKING, Unpack

from qkv.look.answers.answer_page import AnswerPage
from qkv.look.answers.answer_settings import AnswerSettings, AskArguments, TableSource
from qkv.look.widget import page_widget

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from qkv.database.protocol import Queryable


def explorer(
    database: Queryable,
    query: str | None = None,
    *,
    file: str | PathLike[str] | None = None,
    **options: Unpack[AskArguments],
) -> AnyWidget:
    """Create a notebook widget on which a query is moved over the rows of a database, and the answer follows.

    A key of one column of numbers or dates has an axis, one of two such columns a map; other queries are typed. The
    widget shows the weights of the rows, the answer with its errors, and the call that gives the same answer.

    Args:
        database: a database in memory or on disk.
        query: the first query; None: near the middle of the keys.
        file: the file or store of the database, from which the page makes the command `qkv ask`; None: no command.
        options: the first settings, as in `Database.ask`: `score`, `normalizer` and `aggregate` by name, `where`,
            `min_similarity`, `max_distance`, and `top`, the number of rows of evidence.

    Raises:
        MissingPackageError: anywidget is not installed.
        QueryError: the query does not fit the key, or the predicate fails.
        OptionError: the name of a score or of a normalizer is unknown.

    Example:
        >>> from qkv import Database, look
        >>> pay = Database.open({"years": [1, 2, 3, 4], "pay": [10, 12, 14, 16]}, key="years", value="pay")
        >>> shown = look.explorer(pay, "2.5")  # doctest: +SKIP
    """
    settings = AnswerSettings.from_options(**options)
    key, value = ",".join(database.key), database.value
    source = None if file is None else TableSource.of_table(fspath(file), key=key, value=value)
    page = AnswerPage(database, source, query=query, settings=settings)

    def respond(message: object) -> tuple[dict[str, object], list[bytes]]:
        request = message if isinstance(message, dict) else {}
        return {"id": request.get("id"), "response": page.respond(request.get("request"))}, []

    def image() -> tuple[dict[str, str], dict[str, object]]:
        return {"image/png": base64.b64encode(page.picture()).decode(), "text/plain": repr(page)}, {}

    return page_widget("answers.js", "style.css", "answers.css")(page.meta(), respond, image)
