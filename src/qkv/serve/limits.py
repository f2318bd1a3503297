"""The class `Limits`, which holds the limits of a server, and the errors with the HTTP status of a refusal."""

from __future__ import annotations

from dataclasses import dataclass, fields

from qkv.errors import DamagedError, MissingPackageError, OptionError, QkvError


@dataclass(frozen=True)
class Limits:
    """Limits of a server. A request beyond one of them is refused with the status in parentheses.

    Args:
        body: largest size of a request body in bytes (413).
        queries: largest number of queries of a request (422).
        rows: largest number of rows of evidence per query, and of passages per search (422).
        waiting: largest number of requests that are answered or wait at the same time (429).
        seconds: longest time until a request is answered (504), or until its body has arrived (408).

    Raises:
        OptionError: A limit is not positive.

    Example:
        >>> Limits(seconds=5).queries
        8192
    """

    body: int = 8 * 2**20
    queries: int = 8192
    rows: int = 1000
    waiting: int = 256
    seconds: float = 60.0

    def __post_init__(self) -> None:
        for each in fields(self):
            number = getattr(self, each.name)
            if not 0 < number < float("inf"):
                raise OptionError(f"{each.name} must be positive and finite, got {number!r}. Pass a larger limit.")


class RequestError(Exception):
    """Raised when a request is refused, with a status of HTTP and one sentence."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def status_of(error: QkvError) -> int:
    """Return the status of HTTP for an error: 422 for what the request asks, 503 for files or packages of the server.

    Example:
        >>> from qkv.errors import QueryError
        >>> status_of(QueryError("the query must be a finite number")), status_of(DamagedError("a file is missing"))
        (422, 503)
    """
    return 503 if isinstance(error, DamagedError | MissingPackageError) else 422
