"""The data sent to the browser: views, the server's responses, the exported file and the widget."""

import dataclasses
import gzip
import http.client
import json
import re
import threading
import time
from importlib.resources import files
from urllib.parse import urlsplit

import numpy as np
import pytest

from qkv.errors import DataError, OptionError, ShapeError
from qkv.look.axis import Axis
from qkv.look.bundle import WEB_FILES, bundle, read_web_file
from qkv.look.html_export import export_html, html_pieces
from qkv.look.page import Page
from qkv.look.rollout import flow
from qkv.look.server import ServedPage, serve, serve_in_thread
from qkv.look.views import HeadRole, View
from qkv.look.widget import respond

EVIL = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "$&", "\u2028"]


def view(tokens=("a", "b", "c"), layers=2, heads=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(len(tokens)), (layers, heads, len(tokens)))
    return View.from_weights(weights, list(tokens), **options)


# -- views ----------------------------------------------------------------------------------------------


def test_the_metadata_holds_tokens_layers_ranges_and_roles():
    one = view()
    one.roles[1, 2] = (HeadRole("previous", 0.9, 0.1),)
    meta = json.loads(json.dumps(Page.from_views(one, "title").meta()))
    assert meta["title"] == "title"
    (told,) = meta["views"]
    assert told["queries"]["tokens"] == ["a", "b", "c"]
    assert told["keys"] is None
    assert told["layers"][1] == {"name": "layer 1", "heads": ["head 0", "head 1", "head 2"]}
    ranges = [[layer_range.exponent for layer_range in layer.ranges] for layer in one.layers]
    assert [[each["exponent"] for each in layer] for layer in told["ranges"]] == ranges
    assert all(each["normalized"] for layer in told["ranges"] for each in layer)
    assert told["roles"] == {"1,2": [{"role": "previous", "score": 0.9, "baseline": 0.1, "sentences": 0}]}


def test_the_bytes_of_a_map_are_its_codes_row_by_row():
    one = view()
    codes = np.frombuffer(Page.from_views(one).read("map", (0, 1, 2)), "<u2").reshape(3, 3)
    assert np.array_equal(codes, one.layers[1].codes[2])
    assert len(Page.from_views(one).read("thumbnails", (0,))) == 6 * 32 * 32 * 2


def test_an_array_of_two_axes_is_one_head_and_of_three_one_layer():
    weights = np.random.default_rng(0).dirichlet(np.ones(3), (2, 3))
    (layer,) = View.from_weights(weights, "abc").layers
    assert layer.heads == ("head 0", "head 1")
    one = View.from_weights(weights[0], "abc", mask=np.tri(3))
    assert [layer.heads for layer in one.layers] == [("head 0",)]
    assert np.allclose(one.weights(0, 0), np.where(np.tri(3), weights[0], 0), rtol=5e-3)


def test_cross_attention_has_different_tokens_on_each_axis():
    one = View.from_weights(np.ones((1, 1, 2, 3)) / 3, ["le", "chat"], ["the", "cat", "."])
    assert one.kind == "cross"
    assert one.meta()["keys"]["tokens"] == ["the", "cat", "."]


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 4), (1, 1, 3, 4), (0, 1, 3, 3)])
def test_weights_that_do_not_fit_the_tokens_are_refused(shape):
    with pytest.raises(ShapeError, match=r"\(layers, heads, 3, 3\)"):
        View.from_weights(np.ones(shape), ["a", "b", "c"])


@pytest.mark.parametrize("place", [(1, 0, 0), (0, 2, 0), (0, 0, 3), (-1, 0, 0)])
def test_a_map_that_does_not_exist_is_refused(place):
    with pytest.raises(LookupError, match="must be one of thumbnails"):
        Page.from_views(view()).read("map", place)


def test_a_view_is_printed_in_one_line():
    printed = repr(view(["a" * 50] * 100, name="three words"))
    assert printed == "View('three words', 2 layers, 6 maps of 100 queries × 100 keys)"


