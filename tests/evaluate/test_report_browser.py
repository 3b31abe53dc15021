"""Our pages in a real browser: nothing is fetched, nothing overflows, everything can be read, the table sorts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.evaluate import write_certificate, write_report
from quantattn.evaluate.assessment import Terms
from quantattn.evaluate.comparison import Run, compare_runs
from quantattn.evaluate.score_page import Told, report_on
from quantattn.evaluate.scores import Columns, read_scores
from tests.evaluate.score_tables import made

CONTRAST = """
(() => {
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = colour => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data]; };
  const light = rgb => { const [r, g, b] = rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = node => { for (; node; node = node.parentElement) {
    const colour = rgba(getComputedStyle(node).backgroundColor); if (colour[3] === 255) return colour; }
    return [255, 255, 255, 255]; };
  const worst = [];
  document.querySelectorAll('main *').forEach(node => {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || ['title', 'desc', 'style', 'script'].includes(node.tagName.toLowerCase())) return;
    const style = getComputedStyle(node);
    const own_colour = rgba(node instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [own_colour, behind(node)].map(light).sort((x, y) => y - x);
    worst.push([(a + 0.05) / (b + 0.05), node.tagName + ': ' + node.textContent.trim().slice(0, 40)]);
  });
  return worst.sort((x, y) => x[0] - y[0])[0];
})()
"""

ORDER = "[...document.querySelectorAll('.closing tbody tr')].map(row => row.cells[{}].dataset.sort)"
CLICK = "document.querySelectorAll('.closing thead button')[{}].click()"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, report_data: Any) -> Path:
    return write_report(tmp_path_factory.mktemp("report") / "report.html", report_data)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scores that know a little, with volumes, so that every figure and table is there."""
    data, score = made(0, times=120, entities=30, skill=0.2)
    times = data.times[data.at] + data.at % 2 * 3_600 * 10**9  # two hours of the day
    rows = pl.DataFrame({"entity": np.asarray(data.names)[data.entity], "time": times, "score": score})
    rows = rows.with_columns(outcome=data.outcome, volume=pl.lit(1e6), horizon=pl.lit(1))
    rows = pl.concat([rows, rows.with_columns(horizon=pl.lit(2), outcome=pl.col("outcome") / 2)])
    tables = read_scores(rows, "return", Columns(horizon="horizon", volume="volume"))
    told = Told("Made scores", "Which of 30 made securities earn more than the others.", {"scores": "ab" * 32})
    page = report_on(tables, "return", told, Terms(trials=7))
    return write_report(tmp_path_factory.mktemp("scored") / "scores.html", page)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, report_data: Any) -> Path:
    runs = [Run(name, report_data.table, {"seed": name}, report_data.hashes, report_data.checks) for name in ("a", "b")]
    return write_report(tmp_path_factory.mktemp("compared") / "runs.html", compare_runs(runs))


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory, certificate: Any) -> Path:
    return write_certificate(tmp_path_factory.mktemp("certificate") / "certificate.html", certificate)


@pytest.fixture(scope="module")
def certified_fully(tmp_path_factory: pytest.TempPathFactory, full_certificate: Any) -> Path:
    return write_certificate(tmp_path_factory.mktemp("certificate") / "full.html", full_certificate)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 820, 1440])
@pytest.mark.parametrize(
    ("name", "n_figures"), [("page", 5), ("scored", 6), ("compared", 1), ("certified", 1), ("certified_fully", 1)]
)
def test_shows_everything_without_a_complaint(
    browser: Any, request: pytest.FixtureRequest, name: str, n_figures: int, width: int, dark: bool
) -> None:
    page = request.getfixturevalue(name)
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert browser.run("document.documentElement.scrollWidth") <= width
    sizes = browser.run(
        "[...document.querySelectorAll('figure svg')].map(svg => svg.getBoundingClientRect())"
        ".map(box => [box.width, box.height])"
    )
    assert len(sizes) == n_figures
    assert all(100 < w <= width and h > 80 for w, h in sizes)
    smallest = browser.run(
        "Math.min(...[...document.querySelectorAll('svg text')].map(text => { const to = text.getScreenCTM(); "
        "return parseFloat(text.style.fontSize) * Math.hypot(to.a, to.b); }))"
    )
    assert smallest >= 9  # pixels
    ratio, where = browser.run(CONTRAST)
    assert ratio >= 4.5, where  # WCAG 2 AA for text


