"""Draw the pictures of the README: python docs/draw_readme.py

Every number in them is computed by the call that the README shows, or by one like it.
"""

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

import qkv
from qkv import look, masks, normalizers, readouts, scores

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "pictures"
KEYS = ("John Smith", "Joan Smythe", "Maria Garcia", "Mario Rossi", "Li Wei")
QUERIES = ("Jon Smiht", "Maria", "Lee Wei")
INCOME = np.array([48.2, 51.0, 39.5, 44.3, 62.1])


def main() -> None:
    """Draw all pictures."""
    draw_overview()
    draw_weights()
    draw_answer()


def draw_overview() -> None:
    """Draw a call as matrices: logits of three names, their weights, the values, and the output."""
    query, key = np.array(QUERIES, object), np.array(KEYS, object)
    score, normalizer = scores.Spelling(), normalizers.Softmax(temperature=0.1)
    allowed = np.arange(len(KEYS)) != 1
    result = qkv.observe(
        query,
        key,
        INCOME[:, None],
        score=score,
        normalizer=normalizer,
        mask=masks.AllowedKeys(allowed),
        readouts=[readouts.Dense()],
    )
    figure, axes = plt.subplots(1, 4, figsize=(9.5, 2.9), width_ratios=[5, 5, 1, 1], constrained_layout=True)
    _matrix(axes[0], score(query, key), "{:.2f}", KEYS, QUERIES, "logits\nscore(query, key)")
    weights = np.where(allowed, result.readouts[0], np.nan)
    _matrix(axes[1], weights, "{:.2f}", KEYS, None, "weights\nnormalize(logits, mask)")
    _matrix(axes[2], INCOME[:, None], "{:.1f}", None, KEYS, "value", shade=False)
    axes[2].yaxis.tick_right()
    axes[2].tick_params(length=0, labelsize=7)
    _matrix(axes[3], result.output, "{:.1f}", None, QUERIES, "output\nweights @ value", shade=False)
    axes[3].yaxis.tick_right()
    figure.savefig(FOLDER / "overview.png", dpi=150)


def _matrix(
    axes: Axes,
    matrix: np.ndarray,
    digits: str,
    columns: tuple[str, ...] | None,
    rows: tuple[str, ...] | None,
    title: str,
    shade: bool = True,
) -> None:
    drawn = matrix if shade else np.zeros_like(matrix)
    axes.imshow(np.ma.masked_invalid(drawn), cmap="Reds", vmin=0, vmax=1.4, aspect="auto")
    axes.set_facecolor("0.85")
    axes.set_title(title, fontsize=9)
    axes.set_xticks(range(matrix.shape[1]), columns or [""] * matrix.shape[1], rotation=30, ha="right", fontsize=8)
    axes.set_yticks(range(matrix.shape[0]), rows or [""] * matrix.shape[0], fontsize=8)
    axes.tick_params(length=0)
    for (row, column), number in np.ndenumerate(matrix):
        text = "masked" if np.isnan(number) else digits.format(number)
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="0.4" if np.isnan(number) else "black")


def draw_weights() -> None:
    """Draw the weights of one input under four combinations of score, normalizer and mask."""
    random = np.random.default_rng(0)
    x = np.cumsum(random.normal(size=(24, 8)), axis=0) / 2
    query_weight, key_weight, vector = (random.normal(size=shape) for shape in ((16, 8), (16, 8), (16,)))
    calls = {
        "ScaledDot, Softmax, Causal": {"mask": masks.Causal()},
        "Additive, Softmax, Window": {
            "score": scores.Additive(query_weight, key_weight, None, vector),
            "mask": masks.Window(6, 6),
        },
        "Gaussian, Entmax15, no mask": {"score": scores.Gaussian(1.0), "normalizer": normalizers.Entmax15()},
        "ALiBi, TopK(4), Documents": {
            "score": scores.ALiBi(scores.ScaledDot(), 0.3),
            "normalizer": normalizers.TopK(4),
            "mask": masks.Documents(np.repeat([0, 1, 2], [6, 10, 8])),
        },
    }
    weights = [qkv.observe(x, x, x, readouts=[readouts.Dense()], **call).readouts[0] for call in calls.values()]
    figure = look.heatmaps(
        np.stack(weights)[None], titles=[name.replace(", ", "\n") for name in calls], figsize=(2.4, 2.7)
    )
    figure.savefig(FOLDER / "weights.png", dpi=130, bbox_inches="tight")


def draw_answer() -> None:
    """Draw the answer to a grade of 3.5, as `qkv ask examples/gpa.csv … 3.5 --plot answer.png` does."""
    table = qkv.Database.open(ROOT / "examples" / "gpa.csv", key="gpa", value="starting_salary")
    look.save_query_plot(table, table.ask(3.5), FOLDER / "answer.png")


if __name__ == "__main__":
    main()
