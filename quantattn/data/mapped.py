"""Sequence sets as files that are mapped into memory, so that loader processes share one copy and send no arrays."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantattn.batch import PackedBatch
from quantattn.data.pack import Decisions, SequenceSet, TokenTable

FORMAT = 1
_ACCOUNT = "sequences.json"
_CUT = ("start", "stop", "first")
Array = npt.NDArray[np.generic]


class MappedSequences(SequenceSet):
    """A sequence set whose arrays are read-only files; pickled, it is the name of its folder.

    As a dataset of torch, item `indices` is the batch of the sequences of these numbers.
    """

    folder: Path

    def __getitem__(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> PackedBatch:
        return self.pack(indices)

    def __reduce__(self) -> tuple[Callable[[str], MappedSequences], tuple[str]]:
        return open_sequences, (str(self.folder),)


def write_sequences(cut: SequenceSet, folder: str | Path) -> MappedSequences:
    """Write a set into a folder, whole or not at all, in place of what stands there, and open it.

    A field of R tokens takes R · itemsize bytes; nothing is copied in memory.

    Raises:
        ValueError: the folder holds something else.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()) and not (folder / _ACCOUNT).is_file():
        raise ValueError(f"{folder} is not empty and holds no {_ACCOUNT}; name another folder")
    beside = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    parts = {"fields": cut.table.fields, "targets": cut.decisions.targets, "arrays": _own(cut)}
    for part, columns in parts.items():
        for number, column in enumerate(columns.values()):
            np.save(beside / f"{part}-{number:03d}.npy", np.ascontiguousarray(column), allow_pickle=False)
    account = {
        "format": FORMAT,
        "entities": list(cut.table.entities),
        "max_seq_len": cut.max_seq_len,
        "layout": cut.layout,
        "min_context": cut.min_context,
        **{part: list(columns) for part, columns in parts.items()},
    }
    (beside / _ACCOUNT).write_text(json.dumps(account, ensure_ascii=False), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
    return open_sequences(folder)


def open_sequences(folder: str | Path) -> MappedSequences:
    """The set that `write_sequences` wrote; reads nothing but the names of its columns.

    Raises:
        ValueError: the folder holds no such set, or one of another format.
    """
    folder = Path(folder).absolute()
    if not (folder / _ACCOUNT).is_file():
        raise ValueError(f"{folder} holds no {_ACCOUNT}: nothing that `write_sequences` has finished")
    account: Mapping[str, Any] = json.loads((folder / _ACCOUNT).read_text(encoding="utf-8"))
    if account["format"] != FORMAT:
        raise ValueError(f"{folder} has format {account['format']!r}, this version reads format {FORMAT}")
    fields, targets, own = (dict(_columns(folder, account, part)) for part in ("fields", "targets", "arrays"))
    # Built without its __init__, which would cut the table and read every row to check it.
    made = object.__new__(MappedSequences)
    values = {
        "table": _bare(TokenTable, fields=fields, entities=tuple(account["entities"]), **_of(own, "time", "offsets")),
        "decisions": _bare(Decisions, targets=targets, **_of(own, "row")),
        "folder": folder,
        **{name: account[name] for name in ("max_seq_len", "layout", "min_context")},
        **_of(own, *_CUT),
    }
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _own(cut: SequenceSet) -> dict[str, Array]:
    own = {"time": cut.table.time, "offsets": cut.table.offsets, "row": cut.decisions.row}
    return {**own, **{name: getattr(cut, name) for name in _CUT}}


def _columns(folder: Path, account: Mapping[str, Any], part: str) -> Iterator[tuple[str, Array]]:
    for number, name in enumerate(account[part]):
        path = folder / f"{part}-{number:03d}.npy"
        # An array without elements cannot be mapped. `asarray` drops memmap's own class, whose every slice is slow.
        loaded = np.load(path, mmap_mode="r", allow_pickle=False) if _has_rows(path) else np.load(path)
        yield name, np.asarray(loaded)


def _has_rows(path: Path) -> bool:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    return 0 not in shape


def _of(arrays: Mapping[str, Array], *names: str) -> dict[str, Array]:
    return {name: arrays[name] for name in names}


def _bare(cls: type[Any], **values: Any) -> Any:
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
