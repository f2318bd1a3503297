"""Refusal of requests that pages of other sites send to a server on this machine through the browser of its user."""

from __future__ import annotations

from collections.abc import Collection, Mapping

__all__ = ["cross_site_reason"]


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
