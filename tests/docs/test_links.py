"""Links and paths in every Markdown file of the project lead to files that git has, and to headings that are there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(
    r"(?<![\w./-])(?:docs|notebooks|tests|benchmarks|conf|quantattn)/[\w/.-]*\.(?:md|py|yaml|csv|json|svg|png)\b"
)
if subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=False).returncode:
    pytest.skip(f"{ROOT} is no git checkout, so nobody knows what a clone has", allow_module_level=True)
DIARIES = {"docs/log.md", "CHANGELOG.md"}
"""Pages that may name what is gone."""


@cache
def tracked() -> frozenset[str]:
    """Files that a clone has."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(filter(None, listed.stdout.split("\0")))


def tokens(text: str) -> Iterator[Token]:
    """All tokens of a page, inline ones too."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or ()


@cache
def anchors(path: Path) -> frozenset[str]:
    """Anchors of a page as its host makes them: lower case, marks left out, a number behind what is there already."""
    parsed = MarkdownIt("commonmark").parse(path.read_text("utf-8"))
    found: list[str] = []
    for before, token in pairwise(parsed):
        if before.type == "heading_open":
            title = "".join(child.content for child in token.children or ())
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            found.append(slug if slug not in found else f"{slug}-{found.count(slug)}")
    return frozenset(found)


def broken(page: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for token in tokens(text):
        link = str(token.attrs.get("href") or token.attrs.get("src") or "")
        parts = urlsplit(link)
        if not link or parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_relative_to(ROOT) or not _is_there(target):
            found.append(f"{link} is not a file of the repository")
        elif parts.fragment and target.suffix == ".md" and unquote(parts.fragment) not in anchors(target):
            found.append(f"{link}: there is no such heading")
    return found


def _is_there(target: Path) -> bool:
    name = target.relative_to(ROOT).as_posix()
    return name in tracked() or any(each.startswith(f"{name}/") for each in tracked())


def pages() -> list[str]:
    return sorted(name for name in tracked() if name.endswith(".md") and not name.startswith("docs/project/"))


@pytest.mark.parametrize("name", pages())
def test_links_lead_somewhere(name: str) -> None:
    assert broken(ROOT / name, (ROOT / name).read_text("utf-8")) == []


@pytest.mark.parametrize("name", [name for name in pages() if name not in DIARIES])
def test_paths_in_the_text_are_files(name: str) -> None:
    said = {path for path in PATH.findall((ROOT / name).read_text("utf-8")) if "NAME" not in path}
    assert sorted(path for path in said if path not in tracked() and f"quantattn/{path}" not in tracked()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a](docs/nowhere.md)", "docs/nowhere.md is not a file of the repository"),
        ("[a](docs/exactness.md#no-such)", "docs/exactness.md#no-such: there is no such heading"),
        ("![a](docs/images/no.png)", "docs/images/no.png is not a file of the repository"),
        ("[a](../outside.md)", "../outside.md is not a file of the repository"),
        ("[a](runs/)", "runs/ is not a file of the repository"),
    ],
)
def test_a_broken_link_is_named(text: str, said: str) -> None:
    assert broken(ROOT / "README.md", text) == [said]


def test_good_links_pass() -> None:
    good = "[a](docs/exactness.md#why-it-is-exact) [b](docs/) [c](#the-tree) [d](https://example.org) `[e](no.md)`"
    assert broken(ROOT / "README.md", good) == []
