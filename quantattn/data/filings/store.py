"""What children found in files, kept in a folder: a file whose bytes and whose request are the same is parsed once.

A file of the folder is gzip of the JSON of a `Parsed`; its name is the hash of everything that the parse depends on:
the filing's bytes and name, what was asked, the limits, and the source code of the parser. What a limit or a killed
child broke off is not kept: the next run tries again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from dataclasses import asdict
from functools import cache
from pathlib import Path
from threading import Lock

from quantattn.data.files import clear_left, put
from quantattn.data.filings.parsed import Parsed
from quantattn.data.filings.pool import DIED, MEMORY_LIMIT, TIME_LIMIT, ParsePool

BROKEN_OFF = (TIME_LIMIT, MEMORY_LIMIT, DIED)
"""Reasons that may not be there in the next run."""
_PATTERN = "??/*.json.gz"


class ParsedStore:
    """A folder of parses; may be used from several threads, and by several processes, at once.

    Attributes:
        parsed, standing: files that were parsed, and files whose parse was found.
    """

    def __init__(self, folder: str | Path) -> None:
        """Made when it does not exist."""
        self.folder = Path(folder)
        self.parsed = self.standing = 0
        self._used: set[Path] = set()
        self._lock = Lock()

    def parse(
        self, pool: ParsePool, file: Path, forms: tuple[str, ...], form: str | None, items: bool, facts: bool
    ) -> Parsed:
        """What `pool.parse` says of a file, from the folder where it stands there. Never raises for its content."""
        try:
            path = self._place(file, [list(forms), form, items, facts, asdict(pool.limits)])
        except OSError:  # whoever parses says why it cannot be opened
            return pool.parse(file, forms, form, items, facts)
        found = _read(path)
        standing = found is not None
        if found is None:
            before = _stamp(file)
            found = pool.parse(file, forms, form, items, facts)
            told = f"{found.status}; {found.report_detail}"
            if _stamp(file) == before and not any(reason in told for reason in BROKEN_OFF):
                _write(path, found)
        with self._lock:
            self.parsed, self.standing = self.parsed + (not standing), self.standing + standing
            self._used.add(path)
        return found

    def forget_others(self) -> None:
        """Remove every parse that was not asked for since this object was made, and what dead processes left."""
        clear_left(self.folder.glob("??/.*"))
        for path in self.folder.glob(_PATTERN):
            if path not in self._used:
                path.unlink(missing_ok=True)

    def _place(self, file: Path, asked: list[object]) -> Path:
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        told = json.dumps([_parser(), file.name, content, asked], ensure_ascii=True)
        name = hashlib.sha256(told.encode()).hexdigest()
        return self.folder / name[:2] / f"{name}.json.gz"


@cache
def _parser() -> str:
    """One hash of the source code that parses."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256("".join(f"{file.name}\n{file.read_text('utf-8')}" for file in files).encode()).hexdigest()


def _stamp(file: Path) -> tuple[int, int] | None:
    """Size and time of change; None of a file that is gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _read(path: Path) -> Parsed | None:
    """What stands in a file of the folder; None where there is none, or one that is damaged, which is made again."""
    if not path.is_file():
        return None
    try:
        return Parsed.from_dict(json.loads(gzip.decompress(path.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, found: Parsed) -> None:
    text = json.dumps(found.as_dict(), ensure_ascii=True, separators=(",", ":"))
    put(path, gzip.compress(text.encode(), 1, mtime=0))
