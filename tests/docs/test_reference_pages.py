"""The reference is made of what stands in the code: every public name, command and setting is on a page."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}
PACKAGES = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in sorted((ROOT / "quantattn").rglob("__init__.py"))
    if "__all__" in path.read_text("utf-8")
]
PARTS = {"quantattn.data.sources.crypto", "quantattn.data.protocol.labels", "quantattn.data.protocol.splits"}
PARTS |= {"quantattn", "quantattn.cli", "quantattn.nn.heads", "quantattn.nn.objectives"}
"""Packages whose names are on the page of the one that hands them on, or of the commands."""


def test_every_package_with_public_names_is_asked_for() -> None:
    asked = set(re.findall(r"<!-- names of ([\w.]+)(?:: [\w, ]+)? -->", "\n".join(PAGES.values())))
    assert len(PACKAGES) > 10
    assert set(PACKAGES) - PARTS <= asked


def test_names_of_the_package_itself_are_in_its_table() -> None:
    import quantattn

    linked = set(re.findall(r"\{py:obj\}`~[\w.]+\.(\w+)`", PAGES["quantattn"]))
    assert linked == set(quantattn.__all__) - {"__version__"}


@pytest.mark.parametrize("module", ["quantattn.evaluate", "quantattn.attention", "quantattn.data.tokens"])
def test_every_public_name_is_in_the_table_and_has_an_entry(reference: SimpleNamespace, module: str) -> None:
    text = reference.names(module)
    for name in reference.public_names(importlib.import_module(module)):
        assert f":py:obj:`~{module}.{name}`" in text
        assert f":: {module}::{name}\n" in text or f".. py:data:: {module}.{name}\n" in text


def test_a_name_that_is_not_there_is_refused(reference: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match=r"quantattn\.batch has no public name Unpacked"):
        reference.filled("<!-- names of quantattn.batch: PackedBatch, Unpacked -->")


def test_every_command_and_every_setting_is_on_a_page(reference: SimpleNamespace) -> None:
    from quantattn.cli.dispatch import COMMANDS

    commands, settings = reference.commands(), reference.settings()
    assert re.findall(r"^## (\S+)$", commands, re.MULTILINE) == list(COMMANDS)
    files = sorted((ROOT / "conf").glob("*/*.yaml"))
    assert re.findall(r"^`(\S+=\S+)`$", settings, re.MULTILINE) == [f"{f.parent.name}={f.stem}" for f in files]
    assert all(path.read_text("utf-8").rstrip() in settings for path in files)


@pytest.mark.parametrize(
    ("plain", "rst"),
    [
        ("x * y and |x|", r"x \* y and \|x\|"),
        ("`a * b` stays, c * d not", r"`a * b` stays, c \* d not"),
        ("two `Mask`s of cu_", "two `Mask`\\ s of cu\\_"),
        ("As a function:\n\n    a * b\n\nAfter *.", "As a function:\n\n::\n\n    a * b\n\nAfter \\*."),
        ("Args:\n    x: a * b", "Args:\n    x: a \\* b"),
        ("Args:\n    x: one\n\n    y: a * b", "Args:\n    x: one\n\n    y: a \\* b"),
    ],
)
def test_docstrings_are_read_as_they_were_meant(reference: SimpleNamespace, plain: str, rst: str) -> None:
    assert reference.to_rst(plain) == rst


def test_pictures_are_those_that_the_library_draws(pictures: SimpleNamespace) -> None:
    for name, draw in pictures.PICTURES.items():
        assert (ROOT / "docs" / "images" / name).read_text("utf-8") == draw(), f"run docs/site/pictures.py: {name}"
