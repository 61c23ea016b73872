"""The report in a browser: opened from disk, searched, filtered, expanded, by keys, on a phone."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import screenshots
from tests.browser import NAMES, Page, browse, installed
from tests.report import sample
from tests.report.test_page import render

ROWS = "[...document.querySelectorAll('#list .row')].map((row) => row.dataset.key)"
JS = {"separators": (",", ":"), "ensure_ascii": False}  # as JavaScript writes it
TEXT = "document.getElementById('detail').innerText"
OPEN = "document.querySelector('#detail h2')?.textContent"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = [
        sample.write_run(folder / "seed1"),
        sample.write_run(folder / "seed2", seed=2),
        sample.write_run(folder / "bare", corpus__enabled=False),
    ]
    (folder / "one.html").write_text(render(runs[0]))
    (folder / "all.html").write_text(render(*runs))
    return folder


@pytest.fixture
def page(tmp_path: Path, find_tool: Callable[[str], str]) -> Iterator[Page]:
    with browse(installed() or find_tool(NAMES[0]), tmp_path / "profile") as opened:
        opened.shape(1280, 900)
        yield opened


def has(name: str) -> str:
    return f"(row) => row.dataset.key === {json.dumps('0/' + name)}"


def choose(page: Page, field: str, value: str) -> None:
    page.run(
        f"((field) => {{ field.value = '{value}'; field.dispatchEvent(new Event('input', "
        f"{{bubbles: true}})); }})(document.getElementById('filters').elements['{field}'])"
    )


def search(page: Page, text: str, rows: list[str]) -> None:
    page.run("document.getElementById('query').value = ''")
    page.press("Escape")
    page.press("/")
    page.wait("document.activeElement.id === 'query'")
    page.type(text)
    page.wait(f"JSON.stringify({ROWS}) === {json.dumps(json.dumps(rows, **JS))}")


def test_open_filter_expand(page: Page, report: Path) -> None:
    page.open(report / "one.html")
    titles = page.run("[...document.querySelectorAll('#charts h3')].map((e) => e.textContent)")
    assert titles[:5] == [
        *("Held-out success", "Success in self-play", "Regret", "Win rates", "Designs by verdict")
    ]
    assert page.run("document.querySelectorAll('#chart-success .band').length") == 2
    page.press("/")
    page.wait("location.hash === '#environments'")
    assert page.run(ROWS)[0] == "0/000002-001" and len(page.run(ROWS)) == 5

    choose(page, "verdict", "rejected")
    page.wait(f"String({ROWS}) === '0/000002-001,0/000000-002'")
    choose(page, "verdict", "")
    choose(page, "win-from", "70")
    page.wait(f"String({ROWS}) === '0/000002-000,0/000000-000'")
    choose(page, "win-from", "")
    choose(page, "order", "regret")
    page.wait(f"{ROWS}[0] === '0/000000-000'")
    search(page, "optimization leak", ["0/000002-001"])
    search(page, "SAYS reset x ß", [f"0/{sample.ODD}"])  # the first two are in its program

    page.press("Escape")
    page.run("document.querySelector('#list .row').click()")
    page.wait(f"{OPEN} === 'GridEnv'")
    text = page.run(TEXT)
    for words in ("Spatial Reasoning", "Add them.", "Bees.", "ChainEnv 000002-001", "return 0"):
        assert words in text, words
    assert page.run("document.querySelectorAll('#detail .line').length") == 5
    arms = page.run(
        "[...document.querySelectorAll('.pair[open] .arm .badge')].map((e)=>e.innerText)"
    )
    assert arms == ["plain", "hinted"]
    page.run("document.querySelector('.pair:not([open]) summary').click()")
    page.wait("document.querySelectorAll('.arm').length === 3")
    page.press("t")
    page.wait("document.querySelectorAll('mark').length === 2")  # hinted plays are not trained
    marked = page.run("[...document.querySelectorAll('mark')].map((e) => e.textContent)")
    assert marked == [f"so 0{sample.SCRIPT}", f"so 1{sample.SCRIPT}"]
    assert page.messages == []


def test_texts_of_environments_do_not_run(page: Page, report: Path) -> None:
    page.open(report / "one.html", "#environments")
    for name, *_ in sample.DESIGNS:
        page.run(f"[...document.querySelectorAll('.row')].find({has(name)}).click()")
        page.wait(f"document.getElementById('detail').dataset.key === {json.dumps('0/' + name)}")
        page.wait("document.querySelector('.codebox')")
    page.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert "<script>" in page.run(TEXT)
    assert page.run("document.title") == "seed1 · spade_jax"
    assert page.run("document.querySelectorAll('main script, main img').length") == 0
    # Even text that became a part of the page could not run.
    page.run("document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='throw 1'>`)")
    page.run("new Promise((done) => setTimeout(done, 100))")
    assert all("Content Security Policy" in message for message in page.messages)
    assert len(page.messages) >= 1 and page.run("document.title") == "seed1 · spade_jax"


def test_keys_move_through_the_list(page: Page, report: Path) -> None:
    page.open(report / "one.html", "#environments")
    for key, name in (("j", "000002-001"), ("j", "000002-000"), ("k", "000002-001")):
        page.press(key)
        page.wait(f"document.getElementById('detail').dataset.key === '0/{name}'")
        assert page.run("location.hash") == f"#e/0/{name}"
        assert page.run("document.querySelector('[aria-current=true]').dataset.key") == f"0/{name}"
    page.press("Escape")
    page.wait("location.hash === '#environments'")
    page.run("document.querySelector('#list .row').focus()")
    page.press("Tab")
    assert page.run("document.activeElement.className") in ("row", "card")


def test_on_a_phone_nothing_sticks_out(page: Page, report: Path) -> None:
    page.shape(390, 844, dark=True)
    page.open(report / "all.html")
    inside = "document.documentElement.scrollWidth <= innerWidth"
    for place in ("overview", "compare", "environments", "e/0/000000-000", "evaluation", "config"):
        page.run(f"location.hash = '#{place}'")
        page.wait("[...document.querySelectorAll('.view:not([hidden])')].length === 1")
        assert page.run(inside), place
    page.run("location.hash = '#e/0/000000-000'")
    page.wait(f"{OPEN} === 'SumEnv'")
    assert page.run("getComputedStyle(document.querySelector('.list')).display") == "none"
    page.run("document.querySelector('.back').click()")
    page.wait("getComputedStyle(document.querySelector('.list')).display !== 'none'")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    page.shape(390, 844)
    assert page.run("getComputedStyle(document.body).backgroundColor") != dark
    assert page.messages == []


def test_runs_are_overlaid_and_chosen(page: Page, report: Path) -> None:
    page.open(report / "all.html")
    legend = "[...document.querySelectorAll('#chart-held-out li')].map((e) => e.textContent.trim())"
    assert page.run(legend) == ["corpus.enabled=True", "corpus.enabled=False"]
    page.run("location.hash = '#environments'")
    assert len(page.run(ROWS)) == 15
    choose(page, "run", "2")
    page.wait(f"{ROWS}.length === 5 && {ROWS}.every((key) => key.startsWith('2/'))")
    page.call("Page.reload")  # as while a run goes on: what was chosen stays
    page.wait("document.documentElement?.dataset.ready === 'true'")
    page.wait(f"{ROWS}.length === 5")
    assert page.messages == []


def test_pictures_for_the_docs(page: Page, report: Path, tmp_path: Path) -> None:
    screenshots.take(page, report / "one.html", tmp_path)
    for name in screenshots.PICTURES:
        data = (tmp_path / name).read_bytes()
        assert data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) < 150_000
    assert page.messages == []
