"""Attention over a sequence on several processes: `torchrun --nproc-per-node 2 -m examples.sequence_parallel`.

Each rank holds a part of the sequence. The loss and the gradient of the weights are those of one process.
"""

import torch
import torch.distributed as dist

import qkv

LENGTH, WIDTH, ORDER = 1000, 16, "balanced"
MASK = qkv.masks.Causal()


def main() -> tuple[float, float]:
    """Return the loss of the whole sequence, and its largest difference in a gradient from one process."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, WIDTH, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()

    mine = qkv.distributed.shard(tokens, order=ORDER)
    query, key, value = mine @ weight
    output = qkv.distributed.attend(query, key, value, mask=MASK, order=ORDER)
    loss = output.square().sum() / LENGTH
    (gradient,) = torch.autograd.grad(loss, weight)
    # Each rank has its share of the loss and of the gradient.
    for share in (loss := loss.detach(), gradient):
        dist.all_reduce(share)

    query, key, value = tokens @ weight
    whole = qkv.attend(query, key, value, mask=MASK).square().sum() / LENGTH
    (wanted,) = torch.autograd.grad(whole, weight)
    return float(loss), float((gradient - wanted).abs().max())


if __name__ == "__main__":
    dist.init_process_group("gloo")  # "nccl" on GPUs
    found = main()
    if dist.get_rank() == 0:
        print(*found)
    dist.destroy_process_group()
