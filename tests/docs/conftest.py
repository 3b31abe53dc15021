"""The tools of docs/site, which are scripts, and a browser to look with."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.evaluate.conftest import browser

__all__ = ["browser"]

SITE = Path(__file__).resolve().parents[2] / "docs" / "site"


@pytest.fixture(scope="session")
def check() -> SimpleNamespace:
    """docs/site/check.py."""
    return SimpleNamespace(**runpy.run_path(str(SITE / "check.py")))


@pytest.fixture(scope="session")
def reference() -> SimpleNamespace:
    """docs/site/reference.py."""
    return SimpleNamespace(**runpy.run_path(str(SITE / "reference.py")))


@pytest.fixture(scope="session")
def pictures() -> SimpleNamespace:
    """docs/site/pictures.py."""
    return SimpleNamespace(**runpy.run_path(str(SITE / "pictures.py")))


@pytest.fixture(scope="session")
def links() -> SimpleNamespace:
    """docs/site/links.py."""
    return SimpleNamespace(**runpy.run_path(str(SITE / "links.py")))
