"""Refusal of requests that pages of other sites send to a server on this machine through the browser of its user."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

_SINGLE = (
    *(b"authorization", b"content-length", b"content-type", b"host", b"origin", b"sec-fetch-dest", b"sec-fetch-mode"),
    *(b"sec-fetch-site", b"transfer-encoding"),
)


def ambiguous_reason(names: Sequence[bytes]) -> str:
    """Return why two programs may read a request in different ways; "" if there is one way.

    Args:
        names: the names of its headers in lower case.

    Example:
        >>> ambiguous_reason([b"host", b"origin", b"origin"])
        'the header Origin must be given once, got it repeatedly'
    """
    if b"content-length" in names and b"transfer-encoding" in names:
        return "the length of the body must be given once, got Content-Length and Transfer-Encoding"
    twice = next((name.decode().title() for name in _SINGLE if names.count(name) > 1), "")
    return twice and f"the header {twice} must be given once, got it repeatedly"


def cross_site_reason(headers: Mapping[str, str], hosts: Collection[str]) -> str:
    """Return why a request is refused as one of a page of another site; "" if it is not.

    A page of another site can send requests to a local address, and can read the responses if its host name is made
    to point there. Its requests have an Origin or a Sec-Fetch-Site header with that site, or its host name as Host.

    Args:
        headers: the headers of the request, with names in lower case.
        hosts: accepted values of the Host header, including the port.

    Example:
        >>> cross_site_reason({"host": "127.0.0.1:8000"}, {"127.0.0.1:8000"})
        ''
        >>> cross_site_reason({"host": "evil.example"}, {"127.0.0.1:8000"})
        "the Host header must be the address of this server, got 'evil.example'"
    """
    host, origin, site = (headers.get(name, "") for name in ("host", "origin", "sec-fetch-site"))
    followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    if host not in hosts:
        return f"the Host header must be the address of this server, got {host!r}"
    if origin and origin != f"http://{host}":
        return f"the Origin header must be the address of this server, got {origin!r}"
    # A person may follow a link on another site.
    if site not in ("", "same-origin", "none") and not followed:
        return f"the Sec-Fetch-Site header must be same-origin or none, got {site!r}"
    return ""
