"""Columns that grow block by block, in memory or as files that are mapped, and texts as numbers."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

BLOCK = 2**20
"""Rows that are read or made at once."""
_MAPS: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


class Filed(np.ndarray[Any, np.dtype[Any]]):
    """An array that lies in a file and is mapped; pickled, it is the file's name. What is cut from it is plain."""

    path: str | None = None

    def __array_finalize__(self, given: Any) -> None:
        self.path = None

    def __reduce__(self) -> Any:
        return super().__reduce__() if self.path is None else (opened, (self.path,))


def opened(path: str) -> Filed:
    """The array in a file of numpy's, which changes to it do not reach.

    Raises:
        ValueError: this process does not see the file.
    """
    if not Path(path).is_file():
        raise ValueError(
            f"{path} is not there: the files of a job lie below its TMPDIR, which all its workers have to see"
        )
    array: Filed = mapped(Path(path), "c").view(Filed)
    array.path = path
    return array


def mapped(path: Path, mode: Literal["r", "c"]) -> npt.NDArray[Any]:
    """The array in a file of numpy's; one without elements, which cannot be mapped, is read."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    array: Any = np.load(path, mmap_mode=None if 0 in shape else mode, allow_pickle=False)
    if isinstance(array, np.memmap):
        _MAPS.add(array._mmap)  # type: ignore[attr-defined]
    # Without memmap's own class, whose every slice is slow.
    return np.asarray(array)


def filed(array: Any, path: Path) -> Filed:
    """The array, written to `path` and mapped; itself, where it lies in a file already."""
    if isinstance(array, Filed) and array.path is not None:
        return array
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)
    return opened(str(path))


def release() -> None:
    """Give back the memory in which mapped columns were read; the system reads them again when they are asked for."""
    for each in _MAPS:
        each.madvise(mmap.MADV_DONTNEED)


def blocks(rows: int) -> Iterator[slice]:
    """The rows 0 … rows − 1 in runs of `BLOCK`; of mapped columns no more than was read for one run stays in memory."""
    for begin in range(0, rows, BLOCK):
        yield slice(begin, min(begin + BLOCK, rows))
        release()


class Growing:
    """A column that grows block by block.

    Args:
        dtype: of its values.
        path: of its file; None keeps it in memory.
    """

    def __init__(self, dtype: npt.DTypeLike, path: Path | None) -> None:
        self._dtype, self._path, self._rows = np.dtype(dtype), path, 0
        self._held: list[npt.NDArray[Any]] = []
        self._shape: tuple[int, ...] = ()
        if path is not None:
            path.touch(exist_ok=False)
            self._head(path)

    def add(self, block: Any) -> None:
        """Further rows, (B,) or (B, E).

        Raises:
            OSError: they could not be written; it names the file.
        """
        rows = np.ascontiguousarray(block, self._dtype)
        self._shape = rows.shape[1:]
        self._rows += len(rows)
        if self._path is None:
            self._held.append(rows)
            return
        try:
            with self._path.open("ab") as file:
                file.write(rows.reshape(-1).view(np.uint8).data)
        except OSError as error:  # of a full disk, which does not say where
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def whole(self) -> npt.NDArray[Any]:
        """The column, which grows no more."""
        if self._path is None:
            return np.concatenate(self._held) if self._held else np.empty(0, self._dtype)
        self._head(self._path)
        return opened(str(self._path))

    def _head(self, path: Path) -> None:
        """What a file of numpy's begins with: as long for any number of rows, since numpy leaves room for it."""
        kind = np.lib.format.dtype_to_descr(self._dtype)
        shape = (self._rows, *self._shape)
        with path.open("r+b") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})


class Room:
    """Where columns are kept whose length nobody knows before: in memory, or as files in a folder.

    Args:
        folder: that is there; None is memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder, self._made = folder, 0

    def growing(self, dtype: npt.DTypeLike) -> Growing:
        """A column without rows."""
        self._made += 1
        return Growing(dtype, None if self._folder is None else self._folder / f"grown-{self._made:04d}.npy")

    def column(self, dtype: npt.DTypeLike, parts: Iterable[Any]) -> npt.NDArray[Any]:
        """The column of these blocks, one behind the other."""
        grown = self.growing(dtype)
        for part in parts:
            grown.add(part)
        return grown.whole()

    def constant(self, value: int, rows: int) -> npt.NDArray[Any]:
        """(rows,) int64, the same in all."""
        return self.column(np.int64, (np.full(here.stop - here.start, value) for here in blocks(rows)))


class Texts(Sequence[str | None]):
    """Texts, None among them, of which few are different: each stands once, and every row is a number.

    Args:
        names: the different texts.
        codes: (R,) int32, which of them a row is.
    """

    def __init__(self, names: Sequence[str | None], codes: npt.NDArray[np.int32]) -> None:
        self.names, self.codes = tuple(names), codes

    @staticmethod
    def of(texts: Sequence[str | None]) -> Texts:
        """Any sequence of texts."""
        if isinstance(texts, Texts):
            return texts
        known: dict[str | None, int] = {}
        codes = np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int32, len(texts))
        return Texts(tuple(known), codes)

    def runs(self) -> Iterator[tuple[str | None, int]]:
        """Each text that follows another one, and how many rows it stands for."""

        def of_blocks() -> Iterator[tuple[int, int]]:
            for here in blocks(len(self.codes)):
                codes = self.codes[here]
                begins = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
                yield from zip(codes[begins].tolist(), np.diff(begins, append=len(codes)).tolist(), strict=True)

        for code, parts in groupby(of_blocks(), key=lambda run: run[0]):
            yield self.names[code], sum(length for _, length in parts)

    def __len__(self) -> int:
        return len(self.codes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(self.names[code] for code in self.codes[place].tolist())
        return self.names[int(self.codes[place])]
