"""One step of training in one of two processes; run by `test_distributed.py` as a program of its own.

python -m tests.nn.two_processes rank address_file result_file
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from qkv import masks, nn


def model() -> torch.nn.Module:
    """Two layers, the second with a learned score."""
    torch.manual_seed(4)
    return torch.nn.Sequential(
        nn.SelfAttention(8, 2, mask=masks.Causal(), key_heads=1, extensions=["sink"], query_key_norm="rms"),
        nn.SelfAttention(8, 2, score=nn.Additive, extensions=["output_gate"]),
    ).double()


def batch() -> torch.Tensor:
    """Four sequences: two for each process."""
    return torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def loss(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The mean over sequences of something that every parameter changes."""
    return module(x).square().sum((-1, -2)).mean()


def main(rank: int, address: str, result: str) -> None:
    """Train one step and save gradients and parameters."""
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    module = model()
    if rank == 1:  # what another process starts with is replaced by what the first has
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.zero_()
    together = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(together.parameters(), lr=0.01)
    loss(together, batch()[2 * rank : 2 * rank + 2]).backward()
    gradients = {name: p.grad for name, p in module.named_parameters()}
    optimizer.step()
    torch.save({"gradients": gradients, "state": module.state_dict()}, result)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
