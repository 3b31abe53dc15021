"""The report as text: deterministic, self-contained, and deaf to hostile strings."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import quantattn.evaluate
from quantattn.evaluate import (
    Check,
    Interval,
    ReportData,
    regression_figures,
    regression_table,
    render_report,
    verdict,
    write_report,
)
from quantattn.evaluate.compare import decimals
from quantattn.evaluate.drawing import draw
from quantattn.evaluate.figures import confusion_figure, loss_figure
from quantattn.evaluate.report import cells, days_of

HOSTILE = "</title></text><script>alert(1)</script><img src=x onerror=alert(2)>\"' $\\frac{$ {{ 7*7 }} _x é"


class Tags(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(page)
    return parser.found


def test_same_data_same_bytes(report_data: ReportData) -> None:
    assert render_report(report_data) == render_report(report_data)
    matrix = np.array([[5, 1], [2, 7]])
    assert confusion_figure(matrix, ("a", "b")).svg == confusion_figure(matrix, ("a", "b")).svg


def test_nothing_comes_from_outside(report_data: ReportData) -> None:
    page = render_report(report_data)
    for tag, attributes in tags(page):
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:,")), (tag, name, value)
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    policy = next(a["content"] for t, a in tags(page) if a.get("http-equiv") == "Content-Security-Policy")
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_ids_are_unique_and_figures_have_text_alternatives(report_data: ReportData) -> None:
    page = render_report(report_data)
    ids = [a["id"] for _, a in tags(page) if "id" in a]
    assert len(ids) == len(set(ids))
    for reference in re.findall(r"url\(#([^)]+)\)", page) + re.findall(r'href="#([^"]+)"', page):
        assert reference in ids
    images = [a for t, a in tags(page) if t == "svg"]
    assert len(images) == len(report_data.figures) == 5
    for image in images:
        assert image["role"] == "img"
        assert all(name in ids for name in (image["aria-labelledby"] or "").split())


def test_colours_belong_to_the_page(report_data: ReportData) -> None:
    for figure in report_data.figures:
        assert "#0102" not in figure.svg
        assert "var(--figure-model" in figure.svg
        painted = re.findall(r"(?:fill|stroke): (#\w+|black|white)", figure.svg)
        assert painted == [], figure.name


def hostile(data: ReportData) -> ReportData:
    rows = tuple(replace(row, method=HOSTILE + row.method) for row in data.table.rows)
    return replace(
        data,
        title=HOSTILE,
        question=HOSTILE,
        table=replace(data.table, rows=rows, best_baseline=HOSTILE + data.table.best_baseline),
        figures=(
            confusion_figure(np.eye(2, dtype=int), (HOSTILE, "_hidden")),
            loss_figure({HOSTILE: ([0, 1], [1, 0])}, {HOSTILE: 0.5}),
            draw("own", HOSTILE, HOSTILE, lambda axes: axes.set_title(HOSTILE)),
        ),
        rows={HOSTILE: 1},
        dropped={HOSTILE: 2},
        checks=(Check(HOSTILE, False, HOSTILE),),
        certificate=Check(HOSTILE, True, HOSTILE),
        settings={HOSTILE: HOSTILE},
        hashes={HOSTILE: HOSTILE},
        caveats=(HOSTILE,),
        created=HOSTILE,
    )


def test_hostile_strings_stay_text(report_data: ReportData) -> None:
    page = render_report(hostile(report_data))
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "49" not in re.findall(r"\{\{ 7\*7 \}\}|49 _x", page)
    assert not [a for _, a in tags(page) if any(name.startswith("on") for name in a)]
    assert page.count("&lt;script&gt;alert(1)") > 20


@pytest.mark.parametrize(
    ("inside", "sentence"),
    [
        ("<script>1</script>", "holds <script>"),
        ('<g onload="x"/>', "holds onload="),
        ('<use href="https://example.invalid/a.svg"/>', "holds href="),
        ("<foreignObject/>", "holds <foreignObject>"),
        ('<image href="data:,"/>', "holds <image>"),
        ("<!-- x -->", "declaration or comment"),
        ("<g>", "not well-formed"),
        ('<path style="fill: url(https://example.invalid/)"/>', "holds style="),
    ],
)
def test_only_drawings_are_let_in(report_data: ReportData, inside: str, sentence: str) -> None:
    figure = replace(report_data.figures[0], svg=f'<svg xmlns="http://www.w3.org/2000/svg">{inside}</svg>')
    with pytest.raises(ValueError, match=sentence):
        render_report(replace(report_data, figures=(figure,)))


def test_figures_need_different_plain_names(report_data: ReportData) -> None:
    twice = (report_data.figures[0],) * 2
    with pytest.raises(ValueError, match="different names"):
        render_report(replace(report_data, figures=twice))
    with pytest.raises(ValueError, match="letters, digits and hyphens"):
        draw("a b", "", "", lambda axes: None)
    with pytest.raises(ValueError, match="one to three curves, got 0"):
        loss_figure({})
    with pytest.raises(ValueError, match=r"shape \(2, 2\) for 3 classes"):
        confusion_figure(np.eye(2), ("a", "b", "c"))


def test_drawings_are_well_formed(report_data: ReportData) -> None:
    for figure in (*report_data.figures, *hostile(report_data).figures):
        root = ElementTree.fromstring(figure.svg)
        texts = {child.tag.rpartition("}")[2]: child.text for child in root}
        assert (texts["title"], texts["desc"]) == (figure.title, figure.caption)


def test_verdict_says_which_way_and_how_sure(report_data: ReportData) -> None:
    table = report_data.table
    said = verdict(replace(table, skill=Interval(0.1, 0.05, 0.15)))
    assert said.tone == "better"
    assert said.figure == "10.0% lower log loss"
    assert said.chance == "Unlikely to be chance"
    assert "With 95% confidence the log loss is 5.0% to 15.0% lower." in said.sure
    worse = verdict(replace(table, skill=Interval(-0.1, -0.15, -0.05)))
    assert (worse.tone, worse.figure) == ("worse", "10.0% higher log loss")
    assert "5.0% to 15.0% higher" in worse.sure
    assert "of the way" in said.better
    assert "of the way" not in verdict(replace(table, gap_closed=Interval(-0.2, -0.3, -0.1))).better
    unclear = verdict(replace(table, skill=Interval(0.1, -0.05, 0.25)))
    assert unclear.tone == "unclear"
    assert unclear.chance == "May be chance"
    assert "anywhere from 5.0% higher to 25.0% lower: no difference at all" in unclear.sure
    assert unclear.headline.startswith("No evidence")
    alone = verdict(replace(table, skill=Interval(0.1), blocks=1))
    assert alone.tone == "unclear"
    assert alone.sure.startswith("No interval: the test decisions form 1 day,")
    assert "rough" in verdict(replace(table, blocks=9)).sure
    assert "rough" not in verdict(replace(table, blocks=10)).sure


def test_a_check_that_was_not_run_does_not_look_passed(report_data: ReportData) -> None:
    checks = (Check("one", True), Check("two", None, "no sessions were given"), Check("three", False))
    page = render_report(replace(report_data, checks=checks, certificate=None))
    found = re.findall(r'<li class="(\w+)"><b>(\w+)</b> <span>([\w ]+)</span>', page)
    assert found == [("passed", "one", "passed"), ("idle", "two", "not run"), ("failed", "three", "FAILED")]


def test_cells_mark_the_best_of_a_column_but_not_the_bound(report_data: ReportData) -> None:
    found = cells(report_data.table)
    assert [row.method for row, line in found if line[0].best] == ["encoder"]
    assert found[-1][0].role == "bound"
    assert found[-1][1][0].sort == repr(report_data.table.rows[-1].figures["log_loss"].value)
    assert (found[-1][1][1].text, found[-1][1][1].sort) == ("–", "")


@pytest.mark.parametrize(
    ("values", "digits"),
    [([0.5, 1.2], 3), ([0.0], 3), ([123.4], 1), ([1e5], 0), ([0.00123], 6), ([0.0322], 3), ([float("-inf"), 2.0], 3)],
)
def test_decimals_show_about_four_digits(values: list[float], digits: int) -> None:
    assert decimals(values) == digits


def test_writing_replaces_whole_pages(report_data: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_report(tmp_path / "report.html", report_data)
    before = path.read_bytes()
    assert before.decode() == render_report(report_data)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("quantattn.evaluate.page.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_report(path, replace(report_data, title="other"))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_bare_report_renders() -> None:
    rng = np.random.default_rng(0)
    y, history = rng.normal(size=(2, 60))
    time = np.arange(60) * 86_400 * 10**9
    y[3] = np.nan
    table = regression_table(y, time, None, history * 0.1, {"history": history})
    figures = regression_figures(y, history * 0.1, time, history, table, {"train": ([1], [0.5])}, unit="log volatility")
    page = render_report(ReportData("filings", "Volatility after a filing.", table, figures))
    assert "Mean squared error" in page
    assert "(1 more without a label)" in page
    assert "No audit was run" in page


def test_numbers_do_not_cost_the_drawing_library() -> None:
    script = "import sys, quantattn.evaluate; sys.exit('matplotlib' in sys.modules or 'jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        quantattn.evaluate.nothing  # noqa: B018
    for name in quantattn.evaluate.__all__:
        assert getattr(quantattn.evaluate, name) is not None


def test_the_days_of_a_test_are_said_and_counts_are_no_days() -> None:
    last = 1_704_067_200 * 10**9 - 1  # of 2023
    assert days_of(np.array([last - 86_400 * 10**9, last])) == "from 2023-12-30 to 2023-12-31"
    assert days_of(np.array([last, last - 1])) == "on 2023-12-31"
    assert days_of(np.arange(1000)) == days_of(np.arange(0)) == ""
