"""What the ranks of `test_ring.py` run: sharded calls, compared with one process."""

import gc
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import qkv
from examples import sequence_parallel
from qkv import masks, normalizers
from qkv.core.parts import Part
from qkv.ring import sparse_weights
from qkv.ring.transport import Ring
from qkv.testing.cases import Case

TOLERANCE = 1e-10


def _tensor(x: Any) -> Tensor:
    array = torch.as_tensor(np.array(x))
    return array.requires_grad_() if array.is_floating_point() else array


def _shard_part(part: Any, order: str) -> Any:
    """Divide arrays along their queries, or along their keys if they have none."""

    def cut(x: Tensor, names: tuple[str, ...] | None) -> Tensor:
        side = next((name for name in ("q", "k") if name in (names or ())), None)
        if side is None or names is None or x.shape[(axis := names.index(side) - len(names))] == 1:
            return x.detach().requires_grad_(x.requires_grad)
        return qkv.distributed.shard(x, order=order, axis=axis).detach().requires_grad_(x.requires_grad)

    return None if part is None else part._map(cut)


def _gradients(output: Tensor, weight: Tensor, tensors: list[Tensor]) -> list[Tensor | None]:
    trained = [x for x in tensors if x.requires_grad]
    found = iter(torch.autograd.grad((output * weight).sum(), trained, allow_unused=True, materialize_grads=True))
    return [next(found) if x.requires_grad else None for x in tensors]


def error_of(case: Case, order: str) -> float:
    """Return the largest difference of output and gradients of this rank from those of one process."""
    call = case.call()
    parts: list[Part | None] = [
        None if part is None else part._map(lambda x, names: _tensor(x))
        for part in (call.score, call.normalizer, call.mask)
    ]
    options = {"positions": call.positions, "dropout": call.dropout, "seed": 5 if call.dropout else None}
    sides = [_tensor(x) for x in (call.query, call.key, call.value)]

    def cut(x: Tensor) -> Tensor:
        return qkv.distributed.shard(x, order=order)

    def run(attend: Any, weight: Tensor | None, sides: list[Tensor], parts: list[Any], **more: Any) -> list[Any]:
        score, normalizer, mask = parts
        output = attend(*sides, score=score, normalizer=normalizer, mask=mask, **options, **more)
        if weight is None:
            weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
        return [output.detach(), *_gradients(output, weight, [*sides, *score.arrays(), *normalizer.arrays()]), weight]

    *wanted, weight = run(qkv.attend, None, sides, parts, kernel=None if call.dropout else "dense")
    mine = [cut(x).detach().requires_grad_() for x in sides]
    sharded = [_shard_part(part, order) for part in parts]
    *got, _ = run(qkv.distributed.attend, cut(weight), mine, sharded, order=order)
    names: list[tuple[str, ...] | None] = [("q", "w"), ("q", "w"), ("k", "w"), ("k", "w")]
    names += [axes for part in parts[:2] if part is not None for _, axes in part.array_fields()]
    worst = 0.0
    for n, (x, y, axes) in enumerate(zip(got, wanted, names, strict=True)):
        if x is None or y is None:
            continue
        side = next((name for name in ("q", "k") if name in (axes or ())), None)
        # An array of a part with one row broadcasts, so that each rank has it.
        if side is None or axes is None or (y.shape[(axis := axes.index(side) - len(axes))] == 1 and n >= 4):
            dist.all_reduce(x)
        else:
            y = qkv.distributed.shard(y, order=order, axis=axis)
        worst = max(worst, float((x - y).abs().max()) if x.numel() else 0.0)
    return worst


def check_cases(cases: Iterable[tuple[Case, str]]) -> None:
    """Raise an `AssertionError` that names the cases in which a rank differs from one process."""
    wrong = [(case, order, error) for case, order in cases if not (error := error_of(case, order)) <= TOLERANCE]
    assert not wrong, wrong


def check_dense_thresholds() -> None:
    """Compare sparse normalizers whose rows have more candidates than a rank holds."""
    held, sparse_weights._MAX_CANDIDATES = sparse_weights._MAX_CANDIDATES, 2  # type: ignore[misc]
    try:
        check_cases([(Case(normalizer=name), "balanced") for name in ("entmax15", "sparsemax")])
    finally:
        sparse_weights._MAX_CANDIDATES = held  # type: ignore[misc]


