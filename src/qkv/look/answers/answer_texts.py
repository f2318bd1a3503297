"""The texts and coordinates of an answer for the browser, formatted by the functions that `qkv ask` uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qkv.database.io.formatting import (
    format_estimate,
    format_failure,
    format_gradient,
    format_key,
    format_statistics,
    format_value,
)

if TYPE_CHECKING:
    from qkv.database.answer import Answer
    from qkv.look.answers.table_points import TablePoints

__all__ = ["describe_answer"]

_MOST_COLUMNS = 6
_MOST_SHARES = 8


def describe_answer(answer: Answer, points: TablePoints) -> dict[str, object]:
    """Return the answer to one query as texts, with its place and its errors on the axis of the values."""
    place, error = points.place(answer.value), points.length(answer.standard_error)
    ends = [points.place(end) for end in answer.prediction_interval or ()]
    return {
        "found": answer.found,
        "estimate": format_estimate(answer) if answer.found else "",
        "reason": answer.reason,
        "invalid": answer.invalid,
        "statistics": format_statistics(answer) if answer.found else [],
        "gradient": format_gradient(answer) if answer.found else [],
        "failure": format_failure(answer),
        "fit_note": "; ".join([*([answer.fit_note] if answer.fit_note else []), *answer.remarks]),
        "value": place,
        "deviation": None if place is None or error is None else [place - error, place + error],
        "interval": ends or None,
        "shares": [
            {"label": format_value(label), "share": round(share, 5), "text": f"{share:.0%}"}
            for label, share in list(answer.probabilities.items())[:_MOST_SHARES]
        ],
        "evidence": _evidence(answer),
        "notes": list(answer.notes),
    }


def _evidence(answer: Answer) -> dict[str, object]:
    """Return the rows of evidence as texts, as `qkv ask` prints them."""
    first = (*answer.keys, answer.value_name)
    names = list(dict.fromkeys([*first, *answer.table.column_names]))
    shown = names[: max(len(first), _MOST_COLUMNS)]
    rows = answer.rows
    largest = max((abs(row.weight) for row in rows), default=1.0)
    signed = any(row.weight < 0 for row in rows)
    total = sum(row.weight for row in rows)
    remark = f"these rows have {total:.0%} of the weight" if not signed and 0 < total < 0.995 else ""
    if signed:
        remark = "rows with a negative weight lower the answer where their values are high"
    numeric = {name for name in shown if rows and isinstance(rows[0].record[name], int | float)}
    lines = []
    for row in rows:
        near = row.similarity if row.similarity is not None else row.distance
        cells = [row.record[name] for name in shown]
        lines.append(
            {
                "weight": f"{row.weight:.3f}".replace("-", "−"),
                "share": round(row.weight / largest, 4),
                "near": ""
                if not answer.measure
                else f"{near:.2f}"
                if answer.measure == "similarity"
                else format_value(near),
                "cells": [
                    format_key(cell) if answer.in_full(name) else format_value(cell)
                    for name, cell in zip(shown, cells, strict=True)
                ],
            }
        )
    return {
        "measure": answer.measure,
        "columns": [
            {
                "name": name,
                "role": "key" if name in answer.keys else "value" if name == answer.value_name else "",
                "numeric": name in numeric,
            }
            for name in shown
        ],
        "rows": lines,
        "remark": remark,
        "hidden": len(names) - len(shown),
    }
