"""Text and JSON as files that are whole or not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantattn.data.files import put


def write_text(path: Path, text: str) -> None:
    """Put a file that holds `text` in the place of `path`."""
    put(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON; NaN and infinities, which JSON lacks, become null."""
    write_text(path, json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value
