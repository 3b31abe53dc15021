"""The whole site as `make docs` builds it: no warning, no broken link, nothing from a network, readable everywhere."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.test_report_browser import CONTRAST

ROOT = Path(__file__).resolve().parents[2]
BUILD = [sys.executable, str(ROOT / "docs" / "site" / "build.py")]
SHOWN = ("index", "tutorial", "mathematics", "log", "reference/attention", "project/changelog")


def look(browser: Any, site: Path, name: str, width: int, dark: bool) -> None:
    """A page fetches nothing, fits and can be read."""
    at = f"{name}, {width} pixels, {'dark' if dark else 'light'}"
    browser.open(site / f"{name}.html", width=width, dark=dark)
    assert browser.complaints() == [], at
    assert not [url for url in browser.requests() if not url.startswith(("data:", site.as_uri()))], at
    assert browser.run("document.documentElement.scrollWidth") <= width, at
    assert browser.run("[...document.images].every(image => image.naturalWidth > 0)"), at
    ratio, where = browser.run(CONTRAST.replace("main *", "article p, article li, article td, article th, article h1"))
    assert ratio >= 4.5, f"{at}: {where}"  # WCAG 2 AA for text


@pytest.mark.slow
def test_the_site_builds_without_a_complaint_and_can_be_read(tmp_path: Path, browser: Any) -> None:
    # One test, so that processes that share the tests build it once.
    site = tmp_path / "html"
    done = subprocess.run([*BUILD, str(site)], capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no broken links or fetches" in done.stdout
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    assert not [page for page in pages if not (site / page).with_suffix(".html").is_file()]
    text = (site / "reference" / "attention.html").read_text("utf-8")
    assert 'id="quantattn.attention.attention"' in text
    assert "k.T * scale + bias" in text
    for name, width, dark in product(SHOWN, (390, 1440), (False, True)):
        look(browser, site, name, width, dark)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = subprocess.run([*BUILD, str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "holds something that is no site" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"
