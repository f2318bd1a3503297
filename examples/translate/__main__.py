"""`python -m examples.translate train | evaluate | translate`: command line and error messages.

Exit codes: 0 done · 2 unusable file, folder or option, with one sentence on stderr · 130 interrupted and saved
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from examples.translate.options import MODELS, SCORE_NAMES, Options, flag
from qkv.errors import DataError, MissingPackageError, OptionError, QkvError

_EXAMPLES = """examples:
  python -m examples.translate train fra.txt.gz --out runs/additive
  python -m examples.translate train fra.txt.gz --out runs/none --score none
  python -m examples.translate train fra.txt.gz --out runs/transformer --model transformer --score scaled-dot
  python -m examples.translate evaluate runs/additive
  python -m examples.translate translate runs/additive "I don't know where she lives."
  python -m examples.translate translate runs/additive "I don't know where she lives." --picture out.png
  echo "Where is my umbrella?" | python -m examples.translate translate runs/additive

A train that was interrupted, by Ctrl-C or by a crash, goes on where it was saved when the same line is given
again, and ends with the same numbers as if it had never stopped."""

_HELP = {
    "model": f"one of {', '.join(MODELS)}",
    "score": f"score of the attention, one of {', '.join(SCORE_NAMES)}; none: the GRU without attention",
    "width": "width of embeddings and states",
    "layers": "layers of the Transformer's encoder and of its decoder",
    "heads": "heads of the Transformer",
    "dropout": "dropout probability",
    "vocabulary": "maximum number of subwords of each language",
    "steps": "optimizer steps; the learning rate falls to 0 at the last",
    "batch_tokens": "maximum number of subwords in a batch",
    "rate": "maximum learning rate of Adam",
    "warm_up": "steps until the maximum learning rate",
    "smoothing": "label smoothing",
    "pairs": "maximum number of training pairs; 0: all",
    "longest": "maximum number of subwords of a training sentence",
    "held_out": "number of English sentences held out for evaluate",
    "watched": "number of English sentences for validation during training",
    "seed": "seed of parameters, order and dropout",
    "report_every": "steps between reports",
    "check_every": "steps between validations",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; user errors are printed."""
    asked = _parser().parse_args(arguments)
    try:
        _threads(asked.threads)
        return int(asked.run(asked) or 0)
    except QkvError as error:
        print("translate: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it; flushing at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def options_of(words: Sequence[str]) -> Options:
    """Parse the options of `train`, without pairs and folder."""
    return _options(_parser().parse_args(["train", "", "--out", "", *words]))


def _options(asked: argparse.Namespace) -> Options:
    return Options(**{each.name: getattr(asked, each.name) for each in fields(Options)})


def _parser() -> argparse.ArgumentParser:
    shape: dict[str, Any] = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": _EXAMPLES}
    says = "Train translation models on sentence pairs, evaluate them, and draw their attention."
    parser = argparse.ArgumentParser(prog="python -m examples.translate", description=says, **shape)
    commands = parser.add_subparsers(required=True, metavar="train | evaluate | translate")

    train = commands.add_parser("train", help="train on sentence pairs, or resume a run", **shape)
    train.add_argument(
        "pairs_file", type=Path, metavar="PAIRS", help="lines of sentence, tab, translation, optionally gzipped"
    )
    train.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder for checkpoints, vocabularies and held-out sentences",
    )
    for each in fields(Options):
        train.add_argument(
            flag(each.name),
            type=type(each.default),
            default=each.default,
            metavar="NAME" if isinstance(each.default, str) else "N",
            help=f"{_HELP[each.name]} ({each.default})",
        )
    train.add_argument("--save-every", type=int, default=200, metavar="N", help="steps between checkpoints (200)")
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="compute BLEU on the held-out sentences", **shape)
    evaluate.add_argument("folder", type=Path, metavar="FOLDER", help="folder that train wrote")
    evaluate.add_argument("--pairs", type=Path, metavar="FILE", help="evaluate on these pairs instead")
    evaluate.add_argument(
        "--long", type=int, default=8, metavar="N", help="minimum number of words of a long sentence (8)"
    )
    evaluate.add_argument("--most", type=int, default=0, metavar="N", help="maximum number of sentences; 0: all")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    evaluate.add_argument("--said", type=Path, metavar="FILE", help="write each sentence and translation to this file")
    evaluate.set_defaults(run=_evaluate)

    translate = commands.add_parser("translate", help="translate sentences", **shape)
    translate.add_argument("folder", type=Path, metavar="FOLDER", help="folder that train wrote")
    translate.add_argument("sentences", nargs="*", metavar="SENTENCE", help="default: lines of standard input")
    translate.add_argument("--picture", type=Path, metavar="FILE", help="draw the attention weights of the sentence")
    translate.set_defaults(run=_translate)
    for command in (evaluate, translate):
        command.add_argument("--beam", type=int, default=4, metavar="N", help="beam width (4)")
    for command in (train, evaluate, translate):
        command.add_argument("--threads", type=int, default=1, metavar="N", help="number of threads (1)")
    return parser


