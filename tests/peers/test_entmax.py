"""The tests that the package entmax ships, run with its functions replaced by calls of qkv; see `entmax_plugin.py`.

Left out are tests of what qkv does not have (normmax, budget, α below 1) or that test internals (thresholds of a
partial sort). Those that draw α between .05 and 2.55 are rebuilt below with α from 1.05.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
entmax = pytest.importorskip("entmax")
from tests.effort import sample  # noqa: E402
from tests.peers.entmax_calls import entmax_bisect  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
OWN = 65  # tests of entmax that reach qkv
FILES = ("test_mask", "test_root_finding", "test_topk", "test_losses")
LEFT_OUT = (
    *("normmax", "Normmax", "budget", "multiple", "arbitrary", "test_entmax_topk", "test_sparsemax_topk"),
    *(f"test_entmax_grad and [{alpha}]" for alpha in (0.2, 0.5, 0.75)),
)


def run_their_tests(kernel: str) -> None:
    folder = Path(entmax.__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    environment |= {"QKV_KERNEL": kernel}
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "pytest", "--noconftest", "-p", "tests.peers.entmax_plugin"),
            *("-p", "no:cacheprovider", "--rootdir", str(folder)),
            *("-k", " and ".join(f"not ({words})" for words in LEFT_OUT)),
            *[str(folder / f"{name}.py") for name in FILES],
        ],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert found is not None
    assert int(found[1]) == OWN


@pytest.mark.parametrize("dim", sample(range(4), 2))
def test_alphas_of_every_row_along_any_dimension_give_the_weights_and_gradients_of_entmax(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    shape = [2, 3, 2, 4]
    x = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    shape[dim] = 1
    alpha = 1.05 + 1.5 * torch.rand(shape, dtype=torch.float64, generator=generator)
    alpha.requires_grad_()
    ours, theirs = entmax_bisect(x, alpha, dim), entmax.entmax_bisect(x, alpha, dim, n_iter=60)
    assert float((ours - theirs).detach().abs().max()) < 1e-12
    cotangent = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    pairs = zip(*(torch.autograd.grad(y, (x, alpha), cotangent) for y in (ours, theirs)), strict=True)
    assert all(float((a - b).abs().max()) < 1e-8 for a, b in pairs)
    assert torch.autograd.gradcheck(lambda x, a: entmax_bisect(x, a, dim), (x, alpha), eps=1e-5, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["", "dense", "row_blocks"])
def test_the_tests_of_entmax_pass_with_each_kernel_of_all_their_normalizers(kernel: str) -> None:
    run_their_tests(kernel)
