"""Structure of the benchmarks: every claim has a file, a goal and peers; the pages show the results."""

import ast
import csv
import dataclasses
import importlib.util
import io
import json
import statistics
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from benchmarks import nearest, page, scale_simulation
from benchmarks._calls import CALLS, WrongError, make
from benchmarks._claim import CLAIMS, AtLeast, AtMost, Claim, MissingError, Row, Setting, load
from benchmarks._memory import peak
from benchmarks._race import race
from benchmarks._record import latest, save

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"


def test_every_file_of_a_claim_is_listed_and_every_listed_claim_has_a_file() -> None:
    others = {
        *("appends", "candidates", "coverage", "first_ask", "join_thresholds", "joins_without_labels"),
        *("labelled_joins", "large_tables", "local_linear", "names", "page", "ray_cluster", "relations"),
        *("revisions", "scale_simulation", "search_quality", "serve", "second_question", "synthetic_joins"),
        *("tables", "unseen_tables"),
    }
    files = {path.stem for path in FOLDER.glob("*.py") if not path.name.startswith("_")} - others
    assert files == set(CLAIMS)


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_says_what_it_claims_its_goal_and_its_peers(name: str) -> None:
    claim = load(name)
    assert claim.says.endswith(".")
    assert any(letter.isdigit() for letter in claim.goal)
    assert claim.peers
    assert all(claim.peers)
    goals = {node.id for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())) if isinstance(node, ast.Name)}
    assert goals & {"AtMost", "AtLeast"}, f"no row of {name} carries a goal"


def test_no_claim_imports_its_peers_before_it_is_measured() -> None:
    peers = {"keras", "pykeops", "entmax", "statsmodels", "sklearn", "faiss"}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not peers & {name.split(".")[0] for name in names}, path.name


def test_the_extra_bench_holds_every_peer_and_the_constraints_pin_it() -> None:
    wanted = {"keras", "pykeops", "entmax", "statsmodels", "scikit-learn", "faiss-cpu"}
    wanted |= {"xgboost-cpu", "lightgbm", "catboost", "gpytorch", "pytabkit", "skorch"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert wanted <= {line.split(">")[0] for line in extras["bench"]}
    assert wanted <= {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}


def test_the_pages_the_tables_and_the_readme_are_what_the_last_results_say() -> None:
    files = page.written()
    for name, text in files.items():
        assert (ROOT / name).read_text() == text, f"{name}: run python -m benchmarks.page"
    beside = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "performance").iterdir()}
    assert beside == {name for name in files if name.startswith("docs/performance/")}


def test_every_claim_has_a_page_whose_first_sentence_says_whether_its_goals_are_met() -> None:
    results, files = latest(), page.written()
    for name, title in CLAIMS.items():
        text = files[f"docs/performance/{name}.md"]
        assert text.startswith(f"# {title}\n\n**")
        first = text.split("**")[1]
        missed = any(row["met"] is False for row in results[name][0]["rows"]) if name in results else None
        assert first.endswith({True: "goals are missed.", False: "met.", None: "measured yet."}[missed]), name
        assert "not written yet" not in text, f"benchmarks/limits/{name}.txt explains no reason of a missed goal"


def test_every_verdict_has_rows_and_the_readme_shows_slower_ones() -> None:
    found = list(page.verdicts(latest()))
    assert [verdict for verdict, _ in found] == list(page.VERDICTS)
    assert {verdict.claim for verdict, _ in found} <= set(CLAIMS)
    slower = [verdict for verdict, numbers in found if verdict.readme and statistics.median(numbers) > 1.1]
    assert slower, "the table of the README would show no case in which qkv is slower"


def test_a_ratio_is_the_time_of_qkv_over_the_other_side() -> None:
    rows = [Row("a", "qkv / peer, CPU time", 0.5), Row("b", "peer / qkv, CPU time", 4.0, spread=(2.0, 8.0))]
    rows += [Row("c", "peak memory", 3.0, "MB"), Row("d", "share of calls", 0.9, "")]
    found = page.ratios([dataclasses.asdict(row) for row in rows])
    assert found == [("a · peer", 0.5, 0.5, 0.5), ("b · peer", 0.25, 0.125, 0.5)]


def test_a_goal_that_is_not_kept_is_shown_with_the_limit_that_binds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = Claim("It is fast.", "at most 1.0", ("a peer",), lambda setting: iter(()))
    rows = [Row(case, "qkv / peer", n, goal=AtMost(1)) for case, n in (("4k, forward", 0.5), ("4k, both", 2.0))]
    save("additive", claim, rows, "python -m benchmarks additive", 1.0, tmp_path)
    (tmp_path / "additive.txt").write_text("forward | not this one\nboth | the exponential binds\n")
    monkeypatch.setattr(page, "LIMITS", tmp_path)
    files = page.written(tmp_path)
    text = files["docs/performance/additive.md"]
    assert "- 1 case: The exponential binds." in text
    assert "not this one" not in text
    assert "**1 of 2 goals are missed.**" in text
    table = list(csv.DictReader(io.StringIO(files["docs/performance/additive.csv"])))
    assert [(row["number"], row["met"], row["reason"]) for row in table] == [
        ("0.5", "yes", ""),
        ("2", "no", "the exponential binds"),
    ]
    assert "| `additive` | 1 of 2 |" in files["docs/benchmarks.md"]


