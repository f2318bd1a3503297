"""The page of answers in Chromium: what it shows is what `qkv ask` prints for the command that it offers."""

import re
import shlex
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from qkv.cli.ask import printed_text
from qkv.database import Database
from qkv.look.answers import AnswerPage, saved_answers
from qkv.look.answers.answer_settings import AnswerSettings, TableSource
from qkv.look.server import ServedPage, serve_in_thread
from tests.effort import LONG

from ..cli.conftest import EXAMPLES, _qkv  # noqa: F401 (the fixture `qkv`)
from .chromium import close_pages, needs_chromium, shared_window

pytestmark = needs_chromium

POSITIONS = 20 if LONG else 2


def page_of(file, key, value, query=None, **options):
    """The page that `qkv ask FILE --page` serves in the folder of the examples."""
    database = Database.open(EXAMPLES / file, key, value)
    source = TableSource.of_table(file, key=key, value=value)
    settings = AnswerSettings.from_options(**options)
    return AnswerPage(
        database,
        source,
        query=query,
        settings=settings,
        printed=lambda answer, rows: printed_text(database, answer, rows),
    )


@contextmanager
def serve_answers_in_thread(page):
    with page.responding() as respond, serve_in_thread(ServedPage(page, respond=respond)) as address:
        yield address


@pytest.fixture(scope="module")
def narrow_window(browser):
    """The window that the tests share; pages in it may read the clipboard."""
    viewport = {"width": 1300, "height": 1000}
    with shared_window(browser, viewport=viewport, permissions=["clipboard-read"]) as context:
        yield context


@pytest.fixture
def shown(narrow_window):
    """A function that opens a page of answers; errors of the page fail the test."""
    troubles, opened = [], []

    def open_page(address):
        page = narrow_window.new_page()
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: opened.append(request.url))
        page.goto(address)
        page.wait_for_selector("#look[data-idle]")
        return page

    open_page.requests = opened
    yield open_page
    close_pages(narrow_window)
    assert troubles == []


def test_prediction_intervals_stay_in_the_area_of_the_values(shown):
    rng = np.random.default_rng(0)
    rows = {"x": rng.uniform(0, 9, 60).round(2).tolist(), "y": rng.normal(size=60).round(2).tolist()}
    page = AnswerPage(Database.open(rows, "x", "y"), query="4")
    (answer,) = page.describe(["4"], page.options(page.settings))
    assert answer["interval"][1] > page.meta()["value"]["ends"][1]
    with serve_answers_in_thread(page) as address:
        opened = shown(address)
        ends = "line => ['y1', 'y2'].map((name) => Number(line.getAttribute(name)))"
        top = opened.locator("svg line.query").evaluate(ends)[0]
        assert min(opened.locator("svg line.interval").evaluate(ends)) == top


def test_an_answer_is_printed_with_its_chart_and_rows_on_one_page(shown):
    rows = {"x": np.arange(60.0).tolist(), "y": np.arange(60.0).tolist()}
    with serve_answers_in_thread(AnswerPage(Database.open(rows, "x", "y"), query="4")) as address:
        page = shown(address)
        assert len(re.findall(rb"/Type /Page\b", page.pdf(format="A4"))) == 1
        page.emulate_media(media="print")
        assert not page.get_by_label("settings and calls").is_visible()
        assert page.locator(".chart").is_visible()


def test_ticks_are_named_by_their_places(shown):
    with serve_answers_in_thread(page_of("gpa.csv", "gpa", "starting_salary", "3.5")) as address:
        *numbers, days = shown(address).evaluate(
            """async () => {
                const { tickMarks } = await import('./web/answer_ticks.js');
                const numbers = [[1.7e9, 1.7e9 + 86400], [-9e-6, 9e-6], [0.2, 3.7e12]];
                const days = tickMarks("date", 5000.1, 5004.5, 8);
                return [...numbers.map((ends) => tickMarks("number", ...ends, 2)), days];
            }"""
        )
    for marks in numbers:
        texts = [mark["text"].replace("−", "-") for mark in marks]
        assert len(set(texts)) == len(marks) > 0
        assert [float(text) for text in texts] == pytest.approx([mark["at"] for mark in marks])
    # Half a day and a little more between ticks.
    assert [mark["text"] for mark in days] == ["1983-09-11", "1983-09-12", "1983-09-13", "1983-09-14"]


def settled(page, act):
    """Call a function, and wait until the page shows its result and has drawn the curve."""
    page.evaluate("delete document.getElementById('look').dataset.idle")
    act()
    page.wait_for_selector("#look[data-idle]")


