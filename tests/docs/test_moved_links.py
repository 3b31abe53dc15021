"""A link means the same on the site as in a clone, and every page has a place in the index."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("exactness.md", "certificate.md#what", "certificate.md#what"),
        ("sources/table.md", "../transactions.md", "../transactions.md"),
        ("security.md", "../SECURITY.md", "project/security.md"),
        ("security.md", "../README.md#the-tree", "project/readme.md#the-tree"),
        ("survival.md", "../benchmarks/results/kills-cpu.csv", "../benchmarks/results/kills-cpu.csv"),
        ("survival.md", "../pyproject.toml#L3", "../pyproject.toml"),
        ("index.md", "https://example.org/a#b", "https://example.org/a#b"),
        ("index.md", "#where", "#where"),
    ],
)
def test_a_link_leads_where_it_led(links: SimpleNamespace, page: str, link: str, there: str) -> None:
    assert links.moved(f"see [it]({link}).", links.DOCS / page) == f"see [it]({there})."


def test_a_page_shows_a_file_of_the_root_with_its_links(links: SimpleNamespace) -> None:
    shown = links.moved("<!-- file CONTRIBUTING.md -->\n", links.DOCS / "project" / "contributing.md")
    assert shown.startswith("# Contributing")
    assert "[README.md](readme.md#how-to-add)" in shown
    assert "[docs/log.md](../log.md)" in shown
    assert "[LICENSE](../../LICENSE)" in shown


def test_the_index_is_completed(links: SimpleNamespace) -> None:
    index = (links.DOCS / "index.md").read_text("utf-8")
    assert links.REST in index
    assert "attention" not in links.rest(index).split()
    assert "attention" in links.rest(index.replace("\nattention\n", "\n")).split()
