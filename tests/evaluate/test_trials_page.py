"""The page of a search: which trial is best, how it came about, and that nothing in a name can do anything."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

from quantattn.evaluate.trials import Study, Trial, importance_figure, render_study, trials_figure, write_study


def study(*values: tuple[str, float | None], maximise: bool = False, **how) -> Study:
    trials = tuple(Trial(n, state, value, {"lr": f"{n / 7!r}"}, 3.0) for n, (state, value) in enumerate(values))
    return Study("task/study", "valid/loss", maximise, {"lr": "0 … 1"}, trials, **how)


MIXED = [("complete", 3.0), ("failed", None), ("complete", 4.0), ("pruned", 1.0), ("complete", 2.0), ("complete", 2.0)]


def test_the_best_is_a_complete_trial_and_the_first_of_equal_ones() -> None:
    assert study(*MIXED).best.number == 4  # type: ignore[union-attr]
    assert study(*MIXED).frontier == [(0, 3.0), (4, 2.0)]
    assert study(*MIXED, maximise=True).best.number == 2  # type: ignore[union-attr]
    assert study(*MIXED, maximise=True).frontier == [(0, 3.0), (2, 4.0)]
    assert study(("pruned", 1.0), ("complete", math.nan), ("running", None)).best is None


def test_the_page_names_the_best_shows_every_trial_and_escapes_every_name(tmp_path: Path) -> None:
    page = write_study(tmp_path / "sweep.html", study(*MIXED), "2026-11-30").read_text()
    assert "<h1>Trial 4 is the best of 6.</h1>" in page
    assert "1 failed" in page
    assert "has to be deflated by 6" in page
    assert page.count("<tr>") - page.count("<thead><tr>") == 6
    assert page == render_study(study(*MIXED), "2026-11-30"), "the same study, the same bytes"
    wild = "<script>alert(1)</script>"
    bad = Study(wild, wild, False, {wild: wild}, (Trial(0, "failed", None, {wild: wild}, None, wild),), {wild: 1.0})
    assert "<script>alert" not in render_study(bad)
    assert "No trial has come to its end." in render_study(study(("running", None)))


def test_figures_are_drawn_where_there_is_something_to_draw() -> None:
    assert trials_figure(study(("failed", None))) is None
    assert importance_figure(study(*MIXED)) is None
    for figure in (
        trials_figure(study(*MIXED)),
        importance_figure(study(*MIXED, importance={"lr": 0.7, "width": 0.3})),
    ):
        assert figure is not None
        assert ElementTree.fromstring(figure.svg).tag.endswith("svg")
    one = trials_figure(study(("complete", 0.5)))
    assert one is not None
    assert "nan" not in one.svg.lower().replace("dominant", "")