def test_a_page_without_views_is_refused():
    with pytest.raises(OptionError, match="at least one view"):
        Page.from_views([])


# -- modules --------------------------------------------------------------------------------------------


def declared(name):
    text = (files("qkv.look") / "web" / name).read_text(encoding="utf-8")  # with its indentation
    return set(re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("entry", ["heads.js", "exported.js"])
def test_a_bundle_holds_each_module_once_and_imports_nothing(entry):
    text = bundle(entry)
    code = re.sub(r"/\*\*.*?\*/", "", text, flags=re.DOTALL)
    assert not re.search(r"^import |\bimport\(", code, re.MULTILINE)
    modules = re.findall(r"^// (\w+\.js)$", text, re.MULTILINE)
    assert modules[-1] == entry
    assert len(modules) == len(set(modules)) > 8
    assert len(re.findall(r"^export ", text, re.MULTILINE)) == (entry == "heads.js")


def test_no_two_modules_of_a_bundle_declare_the_same_name():
    names = [name for name in WEB_FILES if name.endswith(".js") and name not in ("served.js", "exported.js")]
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert not declared(one) & declared(other), (one, other)


def test_every_file_of_the_page_is_listed_and_every_listed_file_is_there():
    there = {path.name for path in (files("qkv.look") / "web").iterdir()}
    assert there == set(WEB_FILES)


def test_no_module_loads_anything_from_elsewhere():
    for name in WEB_FILES:
        text = read_web_file(name).replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, name
        assert "https:" not in text, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text), name


# -- export ---------------------------------------------------------------------------------------------


def data_of(text):
    """Return the metadata and the compressed parts of an exported file."""
    meta = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    parts = dict(re.findall(r'<script type="text/plain" id="([\w/]+)">(.*?)</script>', text, re.DOTALL))
    return {"meta": meta, "parts": {name: unpacked(part) for name, part in parts.items()}}


