"""A run is refused before it trains exactly where its sets or intervals would have no finite width after it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quantattn.batch import IGNORE
from quantattn.evaluate.conformal import conformal_radius
from quantattn.learn.completing import require_rows


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("unknown", [IGNORE, math.nan])
def test_as_many_validation_rows_are_asked_for_as_make_a_radius_finite(level: float, unknown: float) -> None:
    for known in range(1, 24):
        outcome: Any = np.array([1] * known + [unknown] * 5)
        prepared: Any = SimpleNamespace(valid=SimpleNamespace(decisions=SimpleNamespace(targets={"label": outcome})))
        if math.isfinite(conformal_radius(np.zeros(known), level)):
            require_rows(prepared, level)
        else:
            with pytest.raises(ValueError, match=f"conformal={level} needs .* there are {known}$"):
                require_rows(prepared, level)
