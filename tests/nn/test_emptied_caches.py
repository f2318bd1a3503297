"""Every cache that is empty, emptied, cropped or reordered continues as a new one with the tokens that are left."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from qkv import masks, nn, scores
from qkv.errors import OptionError, RefusedError, ShapeError

MAKE: dict[str, Callable[[], Any]] = {
    "chunks": nn.KeyValueCache,
    "window": lambda: nn.KeyValueCache(window=6, rollback=6, chunk=2),
    "int8": lambda: nn.KeyValueCache(int8=True),
    "paged": lambda: nn.PagedCache(nn.BlockPool(200, heads=2, width=4, size=2, dtype=torch.float64)),
    "state": lambda: nn.StateCache(rollback=20),
}


def module(name: str) -> nn.MultiHeadAttention:
    torch.manual_seed(0)
    score = scores.Decay(scores.Dot(0.5), -0.1) if name == "state" else scores.Gaussian(1.5)
    return nn.MultiHeadAttention(8, 2, score=score, mask=masks.Causal()).double().eval()


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_an_emptied_cache_takes_another_batch(name: str, tokens: int) -> None:
    attention, cache = module(name), MAKE[name]()
    with torch.no_grad():
        for n in (tokens, 1):
            if n:
                attention(torch.randn(2, n, 8).double(), cache=cache)
        cache.crop(0)
        cache.copy() if hasattr(cache, "copy") else cache.fork()
        cache.reorder(torch.tensor([1, 0, 1]))
        x = torch.randn(3, 4, 8).double()
        got = torch.cat([attention(x[:, :1], cache=cache), attention(x[:, 1:2], cache=cache)], 1)
        got = torch.cat([got, attention(x[:, 2:], cache=cache)], 1)
        torch.testing.assert_close(got, attention(x), atol=0.1 if name == "int8" else 1e-9, rtol=0)


@pytest.mark.parametrize("name", ["chunks", "window", "paged"])
def test_lengths_of_the_next_call_follow_the_batch_elements(name: str) -> None:
    attention, cache, x = module(name), MAKE[name](), torch.randn(2, 4, 8).double()
    index = torch.tensor([1, 0, 1])
    with torch.no_grad():
        cache.set_lengths(torch.tensor([4, 2])).reorder(index)
        attention(x[index], cache=cache)
    assert cache.lengths.tolist() == [2, 4, 2]


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("index", [[0, 2], [-1]])
def test_index_outside_of_the_batch_is_refused(name: str, index: list[int]) -> None:
    attention, cache = module(name), MAKE[name]()
    with torch.no_grad():
        attention(torch.randn(2, 3, 8).double(), cache=cache)
    with pytest.raises(OptionError, match="index must be between 0 and 1"):
        cache.reorder(torch.tensor(index))


@pytest.mark.parametrize("make", [nn.KeyValueCache, nn.StateCache])
def test_rows_are_not_reordered_for_want_of_a_batch_axis(make: Any) -> None:
    cache, x = make(), torch.randn(3, 4).double()
    if make is nn.StateCache:
        cache.attend(x, x, x, score=scores.Features(), mask=masks.Causal())
    else:
        cache.append(x, x)
    with pytest.raises(ShapeError, match="batch axis"):
        cache.reorder(torch.tensor([1, 0]))


@pytest.mark.parametrize("kind", ["window", "state"])
def test_the_rollback_that_a_refused_crop_names_is_enough(kind: str) -> None:
    def cropped(rollback: int) -> Any:
        cache = nn.StateCache(rollback=rollback) if kind == "state" else None
        cache = cache or nn.KeyValueCache(window=4, chunk=2, rollback=rollback)
        attention = module(kind)
        with torch.no_grad():
            for _ in range(30):
                attention(torch.randn(1, 1, 8).double(), cache=cache)
        return cache.crop(27).crop(20)

    with pytest.raises(RefusedError, match=r"rollback=\d+") as caught:
        cropped(3)
    wanted = int(str(caught.value).split("rollback=")[1].split(".")[0].split(",")[0])
    assert wanted > 3
    assert len(cropped(wanted)) == 20
