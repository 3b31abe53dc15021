"""What is read of every file of a folder: rows, rows set aside and why, or the sentence that refuses it.

    python benchmarks/read_samples.py DIR [--settings benchmarks/read_samples.yaml]

Every file is read as the doctor reads it, bad rows set aside. The yaml has, for the end of a path, what only its user
can know, as `doctor --set` takes it. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from quantattn.cli.diagnosis.reading import open_reading
from quantattn.cli.errors import UsageError
from quantattn.data.recognise import recognise


def read(path: Path, said: Sequence[str]) -> tuple[str, str, str, str]:
    """Source, rows read, rows set aside, and why, or why there is none."""
    found = recognise(path)
    if not found.read or found.format is None:
        return "–", "–", "–", found.sentence
    source = found.format.source
    with tempfile.TemporaryDirectory() as scratch:
        try:
            told = open_reading(found.format, path, found.claim.settings, said)
            report = told.read(Path(scratch) / "aside.csv").report
        except (ValueError, RuntimeError, UsageError) as error:
            return source, "refused", "–", str(error)
    aside = report.rows_set_aside
    why = "; ".join(f"{rows:,} {reason}" for reason, rows in aside.items())
    return source, f"{report.rows_read:,}", f"{sum(aside.values()):,}", why


def main() -> None:
    """See the top of the file."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--settings", type=Path, help="yaml: end of a path → list of NAME=VALUE")
    given = asked.parse_args()
    settings = OmegaConf.to_container(OmegaConf.load(given.settings)) if given.settings else {}
    assert isinstance(settings, dict)
    print("| source | file | rows read | set aside | why |\n| --- | --- | --- | --- | --- |")
    for path in sorted(each for each in given.folder.rglob("*") if each.is_file()):
        said = [one for end, more in settings.items() if path.match(str(end)) for one in more]
        source, rows, aside, why = read(path, said)
        print(f"| {source} | {path.relative_to(given.folder)} | {rows} | {aside} | {why} |", flush=True)


if __name__ == "__main__":
    main()
