"""The pictures of the mathematics, drawn from the library itself: `python docs/site/pictures.py` writes docs/images.

Plain SVG with a background of its own, so that a light and a dark page show the same. A test draws them again.
"""

from __future__ import annotations

import csv
import math
from itertools import product
from pathlib import Path

import torch

from quantattn import AttentionState, Mask

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "memory-nvidia-h200.csv"
BLUE, ORANGE, PALE, GREY, INK = "#0072b2", "#d55e00", "#9ecae1", "#eeeeee", "#222222"
HEADS, BYTES = 4, 2
"""Of the measured calls: heads, and bytes a bfloat16."""


class Drawing:
    """Shapes in pixels from the top left, and their text."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.shapes: list[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> None:
        """A filled rectangle."""
        place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.shapes.append(f'<rect {place} fill="{fill}" stroke="{stroke}"/>')

    def line(self, points: list[tuple[float, float]], stroke: str, dash: str = "none") -> None:
        """A line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'fill="none" stroke="{stroke}" stroke-width="2" stroke-dasharray="{dash}"'
        self.shapes.append(f'<polyline points="{path}" {style}/>')

    def text(self, x: float, y: float, words: str, anchor: str = "middle", size: int = 13) -> None:
        """Words whose base line is at y."""
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{words}</text>')

    def svg(self) -> str:
        """The whole file."""
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        )
        style = f'role="img" font-family="system-ui, sans-serif" fill="{INK}"'
        body = "\n".join([f"<title>{self.title}</title>", f'<rect width="{width}" height="{height}" fill="#fff"/>'])
        return "\n".join([f"{head} {style}>", body, *self.shapes, "</svg>\n"])


def merge() -> str:
    """Bars of exp(score − reference): all keys at once, two blocks by themselves, the blocks brought together."""
    scores = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64).log()
    values = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    a, b = (AttentionState.of_block(scores[:, part], values[part]) for part in (slice(0, 2), slice(2, 3)))
    together = a.merge(b)
    own = torch.exp(scores[0] - torch.cat([a.m, a.m, b.m]))
    panels = {
        "all at once": torch.exp(scores[0] - scores.max()),
        "each block from its own maximum": own,
        "block A times 2/3": own * torch.exp(torch.cat([a.m, a.m, b.m]) - together.m),
    }
    drawn = Drawing(760, 250, "Exponentials of three scores: at once, in two blocks, and after the first is rescaled")
    for place, (title, heights) in enumerate(panels.items()):
        left = 20 + 250 * place
        drawn.text(left + 110, 24, title, size=14)
        for key, height in enumerate(heights.tolist()):
            x, tall = left + 20 + 65 * key, 150 * height
            drawn.rect(x, 205 - tall, 50, tall, BLUE if key < 2 or place == 0 else ORANGE)
            drawn.text(x + 25, 198 - tall, f"{height:.2f}")
            drawn.text(x + 25, 224, f"key {key + 1}")
        drawn.line([(left + 10, 205), (left + 210, 205)], INK)
    drawn.text(380, 244, f"sum 2, weighted sum 17/3, answer {together.finish().out.item():.4f} = 17/6")
    return drawn.svg()


def tiles(size: int = 24, block: int = 4) -> str:
    """Which blocks of queries × keys are computed whole, computed with a cut, or never touched."""
    masks = {
        "causal": (Mask(causal=True), [(0, size)]),
        "causal, window of 8": (Mask(causal=True, window=(8, 0)), [(0, size)]),
        "two sequences, packed": (Mask(causal=True), [(0, 10), (10, size)]),
    }
    drawn = Drawing(760, 300, "Blocks of queries and keys under three masks: whole, cut and never touched")
    cell, fills = 9, (GREY, PALE, BLUE)
    for place, (title, (mask, sequences)) in enumerate(masks.items()):
        left, top = 20 + 250 * place, 40
        drawn.text(left + cell * size / 2, 26, title, size=14)
        drawn.rect(left, top, cell * size, cell * size, GREY)
        for first, last in sequences:
            kinds = mask.blocks(last - first, last - first, block, block)
            for row, column in product(*map(range, kinds.shape)):
                x, y = first + block * column, first + block * row
                width, height = min(block, last - x), min(block, last - y)
                fill = fills[int(kinds[row, column])]
                drawn.rect(left + cell * x, top + cell * y, cell * width, cell * height, fill, "#fff")
    drawn.text(20 + cell * size / 2, 272, "keys →, queries ↓", size=12)
    for place, (fill, words) in enumerate(((BLUE, "whole"), (PALE, "cut by the mask"), (GREY, "never touched"))):
        drawn.rect(270 + 160 * place, 276, 14, 14, fill)
        drawn.text(292 + 160 * place, 288, words, "start")
    return drawn.svg()


def memory() -> str:
    """Measured peak memory of forward and backward over N, beside what the N × N matrix alone would take."""
    with MEASURED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["impl"] == "quantattn" and row["pass"] == "both"]
    measured = sorted((int(row["N"]), float(row["peak_mib"])) for row in rows)
    matrix = [(n, HEADS * n * n * BYTES / 2**20) for n, _ in measured]
    drawn = Drawing(760, 330, "Peak memory over the length of a sequence, both axes logarithmic")

    def at(n: int, mib: float) -> tuple[float, float]:
        return 80 + 88 * math.log2(n / measured[0][0]), 285 - 15 * math.log2(mib / 8)

    for mib in (8, 64, 512, 4096, 32768, 262144):
        y = at(measured[0][0], mib)[1]
        drawn.line([(80, y), (610, y)], GREY)
        drawn.text(72, y + 4, f"{mib} MiB" if mib < 1024 else f"{mib // 1024} GiB", "end", 12)
    for n, _ in measured:
        drawn.text(at(n, 8)[0], 303, f"{n // 1024}k", size=12)
    drawn.text(345, 324, "tokens")
    for points, colour, words in ((matrix, ORANGE, "one N × N matrix"), (measured, BLUE, "measured, all of it")):
        drawn.line([at(*point) for point in points], colour, "6 4" if points is matrix else "none")
        end = at(*points[-1])
        drawn.text(end[0] + 8, end[1] + 4, words, "start")
    slope = math.log(measured[-1][1] / measured[0][1]) / math.log(measured[-1][0] / measured[0][0])
    drawn.text(80, 20, f"forward and backward, {HEADS} heads of 64, bfloat16: slope {slope:.2f}", "start", 14)
    return drawn.svg()


PICTURES = {"merge.svg": merge, "tiles.svg": tiles, "memory.svg": memory}
"""File in docs/images → what draws it."""

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (ROOT / "docs" / "images" / name).write_text(draw(), "utf-8")
