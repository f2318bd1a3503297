"""Print how well the senses of a word are separated, layer by layer, and predict the senses in further sentences."""

import argparse
from pathlib import Path

from examples.sense import means, measure, predict
from examples.sense.examples import Examples, from_lists, marked, read
from examples.sense.sentences import SENSES
from examples.sentences import load
from qkv.encoders import ContextualVectors
from qkv.errors import DataError


def main() -> None:
    """Run the example for "bank" and "apple", or for the sentences of a file."""
    parser = argparse.ArgumentParser(prog="python -m examples.sense", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="columns sense and sentence, separated by tabs")
    parser.add_argument("sentence", nargs="*", help="a sentence with the word between asterisks")
    given = parser.parse_args()
    try:
        lists = {word: from_lists(word, lists) for word, lists in SENSES.items()}
        words = lists if given.file is None else {given.file.stem: read(given.file)}
        questions = [marked(sentence) for sentence in given.sentence]
    except DataError as error:
        parser.error(str(error))
    encoder = ContextualVectors()
    if questions:
        _answer(encoder, next(iter(words.values())), questions)
        return
    model, tokenizer = load()
    for word, examples in words.items():
        found = measure(encoder, model, tokenizer, examples)
        print(f'"{word}": {", ".join(examples.senses)}; {found.count} sentences, accuracy by chance {found.chance:.0%}')
        print("              attention alone   vector of the word   cosine minus nearest other")
        print(f"    before                          {found.before:6.0%}             {found.toward[0]:+.3f}")
        layers = zip(found.attended, found.after, found.toward[1:], strict=True)
        for n, (attended, after, toward) in enumerate(layers):
            print(f"    layer {n}        {attended:6.0%}          {after:6.0%}             {toward:+.3f}")
        few = ", ".join(f"{count}: {accuracy:.0%}" for count, accuracy in found.few.items())
        print(f"    sentences that are not examples, by examples of each sense:\n        {few}")


def _answer(encoder: ContextualVectors, examples: Examples, questions: list[tuple[str, tuple[int, int]]]) -> None:
    known = encoder.encode(examples.sentences, examples.spans)
    centres = means(known, examples.labels, len(examples.senses))
    asked = encoder.encode([sentence for sentence, _ in questions], [span for _, span in questions])
    for (sentence, _), cosines in zip(questions, predict(asked, centres), strict=True):
        ranked = sorted(zip(examples.senses, cosines, strict=True), key=lambda pair: -pair[1])
        print(f"{sentence}\n    " + ", ".join(f"{sense} {cosine:.2f}" for sense, cosine in ranked))


if __name__ == "__main__":
    main()
