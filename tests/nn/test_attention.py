"""`nn.Attention`, and the alignment of parts with calls that have a head axis."""

from typing import Any

import numpy as np
import pytest
import torch

import qkv
from qkv import masks, nn, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.core.map_batch import align_batch
from qkv.core.tile import Tile
from qkv.errors import KindError, OptionError
from qkv.nn.multihead import ExtraKeysMask
from tests.nn.test_multihead import Listed

Tensor = torch.Tensor


def draws(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def test_attention_equals_attend_with_the_parts_of_its_spec() -> None:
    spec = qkv.Spec(scores.Gaussian(0.7), normalizers.Sparsemax(), masks.Causal(align="end"))
    query, key, value = draws((2, 3, 4), (2, 5, 4), (2, 5, 6))
    wanted = qkv.attend(query, key, value, score=spec.score, normalizer=spec.normalizer, mask=spec.mask)
    torch.testing.assert_close(nn.Attention(spec)(query, key, value), wanted)
    by_name = nn.Attention(score=scores.Gaussian(0.7), normalizer=normalizers.Sparsemax())
    torch.testing.assert_close(by_name(query, key, value, mask=spec.mask), wanted)
    other = nn.Attention(spec, normalizer=normalizers.Softmax())
    assert not torch.allclose(other(query, key, value), wanted)


def test_the_key_is_the_query_and_the_value_the_key_where_none_is_given() -> None:
    attention = nn.Attention()
    query, key = draws((3, 4), (5, 4))
    torch.testing.assert_close(attention(query), attention(query, query, query))
    torch.testing.assert_close(attention(query, key), attention(query, key, key))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)], ids=str)
def test_a_learned_score_with_heads_has_them_as_the_last_batch_axis(lead: tuple[int, ...]) -> None:
    score = nn.Additive(4, heads=3).double()
    query, key = draws((*lead, 3, 5, 4), (*lead, 3, 6, 4))
    output = nn.Attention(score=score)(query, key)
    for head in range(3):
        own = score().map_arrays(lambda x, head=head: x[head])
        alone = attend_dense(
            query[..., head, :, :], key[..., head, :, :], key[..., head, :, :],
            score=own, normalizer=normalizers.Softmax(),
        )  # fmt: skip
        torch.testing.assert_close(output[..., head, :, :], alone.output)


def test_readouts_dropout_and_a_cache_work_as_in_multi_head_attention() -> None:
    (x,) = draws((2, 6, 4))
    attention = nn.Attention(mask=masks.Causal(), dropout=0.5)
    torch.manual_seed(1)
    output = attention(x)
    torch.manual_seed(1)
    seen = attention(x, readouts=[readouts.Entropy()])
    assert isinstance(seen, nn.AttentionOutput)
    torch.testing.assert_close(seen.output, output)
    assert seen.readouts[0].shape == (2, 6)
    attention.eval()
    cache = Listed()
    steps = [attention(piece, cache=cache) for piece in x.split(2, dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), attention(x))
    assert not torch.allclose(attention(x), output)


