"""The unplanned decoding step against transformers' own attention, on all caches and against the definition."""

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv import engine, normalizers, scores  # noqa: E402
from qkv.interop import huggingface  # noqa: E402
from qkv.interop.huggingface import registration  # noqa: E402


def tiny(key_heads: int, **more: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=31, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=key_heads, bos_token_id=None, eos_token_id=None, pad_token_id=0, initializer_range=0.2,
        **more,
    )  # fmt: skip
    return transformers.MistralForCausalLM(config).eval()


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    taken: list[bool] = []
    step = registration.attend_step

    def counted(*args: Any) -> Any:
        output = step(*args)
        taken.append(output is not None)
        return output

    monkeypatch.setattr(registration, "attend_step", counted)
    return taken


@pytest.mark.parametrize("cache", ["dynamic", "static", "padding"])
@pytest.mark.parametrize(("key_heads", "window"), [(4, None), (2, None), (1, 5)])
def test_steps_of_generate_give_the_logits_of_eager_attention(
    cache: str, key_heads: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(key_heads, sliding_window=window)
    huggingface.register()
    taken = count_steps(monkeypatch)
    tokens = torch.randint(1, 31, (2, 7))
    mask = torch.ones_like(tokens)
    if cache == "padding":
        mask[1, :3] = 0
    results = {}
    for name in ("eager", "qkv"):
        model.set_attn_implementation(name)
        results[name] = model.generate(
            tokens, attention_mask=mask, max_new_tokens=8, do_sample=False, output_logits=True,
            return_dict_in_generate=True, cache_implementation="static" if cache == "static" else None,
        )  # fmt: skip
    assert torch.equal(results["eager"].sequences, results["qkv"].sequences)
    for want, got in zip(results["eager"].logits, results["qkv"].logits, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    assert len(taken) == 2 * 7
    assert all(taken)


PARTS: dict[str, Any] = {
    "Gaussian": {"score": scores.Gaussian(2.0)},
    "positions": {"score": scores.ALiBi(scores.ScaledDot(), torch.tensor(0.3))},
    "entmax": {"normalizer": normalizers.Entmax15()},
}


@pytest.mark.thinned
@pytest.mark.parametrize("cache", ["dynamic", "static", "padding"])
@pytest.mark.parametrize("name", PARTS)
def test_steps_with_another_score_or_normalizer_share_plans_and_equal_steps_with_the_mask(
    name: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(2)
    model.set_attn_implementation(huggingface.register(f"qkv-{name}", **PARTS[name]))
    tokens = torch.randint(1, 31, (2, 9))
    mask = torch.ones_like(tokens)
    if cache == "padding":
        mask[1, :3] = 0
    planned, plan = [], engine.plan_problem

    def counted(*args: Any) -> Any:
        planned.append(args)
        return plan(*args)

    def logits() -> Any:
        return model.generate(
            tokens, attention_mask=mask, max_new_tokens=12, do_sample=False, output_logits=True, num_beams=1,
            return_dict_in_generate=True, cache_implementation="static" if cache == "static" else None,
        ).logits  # fmt: skip

    monkeypatch.setattr(engine, "plan_problem", counted)
    got, steps = logits(), len(planned)
    monkeypatch.setattr(registration, "without_mask", lambda *sides: sides)
    for found, wanted in zip(got, logits(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
    # The prompt, and two plans for each of the ranges 10–11, 12–13, 14–15, 16–19 and 20–23 of the number of keys.
    assert steps <= 11 or cache == "padding"


def test_beams_and_assisted_generation_give_the_tokens_of_eager_attention() -> None:
    model, assistant = tiny(2), tiny(2)
    with torch.no_grad():
        for x in assistant.parameters():
            x += 0.02 * torch.randn_like(x)
    huggingface.register()
    tokens = torch.randint(1, 31, (1, 6))
    for options in ({"num_beams": 3}, {"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        found = []
        for name in ("eager", "qkv"):
            model.set_attn_implementation(name)
            assistant.set_attn_implementation(name)
            found.append(model.generate(tokens, max_new_tokens=10, do_sample=False, **options))
        assert torch.equal(*found), options


def test_a_step_equals_planned_calls_for_random_masks_scales_and_values_that_are_not_finite() -> None:
    rng = random.Random(0)
    huggingface.register()
    function = transformers.AttentionInterface()["qkv"]
    plan = huggingface.register("qkv-planned", kernel="dense")
    planned = transformers.AttentionInterface()[plan]
    for seed in range(150):
        torch.manual_seed(seed)
        batch, key_heads, group, k = (rng.randint(1, 3) for _ in range(4))
        dtype = rng.choice([torch.float32, torch.float64])
        query = torch.randn(batch, key_heads * group, 1, 4, dtype=dtype)
        key, value = (torch.randn(batch, key_heads, k + 2, 4, dtype=dtype) for _ in range(2))
        start = rng.randint(0, k)
        key[:, :, start + 1 :] = torch.nan  # unused slots of a static cache
        if rng.random() < 0.5:
            rng.choice([query, key, value])[0, 0, 0, rng.randint(0, 3)] = rng.choice([torch.nan, torch.inf, -torch.inf])
        padding = torch.rand(batch, k + 2) < 0.7 if rng.random() < 0.5 else None
        mask = transformers.AttentionMaskInterface()["qkv"](batch, 1, k + 2, q_offset=start, attention_mask=padding)
        options = {"scaling": rng.choice([None, 0.3])}
        got, want = (f(torch.nn.Identity(), query, key, value, mask, **options)[0] for f in (function, planned))
        torch.testing.assert_close(got, want, equal_nan=True)


def test_continuous_batching_of_transformers_accepts_its_own_attention_only() -> None:
    # docs/huggingface.md says so; if this fails, transformers lets a registered function read its paged cache.
    model = tiny(2, attn_implementation=huggingface.register())
    with pytest.raises(ValueError, match="qkv is not supported for continuous batching"):
        model.generate_batch([[1, 2, 3]], generation_config=transformers.GenerationConfig(max_new_tokens=2))
