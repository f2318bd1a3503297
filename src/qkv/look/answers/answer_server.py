"""Local web server of the page of answers, whose predicates are evaluated by a process of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from qkv.database.io.predicates import PredicateProcess
from qkv.look.answers.answer_page import AnswerPage
from qkv.look.server import serve


@contextlib.contextmanager
def responding(page: AnswerPage) -> Iterator[Callable[[object], dict[str, object]]]:
    """Yield the function that responds to requests."""
    with contextlib.closing(PredicateProcess()) as predicates:

        def respond(request: object) -> dict[str, object]:
            with predicates.used():
                return page.respond(request)

        yield respond


def serve_answers(page: AnswerPage, **options: Any) -> None:
    """Serve the page of answers until the process is interrupted, with the options of `serve`."""
    with responding(page) as respond:
        serve(lambda _: page, respond=respond, **options)
