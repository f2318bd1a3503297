"""The table of families on the page, from what the sweep found: python -m tests.interop.huggingface.table"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "huggingface.md"
BEGIN, END = "<!-- families: made by tests/interop/huggingface/table.py -->", "<!-- end of families -->"
WHAT = {
    "reached": "agree with their own eager attention",
    "partly": "are reached in part: some layers compute attention themselves",
    "bypassed": "bypass the interface: all layers compute attention themselves",
    "refused": "are refused, with a sentence",
    "without attention": "have no attention, or none that their class names tell",
    "unbuilt": "could not be built tiny, or not be run on inputs of ours: nothing is known of them",
}


def number(x: float | None) -> str:
    """A distance with one digit."""
    return "–" if x is None else f"{x:.0e}" if x else "0"


def table(found: dict[str, Any]) -> str:
    """Counts, and a table of each group."""
    families = found["families"]
    out = [f"transformers {found['transformers']}, torch {found['torch']}: {len(families)} model types.", ""]
    groups = {what: [x for x in families if x["what"] == what] for what in WHAT}
    out += ["| model types | |", "|---|---|"]
    out += [f"| {len(group)} | {WHAT[what]} |" for what, group in groups.items()]
    out += [
        "", "### Reached", "",
        "| model type | class | layers | logits | weights | gradients | `generate`: dynamic; static cache |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for x in (*groups["reached"], *groups["partly"]):
        layers = f"{x['reached']}" + (f", not {x['missed']}" if x["missed"] else "")
        tokens = re.sub("(dynamic|static): ", "", x["generates"]) or "–"
        out.append(
            f"| {x['kind']} | {x['cls']} | {layers} | {number(x['logits'])} | {number(x['weights'])} | "
            f"{number(x['gradients'])} | {x['why'] or tokens} |"
        )
    out += ["", "### Bypassed", "", ", ".join(x["kind"] for x in groups["bypassed"]) + "."]
    out += ["", "### Refused", "", "| model type | why |", "|---|---|"]
    out += [f"| {x['kind']} | {x['why']} |" for x in groups["refused"]]
    out += ["", "### Without attention", "", ", ".join(x["kind"] for x in groups["without attention"]) + "."]
    out += ["", "### Not built", "", "| model type | why |", "|---|---|"]
    out += [f"| {x['kind']} | {_plain(x['why'])} |" for x in groups["unbuilt"]]
    return "\n".join(out)


def _plain(text: str) -> str:
    return re.sub(r"[|<>`]", " ", text).strip()


def filled(page: str, found: dict[str, Any]) -> str:
    """The page with the table put in."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}"


def main() -> None:
    """Write the page anew."""
    from tests.interop.huggingface.sweep import recorded

    PAGE.write_text(filled(PAGE.read_text(), recorded()))


if __name__ == "__main__":
    main()
