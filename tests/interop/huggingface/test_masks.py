"""The lazy mask equals the mask of transformers, and allocates no array until a model computes with it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
masking = pytest.importorskip("transformers.masking_utils")

from qkv.core.tile import Tile  # noqa: E402
from qkv.engine import attend  # noqa: E402
from qkv.interop.huggingface.attention_call import AttentionCall, IndexedMask, Registration  # noqa: E402
from qkv.interop.huggingface.mask_interface import FunctionMask, LazyMask, MaskContext, build_mask, translate_mask  # noqa: E402
from qkv.masks import Causal  # noqa: E402

PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1], [0, 1, 0, 1, 2, 3, 4, 5, 6]])
PACKS = masking.find_packed_sequence_indices(PACKED)
BLOCKS = torch.tensor([[-1, 0, 0, -1, 1, 1, 1, -1, -1], [2, 2, -1, -1, -1, 3, 3, 3, 3]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)
LEFT = torch.tensor([0, 3])


def odd(batch: Any, head: Any, query: Any, key: Any) -> Any:
    """A function that nobody knows."""
    return (query + key + batch) % 2 == 1


def packed(inner: Any) -> Any:
    return masking.packed_sequence_compatibility_function(inner, PACKED, PACKS)


KNOWN = {
    "causal": masking.causal_mask_function,
    "both ways": masking.bidirectional_mask_function,
    "sliding": masking.sliding_window_causal_mask_function(3),
    "sliding both ways": masking.sliding_window_bidirectional_mask_function(2),
    "chunks": masking.chunked_causal_mask_function(4, LEFT),
    "packed": packed(masking.causal_mask_function),
    "packed and sliding": packed(masking.sliding_window_causal_mask_function(2)),
    "packed and chunked": packed(masking.chunked_overlay(2, torch.zeros(2, dtype=torch.int64))),
    "blocks": masking.or_masks(masking.causal_mask_function, masking.blockwise_overlay(BLOCKS)),
    "padding within": masking.and_masks(masking.causal_mask_function, masking.padding_mask_function(REAL)),
}
UNKNOWN = {
    "odd": odd,
    "causal and odd": masking.and_masks(masking.causal_mask_function, odd),
    "packed and odd": packed(odd),
}


def both(function: Any, q: int, k: int, q_start: int, k_start: int, real: Any, **more: Any) -> Any:
    """Ours and transformers' own."""
    given = {
        "batch_size": 2, "q_length": q, "kv_length": k, "q_offset": q_start, "kv_offset": k_start,
        "mask_function": function, "attention_mask": real, "device": torch.device("cpu"), **more,
    }  # fmt: skip
    return build_mask(**given, dtype=torch.float32), masking.eager_mask(**given)


WHOLE = (9, 9, 0, 0)
SHAPES = [WHOLE, (3, 9, 6, 0), (1, 7, 8, 2)]
ASKED = [
    (name, shape)
    for name in (*KNOWN, *UNKNOWN)
    for shape in SHAPES
    if shape == WHOLE or "packed" not in name  # transformers packs texts without a cache only
]


@pytest.mark.thinned
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("name", "shape"), ASKED)
def test_the_lazy_mask_holds_the_pairs_of_transformers_own_mask(
    name: str, shape: tuple[int, int, int, int], padded: bool
) -> None:
    function = {**KNOWN, **UNKNOWN}[name]
    mine, theirs = both(function, *shape, REAL if padded else None)
    assert isinstance(mine, LazyMask)
    assert mine.array is None
    assert mine.shape == theirs.shape
    assert torch.equal(mine.dense(), theirs)


@pytest.mark.parametrize("name", KNOWN)
def test_mask_functions_of_transformers_become_masks_of_qkv(name: str) -> None:
    frame = MaskContext(2, 9, 9, 0, 0, torch.device("cpu"))
    mask = translate_mask(KNOWN[name], frame)
    assert mask is None or not any(isinstance(part, FunctionMask) for part in mask.parts())


