"""Options of x-transformers' attention against the parts of qkv that state the same, with gradients, in float64.

`Attend` computes attention from queries, keys and values: 9 options for 3 pairs of lengths, 5 of them also causal, are
42 calls; masks, sinks, biases and samples follow. `Attention` is the module with projections around it: 11 settings.
Left out are options that mix heads or rows (talking heads, selective, inverted, CoPE, signed weights), which are no
attention with a score, a normalizer and a mask.
"""

import warnings
from typing import Any

import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.positions import Positions
from qkv.scores import Biased, Dot, Gaussian, ScaledDot, Softcap

torch = pytest.importorskip("torch")
pytest.importorskip("x_transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from x_transformers.attend import Attend
    from x_transformers.x_transformers import AlibiPositionalBias, Attention, RelativePositionBias

BATCH, HEADS, WIDTH = 2, 4, 8
END = Positions(align="end")
ENTMAX = normalizers.Entmax15()


def random(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_gradients(output: Any, leaves: list[Any]) -> list[Any]:
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    found = torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
    return [output.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True))]


def assert_same(ours: list[Any], wanted: list[Any], limit: float = 1e-10) -> None:
    for a, b in zip(ours, wanted, strict=True):
        assert float((a - b).abs().max()) < limit * max(1.0, float(b.abs().max()))


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "scale": ({"scale": 0.3}, {"score": Dot(scale=0.3)}),
    "softclamp": ({"softclamp_logits": True, "logit_softclamp_value": 1.5}, {"score": Softcap(ScaledDot(), 1.5)}),
    "sigmoid": ({"sigmoid": True}, {"normalizer": normalizers.Sigmoid()}),
    "top-k": ({"sparse_topk": 3}, {"normalizer": normalizers.TopK(3)}),
    "top-1": ({"sparse_topk": 1}, {"normalizer": normalizers.TopK(1)}),
    "squared distance": ({"l2_distance": True, "scale": 0.5}, {"score": Gaussian(1.0)}),
    "zero key and value": ({"add_zero_kv": True}, {"normalizer": normalizers.Softmax(sink=0.0)}),
    "entmax": ({"custom_attn_fn": lambda x: ENTMAX.weights(x)}, {"normalizer": ENTMAX}),
}
MASKED = ("plain", "softclamp", "top-k", "squared distance", "zero key and value")


def expect(options: dict[str, Any], leaves: list[Any], **inputs: Any) -> Any:
    """Return the output of their `Attend`, whose softmax computes in float32 unless queries and keys are normalized."""
    torch.manual_seed(0)
    attend = Attend(heads=HEADS, qk_norm=not options.get("custom_attn_fn"), **options).double()
    return attend(*leaves, **inputs)[0]


@pytest.mark.parametrize("lengths", [(6, 6), (1, 9), (5, 9)])
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_attend_is_a_part_of_qkv(name: str, lengths: tuple[int, int]) -> None:
    theirs, ours = OPTIONS[name]
    leaves = [
        random(BATCH, HEADS, n, WIDTH, seed=s).requires_grad_() for s, n in enumerate((lengths[0], *lengths[1:] * 2))
    ]
    for causal in (False, True) if name in MASKED else (False,):
        wanted = with_gradients(expect({**theirs, "causal": causal}, leaves), leaves)
        mask = masks.Causal("end") if causal else None
        for kernel in ("dense", None):
            assert_same(with_gradients(qkv.attend(*leaves, **ours, mask=mask, kernel=kernel), leaves), wanted, 1e-9)


@pytest.mark.parametrize("shape", [(BATCH, 9), (BATCH, 1, 5, 9), (BATCH, HEADS, 5, 9)])
def test_masks_of_attend_are_masks_of_qkv_and_empty_rows_are_zero(shape: tuple[int, ...]) -> None:
    leaves = [random(BATCH, HEADS, n, WIDTH, seed=s).requires_grad_() for s, n in enumerate((5, 9, 9))]
    allowed = random(*shape, seed=5) > 0
    allowed[0, ..., :] = False
    mask = masks.AllowedKeys(allowed[:, None]) if allowed.ndim == 2 else masks.AllowedPairs(allowed)
    wanted = with_gradients(expect({}, leaves, mask=allowed), leaves)
    assert not wanted[0][0].any()
    ours = with_gradients(qkv.attend(*leaves, mask=mask), leaves)
    assert_same(ours[:3], wanted[:3])
    # They set the output of an empty row to 0 after an average of all values, so that no gradient reaches the values.
    assert_same(ours[3:], wanted[3:])


def test_a_learned_sink_is_the_sink_of_softmax_with_its_gradient() -> None:
    leaves = [random(BATCH, HEADS, n, WIDTH, seed=s).requires_grad_() for s, n in enumerate((5, 7, 7))]
    theirs = Attend(heads=HEADS, qk_norm=True, head_learned_sink=True).double()
    with torch.no_grad():
        theirs.head_attn_sink.copy_(random(HEADS, seed=9))
    wanted = with_gradients(theirs(*leaves)[0], [*leaves, theirs.head_attn_sink])
    sink = theirs.head_attn_sink.detach()[None].requires_grad_()
    ours = with_gradients(qkv.attend(*leaves, normalizer=normalizers.Softmax(sink=sink)), [*leaves, sink])
    assert_same([*ours[:4], ours[4][0]], wanted)


