"""`python -m examples.pictures`: train, evaluate, and draw the attention of some phrases.

Exit codes: 0 done · 1 precision below the documented value · 2 unusable option, with one sentence on stderr
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qkv.errors import MissingPackageError, OptionError, QkvError

_EXAMPLES = """examples:
  python -m examples.pictures
  python -m examples.pictures "a seven" "the digit sept" huit
  python -m examples.pictures "a seven" three --picture seven.png"""

PROMISED = 0.95
"""Mean average precision with the default steps and seed."""
_STEPS = 250


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example and return the exit code; user errors are printed."""
    asked = _parser().parse_args(arguments)
    try:
        return _run(asked)
    except QkvError as error:
        print("pictures: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.pictures",
        description="Retrieve pictures of digits by words: queries and keys are texts, values are pictures.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "wordings", nargs="*", default=["a seven"], metavar="WORDING", help="texts to search for (a seven)"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the attention weights of the wordings")
    parser.add_argument("--steps", type=int, default=_STEPS, metavar="N", help=f"training steps ({_STEPS})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of captions and parameters (0)")
    return parser


def _run(asked: argparse.Namespace) -> int:
    for flag, number, least in (("--steps", asked.steps, 2), ("--seed", asked.seed, 0)):
        if number < least:
            raise OptionError(f"{flag} must be at least {least}, got {number}.")
    try:
        import torch
    except ImportError:
        raise MissingPackageError('torch must be installed for this example. Run: pip install "qkv[torch]"') from None

    from examples.pictures.drawing import check, save
    from examples.pictures.learning import Album, ask, by_pixels, learn, measure
    from qkv.core.progress import ProgressBar

    if asked.picture is not None:
        check(asked.picture)
    album = Album.digits_of(asked.seed)
    wordings = album.wordings
    wordings.numbered(asked.wordings)  # report an unknown word before the training
    with ProgressBar() as bar:
        model = learn(album, asked.steps, asked.seed, lambda done, total: bar("learning", done, total))

    means = wordings.digits[wordings.asked]
    found = ask(album, model, [wordings.texts[at] for at in wordings.asked])
    reached = measure(album, found, means)
    swapped = torch.roll(album.pictures, 1, 0)
    others = measure(album, ask(album, model, found.texts, swapped), means)
    plain = measure(album, type(found)(found.texts, found.weights, by_pixels(album, means)), means)
    print(
        f"{len(means)} wordings that occur in no caption, {len(album.others)} pictures without caption, "
        f"{len(album.pictures)} captioned pictures as values"
    )
    print(f"precision@1              {reached['first']:.3f}")
    print(f"mean average precision   {reached['precision']:.3f}")
    print(f"weight on the correct digit {reached['mass']:.2f} (0.10 by chance)")
    print("for comparison, mean average precision:")
    print(f"  mean picture of the correct digit, by pixels   {plain['precision']:.3f}")
    print(f"  every caption with another picture             {others['precision']:.3f}")
    looked = ask(album, model, asked.wordings)
    for text, weights in zip(looked.texts, looked.weights, strict=True):
        best = np.argsort(-weights)[:5]
        said = ", ".join(f"“{wordings.texts[int(album.captions[at])]}” {weights[at]:.3f}" for at in best)
        print(f"largest weights of {text!r}: {said}, …")
    if asked.picture is not None:
        save(asked.picture, album, looked)
        print(f"wrote {asked.picture}")
    if (asked.steps, asked.seed) == (_STEPS, 0) and reached["precision"] < PROMISED:
        print(f"pictures: mean average precision must be at least {PROMISED} with the default options", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        # Print a question mark for a character that the terminal cannot show, instead of failing.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(main())
