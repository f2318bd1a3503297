"""`python -m benchmarks.page`: write the pages of speed and memory from the latest results of every claim.

They are `docs/performance/index.md` with the verdicts, a page and a CSV file for each claim, the list of all claims in
`docs/benchmarks.md`, and the table in `README.md`.
"""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._claim import CLAIMS, SECTIONS, Claim, load
from benchmarks._record import RESULTS, latest

__all__ = ["ROOT", "ratios", "verdicts", "written"]

ROOT = Path(__file__).parent.parent
_RENAMED = {"strip": "row_blocks", "streamed": "numpy_blocks", "scan": "jax_loops"}
"""Current names of kernels, by the names in results measured before 2026-11-22."""

LIMITS = ROOT / "benchmarks" / "limits"
"""Folder with one file per claim with a missed goal, in lines "words of the case | limiting factor and attempts"."""

_MOST_CASES = 12
"""Number of rows up to which a page lists each case; longer tables are summarised by what was compared."""

Row = dict[str, Any]
Results = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Verdict:
    """One row of the page of verdicts: rows of a claim whose case and measure match, as ratios to another side.

    Attributes:
        what: what is computed.
        against: the other side.
        claim: the claim with the rows.
        measure: beginning of the measures, as a regular expression.
        case: regular expression that occurs in the cases.
        readme: whether the row is in the table of the README.
    """

    what: str
    against: str
    claim: str
    measure: str
    case: str = ""
    readme: bool = False


VERDICTS = (
    Verdict("additive attention, 2,000 tokens", "Keras", "additive", "Keras / qkv, CPU", readme=True),
    Verdict("memory of additive attention, 2,000 tokens", "Keras", "additive", "Keras / qkv, peak", readme=True),
    Verdict("kernel regression, 100,000 rows", "PyKeOps", "kernel_regression", "PyKeOps", readme=True),
    Verdict("kernel regression, 100,000 rows", "statsmodels", "kernel_regression", "statsmodels", readme=True),
    Verdict("mean of the 32 nearest rows", "scikit-learn", "kernel_regression", "scikit-learn"),
    Verdict("sparsemax and entmax, 16,000 tokens", "the package entmax", "sparse", "entmax", readme=True),
    Verdict("sparsemax and entmax, 4,000 and 16,000 tokens", "PyTorch's softmax attention", "sparse", "qkv / SDPA"),
    Verdict(
        "soft cap, ALiBi, bias table and window, forward", "FlexAttention, compiled", "flex", "qkv / flex", readme=True
    ),
    Verdict(
        "scaled dot product, 1,000 to 16,000 tokens", "PyTorch's fused attention", "scaled_dot", "", "k, forward", True
    ),
    Verdict("the same with sharp weights, training", "PyTorch's fused attention", "scaled_dot", "", "logits", True),
    Verdict("scaled dot product, 64 to 512 tokens", "PyTorch's fused attention", "scaled_dot_small", "qkv / SDPA"),
    Verdict(
        "a call on 16 tokens without a mask",
        "PyTorch's fused attention",
        "overhead",
        ".*SDPA, CPU",
        "^no mask, forward$",
        True,
    ),
    Verdict(
        "a call on 16 tokens, other scores and normalizers",
        "PyTorch's fused attention",
        "overhead",
        ".*SDPA, CPU",
        "^(?!no mask|causal|lengths|key mask|nn)",
    ),
    Verdict(
        "a layer of attention on 16 tokens",
        "torch.nn.MultiheadAttention",
        "overhead",
        "qkv / torch.nn.MultiheadAttention",
    ),
    Verdict(
        "additive attention, 16 to 1,024 tokens",
        "written by hand in PyTorch",
        "short",
        "qkv / broadcast, CPU time, minima",
        "additive",
        True,
    ),
    Verdict(
        "other scores, 16 to 1,024 tokens",
        "written by hand in PyTorch",
        "short",
        r"qkv / (?!SDPA|flex|kernel).*CPU time, minima",
        "^(?!additive)",
    ),
    Verdict(
        "150 random calls, sparse weights and masks", "written by hand in PyTorch", "short_parts", "qkv / best by hand"
    ),
    Verdict(
        "bilinear, Gaussian, cosine, gated scores, training", "PyTorch's fused dot product", "lifted", "qkv / SDPA"
    ),
    Verdict("the 32 best keys of each query", "PyTorch's softmax over all keys", "top_k", "qkv / SDPA"),
    Verdict(
        "linear attention without decays",
        "the products by hand",
        "linear_attention",
        "qkv / product form, CPU",
        readme=True,
    ),
    Verdict("linear attention with decays", "chunks by hand", "linear_attention", "qkv / chunked form, CPU"),
    Verdict(
        "a decoding step, 32 to 32,768 keys",
        "the layer by hand on a preallocated buffer",
        "decode",
        "qkv / static buffer, CPU",
        "16 steps",
    ),
    Verdict("a decoding step", "the layer by hand with torch.cat", "decode", "qkv / torch.cat, CPU", "16 steps"),
    Verdict(
        "training of a model of 6 layers, dot product", "the same layers on PyTorch", "model", "qkv / torch", "dot"
    ),
    Verdict(
        "the 10 nearest of 500,000 vectors", "a loop of torch products and topk", "nearest", r".* / loop", readme=True
    ),
    Verdict("a softmax over a million rows on disk", "NumPy", "scaling", "NumPy", "softmax over 1000000 "),
    Verdict("the 10 nearest of 10,000 or more rows on disk", "DuckDB", "scaling", "DuckDB", "nearest of "),
    Verdict("the 10 nearest of a million rows on disk", "Lance", "scaling", "Lance", "nearest of 1000000 "),
    Verdict("drawing all heads of 64 and 128 tokens", "BertViz", "look", "qkv / BertViz, wall", "drawn"),
)
"""Verdicts in the order of the page."""

