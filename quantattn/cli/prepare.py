"""`quantattn prepare`: not part of this version."""

from __future__ import annotations

from quantattn.cli.errors import UsageError


def run(arguments: list[str]) -> int:
    """Say that preparation to shards is not part of this version."""
    raise UsageError("prepared shards are not part of this version; train and score read the raw files themselves")
