"""`python -m benchmarks.page`: write docs/benchmarks.md from the latest results of every claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks._claim import CLAIMS, Claim, load
from benchmarks._record import RESULTS, latest

__all__ = ["text"]

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
_RENAMED = {"strip": "row_blocks", "streamed": "numpy_blocks", "scan": "jax_loops"}
"""Current names of kernels, by the names in results measured before 2026-11-22."""

LIMITS = ROOT / "benchmarks" / "limits"
"""Folder with one file per claim with a missed goal, in lines "words of the case | limiting factor and attempts"."""

HEAD = """# Benchmarks

This page lists every claim of speed and memory, with its goal and the latest measurement; the column *met* states
for each case whether it reaches the goal. `python -m benchmarks.page` writes the page from `benchmarks/results/`.
`make bench` measures every claim, and `make bench CLAIM=additive` measures one.

- Before a result is timed, it is compared with the peer's result, and on some queries with the equation in float64.
- Error: max |result − reference| / max |reference|, the largest over these comparisons.
- Implementations alternate within one process. Times are medians of at least five rounds; the spread is the lowest and
  highest ratio within a round. Time is the CPU time of the process on one thread unless the row states otherwise.
- Peak memory is the growth of a fresh process above its inputs, after a small warm-up call.
- Nothing has been measured on a GPU.
"""


def text(folder: Path = RESULTS) -> str:
    """Return the text of the page."""
    results = latest(folder)
    parts = [HEAD, _overview(results)]
    parts += [_section(name, load(name), results.get(name, [])) for name in CLAIMS]
    return "\n".join(parts)


def _overview(results: dict[str, list[dict[str, Any]]]) -> str:
    lines = ["## All claims", "", "| claim | goal | peers | goals met | measured |", "|---|---|---|---|---|"]
    for name in CLAIMS:
        claim = load(name)
        met, when = "", "not yet"
        if results.get(name):
            entry = results[name][0]
            marks = [row["met"] for row in entry["rows"] if row["met"] is not None]
            met, when = f"{sum(marks)} of {len(marks)}", entry["date"]
        lines.append(f"| [{name}](#{name}) | {claim.goal} | {', '.join(claim.peers)} | {met} | {when} |")
    return "\n".join([*lines, ""])


def _section(name: str, claim: Claim, entries: list[dict[str, Any]]) -> str:
    parts = [f"## {name}", "", claim.says, "", f"Goal: {claim.goal}. Peers: {', '.join(claim.peers)}.", ""]
    for entry in entries:
        parts += [_source(entry), "", *_rows(entry["rows"], _limits(name)), ""]
        parts += [f"- {_sentence(note)}" for note in dict.fromkeys(row["note"] for row in entry["rows"] if row["note"])]
        parts += [""] if parts[-1] else []
    if not entries:
        parts += ["Not measured yet.", ""]
    return "\n".join(parts)


def _source(entry: dict[str, Any]) -> str:
    machine, versions = entry["machine"], entry["versions"]
    gain = machine.get("onednn_gain")
    speed = "" if gain is None else f" (oneDNN's matmul runs at {gain:g} × the speed of torch.mm)"
    return (
        f"Measured on {entry['date']} on {machine['cpu']}, {machine['cores']} cores, "
        f"{', '.join(machine['instructions'])}{speed}, "
        f"by `{entry['command']}` at {entry['commit'] or 'an unknown commit'}, with "
        + ", ".join(f"{package} {number}" for package, number in versions.items())
        + "."
    )


def _rows(rows: list[dict[str, Any]], limits: list[tuple[str, str]]) -> list[str]:
    unmet = any(row["met"] is False for row in rows)
    last = [" why the goal is missed |", "---|"] if unmet else ["", ""]
    lines = [
        f"| case | measured | spread | goal | met | seconds | MB | error | kernel |{last[0]}",
        f"|---|---|---|---|---|---|---|---|---|{last[1]}",
    ]
    for row in rows:
        spread = "" if row["spread"] is None else f"{row['spread'][0]:.3g} – {row['spread'][1]:.3g}"
        goal = "" if row["goal"] is None else f"{row['goal']['sense']} {row['goal']['limit']:g}"
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        cells = [
            _current_names(row["case"]),
            f"{row['number']:.3g} {row['unit']} {row['measure']}",
            spread,
            goal,
            met,
            _named(row["seconds"], ".3g"),
            _named(row["megabytes"], ".0f"),
            f"{max(row['errors'].values()):.1g}" if row["errors"] else "",
            _RENAMED.get(row["kernel"], row["kernel"]),
        ]
        if unmet:
            cells.append(_limit(_current_names(row["case"]), limits) if row["met"] is False else "")
        lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return lines


def _current_names(case: str) -> str:
    return ", ".join(_RENAMED.get(word, word) for word in case.split(", "))


def _named(numbers: dict[str, float], form: str) -> str:
    return ", ".join(f"{_RENAMED.get(name, name)} {value:{form}}" for name, value in numbers.items())


def _sentence(note: str) -> str:
    """Return a note with a capital letter and a full stop, unless it begins with a lower-case name."""
    name = note.split()[0] in ("faiss", "flex_attention", "scikit-learn", "statsmodels")
    first = note[0] if name else note[0].upper()
    return f"{first}{note[1:].rstrip('.')}."


def _limits(name: str) -> list[tuple[str, str]]:
    path = LIMITS / f"{name}.txt"
    if not path.exists():
        return []
    lines = [line.partition("|") for line in path.read_text().splitlines() if "|" in line]
    return [(words.strip(), said.strip()) for words, _, said in lines]


def _limit(case: str, limits: list[tuple[str, str]]) -> str:
    """Return the first line whose words all occur in the case; a line without words applies to every case."""
    for words, said in limits:
        if all(word in case for word in words.split()):
            return said
    return "not written yet"


def main() -> None:
    """Write the page."""
    PAGE.write_text(text())
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
