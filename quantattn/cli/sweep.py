"""`quantattn sweep`: not part of this version."""

from __future__ import annotations

from quantattn.cli.errors import UsageError


def run(arguments: list[str]) -> int:
    """Say that sweeps are not part of this version."""
    raise UsageError("sweeps are not part of this version; `quantattn train … -m seed=1,2,3` runs a grid")