def unpacked(text):
    """Return the bytes of a part, of which each letter holds seven bits."""
    letters = np.array([b"\0\r<"[ord(letter) - 128] if ord(letter) > 127 else ord(letter) for letter in text], np.uint8)
    bits = np.unpackbits(letters[:, None], axis=1)[:, 1:].ravel()
    return gzip.decompress(np.packbits(bits[: len(bits) // 8 * 8]).tobytes())


def test_an_exported_file_holds_every_map():
    pages = Page.from_views([view(), view(["x", "y"], seed=1)])
    data = data_of("".join(html_pieces(pages)))
    for i, one in enumerate(pages.views):
        for j, layer in enumerate(one.layers):
            raw = data["parts"][f"layer/{i}/{j}"]
            low, high = np.frombuffer(raw, np.uint8).reshape(2, -1).astype(int)
            np.testing.assert_array_equal(low + 256 * high, layer.codes.ravel())
    assert data["meta"] == json.loads(json.dumps(pages.meta()))


def test_tokens_that_look_like_scripts_stay_text_in_the_file():
    text = "".join(html_pieces(Page.from_views(view(EVIL), "</title><script>alert(1)</script>")))
    assert data_of(text)["meta"]["views"][0]["queries"]["tokens"] == EVIL
    assert text.count("<script") == 2 + 3
    assert "<img" not in text
    assert text.split("<style>")[0].count("</title>") == 1


def test_the_exported_file_allows_only_its_own_script():
    text = "".join(html_pieces(Page.from_views(view())))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_an_export_reports_the_layers_of_all_views(tmp_path):
    calls = []
    export_html(Page.from_views([view(), view(layers=1)]), tmp_path / "a.html", progress=lambda *one: calls.append(one))
    assert calls == [("writing the page", done, 3) for done in (1, 2, 3)]


def test_an_export_is_atomic_and_ends_in_html(tmp_path):
    target = export_html(Page.from_views(view()), tmp_path / "a.html")
    assert target.read_text(encoding="utf-8").endswith("</html>\n")
    with pytest.raises(DataError, match=r"must end in \.html"):
        export_html(Page.from_views(view()), tmp_path / "a.txt")
    with pytest.raises(DataError, match="must exist, got"):
        export_html(Page.from_views(view()), tmp_path / "none" / "a.html")
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


# -- server ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    served = ServedPage(page=Page.from_views([view(), view(EVIL, seed=1)], "two texts"))
    with serve_in_thread(served) as address:
        yield urlsplit(address), served


def get(address, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=120)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_its_modules_and_its_maps_are_served(server):
    address, served = server
    for path, kind in (("", "text/html"), ("web/heads.js", "text/javascript"), ("web/style.css", "text/css")):
        answer, body = get(address, address.path + path)
        assert answer.status == 200
        assert answer.getheader("content-type").startswith(kind)
        assert body
    answer, body = get(address, address.path + "meta.json")
    assert json.loads(body)["views"][1]["queries"]["tokens"] == EVIL
    assert get(address, address.path + "map/0/1/2")[1] == served.page.read("map", (0, 1, 2))
    assert get(address, address.path + "thumbnails/1")[1] == served.page.read("thumbnails", (1,))
    answer, body = get(address, address.path + "export.html")
    assert body.decode() == "".join(html_pieces(served.page))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_host_is_refused(server, host):
    address, _ = server
    answer, _ = get(address, address.path, Host=host.format(port=address.port))
    assert answer.status == 403


@pytest.mark.parametrize("path", ["/", "/meta.json", "/wrong/", "/wrong/meta.json", "//", "/%2e%2e/"])
def test_a_request_without_the_token_is_refused(server, path):
    address, _ = server
    answer, body = get(address, path)
    assert answer.status == 403
    assert b"views" not in body


@pytest.mark.parametrize(
    "path",
    [
        "web/../server.py",
        "web/..%2fserver.py",
        "web/%2e%2e/%2e%2e/errors.py",
        "web/..\\server.py",
        "web//etc/passwd",
        "web/heads.js%00.html",
        "map/9/0/0",
        "map/0/0/-1",
        "map/0/0/99999999999999999999",
        "map/0/0/x",
        "thumbnails/7",
        "nothing",
    ],
)
def test_an_unknown_path_is_not_found(server, path):
    address, _ = server
    answer, body = get(address, address.path + path)
    assert answer.status == 404
    assert b"import" not in body
    assert b"root:" not in body


@pytest.mark.parametrize(
    ("path", "headers"),
    [("map/0/0/" + "9" * 100_000, {}), ("web/" + "../" * 30_000 + "etc/passwd", {}), ("", {"Cookie": "a" * 200_000})],
    ids=["number", "way up", "header"],
)
def test_a_request_that_is_too_large_is_refused_and_the_next_is_answered(server, path, headers):
    address, served = server
    try:
        answer, body = get(address, address.path + path, **headers)
        assert 400 <= answer.status < 500
        assert b"root:" not in body
    except (ConnectionError, http.client.HTTPException):
        pass  # closed without an answer
    assert get(address, address.path + "thumbnails/0")[1] == served.page.read("thumbnails", (0,))


def test_a_text_of_a_million_characters_is_shown_as_one(server):
    huge = View.from_weights(np.eye(2)[None, None], ["w" * 10**6, "<script>"], name="n" * 10**5)
    text = "".join(html_pieces(Page.from_views(huge)))
    data = data_of(text)
    assert data["meta"]["views"][0]["queries"]["tokens"] == ["w" * 10**6, "<script>"]
    assert text.count("<script") == 2 + 2


def test_every_answer_forbids_other_sources_and_frames(server):
    address, _ = server
    for path in (address.path, address.path + "meta.json", address.path + "nothing", "/wrong/"):
        answer, _ = get(address, path)
        policy = answer.getheader("content-security-policy")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.getheader("x-content-type-options") == "nosniff"
        assert answer.getheader("cache-control") == "no-store"


def test_other_http_methods_change_nothing(server):
    address, _ = server
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=120)
    connection.request("POST", address.path + "meta.json", body=b"{}")
    assert connection.getresponse().status == 405
    connection.close()


def test_the_server_listens_on_the_local_machine_only(server):
    address, _ = server
    assert address.hostname == "127.0.0.1"


def test_the_server_reports_progress_and_errors_while_the_page_is_created():
    served = ServedPage()
    with serve_in_thread(served) as given:
        address = urlsplit(given)
        served.progress("reading", 3, 7)
        assert json.loads(get(address, address.path + "meta.json")[1]) == {"task": "reading", "done": 3, "total": 7}
        assert get(address, address.path + "map/0/0/0")[0].status == 503
        served.error = "the text is too long"
        answer, body = get(address, address.path + "meta.json")
        assert answer.status == 500
        assert json.loads(body) == {"error": "the text is too long"}


def test_the_browser_receives_the_reason_before_the_server_stops():
    """`serve` raises an error of the page only after the browser has received it."""
    addresses, answers = [], []

    def create_page(progress):
        def poll():
            address = urlsplit(addresses[0].split()[0])
            while not answers or answers[-1][0] == 200:
                answer, body = get(address, address.path + "meta.json")
                answers.append((answer.status, json.loads(body)))

        addresses.append(found[0])
        threading.Thread(target=poll, daemon=True).start()
        while not answers:
            time.sleep(0.01)
        raise DataError("the text is too long")

    found = []
    with pytest.raises(DataError, match="too long"):
        serve(create_page, browser=False, notify=found.append)
    assert answers[-1] == (500, {"error": "the text is too long"})


def test_flow_is_computed_for_single_pairs_of_views_with_means():
    rng = np.random.default_rng(0)
    means = rng.dirichlet(np.ones(3), (2, 3)).astype(np.float32)
    one = dataclasses.replace(view(), layer_means=means)
    page = Page.from_views([one, view()])
    assert json.loads(page.read("flow", (0, 2, 1))) == pytest.approx(flow(means[:, None])[2, 1])
    assert [each["flow"] for each in page.meta()["views"]] == [True, False]
    for wrong in ((1, 2, 1), (0, 3, 0), (0, 0)):
        with pytest.raises(LookupError):
            page.read("flow", wrong)


def test_two_servers_have_two_tokens():
    assert ServedPage().token != ServedPage().token
    assert len(ServedPage().token) >= 20


def test_a_port_in_use_is_refused(server):
    address, _ = server
    with pytest.raises(OptionError, match=f"got port {address.port}"), serve_in_thread(ServedPage(), address.port):
        pass


# -- widget ---------------------------------------------------------------------------------------------


def test_the_kernel_answers_requests_for_maps_and_refuses_others():
    page = Page.from_views(view())
    assert respond(page, {"id": 4, "what": "map", "place": [0, 1, 2]}) == ({"id": 4}, [page.read("map", (0, 1, 2))])
    for wrong in ({"id": 5, "what": "map", "place": [0, 1, 9]}, {"id": 5, "what": "__init__", "place": []}, {"id": 5}):
        answer, data = respond(page, wrong)
        assert answer["id"] == 5
        assert "must be one of thumbnails" in answer["error"]
        assert data == []
    assert respond(page, "nonsense")[0]["id"] is None


def test_the_widget_has_the_module_and_the_metadata_of_the_page():
    pytest.importorskip("anywidget")
    from qkv.look.widget import widget

    page = Page.from_views(view(), "title")
    made = widget(page)
    assert made.meta == page.meta()
    assert made._esm == bundle("heads.js")


def test_an_axis_of_plain_words_has_those_words():
    assert Axis.from_words(["a", "b"]).words == (0, 1)
