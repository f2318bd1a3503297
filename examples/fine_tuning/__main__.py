"""Print what fine-tuning with another normalizer and training with a learned score reach."""

from examples.fine_tuning import classify, continue_


def main() -> None:
    """Run both examples."""
    found = classify()
    print('MiniLM with Entmax15, sense of "bank" in 12 held-out sentences:')
    print(f"    loss of each pass {', '.join(f'{x:.3f}' for x in found.losses)}")
    print(f"    accuracy {found.before:.0%} before, {found.after:.0%} after; {found.zeros:.0%} of the weights are 0")
    trained = continue_()
    print("Llama with an additive score per head, continuing a repeated sequence:")
    print(f"    loss {trained.losses[0]:.2f} at first, {trained.losses[-1]:.2f} at last")
    print(f"    {trained.correct:.0%} of the generated tokens are correct")


if __name__ == "__main__":
    main()
