"""Print the weights of "apple" in one sentence, and the heads in which "love" attends to "I" and "you"."""

from examples.sentences import heads_where, load, weights


def main() -> None:
    """Run the example for two sentences with one model."""
    model, tokenizer = load()
    apple = weights(model, tokenizer, "i like to eat apple")
    print('"i like to eat apple": weights of "apple" on the other words, mean of 72 heads')
    for word, weight in sorted(apple.mean("apple").items(), key=lambda item: -item[1]):
        print(f"    {word:6} {weight:.3f}")
    love = weights(model, tokenizer, "Hello I love you")
    found = heads_where(love, "love", ("i", "you"), "hello")
    print('"Hello I love you": heads in which "love" attends more to both "I" and "you" than to "Hello"')
    print(f"    {len(found)} of {love.weights.shape[0] * love.weights.shape[1]} heads, as layer.head from 0:")
    print("    " + " ".join(f"{layer}.{head}" for layer, head in found))
    print("    One sentence is an illustration; it does not show what these heads do in other sentences.")


if __name__ == "__main__":
    main()
