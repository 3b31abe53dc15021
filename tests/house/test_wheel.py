"""The wheel as a stranger gets it: one console command that finds its configuration from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel, installed without its dependencies, which this environment has."""
    home = tmp_path_factory.mktemp("wheel")
    source = home / "source"
    source.mkdir()
    for name in ("quantattn", "conf", "data"):
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = home.glob("*.whl")
    target = home / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return target


def run(installed: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    script = installed / "bin" / "quantattn"
    return subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, cwd=cwd, env=environment, timeout=600
    )


def test_the_wheel_holds_the_package_its_configuration_and_its_examples(installed: Path) -> None:
    (wheel,) = installed.parent.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    missing = [path for path in (ROOT / "conf").rglob("*.yaml") if f"quantattn/{path.relative_to(ROOT)}" not in names]
    assert not missing
    assert "quantattn/worked_examples.json" in names
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert not [name for name in names if name.startswith(("tests/", "conf/", "data/", "benchmarks/"))]
    templates = [p.relative_to(ROOT).as_posix() for p in (ROOT / "quantattn").rglob("*.j2")]
    assert templates
    assert set(templates) <= names


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["validate", "--help"], ["train", "--help"]])
def test_the_command_answers_from_an_unrelated_folder(installed: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = run(installed, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir())


def test_the_configuration_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "train", "--cfg", "job", "model=small", "seed=0")
    assert done.returncode == 0, done.stderr
    assert "size: small" in done.stdout
    done = run(installed, tmp_path, "train", "--info", "searchpath")
    assert str(installed / "quantattn" / "conf") in done.stdout
    assert str(ROOT) not in done.stdout
    assert not list(tmp_path.iterdir())
