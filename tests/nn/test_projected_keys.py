"""The projections of keys by a score are kept in the cache, so that a step projects its own key only."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import qkv  # noqa: E402
from qkv import masks, nn, normalizers, scores  # noqa: E402
from qkv.nn.cache import KeyValueCache  # noqa: E402

SCORES: dict[str, Any] = {"Gaussian": scores.Gaussian(1.5), "additive": nn.Additive}


def whole(attention: Any, x: Any) -> Any:
    """Return the output of the module for a whole sequence, by the dense kernel."""
    other = copy.deepcopy(attention)
    other.kernel = "dense"
    return other(x)


@pytest.mark.parametrize("name", SCORES)
def test_steps_project_their_own_keys_after_crops_forks_and_reordering(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    attention = nn.MultiHeadAttention(16, 2, mask=masks.Causal(), score=SCORES[name], dtype=torch.float64)
    kind, rows = type(attention.score()), []
    project = kind.project

    def counted(self: Any, query: Any, key: Any, tile: Any = None) -> Any:
        rows.append(key.shape[-2])
        return project(self, query, key, tile)

    x = torch.randn(3, 80, 16, dtype=torch.float64)
    cache = KeyValueCache(chunk=8)
    with torch.no_grad():
        want = whole(attention, x)
        attention(x[:, :50], cache=cache)
        attention(x[:, 50:51], cache=cache)
        monkeypatch.setattr(kind, "project", counted)
        for t in range(51, 60):
            got = attention(x[:, t : t + 1], cache=cache)
        torch.testing.assert_close(got, want[:, 59:60])
        cache.crop(55)
        fork = cache.fork()
        index = torch.tensor([2, 0, 0])
        cache.reorder(index)
        for t in range(55, 80):
            got = attention(x[index, t : t + 1], cache=cache)
            other = attention(x[:, t : t + 1], cache=fork)
        torch.testing.assert_close(got, want[index, 79:80])
        torch.testing.assert_close(other, want[:, 79:80])
    assert len(rows) == 9 + 2 * 25
    # Gaussian scores subtract a mean of the keys, which is renewed at 64 and 80 keys in each cache.
    assert [n for n in rows if n > 1] == ([] if name == "additive" else [64, 64, 80, 80])


def test_a_parameter_that_changes_in_place_projects_all_keys_again() -> None:
    torch.manual_seed(0)
    attention, cache = nn.MultiHeadAttention(16, 2, mask=masks.Causal(), score=nn.Additive), KeyValueCache()
    x = torch.randn(1, 12, 16)
    with torch.no_grad():
        attention(x[:, :8], cache=cache)
        attention(x[:, 8:9], cache=cache)
        caches = [copy.deepcopy(cache), cache]
        attention.score.key_weight.data.mul_(-2.0)  # leaves the version of the parameter unchanged
        for each in caches:
            got = attention(x[:, 9:10], cache=each)
            torch.testing.assert_close(got, whole(attention, x)[:, 9:10], rtol=1e-5, atol=1e-6)


def test_the_mean_of_the_keys_is_renewed_when_their_number_has_grown_by_a_quarter() -> None:
    torch.manual_seed(0)
    attention = nn.Attention(score=scores.Gaussian(1.0), mask=masks.Causal())
    near, far = torch.randn(1, 1, 8, 4), torch.randn(1, 1, 40, 4) + 3000.0
    x, cache = torch.cat([near, far], 2), KeyValueCache()
    with torch.no_grad():
        attention(x[:, :, :8], cache=cache)
        steps = [attention(x[:, :, t : t + 1], cache=cache) for t in range(8, 48)]
    want = qkv.attend(*[x.double()] * 3, score=scores.Gaussian(1.0), mask=masks.Causal(), kernel="dense")
    error = (torch.cat(steps, 2) - want[:, :, 8:]).abs()[:, :, 24:].max()
    assert error <= 4 * torch.finfo(torch.float32).eps * want.abs().max()


def test_a_cache_with_int8_or_a_limit_of_memory_keeps_no_projections() -> None:
    attention = nn.Attention(score=scores.Gaussian(1.0), normalizer=normalizers.Softmax(), mask=masks.Causal())
    x = torch.randn(1, 2, 9, 4)
    for options in ({"int8": True}, {"memory": "1 MiB"}):
        cache = KeyValueCache(**options)
        with torch.no_grad():
            for t in range(9):
                attention(x[:, :, t : t + 1], cache=cache)
        assert cache.projected is None
