"""Columns of a table as files that several processes map, and texts as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Filed(np.ndarray[Any, np.dtype[Any]]):
    """An array that lies in a file and is mapped; pickled, it is the file's name. What is cut from it is plain."""

    path: str | None = None

    def __array_finalize__(self, given: Any) -> None:
        self.path = None

    def __reduce__(self) -> Any:
        return super().__reduce__() if self.path is None else (opened, (self.path,))


def opened(path: str) -> Filed:
    """The array in a file of numpy's, which changes to it do not reach."""
    array: Filed = np.load(path, mmap_mode="c", allow_pickle=False).view(Filed)
    array.path = path
    return array


def filed(array: Any, path: Path) -> Filed:
    """The array, written to `path` and mapped."""
    np.save(path, np.ascontiguousarray(array), allow_pickle=False)
    return opened(str(path))


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
        known: dict[str | None, int] = {}
        codes = np.fromiter((known.setdefault(text, len(known)) for text in texts), np.int32, len(texts))
        return Texts(tuple(known), codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return tuple(self.names[code] for code in self.codes[place].tolist())
        return self.names[int(self.codes[place])]
