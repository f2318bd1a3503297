"""The section of docs/evidence/tables.md about the results of `benchmarks.tables`, its picture, and a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from benchmarks._table_sets import classification_tables, count_splits, regression_tables
from benchmarks.tables import Result

__all__ = ["BEGIN", "END", "PAGE", "TABLE", "draw", "mean_ranks", "page_text", "table_text", "write_page"]

_DOCS = Path(__file__).parent.parent / "docs"
PAGE = _DOCS / "evidence" / "tables.md"
TABLE = PAGE.with_suffix(".csv")
_PICTURE = _DOCS / "pictures" / "tables.png"
BEGIN = "<!-- begin: python -m benchmarks.tables --page -->"
END = "<!-- end: python -m benchmarks.tables --page -->"

_QUICK, _STANDARD = "attention, quick", "attention, standard"
_TREES = ("histogram boosting", "XGBoost", "LightGBM", "CatBoost")
_UNIT = "histogram boosting"
_LIMITS = {_QUICK: 3, _STANDARD: 15}
_FEWEST_ROWS = 256
"""Limits of time are for tables of at least so many training rows."""
_MACHINE = "Intel(R) Xeon(R) Processor"
"""The machine whose CPU times are reported, where there are any."""

Cells = dict[tuple[str, str], list[Result]]


def write_page(results: Sequence[Result]) -> None:
    """Replace the section between the marks of the page, write the table, and draw the picture."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{page_text(results)}\n\n{END}{after}", encoding="utf-8")
    TABLE.write_text(table_text(results), encoding="utf-8")
    draw(results, _PICTURE)


def page_text(results: Sequence[Result]) -> str:
    """Return the section as Markdown."""
    numbers = [result for result in results if math.isnan(result.log_loss) and not result.failure]
    classes = [result for result in results if not math.isnan(result.log_loss)]
    parts = [_coverage_of_run(results)]
    for title, some, is_classes in (("Numbers", numbers, False), ("Classes", classes, True)):
        cells = _cells(some)
        if not cells:
            parts.append(f"### {title}\n\nNot run.")
            continue
        parts.append(f"### {title}")
        if not is_classes:
            parts += [_verdict(cells), _first_splits(cells)]
        parts += [_ranks_text(cells), _costs(cells, is_classes)]
    if all(result.setting == "default" for result in results):
        parts.append("Not tuned: `python -m benchmarks.tables --tuned` searches for ten steps with each method.")
    return "\n\n".join(part for part in parts if part)


def mean_ranks(cells: Cells) -> tuple[dict[str, float], list[str], float]:
    """Return mean ranks of methods, the tables they are over, and the critical difference at 5 % (Nemenyi).

    A method counts on a table if all its splits were run. Methods with the fewest such tables are left out until the
    others share three quarters of the tables that any method has.
    """
    from scipy.stats import rankdata, studentized_range

    tables, methods = _axes(cells)
    full = {table: count_splits(table) for table in tables}
    tables = [table for table in tables if any(len(cells.get((table, m), [])) == full[table] for m in methods)]
    complete = {m: {t for t in tables if len(cells.get((t, m), [])) == full[t]} for m in methods}
    ranked = list(methods)
    while True:
        common = [table for table in tables if all(table in complete[method] for method in ranked)]
        if len(common) >= 0.75 * len(tables) or len(ranked) <= 2:
            break
        ranked.remove(min(reversed(ranked), key=lambda method: len(complete[method])))
    if not common or len(ranked) < 2:
        return {}, [], math.nan
    errors = np.array([[_mean(cells[table, method]) for method in ranked] for table in common])
    ranks = np.mean([rankdata(row) for row in errors], axis=0)
    count = len(ranked)
    quantile = studentized_range.ppf(0.95, count, np.inf) / math.sqrt(2)
    difference = quantile * math.sqrt(count * (count + 1) / (6 * len(common)))
    order = np.argsort(ranks)
    return {ranked[place]: float(ranks[place]) for place in order}, common, float(difference)


