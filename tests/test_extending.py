"""A user-defined score works with masks, tiles, gradients, EXPLAIN and `ask`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import qkv
from qkv import masks, normalizers, scores
from qkv.core.arrays import namespace
from qkv.core.parts import array_field
from qkv.core.typing import Array
from qkv.errors import KindError
from qkv.kernels import NumpyBlocksKernel, RowBlocksKernel, TiledKernel
from qkv.plan import Kernel, Result
from qkv.scores import GeneralScore, InnerProductScore


@dataclass(frozen=True, eq=False)
class Canberra(GeneralScore):
    """Minus the weighted Canberra distance: −Σ_c w_c |q_c − k_c| / (|q_c| + |k_c| + 1)."""

    weight: Array = array_field("width")

    def compare(self, query: Array, key: Array) -> Array:
        xp = namespace(query)
        query, key = query[..., :, None, :], key[..., None, :, :]
        distance = xp.abs(query - key) / (xp.abs(query) + xp.abs(key) + 1.0)
        return -xp.matmul(distance, self.weight[..., None, :, None])[..., 0]


@dataclass(frozen=True, eq=False)
class Weighted(InnerProductScore):
    """Weighted inner product; it declares a lift, so the fused kernel can run it."""

    weight: Array = array_field("width")

    def lift(self, query: Array, key: Array, tile: Any) -> tuple[Array, Array]:
        return query * self.weight[..., None, :], key


def canberra(query: Array, key: Array, weight: Array) -> Array:
    """Return the logits of `Canberra`, as a function for `Custom`."""
    return Canberra(weight).compare(query, key)


SMALL: dict[str, Kernel] = {
    "numpy_blocks": NumpyBlocksKernel(budget=12, row_block_budget=300),
    "tiled": TiledKernel(budget=12, row_block_budget=300),
    "row_blocks": RowBlocksKernel(budget=300),
}
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE, WEIGHT = (
    RNG.normal(size=(7, 3)),
    RNG.normal(size=(9, 3)),
    RNG.normal(size=(9, 2)),
    np.array([1.0, 2, 3]),
)
OWN = [Canberra(WEIGHT), scores.Custom(canberra, (WEIGHT,))]


def by_hand(mask: Any) -> Any:
    """Compute the output pair by pair."""
    logits = np.array(
        [
            [-sum(w * abs(a - b) / (abs(a) + abs(b) + 1) for w, a, b in zip(WEIGHT, q, k, strict=True)) for k in KEY]
            for q in QUERY
        ]
    )
    e = np.where(mask, np.exp(logits), 0)
    return e / np.where(e.sum(-1, keepdims=True) == 0, 1, e.sum(-1, keepdims=True)) @ VALUE


@pytest.mark.parametrize("score", OWN, ids=["class", "function"])
@pytest.mark.parametrize("kernel", ["dense", SMALL["numpy_blocks"]], ids=["dense", "numpy_blocks"])
def test_own_score_takes_masks_and_tiles(score: Any, kernel: Any) -> None:
    allowed = RNG.random((7, 9)) < 0.6
    allowed[3] = False
    output = qkv.attend(QUERY, KEY, VALUE, score=score, mask=masks.AllowedPairs(allowed), kernel=kernel)
    assert output == pytest.approx(by_hand(allowed))
    assert not output[3].any()


@pytest.mark.parametrize("score", OWN, ids=["class", "function"])
@pytest.mark.parametrize("kernel", [SMALL["tiled"], SMALL["row_blocks"]], ids=["tiled", "row_blocks"])
def test_own_score_gets_gradients_in_tiles(score: Any, kernel: Any) -> None:
    torch = pytest.importorskip("torch")

    def gradients(kernel: Any) -> Any:
        leaves = [torch.tensor(x, requires_grad=True) for x in (QUERY, KEY, VALUE, WEIGHT)]
        own = score.replace_arrays([leaves[3]])
        output = qkv.attend(*leaves[:3], score=own, mask=masks.Causal("end"), dropout=0.2, seed=1, kernel=kernel)
        return [output, *torch.autograd.grad(output.square().sum(), leaves)]

    for mine, right in zip(gradients(kernel), gradients("dense"), strict=True):
        assert (mine - right).abs().max() < 1e-12
    assert gradients(kernel)[4].abs().min() > 0


def test_explain_shows_an_own_score_and_what_its_logits_cost() -> None:
    long = ((50_000, 3), (50_000, 3), (50_000, 2))
    text = str(qkv.explain(*long, score=OWN[0], library="torch", gradient=True))
    assert "score       Canberra(float64[3])   compares pair by pair, 3 numbers for each logit" in text
    assert "kernel      tiled" in text
    assert "refused     fused: Canberra(float64[3]) is not an inner product" in text
    assert "Custom(canberra, parameters=(float64[3]))" in str(qkv.explain(*long, score=OWN[1]))


def test_own_inner_product_runs_on_the_fused_kernel() -> None:
    torch = pytest.importorskip("torch")
    arrays = [torch.tensor(x, requires_grad=True) for x in (QUERY, KEY, VALUE, WEIGHT)]
    fused, dense = (qkv.attend(*arrays[:3], score=Weighted(arrays[3]), kernel=kernel) for kernel in ("fused", "dense"))
    assert (fused - dense).abs().max() < 1e-12
    mine, right = (torch.autograd.grad(output.sum(), arrays[3])[0] for output in (fused, dense))
    assert (mine - right).abs().max() < 1e-12


@pytest.mark.parametrize("score", OWN, ids=["class", "function"])
def test_own_score_answers_questions_to_a_table(score: Any) -> None:
    table = {"where": KEY, "worth": VALUE[:, 0]}
    database = qkv.Database.open(table, key="where", value="worth")
    answer = database.ask(QUERY[:1], score=score, normalizer=normalizers.Softmax())
    assert float(np.ravel(answer.value)[0]) == pytest.approx(by_hand(True)[0, 0])
    assert type(score).__name__ in str(answer.plan)


def test_own_text_score_answers_questions_to_a_table() -> None:
    def same_length(query: Any, key: Any) -> Any:
        lengths = np.vectorize(len, otypes=[float])
        return np.where(lengths(query)[..., :, None] == lengths(key)[..., None, :], 1.0, 0.0)

    people = {"name": ["Li", "Anna", "Otto", "Mu"], "age": [20.0, 30.0, 50.0, 40.0]}
    database = qkv.Database.open(people, key="name", value="age")
    answer = database.ask("Emma", score=scores.Custom(same_length, accepts="text"), normalizer=normalizers.Sum())
    assert float(np.ravel(answer.value)[0]) == pytest.approx(40.0)


def test_own_kernel_runs_in_place_of_a_name() -> None:
    class MeanOfAll(Kernel):
        """Gives every query the mean of the values."""

        name = "mean of all"
        libraries = ("numpy",)

        def refuse(self, problem: Any) -> str | None:
            return None if problem.spec.mask is None else "it knows no masks"

        def scratch(self, problem: Any) -> float:
            return 1.0

        def run(self, call: Any, problem: Any) -> Result:
            return Result(np.tile(call.value.mean(-2, keepdims=True), (call.tile.q_total, 1)))

    seen = qkv.observe(QUERY, KEY, VALUE, kernel=MeanOfAll())
    assert seen.output == pytest.approx(np.tile(VALUE.mean(0), (7, 1)))
    assert "kernel      mean of all   named in the call" in str(seen.plan)
    with pytest.raises(qkv.errors.RefusedError, match="mean of all cannot run this call: it knows no masks"):
        qkv.attend(QUERY, KEY, VALUE, kernel=MeanOfAll(), mask=masks.Causal("end"))


def test_an_own_score_that_is_no_dataclass_is_refused_with_the_decorator_to_write() -> None:
    class Signs(InnerProductScore):
        def lift(self, query: Array, key: Array, tile: Any) -> tuple[Array, Array]:
            return query, key

    x = np.ones((3, 2))
    with pytest.raises(KindError, match=r"^Signs must be a dataclass.* Write @dataclass\(frozen=True, eq=False\)"):
        qkv.attend(x, x, x, score=Signs())
