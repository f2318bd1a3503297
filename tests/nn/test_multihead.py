"""Multi-head attention: each option against the equation, head by head, in float64."""

import math
from typing import Any

import pytest
import torch

import qkv
from qkv import masks, nn, normalizers, readouts, scores
from qkv.core.equation import attend_dense
from qkv.errors import KindError, OptionError, PositionError, ShapeError

Tensor = torch.Tensor
WIDTH, HEADS, BATCH, Q, K = 12, 4, 2, 5, 6

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "other widths": {"key_width": 7, "value_width": 9, "head_width": 2, "head_value_width": 5},
    "grouped": {"key_heads": 2},
    "multi-query": {"key_heads": 1, "head_width": 5},
    "one head": {"heads": 1},
    "norms": {"query_key_norm": "rms"},
    "layer norms, grouped": {"query_key_norm": "layer", "key_heads": 2},
    "unit vectors": {"query_key_norm": "l2", "score": scores.Dot(), "extensions": ["temperature"]},
    "norms of a function": {"query_key_norm": lambda width: torch.nn.RMSNorm(width, eps=1e-3), "key_heads": 2},
    "gate": {"extensions": ["output_gate"]},
    "temperature, sink": {"extensions": ["temperature", "sink"]},
    "temperature, sink, grouped": {"extensions": ["temperature", "sink"], "key_heads": 2},
    "a softmax of its own": {"normalizer": normalizers.Softmax(2.0), "extensions": ["temperature"]},
    "learned key": {"extensions": ["learned_key"]},
    "both extra keys, grouped": {"extensions": ["learned_key", "zero_key"], "key_heads": 2},
    "shared map": {"maps": ["shared", "value", "output"]},
    "query map alone": {"maps": ["query", "value", "output"]},
    "key map alone": {"maps": ["key", "value", "output"]},
    "no maps": {"maps": []},
    "no value map, grouped": {"maps": ["query", "key", "output"], "key_heads": 2, "key_width": 6},
    "additive": {"score": nn.Additive},
    "additive, grouped": {"score": nn.Additive, "key_heads": 2},
    "cosine, sparsemax": {"score": scores.Cosine(), "normalizer": normalizers.Sparsemax()},
    "gaussian, sigmoid, grouped": {"score": nn.Gaussian, "normalizer": normalizers.Sigmoid(), "key_heads": 2},
    "a sigmoid with a bias for each head": {
        "normalizer": normalizers.Sigmoid(torch.rand(HEADS, dtype=torch.float64) - 2),
        "key_heads": 2,
    },
    "slopes of the user's own": {
        "score": scores.ALiBi(scores.ScaledDot(), torch.rand(HEADS, dtype=torch.float64)),
        "key_heads": 2,
    },
}