def test_a_later_run_of_a_claim_replaces_the_earlier_and_leaves_the_others(tmp_path: Path) -> None:
    claim = Claim("It is fast.", "at most 1.0", ("a peer",), lambda setting: iter(()))
    for name, number in (("flex", 1.0), ("additive", 2.0), ("additive", 3.0)):
        path = save(name, claim, [Row("x", "y", number)], "make bench", 1.0, tmp_path)
    found = latest(tmp_path)
    assert {name: [entry["rows"][0]["number"] for entry in entries] for name, entries in found.items()} == {
        "flex": [1.0],
        "additive": [3.0],
    }
    assert len(json.loads(path.read_text())["claims"]) == 2


def test_a_ratio_is_of_medians_and_names_numerator_and_denominator() -> None:
    found = race({"qkv": lambda: sum(range(100)), "slow": lambda: sum(range(10_000))}, 3, least=0.002)
    assert found.row("x", "slow").number < 1 < found.row("x", "slow", faster=True).number
    assert found.row("x", "slow", faster=True, scale=1e9).met is None
    assert found.row("x", "slow", AtLeast(1), faster=True, scale=1e9).met is False


SMALL = ((1, 2, 40, 8), (1, 2, 40, 8), (1, 2, 40, 8))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_measured_calls_agree_with_the_oracle(name: str, gradient: bool) -> None:
    try:
        call = make(name, SMALL, gradient=gradient)
    except MissingError as missing:
        pytest.skip(str(missing))
    found = call.check()
    assert len(found) == 1 + gradient * len(call.leaves)


@pytest.mark.parametrize("place", [0, 1, 4])
def test_a_wrong_output_or_gradient_is_not_timed(place: int) -> None:
    call = make("bilinear", SMALL, gradient=True)
    call.towards[..., 4:, :] = 0
    got = list(call.run())
    call.compare(tuple(got), slice(0, 4))
    got[place] = got[place] + 0.1 * got[place].abs().max()
    with pytest.raises(WrongError, match="oracle"):
        call.compare(tuple(got), slice(0, 4))


def test_a_quick_run_of_a_claim_whose_readout_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import readouts

    monkeypatch.delattr(readouts, "PooledMap", raising=False)
    with pytest.raises(MissingError, match="PooledMap"):
        next(load("pooled_map").rows(Setting(quick=True, say=lambda text: None)))


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc to read the peak from")
def test_the_peak_of_a_call_holds_all_pairs_where_all_pairs_are_made() -> None:
    pairs = 1500 * 1500 * 4
    found = peak("scaled_dot", ((1500, 8),) * 3, kernel="dense")
    assert pairs < found.growth < 12 * pairs
    assert found.kernel == "dense"


def test_the_simulation_of_a_cluster_measures_its_parts_and_more_machines_answer_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale_simulation, "cpu_seconds", partial(scale_simulation.cpu_seconds, repeats=1))
    for parts in scale_simulation.cases(2_000):
        assert parts.result > 0
        assert parts.merge > 0
        times = [scale_simulation.simulate(parts, scale_simulation.Assumptions(), 1e12, n, 2)[0] for n in (1, 10, 100)]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_import_names_that_exist(path: Path) -> None:
    """Most import where they measure, which tests do not run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "qkv":
            module = importlib.import_module(str(node.module))
            for each in node.names:
                assert hasattr(module, each.name) or importlib.util.find_spec(f"{node.module}.{each.name}"), each.name


@pytest.mark.long
def test_two_checkouts_are_timed_on_the_same_calls() -> None:
    words = [sys.executable, "-m", "benchmarks.revisions", str(ROOT), "additive", "--pairs", "1", "--quick"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    calls = [line.split("ms  ")[1].removesuffix("  above") for line in lines[1:-1]]
    assert calls[:2] == ["2k, forward", "2k, forward + backward"]
    assert calls[2:] in ([], ["512, forward, compiled"])  # only where PyTorch finds a compiler
    assert lines[-1].startswith(f"  {len(calls)} calls, median ")


def test_nearest_rows_are_timed_only_if_both_sides_name_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Any:
        logits, keys = loop(*arguments)
        return logits, keys.roll(1, dims=-1)

    loop = nearest.loop
    monkeypatch.setattr(nearest, "KEYS", 2_000)
    monkeypatch.setattr(nearest, "loop", wrong)
    with pytest.raises(WrongError, match="rows"):
        next(nearest.rows(Setting(quick=True)))


@pytest.mark.parametrize("name", sorted({*CLAIMS} - {"start_up"}))  # it times commands that print nothing
def test_a_claim_that_times_several_sides_compares_what_they_return(name: str) -> None:
    nodes = list(ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert "race" not in used or "WrongError" in used or {"check", "check_against"} & called
