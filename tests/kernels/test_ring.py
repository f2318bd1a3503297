"""Attention over keys that are distributed over processes, compared with one process."""

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
ring_ranks = pytest.importorskip("tests.kernels.ring_ranks")

from qkv import masks  # noqa: E402
from qkv.core.tile import Tile  # noqa: E402
from qkv.ring.local_parts import local_mask  # noqa: E402


def test_two_ranks_give_outputs_and_gradients_of_one_process_and_refuse_together(tmp_path: Path) -> None:
    torch.multiprocessing.set_forkserver_preload([ring_ranks.__name__])  # imported once for both
    torch.multiprocessing.start_processes(
        ring_ranks.run_short, (2, str(tmp_path / "ranks")), nprocs=2, start_method="forkserver"
    )


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_score_and_mask_gives_on_several_ranks_what_it_gives_in_one_process(tmp_path: Path, size: int) -> None:
    torch.multiprocessing.spawn(ring_ranks.run_sweep, (size, str(tmp_path / "ranks")), nprocs=size)


@pytest.mark.long
def test_the_command_of_the_guide_runs_the_example_on_two_ranks() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    command = "torchrun --nproc-per-node 2 -m examples.sequence_parallel"
    assert command in guide
    found = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[1:]],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert float(found.stdout.split()[1]) < ring_ranks.TOLERANCE


def test_a_chunk_after_the_end_of_a_prefix_is_causal() -> None:
    tile, reference = Tile.whole(3, 3, (1,)), torch.zeros(())
    for length in (2, torch.tensor([2])):
        mask = local_mask(masks.Prefix(length), 4, 4, lambda part: part, lambda part: part)
        allowed = torch.as_tensor(mask.allowed(tile, reference))
        assert torch.equal(allowed.expand(1, 3, 3), masks.Causal().allowed(tile, reference).expand(1, 3, 3))
        assert mask.key_range(tile) == (0, 3)