def made(name: str, **more: Any) -> nn.MultiHeadAttention:
    torch.manual_seed(1)
    options = {"heads": HEADS, **OPTIONS[name], **more}
    module = nn.MultiHeadAttention(WIDTH, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return module


def inputs(module: nn.MultiHeadAttention, *lead: int, q: int = Q, k: int = K) -> list[Tensor]:
    torch.manual_seed(2)
    shapes = ((q, module.width), (k, module.key_width), (k, module.value_width))
    return [torch.randn(*(lead or (BATCH,)), *shape, dtype=torch.float64) for shape in shapes]


def by_heads(
    module: nn.MultiHeadAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The equation for one head after another, from their views. `mask` `(q, k)`."""
    output, weights = torch.zeros((), dtype=query.dtype), []
    gate = None if module.gate_map is None else module.gate_map(query).sigmoid()
    parts = []
    for n in range(module.heads):
        head, g = module.head(n), n * module.key_heads // module.heads
        sides = []
        for x, weight, bias, at, width in (
            (query, head.query_map, head.query_bias, n, module.head_width),
            (key, head.key_map, head.key_bias, g, module.head_width),
            (value, head.value_map, head.value_bias, g, module.head_value_width),
        ):
            mapped = x[..., at * width : (at + 1) * width] if weight is None else x @ weight.T
            sides.append(mapped if bias is None else mapped + bias)
        if module.query_norm is not None and module.key_norm is not None:
            sides[:2] = [module.query_norm(sides[0]), module.key_norm(sides[1])]
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool) if mask is None else mask
        extra = []
        if module.extra_key is not None:
            extra.append((module.extra_key[g], module.extra_value[g]))
        if module.zero_key:
            extra.append((sides[1].new_zeros(1, module.head_width), sides[2].new_zeros(1, sides[2].shape[-1])))
        for more_key, more_value in extra:
            for at, x in ((1, more_key), (2, more_value)):
                sides[at] = torch.cat([sides[at], x.expand(*sides[at].shape[:-2], *x.shape)], -2)
            allowed = torch.cat([allowed, torch.ones_like(allowed[:, :1])], -1)
        score = module.score()
        score = score.map_arrays(lambda x, n=n: x[n] if x.shape[:1] == (HEADS,) else x)
        normalizer = module.normalizer() or normalizers.Softmax()
        normalizer = normalizer.map_arrays(lambda x, n=n: x[n])
        if module.log_temperature is not None:
            temperature = normalizer.temperature * module.log_temperature[n].exp()
            sink = None if module.sink is None else module.sink[n]
            normalizer = normalizers.Softmax(temperature, sink)
        seen = attend_dense(
            *sides, score=score, normalizer=normalizer, mask=masks.AllowedPairs(allowed),
            positions=qkv.Positions(align="start"),
        )  # fmt: skip
        weights.append(seen.weights)
        gated = seen.output
        if gate is not None:
            gated = gated * gate[..., n * gated.shape[-1] : (n + 1) * gated.shape[-1]]
        if head.output_map is None:
            parts.append(gated)
        else:
            output = output + gated @ head.output_map.T
    if parts:
        output = torch.cat(parts, -1)
    if module.output_map is not None and module.output_map.bias is not None:
        output = output + module.output_map.bias
    return output, torch.stack(weights, -3)


@pytest.mark.thinned
@pytest.mark.parametrize("masked", [False, True], ids=["all pairs", "some pairs"])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_equals_the_equation_head_by_head(name: str, masked: bool) -> None:
    module = made(name)
    given = [x.requires_grad_() for x in inputs(module)]
    mask = torch.rand(Q, K) < 0.6 if masked else None
    if mask is not None:
        mask[3] = False  # an empty row
    asked = {"mask": None if mask is None else masks.AllowedPairs(mask), "positions": qkv.Positions(align="start")}
    wanted, weights = by_heads(module, *given, mask)
    torch.testing.assert_close(module(*given, **asked), wanted, atol=1e-12, rtol=1e-12)
    seen = module(*given, **asked, readouts=[readouts.Dense()])
    torch.testing.assert_close(seen.readouts[0], weights, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(seen.output, wanted, atol=1e-12, rtol=1e-12)
    leaves = [*given, *module.parameters()]
    ours = torch.autograd.grad(module(*given, **asked).square().sum(), leaves)
    theirs = torch.autograd.grad(wanted.square().sum(), leaves)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("grouped", [False, True])
def test_talking_heads_mix_logits_before_and_weights_after_the_normalizer(grouped: bool) -> None:
    module = made("grouped" if grouped else "plain", extensions=["talking_heads"])
    query, key, value = inputs(module)
    mask = torch.rand(Q, K) < 0.7
    mask[:, 0] = True
    queries, (keys, values) = module.queries(query), module.key_value(key, value)
    keys, values = (x.repeat_interleave(HEADS // module.key_heads, -3) for x in (keys, values))
    logits = queries @ keys.mT / math.sqrt(module.head_width)
    logits = torch.einsum("hg,bgqk->bhqk", module.logit_mix, logits).masked_fill(~mask, -torch.inf)
    weights = torch.einsum("hg,bgqk->bhqk", module.weight_mix, logits.softmax(-1))
    wanted = module.output_map((weights @ values).transpose(1, 2).flatten(2))
    seen = module(query, key, value, mask=masks.AllowedPairs(mask), readouts=[readouts.Dense()])
    torch.testing.assert_close(seen.output, wanted, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(seen.readouts[0], weights, atol=1e-12, rtol=1e-12)
    assert seen.plan.kernel.name == "dense"


def test_talking_heads_start_as_independent_heads() -> None:
    torch.manual_seed(0)
    talking = nn.MultiHeadAttention(WIDTH, HEADS, extensions=["talking_heads"])
    silent = nn.MultiHeadAttention(WIDTH, HEADS)
    silent.load_state_dict(talking.state_dict(), strict=False)
    x = torch.randn(BATCH, Q, WIDTH)
    torch.testing.assert_close(talking(x), silent(x), atol=1e-6, rtol=0)


def test_a_pair_excluded_by_one_head_contributes_nothing_to_the_others() -> None:
    torch.manual_seed(0)
    score = nn.Epanechnikov(WIDTH // HEADS, heads=HEADS)
    with torch.no_grad():
        score.log_bandwidth.copy_(torch.tensor([0.1, 1.0, 4.0, 9.0]).log())
    talking = nn.MultiHeadAttention(WIDTH, HEADS, score=score, extensions=["talking_heads"])
    silent = nn.MultiHeadAttention(WIDTH, HEADS, score=score)
    silent.load_state_dict(talking.state_dict(), strict=False)
    x = torch.randn(BATCH, Q, WIDTH)
    wanted = silent(x, readouts=[readouts.Dense()])
    assert (wanted.readouts[0][:, 0] == 0).any()
    torch.testing.assert_close(talking(x), wanted.output, atol=1e-6, rtol=0)


def test_masked_keys_of_talking_heads_are_not_read() -> None:
    module = made("plain", extensions=["talking_heads"], bias=False)
    x = inputs(module)[0]
    mask = masks.AllowedKeys(torch.tensor([True, True, True, True, False]))
    broken = x.clone()
    broken[:, -1] = torch.nan
    torch.testing.assert_close(module(x, x, mask=mask), module(x, broken, mask=mask))


def test_readouts_of_named_heads_are_those_of_all_heads_where_heads_share_keys() -> None:
    module = made("grouped")
    x, key, value = inputs(module)
    seen = module(x, key, value, readouts=[readouts.Dense(), readouts.TopWeights(2)])
    some = module(x, key, value, readouts=[readouts.Heads(readouts.Dense(), (3, 0))])
    assert seen.readouts[0].shape == (BATCH, HEADS, Q, K)
    assert seen.readouts[1].keys.shape == (BATCH, HEADS, Q, 2)
    torch.testing.assert_close(some.readouts[0], seen.readouts[0][:, [3, 0]])


def test_a_mask_has_the_batch_axes_of_the_module_or_those_and_heads() -> None:
    module = made("grouped")
    given = inputs(module)
    keys = torch.rand(BATCH, K) < 0.6
    keys[:, 0] = True
    wanted = torch.stack([module(*(x[n] for x in given), mask=masks.AllowedKeys(keys[n])) for n in range(BATCH)])
    for mask in (
        masks.AllowedKeys(keys),
        masks.AllowedPairs(keys[:, None, :]),
        masks.AllowedPairs(keys[:, None, None, :].expand(BATCH, HEADS, Q, K)),
    ):
        torch.testing.assert_close(module(*given, mask=mask), wanted)
    lengths = torch.tensor([2, 4])
    torch.testing.assert_close(
        module(*given, mask=masks.Lengths(lengths)),
        module(*given, mask=masks.AllowedKeys(torch.arange(K) < lengths[:, None])),
    )
    per_head = torch.rand(BATCH, HEADS, Q, K) < 0.6
    seen = module(*given, mask=masks.AllowedPairs(per_head), readouts=[readouts.Dense()])
    assert ((seen.readouts[0] > 0) == per_head).all()


def test_a_bias_is_added_to_the_logits_and_minus_infinity_excludes() -> None:
    module = made("grouped")
    given = inputs(module)
    bias = torch.randn(BATCH, HEADS, Q, K, dtype=torch.float64)
    plain = module(*given, readouts=[readouts.Dense()]).readouts[0]
    seen = module(*given, bias=bias, readouts=[readouts.Dense()]).readouts[0]
    torch.testing.assert_close(seen, (plain.log() + bias).softmax(-1))
    one = torch.randn(Q, K, dtype=torch.float64)
    one[:, 2] = -torch.inf
    seen = module(*given, bias=one, readouts=[readouts.Dense()]).readouts[0]
    torch.testing.assert_close(seen, (plain.log() + one).softmax(-1))


def test_any_number_of_batch_axes_gives_the_same_numbers() -> None:
    module = made("grouped", mask=masks.Causal(align="start"))
    given = inputs(module, 2, 3)
    flat = module(*(x.flatten(0, 1) for x in given))
    torch.testing.assert_close(module(*given).flatten(0, 1), flat)
    torch.testing.assert_close(module(*(x[1, 2] for x in given)), flat[5])


def test_a_query_without_batch_axes_meets_every_element_of_the_keys() -> None:
    module = made("plain")
    query, key, value = inputs(module)
    together = module(query[0], key, value)
    assert together.shape == (BATCH, Q, WIDTH)
    torch.testing.assert_close(together[1], module(query[0], key[1], value[1]))


def test_a_head_is_a_view_into_the_weights() -> None:
    module = made("grouped", head_value_width=5)
    with torch.no_grad():
        for n in range(HEADS):
            head = module.head(n)
            assert head.query_map.shape == (3, WIDTH)
            assert head.value_map.shape == (5, WIDTH)
            assert head.output_map.shape == (WIDTH, 5)
            for view in (head.query_map, head.key_map, head.value_map, head.output_map, head.query_bias):
                view.fill_(n)
    rows = torch.arange(HEADS, dtype=torch.float64)
    assert (module.query_map.weight[:, 0] == rows.repeat_interleave(3)).all()
    assert (module.output_map.weight[0] == rows.repeat_interleave(5)).all()
    assert (module.key_map.weight[:, 0] == torch.tensor([1.0, 3.0]).repeat_interleave(3)).all()
    assert module.head(-1).query_map.data_ptr() == module.head(3).query_map.data_ptr()
    with pytest.raises(OptionError, match="from -4 to 3, got 4"):
        module.head(4)


def test_projected_keys_and_values_can_be_reused() -> None:
    module = made("grouped", query_key_norm="rms")
    query, key, value = inputs(module)
    torch.testing.assert_close(module(query, module.key_value(key, value)), module(query, key, value))


def test_dropout_acts_in_training_alone_and_follows_the_seed_of_torch() -> None:
    module = made("plain", dropout=0.5)
    x = inputs(module)[0]
    module.eval()
    assert (module(x) == module(x)).all()
    module.train()
    torch.manual_seed(0)
    first = module(x)
    assert not torch.allclose(first, module(x))
    torch.manual_seed(0)
    assert (module(x) == first).all()


class Listed:
    """A cache that keeps every key."""

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.new = 0
        self.mask = None

    @property
    def start(self) -> int:
        return 0 if self.key is None else self.key.shape[-2]

    @property
    def positions(self) -> qkv.Positions:
        return qkv.Positions(query_start=self.start - self.new)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.new = key.shape[-2]
        self.key = key if self.key is None else torch.cat([self.key, key], -2)
        self.value = value if self.value is None else torch.cat([self.value, value], -2)
        return self.key, self.value


class Turned(torch.nn.Module):
    """Rotary positions of one frequency for each pair of columns."""

    def rotate(self, query: Tensor, key: Tensor, query_at: Tensor, key_at: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(query, query_at), self.one(key, key_at)

    def one(self, x: Tensor, at: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        rate = 2.0 ** -torch.arange(half, dtype=x.dtype)
        angle = at[..., None] * rate
        a, b = x[..., :half], x[..., half : 2 * half]
        rest = x[..., 2 * half :]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), rest], -1)


@pytest.mark.parametrize("name", ["plain", "grouped", "learned key", "additive", "temperature, sink"])
def test_decoding_with_a_cache_equals_decoding_without_one(name: str) -> None:
    module = made(name, mask=masks.Causal(), positions=Turned())
    x = inputs(module, q=7)[0]
    wanted, cache = module(x), Listed()
    assert isinstance(cache, nn.Cache)
    assert isinstance(Turned(), nn.Rotation)
    steps = [module(piece, cache=cache) for piece in x.split([3, 1, 2, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, 1), wanted, atol=1e-12, rtol=1e-12)


def test_rotary_attention_of_unequal_lengths_requires_positions() -> None:
    module = made("plain", positions=Turned())
    query, key, value = inputs(module)
    with pytest.raises(PositionError, match="align"):
        module(query, key, value)
    start = module(query, key, value, positions=qkv.Positions(align="start"))
    end = module(query, key, value, positions=qkv.Positions(align="end"))
    each = module(query, key, value, positions=qkv.Positions(query_start=torch.tensor([0, K - Q])))
    torch.testing.assert_close(each, torch.stack([start[0], end[1]]))


def test_self_attention_takes_one_sequence_and_cross_attention_two() -> None:
    x, y = torch.randn(2, 3, 8), torch.randn(2, 5, 6)
    assert nn.SelfAttention(8, 2)(x).shape == (2, 3, 8)
    assert nn.CrossAttention(8, 6, 2)(x, y).shape == (2, 3, 8)
    with pytest.raises(KindError, match="CrossAttention"):
        nn.SelfAttention(8)(x, y)
    with pytest.raises(KindError, match="SelfAttention"):
        nn.CrossAttention(8)(x)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    assert type(nn.SelfAttention.from_torch(theirs)) is nn.SelfAttention
    assert type(nn.CrossAttention.from_torch(theirs)) is nn.CrossAttention


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"heads": 5}, "divisible by heads=5"),
        ({"heads": 4, "key_heads": 3}, "must divide heads=4, got 3"),
        ({"heads": 0}, "heads must be an integer of at least 1, got 0"),
        ({"heads": True}, "heads must be an integer of at least 1, got True"),
        ({"maps": "shared"}, "must be a list of names, got 'shared'"),
        ({"maps": ["all"]}, "each of maps must be one of query, key, value"),
        ({"maps": ["query", "shared"]}, "beside"),
        ({"extensions": "sink"}, "must be a list of names"),
        ({"bias": "query"}, "bias must be one of True, False, inputs, output"),
        ({"maps": ["value", "output"], "key_width": 5}, "Choose key_width=12"),
        ({"maps": ["shared", "value", "output"], "key_width": 5}, "Make them equal"),
        ({"maps": ["query", "key", "output"], "value_width": 5}, "value_width=12"),
        ({"maps": ["query", "key", "value"], "head_value_width": 2, "heads": 4}, "width=8"),
        ({"query_key_norm": "batch"}, "rms, layer"),
        ({"query_key_norm": lambda width: width}, "must return a module for the width of a head, got int"),
        ({"dropout": 1.0}, "got 1.0"),
        ({"extensions": ["sink"], "normalizer": normalizers.Sigmoid()}, "must be Softmax"),
        ({"extensions": ["talking_heads"], "kernel": "tiled"}, '"dense" with talking_heads'),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_the_constructor(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        nn.MultiHeadAttention(WIDTH, **options)


def test_an_input_of_another_width_and_a_mask_that_is_an_array_are_refused() -> None:
    module = nn.MultiHeadAttention(WIDTH, 2, maps=["value", "output"])
    with pytest.raises(ShapeError, match=r"query must have shape \(\*batch, length, 12\), got \(2, 3, 10"):
        module(torch.randn(2, 3, 10))
    with pytest.raises(KindError, match=r"masks\.AllowedKeys"):
        module(torch.randn(2, 3, WIDTH), mask=torch.ones(2, 3, dtype=torch.bool))


def test_the_repr_names_widths_heads_score_and_mask() -> None:
    said = repr(nn.MultiHeadAttention(8, 4, key_heads=2, score=nn.Additive, mask=masks.Causal()))
    assert "width=8, heads=4, key_heads=2" in said
    assert "Additive(query_width=2, key_width=2, heads=4)" in said
    assert "Causal()" in said


def test_the_logits_of_unit_vectors_are_their_cosines() -> None:
    module = made("unit vectors", extensions=[])
    x = torch.randn(BATCH, Q, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        weights = module(x, readouts=[readouts.Dense()]).readouts[0]
        query, key = (map(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for map in (module.query_map, module.key_map))
        cosines = torch.nn.functional.cosine_similarity(query[..., :, None, :], key[..., None, :, :], dim=-1)
    assert float((weights - cosines.softmax(-1)).abs().max()) < 1e-12


def test_a_norm_of_a_function_is_built_for_the_head_width_and_has_its_own_parameters() -> None:
    module = nn.MultiHeadAttention(12, 4, query_key_norm=lambda width: torch.nn.RMSNorm(width, eps=1e-3))
    assert module.query_norm is not module.key_norm
    assert isinstance(module.query_norm, torch.nn.RMSNorm)
    assert module.query_norm.normalized_shape == (3,)
    with torch.no_grad():
        module.query_norm.weight.fill_(7.0)
    module.reset_parameters()
    assert module.query_norm.weight.tolist() == [1.0] * 3
