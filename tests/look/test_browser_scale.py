"""The colours and the numbers of maps in Chromium, compared with the true weights."""

import numpy as np
import pytest

from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.tiled_views import arrays_view
from qkv.look.views import View
from qkv.testing.libraries import turn
from tests import effort

from .chromium import DARKEST, needs_chromium, spot
from .colours import cell_colours, difference, luminance

pytest.importorskip("torch")
stats = pytest.importorskip("scipy.stats")
pytestmark = needs_chromium

PAPER = np.array([255, 255, 255])
DARK_PAPER = np.array([21, 24, 29])
KINDS = ("plain", "sink", "sharp", "local", "stripes")


def arrays(kind, tokens, seed=0):
    """Query and key of a causal head, as trained decoders have them."""
    rng = np.random.default_rng(seed)
    query, key = (rng.normal(size=(tokens, 32)).astype(np.float32) for _ in range(2))
    if kind == "sink":  # most of the weight is on the first token
        query[:, 0], key[:, 0], key[0, 0] = 6, 0, 6
    elif kind == "sharp":
        query *= 3
    elif kind == "local":  # the weight decreases with the distance
        angle = np.arange(tokens) / 16
        for rows in (query, key):
            rows[:, :4] = 3 * np.stack([np.cos(angle), np.sin(angle), np.cos(angle / 9), np.sin(angle / 9)], axis=1)
    elif kind == "stripes":
        query[:, 0], key[:, 0] = 3, 3 * (rng.random(tokens) < 0.05)
    return query, key


def causal_weights(query, key, rows):
    """Return the weights of a range of queries in float64; masked pairs are NaN."""
    logits = query[slice(*rows)].astype(float) @ key.astype(float).T / np.sqrt(query.shape[1])
    logits[np.arange(len(key)) > np.arange(*rows)[:, None]] = -np.inf
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.where(raised == 0, np.nan, raised) / raised.sum(axis=1, keepdims=True)


SHORT, LONG = [(128, ("sharp",)), (400, ("sink",))], [(3000, ("local",))]
ALL_SHORT, ALL_LONG = [(128, KINDS), (400, KINDS)], [(3000, KINDS), (20_000, ("plain", "sink"))]


@pytest.fixture(scope="module", params=[(SHORT, LONG), pytest.param((ALL_SHORT, ALL_LONG), marks=pytest.mark.long)])
def heads(request):
    """Views of causal heads: short maps as dense weights, long maps as tiles; and their arrays."""
    views, made = [], []
    for tokens, kinds in request.param[0]:
        pairs = [arrays(kind, tokens) for kind in kinds]
        weights = np.stack([causal_weights(*pair, (0, tokens)) for pair in pairs])
        words = [f"w{i}" for i in range(tokens)]
        views.append(View.from_weights(np.nan_to_num(weights)[None], words, name=str(tokens)))
        made.append(pairs)
    for tokens, kinds in request.param[1]:
        pairs = [arrays(kind, tokens) for kind in kinds]
        views.append(arrays_view(*map(np.stack, zip(*pairs, strict=True)), causal=True, name=str(tokens)))
        made.append(pairs)
    with serve_in_thread(ServedPage(page=Page.from_views(views))) as address:
        yield address, made


