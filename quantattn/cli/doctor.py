"""`quantattn doctor PATH`: what a file or a folder of data is, what is in it, what is odd, and how to train on it."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from quantattn.cli.diagnosis.listing import list_folder
from quantattn.cli.diagnosis.reading import Reading, open_reading
from quantattn.cli.diagnosis.suggestion import Suggestion, suggest
from quantattn.cli.diagnosis.telling import Line, lines_of
from quantattn.cli.errors import DONE, FAILED, UsageError
from quantattn.cli.terminal import console
from quantattn.data.examine import MOST_ROWS, Curve, Examination, examine
from quantattn.data.files import put
from quantattn.data.recognise import (
    FORMATS,
    Claim,
    Format,
    bundle,
    one_format,
    recognise,
    recognise_folder,
)
from quantattn.data.sources.source import SourceReport

_WIDTH = 12


def run(arguments: list[str]) -> int:
    """Read PATH with the source that fits it and print its account; 1 when something had to be set aside."""
    given = _parser().parse_args(arguments)
    path: Path = given.path
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder")
    if not path.is_dir() and not path.is_file():
        raise UsageError(f"{path} is neither a file nor a folder")
    _check_outputs(given)
    out = console()
    form, claim, others = None, Claim(""), tuple[str, ...]()
    if path.is_dir():
        form, claim = _of_folder(path, given.kind)
        if form is None:
            return list_folder(out, path, *recognise_folder(path))
    else:
        known = recognise(path, given.kind)
        if not known.read or known.format is None:
            raise ValueError(known.sentence)
        form, claim, others = known.format, known.claim, known.others
    out.print(f"{path}: {form.title} (data={form.name}), because {claim.why}")
    if others:
        out.print(f"  it could also be: {', '.join(others)} (--kind)")
    reading = open_reading(form, path, claim.settings, given.set)
    return _diagnose(out, reading, claim, others, given)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("quantattn doctor", description="Say what data are, and what is odd about them.")
    parser.add_argument("path", type=Path, help="a file, or a folder")
    kinds = sorted({form.name for form in FORMATS if form.name})
    parser.add_argument("--kind", choices=kinds, help="what to take it for; found out by default")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the source, such as date=2010-12-24",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw prices, spread and activity: .svg or .html")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is printed as JSON")
    parser.add_argument(
        "--rows", type=int, default=MOST_ROWS, metavar="N", help=f"most rows in memory at a time ({MOST_ROWS:,})"
    )
    return parser


def _check_outputs(given: argparse.Namespace) -> None:
    if given.rows < 1:
        raise UsageError(f"--rows must be at least 1, got {given.rows}")
    if given.picture is not None and given.picture.suffix.lower() not in (".svg", ".html"):
        raise UsageError(f"--picture {given.picture}: a picture is written as .svg or .html")
    for name in ("picture", "json"):
        file: Path | None = getattr(given, name)
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"--{name} {file}: there is no folder {file.parent}")


def _of_folder(path: Path, kind: str | None) -> tuple[Format | None, Claim]:
    """The format of a folder whose files belong together, and why; None for a folder of several.

    Raises:
        ValueError: there are no files, or none of them is read.
    """
    if kind is not None:
        return next(form for form in FORMATS if form.name == kind), Claim("you said so")
    if (known := bundle(path)) is not None:
        return known
    found, _ = recognise_folder(path)
    if not found:
        raise ValueError(f"{path} holds no files")
    form = one_format(found)
    if form is None:
        return None, Claim("")
    own = [each for each in found if each.format is form]
    unread = [each for each in own if not each.read]
    if len(unread) == len(own):
        raise ValueError(unread[0].sentence)
    first = next(each for each in own if each.read)
    why = f"{len(own):,} of its {len(found):,} files are, such as {first.look.path.name}: {first.claim.why}"
    return form, Claim(why, first.claim.settings)


def _diagnose(out: Console, reading: Reading, claim: Claim, others: Sequence[str], given: argparse.Namespace) -> int:
    form = reading.form
    with tempfile.TemporaryDirectory() as scratch:
        source = reading.read(Path(scratch) / "set_aside")
        found, curve = examine(source, form.zone, form.calendar, given.rows)
        aside = bool(source.report.rows_set_aside)
        advised = suggest(reading, found, aside and reading.refuses())
    lines = lines_of(found, form, source.report)
    tell(out, lines, advised)
    if given.picture is not None:
        _draw(given.picture, reading, found, curve, lines)
    if given.json is not None:
        facts = _facts(reading, claim, others, source.report, found, advised)
        put(given.json, (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())
    return FAILED if aside else DONE


def tell(out: Console, lines: Sequence[Line], advised: Suggestion) -> None:
    """Print the account; lines that call for a look begin with an exclamation mark."""
    last = ""
    for line in lines:
        label = "" if line.label == last else line.label
        out.print(f"{'!' if line.look else ' '} {label:<{_WIDTH}} {line.words}", markup=False)
        last = line.label or last
    for remark in advised.remarks:
        out.print(f"  {'to train':<{_WIDTH}} {remark}", markup=False)
    if advised.command:
        out.print(advised.command, markup=False)


def _facts(
    reading: Reading,
    claim: Claim,
    others: Sequence[str],
    report: SourceReport,
    found: Examination,
    advised: Suggestion,
) -> Mapping[str, Any]:
    return {
        "path": str(reading.path),
        "format": {"name": reading.form.name, "title": reading.form.title, "why": claim.why, "others": list(others)},
        "settings": dict(reading.settings),
        "report": report.as_dict(),
        "found": found.as_dict(),
        "command": advised.command,
        "remarks": list(advised.remarks),
    }


def _draw(file: Path, reading: Reading, found: Examination, curve: Curve | None, lines: Sequence[Line]) -> None:
    if curve is None:
        raise ValueError(f"{reading.path}: there is no row to draw")
    # Whoever wants no picture need not wait for what draws it.
    from quantattn.evaluate.feed import Feed, draw_feed, write_feed

    own = [gap for gap in (*found.gaps, *found.nights) if gap.entity == curve.entity]
    feed = Feed(
        *(curve.entity, curve.time, curve.width, curve.price, curve.low, curve.high, curve.spread, curve.rate),
        gaps=[(gap.start, gap.end) for gap in own],
        halts=[(start, end) for name, start, end in found.halts if name == curve.entity],
    )
    figure = draw_feed(feed, f"{reading.path.name}: {reading.form.title}")
    write_feed(file, figure, [(line.label, line.words) for line in lines])
