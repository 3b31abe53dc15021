"""The command line: `quantattn COMMAND …`, the same as `python -m quantattn COMMAND …` and the root scripts."""

from quantattn.cli.dispatch import main

__all__ = ["main"]
