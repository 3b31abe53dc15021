"""How a file of the library's own is written: whole, or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, check: Callable[[Path], object] | None = None) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` when the block ends well, after `check` has read it.

    It is written beside its destination, flushed to the disk, and renamed into place, which is flushed too. Where
    anything fails, the old file stands and nothing is left beside it.

    Raises:
        OSError: it could not be written; the error names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(beside)
        beside.replace(path)
        _flush(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if beside.exists():  # a disk that takes no file lets none be removed either
            beside.unlink()


def put(path: Path, data: bytes) -> None:
    """Put a file of these bytes in the place of `path`, see `replacing`."""
    with replacing(path) as file:
        file.write(data)


def _flush(folder: Path) -> None:
    """Have the disk hold the names of a folder: without it a rename may be lost when a machine dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def clear_left(paths: Iterable[Path]) -> None:
    """Of these, remove what `replacing` was writing in processes of this machine that are no more."""
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
