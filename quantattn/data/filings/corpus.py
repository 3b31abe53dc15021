"""Tables of filings that were cut into items: EDGAR-CORPUS as Parquet, as JSON lines or as a list in JSON.

Names, filers and years are read first; the text is kept of those filings alone that have a time, so that an index of a
few takes the memory of a few.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from quantattn.data.filings.cut import (
    LINKS,
    METADATA,
    is_cut,
    is_item,
    looks_cut,
    parse_object,
    parse_record,
    read_items,
    read_metadata,
)
from quantattn.data.filings.forms import family
from quantattn.data.filings.parsed import (
    CUT,
    NO_FORM,
    NOT_A_FILING,
    OK,
    OTHER_FORM,
    SIZE_LIMIT,
    UNREADABLE,
    Parsed,
)
from quantattn.data.filings.reading import Reading, ReadingOptions, finish
from quantattn.data.filings.text import TooLarge, decode, read_bytes
from quantattn.data.sources.pieces import read_pieces

PARQUET, LINES, LIST = "Parquet", "JSON lines", "JSON list"
_GZIP = b"\x1f\x8b"
_PACKED = (_GZIP, b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"PK\x03\x04")
_START = 64
_PIECE = 1 << 16
_ROWS = 64
"""Filings of a Parquet file whose text is in memory beside that of those kept."""
_ROW = "row of the table"
_BAD_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)


def holds_many(path: Path) -> str:
    """Which table of filings a file is, by content; "" for any other, and for a JSON object alone."""
    try:
        start = _beginning(path)
        if start.startswith(b"PAR1"):
            return PARQUET
        packed = start.startswith(_PACKED)
        opening = start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if not packed and opening not in (b"{", b"["):
            return ""
        if opening == b"[" or packed:
            first = next((piece.data for piece in read_pieces(path, _PIECE)), b"")
            if first.lstrip()[:1] == b"[":
                return LIST if looks_cut(decode(first[:_PIECE])) else ""
        lines = [decode(line) for line in islice(_lines(path), 2)]
    except (OSError, ValueError, RuntimeError):  # whoever reads it as a filing says what is wrong with it
        return ""
    if len(lines) < 2 and not packed:
        return ""
    return LINES if any(_is_record(line) for line in lines) else ""


def read_corpus(path: Path, name: str, table: str, options: ReadingOptions, max_bytes: int) -> Iterator[Reading]:
    """The filings of a table, in its order; what is no filing is set aside, with its row or line.

    Args:
        path: the file.
        name: its name within the folder.
        table: what `holds_many` says.
        options: forms, index and filers.
        max_bytes: of a list in JSON, unpacked; lines and rows are read one after the other.
    """
    if table == PARQUET:
        yield from _of_parquet(path, name, options)
        return
    numbered = _numbered_lines(path, name) if table == LINES else _numbered_objects(path, name, max_bytes)
    for label, found in numbered:
        if isinstance(found, Parsed):
            yield Reading(label, found, status=found.status, detail=found.detail)
        else:
            yield _reading(found, label, options)


def _reading(values: Mapping[str, Any], label: str, options: ReadingOptions) -> Reading:
    """One record with its text, or set aside."""
    if not is_cut(values):
        return Reading(label, status=NOT_A_FILING, detail="without a filing's name and items")
    read = _dated(values, label, options)
    return _with_items(read, values) if read.status == OK else read


def _dated(values: Mapping[str, Any], label: str, options: ReadingOptions) -> Reading:
    """What a record says beside its items, and its times."""
    try:
        known = read_metadata(values)
        entry = options.index.find(known.accession, known.named or label) if options.index is not None else None
        if entry is not None and entry.form is not None and not values.get("filing_type"):
            known = read_metadata(values, entry.form)
    except ValueError as error:
        return Reading(label, Parsed(kind=CUT), status=UNREADABLE, detail=str(error))
    if known.form is None:
        return Reading(label, known, status=NO_FORM, detail="neither the record nor an index names a form")
    if family(known.form) not in options.forms:
        return Reading(label, known, status=OTHER_FORM, detail=known.form)
    return finish(known, label, options)


def _with_items(read: Reading, values: Mapping[str, Any]) -> Reading:
    try:
        parsed = read_items(values, read.parsed)
    except ValueError as error:
        return Reading(read.file, read.parsed, status=UNREADABLE, detail=str(error))
    return read.of(parsed)


def _of_parquet(path: Path, name: str, options: ReadingOptions) -> Iterator[Reading]:
    try:
        str(path).encode()  # Polars opens no other path
        frame = pl.scan_parquet(path, glob=False)
        names = frame.collect_schema().names()
        if not is_cut(names):
            detail = "Parquet without the columns of a filing's name and items"
            yield Reading(name, status=NOT_A_FILING, detail=detail)
            return
        told = [each for each in (*METADATA, *LINKS) if each in names]
        # Of the items the names alone: they say of which corpus the table is.
        heads = frame.select(told).collect().with_columns(pl.lit(None).alias(each) for each in names if is_item(each))
        reads = [
            _dated(values, f"{name}, row {number}", options)
            for number, values in enumerate(heads.iter_rows(named=True), 1)
        ]  # row 1 is the first, as line 1 is
        kept = [number for number, read in enumerate(reads) if read.status == OK]
        texts = [each for each in names if is_item(each)]
        rows = frame.select(texts).with_row_index(_ROW).filter(pl.col(_ROW).is_in(kept))
        for some in rows.collect_batches(chunk_size=_ROWS, maintain_order=True):
            for values in some.iter_rows(named=True):
                number = values.pop(_ROW)
                reads[number] = _with_items(reads[number], values)
        if not reads:
            reads = [Reading(name, status=NOT_A_FILING, detail="Parquet without rows")]
    except UnicodeEncodeError:
        yield Reading(
            name, status=UNREADABLE, detail="a Parquet file whose path is no UTF-8, so that it has to be renamed"
        )
        return
    except _BAD_PARQUET as error:
        yield Reading(name, status=UNREADABLE, detail=f"damaged Parquet: {str(error).splitlines()[0][:200]}")
        return
    yield from reads


def _numbered_lines(path: Path, name: str) -> Iterator[tuple[str, dict[str, Any] | Parsed]]:
    """The object of every line that is not empty, or what is wrong with it; ends at damage that hides the rest."""
    try:
        for piece in read_pieces(path):
            for number, line in piece.lines():
                if not line.strip():
                    continue
                label = f"{name}, line {number}"
                try:
                    yield label, parse_record(decode(line))
                except ValueError as error:
                    yield label, Parsed(kind=CUT, status=UNREADABLE, detail=str(error))
    except ValueError as error:
        yield name, Parsed(status=UNREADABLE, detail=f"what follows is lost: {error}")


def _numbered_objects(path: Path, name: str, max_bytes: int) -> Iterator[tuple[str, dict[str, Any] | Parsed]]:
    """The objects of a list, or what is wrong with the rest of it."""
    try:
        text = decode(read_bytes(path, max_bytes)).strip()
    except TooLarge as error:
        yield name, Parsed(status=SIZE_LIMIT, detail=f"a list in JSON {error}; JSON lines may be of any length")
        return
    except ValueError as error:
        yield name, Parsed(status=UNREADABLE, detail=str(error))
        return
    at, number = 1, 0
    while True:
        number += 1
        label = f"{name}, object {number}"
        try:
            found, at = parse_object(text, at)
        except ValueError as error:
            yield label, Parsed(kind=CUT, status=UNREADABLE, detail=f"it and what follows are lost: {error}")
            return
        if found is None:
            if number == 1 or text[at:].strip():
                detail = "a list without objects" if number == 1 else f"{len(text) - at:,} characters follow the list"
                yield label, Parsed(status=UNREADABLE, detail=detail)
            return
        yield label, found


def _beginning(path: Path) -> bytes:
    """The first bytes; of gzip, which most filings are packed by, those that are in it."""
    with path.open("rb") as file:
        start = file.read(_START)
        if not start.startswith(_GZIP):
            return start
        file.seek(0)
        try:
            return gzip.GzipFile(fileobj=file).read(_START)
        except (EOFError, zlib.error) as error:
            raise ValueError(str(error)) from None


def _lines(path: Path) -> Iterator[bytes]:
    for piece in read_pieces(path, _PIECE):
        yield from (line for _, line in piece.lines() if line.strip())


def _is_record(line: str) -> bool:
    try:
        return is_cut(json.loads(line))
    except (ValueError, RecursionError, TypeError):
        return False
