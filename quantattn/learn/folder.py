"""The run folder: what was asked, where it ran, on what, and what came out."""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from quantattn.learn.secrets import redact_text

_LEFT = re.compile(
    r"\.((config|environment|data|tuning|budget|certificate|metrics)\.(yaml|json|csv)|report\.html|(last|best)\.ckpt|model)"
    r"\.(.+\.)?[0-9]+(\.part|\.partial)?|\.loader[0-9]*\.writing"
)
"""What a run writes its files and its model under until they are whole; nobody else's hidden files."""
LOADER = "loader"
"""Folder of the sequences that processes which make batches share, while a run lasts."""
_PACKAGES = ("torch", "triton", "lightning", "polars", "numpy", "scipy", "hydra-core", "tokenizers", "safetensors")


def environment() -> dict[str, Any]:
    """Versions, machine and source state of this process, as plain values."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu_threads": torch.get_num_threads(),
        "gpu": device,
        "packages": versions,
        "commit": commit(),
        "argv": [redact_text(argument) for argument in sys.argv[1:]],
    }


def commit() -> str:
    """The commit of the checkout that this package lies in, "+changes" when it differs; "unknown" outside of one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return "unknown"

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (head + ("+changes" if changed else "")) or "unknown"


@contextmanager
def made_and_open(folder: Path) -> Iterator[int]:
    """Make `folder` and hold a descriptor of it; what was made and is still empty at the end goes again."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        yield held
    finally:
        os.close(held)
        for path in made:
            if any(path.iterdir()):
                break
            path.rmdir()


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Make `folder`, for this process alone until the end of the block, when it goes again if it is still empty.

    What a run that was killed here left half written, or was sharing with its loader, is removed.

    Raises:
        ValueError: another process holds it.
    """
    with made_and_open(folder) as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder} is in use by a run that has not ended; name another folder") from None
        _clear(folder)
        yield


def _clear(folder: Path) -> None:
    for left in [*folder.glob(".*"), *folder.glob("checkpoints/.*")]:
        if _LEFT.fullmatch(left.name):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    for shared in folder.glob(f"{LOADER}*"):
        if (shared / "sequences.json").is_file():
            shutil.rmtree(shared)


def claim(folder: Path, ckpt_path: str | None) -> Path | None:
    """The checkpoint that a run in `folder` goes on from, if any; nothing is written.

    Raises:
        ValueError: the folder holds another run already, or the checkpoint asked for does not exist.
    """
    from quantattn.learn.fit import resume_point  # and Lightning, which who writes a folder may do without

    standing = resume_point(folder)
    if ckpt_path == "auto":
        return standing
    if standing is not None or (folder / "metrics.csv").exists():
        if ckpt_path is None or Path(ckpt_path).resolve() != (standing or folder).resolve():
            raise ValueError(f"{folder} holds a run already; ckpt_path=auto goes on with it, or name another folder")
        return standing
    if ckpt_path is None:
        return None
    path = Path(ckpt_path)
    if path.is_dir() and (found := resume_point(path)) is not None:
        return found
    if not path.is_file():
        raise ValueError(f"ckpt_path={ckpt_path}: there is no such checkpoint; auto, a .ckpt file or a run folder is")
    return path
