"""Public lists of names with made-up variants: each answer is from one name or lists several, on every face."""

import json
import os
import random
import string
from pathlib import Path

import pytest

from qkv.database import Database
from qkv.encoders.columns import fold

pytestmark = pytest.mark.skipif("QKV_DATA" not in os.environ, reason="QKV_DATA does not name the folder of public data")


def variant(name, draw):
    """A name as people write it: in other letters or order, with initials, shortened, or with an error."""
    words, at = name.split(), draw.randrange(len(name))
    return draw.choice(
        [
            name.upper(),
            ", ".join(reversed(words)),
            name[: max(3, len(name) // 2)].strip() or name,
            " ".join([words[0][0], *words[1:]]),
            draw.choice(words),
            name[:at] + name[at + 1 :] or name,
            name[:at] + draw.choice(string.ascii_lowercase) + name[at:],
            name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
            "".join(draw.choices(string.ascii_lowercase, k=8)),
        ]
    )


@pytest.fixture(name="surnames", scope="module")
def _surnames():
    files = sorted((Path(os.environ["QKV_DATA"]) / "names").glob("*.txt"))
    return sorted({line.strip() for file in files for line in file.read_text(encoding="utf-8").splitlines()} - {""})


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_an_answer_is_from_one_name_or_lists_several(seed, surnames, tmp_path, qkv):
    draw = random.Random(seed)
    people = [f"{draw.choice(surnames)} {draw.choice(surnames)}" for _ in range(60)] + draw.sample(surnames, 60)
    people += [f"{name} {draw.choice(surnames)}" for name in people[:30]] + draw.choices(people, k=60)
    values = [draw.randrange(1000) for _ in people]
    table = Database.open({"name": people, "value": values}, key="name", value="value")
    queries = [variant(draw.choice(people), draw) for _ in range(25)]
    batch = table.ask(queries, top=20)
    assert any(batch.found)
    assert any(answer.candidates for answer in batch) or seed != 1
    for query, answer in zip(queries, batch, strict=True):
        single = table.ask(query, top=20)
        assert (single.found, single.reason, single.candidates) == (answer.found, answer.reason, answer.candidates)
        assert not answer.found or single.value == pytest.approx(answer.value, rel=1e-12)
        if not answer.found:
            assert answer.value is None
            if answer.reason.startswith("no key contains "):
                numbers = answer.reason.removeprefix("no key contains ").casefold().split(" and ")
                assert set(numbers) <= set(fold(query).split())
                words = [fold(each).split() for each in people]
                assert not any(all(any(w.startswith(n) for w in own) for n in numbers) for own in words)
            else:
                assert answer.candidates or "under 0.8" in answer.reason
            assert len({fold(each) for each in answer.candidates}) in (0, *range(2, 200))
            continue
        (name,) = {fold(row.record["name"]) for row in answer.rows}
        own = [value for each, value in zip(people, values, strict=True) if fold(each) == name]
        assert answer.value == pytest.approx(sum(own) / len(own), rel=1e-12)
        assert len(answer.rows) == len(own)
        assert answer.effective_rows == pytest.approx(len(own))
    path = tmp_path / "people.csv"
    path.write_text(
        "name,value\n" + "".join(f"{a},{b}\n" for a, b in zip(people, values, strict=True)), encoding="utf-8"
    )
    arguments = ["ask", str(path), "--key", "name", "--value", "value", "--format", "json"]
    for query, answer in list(zip(queries, batch, strict=True))[:3]:
        code, out, _ = qkv(*arguments, query)
        line = json.loads(out)
        assert code == 0
        assert line["found"] == answer.found
        assert not answer.found or line["value"] == pytest.approx(answer.value, rel=1e-12)
        assert line.get("candidates", []) == list(answer.candidates)
