"""Attention over packed and nested tensors: that of each sequence alone, in the same layout, with gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import masks, nn, normalizers, scores
from qkv.errors import KindError, PositionError, ShapeError
from tests.effort import cases

Tensor = torch.Tensor
LENGTHS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4)


def draw(rows: int, heads: int, width: int) -> Tensor:
    return torch.randn(rows, heads, width, dtype=torch.float64, requires_grad=True)


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def alone(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = qkv.attend(*(x.transpose(0, 1) for x in (query, key, value)), kernel="dense", **options)
    return output.transpose(0, 1)


def assert_same(got: Tensor, wanted: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(got, wanted)
    factor = torch.randn_like(wanted)
    mine, theirs = (
        torch.autograd.grad((x * factor).sum(), leaves, allow_unused=True, materialize_grads=True)
        for x in (got, wanted)
    )
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


@settings(max_examples=cases(25))
@given(LENGTHS, st.booleans(), st.booleans(), st.sampled_from([None, "tiled", "row_blocks"]), st.integers(0, 99))
def test_every_sequence_attends_as_if_it_were_alone(
    lengths: list[tuple[int, int]], causal: bool, same: bool, kernel: str | None, seed: int
) -> None:
    torch.manual_seed(seed)
    of_queries = [a for a, _ in lengths]
    of_keys = of_queries if same else [b for _, b in lengths]
    q, k = sum(of_queries), sum(of_keys)
    leaves = [draw(q, 2, 3), draw(k, 2, 3), draw(k, 2, 4)]
    score = scores.Gaussian(1.3)
    starts = offsets(of_queries), None if same else offsets(of_keys)
    got = nn.attend_packed(*leaves, *starts, causal=causal, score=score, kernel=kernel)
    parts = zip(leaves[0].split(of_queries), leaves[1].split(of_keys), leaves[2].split(of_keys), strict=True)
    mask = masks.Causal("end") if causal else None
    wanted = torch.cat([alone(*part, score=score, mask=mask) for part in parts])
    assert_same(got, wanted, leaves)


@pytest.mark.parametrize("layout", ["rows", "heads first", "heads last"])
@pytest.mark.parametrize("causal", [False, True])
def test_nested_tensors_return_the_layout_of_the_queries(layout: str, causal: bool) -> None:
    shape = (4,) if layout == "rows" else (2, 4)
    x = [torch.randn(n, *shape, dtype=torch.float64) for n in (3, 1, 5)]
    nested = torch.nested.nested_tensor(x, layout=torch.jagged, requires_grad=True)
    given_ = nested.transpose(1, 2) if layout == "heads first" else nested
    options: dict[str, Any] = {"normalizer": normalizers.Entmax15()}
    output = nn.attend_jagged(given_, given_, given_, causal=causal, **options)
    assert output.shape == given_.shape
    assert output.is_nested
    (output + given_).square().values().sum().backward()
    leaves = [each.clone().requires_grad_() for each in x]
    for got, leaf, slope in zip(output.unbind(), leaves, nested.grad.unbind(), strict=True):
        side = leaf if layout == "rows" else leaf.transpose(0, 1)
        wanted = qkv.attend(side, side, side, mask=masks.Causal() if causal else None, kernel="dense", **options)
        wanted = wanted.transpose(0, 1) if layout == "heads last" else wanted
        torch.testing.assert_close(got, wanted)
        (wanted + (side if layout != "heads last" else leaf)).square().sum().backward()
        torch.testing.assert_close(slope, leaf.grad)


def test_masks_and_scores_by_position_need_equal_lengths() -> None:
    query, key, starts = draw(4, 2, 3), draw(6, 2, 3), (torch.tensor([0, 1, 4]), torch.tensor([0, 4, 6]))
    for options in ({"mask": masks.Causal()}, {"score": scores.ALiBi(scores.Dot(), 0.5)}):
        with pytest.raises(PositionError, match=r"must be equal in number .* got \[1, 3\] queries and \[4, 2\] keys"):
            nn.attend_packed(query, key, key, *starts, **options)
        same = nn.attend_packed(key, key, key, starts[1], **options)
        torch.testing.assert_close(same[:4], alone(*(key[:4],) * 3, **options))


def test_wrong_arguments_are_named() -> None:
    x, nested = draw(4, 2, 3), torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    with pytest.raises(ShapeError, match="cu_seqlens must end with the number of rows 4, got 3"):
        nn.attend_packed(x, x, x, torch.tensor([0, 3]))
    with pytest.raises(ShapeError, match=r"must be integers .* that increase from 0"):
        nn.attend_packed(x, x, x, torch.tensor([0, 3, 2, 4]))
    with pytest.raises(ShapeError, match="offsets and key_offsets must have the same length, got 2 and 3"):
        nn.attend_packed(x, x, x, torch.tensor([0, 4]), torch.tensor([0, 1, 4]))
    with pytest.raises(KindError, match=r"key must be a nested tensor in the layout torch\.jagged"):
        nn.attend_jagged(nested, x, nested)
    other = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=torch.jagged)
    with pytest.raises(ShapeError, match=r"key and value must have the same lengths, got \[2, 3\] and \[3, 2\]"):
        nn.attend_jagged(nested, nested, other)