def _train(asked: argparse.Namespace) -> int:
    from examples.translate.showing import TrainingProgress
    from examples.translate.training import stopping, train

    options = _options(asked)
    _at_least(1, save_every=asked.save_every)
    with TrainingProgress(options.steps) as shown, stopping() as stop:
        state = train(asked.pairs_file, asked.out, options, asked.save_every, shown, stop)
    if state.step < options.steps:
        print(
            f"interrupted after step {state.step:,}; a checkpoint is saved. Run the same command to resume.",
            file=sys.stderr,
        )
        return 130
    print(
        f"{state.step:,} steps, {state.said:,} subwords, {state.cpu_seconds:,.0f} s of CPU, "
        f"validation loss {state.best:.3f}: {asked.out}"
    )
    return 0


def _evaluate(asked: argparse.Namespace) -> None:
    from examples.translate import files
    from examples.translate.measuring import evaluate
    from qkv.core.progress import ProgressBar

    _at_least(1, beam=asked.beam, long=asked.long)
    _at_least(0, most=asked.most)
    with ProgressBar() as bar:
        result, said = evaluate(
            asked.folder,
            asked.pairs,
            asked.beam,
            asked.long,
            asked.most,
            lambda done, total: bar("translating", done, total),
        )
    for name, what in (("all", "all sentences"), ("long", f"sentences of {asked.long} words or more")):
        if result[name]:
            found = result[name]
            print(
                f"BLEU {found['bleu']:.1f} ± {found['plus_minus']:.1f}  {what}: {found['sentences']:,} "
                f"sentences, {found['references']:,} references"
            )
    if result["copies"] and result["copies"]["copies"]:
        share = {name: each / result["copies"]["copies"] for name, each in result["copies"].items()}
        print(
            f"{share['aligned']:.0%} of {result['copies']['copies']:,} copied subwords are aligned with their source "
            f"({share['by_chance']:.0%} by chance)"
        )
    print(result["all"]["signature"])
    if asked.json:
        files.write_json(asked.json, result)
    if asked.said:
        text = "".join(f"{one.sentence}\t{other}\n" for one, other in said)
        files.write(asked.said, text.encode())


def _translate(asked: argparse.Namespace) -> None:
    from examples.translate import pictures
    from examples.translate.pairs import clean
    from examples.translate.reading import Reader

    _at_least(1, beam=asked.beam)
    if asked.picture is not None:
        pictures.check(asked.picture)
        if len(asked.sentences) != 1:
            raise OptionError(f"--picture must be given with exactly one sentence, got {len(asked.sentences)}.")
    reader = Reader(asked.folder)
    if asked.picture is not None:
        seen = reader.aligned(clean(asked.sentences[0]), asked.beam)
        if seen.weights is None:
            raise OptionError(
                "--picture must not be given for a model trained with --score none, which has no attention."
            )
        pictures.save(asked.picture, seen.read, seen.said, seen.weights, seen.translation)
        print(seen.translation)
        return
    try:
        for sentence in asked.sentences or sys.stdin:
            cleaned = clean(sentence)
            print(reader.translate([cleaned], asked.beam)[0] if cleaned else "", flush=True)
    except UnicodeDecodeError:
        raise DataError("standard input must be UTF-8. Save the sentences as UTF-8.") from None


def _threads(count: int) -> None:
    _at_least(1, threads=count)
    # Read when the libraries of subwords and of matrices are loaded.
    os.environ.setdefault("RAYON_NUM_THREADS", str(count))
    try:
        import torch
    except ImportError:
        raise MissingPackageError(
            'torch must be installed for the translator. Run: pip install "qkv[hf,look]"'
        ) from None
    torch.set_num_threads(count)


def _at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < least:
            raise OptionError(f"{flag(name)} must be at least {least}, got {number}.")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        # Print a question mark for a character that the terminal cannot show, instead of failing.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(main())
