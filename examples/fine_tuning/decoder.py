"""Train a small Llama, randomly initialized, whose heads each learn an additive score."""

import functools
from typing import NamedTuple

import torch
import transformers

from qkv import nn
from qkv.interop import huggingface

__all__ = ["Trained", "continue_", "sequences"]

VOCABULARY, PERIOD = 16, 6


class Trained(NamedTuple):
    """Result of training.

    Attributes:
        model: the trained model.
        losses: cross-entropy of the second half of the sequences, every tenth step.
        correct: share of the tokens that `generate` continues correctly for new sequences.
    """

    model: transformers.PreTrainedModel
    losses: list[float]
    correct: float


def sequences(batch: int) -> torch.Tensor:
    """Return random sequences of `PERIOD` different tokens, each repeated once, `(batch, 2 · PERIOD)`."""
    return torch.rand(batch, VOCABULARY - 1).argsort(-1)[:, :PERIOD].add(1).repeat(1, 2)


def continue_(steps: int = 150, seed: int = 0) -> Trained:
    """Train the model to continue a sequence that is repeated, and let `generate` continue new ones.

    Every head of every layer has its own W₁, W₂, b and v of the score vᵀ tanh(W₁ q + W₂ k + b).
    """
    torch.manual_seed(seed)
    name = huggingface.register("qkv-additive", score=functools.partial(nn.Additive, hidden=8))
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=name, bos_token_id=None, eos_token_id=None, pad_token_id=0,
        initializer_range=0.1,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    losses = []
    for step in range(steps):
        tokens = sequences(64)
        logits = model(tokens).logits[:, PERIOD - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, PERIOD:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            losses.append(loss.item())
    tokens = sequences(64)
    model.eval()
    more = model.generate(tokens[:, : PERIOD + 1], max_new_tokens=PERIOD - 1, do_sample=False)
    return Trained(model, losses, float((more[:, PERIOD + 1 :] == tokens[:, PERIOD + 1 :]).float().mean()))
