"""The local server refuses every request that its own page would not make, with one status and one sentence."""

import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.views import View
from tests.effort import cases

_FOLLOWED = "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document"


@pytest.fixture(scope="module")
def served():
    """A page of one map that is served: host, and path with the token."""
    page = Page.from_views(View.from_weights(np.eye(2)[None, None], ["a", "b"]))
    with serve_in_thread(ServedPage(page=page)) as address:
        host, token = address.removeprefix("http://").strip("/").split("/")
        yield host, f"/{token}/"


def ask(served, request: bytes) -> tuple[int, bytes]:
    """Send the bytes of a request, and return the status and everything that was received."""
    host, _ = served
    with socket.create_connection((host.split(":")[0], int(host.split(":")[1])), timeout=120) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(65536):
            received += part
    return int(received.split(b" ", 2)[1]), received


def get(served, path: str, *headers: str, method: str = "GET") -> tuple[int, bytes]:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {served[0]}", "Connection: close", *headers]
    return ask(served, ("\r\n".join(lines) + "\r\n\r\n").encode())


def test_the_page_and_its_data_are_delivered_to_the_page_itself(served):
    assert get(served, served[1])[0] == 200
    same = f"Origin: http://{served[0]}", "Sec-Fetch-Site: same-origin"
    assert get(served, served[1] + "meta.json", *same)[0] == 200
    assert get(served, served[1], "Sec-Fetch-Site: none")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        ["Origin: http://example.com"],
        ["Origin: null"],
        ["Origin: http://127.0.0.1:1"],
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-site"],
        ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"],
        ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"],
    ],
)
def test_a_request_from_another_site_is_refused_although_it_has_the_token(served, headers):
    for path in ("", "meta.json", "web/page.js", "export.html"):
        status, received = get(served, served[1] + path, *headers)
        assert status == 403
        assert b"header must be" in received


def test_a_link_from_another_site_can_be_followed_to_the_page(served):
    assert get(served, served[1], "Sec-Fetch-Site: cross-site", _FOLLOWED)[0] == 200


@pytest.mark.parametrize("path", ["*", "", "/", "//", "meta.json", "/wrong/", "/%00/", "/%ff%fe/", "/é/"])
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "HEAD", "POST", "TRACE", "X"])
def test_no_method_reaches_the_application_without_the_token(served, path, method):
    status, received = get(served, path or "*", method=method)
    assert status in (400, 403)
    assert b"Traceback" not in received


def test_a_method_that_the_page_does_not_use_is_refused_with_405(served):
    for method in ("OPTIONS", "POST", "DELETE"):
        assert get(served, served[1], method=method)[0] == 405


@settings(max_examples=cases(60))
@given(
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=700),
    method=st.sampled_from(["GET", "OPTIONS", "PUT"]),
    token=st.booleans(),
)
def test_no_path_makes_the_server_fail(served, path, method, token):
    status, _ = get(served, served[1] * token + path, method=method)
    assert status < 500
