"""Masks and scores of the package attn-gym (attention-gym) against PyTorch's eager flex_attention.

On a CPU flex_attention has no gradients. Those of `softmax(change(logits))`, written plainly, are compared instead,
after its output has been compared with that of flex_attention.

Each mask runs as the mask of qkv that states the same rule where there is one, as `masks.Custom` of their function, and
as `masks.AllowedPairs` of their table. Their functions that index by batch or head run as a table only.
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import qkv
from qkv import masks
from qkv.core.positions import Positions
from qkv.normalizers import Custom, Sigmoid
from qkv.scores import ALiBi, Biased, Dot, ScaledDot, Softcap
from tests.effort import sample

torch = pytest.importorskip("torch")
pytest.importorskip("attn_gym")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from attn_gym import masks as theirs
    from attn_gym import mods
    from attn_gym.masks.document_mask import length_to_offsets
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, create_mask, flex_attention

BATCH, HEADS, WIDTH = 2, 4, 8
OFFSETS = length_to_offsets([5, 20, 3, 36], "cpu")
IDS = torch.repeat_interleave(torch.arange(4), torch.tensor([5, 20, 3, 36]))
GLOBAL = torch.arange(64) % 17 == 3
TREE = theirs.build_tree_ancestor_matrix([-1, 0, 0, 1, 1, 2, 5, 5], device="cpu")
IMAGES = torch.tensor([[0, 20], [20, 40], [40, 64]])
ZERO = torch.tensor(0)  # batch element and head, to which these masks do not refer
START = Positions(align="start")


def same_documents() -> masks.Mask:
    return masks.Causal() & masks.Documents(IDS)


MASKS: dict[str, tuple[Any, int, int, Callable[[], masks.Mask] | None]] = {
    "causal": (theirs.causal_mask, 64, 64, lambda: masks.Causal("start")),
    "causal, more keys": (theirs.causal_mask, 40, 64, lambda: masks.Causal("start")),
    "causal, more queries": (theirs.causal_mask, 64, 40, lambda: masks.Causal("start")),
    "sliding window 0": (theirs.generate_sliding_window(0), 64, 64, lambda: masks.Window(0, 0)),
    "sliding window": (theirs.generate_sliding_window(7), 64, 64, lambda: masks.Window(7, 0)),
    "sliding window, wide": (theirs.generate_sliding_window(100), 64, 64, lambda: masks.Window(100, 0)),
    "dilated window": (theirs.generate_dilated_sliding_window(9, 3), 64, 64, None),
    "prefix": (theirs.generate_prefix_lm_mask(13), 64, 64, lambda: masks.Prefix(13)),
    "prefix of all": (theirs.generate_prefix_lm_mask(64), 64, 64, lambda: masks.Prefix(64)),
    "documents": (theirs.generate_doc_mask_mod(theirs.causal_mask, OFFSETS), 64, 64, same_documents),
    "packed documents": (theirs.generate_packed_causal_doc_mask_mod(OFFSETS), 64, 64, same_documents),
    "documents with windows": (
        theirs.generate_doc_mask_mod(theirs.generate_sliding_window(4), OFFSETS),
        64,
        64,
        lambda: masks.Window(4, 0) & masks.Documents(IDS),
    ),
    "documents with prefixes": (theirs.generate_doc_mask_mod(theirs.generate_prefix_lm_mask(2), OFFSETS), 64, 64, None),
    "shared prefix": (
        theirs.generate_shared_prefix_mask_mod(OFFSETS, torch.tensor([0, 0, 2, 2])),
        64,
        64,
        lambda: masks.Causal() & masks.Documents(torch.tensor([0, 0, 1, 1])[IDS]),
    ),
    "batches of tokens": (
        theirs.batchify_mask_mod(theirs.causal_mask, 16),
        64,
        64,
        lambda: masks.Causal() & masks.Documents(torch.arange(64) // 16),
    ),
    "global and window": (
        theirs.generate_global_sliding_window(3, GLOBAL),
        64,
        64,
        lambda: masks.Window(3, 3) | masks.AllowedKeys(GLOBAL) | masks.AllowedPairs(GLOBAL[:, None]),
    ),
    "block diffusion": (theirs.generate_block_diffusion_mask(32, 8), 64, 64, None),
    "neighbourhood": (theirs.generate_natten(8, 8, 3, 5), 64, 64, None),
    "tiled neighbourhood": (theirs.generate_tiled_natten(8, 8, 3, 3, 4, 4), 64, 64, None),
    "Morton neighbourhood": (theirs.generate_morton_natten(8, 8, 3, 3), 64, 64, None),
    "sliding tiles 2-D": (theirs.generate_sta_mask_mod_2d((8, 8), (4, 4), (2, 2)), 64, 64, None),
    "sliding tiles 2-D and text": (theirs.generate_sta_mask_mod_2d((6, 8), (6, 4), (2, 4), 16), 64, 64, None),
    "sliding tiles 3-D": (theirs.generate_sta_mask_mod_3d((4, 4, 4), (2, 2, 2), (2, 2, 2)), 64, 64, None),
    "tree of drafts": (theirs.generate_jetspec_tree_causal_mask_mod(12, TREE), 8, 20, None),
    "blocks of drafts": (theirs.generate_jetspec_training_mask_mod(16, 4), 16, 32, None),
    "images": (theirs.generate_vision_cross_attention_mask_mod(IMAGES, 10), 64, 30, None),
    "spatial head": (theirs.generate_spatial_head_mask_mod(8, 7, 8, 2, True, 8), 64, 64, None),
    "temporal head": (theirs.generate_temporal_head_mask_mod(8, 7, 8, 2), 64, 64, None),
}
"""Name: their mask, number of queries, number of keys, and our mask of the same rule, if there is one."""

TABLE_ONLY = {"images"}  # their function works on one pair at a time
KERNELS = ("dense", "tiled", None)


def inputs(q: int, k: int, heads: int = HEADS) -> list[Any]:
    generator = torch.Generator().manual_seed(q + k)
    return [
        torch.randn(BATCH, heads, n, WIDTH, dtype=torch.float64, generator=generator, requires_grad=True)
        for n in (q, k, k)
    ]


def with_gradients(output: Any, leaves: list[Any]) -> list[Any]:
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent)]


def flex(leaves: list[Any], mask: Any = None, score: Any = None, **options: Any) -> Any:
    """Return the result of eager flex_attention."""
    query, key, value = (x.detach() for x in leaves)
    block = None
    if mask is not None:
        block = create_block_mask(mask, BATCH, query.shape[1], query.shape[2], key.shape[2], device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is not compiled
        return flex_attention(query, key, value, score_mod=score, block_mask=block, **options)


def expected(leaves: list[Any], output: Any, table: Any = True, change: Any = None, more: Any = ()) -> list[Any]:
    """Return the output of flex_attention, and gradients of attention in three plain lines that has this output."""
    query, key, value = leaves
    logits = query @ key.transpose(-1, -2) / WIDTH**0.5
    logits = (logits if change is None else change(logits)).masked_fill(~torch.as_tensor(table), -torch.inf)
    plain = torch.nan_to_num(logits.softmax(-1)) @ value
    found = with_gradients(plain, [*leaves, *more])
    assert_same(found[:1], [output])
    return [output, *found[1:]]


def assert_same(ours: list[Any], wanted: list[Any]) -> None:
    for a, b in zip(ours, wanted, strict=True):
        assert float((a - b).abs().max()) < 1e-10 * max(1.0, float(b.abs().max()))


def table_of(name: str) -> Any:
    rule, q, k, _ = MASKS[name]
    return create_mask(rule, None, None, q, k, device="cpu")[0, 0]


@pytest.mark.parametrize("name", sample(MASKS, 3))
def test_a_mask_gives_the_output_and_gradients_of_flex_attention(name: str) -> None:
    rule, q, k, ours = MASKS[name]
    leaves, table = inputs(q, k), table_of(name)
    assert table.any()
    wanted = expected(leaves, flex(leaves, rule), table)
    ways = [masks.AllowedPairs(table)] + ([ours()] if ours is not None else [])
    if name not in TABLE_ONLY:
        ways.append(masks.Custom(lambda q, k: rule(ZERO, ZERO, q, k), align="start"))
    for mask in ways:
        for kernel in KERNELS if mask is ways[-1] else (None,):
            output = qkv.attend(*leaves, score=ScaledDot(), mask=mask, positions=START, kernel=kernel)
            assert_same(with_gradients(output, leaves), wanted)


def test_the_masks_are_those_of_the_package() -> None:
    """28 masks by 20 of the 21 functions; the other one, of VSA, takes blocks that are chosen from data."""
    made = {
        name for name in vars(theirs) if name.startswith("generate_") or name in ("causal_mask", "batchify_mask_mod")
    }
    assert len(made - {"generate_vsa_mask_mod"}) == 20
    assert len(MASKS) == 28
    assert sum(ours is not None for _, _, _, ours in MASKS.values()) == 14


def bias_of(mod: Any, q: int, k: int, heads: int = HEADS) -> Any:
    """Return the numbers that a score_mod of theirs adds to a logit of 0."""
    table = torch.empty(BATCH, heads, q, k, dtype=torch.float64)
    for index in torch.cartesian_prod(*map(torch.arange, table.shape)):
        table[tuple(index)] = mod(torch.zeros((), dtype=torch.float64), *index)
    return table


def test_alibi_of_a_causal_call_is_that_of_flex_attention() -> None:
    """Their bias (j − i) · slope is −|i − j| · slope for the pairs of a causal mask."""
    leaves = inputs(32, 32)
    slope = torch.exp2(-torch.arange(1, HEADS + 1) * 8.0 / HEADS).double()[None]
    output = flex(leaves, theirs.causal_mask, mods.generate_alibi_bias(HEADS))
    bias = bias_of(mods.generate_alibi_bias(HEADS), 32, 32)
    wanted = expected(leaves, output, torch.ones(32, 32).tril().bool(), lambda logits: logits + bias)
    for kernel in KERNELS:
        output = qkv.attend(*leaves, score=ALiBi(ScaledDot(), slope), mask=masks.Causal(), kernel=kernel)
        assert_same(with_gradients(output, leaves), wanted)


@pytest.mark.parametrize("cap", [1, 20])
def test_soft_caps_are_those_of_flex_attention(cap: int) -> None:
    leaves = inputs(32, 24)
    output = flex(leaves, None, mods.generate_tanh_softcap(cap))
    wanted = expected(leaves, output, change=lambda logits: cap * torch.tanh(logits / cap))
    for kernel in KERNELS:
        output = qkv.attend(*leaves, score=Softcap(ScaledDot(), float(cap)), kernel=kernel)
        assert_same(with_gradients(output, leaves), wanted)


def test_sandwich_is_a_bias_of_relative_positions() -> None:
    leaves, mod = inputs(16, 16), mods.generate_sandwich_bias(HEADS, 16)
    bias, causal = bias_of(mod, 16, 16), torch.ones(16, 16).tril().bool()
    wanted = expected(leaves, flex(leaves, theirs.causal_mask, mod), causal, lambda logits: logits + bias)
    output = qkv.attend(*leaves, score=Biased(ScaledDot(), bias), mask=masks.Causal())
    assert_same(with_gradients(output, leaves), wanted)


def graph(nodes: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    upper = (torch.rand(BATCH, nodes, nodes, generator=generator) < 0.15).triu(1)
    return upper | upper.transpose(1, 2)


def test_the_spatial_bias_of_graphormer_has_the_gradient_of_its_table() -> None:
    leaves, distances = inputs(16, 16), mods.shortest_path_distances(graph(16), 3)
    table = torch.randn(HEADS, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    output = flex(leaves, None, mods.generate_graphormer_spatial_bias(table.detach(), distances))

    def bias() -> Any:
        return table[:, distances.long()].transpose(0, 1)

    wanted = expected(leaves, output, change=lambda logits: logits + bias(), more=[table])
    for kernel in KERNELS:
        output = qkv.attend(*leaves, score=Biased(ScaledDot(), bias()), kernel=kernel)
        assert_same(with_gradients(output, [*leaves, table]), wanted)


def test_the_edge_bias_of_graphormer_is_that_of_flex_attention() -> None:
    leaves, adjacency = inputs(12, 12), graph(12)
    kinds = torch.randint(0, 3, adjacency.shape, generator=torch.Generator().manual_seed(2))
    table = torch.randn(HEADS, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    mod = mods.generate_graphormer_edge_bias(table, *mods.shortest_path_edge_types(adjacency, kinds, 2))
    bias = bias_of(mod, 12, 12)
    wanted = expected(leaves, flex(leaves, None, mod), change=lambda logits: logits + bias)
    output = qkv.attend(*leaves, score=Biased(ScaledDot(), bias))
    assert_same(with_gradients(output, leaves), wanted)


def test_latent_attention_with_decoupled_positions_is_one_inner_product() -> None:
    """Their score_mod adds the product of rotated parts, which queries and keys of greater width hold as well."""
    leaves = inputs(16, 16)
    generator = torch.Generator().manual_seed(4)
    rotated = [torch.randn(BATCH, n, 16, 4, dtype=torch.float64, generator=generator) for n in (HEADS, 1)]
    mod = mods.generate_mla_rope_score_mod(*rotated, num_heads=HEADS, scale=0.3)
    bias, causal = bias_of(mod, 16, 16), torch.ones(16, 16).tril().bool()
    wanted = expected(leaves, flex(leaves, theirs.causal_mask, mod), causal, lambda logits: logits + bias)
    query = torch.cat([leaves[0] / WIDTH**0.5, 0.3 * rotated[0]], -1)
    key = torch.cat([leaves[1], rotated[1].expand(-1, HEADS, -1, -1)], -1)
    output = qkv.attend(query, key, leaves[2], score=Dot(), mask=masks.Causal())
    assert_same(with_gradients(output, leaves), wanted)


ACTIVATIONS = {"gelu": torch.nn.functional.gelu, "relu": torch.relu, "sigmoid": torch.sigmoid}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_in_place_of_softmax_are_normalizers(name: str) -> None:
    leaves, function = inputs(24, 24), ACTIVATIONS[name]
    out, aux = flex(leaves, None, mods.generate_activation_score_mod(function), return_aux=AuxRequest(lse=True))
    undone = mods.undo_softmax(out, aux.lse, leaves[2].detach().sum(-2, keepdim=True))
    plain = function(leaves[0] @ leaves[1].transpose(-1, -2) / WIDTH**0.5) @ leaves[2]
    wanted = with_gradients(plain, leaves)
    assert_same(wanted[:1], [undone])
    normalizers = [Custom(function)] + ([Sigmoid()] if name == "sigmoid" else [])
    for normalizer in normalizers:
        output = qkv.attend(*leaves, score=ScaledDot(), normalizer=normalizer)
        assert_same(with_gradients(output, leaves), wanted)


def test_grouped_heads_are_those_of_flex_attention() -> None:
    query, key, value = inputs(20, 28)
    leaves = [query, key[:, :2].detach().requires_grad_(), value[:, :2].detach().requires_grad_()]
    output = flex(leaves, None, None, enable_gqa=True)
    repeated = [query, *(x.repeat_interleave(2, 1) for x in leaves[1:])]
    plain = (repeated[0] @ repeated[1].transpose(-1, -2) / WIDTH**0.5).softmax(-1) @ repeated[2]
    wanted = with_gradients(plain, leaves)
    assert_same(wanted[:1], [output])
    assert_same(with_gradients(qkv.attend(*leaves, enable_gqa=True), leaves), wanted)
