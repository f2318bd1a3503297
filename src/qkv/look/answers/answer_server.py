"""Local web server of the page of answers, whose predicates are evaluated by a process of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from qkv.database.io.predicates import PredicateProcess
from qkv.look.answers.answer_page import AnswerPage
from qkv.look.server import ServedPage, serve, serve_in_thread


@contextlib.contextmanager
def _responding(page: AnswerPage) -> Iterator[Callable[[object], dict[str, object]]]:
    """Yield the function that responds to requests."""
    with contextlib.closing(PredicateProcess()) as predicates:

        def respond(request: object) -> dict[str, object]:
            with predicates.used():
                return page.respond(request)

        yield respond


@contextlib.contextmanager
def serve_answers_in_thread(page: AnswerPage, port: int = 0) -> Iterator[str]:
    """Serve the page of answers from a background thread during a `with` block.

    Yields:
        The address of the page, including its token.
    """
    with _responding(page) as respond, serve_in_thread(ServedPage(page, respond=respond), port) as address:
        yield address


def serve_answers(page: AnswerPage, **options: Any) -> None:
    """Serve the page of answers until the process is interrupted, with the options of `serve`."""
    with _responding(page) as respond:
        serve(lambda _: page, respond=respond, **options)