def test_hard_attention_chooses_the_same_keys() -> None:
    """Only the output is compared: their gradient is the estimate of softmax ("straight through")."""
    leaves = [random(BATCH, HEADS, n, WIDTH, seed=s) for s, n in enumerate((5, 7, 7))]
    ours = qkv.attend(*leaves, normalizer=normalizers.Hard())
    assert_same([ours], [expect({"hard": True}, leaves)])


def test_gumbel_softmax_draws_each_key_as_often_as_sample() -> None:
    leaves = [random(1, 1, n, WIDTH, seed=s) for s, n in enumerate((1, 6, 6))]
    draws, eye = 4000, torch.eye(6, dtype=torch.float64)[None, None]
    many = leaves[0].expand(draws, 1, 1, WIDTH)
    theirs = expect({"gumbel_softmax": True}, [many, leaves[1].expand(draws, 1, 6, WIDTH), eye.expand(draws, 1, 6, 6)])
    ours = qkv.attend(many, leaves[1], eye, normalizer=normalizers.Sample(), seed=0)
    exact = qkv.attend(*leaves[:2], eye)
    for found in (theirs, ours):
        share = found.mean((0, 1, 2))
        assert ((share - exact[0, 0, 0]).abs() < 5 * (exact[0, 0, 0] * (1 - exact[0, 0, 0]) / draws) ** 0.5).all()


def test_biases_of_positions_are_those_of_the_modules() -> None:
    leaves = [random(BATCH, HEADS, n, WIDTH, seed=s).requires_grad_() for s, n in enumerate((6, 9, 9))]
    alibi = AlibiPositionalBias(heads=HEADS)
    slope = alibi.slopes.double().reshape(1, HEADS)
    wanted = with_gradients(expect({"causal": True}, leaves, attn_bias=alibi(6, 9).double()), leaves)
    ours = qkv.attend(*leaves, score=scores.ALiBi(ScaledDot(), slope), mask=masks.Causal(), positions=END)
    assert_same(with_gradients(ours, leaves), wanted)
    for causal in (False, True):
        theirs = RelativePositionBias(1.0, causal=causal, num_buckets=8, max_distance=20, heads=HEADS).double()
        table = theirs.relative_attention_bias.weight.T.detach()
        score = scores.RelativePosition(ScaledDot(), table[None], bidirectional=not causal, max_distance=20)
        wanted = with_gradients(expect({"causal": causal}, leaves, attn_bias=theirs(6, 9)), leaves)
        ours = qkv.attend(*leaves, score=score, mask=masks.Causal() if causal else None, positions=END)
        assert_same(with_gradients(ours, leaves), wanted)
        score = Biased(ScaledDot(), theirs(6, 9).detach()[None])
        given = qkv.attend(*leaves, score=score, mask=masks.Causal("end") if causal else None)
        assert_same(with_gradients(given, leaves), wanted)


COSINE = scores.Cosine(temperature=0.1)
MODULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"mask": masks.Causal()}),
    "one head of keys": ({"one_kv_head": True}, {}),
    "two heads of keys": ({"kv_heads": 2}, {}),
    "normalized queries and keys": ({"qk_norm": True}, {"score": COSINE}),
    "normalized and causal": ({"qk_norm": True, "causal": True}, {"score": COSINE, "mask": masks.Causal()}),
    "a window of the past": ({"causal": True, "max_attend_past": 2}, {"mask": masks.Window(2, 0)}),
    "values of another width": ({"value_dim_head": 5}, {}),
    "sigmoid": ({"sigmoid": True}, {"normalizer": normalizers.Sigmoid()}),
    "top-k": ({"sparse_topk": 2}, {"normalizer": normalizers.TopK(2)}),
    "soft clamp": ({"softclamp_logits": True, "logit_softclamp_value": 2.0}, {"score": Softcap(ScaledDot(), 2.0)}),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_its_projections_around_a_call_of_qkv(name: str) -> None:
    theirs, ours = MODULES[name]
    torch.manual_seed(0)
    module = Attention(dim=16, dim_head=WIDTH, heads=HEADS, **theirs)
    module.attend.attn_fn = module.attend.attn_fn if "sparse_topk" in theirs or "sigmoid" in theirs else in_float64
    module, x = module.double(), random(BATCH, 7, 16).requires_grad_()
    wanted = with_gradients(module(x), [x, *module.parameters()])
    query = module.split_q_heads(module.to_q(x))
    key, value = module.split_k_heads(module.to_k(x)), module.split_v_heads(module.to_v(x))
    # They give head h the keys of head h % n; PyTorch and qkv give a head of keys to consecutive heads.
    order = torch.arange(HEADS).reshape(-1, key.shape[1]).T.reshape(-1)
    output = qkv.attend(query[:, order], key, value, **ours, enable_gqa=True)[:, order.argsort()]
    merged = module.to_out(module.merge_heads(output))
    assert_same(with_gradients(merged, [x, *module.parameters()]), wanted)


def test_the_counts_above_are_those_of_the_tables() -> None:
    assert len(OPTIONS) == 9
    assert (len(OPTIONS) + len(MASKED)) * 3 == 42
    assert len(MODULES) == 11


def in_float64(logits: Any) -> Any:
    return logits.softmax(-1)
