"""A call takes a short path to its arithmetic."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import qkv  # noqa: E402
from qkv import masks, readouts, scores  # noqa: E402
from qkv.core.equation import attend_dense  # noqa: E402
from qkv.kernels.batched.kernel import BatchedKernel  # noqa: E402
from qkv.normalizers import Softmax  # noqa: E402


def test_an_additive_tile_is_at_most_9_frames_in_5_files_from_attend_to_its_divisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package, threads = str(Path(qkv.__file__).parent), torch.get_num_threads()
    score = scores.Additive(torch.randn(16, 16), torch.randn(16, 16), None, torch.randn(16))
    x, divide, longest = torch.randn(600, 16), torch.Tensor.addcdiv_, []

    def spy(*args: Any, **options: Any) -> torch.Tensor:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(package):
                frames.append((path, frame.f_code.co_name))
            frame = frame.f_back
        longest[:] = max(longest, frames, key=len)
        return divide(*args, **options)

    torch.set_num_threads(1)  # one worker, on the calling thread
    try:
        qkv.attend(x, x, x, score=score, mask=masks.Causal(), kernel="tiled")
        monkeypatch.setattr(torch.Tensor, "addcdiv_", spy)
        qkv.attend(x, x, x, score=score, mask=masks.Causal(), kernel="tiled")
    finally:
        torch.set_num_threads(threads)
    files = [path for path, _ in longest]
    assert 0 < len(longest) <= 9, longest
    assert len(set(files)) <= 5, longest
    visits = [path for n, path in enumerate(files) if n == 0 or files[n - 1] != path]
    assert len(visits) == len(set(visits)), "a file is visited twice"


def test_an_observed_call_runs_the_function_of_its_cached_plan_also_where_its_parts_hold_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, keep = torch.randn(3, 5, 4), torch.tensor([True, True, False, True, True])
    score = scores.Additive(torch.randn(6, 4), torch.randn(6, 4), None, torch.randn(6))

    def run(kernel: str | None = None) -> Any:
        return qkv.observe(
            x, x, x, score=score, mask=masks.AllowedKeys(keep), readouts=[readouts.Dense()], kernel=kernel
        )

    run()
    expected = run("dense")
    monkeypatch.setattr(BatchedKernel, "run", None)  # which binds and checks every call
    found = run()
    torch.testing.assert_close((found.output, found.readouts[0]), (expected.output, expected.readouts[0]))
    assert found.plan.problem.score is score


@pytest.mark.parametrize("kernel", ["dense", "numpy_blocks"])
def test_a_numpy_call_is_bound_without_conversion_also_where_its_parts_hold_arrays(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((3, 5, 4))

    def parts() -> dict[str, Any]:
        score = scores.Biased(scores.Gaussian(draw.uniform(0.5, 2, 3)), draw.standard_normal((5, 5)))
        return {"score": score, "mask": masks.AllowedPairs(draw.random((5, 5)) > 0.3)}

    qkv.attend(x, x, x, kernel=kernel, **parts())
    monkeypatch.setattr("qkv.engine.bind_problem", None)  # which converts and checks every part
    for _ in range(2):
        own = parts()
        expected = attend_dense(x, x, x, normalizer=Softmax(), **own).output
        np.testing.assert_allclose(qkv.attend(x, x, x, kernel=kernel, **own), expected, rtol=1e-12)
