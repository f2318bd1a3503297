"""Hard attention: its gradient estimate is unbiased, and it learns (mission A9)."""

import math
from typing import Any

import pytest
import torch

import qkv
from qkv import masks, nn, normalizers, scores
from qkv.errors import OptionError, QkvError, ShapeError
from qkv.nn.hard_attention import HardAttention, HardAttentionOutput
from tests.effort import sample

DRAWS = 20_000


def problem(draws: int = DRAWS) -> tuple[Any, Any, Any, Any]:
    """One query asked many times, keys, values, and what the answer should be."""
    generator = torch.Generator().manual_seed(0)
    query, key, value, target = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((1, 3), (5, 3), (5, 2), (2,))
    )
    return query.expand(draws, 1, 3).clone().requires_grad_(), key, value, target


def squares(target: Any) -> Any:
    return lambda answers: (answers - target).square().sum(-1)


def exact_gradient(attention: HardAttention) -> Any:
    query, key, value, target = problem(1)
    (found,) = torch.autograd.grad(attention.expected(query, key, value, squares(target)).sum(), query)
    return found[0, 0]


def estimates(attention: HardAttention, seed: int = 3) -> Any:
    """The gradient of the query that each draw gives, `(draws, width)`."""
    query, key, value, target = problem()
    drawn = attention(query, key, value, seed=seed)
    losses = squares(target)(drawn.output)
    expected = attention.expected(query, key, value, squares(target))
    (found,) = torch.autograd.grad(attention.objective(drawn, losses, expected).sum(), query)
    return found[:, 0]


def far_from_zero(samples: Any) -> Any:
    """How many standard errors the mean is from 0."""
    return samples.mean(0).abs() / (samples.std(0) / math.sqrt(len(samples)))


@pytest.mark.parametrize("baseline", [None, "moving", "exact"])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_gradient_of_reinforce_is_unbiased(baseline: Any, temperature: float) -> None:
    attention = HardAttention(baseline=baseline, temperature=temperature)
    if baseline == "moving":
        attention.average.fill_(1.3)
        attention.seen.fill_(1.0)
    found, exact = estimates(attention), exact_gradient(attention)
    assert float(far_from_zero(found - exact).max()) < 4
    # And the test has the power to see that it is wrong by a quarter.
    assert float(far_from_zero(found - 1.25 * exact).max()) > 4


def test_the_gradient_of_values_is_unbiased() -> None:
    query, key, value, target = problem()
    many = value.expand(DRAWS, 5, 2).clone().requires_grad_()
    attention = HardAttention(baseline="exact")
    drawn = attention(query, key, many, seed=5)
    losses = squares(target)(drawn.output)
    expected = attention.expected(query, key, many, squares(target))
    (found,) = torch.autograd.grad(attention.objective(drawn, losses, expected).sum(), many)
    one = value.clone().requires_grad_()
    exact = torch.autograd.grad(attention.expected(query[:1], key, one, squares(target)).sum(), one)[0]
    assert float(far_from_zero((found - exact).flatten(1)).max()) < 4


def test_baselines_keep_the_mean_and_reduce_the_variance() -> None:
    spread = {}
    for baseline in (None, "exact"):
        spread[baseline] = float(estimates(HardAttention(baseline=baseline)).var(0).sum())
    assert spread["exact"] < 0.7 * spread[None]


def test_the_moving_baseline_is_an_average_of_losses_before_this_call() -> None:
    attention, (query, key, value, _) = HardAttention(decay=0.5), problem(2)
    drawn = attention(query, key, value, seed=1)
    one, two = torch.tensor([[1.0], [3.0]]), torch.tensor([[6.0], [6.0]])
    grads = []
    for losses in (one, two, two):
        score = attention.objective(drawn, losses.double())
        assert torch.equal(score.detach(), losses.double())
        grads.append(torch.autograd.grad(score.sum(), drawn.log_probability, retain_graph=True)[0])
    assert torch.equal(grads[0], one.double())
    assert torch.allclose(grads[1], two.double() - 2)  # the mean of the first
    assert torch.allclose(grads[2], two.double() - (2 + 2 * 6) / 3)
    attention.eval()
    before = attention.average.clone()
    attention.objective(drawn, two.double())
    assert torch.equal(attention.average, before)


