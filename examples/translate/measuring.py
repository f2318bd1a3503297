"""How good the translations are: BLEU by sacrebleu on the sentences held out, and on the longer of them;
and how often attention is where a copied word came from.

Source: Papineni et al. (2002), https://aclanthology.org/P02-1040; Post (2018), A call for clarity in
reporting BLEU scores, https://aclanthology.org/W18-6319, for the signature.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from examples.translate import pairs
from examples.translate.aligning import copies_aligned
from examples.translate.pairs import Asked
from examples.translate.search import translate
from qkv.errors import DataError, MissingPackageError

__all__ = ["bleu", "evaluate"]


def bleu(said: Sequence[str], asked: Sequence[Asked]) -> dict[str, Any]:
    """BLEU of the translations against all references of each sentence, with half the width of its 95 %
    interval from 1,000 resamples of the sentences.

    Raises:
        DataError: there is no sentence.
        MissingPackageError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise MissingPackageError("sacrebleu must be installed to compute BLEU. Run: pip install sacrebleu") from None
    if not asked:
        raise DataError("pairs must contain a sentence to compute BLEU, got none.")
    most = max(len(each.references) for each in asked)
    streams = [[each.references[n] if n < len(each.references) else None for each in asked] for n in range(most)]
    metric = BLEU()
    score = metric.corpus_score(list(said), streams, n_bootstrap=1000)
    signature = metric.get_signature().format()
    return {
        "bleu": round(score.score, 2),
        "plus_minus": round(score._ci, 2),
        "sentences": len(asked),
        "references": sum(len(each.references) for each in asked),
        "signature": signature,
    }


def evaluate(
    folder: Path,
    held_out: Path | None = None,
    beam: int = 4,
    long: int = 8,
    most: int = 0,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[str, Any], list[tuple[Asked, str]]]:
    """BLEU of a trained model, and each sentence with its translation.

    Args:
        folder: that `train` made.
        held_out: pairs to translate; None: those that were held out.
        beam: as in `search`.
        long: sentences of so many words or more are also measured by themselves.
        most: sentences at most, the first; 0: all.
        told: is called with how many are done, and of how many.
    """
    from examples.translate.training import open_model

    model, source, target, options, state = open_model(folder)
    asked = pairs.read_asked(held_out or folder / "held_out.tsv")[: most or None]
    began = time.process_time()
    read = source.encode([each.sentence for each in asked])
    found = translate(model, read, beam, told=lambda n: told(n, len(asked)))
    seconds = time.process_time() - began
    said = target.decode([each.numbers for each in found])
    longer = [n for n, each in enumerate(asked) if pairs.words(each.sentence) >= long]
    result = {
        "model": options.model,
        "score": options.score,
        "parameters": sum(each.numel() for each in model.parameters()),
        "step": state.step,
        "watched_loss": round(state.best, 4),
        "beam": beam,
        "all": bleu(said, asked),
        "long_words": long,
        "long": bleu([said[n] for n in longer], [asked[n] for n in longer]) if longer else None,
        "copies": copies_aligned(model, source, target, read, [each.numbers for each in found]),
        "translating_cpu_seconds": round(seconds, 1),
    }
    return result, list(zip(asked, said, strict=True))
