"""Tables of events that the tests of this room write themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from quantattn.data.sources.table import TableSource, scan_table
from quantattn.data.table import Outcomes

DAY = 86_400 * 10**9
COLUMNS = {"kind": "category", "amount": "decimal2"}


def write_events(file: Path, entities: int = 40, seed: int = 0, least: int = 3, most: int = 12) -> None:
    """Events on days 0 … 99: kind a or b or none, amounts with cents or none; half of the entities like kind a."""
    random = np.random.default_rng(seed)
    lines = ["who,day,kind,amount"]
    for entity in range(entities):
        for day in np.sort(random.integers(0, 100, random.integers(least, most + 1))):
            likes = 0.9 if entity % 2 else 0.1
            kind = "" if random.random() < 0.1 else "a" if random.random() < likes else "b"
            amount = "" if random.random() < 0.1 else f"{random.integers(-5000, 5000) / 100:.2f}"
            lines.append(f"e{entity},{day},{kind},{amount}")
    file.write_text("\n".join(lines) + "\n")


def source_of(file: Path, **given: Any) -> TableSource:
    return scan_table(file, **({"id": "who", "time": "day", "time_format": "day", "columns": COLUMNS} | given))


def outcomes(folder: Path, lines: list[str], **given: Any) -> Outcomes:
    """A file of outcomes with the columns who, day, label."""
    file = folder / "outcomes.csv"
    file.write_text("\n".join(["who,day,label", *lines]) + "\n")
    return Outcomes(**({"path": str(file), "id": "who", "label": "label", "time_format": "day"} | given))


def likes(folder: Path, entities: int = 40, **given: Any) -> Outcomes:
    """What each entity likes, on day 50."""
    return outcomes(folder, [f"e{n},50,{'a' if n % 2 else 'b'}" for n in range(entities)], **given)
