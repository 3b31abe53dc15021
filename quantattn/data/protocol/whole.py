"""Settings that count something."""

from __future__ import annotations

import numpy as np


def require_whole(least: int = 1, **settings: object) -> None:
    """Refuse a setting that is no whole number, or less than `least`.

    Raises:
        ValueError: naming the setting.
    """
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or int(value) < least:
            raise ValueError(f"{name} must be a whole number from {least}, got {value!r}")
