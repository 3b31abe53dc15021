"""Where a command prints."""

from __future__ import annotations

import sys

from rich.console import Console


def console(quiet: bool = False) -> Console:
    """A console on stdout: as wide as the terminal, or wide enough for tables, with whole sentences on one line."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140, quiet=quiet)
