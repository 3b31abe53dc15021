"""Figures of data at the edges: constant, tiny, huge, alone. Any warning of the drawing library is an error here."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.evaluate import classification_figures, closing_table, regression_figures, regression_table
from quantattn.evaluate.drawing import MOST_POINTS, short, thinned, time_ticks
from quantattn.evaluate.figures import advantage_figure, predictions_figure

NOW = 1_700_000_000 * 10**9


@pytest.mark.parametrize(("n", "n_classes", "step"), [(1, 2, 1), (2, 8, 0), (50, 3, 1), (50, 2, 40 * 86_400 * 10**9)])
def test_classifiers_at_the_edges(n: int, n_classes: int, step: int) -> None:
    rng = np.random.default_rng(0)
    y, prob, time = rng.integers(0, n_classes, n), rng.dirichlet(np.ones(n_classes), n), NOW + np.arange(n) * step
    flat = np.full((n, n_classes), 1 / n_classes)
    classes = [f"class {i}" for i in range(n_classes)]
    for model in (prob, flat):
        table = closing_table(y, time, None, model, {"flat": flat}, {"log_loss": 0.1})
        figures = classification_figures(
            y, model, time, classes, flat, table, {"train": ([1], [0.7]), "valid": ([], [])}
        )
        assert [f.name for f in figures] == ["methods", "advantage", "loss", "confusion", "reliability"]
        for figure in figures:
            ElementTree.fromstring(figure.svg)


@pytest.mark.parametrize(("n", "scale"), [(1, 1.0), (3, 1e9), (700, 1e-9)])
def test_regressions_at_the_edges(scale: float, n: int) -> None:
    rng = np.random.default_rng(0)
    y, history = rng.normal(size=(2, n)) * scale
    time = NOW + np.arange(n) * 86_400 * 10**9
    for model in (history / 2, np.zeros(n)):
        table = regression_table(y, time, None, model, {"history": history})
        for figure in regression_figures(y, model, time, history, table, {"train": ([], [])}):
            ElementTree.fromstring(figure.svg)


@pytest.mark.parametrize(
    ("first", "last", "labels", "note"),
    [
        ("2024-01-02T14:30", "2024-01-02T21:00", ["16:00", "18:00", "20:00"], "2024-01-02, UTC"),
        (
            "2024-01-02T23:59:30",
            "2024-01-03T00:00:10",
            ["23:59:30", "23:59:40", "23:59:50", "00:00:00", "00:00:10"],
            None,
        ),
        ("2024-02-27", "2024-03-02", ["2024-02-27", "2024-02-28", "2024-02-29", "2024-03-01", "2024-03-02"], "UTC"),
        ("2023-11-15", "2024-06-20", ["2024-01", "2024-03", "2024-05"], "UTC"),
        ("1994-03-01", "2020-01-01", ["2000", "2010", "2020"], "UTC"),
        ("2024-01-02T00:00:00.5", "2024-01-02T00:00:01.5", ["+0.6 s", "+0.8 s", "+1 s", "+1.2 s", "+1.4 s"], None),
    ],
)
def test_time_axes_have_round_times(first: str, last: str, labels: list[str], note: str | None) -> None:
    start, end = (int(np.datetime64(t, "ns").astype(np.int64)) for t in (first, last))
    ticks, found, beside = time_ticks(start, end)
    assert found == labels
    assert all(start <= t <= end for t in ticks)
    assert beside == note or (note is None and beside)


@given(
    first=st.integers(0, 4_000_000_000 * 10**9),
    span=st.integers(0, 62).flatmap(lambda bits: st.integers(0, 2**bits)),
)
@settings(max_examples=50, deadline=None)
def test_every_span_has_a_few_ticks_inside(first: int, span: int) -> None:
    last = min(first + span, 2**63 - 1)
    ticks, labels, _ = time_ticks(first, last)
    assert len(ticks) == len(labels) <= 6
    assert ticks == sorted(set(ticks))
    assert all(first <= t <= last for t in ticks)
    if last - first > 10:
        assert len(ticks) >= 1


def test_a_curve_keeps_both_ends_and_its_size() -> None:
    for n in (1, 2, 399, 400, 401, 12_345):
        rows = thinned(n)
        assert (rows[0], rows[-1]) == (0, n - 1)
        assert rows.size == min(n, MOST_POINTS)
        assert (np.diff(rows) > 0).all()


def test_big_data_make_small_figures() -> None:
    rng = np.random.default_rng(0)
    n = 200_000
    gain, time = rng.normal(size=n), NOW + np.arange(n) * 10**9
    assert len(advantage_figure(gain, time, "flat").svg) < 60_000
    assert len(predictions_figure(gain, gain * 0.5).svg) < 120_000


def test_order_of_rows_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    gain, time, shuffle = rng.integers(-5, 5, 300) / 4, NOW + np.arange(300) * 10**9, rng.permutation(300)
    assert advantage_figure(gain, time, "flat").svg == advantage_figure(gain[shuffle], time[shuffle], "flat").svg


def test_labels_are_shortened() -> None:
    assert short("logistic regression") == "logistic regression"
    assert short("two\n lines") == "two lines"
    assert short("x" * 100) == "x" * 27 + "…"
    with pytest.raises(ValueError, match=r"gain has shape \(2,\) but time \(3,\)"):
        advantage_figure([1.0, 2.0], np.arange(3), "flat")
    with pytest.raises(ValueError, match=r"y has shape \(1,\) but predicted \(2,\)"):
        predictions_figure([1.0], [1.0, 2.0])
