"""Made tables of scores: how much of the outcome a score knows is chosen."""

from __future__ import annotations

import numpy as np

from quantattn.evaluate.panel import Panel, as_panel

DAY = 86_400 * 10**9
START = 1_704_067_200 * 10**9  # 2024-01-01


def made(
    seed: int, times: int = 60, entities: int = 20, skill: float = 0.0, horizon: int = 1, scale: float = 0.01
) -> tuple[Panel, np.ndarray]:
    """A full panel of daily rows and its scores; outcomes are sums of `horizon` independent steps."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(times + horizon, entities))
    outcome = np.stack([steps[t + 1 : t + 1 + horizon].sum(axis=0) for t in range(times)]) * scale
    score = skill * outcome / scale + rng.normal(size=outcome.shape)
    at, entity = (grid.ravel() for grid in np.indices(outcome.shape))
    data, order = as_panel(START + at * DAY, [f"E{i:03d}" for i in entity], outcome.ravel(), horizon=horizon)
    return data, score.ravel()[order]
