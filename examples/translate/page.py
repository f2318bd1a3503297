"""`python -m examples.translate.page`: write the tables of the recorded runs into the pages of docs/.

Each table is between two comments, `<!-- runs: NAME -->` and `<!-- end -->`. The text around the tables is written
by hand and is not changed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from examples.translate.recorded import RACE, RESULTS, RUNS
from qkv.errors import DataError, QkvError

__all__ = ["filled", "tables"]

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = {
    DOCS / "translate.md": ("scores", "speed"),
    DOCS / "evidence" / "translation.md": ("facts", "models", "commands"),
}
"""The names of the tables of each page."""


def tables(folder: Path = RESULTS) -> dict[str, str]:
    """Return the tables by name, from the results in a folder."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    raced = results.pop(RACE, None)
    return {
        "models": _table([name for name in RUNS if not name.startswith("short-")], results, _models),
        "scores": _table([name for name in RUNS if name.startswith("short-")], results, _scores),
        "speed": _speed(raced),
        "facts": _facts(results),
        "commands": "\n".join(["```sh", *(_command(name) for name in RUNS), "```"]),
    }


def filled(text: str, found: dict[str, str]) -> str:
    """Return the page with its tables.

    Raises:
        DataError: a table has no comment in the page, or a comment has no table.
    """
    places = re.findall(r"<!-- runs: (\w+) -->", text)
    if sorted(places) != sorted(found):
        raise DataError(f"page must have one comment for each of the tables {sorted(found)}, got {sorted(places)}.")
    return re.sub(
        r"(<!-- runs: (\w+) -->\n).*?(<!-- end -->)",
        lambda place: f"{place[1]}\n{found[place[2]]}\n\n{place[3]}",
        text,
        flags=re.DOTALL,
    )


def _table(names: list[str], results: dict[str, Any], columns: Any) -> str:
    rows = [columns(results[name]) for name in names if name in results]
    missing = [name for name in names if name not in results]
    lines = []
    if rows:
        lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
        lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    return "\n".join(lines).strip()


def _models(result: dict[str, Any]) -> dict[str, str]:
    measured, training = result["measured"], result["training"]
    return {
        "model": result["run"],
        "parameters": f"{measured['parameters'] / 1e6:.1f} M",
        "steps": f"{training['step']:,}",
        "CPU minutes": f"{training['cpu_seconds'] / 60:.0f}",
        "validation loss": f"{min(loss for _, loss in result['watched']):.3f}",
        "BLEU": _bleu(measured["all"]),
        f"BLEU, {measured['long_words']} words or more": _bleu(measured["long"]),
        "copies aligned": _copies(measured),
    }


def _scores(result: dict[str, Any]) -> dict[str, str]:
    measured, training = result["measured"], result["training"]
    return {
        "`--score`": result["options"]["score"],
        "BLEU": _bleu(measured["all"]),
        f"BLEU, {measured['long_words']} words or more": _bleu(measured["long"]),
        "validation loss": f"{min(loss for _, loss in result['watched']):.3f}",
        "copies aligned": _copies(measured),
        "CPU minutes": f"{training['cpu_seconds'] / 60:.1f}",
        "peak memory": f"{training['peak_mib']:,.0f} MiB",
    }


def _speed(raced: dict[str, Any] | None) -> str:
    if raced is None:
        return "Not run yet."
    lines = ["| `--score` | subwords/s | time of a step, × scaled-dot | lowest – highest |", "|---|---|---|---|"]
    for score, found in raced["race"].items():
        spread = f"{found['lowest']:.2f} – {found['highest']:.2f}"
        speed, ratio = f"{found['subwords_per_second']:,}", f"{found['times_scaled_dot']:.2f}"
        lines.append(f"| {score} | {speed} | {ratio} | {spread} |")
    return "\n".join(lines)


def _copies(measured: dict[str, Any]) -> str:
    found = measured["copies"]
    if not found or not found["copies"]:
        return "none"
    share, chance = (found[name] / found["copies"] for name in ("aligned", "by_chance"))
    return f"{share:.0%} (chance {chance:.0%})"


def _bleu(found: dict[str, Any]) -> str:
    return f"{found['bleu']:.1f} ± {found['plus_minus']:.1f}"


def _facts(results: dict[str, Any]) -> str:
    if not results:
        return "Not run yet."
    one = next(iter(results.values()))
    measured = one["measured"]
    machine = {name: fact for each in results.values() for name, fact in each["machine"].items()}
    dates = sorted({each["date"] for each in results.values()})
    packages = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
    long = measured["long"]
    return "\n".join(
        [
            f"- {', '.join(dates)}; {machine['cpu']} with {machine.get('cores', '?')} cores, "
            f"{', '.join(machine['instructions'])}; one thread for each run, while other jobs ran; "
            f"{packages}.",
            f"- Held out: {measured['all']['sentences']:,} English sentences with "
            f"{measured['all']['references']:,} French references; {long['sentences']:,} of them have "
            f"{measured['long_words']} words or more. Beam {measured['beam']}.",
            f"- sacrebleu's signature: `{measured['all']['signature']}`. ± is half the 95 % interval over "
            "1,000 resamples of the sentences.",
        ]
    )


def _command(name: str) -> str:
    return f"python -m examples.translate train fra.txt.gz --out {name} {RUNS[name]}"


def main() -> int:
    """Write the pages."""
    try:
        found = tables()
        for page, names in PAGES.items():
            page.write_text(filled(page.read_text(), {name: found[name] for name in names}))
            print(f"wrote {page.relative_to(DOCS.parent)}")
    except QkvError as error:
        print(f"page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
