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
from quantattn.data.carried import TokenVectors
from quantattn.data.filed import mapped
from quantattn.data.pack import Decisions, SequenceSet, TokenTable

FORMAT = 3
_ACCOUNT = "sequences.json"
_CUT = ("start", "stop", "first")
_ROWS = " rows"
Array = npt.NDArray[np.generic]


class MappedSequences(SequenceSet):
    """A sequence set whose arrays are read-only files; pickled, it is the name of its folder.

    As a dataset of torch, item `indices` is the batch of the sequences of these numbers. Fields of one type lie in one
    file, so that a run of tokens is copied from all of them in one go.
    """

    folder: Path
    together: Mapping[tuple[str, ...], Array]

    @property
    def blocks(self) -> Mapping[tuple[str, ...], Array]:
        """Names of fields → those fields as one (F, R) array, for every type one."""
        return self.together

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
    parts = {"targets": cut.decisions.targets, "arrays": _own(cut), "vectors": _vectors(cut)}
    for part, columns in parts.items():
        for number, column in enumerate(columns.values()):
            np.save(beside / f"{part}-{number:03d}.npy", np.ascontiguousarray(column), allow_pickle=False)
    together = _of_one_type(cut.table.fields)
    for number, names in enumerate(together):
        _write_rows(beside / f"blocks-{number:03d}.npy", [cut.table.fields[name] for name in names])
    account = {
        "format": FORMAT,
        "entities": list(cut.table.entities),
        "max_seq_len": cut.max_seq_len,
        "layout": cut.layout,
        "min_context": cut.min_context,
        "fields": list(cut.table.fields),
        "blocks": together,
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
    targets, own, carried = (dict(_columns(folder, account, part)) for part in ("targets", "arrays", "vectors"))
    names = dict.fromkeys(name.removesuffix(_ROWS) for name in carried if name.endswith(_ROWS))
    vectors = {name: _bare(TokenVectors, rows=carried[name + _ROWS], values=carried[name]) for name in names}
    together = {tuple(names): mapped(folder / f"blocks-{i:03d}.npy", "r") for i, names in enumerate(account["blocks"])}
    rows = {name: row for names, block in together.items() for name, row in zip(names, block, strict=True)}
    fields = {name: rows[name] for name in account["fields"]}
    # Built without its __init__, which would cut the table and read every row to check it.
    made = object.__new__(MappedSequences)
    values = {
        "table": _bare(
            TokenTable,
            fields=fields,
            entities=tuple(account["entities"]),
            vectors=vectors,
            **_of(own, "time", "offsets"),
        ),
        "decisions": _bare(Decisions, targets=targets, **_of(own, "row")),
        "folder": folder,
        "together": together,
        **{name: account[name] for name in ("max_seq_len", "layout", "min_context")},
        **_of(own, *_CUT),
    }
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _own(cut: SequenceSet) -> dict[str, Array]:
    own = {"time": cut.table.time, "offsets": cut.table.offsets, "row": cut.decisions.row}
    return {**own, **{name: getattr(cut, name) for name in _CUT}}


def _vectors(cut: SequenceSet) -> dict[str, Array]:
    """Name → the vectors that a few tokens carry, and name with `_ROWS` behind it → their rows."""
    found: dict[str, Array] = {}
    for name, each in cut.table.vectors.items():
        found |= {name: each.values, name + _ROWS: each.rows}
    return found


def _of_one_type(fields: Mapping[str, Array]) -> list[list[str]]:
    """The names of fields, those of one type together."""
    names: dict[np.dtype[Any], list[str]] = {}
    for name, column in fields.items():
        names.setdefault(column.dtype, []).append(name)
    return list(names.values())


def _write_rows(path: Path, columns: Sequence[Array]) -> None:
    """A file of the (F, R) array whose rows these columns are; it never stands in memory."""
    kind = np.lib.format.dtype_to_descr(columns[0].dtype)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": kind, "fortran_order": False, "shape": (len(columns), len(columns[0]))}
        )
        for column in columns:
            np.ascontiguousarray(column).tofile(file)


def _columns(folder: Path, account: Mapping[str, Any], part: str) -> Iterator[tuple[str, Array]]:
    for number, name in enumerate(account[part]):
        yield name, mapped(folder / f"{part}-{number:03d}.npy", "r")


def _of(arrays: Mapping[str, Array], *names: str) -> dict[str, Array]:
    return {name: arrays[name] for name in names}


def _bare(cls: type[Any], **values: Any) -> Any:
    made = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made