_HOW = """- Before a result is timed, it is compared with the peer's result, and on some queries with the equation in
  float64.
- Error: max |result − reference| / max |reference|, the largest over these comparisons.
- Implementations alternate within one process. Times are medians of at least five rounds; the spread is the lowest and
  highest ratio within a round. Time is the CPU time of the process on one thread unless the row states otherwise.
- Peak memory is the growth of a fresh process above its inputs, after a small warm-up call.
- Nothing has been measured on a GPU.
"""


def written(folder: Path = RESULTS, root: Path = ROOT) -> dict[str, str]:
    """Return the text of every generated file, by its path from the root."""
    results = latest(folder)
    files = {"docs/benchmarks.md": _claims(results), "docs/performance/index.md": _verdict_page(results)}
    for name in CLAIMS:
        entries = results.get(name, [])
        files[f"docs/performance/{name}.md"] = _page(name, load(name), entries)
        if entries:
            files[f"docs/performance/{name}.csv"] = _table(name, entries)
    readme = (root / "README.md").read_text()
    head, begin, rest = readme.partition(_BEGIN)
    files["README.md"] = head + begin + _readme_table(results) + _END + rest.partition(_END)[2]
    return files


_BEGIN, _END = "<!-- verdicts -->\n", "<!-- end of verdicts -->"


def ratios(rows: Sequence[Row]) -> list[tuple[str, float, float, float]]:
    """Return (case and other side, qkv / other side, lowest, highest) of each ratio to another side."""
    found = []
    for row in rows:
        sides = re.match(r"(.+?) / (.+?)(?:,|$)", row["measure"])
        if row["unit"] != "×" or not sides or re.search("with map|size of keys|backward /", row["measure"]):
            continue
        numbers = (row["number"], *(row["spread"] or (row["number"], row["number"])))
        if sides[2] == "qkv":
            numbers, peer = (1 / numbers[0], 1 / numbers[2], 1 / numbers[1]), sides[1]
        else:
            peer = sides[2]
        found.append((f"{row['case']} · {peer}", *numbers))
    return found


def verdicts(results: Results) -> Iterator[tuple[Verdict, list[float]]]:
    """Yield each verdict that was measured, with the sorted ratios of qkv to the other side."""
    for verdict in VERDICTS:
        rows = [
            row
            for row in (results.get(verdict.claim) or [{"rows": []}])[0]["rows"]
            if re.match(verdict.measure, row["measure"])
            and re.search(verdict.case, row["case"])
            and "largest" not in row["measure"]
        ]
        numbers = sorted(ratio for _, ratio, *_ in ratios(rows))
        if numbers:
            yield verdict, numbers


def _words(numbers: Sequence[float]) -> tuple[str, str]:
    """Return "faster", "slower" or "equal", and the median with the range of the ratios."""
    middle, range_ = statistics.median(numbers), f" ({_short(numbers[0])} to {_short(numbers[-1])})"
    word = "equal" if 0.9 <= middle <= 1.1 else "faster" if middle < 1 else "**slower**"
    return word, f"{_short(middle)} ×{'' if _short(numbers[0]) == _short(numbers[-1]) else range_}"


def _short(number: float) -> str:
    return f"{number:.1f}" if number >= 2 else f"{number:.2f}" if number >= 0.02 else f"{number:.1g}"


