"""The files that a project is judged by before its code: of one version and one licence, and in what is shipped."""

from __future__ import annotations

import re
import tarfile
import tomllib
from importlib.metadata import version
from pathlib import Path

import yaml
from hatchling.builders.sdist import SdistBuilder

import quantattn

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {PROJECT["version"], str(citation["version"]), version("quantattn")} == {quantattn.__version__}
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert released[:1] in ([], [quantattn.__version__])


def test_one_licence_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert PROJECT["license"] == citation["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_the_changelog_has_the_sections_of_its_form_and_a_place_for_what_comes() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
    first = next(line for line in lines if line.startswith("## "))
    assert first == "## Unreleased"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}
    assert {line.removeprefix("### ") for line in lines if line.startswith("### ")} <= kinds


def test_what_is_shipped_as_source_holds_them_and_nothing_that_was_measured_here(tmp_path: Path) -> None:
    (built,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"}
    assert wanted <= names
    assert {"conf/train.yaml", "data/worked_examples.json", "docs/index.md", "tests/conftest.py"} <= names
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if top.startswith(".")} == {".ci", ".gitignore", ".pre-commit-config.yaml"}
    assert not tops & {"runs", "build", "dist", "multirun", "outputs"}
