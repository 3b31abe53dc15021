"""What the check of built pages must notice, one fault at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

GOOD = """<!doctype html><html><head><link rel="stylesheet" href="_static/a.css"><style>p { color: red }</style></head>
<body><h1 id="top">A</h1><a href="#top">up</a> <a href="sub/b.html#place">b</a> <a href="https://example.org/">out</a>
<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt=""> <script src="_static/a.js"></script></body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two pages that hold together, with what they load."""
    for name, text in {
        "a.html": GOOD,
        "sub/b.html": '<p id="place"><a href="../a.html#top">a</a></p>',
        "_static/a.css": "body { background: url(a.png) }",
        "_static/a.js": "",
        "_static/a.png": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_pages_that_hold_together_pass(check: SimpleNamespace, site: Path) -> None:
    assert check.problems(site) == []


@pytest.mark.parametrize(
    ("what", "instead", "said"),
    [
        ('href="#top"', 'href="#bottom"', "a.html: #bottom: the page has no such anchor"),
        ("b.html#place", "b.html#nowhere", "a.html: sub/b.html#nowhere: the page has no such anchor"),
        ("sub/b.html#place", "sub/c.html", "a.html: sub/c.html is not there"),
        ("_static/a.js", "_static/b.js", "a.html: _static/b.js is not there"),
        ("_static/a.js", "https://cdn.example/x.js", "a.html: <script src> would fetch https://cdn.example/x.js"),
        ("_static/a.css", "//cdn.example/x.css", "a.html: <link href> would fetch //cdn.example/x.css"),
        ("data:image/gif;base64,R0lGODlhAQABAAAAACw=", "http://x.example/p", "would fetch http://x.example/p"),
        ("color: red", "background: url('https://x.example/f')", "a style would fetch https://x.example/f"),
        ("p { color: red }", '@import "https://x.example/f.css"', "a style would fetch https://x.example/f.css"),
        ("https://example.org/", "javascript:alert(1)", "a link goes to javascript:alert(1)"),
    ],
)
def test_a_fault_is_named(check: SimpleNamespace, site: Path, what: str, instead: str, said: str) -> None:
    page = site / "a.html"
    changed = page.read_text().replace(what, instead)
    page.write_text(changed)
    found = check.problems(site)
    assert len(found) == 1
    assert said in found[0]


def test_a_style_sheet_that_fetches_is_named(check: SimpleNamespace, site: Path) -> None:
    (site / "_static" / "a.css").write_text("@font-face { src: url(https://fonts.example/a.woff2) }")
    assert check.problems(site) == ["_static/a.css: a style would fetch https://fonts.example/a.woff2"]


def test_an_empty_folder_is_no_site(check: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no page"):
        check.problems(tmp_path)
