"""A source in parts that can be read on their own, each with the hash of everything that it depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantattn import __version__
from quantattn.data.shards.layout import FORMAT, digest
from quantattn.data.sources.lobster import scan_lobster
from quantattn.data.sources.lobster_files import find_pairs
from quantattn.data.sources.source import Source, file_sha256, files_sha256

NO_CHANGE = ("path", "set_aside", "store", "workers")
"""Settings of sources that change nothing in a table, or whose change is one of the files."""
Read = Callable[[Mapping[str, Any]], Source]
"""Makes the source, with some of its settings replaced."""


@dataclass(frozen=True)
class Piece:
    """A part of a source.

    Attributes:
        id: 8 hexadecimal digits, a function of the names of its files, so that it stays when their bytes change.
        name: how it is called in sentences.
        key: sha256 over the hashes of its files and the settings.
        read: makes its source.
        entity: the only one in it, where that is known without reading it.
    """

    id: str
    name: str
    key: str
    read: Callable[[], Source]
    entity: str | None = None


def pieces_of(made: Callable[..., Any], settings: Mapping[str, Any], read: Read) -> tuple[Piece, ...]:
    """The parts of the source that `made` makes with these settings.

    A source that `PARTS` does not name is one part, of which a change of any file reads all: what is equal to the
    shards that stand is then left alone. So is a source with `on_bad="quarantine"`, whose report is over all files.

    Args:
        made: the function of the source.
        settings: what it is given; its `path`, if it has one, is a file, a folder or a pattern.
        read: makes the source with some settings replaced.
    """
    version = __version__
    own = {name: value for name, value in settings.items() if name not in NO_CHANGE}
    common = [FORMAT, version, str(getattr(made, "__qualname__", made)), own, _named_files(own)]
    path = settings.get("path")
    parts = PARTS.get(made) if settings.get("on_bad", "refuse") == "refuse" else None
    if path is None or parts is None:
        root = None if path is None else Path(path)
        files = {} if root is None else files_sha256({str(name): file for name, file in _files(root)})
        key = digest([*common, files])
        return (Piece(digest("whole")[:8], str(path or "the source"), key, lambda: read({})),)
    found = []
    for part in parts(Path(path), settings):
        files = files_sha256({str(file.relative_to(_root(Path(path)))): file for file in part.files})

        def read_part(first: Path = part.files[0]) -> Source:
            return read({"path": str(first)})

        key = digest([*common, files])
        found.append(Piece(digest(sorted(files))[:8], part.files[0].name, key, read_part, part.entity))
    return tuple(found)


@dataclass(frozen=True)
class Part:
    """Files that are read together, the first of which names them all, and whose they are where that is known."""

    files: tuple[Path, ...]
    entity: str | None


def _lobster(path: Path, settings: Mapping[str, Any]) -> tuple[Part, ...]:
    pairs, unusable, _ = find_pairs(path, settings.get("entity"), settings.get("date"))
    if unusable:
        raise unusable[0]
    return tuple(Part((pair.message, pair.book), pair.entity) for pair in pairs)


PARTS: Mapping[Callable[..., Any], Callable[[Path, Mapping[str, Any]], tuple[Part, ...]]] = {scan_lobster: _lobster}
"""Function of a source → how its files fall into parts that give the same rows when they are read alone."""


def _files(path: Path) -> Iterator[tuple[Path, Path]]:
    """Name and path of every file below a folder, of a file itself, or of those that a pattern names."""
    if path.is_file():
        yield Path(path.name), path
    elif path.is_dir():
        yield from ((file.relative_to(path), file) for file in sorted(path.rglob("*")) if file.is_file())
    else:
        yield from ((Path(file.name), file) for file in sorted(path.parent.glob(path.name)) if file.is_file())


def _root(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _named_files(settings: Any) -> dict[str, str]:
    """Hashes of the files that settings name, wherever they stand among them."""
    if isinstance(settings, Mapping):
        return {name: found for each in settings.values() for name, found in _named_files(each).items()}
    if isinstance(settings, (list, tuple)):
        return {name: found for each in settings for name, found in _named_files(each).items()}
    if isinstance(settings, str) and 0 < len(settings) < 1024 and "\0" not in settings and Path(settings).is_file():
        return {settings: file_sha256(Path(settings))}
    return {}
