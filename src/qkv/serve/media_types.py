"""Media types of requests and responses: what a Content-Type header says, and what an Accept header prefers."""

from __future__ import annotations

from collections.abc import Sequence

from qkv.serve.limits import RequestError

__all__ = ["choose_type", "content_type"]


def content_type(header: str, known: Sequence[str]) -> str:
    """Return the media type of a body.

    Raises:
        RequestError: The type is none of `known`, or its text is not UTF-8 (415).

    Example:
        >>> content_type("application/json; charset=utf-8", ("application/json",))
        'application/json'
    """
    kind, *parameters = (part.strip().lower() for part in header.split(";"))
    charsets = [part.partition("=")[2].strip('" ') for part in parameters if part.startswith("charset")]
    if kind not in known or any(charset not in ("utf-8", "utf8") for charset in charsets):
        raise RequestError(415, f"Content-Type must be {' or '.join(known)}, got {header[:80]!r}. Send one of them.")
    return kind


def choose_type(header: str, offered: Sequence[str]) -> str:
    """Return the media type that an Accept header prefers, the first one if it does not matter.

    Raises:
        RequestError: None of `offered` is accepted (406).

    Example:
        >>> choose_type("text/html, */*;q=0.5", ("application/json", "text/csv"))
        'application/json'
        >>> choose_type("application/json;q=0.5, text/csv", ("application/json", "text/csv"))
        'text/csv'
    """
    if not header.strip():
        return offered[0]
    shares = [(_share(header, kind), kind) for kind in offered]
    best, kind = max(shares, key=lambda pair: pair[0])
    if best <= 0:
        raise RequestError(406, f"Accept must be {' or '.join(offered)}, got {header[:80]!r}. Accept one of them.")
    return kind


def _share(header: str, kind: str) -> float:
    """Return the quality that an Accept header gives to a media type by its most specific range."""
    found: tuple[int, float] = (-1, 0.0)
    for item in header.lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        ranges = ("*/*", f"{kind.split('/')[0]}/*", kind)
        if name not in ranges:
            continue
        quality = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    quality = float(parameter[2:])
                except ValueError:
                    quality = 0.0
        found = max(found, (ranges.index(name), quality))
    return found[1]
