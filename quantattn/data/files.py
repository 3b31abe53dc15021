"""How a file of the library's own is written: whole, or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path


def put(path: Path, data: bytes) -> None:
    """Write a file beside its destination, flush it to the disk, and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def clear_left(paths: Iterable[Path]) -> None:
    """Of these, remove what `put` was writing in processes of this machine that are no more."""
    for left in paths:
        host, _, process = left.name.rpartition(".")
        if host.endswith(f".{socket.gethostname()}") and process.isdecimal() and not _alive(int(process)):
            left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
