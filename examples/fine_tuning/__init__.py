"""Train Hugging Face models with another normalizer or a learned score, without downloads.

classify      fine-tune MiniLM with Entmax15 to tell which sense "bank" has
continue_     train a small decoder with an additive score per head to continue a repeated sequence
"""

from examples.fine_tuning.bert import classify
from examples.fine_tuning.decoder import continue_

__all__ = ["classify", "continue_"]
