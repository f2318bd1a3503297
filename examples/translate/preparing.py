"""Prepare a run: a folder with its options, its subwords and its held-out sentences."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from examples.translate import files, pairs
from examples.translate.batches import Examples
from examples.translate.options import Options
from examples.translate.vocabulary import Vocabulary
from qkv.errors import DataError, OptionError

__all__ = ["kept_options", "prepared"]


def prepared(path: Path, folder: Path, options: Options) -> tuple[Examples, Examples, tuple[int, int]]:
    """Return training pairs, validation pairs, and the sizes of the vocabularies."""
    found = pairs.read(path)
    digest = hashlib.sha256("\n".join(map("\t".join, found)).encode()).hexdigest()
    parts = pairs.split(found, options.held_out, options.watched, options.pairs or None)
    if (folder / "options.json").exists():
        kept, of = kept_options(folder)
        _must_match(folder, options, kept, digest == of)
        source, target = (Vocabulary.load(folder / f"{side}.json") for side in ("source", "target"))
    else:
        source, target = _prepare(folder, options, parts, digest)
    once = [(asked.sentence, asked.references[0]) for asked in parts.watched]
    trained, watched = (
        Examples(*zip(*_short(source, target, each, options.longest), strict=True), options.batch_tokens)
        for each in (parts.train, once)
    )
    return trained, watched, (len(source), len(target))


def _short(source: Vocabulary, target: Vocabulary, rows: Any, longest: int) -> list[tuple[list[int], list[int]]]:
    """Return the encoded pairs that are not too long."""
    sides = source.encode([a for a, _ in rows]), target.encode([b for _, b in rows])
    short = [pair for pair in zip(*sides, strict=True) if max(map(len, pair)) <= longest]
    if not short:
        raise OptionError(
            f"no pair for training or validation has at most --longest {longest} subwords on both sides. "
            "Increase --longest or --watched."
        )
    return short


def _prepare(folder: Path, options: Options, parts: pairs.Split, digest: str) -> tuple[Vocabulary, Vocabulary]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the folder {str(folder)!r} cannot be created: {error.strerror}.") from None
    source = Vocabulary.learn(dict.fromkeys(english for english, _ in parts.train), options.vocabulary)
    target = Vocabulary.learn((french for _, french in parts.train), options.vocabulary)
    source.save(folder / "source.json")
    target.save(folder / "target.json")
    for name, side in (("held_out", parts.held_out), ("watched", parts.watched)):
        text = "".join(f"{one.sentence}\t{other}\n" for one in side for other in one.references)
        files.write(folder / f"{name}.tsv", text.encode())
    # Written last: a folder that contains options is complete.
    files.write_json(folder / "options.json", {"options": asdict(options), "pairs_sha256": digest})
    return source, target


def kept_options(folder: Path) -> tuple[Options, str]:
    held = files.read_json(folder / "options.json", "the options")
    try:
        return Options(**held["options"]), held["pairs_sha256"]
    except (TypeError, KeyError) as error:
        raise DataError(f"the options in {str(folder)!r} belong to another version: {error}. Train again.") from None


def _must_match(folder: Path, options: Options, kept: Options, same_pairs: bool) -> None:
    differences = [f"{name} {there}, not {here}" for name, here, there in options.differences(kept)]
    if not same_pairs:
        differences.append("other pairs")
    if differences:
        raise OptionError(
            f"{str(folder)!r} contains a run with {'; '.join(differences)}. Give the same options and pairs to resume "
            "it, or another --out."
        )