def check_grouped_heads_and_gather() -> None:
    """Compare grouped heads, with lengths that the ranks do not divide, after gathering the output."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 9, 3), torch.randn(2, 2, 9, 3), torch.randn(2, 2, 9, 3)
    order = "balanced"
    local = [qkv.distributed.shard(x, order=order) for x in (query, key, value)]
    output = qkv.distributed.attend(*local, mask=masks.Causal(), order=order, enable_gqa=True)
    wanted = qkv.attend(query, key, value, mask=masks.Causal(), enable_gqa=True)
    assert torch.allclose(qkv.distributed.gather(output, order=order), wanted, atol=1e-5)
    assert torch.equal(
        qkv.distributed.shard(torch.arange(9), order=order, axis=0), qkv.distributed.indices(9, order=order)
    )


def check_module() -> None:
    """Compare a module with rotated, grouped heads, its output and all gradients, with one process."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"key_heads": 2, "mask": masks.Causal(), "extensions": ["sink"], "dtype": torch.float64}
    for order in ("balanced", "contiguous"):
        options["positions"] = qkv.nn.positions.Rotary(4)
        whole = qkv.nn.MultiHeadAttention(16, 4, **options)
        group = dist.group.WORLD
        sharded = qkv.nn.MultiHeadAttention(16, 4, **options).shard_sequence(group, order)
        for x in whole.parameters():
            dist.broadcast(x.data, 0)
        sharded.load_state_dict(whole.state_dict())
        x = torch.randn(2, 13, 16, dtype=torch.float64)
        dist.broadcast(x, 0)
        local = qkv.distributed.shard(x, order=order).clone().requires_grad_()
        x.requires_grad_()
        wanted, got = whole(x), sharded(local)
        weight = torch.linspace(-1, 1, wanted.numel(), dtype=wanted.dtype).reshape(wanted.shape)
        (wanted * weight).sum().backward()
        (got * qkv.distributed.shard(weight, order=order)).sum().backward()
        pairs = [(got, qkv.distributed.shard(wanted, order=order))]
        pairs.append((local.grad, qkv.distributed.shard(x.grad, order=order)))
        for mine, theirs in zip(sharded.parameters(), whole.parameters(), strict=True):
            dist.all_reduce(mine.grad)
            pairs.append((mine.grad, theirs.grad))
        assert max(float((a - b).detach().abs().max()) for a, b in pairs) < TOLERANCE
    refused = qkv.nn.MultiHeadAttention(16, 4, extensions=["zero_key"]).shard_sequence(group)
    with pytest.raises(qkv.errors.RefusedError, match="zero_key must not be used with process_group"):
        refused(torch.zeros(4, 16))


def check_group_is_released() -> None:
    """Check that no reference cycle holds the process group after a call, which would abort the process at its end."""
    gc.collect()
    gc.disable()
    try:
        query, key, value = (torch.ones(4, 2, requires_grad=True) for _ in range(3))
        qkv.distributed.attend(query, key, value).sum().backward()
        assert not [x for x in gc.get_objects() if type(x) is Ring]
    finally:
        gc.enable()


def check_refusals(rank: int) -> None:
    """Check that each error is raised on all ranks, with a remedy, and that the ranks can go on."""
    x = torch.zeros(4, 2)
    longer = torch.zeros(4 + rank, 2)
    attend = qkv.distributed.attend
    short = masks.AllowedKeys(torch.ones(4 - rank) == 1)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("rows of key", lambda: attend(x, torch.zeros(5 + 2 * rank, 2), torch.zeros(5 + 2 * rank, 2))),
        ("same call", lambda: attend(x, x, torch.zeros(4, 2 + rank))),
        ("same call", lambda: attend(x, x, x, mask=masks.Causal() if rank else None)),
        ("axis k" if rank else "on all ranks", lambda: attend(x, x, x, mask=short)),
        ("normalizer must be", lambda: attend(x, x, x, normalizer=normalizers.TopK(2))),
        ("one for each key", lambda: attend(x, x, x, mask=masks.AllowedPairs(torch.ones(4, 5) == 1))),
        ("order must be", lambda: attend(x, x, x, order="zigzag")),
        ("rows of array", lambda: qkv.distributed.gather(longer.repeat(2, 1))),
    ]
    for words, call in calls:
        with pytest.raises(qkv.errors.QkvError, match=words):
            call()


SHORT = [
    (Case("scaled dot", mask="causal by positions"), "balanced"),
    (Case("scaled dot", mask="causal by positions", dropout=0.3), "contiguous"),
    (Case("additive", "softmax with sink", "lengths"), "contiguous"),
    (Case("gaussian"), "balanced"),
    (Case("biased", "softmax with temperature", "pairs"), "balanced"),
    (Case("biased per key", mask="documents", shape="no batch axes"), "balanced"),
    (Case("quadratic position", mask="prefix"), "balanced"),
    (Case("similarity", "sum", "keys"), "contiguous"),
    (Case("dot", "mean", "window"), "balanced"),
    (Case("scaled dot", "entmax15", "causal by positions"), "balanced"),
    (Case("additive", "sparsemax"), "contiguous"),
]


def run_short(rank: int, size: int, path: str) -> None:
    """Run the short test on one rank."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    check_cases(SHORT)
    check_dense_thresholds()
    check_grouped_heads_and_gather()
    check_module()
    check_group_is_released()
    check_refusals(rank)
    assert sequence_parallel.main()[1] < TOLERANCE
    dist.destroy_process_group()


def run_sweep(rank: int, size: int, path: str) -> None:
    """Run every score with some normalizers and masks, and every mask, in both orders, on one rank."""
    from qkv.testing.cases import MASKS, SCORES

    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    without_ring = ("decay per key", "decay per feature", "exact")
    names = ("softmax", "softmax with sink", "entmax15", "sparsemax", "mean", "identity", "sigmoid", "sum")
    for order in ("contiguous", "balanced"):
        cases = [
            Case(score, normalizer, mask, "more queries than keys" if mask == "none" else "heads that share keys")
            for score in SCORES
            if score not in without_ring
            for normalizer in names
            for mask in ("none", "causal by positions")
        ]
        cases += [
            Case(score, normalizer, mask, shape)
            for score, normalizer in (("scaled dot", "softmax"), ("additive", "entmax15"), ("alibi", "softmax"))
            for mask in MASKS
            if mask != "blocks"
            for shape in ("as many queries as keys", "three batch axes", "one query", "one key", "no keys")
        ]
        # Positions and masks that align queries and keys differently are refused.
        refused = ("alibi", "causal from the start")
        cases = [case for case in cases if case.sensible and (case.score, case.mask) != refused]
        check_cases([(case, order) for case in cases])
    dist.destroy_process_group()