def _cells(results: Iterable[Result], setting: str = "default") -> Cells:
    found: Cells = defaultdict(list)
    for result in results:
        if result.setting == setting and not math.isnan(result.error):
            found[result.table, result.method].append(result)
    return dict(found)


def _axes(cells: Cells) -> tuple[list[str], list[str]]:
    """Return tables by training rows, and methods in the order of the benchmark."""
    from benchmarks._table_methods import METHODS

    rows = {table: some[0].rows for (table, _), some in cells.items()}
    used = {method for _, method in cells}
    return sorted(rows, key=lambda table: (rows[table], table)), [method for method in METHODS if method in used]


def _mean(some: Iterable[Result], name: str = "error") -> float:
    return float(np.mean([getattr(result, name) for result in some]))


def _error_bar(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _figure(values: Sequence[float]) -> str:
    mean, spread = float(np.mean(values)), _error_bar(values)
    scale = spread if spread > 0 else abs(mean) / 10
    places = min(4, max(0, 1 - math.floor(math.log10(scale)))) if scale > 0 else 3
    return f"{mean:.{places}f}" + ("" if math.isnan(spread) else f" ± {spread:.{places}f}")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _coverage_of_run(results: Sequence[Result]) -> str:
    from benchmarks._table_methods import METHODS

    measured = [result for result in results if not result.failure]
    dates = sorted({result.date for result in measured})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    versions = {result.method: f"{METHODS[result.method].package} {result.version}" for result in measured}
    tables = {result.table for result in measured}
    without = [name for name in (*regression_tables(), *classification_tables()) if name not in tables]
    without = [name for name in without if not name.startswith("keel/")]
    failures = sorted({f"{result.method} on {result.table} ({result.failure})" for result in results if result.failure})
    lines = [
        f"{len(measured)} fits of {len(versions)} methods on {len(tables)} tables, {when}, with the versions "
        + ", ".join(sorted(set(versions.values())))
        + ". [tables.csv](tables.csv) has the mean error of each method on each table, with its standard error, the "
        "number of splits that were run, and CPU times; also after a random search, where it was run."
    ]
    if none := [name for name in METHODS if name not in versions]:
        lines.append(f"Methods not run: {'; '.join(none)}.")
    if without:
        lines.append(f"Tables not run: {', '.join(without)}.")
    if not any(name.startswith("keel/") for name in tables):
        lines.append("The tables of KEEL were not run.")
    if failures:
        lines.append(f"Failed: {'; '.join(failures)}.")
    return " ".join(lines)


def table_text(results: Sequence[Result]) -> str:
    """Return the mean error of each method on each table as CSV, by setting and training rows."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        ["setting", "table", "training_rows", "method", "error", "standard_error", "splits", "of", "seconds"]
    )
    run = [result for result in results if not result.failure]
    for setting in sorted({result.setting for result in run}):
        cells = _cells(run, setting)
        tables, methods = _axes(cells)
        for name in tables:
            for method in methods:
                if some := cells.get((name, method)):
                    bar = _error_bar([result.error for result in some])
                    shown = [f"{_mean(some):.4g}", f"{bar:.2g}" if bar == bar else ""]
                    splits, seconds = [len(some), count_splits(name)], f"{_mean(some, 'fit_seconds'):.2f}"
                    table.writerow([setting, name, _first(cells, name).rows, method, *shown, *splits, seconds])
    return text.getvalue()


def _first(cells: Cells, table: str) -> Result:
    return next(some[0] for (name, _), some in cells.items() if name == table)


def _verdict(cells: Cells) -> str:
    """Compare both efforts with the best of the boosted trees on each table, on the splits that all of them have."""
    tables, _ = _axes(cells)
    rows = []
    won, tied, in_time, both = (dict.fromkeys(_LIMITS, 0) for _ in range(4))
    for table in tables:
        some = {m: {r.split: r for r in cells.get((table, m), [])} for m in (*_TREES, *_LIMITS)}
        shared = sorted(set.intersection(*(set(splits) for splits in some.values())))
        if not shared:
            continue
        errors = {m: np.array([some[m][split].error for split in shared]) for m in some}
        best = min(_TREES, key=lambda m: errors[m].mean())
        row = [table, f"{len(shared)} of {count_splits(table)}", f"{best} {_figure(errors[best])}"]
        for effort, limit in _LIMITS.items():
            gap = errors[effort] - errors[best]
            spread = _error_bar(list(gap))
            better = gap.mean() <= 0
            equal = not better and gap.mean() <= spread
            times = _times(some[effort], some[_UNIT])
            won[effort] += better
            tied[effort] += equal
            timed = _first(cells, table).rows >= _FEWEST_ROWS
            in_time[effort] += timed and times <= limit
            both[effort] += timed and (better or equal) and times <= limit
            verdict = "smaller" if better else "equal" if equal else "larger"
            row.append(f"{errors[effort].mean() / errors[best].mean():.2f} ({verdict})")
            row.append(f"{times:.1f}" if times == times else "–")
        rows.append(row)
    if not rows:
        return ""
    count = sum(_first(cells, row[0]).rows >= _FEWEST_ROWS for row in rows)
    said = [
        f"“{effort}” has the smaller error on {won[effort]} of {len(rows)} tables, an equal one (within one standard "
        f"error of the differences) on {tied[effort]}. Of the {count} tables with at least {_FEWEST_ROWS} training "
        f"rows, it takes at most {_LIMITS[effort]} × the time of histogram boosting on {in_time[effort]}; both hold on "
        f"{both[effort]}."
        for effort in _LIMITS
    ]
    head = [
        "table",
        "splits",
        "best boosted trees at defaults",
        "quick / trees",
        "× time",
        "standard / trees",
        "× time",
    ]
    text = (
        "Errors relative to the best of the four boosted trees, chosen on the test errors of each table, and CPU times "
    )
    text += "of fit and prediction relative to histogram boosting:"
    return "\n\n".join([text, _table(head, rows), " ".join(said)])


def _times(some: dict[int, Result], unit: dict[int, Result]) -> float:
    """Return the ratio of the CPU times of fit and prediction, over the splits that ran on the same machine."""
    shared = [split for split in some if split in unit and some[split].machine == unit[split].machine]
    seconds = [sum(each[split].fit_seconds + each[split].predict_seconds for split in shared) for each in (some, unit)]
    return seconds[0] / seconds[1] if shared else math.nan


def _first_splits(cells: Cells) -> str:
    """Compare each method with "standard" on the first split of the tables that both ran on."""
    first = {key: result.error for key, some in cells.items() for result in some if result.split == 0}
    tables, methods = _axes(cells)
    rows = []
    for method in methods:
        both = [table for table in tables if (table, method) in first and (table, _STANDARD) in first]
        if method == _STANDARD or not both:
            continue
        ratios = np.array([first[table, method] / first[table, _STANDARD] for table in both])
        smaller = [table for table, ratio in zip(both, ratios, strict=True) if ratio < 1]
        mean = f"{np.exp(np.log(ratios).mean()):.2f}"
        rows.append([method, str(len(both)), mean, f"{len(smaller)}: {', '.join(smaller)}" if smaller else "0"])
    if not rows:
        return ""
    text = f"Errors on the first split of each table relative to “{_STANDARD}” (geometric mean, and the tables with a "
    text += "smaller error), also of methods that ran on no other split. One split says little of a single table:"
    return text + "\n\n" + _table(["method", "tables", "error / standard", "smaller"], rows)


def _ranks_text(cells: Cells) -> str:
    ranks, tables, difference = mean_ranks(cells)
    if len(tables) < 2:
        return ""
    listed = "; ".join(f"{method} {rank:.1f}" for method, rank in ranks.items())
    missing = [method for method in _axes(cells)[1] if method not in ranks]
    text = f"Mean ranks over {len(tables)} tables ({', '.join(tables)}): {listed}. Ranks that differ by less than "
    text += f"{difference:.1f} are not told apart at 5 % (Nemenyi's test)."
    return text + (f" Not ranked, for want of tables: {', '.join(missing)}." if missing else "")


def _costs(cells: Cells, classes: bool) -> str:
    """Return a table of what each method costs and how well it knows its errors."""
    tables, methods = _axes(cells)
    rows = []
    for method in methods:
        have = [table for table in tables if (table, method) in cells]

        here = {table: [one for one in cells[table, method] if one.machine == _MACHINE] for table in have}
        here = {table: some for table, some in here.items() if some}
        here = here if 2 * len(here) >= len(have) else {}
        elsewhere = "" if here else "*"
        timed = here or {table: cells[table, method] for table in have}

        def middle(name: str, timed: dict[str, list[Result]] = timed) -> float:
            values = [_mean(some, name) for some in timed.values()]
            return float(np.median([value for value in values if value == value] or [math.nan]))

        def average(name: str, have: list[str] = have, method: str = method) -> str:
            values = [_mean(cells[table, method], name) for table in have]
            values = [value for value in values if value == value]
            return f"{np.mean(values):.3f}" if values else "–"

        kept = [average("log_loss"), average("calibration")] if classes else [average("coverage"), average("length")]
        size = middle("bytes")
        size_text = f"{size / 1e6:.2f} MB" if size == size else "–"
        row = [
            method,
            str(len(have)),
            f"{middle('fit_seconds'):.2f} s{elsewhere}",
            f"{middle('predict_seconds'):.3f} s{elsewhere}",
            size_text,
        ]
        rows.append([*row, *kept])
    last = ["mean log loss", "mean calibration error"] if classes else ["mean coverage of 90 %", "mean length"]
    head = ["method", "tables", "median CPU time of fit", "of prediction", "median size", *last]
    text = "Medians and means are over the tables of the second column, which differ between methods. CPU times are "
    text += (
        f"of the tables that ran on an {_MACHINE}, shared with other work; with *, where these are less than half, of "
    )
    text += "all tables, also on another machine."
    return f"{text}\n\n{_table(head, rows)}"


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw errors relative to the best boosted trees, and mean ranks with their critical difference, of numbers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cells = _cells([result for result in results if math.isnan(result.log_loss)])
    tables, methods = _axes(cells)
    tables = [table for table in tables if all((table, method) in cells for method in _TREES)]
    colours = {_QUICK: "#e69f00", _STANDARD: "#0072b2", "attention, best": "#009e73"}
    figure = Figure(figsize=(9, 0.32 * max(len(tables), len(methods)) + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for place, table in enumerate(tables):
        best = min(_TREES, key=lambda method: _mean(cells[table, method]))
        trees = {one.split: one.error for one in cells[table, best]}
        for method in sorted(methods, key=lambda method: method in colours):
            pairs = [(one.error, trees[one.split]) for one in cells.get((table, method), []) if one.split in trees]
            if pairs:
                error, reference = np.mean(pairs, axis=0)
                ours = method in colours
                mark, color, size = ("o", colours[method], 7) if ours else ("|", "0.6", 9)
                left.plot(error / reference, place, mark, color=color, ms=size)
    left.axvline(1, color="0.3", lw=0.8)
    left.set(xscale="log", xlabel="error / error of the best boosted trees (defaults)")
    left.set_yticks(range(len(tables)), tables)
    left.set_ylim(max(len(tables), 1) - 0.5, -0.5)
    ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]
    low, high = left.get_xlim()
    left.set_xticks([tick for tick in ticks if low <= tick <= high])
    left.minorticks_off()
    left.xaxis.set_major_formatter("{x:g}")
    for method, colour in colours.items():
        if method in methods:
            left.plot([], [], "o", color=colour, label=method)
    left.plot([], [], "|", color="0.6", ms=9, label="other methods")
    left.legend(fontsize=8, loc="best")
    ranks, over, difference = mean_ranks(cells)
    right.barh(list(ranks), list(ranks.values()), color=[colours.get(method, "0.75") for method in ranks])
    right.set_ylim(len(ranks) - 0.5, -1.4)
    right.set(xlabel=f"mean rank over {len(over)} tables", xlim=(0, None))
    if ranks:
        first = next(iter(ranks.values()))
        right.plot([first, first + difference], [-0.8, -0.8], color="0.2", lw=2)
        right.text(first + difference / 2, -0.9, "critical difference", ha="center", va="bottom", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
