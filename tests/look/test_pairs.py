"""Pairs of texts: their segments, and the filters of the page."""

import numpy as np
import pytest

from qkv.errors import DataError, OptionError
from qkv.look.axis import Axis
from qkv.look.page import Page
from qkv.look.server import ServedPage, serve_in_thread
from qkv.look.views import View

from .chromium import needs_chromium

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.look.text_model import TextModel, token_axis  # noqa: E402
from qkv.look.text_views import text_views  # noqa: E402


def pair_model():
    """A BERT whose segments matter, with a tokenizer of the words a to g and of their doubles."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", *"abcdefg", *(f"##{letter}" for letter in "abcdefg")]
    plain = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    options = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **options)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(names), hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        initializer_range=0.5, attn_implementation="eager",
    )  # fmt: skip
    return TextModel(transformers.BertModel(config).eval(), tokenizer, "pair")


def test_a_pair_is_one_input_with_segments():
    found = pair_model()
    (view,) = text_views(found, ["a bc"], pairs=["d ef g"])
    assert view.name == "a bc | d ef g"
    assert " ".join(view.queries.tokens) == "[CLS] a b ##c [SEP] d e ##f g [SEP]"
    assert view.queries.segments == (-1, 0, 0, 0, -1, 1, 1, 1, 1, -1)
    # The words of both texts are distinct.
    assert len({word for word in view.queries.words if word >= 0}) == 5
    encoded = found.tokenizer("a bc", "d ef g", return_tensors="pt")
    with torch.no_grad():
        own = found.model(**encoded, output_attentions=True).attentions
        same = found.model(input_ids=encoded["input_ids"], output_attentions=True).attentions
    for layer, weights in enumerate(own):
        shown = np.stack([view.weights(layer, head) for head in range(2)])
        assert np.allclose(shown, weights[0], rtol=5.2e-3)
    assert not np.allclose(own[0], same[0], rtol=0.1)  # the segment ids matter
    (single,) = text_views(found, ["a bc"])
    assert single.queries.segments is None


def test_a_slow_tokenizer_gives_segments_by_its_ids():
    found = pair_model()
    fast = found.tokenizer("a bc", "d", return_tensors="pt", return_special_tokens_mask=True)
    axis = token_axis(found.tokenizer, dict(fast))
    assert axis.segments == (-1, 0, 0, 0, -1, 1, -1)
    assert len({word for word in axis.words if word >= 0}) == 3


def test_pairs_that_do_not_fit_the_texts_are_refused():
    with pytest.raises(OptionError, match="got 1 pairs for 2 texts"):
        text_views(pair_model(), ["a", "b"], pairs=["c"])
    with pytest.raises(DataError, match="must not be empty"):
        text_views(pair_model(), ["a"], pairs=[""])


@needs_chromium
def test_the_page_shows_the_attention_from_one_text_to_the_other(opened):
    names = ("[CLS]", "who", "sat", "[SEP]", "the", "cat", "sat", "[SEP]")
    marks = tuple(name.startswith("[") for name in names)
    axis = Axis(names, names, (-1, 0, 1, -1, 8, 9, 10, -1), marks, segments=(-1, 0, 0, -1, 1, 1, 1, -1))
    weights = np.random.default_rng(0).dirichlet(np.ones(8), (1, 1, 8))
    with serve_in_thread(ServedPage(page=Page.from_views(View.from_weights(weights, axis)))) as address:
        page = opened(address)
        page.locator("select.pairs").select_option("ab")
        page.wait_for_function("() => document.querySelectorAll('.tokens')[0].children.length === 2")
        queries, keys = page.locator(".tokens").first, page.locator(".tokens").nth(1)
        assert queries.locator(".token").all_text_contents() == ["who", "sat"]
        assert keys.locator(".token").all_text_contents() == ["the", "cat", "sat"]
        queries.get_by_role("option", name="sat").click()
        keys.get_by_role("option", name="cat").click()
        shown = page.locator("output").first.text_content()
        assert float(shown.rsplit(" ", 1)[1]) == pytest.approx(weights[0, 0, 2, 5], rel=6e-3)
        again = opened(page.url)
        assert again.locator("select.pairs").input_value() == "ab"
        again.locator("select.pairs").select_option("all")
        again.wait_for_function("() => document.querySelectorAll('.tokens')[0].children.length === 8")
