"""The picture of the generations: a panel a measured column and mask, and rows that do not belong are refused."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from quantattn.evaluate.generations import PANELS, draw_generations


def rows(masks: tuple[str, ...] = ("full",), **columns: float) -> list[dict[str, object]]:
    return [
        {"impl": name, "N": str(n), "mask": mask, **{column: str(n * (1 + place)) for column in PANELS}, **columns}
        for mask in masks
        for n in (512, 1024, 2048)
        for place, name in enumerate(("standard", "flash1", "flash2"))
    ]


def titles(svg: str) -> list[str]:
    texts = [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    return [text for text in texts if "(" in text]


def test_a_panel_a_column_and_mask() -> None:
    masks = ("full", "causal")
    svg = draw_generations(rows(masks))
    assert titles(svg) == [f"{title} ({mask})" for mask in masks for title in PANELS.values()]


def test_the_same_rows_give_the_same_bytes() -> None:
    assert draw_generations(rows()) == draw_generations(rows())


def test_what_was_not_measured_has_no_panel() -> None:
    found = titles(draw_generations(rows(ms=float("nan"))))
    assert len(found) == 3
    assert not any("ms" in title for title in found)


def test_one_length_and_zeros_are_drawn() -> None:
    assert draw_generations([row | {"written_mib": 0.0} for row in rows() if row["N"] == "512"])


@pytest.mark.parametrize("wrong", [[], [{"impl": "flash1"}]])
def test_other_rows_are_refused(wrong: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="expected rows of bench=generations"):
        draw_generations(wrong)
