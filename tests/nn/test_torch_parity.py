"""Every configuration of `nn.MultiheadAttention` gives the same output and gradients after conversion."""

import itertools

import pytest
import torch

from qkv import masks, nn, normalizers, scores
from qkv.errors import KindError, OptionError, ShapeError
from qkv.testing.libraries import turn
from tests.nn.parity import BATCH, EVERY, HEADS, MODULES, SOME, WIDTH, Config, K, Q, compare

DTYPES = [torch.float32, torch.float64]


@pytest.mark.thinned
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module", MODULES, ids=str)
def test_output_weights_and_gradients_equal_those_of_torch(module: tuple[object, ...], dtype: torch.dtype) -> None:
    """Of each module, with each pair of masks, the ways to call it in turn; in short runs, a third in each dtype."""
    torch.manual_seed(0)
    mine = [config for config in SOME if (config.bias, config.kdim, config.vdim) == module[:3]]
    mine = [config for config in mine if (config.add_bias_kv, config.add_zero_attn) == module[3:]]
    assert len(mine) == 15
    for config in turn(mine, MODULES.index(module) + DTYPES.index(dtype), 3):
        compare(config, dtype)


def test_the_short_sweep_covers_every_call_with_every_mask() -> None:
    for first, second in itertools.combinations(Config.__dataclass_fields__, 2):
        every = {(getattr(c, first), getattr(c, second)) for c in EVERY}
        assert {(getattr(c, first), getattr(c, second)) for c in SOME} == every, (first, second)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_agrees(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    assert len(EVERY) == 32 * 15 * 36
    for config in EVERY:
        compare(config, dtype)


@pytest.mark.parametrize("padded", [False, True])
def test_the_fast_path_of_torch_agrees(padded: bool) -> None:
    """Without gradients, in eval, of one sequence: PyTorch runs other code."""
    torch.manual_seed(2)
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x = torch.randn(BATCH, K, WIDTH)
    out = torch.zeros(BATCH, K, dtype=torch.bool)
    out[1, 3:] = padded
    with torch.no_grad():
        wanted = theirs(x, x, x, key_padding_mask=out if padded else None, need_weights=False)[0]
        got = nn.MultiHeadAttention.from_torch(theirs)(x, mask=masks.AllowedKeys(~out))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_a_fully_masked_row_gives_the_output_bias_and_no_gradient_where_torch_gives_nan() -> None:
    torch.manual_seed(3)
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(theirs.out_proj.bias)
    ours = nn.MultiHeadAttention.from_torch(theirs)
    x = torch.randn(BATCH, K, WIDTH, dtype=torch.float64)
    out = torch.zeros(K, K, dtype=torch.bool)
    out[2] = True
    wanted = theirs(x, x, x, attn_mask=out)[0]
    leaf = x.clone().requires_grad_()
    got = ours(leaf, **nn.torch_masks(out))
    assert wanted[:, 2].isnan().all()
    assert (got[:, 2] == ours.output_map.bias).all()
    rest = [0, 1, 3, 4]
    torch.testing.assert_close(got[:, rest], wanted[:, rest], atol=1e-12, rtol=0)
    got[:, 2].sum().backward()
    assert (leaf.grad == 0).all()


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_conversion_to_torch_and_back_keeps_the_parameters(module: tuple[object, ...]) -> None:
    bias, kdim, vdim, bias_kv, zero = module
    theirs = torch.nn.MultiheadAttention(
        WIDTH, HEADS, 0.1, bias, bias_kv, zero, kdim, vdim, batch_first=True, dtype=torch.float64
    )
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    again = nn.MultiHeadAttention.from_torch(theirs.eval()).to_torch()
    assert again.state_dict().keys() == theirs.state_dict().keys()
    assert all((again.state_dict()[name] == value).all() for name, value in theirs.state_dict().items())
    assert (again.training, again.dropout, again.batch_first) == (False, 0.1, True)


def test_converted_parameters_are_copied() -> None:
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS)
    ours = nn.MultiHeadAttention.from_torch(theirs)
    with torch.no_grad():
        ours.query_map.weight.zero_()
    assert theirs.in_proj_weight.abs().sum() > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"score": nn.Additive}, "a learned score"),
        ({"score": scores.Cosine()}, "Cosine"),
        ({"normalizer": normalizers.Sparsemax()}, "Sparsemax"),
        ({"mask": masks.Causal()}, "a mask"),
        ({"key_heads": 1}, "1 key heads"),
        ({"maps": ["shared", "value", "output"]}, "no projection of its own"),
        ({"maps": ["query", "key", "output"]}, "no value projection"),
        ({"maps": ["query", "key", "value"]}, "no output projection"),
        ({"head_width": 3}, "head widths 3"),
        ({"query_key_norm": "rms"}, "norm"),
        ({"extensions": ["output_gate"]}, "gate"),
        ({"extensions": ["temperature"]}, "temperatures"),
        ({"extensions": ["sink"]}, "sinks"),
        ({"extensions": ["talking_heads"]}, "talking heads"),
        ({"bias": "inputs"}, "biases on all projections or on none"),
    ],
)
def test_options_that_torch_lacks_are_refused_by_to_torch(options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        nn.MultiHeadAttention(WIDTH, HEADS, **options).to_torch()


def test_a_module_of_a_divided_sequence_is_refused_by_to_torch() -> None:
    with pytest.raises(OptionError, match="process group"):
        nn.MultiHeadAttention(WIDTH, HEADS).shard_sequence(object()).to_torch()


def test_masks_of_integers_or_other_shapes_are_refused() -> None:
    with pytest.raises(KindError, match="True excludes a pair"):
        nn.torch_masks(torch.zeros(Q, K, dtype=torch.int64))
    with pytest.raises(ShapeError, match="batch · heads"):
        nn.torch_masks(torch.zeros(3, Q, K), heads=2)
    with pytest.raises(ShapeError, match="key_padding_mask"):
        nn.torch_masks(None, torch.zeros(1, Q, K))
    with pytest.raises(KindError, match="Linear"):
        nn.MultiHeadAttention.from_torch(torch.nn.Linear(2, 2))


def test_boolean_masks_of_torch_are_inverted() -> None:
    given = nn.torch_masks(torch.tensor([[True, False]]), torch.tensor([[False, True]]))
    assert given["bias"] is None
    pairs, keys = given["mask"].left, given["mask"].right
    assert pairs.array.tolist() == [[False, True]]
    assert keys.array.tolist() == [[True, False]]
