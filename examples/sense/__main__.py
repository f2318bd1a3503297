"""Print how well the senses of "bank" and "apple" are separated, layer by layer."""

from examples.sense import measure
from examples.sense.sentences import SENSES
from examples.sentences import load


def main() -> None:
    """Run the example for two words with one model."""
    model, tokenizer = load()
    for word, lists in SENSES.items():
        found = measure(model, tokenizer, word)
        print(f'"{word}": {" or ".join(lists)}, {found.count} sentences; accuracy by chance {found.chance:.0%}')
        print("              attention alone   vector of the word   difference of the cosines with both senses")
        print(f"    before                          {found.before:6.0%}             {found.toward[0]:+.3f}")
        layers = zip(found.attended, found.after, found.toward[1:], strict=True)
        for n, (attended, after, toward) in enumerate(layers):
            print(f"    layer {n}        {attended:6.0%}          {after:6.0%}             {toward:+.3f}")


if __name__ == "__main__":
    main()
