"""Which format a file is of, why, and what else it could be; and what a folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quantattn.data.recognise.formats import Claim, Format
from quantattn.data.recognise.look import Look
from quantattn.data.recognise.registry import FORMATS
from quantattn.data.sources import SOURCES

MOST_FILES = 5_000
"""Files of a folder that are looked at."""
UNKNOWN = "not known"


@dataclass(frozen=True)
class Recognised:
    """What a file was taken for.

    Attributes:
        look: at the file.
        format: the first that claims it, or None.
        claim: of that format.
        others: titles of the other formats that claim it.
    """

    look: Look
    format: Format | None
    claim: Claim
    others: tuple[str, ...] = ()

    @property
    def read(self) -> bool:
        """Whether a source reads the file as it is."""
        return self.format is not None and bool(self.format.name) and not self.claim.unread

    @property
    def sentence(self) -> str:
        """Why no source reads it; "" where one does."""
        return f"{self.look.path.name}: {self.claim.unread}" if self.claim.unread else ""


def recognise(path: Path, kind: str | None = None) -> Recognised:
    """Look at one file; `kind` names the format to take it for, whatever it looks like."""
    look = Look.at(path)
    if look.fault:
        return Recognised(look, None, Claim("", unread=look.fault))
    claims = [(form, claim) for form in FORMATS if (claim := _claim(form, look)) is not None]
    if kind is not None:
        asked = next(form for form in FORMATS if form.name == kind)
        own = next((claim for form, claim in claims if form is asked), Claim("you said so"))
        return Recognised(look, asked, own, tuple(form.title for form, _ in claims if form is not asked))
    if not claims:
        return Recognised(look, None, Claim("", unread=_unknown(look)))
    (form, claim), *rest = claims
    others = tuple(other.title for other, found in rest if other.name and not found.unread)
    return Recognised(look, form, claim, others)


def recognise_folder(path: Path) -> tuple[list[Recognised], bool]:
    """Look at the files below a folder, hidden ones left out; and whether there are more than were looked at."""
    found: list[Recognised] = []
    for file in _files(path):
        if len(found) == MOST_FILES:
            return found, True
        found.append(recognise(file))
    return found, False


def one_format(found: Sequence[Recognised]) -> Format | None:
    """The format of a folder: the only one of its files, those apart that belong beside it."""
    formats = {each.format.name: each.format for each in found if each.format is not None and each.format.name}
    if len(formats) != 1:
        return None
    only = next(iter(formats.values()))
    strange = [
        each for each in found if each.format is None or (not each.format.name and each.format.title not in only.beside)
    ]
    return None if strange else only


def by_format(found: Sequence[Recognised]) -> Mapping[str, list[Recognised]]:
    """Title of a format → its files; those of none are last, under `UNKNOWN`."""
    groups: dict[str, list[Recognised]] = {title: [] for title in (*(form.title for form in FORMATS), UNKNOWN)}
    for each in found:
        groups[UNKNOWN if each.format is None else each.format.title].append(each)
    return {title: files for title, files in groups.items() if files}


def _claim(form: Format, look: Look) -> Claim | None:
    claim = form.sniff(look)
    if claim is None or not form.name or form.source in SOURCES or claim.unread:
        return claim
    return Claim(claim.why, unread=f"it is {form.title}, for which this version has no source")


def _belongs(found: Recognised, only: Format) -> bool:
    """Whether a file that is no data may lie in a folder of a format."""
    return found.format is not None and not found.format.name and found.format.title in only.beside


def _files(path: Path) -> Iterator[Path]:
    for file in sorted(path.rglob("*")):
        inside = file.relative_to(path).parts
        if file.is_file() and not any(part.startswith(".") for part in inside):
            yield file


def _unknown(look: Look) -> str:
    if look.text is None:
        packed = f", {look.packing} unpacked" if look.packing and look.head else ""
        start = look.head[:8].hex(" ") if look.head else "a zstd stream of no text"
        return f"it is binary of no known format{packed}; it begins with {start}"
    first = look.lines[0] if look.lines else ""
    return f"it is text of no known format; it begins with {first[:60]!r}"