def test_straight_through_gives_the_sampled_value_and_the_gradient_of_the_soft_output() -> None:
    query, key, value, _ = problem(7)
    hard = HardAttention(gradient="straight-through")(query, key, value, seed=2)
    assert torch.equal(hard.output.detach(), value[hard.keys[:, 0]][:, None])
    towards = torch.randn(7, 1, 2, dtype=torch.float64)
    soft = qkv.attend(query, key, value)
    one, other = (torch.autograd.grad(x, query, towards)[0] for x in (hard.output, soft))
    assert float((one - other).abs().max()) < 1e-12


@pytest.mark.parametrize("gradient", ["straight-through", "gumbel"])
def test_a_value_that_was_not_drawn_has_no_gradient(gradient: str) -> None:
    query, key, value, _ = problem(7)
    hard = HardAttention(gradient=gradient)(query, key, value.requires_grad_(), seed=2)
    towards = torch.randn(7, 1, 2, dtype=torch.float64)
    found = torch.autograd.grad(hard.output, value, towards)[0]
    drawn = torch.nn.functional.one_hot(hard.keys[:, 0], len(value)).double()
    torch.testing.assert_close(found, drawn.mT @ towards[:, 0])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_gumbel_softmax_uses_the_noise_of_the_sample(temperature: float) -> None:
    query, key, value, _ = problem(50)
    options = {"gradient": "gumbel", "temperature": temperature}
    hard = HardAttention(**options, sharpness=0.7)(query, key, value, seed=2)
    assert torch.equal(hard.output.detach(), value[hard.keys[:, 0]][:, None])
    # As τ falls, the soft answer becomes the drawn one: then they share the noise.
    sharp = HardAttention(**options, sharpness=1e-4)
    found = sharp(query, key, value, seed=2)
    from qkv.nn.hard_attention import _NoisyScore

    soft = qkv.attend(
        query, key, value, score=_NoisyScore(scores.ScaledDot(), 1 / temperature),
        normalizer=normalizers.Softmax(1e-4), seed=2, kernel="dense",
    )  # fmt: skip
    assert float((soft - found.output).detach().abs().max()) < 1e-6
    # The gradient is that of the soft answer with this noise held fixed.
    noisy = _NoisyScore(scores.ScaledDot(), 1 / temperature)
    soft = qkv.attend(query, key, value, score=noisy, normalizer=normalizers.Softmax(0.7), seed=2, kernel="dense")
    towards = torch.randn(50, 1, 2, dtype=torch.float64)
    one, other = (torch.autograd.grad(x, query, towards)[0] for x in (hard.output, soft))
    assert float(other.abs().max()) > 1e-2
    assert float((one - other).abs().max()) < 1e-12


def test_keys_are_sampled_with_the_frequencies_of_their_weights() -> None:
    query, key, value, _ = problem()
    drawn = HardAttention()(query, key, value, seed=11)
    likely = qkv.observe(query[:1], key, value, readouts=[qkv.readouts.Dense()]).readouts[0][0, 0].detach()
    counts = torch.bincount(drawn.keys[:, 0], minlength=5) / DRAWS
    errors = (likely * (1 - likely) / DRAWS).sqrt()
    assert float(((counts - likely) / errors).abs().max()) < 4
    assert torch.allclose(drawn.log_probability.exp()[:, 0], likely[drawn.keys[:, 0]])


