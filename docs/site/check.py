"""Whether built pages hold together: every link and anchor is there, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

LOADED = {"src": "*", "href": "link", "data": "object", "srcset": "*", "poster": "video", "action": "form"}
"""Attribute → the tag (or any) whose attribute a browser follows by itself, or sends what was typed to."""
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


def problems(folder: Path) -> list[str]:
    """One sentence for each link that leads nowhere and each thing that a page would fetch from a network.

    Raises:
        ValueError: there is no page in the folder.
    """
    pages = {path.resolve(): LexborHTMLParser(path.read_text("utf-8")) for path in sorted(folder.rglob("*.html"))}
    if not pages:
        raise ValueError(f"{folder} holds no page")
    anchors = {path: {node.attributes["id"] or "" for node in page.css("[id]")} for path, page in pages.items()}
    found = [
        f"{path.relative_to(folder.resolve())}: {sentence}"
        for path, page in pages.items()
        for node in page.css("[href], [src], [data], [srcset], [poster], [action]")
        for sentence in _of_node(path, node, anchors)
    ]
    styles = [(path, path.read_text("utf-8")) for path in sorted(folder.resolve().rglob("*.css"))]
    for path, page in pages.items():
        styles += [(path, node.text()) for node in page.css("style")]
        styles += [(path, node.attributes["style"] or "") for node in page.css("[style]")]
    return found + [
        f"{path.relative_to(folder.resolve())}: {said}" for path, text in styles for said in _of_style(text)
    ]


def _of_node(page: Path, node: LexborNode, anchors: dict[Path, set[str]]) -> Iterator[str]:
    for attribute, value in node.attributes.items():
        if value is None or attribute not in LOADED:
            continue
        parts = urlsplit(value)
        if parts.scheme == "data":
            continue
        if parts.scheme or parts.netloc:
            if LOADED[attribute] in ("*", node.tag):
                yield f"<{node.tag} {attribute}> would fetch {value}"
            elif parts.scheme not in ("http", "https", "mailto"):
                yield f"a link goes to {value}"
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not target.is_file():
            yield f"{value} is not there"
        elif parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
            yield f"{value}: the page has no such anchor"


def _of_style(text: str) -> Iterator[str]:
    for url, imported in IN_STYLE.findall(text):
        if urlsplit(url or imported).netloc:
            yield f"a style would fetch {url or imported}"
