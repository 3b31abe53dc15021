"""Links between docs/ and the files in the root, which a clone and the site have at different places.

A page of docs/project holds `<!-- file NAME -->` and shows that file of the root. Links keep their meaning: to a file
that has a page they lead to the page, to any other file of the repository to a copy of it. In the index
`<!-- pages without a place -->` becomes the list of all pages that it does not name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FILES = ("readme", "changelog", "contributing", "security")
SHOWN = {ROOT / f"{name.upper()}.md": DOCS / "project" / f"{name}.md" for name in FILES}
"""File of the root → the page that shows it."""
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
REST = "<!-- pages without a place -->"
FILE = re.compile(r"\A<!-- file ([A-Z]+\.md) -->\s*\Z")


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls to take this in."""
    app.connect("source-read", _move)
    return {"parallel_read_safe": True}


def _move(app: Any, name: str, source: list[str]) -> None:
    source[0] = moved(source[0], DOCS / f"{name}.md").replace(REST, rest(source[0]))


def rest(index: str) -> str:
    """Pages of docs/ that the index does not name, a line each."""
    pages = (path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.rglob("*.md")))
    return "\n".join(page for page in pages if page not in {"index", *index.splitlines()})


def moved(text: str, page: Path) -> str:
    """The text of a page of the site: the file that it shows, if it shows one, with links that hold there."""
    shown = FILE.match(text)
    origin = ROOT / shown[1] if shown else page
    if shown:
        text = origin.read_text("utf-8")

    def place(link: re.Match[str]) -> str:
        before, path, anchor, after = link[1], link[2], link[3] or "", link[4]
        target = (origin.parent / path).resolve()
        target = SHOWN.get(target, target)
        if not target.is_relative_to(DOCS):
            anchor = ""  # a copy of a file has no anchors
        return f"{before}{os.path.relpath(target, page.parent)}{anchor}{after}"

    return LINK.sub(place, text)
