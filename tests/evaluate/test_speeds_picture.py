"""The picture of a benchmark: a bar a figure, as high as the figure says, and rows that do not belong are refused."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from quantattn.evaluate.speeds import draw_speeds

SVG = "{http://www.w3.org/2000/svg}"
TFLOPS = {
    ("ours", "8192", "forward"): 600.0,
    ("peer", "8192", "forward"): 300.0,
    ("ours", "8192", "backward"): 450.0,
    ("peer", "8192", "backward"): 150.0,
    ("ours", "100", "forward"): 75.0,  # the peer has no figure there
}


def rows() -> list[dict[str, object]]:
    return [
        {"impl": impl, "D": "64", "N": n, "mask": "full", "pass": stage, "tflops": str(value)}
        for (impl, n, stage), value in TFLOPS.items()
    ]


def bars(svg: str) -> list[float]:
    """Heights of the filled rectangles that are clipped to a panel, in points."""
    heights = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "clip-path" in path.attrib and path.get("style", "").startswith("fill: #"):
            y = [float(number) for number in re.findall(r"[ML] \S+ (\S+)", path.get("d", ""))]
            heights.append(max(y) - min(y))
    return heights


def test_every_figure_has_a_bar_of_its_height() -> None:
    heights = bars(draw_speeds(rows()))
    assert len(heights) == len(TFLOPS)
    forward, backward = heights[:3], heights[3:]  # ours at both lengths, then the peer
    assert forward[0] / forward[2] == pytest.approx(600 / 300, rel=1e-4)
    assert forward[0] / forward[1] == pytest.approx(600 / 75, rel=1e-4)
    assert backward[0] / backward[1] == pytest.approx(450 / 150, rel=1e-4)


def test_shapes_passes_and_names_are_told_and_the_bytes_repeat() -> None:
    svg = draw_speeds(rows())
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    for told in ("ours", "peer", "forward, TFLOP/s", "backward, TFLOP/s", "D 64", "8k full", "100 full", "600"):
        assert told in texts
    assert svg == draw_speeds(rows())


@pytest.mark.parametrize("given", [[], [{"impl": "ours", "N": "8"}], [{**row, "written_mib": "1"} for row in rows()]])
def test_other_rows_are_refused(given: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="expected rows of bench=attention"):
        draw_speeds(given)
