"""A job's work as files that every process on a machine maps, so that more workers take no more memory."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from quantattn.data.filed import Filed, Texts, filed
from quantattn.data.mapped import write_sequences
from quantattn.score.plan import Work

_PREFIX, _HELD = "quantattn-score-", "held"


def share(work: Work, folder: Path) -> Work:
    """The same work, its arrays as files in `folder`; pickled it is their names, and the different texts.

    What lies in files already is left there; of anything else as much is written as it takes in memory.
    """
    numbers = iter(range(1_000_000))

    def file(column: Any) -> Any:
        if isinstance(column, tuple | list | Texts):
            texts = Texts.of(column)
            return Texts(texts.names, file(texts.codes))
        return None if column is None else filed(column, folder / f"column-{next(numbers):03d}.npy")

    mapped: Mapping[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("as_of", "entity", "row", "copies"), file),
        **dict.fromkeys(("described", "events"), lambda columns: {name: file(each) for name, each in columns.items()}),
    }
    changes: dict[str, Any] = {name: make(getattr(work, name)) for name, make in mapped.items()}
    sequences = work.sequences
    if not isinstance(sequences.table.time, Filed):
        sequences = write_sequences(sequences, folder / "sequences")
    return replace(work, sequences=sequences, **changes)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the time of the block, below that of temporary files (TMPDIR).

    Where a process was killed its folder stays; the next one that asks removes it. A folder in use is known by a lock
    that its process holds, which no kill can leave behind.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_HELD}"):
        _remove_unless_held(old)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    with (folder / _HELD).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        print("by a process that runs", file=held, flush=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_unless_held(path: Path) -> None:
    try:
        with path.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_size:  # one of size 0 is being made just now
                shutil.rmtree(path.parent)
    except OSError:
        return  # held, another user's, or gone meanwhile
