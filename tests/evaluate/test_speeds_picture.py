"""The picture of a benchmark: a point and a bar a figure, as high as the figure says; foreign rows are refused."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from quantattn.evaluate.speeds import draw_speeds
from tests.evaluate.conftest import Browser

SVG = "{http://www.w3.org/2000/svg}"
BLUE, ORANGE = "#0072b2", "#d55e00"
"""Of ours, and of the peer flash_cute."""
SPEEDS = {
    ("quantattn", "8192", "forward"): 600.0,
    ("flash_cute", "8192", "forward"): 300.0,
    ("quantattn", "8192", "backward"): 450.0,
    ("flash_cute", "8192", "backward"): 150.0,
    ("quantattn", "128", "forward"): 75.0,  # the peer has no figure there
}


def row(impl: str, n: str, stage: str, tflops: float, **other: object) -> dict[str, object]:
    peak = 65.0 if stage == "forward" else 450.0
    line = {"impl": impl, "D": "64", "N": n, "mask": "full", "pass": stage, "tflops": str(tflops), "peak_mib": peak}
    return line | other


def dense() -> list[dict[str, object]]:
    """Two lengths of one head size and mask: curves."""
    return [row(*key, value) for key, value in SPEEDS.items()]


def single() -> list[dict[str, object]]:
    """Shapes that stand alone: bars."""
    pack = [row(impl, "9000", stage, value, kind="ragged") for (impl, n, stage), value in SPEEDS.items() if n == "8192"]
    return [*pack, row("quantattn", "262144", "forward", 75.0, kind="16 queries, H/Hkv 8")]


def texts(svg: str) -> list[str | None]:
    return [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def bars(svg: str, colour: str) -> list[float]:
    """Heights of the filled rectangles of a colour that are clipped to a panel, in points."""
    heights = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "clip-path" in path.attrib and path.get("style", "").startswith(f"fill: {colour}"):
            y = [float(number) for number in re.findall(r"[ML] \S+ (\S+)", path.get("d", ""))]
            heights.append(max(y) - min(y))
    return heights


def curves(svg: str, colour: str) -> list[list[tuple[float, float]]]:
    """Points of the lines of a colour that are clipped to a panel."""
    found = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "clip-path" in path.attrib and f"stroke: {colour}" in path.get("style", ""):
            found.append([(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path.get("d", ""))])
    return found


def test_every_figure_of_a_shape_alone_has_a_bar_of_its_height() -> None:
    svg = draw_speeds(single())
    forward, few, backward = bars(svg, BLUE)
    peer_forward, peer_backward = bars(svg, ORANGE)
    assert forward / peer_forward == pytest.approx(600 / 300, rel=1e-4)
    assert forward / few == pytest.approx(600 / 75, rel=1e-4)
    assert backward / peer_backward == pytest.approx(450 / 150, rel=1e-4)


def test_every_figure_of_several_lengths_is_a_point_of_its_curve() -> None:
    svg = draw_speeds(dense())
    assert not bars(svg, BLUE)
    # Forward, backward and the memory of the backward.
    forward, backward, memory = curves(svg, BLUE)
    peer_forward, *_ = curves(svg, ORANGE)
    assert [len(curve) for curve in (forward, backward, memory, peer_forward)] == [2, 1, 1, 1]
    (x_short, y_short), (x_long, y_long) = forward
    assert peer_forward[0][0] == pytest.approx(x_long)
    assert x_short < x_long
    # The axis starts at 0: from two points follows the third.
    zero = y_short + (y_short - y_long) * 75 / (600 - 75)
    assert zero - peer_forward[0][1] == pytest.approx((zero - y_long) * 300 / 600, rel=1e-3)


def test_shapes_passes_and_names_are_told_and_the_bytes_repeat() -> None:
    rows = dense() + single()
    svg = draw_speeds(rows)
    for told in ("quantattn", "flash_cute", "D 64, full", "forward, TFLOP/s", "backward, TFLOP/s", "128", "8k"):
        assert told in texts(svg)
    for told in ("backward, peak MiB", "D 64, ragged", "D 64, 256k", "16 queries", "H/Hkv 8", "600", "512"):
        assert told in texts(svg)
    assert svg == draw_speeds(rows)


def test_what_was_not_measured_is_not_drawn() -> None:
    failed = [row("cudnn", n, stage, math.nan, kind="ragged") for n in ("128", "9000") for stage in ("forward",)]
    assert draw_speeds(dense() + single() + failed) == draw_speeds(dense() + single())
    without_memory = draw_speeds([line | {"peak_mib": "nan"} for line in dense()])
    assert "backward, peak MiB" not in texts(without_memory)


def overlaps(browser: Browser, svg: str, folder: Path) -> list[list[str]]:
    """Pairs of texts of a drawing that lie over each other."""
    page = folder / "drawing.html"
    page.write_text(f"<body>{svg[svg.index('<svg') :]}</body>")
    browser.open(page, height=1600)
    script = """(() => {
        const all = [...document.querySelectorAll("text")].map(t => [t.textContent, t.getBoundingClientRect()]);
        const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
        return all.flatMap(([s, a], i) => all.slice(i + 1).filter(([_, b]) => over(a, b)).map(([t, _]) => [s, t]));
    })()"""
    return list(browser.run(script))


def test_no_text_lies_over_another(browser: Browser, tmp_path: Path) -> None:
    names = ("quantattn", "quantattn_unordered", "flash_cute", "flash_cute_deterministic", "cudnn", "sdpa_flash")
    names += ("torch_varlen", "flex", "standard")
    lengths = ("128", "256", "512", "1024", "2048", "8192", "16384")
    rows = [
        row(name, n, stage, 650 - 60 * place, D=d, mask=mask)
        for d in ("64", "128")
        for mask in ("full", "causal")
        for n in lengths
        for place, name in enumerate(names)
        for stage in ("forward", "backward")
    ]
    alone = [("32768", "window 128:128", "dense"), ("32768", "window 128:0", "dense"), ("12596", "causal", "ragged")]
    alone += [("262144", "full", "16 queries, H/Hkv 8"), ("8192", "causal", "H/Hkv 8"), ("8192", "full", "H/Hkv 8")]
    alone += [("12596", "full", "ragged"), ("262144", "full", "16 queries")]
    rows += [
        row(name, n, stage, 650 + 5 * place, mask=mask, kind=kind, D="128" if kind != "dense" else "256")
        for n, mask, kind in alone
        for place, name in enumerate(names)
        for stage in ("forward", "backward")
    ]
    assert overlaps(browser, draw_speeds(rows), tmp_path) == []
    assert overlaps(browser, draw_speeds(single()), tmp_path) == []
    # The check sees one where there is one.
    twice = '<svg><text x="9" y="20">one</text><text x="12" y="22">two</text></svg>'
    assert overlaps(browser, twice, tmp_path) == [["one", "two"]]


@pytest.mark.parametrize(
    "given",
    [
        [],
        [{"impl": "ours", "N": "8"}],
        [{**line, "written_mib": "1"} for line in dense()],
        [{**line, "tflops": "nan"} for line in dense()],
    ],
)
def test_other_rows_are_refused(given: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="expected rows of bench=attention"):
        draw_speeds(given)