def test_first_screen_answers_the_four_questions(browser: Any, page: Path) -> None:
    browser.open(page, width=1280, height=800)
    bottoms = browser.run(
        "[...document.querySelectorAll('.answers section')].map(s => s.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 4
    assert max(bottoms) < 800
    assert browser.run("document.querySelector('.evidence svg').getBoundingClientRect().top") < 800


def test_first_screen_of_scores_says_what_it_would_have_cost(browser: Any, scored: Path) -> None:
    browser.open(scored, width=1280, height=800)
    shown = browser.run("[...document.querySelectorAll('.answers section')].map(s => s.textContent.trim())")
    asked = ["What was predicted", "How much better, than what", "How sure", "What it would have cost"]
    assert [text[: len(question)] for text, question in zip(shown, asked, strict=True)] == asked
    bottoms = browser.run(
        "[...document.querySelectorAll('.answers section')].map(s => s.getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < 800
    assert browser.run("document.querySelector('.evidence svg').getBoundingClientRect().top") < 800
    assert scored.stat().st_size < 3_000_000
    loaded = browser.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert loaded < 1000  # milliseconds


def test_every_table_of_scores_sorts_by_numbers(browser: Any, scored: Path) -> None:
    browser.open(scored)
    sheets = browser.run(
        """[...document.querySelectorAll('table.sheet')].map(table => {
          const button = table.querySelectorAll('thead button')[1];
          const keys = () => [...table.tBodies[0].rows].map(row => row.cells[1].dataset.sort);
          return [0, 1].map(() => { button.click(); return keys(); });
        })"""
    )
    assert len(sheets) == 10
    for up, down in sheets:
        filled = [float(value) for value in up if value]
        assert filled == sorted(filled)
        assert [float(value) for value in down if value] == filled[::-1]
    named = browser.run("[...document.querySelectorAll('[role=region]')].map(r => r.getAttribute('aria-label'))")
    assert len(named) == len(set(named)) == 11


def test_scores_print_on_a_sheet_of_paper(browser: Any, scored: Path) -> None:
    browser.open(scored, width=718, media="print")
    right = browser.run(
        "Math.max(...[...document.querySelectorAll('main *')].map(n => n.getBoundingClientRect().right))"
    )
    assert right <= 718


def test_first_screen_of_a_certificate_says_what_differs_and_by_how_much(browser: Any, certified_fully: Path) -> None:
    browser.open(certified_fully, width=1280, height=800)
    assert browser.run("document.querySelector('h1').textContent").startswith("Exact")
    shown = browser.run("[...document.querySelectorAll('.ranges tr')].map(r => [...r.cells].map(c => c.textContent))")
    assert shown == [["", "ours", "standard attention’s own rounding"], ["bfloat16", "0.005", "0.009"]]
    for name in (".ranges table", ".statement"):
        assert browser.run(f"document.querySelector('{name}').getBoundingClientRect().bottom") < 800
    row = browser.run("[...document.querySelector('.errors tbody tr').cells].map(c => c.textContent)")
    assert row[:6] == ["tiled", "bfloat16", "64", "1024", "causal", "out"]
    assert row[-2:] == ["0.05", "0.3"]
    assert browser.requests() == [certified_fully.as_uri(), *(u for u in browser.requests() if u.startswith("data:"))]


def test_dark_and_light_differ_and_print_is_light(browser: Any, page: Path) -> None:
    backgrounds = {}
    for name, dark, media in (("light", False, "screen"), ("dark", True, "screen"), ("print", True, "print")):
        browser.open(page, width=718, dark=dark, media=media)  # A4 less its margins
        backgrounds[name] = browser.run("getComputedStyle(document.body).backgroundColor")
    assert backgrounds["dark"] != backgrounds["light"] == backgrounds["print"]
    right = browser.run(
        "Math.max(...[...document.querySelectorAll('main *')].map(n => n.getBoundingClientRect().right))"
    )
    assert right <= 718
    sheet = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert sheet.startswith(b"%PDF")


def test_table_sorts_by_every_column(browser: Any, page: Path) -> None:
    browser.open(page)
    for column in range(8):
        browser.run(CLICK.format(column))
        up = browser.run(ORDER.format(column))
        browser.run(CLICK.format(column))
        down = browser.run(ORDER.format(column))
        filled = [value for value in up if value]
        key = float if column else str
        assert filled == sorted(filled, key=key)
        assert [value for value in down if value] == sorted(filled, key=key, reverse=True)
        assert up[len(filled) :] == down[len(filled) :] == [""] * (len(up) - len(filled))  # the empty ones stay last
        state = browser.run("[...document.querySelectorAll('.closing thead th')].map(th => th.ariaSort)")
        assert [i for i, value in enumerate(state) if value] == [column]


def test_words_and_numbers_sort_alike(browser: Any, certified: Path) -> None:
    browser.open(certified)
    cells = "[...document.querySelectorAll('.findings')[1].tBodies[0].rows].map(row => row.cells[{}].dataset.sort)"
    head = "document.querySelectorAll('.findings')[1].querySelectorAll('thead button')[{}].click()"
    browser.run(head.format(4))
    assert browser.run(cells.format(4)) == ["0.0", "3e-07", "6e-07", "0.003", "0.83", "", ""]
    browser.run(head.format(0))
    assert browser.run(cells.format(0)) == ["control", "sdpa", *["tiled"] * 5]


def test_the_checks_can_fail(browser: Any, page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    broken = tmp_path / "broken.html"
    broken.write_text(
        text.replace("sha256-", "sha256-A").replace("<main>", '<main><p style="width:900px;color:#999">wide, pale</p>')
        + '<img src="https://example.invalid/x.png">'
    )
    browser.open(broken, width=390)
    before = browser.run(ORDER.format(1))
    browser.run(CLICK.format(1))
    browser.run(CLICK.format(1))
    assert browser.run(ORDER.format(1)) == before  # a script whose hash is not the stated one does not run
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())
    assert browser.run("document.documentElement.scrollWidth") > 390
    assert browser.run(CONTRAST)[0] < 4.5
