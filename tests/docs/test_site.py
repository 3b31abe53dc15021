"""The whole site as `make docs` builds it: no warning, no broken link, nothing from a network, readable everywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.test_report_browser import CONTRAST

ROOT = Path(__file__).resolve().parents[2]
BUILD = [sys.executable, str(ROOT / "docs" / "site" / "build.py")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    done = subprocess.run([*BUILD, str(folder)], capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no broken links or fetches" in done.stdout
    return folder


@pytest.mark.slow
def test_every_page_is_there(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 50
    assert not [page for page in pages if not (site / page).with_suffix(".html").is_file()]
    text = (site / "reference" / "attention.html").read_text("utf-8")
    assert 'id="quantattn.attention.attention"' in text
    assert "k.T * scale + bias" in text


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize(
    "name", ["index", "tutorial", "mathematics", "log", "reference/attention", "reference/settings"]
)
def test_a_page_fetches_nothing_fits_and_can_be_read(
    browser: Any, site: Path, name: str, width: int, dark: bool
) -> None:
    page = site / f"{name}.html"
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    assert not [url for url in browser.requests() if not url.startswith(("data:", site.as_uri()))]
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("[...document.images].every(image => image.naturalWidth > 0)")
    ratio, where = browser.run(CONTRAST.replace("main *", "article p, article li, article td, article th, article h1"))
    assert ratio >= 4.5, where  # WCAG 2 AA for text


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = subprocess.run([*BUILD, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "holds something that is no site" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"
