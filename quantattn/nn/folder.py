"""A folder of files with a manifest of their hashes: written whole or not at all, read without trust.

Nothing here knows what the files mean. Reading one runs no code from it and follows no name from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 1
"""Version of the folder's layout; a reader knows exactly one."""

_LARGEST_MANIFEST = 1 << 16
_MOST_CONTAINERS = 1 << 20
_LONGEST = 400


def write_folder(folder: Path, files: Mapping[str, bytes], library: str, check: Callable[[Path], object]) -> None:
    """Put exactly these files and their manifest at `folder`, in place of the folder of the same kind that is there.

    Everything is written to a folder beside it, flushed to the disk, read back and given to `check`, which raises when
    it cannot use it; only then does the new folder take the name. The old one stands aside as `<name>.previous` for
    that moment and is deleted after.

    Raises:
        ValueError: `folder`, or what has the name of the one that stands aside, is something else than such a folder.
        OSError: a file did not come back from the disk as it was written.
    """
    for place in (folder, _aside(folder)):
        _refuse_foreign(place, set(files) | {MANIFEST})
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        for name, content in files.items():
            _write(staging / name, content)
        entries = {name: {"sha256": _sha(content), "bytes": len(content)} for name, content in files.items()}
        manifest = {"format": FORMAT, "library": library, "files": entries}
        _write(staging / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        _sync(staging)
        check(staging)
        _swap(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def read_folder(folder: Path, largest: Mapping[str, int]) -> tuple[dict[str, bytes], str, str]:
    """Read a folder that holds exactly the named files and a manifest, every byte verified against it.

    Args:
        folder: where it stands.
        largest: file name → most bytes that will be read.

    Returns:
        name → content, the version of the library that wrote it, SHA-256 of the manifest.

    Raises:
        ValueError: one sentence on whatever is not as it must be: another file, a missing one, one that is no regular
            file or is too large, a manifest of another format or with other names, a hash that differs.
    """
    if not folder.is_dir():
        aside = _aside(folder)
        hint = f"; a save was interrupted and left the previous one at {aside}" if aside.is_dir() else ""
        raise ValueError(f"there is no model folder at {folder}{hint}")
    names = sorted(entry.name for entry in os.scandir(folder))
    if names != sorted([*largest, MANIFEST]):
        if (folder / "model" / MANIFEST).is_file():
            raise ValueError(f"{folder} is the folder of a run; its model is {folder / 'model'}")
        wanted = ", ".join(sorted([*largest, MANIFEST]))
        raise ValueError(f"model folder {folder} must hold {wanted}, it has {told(str(names))}")
    raw = read_file(folder / MANIFEST, _LARGEST_MANIFEST)
    library, entries = _manifest(folder / MANIFEST, raw, set(largest))
    contents = {}
    for name, limit in largest.items():
        content = read_file(folder / name, limit)
        if _sha(content) != entries[name]["sha256"] or len(content) != entries[name]["bytes"]:
            raise ValueError(f"{folder / name} is not the file that its manifest describes: its hash differs")
        contents[name] = content
    return contents, library, _sha(raw)


def read_file(path: Path, limit: int) -> bytes:
    """The content of a regular file that nobody vouches for; no link is followed and no pipe or device waited for.

    Raises:
        ValueError: it is no regular file, or has more bytes than `limit` or than this machine has of memory.
        OSError: it is not there or cannot be read.
    """
    kind = os.lstat(path).st_mode
    if not stat.S_ISREG(kind):
        raise ValueError(f"{path} must be a regular file" + (", it is a link" if stat.S_ISLNK(kind) else ""))
    # A link or a pipe that takes its place in this moment is neither followed nor waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} must be a regular file")
        if status.st_size > limit:
            raise ValueError(f"{path} has {status.st_size} bytes, more than the {limit} that are read")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if status.st_size > memory:  # it may have no blocks on the disk
            raise ValueError(f"{path} has {status.st_size:,} bytes, this machine has {memory:,} of memory")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def parse_json(where: Path, raw: bytes) -> Any:
    """Strict JSON: UTF-8, no key twice, no nesting that exhausts the stack, numbers that are finite and fit 64 bits.

    Lists and objects take thirty times the memory of their brackets, so there may be 2^20 of them.

    Raises:
        ValueError: naming the file and what was found.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError(f"a key stands twice among {[name for name, _ in pairs][:8]}")
        return found

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def integer(digits: str) -> int:
        if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 63:
            raise ValueError(f"{digits:.20} is beyond 64 bits")
        return int(digits)

    def real(digits: str) -> float:
        number = float(digits)
        return number if abs(number) <= sys.float_info.max else refuse(digits[:20])

    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets > _MOST_CONTAINERS:
        raise ValueError(
            f"{where} has {brackets:,} lists and objects, more than the {_MOST_CONTAINERS:,} that are read"
        )
    try:
        found = json.loads(
            raw.decode(), object_pairs_hook=unique, parse_int=integer, parse_float=real, parse_constant=refuse
        )
        if b"\\ud" in raw.lower():  # half a pair of surrogates is no text: it could be neither printed nor written
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {told(error)}") from error


def told(words: object) -> str:
    """Words out of a file that nobody vouches for, as a part of a sentence: printable, on one line, and not long."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(words)[: 2 * _LONGEST])
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} …"


def _manifest(where: Path, raw: bytes, names: set[str]) -> tuple[str, dict[str, Any]]:
    manifest = parse_json(where, raw)
    if not isinstance(manifest, dict) or set(manifest) != {"format", "library", "files"}:
        raise ValueError(f"{where} must be an object with the keys format, library and files")
    library, entries = manifest["library"], manifest["files"]
    if not isinstance(library, str):
        raise ValueError(f"{where} must name the library's version, got {told(repr(library)[:40])}")
    if manifest["format"] != FORMAT or isinstance(manifest["format"], bool):
        raise ValueError(
            f"{where} is of format {manifest['format']!r:.20} (library {told(library[:20])}), this one reads {FORMAT}"
        )
    if not isinstance(entries, dict) or set(entries) != names:
        raise ValueError(f"{where} must list exactly {', '.join(sorted(names))}")
    for name, entry in entries.items():
        if not isinstance(entry, dict) or set(entry) != {"sha256", "bytes"}:
            raise ValueError(f"{where} must give sha256 and bytes of {name}")
    return library, entries


def _write(path: Path, content: bytes) -> None:
    try:
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    if path.read_bytes() != content:
        raise OSError(f"{path} does not hold what was written to it")


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.previous")


def _swap(new: Path, folder: Path) -> None:
    aside = _aside(folder)
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    new.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _refuse_foreign(folder: Path, names: set[str]) -> None:
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; a model is saved as one")
    found = sorted(entry.name for entry in os.scandir(folder))
    # Other libraries have files of the same names; the manifest is what makes a folder one of ours.
    foreign = [name for name in found if name not in names or MANIFEST not in found]
    if foreign:
        raise ValueError(f"{folder} holds {', '.join(foreign[:4])}, which is no part of a model: save elsewhere")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