def drag(page, share, up=0.4):
    """Move the pointer from the handle to a place of the chart."""
    box = page.locator(".chart").bounding_box()
    page.locator(".handle").hover()
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + up * box["height"], steps=4)
    page.mouse.up()


def words(text):
    """The words of a text without the bars of weights."""
    return re.sub(r"[█▉▊▋▌▍▎▏]", " ", text).split()


def check_against_command(page, qkv):
    """Run the command that the page offers, and compare what it prints with what the page shows."""
    line = page.locator("[data-copy=command] pre").text_content()
    code, told, failed = qkv(*shlex.split(line)[1:])
    assert (code, failed) == (0, "")
    assert page.locator("details pre").text_content() == told
    first, *rest = told.splitlines()
    assert page.locator(".headline").text_content() == first
    body = told.split("\n\n· ")[0]
    for statistic in page.locator(".statistics li").all_text_contents():
        assert statistic in body
    rows = [words(each) for each in rest]
    for cells in page.locator(".evidence tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    ):
        assert words(" ".join(cells)) in rows
    assert [f"· {note}" for note in page.locator(".notes li").all_text_contents()] == [
        each for each in rest if each.startswith("· ")
    ]
    return first


@pytest.mark.parametrize(
    ("file", "key", "value", "options"),
    [
        ("gpa.csv", "gpa", "starting_salary", {}),
        pytest.param("members.csv", "joined", "member", {"aggregate": "local-linear"}, marks=pytest.mark.long),
        ("members.csv", "joined", "city", {"score": "gaussian:200", "normalizer": "topk:15"}),
    ],
    ids=["numbers", "dates", "votes"],
)
def test_dragging_shows_what_the_copied_command_prints(shown, qkv, file, key, value, options):
    random, answers = np.random.default_rng(19), set()
    with serve_answers_in_thread(page_of(file, key, value, **options)) as address:
        page = shown(address)
        settled(page, page.locator("summary", has_text="prints").click)
        for share in random.uniform(0.07, 0.99, POSITIONS):
            settled(page, lambda share=share: drag(page, share))
            answers.add(check_against_command(page, qkv))
    assert len(answers) > POSITIONS // 2


def test_the_handle_covers_no_tick_and_percentages_have_one_form(shown):
    with serve_answers_in_thread(page_of("gpa.csv", "gpa", "starting_salary", "3.5")) as address:
        page = shown(address)
        handle = page.locator(".handle").bounding_box()
        below = handle["y"] + handle["height"]
        assert all(tick.bounding_box()["y"] >= below for tick in page.locator("svg line.tick").all())
        text = page.locator("body").inner_text()
        assert text.count("90% prediction interval") == 2
        assert not re.search(r"\d\s%", text)


def test_all_columns_of_the_rows_are_in_view_on_a_phone(shown):
    with serve_answers_in_thread(page_of("people.csv", "name", "income", "Jon Smiht")) as address:
        page = shown(address)
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.locator(".evidence th").all_text_contents()[-1] == "city"
        assert page.locator(".evidence").evaluate("e => e.scrollWidth - e.clientWidth") == 0


def test_typing_shows_what_the_copied_command_prints(shown, qkv):
    random = np.random.default_rng(7)
    names = Database.open(EXAMPLES / "people.csv", "name", "income").column("name").original
    answers = set()
    with serve_answers_in_thread(page_of("people.csv", "name", "income", "Jon Smiht")) as address:
        page = shown(address)
        settled(page, page.locator("summary", has_text="prints").click)
        for _ in range(POSITIONS):
            letters = list(random.choice(names))
            place = int(random.integers(len(letters) - 1))
            letters[place : place + 2] = random.permutation(letters[place : place + 2])
            settled(page, partial(page.locator("input.query").fill, "".join(letters)))
            answers.add(check_against_command(page, qkv))
    assert len(answers) > POSITIONS // 2


def test_settings_change_the_answer_and_the_command(shown, qkv):
    with serve_answers_in_thread(page_of("gpa.csv", "gpa", "starting_salary", "3.5")) as address:
        page = shown(address)
        settled(page, page.locator("summary", has_text="prints").click)
        told = [check_against_command(page, qkv)]
        for act in (
            lambda: page.get_by_label("Score").select_option("boxcar"),
            lambda: page.get_by_role("slider", name="Bandwidth").fill("100"),
            lambda: page.get_by_label("Neighbours").fill("3"),
            lambda: page.get_by_label("Normalizer").select_option("hard"),
            lambda: (page.get_by_label("Filter").fill("starting_salary < 75000"), page.keyboard.press("Tab")),
        ):
            settled(page, act)
            told.append(check_against_command(page, qkv))
        assert len(set(told)) == len(told)
        command = page.locator("[data-copy=command] pre").text_content()
        assert command.endswith(" --score boxcar:0.32 --normalizer topk:3:hard --where 'starting_salary < 75000' 3.5")
        # The address restores the state.
        again = shown(page.url)
        assert again.locator("[data-copy=command] pre").text_content() == command
        page.get_by_label("Filter").fill("nothing < 1")
        settled(page, lambda: page.keyboard.press("Tab"))
        assert "nothing" in page.locator(".status").text_content()


def test_the_query_is_moved_by_keyboard_along_an_axis_and_on_a_map(shown):
    with serve_answers_in_thread(page_of("gpa.csv", "gpa", "starting_salary", "3")) as address:
        page = shown(address)
        page.locator(".handle").focus()
        for key, least, most in (("ArrowRight", 3.0, 3.1), ("Shift+ArrowRight", 3.05, 3.6), ("Home", 2.08, 2.08)):
            settled(page, lambda key=key: page.keyboard.press(key))
            assert least < float(page.locator("input.query").input_value()) + 1e-9 <= most + 2e-9
        assert page.locator(".handle").get_attribute("aria-valuetext").startswith("2.08: ")
    database = Database.open({"x": [0.0, 1.0, 2.0, 3.0], "y": [0.0, 2.0, 1.0, 3.0], "z": [1, 2, 3, 4]}, "x,y", "z")
    with serve_answers_in_thread(AnswerPage(database, query="1,1")) as address:
        page = shown(address)
        page.locator(".handle").focus()
        settled(page, lambda: page.keyboard.press("ArrowUp"))
        x, y = map(float, page.locator("input.query").input_value().split(","))
        assert x == 1 < y < 1.1
        settled(page, lambda: drag(page, 0.5, 0.3))
        assert page.locator("[data-copy=python] pre").text_content().startswith("database.ask('1.")


def test_an_exported_page_shows_the_answers_of_the_command_without_requests(shown, qkv, tmp_path, monkeypatch):
    page = page_of("gpa.csv", "gpa", "starting_salary", "3.5")
    monkeypatch.setattr(saved_answers, "_PLACES", 61)
    file = saved_answers.export_answers(page, tmp_path / "gpa.html")
    exported = shown(file.as_uri())
    shown_lines = set()
    for share in np.random.default_rng(3).uniform(0.07, 0.99, POSITIONS):
        settled(exported, lambda share=share: drag(exported, share))
        line = exported.locator("[data-copy=command] pre").text_content()
        assert exported.locator(".headline").text_content() == qkv(*shlex.split(line)[1:])[1].splitlines()[0]
        shown_lines.add(line)
    assert len(shown_lines) > POSITIONS // 2
    settled(exported, lambda: exported.get_by_role("slider", name="Bandwidth").press("ArrowLeft"))
    settled(exported, lambda: exported.get_by_label("Neighbours").select_option("5"))
    line = exported.locator("[data-copy=command] pre").text_content()
    assert "--score gaussian:0.0399 --normalizer topk:5" in line
    assert exported.locator(".headline").text_content() == qkv(*shlex.split(line)[1:])[1].splitlines()[0]
    assert {url.split(":")[0] for url in shown.requests} == {"file"}


@pytest.mark.parametrize("chart", ["axis", "map"])
def test_ticks_stand_beside_their_labels(shown, chart):
    key, query = ("x", "1") if chart == "axis" else ("x,y", "1,1")
    database = Database.open({"x": [0.0, 1.0, 2.0], "y": [0.0, 2.0, 1.0], "z": [1, 2, 3]}, key, "z")
    with serve_answers_in_thread(AnswerPage(database, query=query)) as address:
        page = shown(address)
        ticks, labels = (
            page.locator(f"svg {each}").evaluate_all(
                "all => all.map(e => [e.getBoundingClientRect()].map(b => [b.x + b.width / 2, b.y + b.height / 2])[0])"
            )
            for each in ("line.tick", "text.label")
        )
    # A label is below or left of its tick.
    assert len(ticks) > 2
    assert all(any(abs(x - u) < 1.5 or abs(y - v) < 3 for u, v in labels) for x, y in ticks)
