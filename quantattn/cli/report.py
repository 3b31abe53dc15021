"""`quantattn report`: not part of this version."""

from __future__ import annotations

from quantattn.cli.errors import UsageError


def run(arguments: list[str]) -> int:
    """Say that comparing runs is not part of this version."""
    raise UsageError("comparing runs is not part of this version; every run folder holds its own report.html")