def _goals(entry: dict[str, Any]) -> tuple[int, int]:
    marks = [row["met"] for row in entry["rows"] if row["met"] is not None]
    return sum(marks), len(marks)


def _verdict_page(results: Results) -> str:
    found = list(verdicts(results))
    words = Counter(_words(numbers)[0].strip("*") for _, numbers in found)
    lines = [
        "# Performance",
        "",
        f"Of {len(found)} comparisons on CPUs qkv is faster in {words['faster']}, equal in {words['equal']} and slower "
        f"in {words['slower']}, by the median of the measured cases. A ratio of 0.5 means half the time of the other "
        "side. Each row links to the claim with its cases and its goals.",
        "",
        "| what | against | qkv is | qkv / the other: median (range) | goals met |",
        "|---|---|---|---|---|",
    ]
    for verdict, numbers in found:
        word, ratio = _words(numbers)
        word = "smaller" if "memory" in verdict.what else word
        met, goals = _goals(results[verdict.claim][0])
        lines.append(
            f"| [{verdict.what}]({verdict.claim}.md) | {verdict.against} | {word} | {ratio} | {met} of {goals} |"
        )
    lines += [
        "",
        "*Equal* is a median within 10 %. The last column counts the goals of the whole claim, of which the row is",
        "a part.",
        "",
        "[All claims](../benchmarks.md) lists the claims without a comparison, too, and how they were measured;",
        "[limitations](../limitations.md) says what is slow and why. Nothing has been measured on a GPU.",
        "",
    ]
    return "\n".join(lines)


def _readme_table(results: Results) -> str:
    lines = ["| what | against | time of qkv / time of the other: median (range) |", "|---|---|---|"]
    for verdict, numbers in verdicts(results):
        if verdict.readme:
            word, ratio = _words(numbers)
            slower = f"{word}: " if "slower" in word else ""
            lines.append(
                f"| {slower}[{verdict.what}](docs/performance/{verdict.claim}.md) | {verdict.against} | {ratio} |"
            )
    return "\n".join([*lines, ""])


def _claims(results: Results) -> str:
    lines = [
        "# All claims of speed and memory",
        "",
        "Every claim has a goal, named peers and a page. `make bench` measures all of them into `benchmarks/results/`,",
        "and `make bench CLAIM=additive` one. The page of a claim links to a CSV file with every measured case.",
        "[Performance](performance/index.md) has the verdicts.",
        "",
        _HOW.rstrip(),
    ]
    for name, title in CLAIMS.items():
        if name in SECTIONS:
            lines += ["", f"## {SECTIONS[name]}", "", "| claim | name | goals met | measured |", "|---|---|---|---|"]
        met, when = "", "not yet"
        if results.get(name):
            kept, goals = _goals(results[name][0])
            met, when = f"{kept} of {goals}", results[name][0]["date"]
        lines.append(f"| [{title}](performance/{name}.md) | `{name}` | {met} | {when} |")
    return "\n".join([*lines, ""])


def _page(name: str, claim: Claim, entries: list[dict[str, Any]]) -> str:
    parts = [f"# {CLAIMS[name]}", "", " ".join([_verdict(entries), claim.says]), "", f"Goal: {claim.goal}.", ""]
    if not entries:
        return "\n".join([*parts, f"`make bench CLAIM={name}` measures it, against {', '.join(claim.peers)}.", ""])
    rows, limits = entries[0]["rows"], _limits(name)
    parts += [*(_cases(rows) if len(rows) <= _MOST_CASES else _summary(rows)), ""]
    parts += [f"[Every case]({name}.csv), with seconds, memory, error and kernel.", ""]
    why = Counter(_limit(_current_names(row["case"]), limits) for row in rows if row["met"] is False)
    if why:
        parts += ["## Why goals are missed", ""]
        parts += [f"- {count} case{'s' * (count > 1)}: {_sentence(reason)}" for reason, count in why.most_common()]
        parts += [""]
    parts += ["## How it was measured", "", _source(entries[0])]
    for entry in entries[1:]:
        met, goals = _goals(entry)
        parts += ["", f"On {entry['date']}, on {_machine(entry)}, {met} of {goals} goals were met."]
    notes = dict.fromkeys(row["note"] for row in rows if row["note"])
    if len(notes) <= 3:
        parts += ["", *(f"- {_sentence(note)}" for note in notes)] if notes else []
    return "\n".join([*parts, ""])


