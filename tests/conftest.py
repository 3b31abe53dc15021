"""Fixtures that every room of the tests may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

# Without a GPU the kernels run in Triton's interpreter, which must be chosen before anybody imports triton.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """However many rows of events came before, a test meets compiled loops where it says so."""
    from quantattn.data import compiled

    compiled.FROM_ROWS = 2**62


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`pytest -m gpu` is the whole GPU suite: also what asks for a `device` and runs elsewhere without one."""
    if config.option.markexpr == "gpu":
        for item in items:
            if "device" in getattr(item, "fixturenames", ()):
                item.add_marker("gpu")


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels run: the GPU if there is one, else the interpreter on the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def realdata() -> Path:
    """Folder of real feeds, filings and prices, which is not part of the project."""
    folder = Path(os.environ.get("QUANTATTN_REALDATA", ROOT.parent / "shared" / "realdata"))
    if not folder.is_dir():
        pytest.skip(f"real data is not here (looked for {folder}; set QUANTATTN_REALDATA)")
    return folder