def test_a_function_that_must_be_mapped_gives_the_same_pairs() -> None:
    table = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])

    def same(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return torch.where(table[batch, query] == 0, key <= query, table[batch, query] == table[batch, key])

    function = masking.and_masks(masking.causal_mask_function, same)
    mine, theirs = both(function, 4, 4, 0, 0, None, use_vmap=True)
    assert torch.equal(mine.dense(), theirs)


def test_a_window_wider_than_the_text_leaves_a_causal_mask_alone() -> None:
    mine, _ = both(masking.sliding_window_causal_mask_function(9), 9, 9, 0, 0, None)
    assert isinstance(mine.parts()[0], Causal)


def test_no_padding_and_both_ways_is_no_mask() -> None:
    real = torch.ones((2, 9), dtype=torch.bool)
    more = {"allow_is_bidirectional_skip": True}
    assert both(masking.bidirectional_mask_function, 9, 9, 0, 0, real, **more)[0] is None


def test_slots_of_a_static_cache_that_are_not_written_yet_are_masked() -> None:
    mine, theirs = both(masking.causal_mask_function, 1, 12, 4, 0, REAL[:, :5])
    assert torch.equal(mine.dense(), theirs)
    assert (mine.dense()[..., 5:] < 0).all()


def lazy(q: int = 6, k: int = 9) -> LazyMask:
    mask, _ = both(masking.causal_mask_function, q, k, k - q, 0, REAL[:, :k])
    return mask


def test_passing_on_and_cropping_keys_makes_no_array() -> None:
    mask = lazy()
    cropped = mask[:, :, :, :5].detach()
    assert isinstance(cropped, LazyMask)
    assert cropped.shape == (2, 1, 6, 5)
    assert cropped.array is None
    assert torch.equal(cropped.dense(), lazy().dense()[..., :5])
    assert mask.array is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.ones(6, 9),
        lambda x: x == 0,
        lambda x: x[:, 0],
        lambda x: x[:, :, 2:4],
        lambda x: x[..., 1:],
        lambda x: x.double() * -2.0,
        lambda x: x.expand(2, 3, 6, 9),
        lambda x: torch.cat([x, x], dim=-1),
        lambda x: torch.zeros(2, 1, 6, 9).masked_fill(x == 0, 1.0),
        lambda x: x.amax(-1),
    ],
)
def test_other_operations_on_a_lazy_mask_apply_to_the_array(function: Any) -> None:
    assert torch.equal(function(lazy()), function(lazy().dense()))


def test_writes_into_a_lazy_mask_are_kept() -> None:
    mask, array = lazy(), lazy().dense().clone()
    for x in (mask, array):
        x[:, :, 0] = 0.0
        x.add_(torch.arange(9) / 9)
    assert torch.equal(mask.dense(), array)
    torch.manual_seed(0)
    query, key = torch.randn(2, 3, 6, 4), torch.randn(2, 3, 9, 4)
    found = AttentionCall.from_interface(Registration(), torch.nn.Identity(), query, key, key, mask)
    output = attend(found.query, found.key, found.value, **found.options)
    wanted = ((query @ key.mT) / 2 + array).softmax(-1) @ key
    torch.testing.assert_close(output, wanted)


def test_an_existing_four_dimensional_mask_is_returned_unchanged() -> None:
    mask = lazy()
    assert build_mask(2, 6, 9, attention_mask=mask) is mask


def test_listed_keys_are_the_same_tile_by_tile() -> None:
    indices = torch.tensor([[0, 3, -1], [5, 5, 1]])
    mask, tile = IndexedMask(indices, size=2), Tile.whole(2, 11)
    all_of = mask.allowed(tile, torch.zeros(()))
    assert all_of.nonzero().tolist() == [
        *([0, j] for j in (0, 1, 6, 7)), *([1, j] for j in (2, 3, 10)),
    ]  # fmt: skip
    for start, stop in ((0, 3), (3, 8), (8, 11)):
        piece = mask.allowed(tile.restrict((0, 2), (start, stop)), torch.zeros(()))
        assert torch.equal(piece, all_of[:, start:stop])
