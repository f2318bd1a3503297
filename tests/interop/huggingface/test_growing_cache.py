"""The growing cache against transformers' `DynamicCache`: random operations, generation and memory."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from qkv.interop import huggingface  # noqa: E402
from tests.effort import cases  # noqa: E402
from tests.interop.huggingface.test_decoding_step import tiny  # noqa: E402


@settings(max_examples=cases(60), derandomize=True, deadline=None)
@given(data=st.data())
def test_random_operations_give_the_keys_and_values_of_a_dynamic_cache(data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    ours, theirs = huggingface.GrowingCache(), transformers.DynamicCache()
    batch, length, seen = data.draw(st.integers(1, 3)), 0, []
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(["update"] * 6 + ["crop", "reorder", "select", "repeat", "copy", "reset"]))
        if what == "update" or length == 0:
            n = data.draw(st.sampled_from([1, 1, 2, 150]))
            sides = [torch.randn(batch, 2, n, width, generator=generator) for width in (4, 3)]
            with torch.inference_mode(data.draw(st.booleans())):
                for layer in (0, 1):
                    got, want = (cache.update(*sides, layer) for cache in (ours, theirs))
                    assert all(map(torch.equal, got, want))
            length += n
            seen += [(x, x.clone()) for x in got]
        elif what == "crop":
            left = data.draw(st.integers(1, length))
            for cache in (ours, theirs):
                cache.crop(left - length)
            length, seen = left, []
        elif what == "reset":
            for cache in (ours, theirs):
                cache.reset()
            length = 0
        elif what == "copy":
            ours, forked = copy.deepcopy(ours), ours
            forked.update(*(torch.zeros(batch, 2, 1, width) for width in (4, 3)), 0)
        else:
            index = data.draw(st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch))
            for cache in (ours, theirs):
                if what == "reorder":
                    cache.reorder_cache(torch.tensor(index))
                elif what == "select":
                    cache.batch_select_indices(torch.tensor(index[:1]))
                else:
                    cache.batch_repeat_interleave(2)
            batch = {"reorder": batch, "select": 1, "repeat": 2 * batch}[what]
            if batch > 6:
                return
        assert ours.get_seq_length() == theirs.get_seq_length() == length
        assert all(torch.equal(x, before) for x, before in seen)
    for (key, value, _), (wanted_key, wanted_value, _) in zip(ours, theirs, strict=True):
        assert length == 0 or (torch.equal(key, wanted_key) and torch.equal(value, wanted_value))


def test_keys_that_require_a_gradient_are_part_of_the_graph() -> None:
    cache, x = huggingface.GrowingCache(), torch.randn(1, 1, 2, 3, requires_grad=True)
    cache.update(x, x, 0)
    keys, _ = cache.update(2 * x, x, 0)
    assert torch.equal(torch.autograd.grad(keys.sum(), x)[0], torch.full_like(x, 3))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("attention", ["qkv", "sdpa"])
def test_generation_gives_the_tokens_of_the_dynamic_cache(window: int | None, attention: str) -> None:
    huggingface.register()
    model, assistant = tiny(2, sliding_window=window), tiny(2, sliding_window=None)
    with torch.no_grad():
        for x in assistant.parameters():
            x += 0.02 * torch.randn_like(x)
    model.set_attn_implementation(attention)
    tokens = torch.randint(1, 31, (1, 6))
    for options in ({}, {"num_beams": 3}, {"assistant_model": assistant}, {"prompt_lookup_num_tokens": 3}):
        if window and len(options) and "num_beams" not in options:
            continue  # transformers cannot remove tokens from a window
        found = [
            model.generate(tokens, max_new_tokens=20, do_sample=False, past_key_values=cache, **options)
            for cache in (transformers.DynamicCache(config=model.config), huggingface.GrowingCache(model.config))
        ]
        assert torch.equal(*found), options


def test_most_steps_copy_no_earlier_token() -> None:
    cache, addresses = huggingface.GrowingCache(), []
    cache.update(torch.zeros(1, 1, 2000, 4), torch.zeros(1, 1, 2000, 4), 0)
    for _ in range(500):
        keys, _ = cache.update(torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4), 0)
        addresses.append(keys.data_ptr())
    assert len(set(addresses)) <= 4
    assert keys.untyped_storage().nbytes() <= 1.1 * keys.nbytes
