"""Fixtures that every room of the tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def realdata() -> Path:
    """Folder of real feeds, filings and prices, which is not part of the project."""
    folder = Path(os.environ.get("QUANTATTN_REALDATA", ROOT.parent / "shared" / "realdata"))
    if not folder.is_dir():
        pytest.skip(f"real data is not here (looked for {folder}; set QUANTATTN_REALDATA)")
    return folder