def test_in_evaluation_the_most_likely_key_is_chosen_and_a_fully_masked_row_gives_zero() -> None:
    query, key, value, _ = problem(2)
    attention = HardAttention(mask=masks.AllowedKeys(torch.tensor([[True] * 5, [False] * 5]))).eval()
    drawn = attention(query, key, value)
    best = int((query[0] @ key.T).argmax())
    assert drawn.keys.tolist() == [[best], [-1]]
    assert torch.equal(drawn.output[0, 0], value[best])
    assert torch.equal(drawn.output[1], torch.zeros(1, 2, dtype=torch.float64))
    assert float(drawn.log_probability[1].detach()) == 0
    trained = attention.train()(query, key, value, seed=1)
    assert trained.keys[1].tolist() == [-1]
    assert torch.equal(trained.output[1], torch.zeros(1, 2, dtype=torch.float64))


def accuracy_after_learning(gradient: Any, baseline: Any, steps: int = 150) -> float:
    """Attend to the one marked key among eight: the last number of a key marks it, its value is a class."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)

    def batch(size: int) -> tuple[Any, Any, Any]:
        key = torch.randn(size, 8, 6, generator=generator)
        marked = torch.randint(8, (size,), generator=generator)
        key[..., -1] = torch.nn.functional.one_hot(marked, 8).float()
        classes = torch.randint(10, (size, 8), generator=generator)
        wanted = classes.gather(1, marked[:, None])
        return key, torch.nn.functional.one_hot(classes, 10).float(), wanted

    attention = HardAttention(nn.Additive(2, 6, hidden=16), gradient=gradient, baseline=baseline)
    query = torch.nn.Parameter(torch.randn(1, 2, generator=generator))
    optimizer = torch.optim.Adam([query, *attention.parameters()], lr=0.03)
    for _ in range(steps):
        key, value, wanted = batch(64)
        drawn = attention(query.expand(64, 1, 2), key, value)
        losses = 1 - drawn.output.gather(-1, wanted[..., None])[..., 0]  # wrong or not
        if gradient == "reinforce":

            def wrong(answers: Any, wanted: Any = wanted) -> Any:
                at = wanted[:, None, :, None].expand(*answers.shape[:-1], 1)
                return 1 - answers.gather(-1, at)[..., 0]

            expected = attention.expected(query.expand(64, 1, 2), key, value, wrong)
            losses = attention.objective(drawn, losses, expected)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    key, value, wanted = batch(1000)
    with torch.no_grad():
        drawn = attention.eval()(query.expand(1000, 1, 2), key, value)
    return float((drawn.output.argmax(-1) == wanted).float().mean())


@pytest.mark.parametrize(
    ("gradient", "baseline"),
    sample([("reinforce", "moving"), ("reinforce", "exact"), ("straight-through", None), ("gumbel", None)], 2),
)
def test_the_one_marked_key_is_learned_to_95_percent(gradient: Any, baseline: Any) -> None:
    assert accuracy_after_learning(gradient, baseline, 0) < 0.4
    assert accuracy_after_learning(gradient, baseline) >= 0.95


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda a, d: HardAttention(gradient="none"), OptionError, "straight-through"),
        (lambda a, d: HardAttention(baseline="mean"), OptionError, "moving"),
        (lambda a, d: HardAttention(decay=1.0), OptionError, "decay"),
        (lambda a, d: HardAttention(temperature=0.0), OptionError, "temperature"),
        (lambda a, d: a.objective(d, torch.zeros(3)), ShapeError, "leading axes"),
        (lambda a, d: HardAttention(baseline="exact").objective(d, torch.zeros(2)), OptionError, "expected"),
    ],
)
def test_invalid_arguments_of_hard_attention_are_refused(call: Any, kind: type[QkvError], words: str) -> None:
    drawn = HardAttentionOutput(torch.zeros(2, 4, 1), torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(kind, match=words):
        call(HardAttention(), drawn)


def test_a_loss_of_several_samples_reaches_all_of_them() -> None:
    log_probability = torch.zeros(2, 4, requires_grad=True)
    drawn = HardAttentionOutput(torch.zeros(2, 4, 1), torch.zeros(2, 4), log_probability)
    score = HardAttention(baseline=None).objective(drawn, torch.tensor([1.0, 2.0]))
    (found,) = torch.autograd.grad(score.sum(), log_probability)
    assert found.tolist() == [[1.0] * 4, [2.0] * 4]