def _verdict(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return "**Not measured yet.**"
    met, goals = _goals(entries[0])
    text = f"**All {goals} goals are met.**" if met == goals else f"**{goals - met} of {goals} goals are missed.**"
    text = "**The goal is met.**" if met == goals == 1 else text
    numbers = sorted(ratio for _, ratio, *_ in ratios(entries[0]["rows"]))
    if len(numbers) > 1:
        text += f" Over {len(numbers)} comparisons the ratio to the other side is {_short(numbers[0])} to "
        text += f"{_short(numbers[-1])} ×, in the median {_short(statistics.median(numbers))} ×."
    return text


def _machine(entry: dict[str, Any]) -> str:
    machine = entry["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {', '.join(machine['instructions'])}"


def _source(entry: dict[str, Any]) -> str:
    gain = entry["machine"].get("onednn_gain")
    speed = "" if gain is None else f" (oneDNN's matmul runs at {gain:g} × the speed of torch.mm)"
    used = {package: number for package, number in entry["versions"].items() if package in ("python", "numpy", "torch")}
    return (
        f"Measured on {entry['date']} on {_machine(entry)}{speed}, by `{entry['command']}` at "
        f"{entry['commit'] or 'an unknown commit'}, with "
        + ", ".join(f"{package} {number}" for package, number in used.items())
        + "; [how times are taken](../benchmarks.md)."
    )


def _cases(rows: list[Row]) -> list[str]:
    """Return a table with a line for each row."""
    lines = ["| case | measured | lowest to highest | goal | met |", "|---|---|---|---|---|"]
    for row in rows:
        spread = "" if row["spread"] is None else f"{row['spread'][0]:.3g} to {row['spread'][1]:.3g}"
        cells = [_current_names(row["case"]), f"{row['number']:.3g} {row['unit']} {row['measure']}", spread]
        lines.append(_line([*cells, _goal(row), {True: "yes", False: "**no**", None: ""}[row["met"]]]))
    return lines


def _summary(rows: list[Row]) -> list[str]:
    """Return a table with a line for each kind of number, most frequent first."""
    lines = ["| measured | cases | lowest | median | highest | goals met |", "|---|---|---|---|---|---|"]
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        measure = re.sub(r", (CPU|wall|peak|minima|lowest fifth).*", "", row["measure"])
        kinds.setdefault((measure, row["unit"]), []).append(row)
    for (measure, unit), some in sorted(kinds.items(), key=lambda pair: -len(pair[1])):
        numbers = [row["number"] for row in some]
        middle = statistics.median(numbers)
        met, goals = _goals({"rows": some})
        cells = [f"{number:.3g} {unit}".strip() for number in (min(numbers), middle, max(numbers))]
        lines.append(_line([measure, str(len(some)), *cells, f"{met} of {goals}" if goals else ""]))
    return lines


def _goal(row: Row) -> str:
    return "" if row["goal"] is None else f"{row['goal']['sense']} {row['goal']['limit']:g}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


_COLUMNS = ("date", "machine", "case", "measure", "number", "unit", "lowest", "highest", "goal", "met", "seconds")
_COLUMNS += ("megabytes", "error", "kernel", "reason", "note")


def _table(name: str, entries: list[dict[str, Any]]) -> str:
    """Return every row of every machine as CSV."""
    text, limits = io.StringIO(), _limits(name)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(_COLUMNS)
    for entry in entries:
        for row in entry["rows"]:
            case = _current_names(row["case"])
            spread = ["", ""] if row["spread"] is None else [f"{number:.3g}" for number in row["spread"]]
            met = {True: "yes", False: "no", None: ""}[row["met"]]
            what = [entry["date"], entry["machine"]["slug"], case, row["measure"], f"{row['number']:.3g}", row["unit"]]
            costs = [_named(row["seconds"], ".3g"), _named(row["megabytes"], ".0f")]
            error = f"{max(row['errors'].values()):.1g}" if row["errors"] else ""
            reason = _limit(case, limits) if row["met"] is False else ""
            kernel = _RENAMED.get(row["kernel"], row["kernel"])
            table.writerow([*what, *spread, _goal(row), met, *costs, error, kernel, reason, row["note"]])
    return text.getvalue()


def _current_names(case: str) -> str:
    return ", ".join(_RENAMED.get(word, word) for word in case.split(", "))


def _named(numbers: dict[str, float], form: str) -> str:
    return ", ".join(f"{_RENAMED.get(name, name)} {value:{form}}" for name, value in numbers.items())


def _sentence(note: str) -> str:
    """Return a note with a capital letter and a full stop, unless it begins with a lower-case name."""
    name = note.split()[0] in ("faiss", "flex_attention", "qkv", "scikit-learn", "statsmodels")
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
    """Write the pages."""
    for name, text in written().items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    print("wrote docs/benchmarks.md, docs/performance/ and the table of README.md")


if __name__ == "__main__":
    main()
