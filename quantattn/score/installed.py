"""What of this installation decides the bits of a score: source files, versions and the processor."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch

_PACKAGE = Path(__file__).parents[1]
DECIDING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "attention": ("attention/**/*.py",),
        "nn": ("nn/**/*.py",),
        "batches": ("batch.py", "data/carried.py", "data/mapped.py", "data/pack.py", "data/plan.py"),
        "score": ("score/*.py",),
    }
)
"""Name → patterns of the files between tokens and a score. What comes before, the tokens, is hashed itself."""

CARRYING = frozenset(
    f"score/{name}.py" for name in ("cluster", "crew", "pipeline", "processes", "run", "share", "sink")
)
"""Files that carry shards about and compute nothing of them."""


@functools.lru_cache  # one job is of one installation, whoever edits it meanwhile
def installed() -> Mapping[str, str]:
    """Name → sha256 of the source files that decide bits, and the versions of what they compute with."""
    found = {f"source of {name}": _sha256(patterns) for name, patterns in DECIDING.items()}
    found["torch"] = str(torch.__version__)
    for package in ("triton", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return MappingProxyType(found)


def processor(device: str) -> str:
    """What computes, as far as it decides bits: the GPU's name, or the CPU's kind and the instructions torch uses."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _sha256(patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for file in sorted({file for pattern in patterns for file in _PACKAGE.glob(pattern)}):
        name, content = file.relative_to(_PACKAGE).as_posix(), file.read_bytes()
        if name not in CARRYING:
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()
