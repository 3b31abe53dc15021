"""A folder of several formats: which files are of which, and what reads each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from quantattn.cli.errors import DONE, FAILED
from quantattn.data.recognise import Recognised, by_format

_SHOWN = 3


def list_folder(out: Console, path: Path, found: Sequence[Recognised], more: bool) -> int:
    """Print the files by format; 1 when there is one that nothing reads and that belongs to nothing."""
    groups = by_format(found)
    several = "of several formats; name one of them, or a folder of one format"
    files_of = f"{len(found):,} file{'s' if len(found) != 1 else ''}"
    out.print(f"{path}: {files_of} {several if len(groups) > 1 else 'and no format that is known'}")
    for title, files in groups.items():
        names = ", ".join(str(each.look.path.relative_to(path)) for each in files[:_SHOWN])
        left = f", … {len(files) - _SHOWN:,} more" if len(files) > _SHOWN else ""
        form = files[0].format
        group = f" (data={form.name})" if form is not None and form.name else ""
        size = sum(each.look.size for each in files)
        out.print(f"  {title}{group}: {len(files):,} files, {size:,} bytes: {names}{left}")
        for each in [each for each in files if not each.read][:_SHOWN]:
            out.print(f"    {each.sentence}")
    if more:
        out.print(f"  there are more files; the first {len(found):,} were looked at")
    return FAILED if any(not each.read and not _companion(each) for each in found) else DONE


def _companion(found: Recognised) -> bool:
    return found.format is not None and not found.format.name