def places(tokens):
    """Parts of a map with at least three pixels per cell: the begin, the diagonal, the last queries, the first keys."""
    size = min(tokens, 170)
    middle, last = (tokens - size) // 2, tokens - size
    corners = {(0, 0), (middle, middle), (last, last), (last, 0), (middle, middle // 2)}
    return turn([(top, left, size, size) for top, left in sorted(corners)], 0, 2)


def measure(page, query, key, place, cursor, dark=False):
    """Return the share of visible cells above twice and below half the uniform weight, and the rank correlation."""
    top, left, rows, columns = place
    weights = causal_weights(query, key, (top, top + rows))[:, left : left + columns]
    uniform = 1 / np.arange(top + 1, top + rows + 1)[:, None]
    colours = cell_colours(page, rows, columns)
    row, column = cursor[0] - top, cursor[1] - left
    known = ~np.isnan(weights)
    # The frames of the cursor cover the cells beside it.
    known[max(0, row - 2) : row + 3] = False
    known[:, max(0, column - 2) : column + 3] = False
    shown = difference(colours, DARK_PAPER if dark else PAPER) >= 5
    many, few = known & (weights > 2 * uniform), known & (weights < uniform / 2)
    darkness = -luminance(colours[known]) * (-1 if dark else 1)
    return shown[many].mean() if many.any() else 1.0, shown[few].mean(), stats.spearmanr(darkness, weights[known])[0]


def look_at(page, view, head, place, cursor, dark=False):
    """Open a link to a part of a map, and wait until it is drawn."""
    part = ",".join(map(str, place))
    fields = f"view={view}&head={head}&part={part}&query={cursor[0]}&key={cursor[1]}"
    page.evaluate("link => (location.hash = link)", f"{fields}&dark={int(dark)}")
    page.wait_for_selector(f".qkv-look[data-shown='{view},0,{head}'] canvas.map[data-part='{part}']:not([aria-busy])")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_the_colours_of_causal_maps_follow_the_weights(opened, heads):
    address, made = heads
    page = opened(address)
    failed = []
    for view, pairs in enumerate(made):
        for head, (query, key) in enumerate(pairs):
            for number, place in enumerate(places(len(query))):
                dark = number == 1
                cursor = place[0] + place[2] - 1, place[1] + 1  # in the last row of the part
                look_at(page, view, head, place, cursor, dark)
                found = measure(page, query, key, place, cursor, dark)
                if not (found[0] >= 0.9 and found[1] <= 0.05 and found[2] >= 0.95):
                    failed.append((len(query), head, place, dark, found))
    assert failed == []


def written(weight):
    """Return a weight as the page must show it: three significant digits."""
    if np.isnan(weight):
        return "masked"
    if weight == 0:
        return "0"
    if weight < 0:
        return f"−{written(-weight)}"
    if abs(weight) < 1e-4:
        mantissa, exponent = f"{weight:.2e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    rounded = float(f"{weight:.3g}")
    decimals = max(0, 2 - int(np.floor(np.log10(abs(rounded)))))
    return f"{rounded:.{decimals}f}"


def read_weights(page, cells, rows, columns):
    """Point at cells of the map, and return the weights that the page shows."""
    return page.evaluate(
        """([cells, rows, columns]) => cells.map(([row, column]) => {
            const canvas = document.querySelector("canvas.map");
            const edge = canvas.getBoundingClientRect();
            const clientX = edge.left + 92 + (column + 0.5) / columns * (canvas.clientWidth - 102);
            const clientY = edge.top + 8 + (row + 0.5) / rows * (canvas.clientHeight - 84);
            canvas.dispatchEvent(new PointerEvent("pointermove", {clientX, clientY, bubbles: true}));
            return document.querySelector("output").textContent.split("): ")[1];
        })""",
        [[list(map(int, cell)) for cell in cells], rows, columns],
    )


def test_random_cells_show_the_true_weight_to_the_last_digit(opened):
    rng = np.random.default_rng(5)
    query, key = arrays("local", 3000)
    masked = causal_weights(*arrays("sharp", 60), (0, 60))
    signed = rng.normal(size=(40, 70)) * 10.0 ** rng.integers(-7, 4, (40, 70))
    short = rng.dirichlet(np.full(25, 0.2), 25)
    short[3, 4:7], short[5, 5] = 0, 1 / 320  # zeros that are weights, and a tie
    names = [f"w{i}" for i in range(70)]
    part = 2200, 2150, 100, 100
    views = [
        View.from_weights(short[None, None], names[:25], name="short"),
        View.from_weights(np.nan_to_num(masked)[None, None], names[:60], name="masked"),
        View.from_weights(signed[None, None], names[:40], names, name="signed"),
        arrays_view(query, key, causal=True, name="long"),
    ]
    truth = [short, masked, signed, causal_weights(query, key, (part[0], part[0] + 100))[:, part[1] : part[1] + 100]]
    with serve_in_thread(ServedPage(page=Page.from_views(views))) as address:
        page = opened(address)
        for view, weights in enumerate(truth):
            if view == 3:
                look_at(page, view, 0, part, part[:2])
            else:
                if view:  # the first one is shown already, and would be drawn again while it is read
                    page.evaluate("view => (location.hash = `view=${view}`)", view)
                page.wait_for_selector(f".qkv-look[data-shown='{view},0,0']")
            cells = np.stack([rng.integers(0, size, 130 if effort.LONG else 25) for size in weights.shape], axis=1)
            shown = read_weights(page, cells, *weights.shape)
            for (row, column), text in zip(cells, shown, strict=True):
                weight = weights[row, column]
                # The tiles of long maps are computed in float32, which leaves the side of a tie open.
                error = 3e-6 if view == 3 else 0
                assert text in {written(weight * (1 + error)), written(weight * (1 - error))}, (
                    view,
                    row,
                    column,
                    weight,
                )
        assert "masked" in read_weights(page, [(0, 99)], 100, 100)
        page.close()


def test_signed_masked_and_invalid_weights_have_colours_and_words_of_their_own(opened):
    signed = np.where(np.tri(8, dtype=bool), 0.0, 7.0)
    signed[4, 2], signed[5, 1], signed[6, 3], signed[7, 7] = 0.7, -0.7, np.nan, 0.02
    view = View.from_weights(signed[None, None], list("abcdefgh"), mask=np.tri(8, dtype=bool), name="signed")
    faint = View.from_weights(signed[None, None] / 100, list("abcdefgh"), mask=np.tri(8, dtype=bool), name="faint")
    with serve_in_thread(ServedPage(page=Page.from_views([view, faint]))) as address:
        page = opened(f"{address}#query=1&key=0")
        colours = cell_colours(page, 8, 8)
        positive, negative, grey, invalid, zero = (
            colours[at].tolist() for at in ((4, 2), (5, 1), (2, 6), (6, 3), (5, 4))
        )
        assert positive == [3, 28, 82]
        assert negative == [92, 26, 2]
        assert grey == [222, 222, 222]
        assert invalid == [200, 0, 130]
        assert zero == PAPER.tolist()
        legend = page.locator(".bar").first.text_content()
        assert "masked" in legend
        assert "not a number" in legend
        assert "−0.700" in legend
        ticks = page.locator(".bar").first.locator(".tick").all_text_contents()
        assert [ticks[0], ticks[2], ticks[4]] == ["−0.700", "0", "0.700"]
        assert ticks[1] == f"−{ticks[3]}"
        assert 0.0007 < float(ticks[3]) < 0.1  # the middle of a logarithmic scale
        page.get_by_role("option", name="g", exact=True).click()
        table = page.locator("tbody tr").all_text_contents()
        assert table[-1] == "d3not a number"
        assert len(table) == 7  # masked keys are not listed
        # Maps side by side share a scale: the second is a hundred times fainter.
        page.get_by_label("Compare with").select_option("1")
        page.wait_for_function("() => document.querySelectorAll('canvas.map')[1].dataset.drawn > 0")
        page.wait_for_timeout(100)
        ranges = [canvas.get_attribute("data-range") for canvas in page.locator("canvas.map").all()]
        assert ranges[0] == ranges[1]
        assert cell_colours(page, 8, 8)[4, 2].tolist() == positive
        assert difference(cell_colours(page, 8, 8, 1)[4, 2], PAPER) < 30
        # A limit of the user's own is stated with an arrow for the larger weights.
        page.get_by_label("Compare with").select_option("-1")
        page.get_by_label("Colour limit").fill("0.1")
        page.get_by_label("Colour limit").press("Enter")
        page.wait_for_function("() => document.querySelector('.bar').textContent.includes('strongest from 0.100')")
        assert page.locator(".bar").first.locator(".more").count() == 2
        page.close()


@pytest.mark.parametrize("tokens", [1, 3, 7])
def test_a_weight_of_one_is_darkest_in_short_causal_texts(opened, tokens):
    view = View.from_weights(np.tri(tokens)[None, None] / np.arange(1, tokens + 1)[:, None], list("abcdefg")[:tokens])
    with serve_in_thread(ServedPage(Page([view]))) as address:
        page = opened(address)
        assert spot(page, 0, 0, tokens, tokens) == DARKEST
        assert "strongest from 1" in page.locator(".bar").first.text_content()