def test_positions_of_the_spec_apply_unless_the_call_gives_others() -> None:
    query, key = draws((2, 4), (5, 4))
    attention = nn.Attention(qkv.Spec(mask=masks.Causal(), positions=qkv.Positions(align="end")))
    end = qkv.attend(query, key, key, mask=masks.Causal(align="end"))
    start = qkv.attend(query, key, key, mask=masks.Causal(align="start"))
    torch.testing.assert_close(attention(query, key), end)
    torch.testing.assert_close(attention(query, key, positions=qkv.Positions(align="start")), start)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: nn.Attention(scores.Dot()), KindError, "qkv.Spec"),
        (lambda: nn.Attention(mask=np.ones((2, 2), bool)), KindError, "masks.AllowedPairs"),
        (lambda: nn.Attention(dropout=-0.1), OptionError, "dropout must be a number in"),
        (lambda: nn.Attention(score=nn.Gaussian), KindError, "nn.Gaussian\\(query_width"),
        (lambda: nn.Attention(score="dot"), KindError, "got 'dot'. Pass an instance"),  # type: ignore[arg-type]
        (lambda: nn.HardAttention(score=nn.Additive), KindError, "got the class Additive, not an instance"),
    ],
)
def test_invalid_arguments_are_refused(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize("groups", [None, (2, 3)])
@pytest.mark.parametrize(
    ("shape", "names", "per_head", "wanted"),
    [
        ((), 0, True, ()),
        ((6,), 0, True, (1, 1, 6)),
        ((6, 5), 1, True, (1, 1, 6, 5)),
        ((2, 4), 0, False, (2, 4, 1)),
        ((2, 4, 6, 5), 1, False, (2, 4, 6, 5)),
        ((2, 4, 6, 5), 1, True, (2, 4, 6, 5)),
        ((5,), 1, False, (5,)),
    ],
)
def test_batch_axes_of_parts_are_aligned_as_documented(
    shape: tuple[int, ...], names: int, per_head: bool, wanted: tuple[int, ...], groups: Any
) -> None:
    """Batch axes (2, 4), six heads."""
    array = torch.zeros(shape)
    part: Any = scores.ALiBi(scores.Dot(), array) if names == 0 else scores.RelativePosition(scores.Dot(), array)
    (found,) = align_batch(part, 2, groups, per_head).arrays()
    if groups is not None and len(wanted) > names:
        heads = (2, 3) if wanted[2] == 6 else (1, 1)
        wanted = (*wanted[:2], *heads, *wanted[3:])
    assert tuple(found.shape) == wanted


def test_a_part_without_arrays_is_returned_unchanged_so_that_its_plan_is_cached() -> None:
    mask = masks.Causal() & masks.Window(3, 0)
    assert align_batch(mask, 1, (2, 2), False) is mask


@pytest.mark.parametrize("cols", [(0, 8), (0, 6), (3, 7), (6, 8), (7, 8)], ids=str)
def test_extra_keys_are_always_allowed(cols: tuple[int, int]) -> None:
    array = np.random.default_rng(0).random((4, 6)) < 0.5
    mask = ExtraKeysMask(masks.AllowedPairs(array), 2)
    whole_of_it = np.concatenate([array, np.ones((4, 2), bool)], -1)
    tile = Tile.whole(4, 8).restrict((1, 3), cols)
    cut = mask.slice(slice(1, 3), slice(*cols))
    got = np.broadcast_to(cut.allowed(tile, np.zeros(())), (2, cols[1] - cols[0]))
    assert (got == whole_of_it[1:3, slice(*cols)]).all()


@pytest.mark.parametrize("kernel", ["dense", "tiled"])
@pytest.mark.parametrize(
    "mask",
    [
        masks.Causal(),
        masks.AllowedKeys(torch.tensor([False] * 5)),
        masks.Lengths(torch.tensor([3, 0])),
        masks.Window(1, 0),
    ],
    ids=str,
)
def test_extra_keys_have_weight_under_every_mask_and_kernel(mask: masks.Mask, kernel: str) -> None:
    torch.manual_seed(0)
    module = nn.MultiHeadAttention(8, 2, extensions=["learned_key", "zero_key"], kernel=kernel, dtype=torch.float64)
    weights = module(torch.randn(2, 5, 8, dtype=torch.float64), mask=mask, readouts=[readouts.Dense()]).readouts[0]
    assert weights.shape == (2, 2, 5, 7)
    assert (weights[..., 5:] > 0).all()
    plain = nn.MultiHeadAttention(8, 2, dtype=torch.float64)
    allowed = plain(torch.randn(2, 5, 8, dtype=torch.float64), mask=mask, readouts=[readouts.Dense()]).readouts[0]
    assert ((weights[..., :5] > 0) == (allowed > 0)).all()
