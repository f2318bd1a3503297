"""Every model type that transformers maps: the engine matches the model's own eager attention.

Twelve of them run in `make test`, all in `make test-long`; `families.json` holds what the last sweep found.
"""

from typing import Any

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.interop.huggingface.families import OTHER_WEIGHTS, ROUNDING  # noqa: E402
from tests.interop.huggingface.sweep import one, recorded  # noqa: E402
from tests.interop.huggingface.table import PAGE, TABLE, WHAT, filled, table  # noqa: E402
from tests.interop.huggingface.tiny import mapped  # noqa: E402

RECORDED = recorded()
FAMILIES: dict[str, dict[str, Any]] = {found["kind"]: found for found in RECORDED["families"]}
EXACT = [
    kind for kind, found in FAMILIES.items()
    if found["what"] == "reached" and not found["why"] and kind not in ROUNDING
]  # fmt: skip
TWELVE = [
    "bert", "albert", "t5", "bart", "whisper", "vit",
    "llama", "mistral", "gemma2", "gpt_oss", "gpt2", "deepseek_v32",
]  # fmt: skip


# Those that took longer than the sweep waits for a family say nothing.
SAID = {kind for kind, found in FAMILIES.items() if not found["why"].startswith("not compared within")}


def close(found: dict[str, Any]) -> bool:
    """Logits to 1e-5, weights to 1e-6, gradients to 1e-5 of the largest, the same tokens."""
    weights = 1e-5 if found["kind"] in ROUNDING else 1e-6
    gradients = 1e-4 if found["kind"] in ROUNDING else 1e-5
    return (
        found["logits"] <= 1e-5
        and (found["weights"] or 0) <= weights
        and found["gradients"] <= gradients
        and "OTHER" not in found["generates"]
    )


def agrees(kind: str) -> None:
    found, before = one(kind), FAMILIES[kind]
    for name in ("cls", "what", "why", "reached", "missed", "compared", "generates"):
        assert found[name] == before[name], (name, found)
    if found["what"] in ("reached", "partly") and not found["why"]:
        assert close(found), found


@pytest.mark.parametrize("kind", TWELVE)
def test_logits_weights_gradients_and_tokens_are_those_of_eager_attention(kind: str) -> None:
    assert kind in EXACT
    agrees(kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", sorted(SAID - set(TWELVE)))
def test_every_other_family_is_as_the_page_says(kind: str) -> None:
    agrees(kind)


def test_the_sweep_was_over_all_that_transformers_maps() -> None:
    assert RECORDED["transformers"] == transformers.__version__, "run tests.interop.huggingface.sweep again"
    assert set(FAMILIES) == set(mapped())


def test_at_least_45_families_agree_in_every_way_and_their_number_is_the_recorded_one() -> None:
    count = {what: sum(found["what"] == what for found in FAMILIES.values()) for what in WHAT}
    assert count == {
        "reached": 282, "partly": 7, "bypassed": 58, "refused": 2, "without attention": 12, "unbuilt": 244,
    }  # fmt: skip
    assert len(EXACT) == 273
    assert all(close(FAMILIES[kind]) for kind in EXACT)
    weighed = [kind for kind in EXACT if FAMILIES[kind]["compared"]]
    assert len(weighed) >= 45
    generating = [kind for kind in EXACT if FAMILIES[kind]["generates"].count("same tokens") == 2]
    assert len(generating) >= 45
    assert set(OTHER_WEIGHTS) <= set(EXACT)


def test_the_page_shows_the_recorded_results() -> None:
    assert PAGE.read_text() == filled(PAGE.read_text(), RECORDED)
    assert TABLE.read_text() == table(RECORDED)
