"""Evaluation of the answers: python -m examples.answer.measuring [--by words|both]

The questions were written before anything was measured. An answer is correct if the sentence contains one of
the passages listed with the question; two correct passages that had been overlooked were added after the first
measurement. Questions that neither text answers must get no answer. The texts (Plato's Republic in Jowett's
translation, with his introduction; the part of Shakespeare known as tiny Shakespeare) are read from the folder
given by the variable QKV_DATA.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.answer.answering import Text
from examples.answer.meaning import Meaning
from examples.answer.sentences import read
from qkv.errors import DataError, QkvError

__all__ = ["ABSENT", "QUESTIONS", "Measured", "folder", "measure"]

QUESTIONS = {
    "republic_clean.txt.gz": {
        "Who went down to the Piraeus with Glaucon?": ("I went down yesterday to the Piraeus",),
        "What does Thrasymachus say that justice is?": ("the interest of the stronger",),
        "Where have the prisoners lived in chains since their childhood?": ("underground den",),
        "Who found a ring that made him invisible?": ("a gold ring", "like that of Gyges"),
        "What is the mother of invention?": ("the mother of our invention",),
        "Which metal is mingled in those who have the power of command?": ("he has mingled gold",),
        "Who was slain in battle and came back to life?": ("son of Armenius", "He was slain in battle"),
        "What follows from an excess of liberty?": ("The excess of liberty",),
        "How many times happier is the king than the tyrant?": ("729",),
        "What did Sophocles answer about love in old age?": ("How does love suit with age", "Peace, he"),
        "Which life did the soul of Agamemnon choose?": ("an eagle",),
        "Which bird did the soul of Orpheus become?": ("a swan",),
        "At what age may a woman begin to bear children?": ("A woman, I said, at twenty years",),
        "When does democracy come into being?": ("democracy comes into being after", "democracy comes into power when"),
        "When will cities have rest from their evils?": (
            "ntil philosophers are kings",
            "cities will not cease from evil until",
        ),
    },
    "tinyshakespeare.txt.gz": {
        "Who is the chief enemy of the people?": ("Caius Marcius is chief enemy",),
        "What would Richard give for a horse?": ("my kingdom for a horse",),
        "What was made glorious summer by the sun of York?": ("the winter of our discontent",),
        "Would a rose smell as sweet if it had another name?": ("By any other name would smell as sweet",),
        "What kind of sorrow is parting?": ("parting is such sweet sorrow",),
        "What are the bones of thy father made of?": ("Of his bones are coral made",),
        "What does Mercutio wish on both houses?": ("A plague o' both your houses",),
        "Which witch grew into a hoop with age and envy?": ("Sycorax",),
    },
}
"""Questions by text, with passages one of which a correct answer contains."""

ABSENT = (
    "How does a quantum computer factor integers?",
    "Which football team won the championship?",
    "What is the capital of Australia?",
    "Who invented the telephone?",
    "How do vaccines protect against a virus?",
    "At what temperature does nitrogen boil?",
    "Who painted the Mona Lisa?",
    "How fast does an electric train travel?",
)
"""Questions that neither text answers; they are asked of both."""


@dataclass(frozen=True)
class Measured:
    """Counts of questions, of correct first answers, of correct answers among three, and of refusals."""

    questions: int
    first: int
    three: int
    absent: int
    refused: int

    def __str__(self) -> str:
        return (
            f"top-1 {self.first} of {self.questions} ({self.first / self.questions:.2f}), "
            f"top-3 {self.three} of {self.questions} ({self.three / self.questions:.2f}); "
            f"no answer to {self.refused} of {self.absent} questions about what is not there"
        )


def folder() -> Path:
    """Return the folder of the texts.

    Raises:
        DataError: QKV_DATA is not set, or names a folder without the texts.
    """
    where = Path(os.environ.get("QKV_DATA", "")) / "text"
    if not os.environ.get("QKV_DATA") or not where.is_dir():
        raise DataError("the texts are not there. Set QKV_DATA to a folder that holds text/.")
    return where


def measure(meaning: Meaning | None, report: Callable[[str], None] = lambda line: None) -> Measured:
    """Ask all questions and count correct answers.

    Args:
        meaning: the sentence model; None: compare by words only.
        report: called with a line for each question.

    Raises:
        DataError: the texts do not exist.
    """
    first = three = refused = 0
    for name, questions in QUESTIONS.items():
        text = Text(read(folder() / name), meaning)
        for question, passages in questions.items():
            answers = text.ask(question, top=3).answers
            right = [any(passage in each.sentence.text for passage in passages) for each in answers]
            first, three = first + (right[:1] == [True]), three + any(right)
            said = answers[0].sentence.text[:90] if answers else "no answer"
            report(f"{right.index(True) + 1 if any(right) else '-'}  {question}  {said}")
        for question in ABSENT:
            answers = text.ask(question).answers
            refused += not answers
            report(f"{'x' if answers else 'ok'}  {question}  {answers[0].sentence.text[:90] if answers else ''}")
    count = sum(map(len, QUESTIONS.values()))
    return Measured(count, first, three, len(QUESTIONS) * len(ABSENT), refused)


def main() -> int:
    """Print the rank of each question's correct answer among three (- for none), and the counts."""
    parser = argparse.ArgumentParser(prog="python -m examples.answer.measuring", description=__doc__)
    parser.add_argument("--by", choices=("words", "both"), default="words", help="(words)")
    try:
        print(measure(Meaning() if parser.parse_args().by == "both" else None, print))
    except QkvError as error:
        print("answer: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
