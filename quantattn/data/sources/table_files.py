"""Files of a table → lazy frames with the columns that are wanted as they stand, and the line that each row came from.

Text is cut into fields here, line by line, so that a row with a field too many or too few is seen and not filled up.
"""

from __future__ import annotations

import atexit
import csv
import lzma
import re
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, cast

import polars as pl

from quantattn.data.sources.pieces import members

LINE, TEXT, FAULT, FILE = "_line", "_text", "_fault", "_file"
"""Columns that a frame has beside those of the table: where a row stands, its text, and what is wrong with its form."""
SEPARATORS = (",", ";", "\t", "|")
_PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".tsv", ".txt", ".asc", ".dat")
_PACKED = (".gz", ".zst", ".xz", ".zip")


@dataclass(frozen=True)
class TextForm:
    """How a text file is written.

    Attributes:
        separator: one character; None takes the one of `,`, `;`, tab and `|` under which the header has all columns.
        quote: the character around fields that hold a separator; doubled inside; None when there is none.
        names: of the columns when the file has no header.
        titles: lines before the header, or before the first row.
    """

    separator: str | None = None
    quote: str | None = '"'
    names: tuple[str, ...] | None = None
    titles: int = 0

    def __post_init__(self) -> None:
        for name, value in (("separator", self.separator), ("quote", self.quote)):
            if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n"):
                raise ValueError(f"{name} must be one ASCII character, got {value!r}")


@dataclass(frozen=True)
class Part:
    """Rows of one file or folder: the wanted columns by name, `LINE`, `TEXT`, `FAULT` (null when well formed)."""

    frame: pl.LazyFrame
    name: str
    blank: pl.LazyFrame | None = None
    """Frame with one row for each line that was empty."""
    unended: bool = False
    """The last line has no end, as in a file that was cut; not looked for in gzip and Zstandard."""


def find_files(path: Path) -> list[Path]:
    """The files of a table: one, those that a pattern names, or all of a folder (Parquet, or else text), sorted.

    Raises:
        ValueError: there is none, or a folder holds both kinds.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".", "_")))
        columns, text = ([file for file in found if _is(file, ends)] for ends in (_PARQUET, _TEXT))
        if columns and text:
            raise ValueError(f"{path} holds both {columns[0].name} and {text[0].name}; name the files of one kind")
        if not columns and not text:
            raise ValueError(f"{path} holds no table; expected {', '.join((*_PARQUET, *_TEXT))}, or a Delta table")
        return columns or text
    found = sorted(path.parent.glob(path.name)) if re.search(r"[*?\[]", path.name) else []
    if not found:
        raise ValueError(f"{path}: there is no such file or folder")
    plain = {file.with_suffix("") if file.suffix.lower() in _PACKED else file: file for file in found}
    if len(plain) < len(found):
        twice = next(file for file in found if file not in plain.values())
        raise ValueError(f"{path} names {twice.name} both plain and compressed; name one of them")
    return found


def is_delta(path: Path) -> bool:
    """Whether a folder is a Delta table."""
    return (path / "_delta_log").is_dir()


def is_parquet(file: Path) -> bool:
    """Whether a file is one of Parquet, by its name."""
    return file.suffix.lower() in _PARQUET


def scan_columns(files: Sequence[Path] | Path, wanted: Sequence[str], name: str) -> Part:
    """Parquet files (hive folders give columns too), or the folder of a Delta table."""
    if isinstance(files, Path):
        frame = pl.scan_delta(str(files))
    else:
        frame = pl.scan_parquet(list(files), hive_partitioning=True, glob=False)
    readable(frame.head(0), Path(name))
    return from_frame(frame, wanted, name)


def from_frame(frame: pl.LazyFrame, wanted: Sequence[str], name: str) -> Part:
    """The wanted columns of a frame in its own order; rows are numbered from 1.

    Raises:
        ValueError: a column is missing, or holds what is no single value.
    """
    schema = frame.collect_schema()
    _require(wanted, list(schema), name)
    for column in wanted:
        if schema[column].is_nested() or schema[column] == pl.Binary:
            raise ValueError(f"{name}: column {column!r} is {schema[column]}; expected text, numbers or times")
    shown = [pl.col(column).cast(pl.String).fill_null("") for column in wanted]
    return Part(
        frame.select(wanted)
        .with_row_index(LINE, offset=1)
        .with_columns(
            pl.col(LINE).cast(pl.Int64),
            pl.concat_str(shown, separator=",").alias(TEXT),
            pl.lit(None, dtype=pl.String).alias(FAULT),
        ),
        name,
    )


def scan_text(file: Path, form: TextForm, wanted: Sequence[str]) -> Part:
    """One text file; every wanted column is a String, "" where the field is empty.

    Raises:
        ValueError: no line at all, a header without the wanted columns, a compressed stream that is damaged.
    """
    plain = _plain(file)
    lines = pl.scan_lines(plain, name=TEXT, row_index_name=LINE, row_index_offset=1, glob=False)
    lines = lines.with_columns(pl.col(LINE).cast(pl.Int64), pl.col(TEXT).str.strip_prefix("\ufeff"))
    if form.titles:
        lines = lines.filter(pl.col(LINE) > form.titles)
    first = readable(lines.head(1), file)[TEXT].to_list()
    if not first:
        raise ValueError(f"{file.name} is empty; expected {'rows' if form.names else 'a header line'}")
    separator, names = _header(file, first[0], form, wanted)
    body = lines if form.names else lines.filter(pl.col(LINE) > form.titles + 1)
    rows = body.filter(pl.col(TEXT).str.len_bytes() > 0)
    quote = form.quote
    if (
        quote is not None
        and not readable(rows.select(pl.col(TEXT).str.contains(quote, literal=True).any()), file)[TEXT][0]
    ):
        quote = None
    rows, fields = _cut(rows, separator, quote)
    count = pl.col("_fields").list.len()
    rows = rows.with_columns(
        pl.when(pl.col(TEXT).str.contains("[\\x00\\r]"))
        .then(pl.lit("a control character in the line"))
        .when(fields.not_())
        .then(pl.lit("a quote that does not close, or stands inside of a field"))
        .when(count != len(names))
        .then(pl.lit(f"another number of fields than {len(names)}"))
        .alias(FAULT)
    )
    columns = [_field(names.index(column), quote).alias(column) for column in wanted]
    blank = body.filter(pl.col(TEXT).str.len_bytes() == 0)
    return Part(rows.select(LINE, TEXT, FAULT, *columns), file.name, blank, _unended(plain))


def readable(frame: pl.LazyFrame, file: Path) -> pl.DataFrame:
    """The frame, computed; what the file's bytes do not allow is said with its name.

    Raises:
        ValueError: bytes that are not UTF-8, with the line; a compressed stream or Parquet file that is damaged.
    """
    try:
        return frame.collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        if ("utf8" in str(error) or "utf-8" in str(error)) and not is_parquet(file):
            raise ValueError(f"{file.name}{_not_utf8(file)} is not UTF-8; convert the file first") from error
        raise ValueError(f"{file.name} cannot be read: {str(error).splitlines()[0][:200]}") from error


def _is(file: Path, ends: tuple[str, ...]) -> bool:
    name = file.name.lower()
    return name.endswith((*ends, *(end + packed for end in ends for packed in _PACKED)))


def _header(file: Path, line: str, form: TextForm, wanted: Sequence[str]) -> tuple[str, list[str]]:
    """Separator and names of the columns."""
    separators = SEPARATORS if form.separator is None else (form.separator,)
    found = {each: _row(file, line, each, form.quote) for each in separators}
    if form.names is not None:
        fitting = [each for each, row in found.items() if len(row) == len(form.names)]
        if not fitting:
            raise ValueError(f"{file.name}: the first line is {line[:200]!r}, expected {len(form.names)} fields")
        _require(wanted, form.names, file.name)
        return fitting[0], list(form.names)
    for separator, row in found.items():
        if set(wanted) <= set(row):
            double = next((name for name in wanted if row.count(name) > 1), None)
            if double is not None:
                raise ValueError(f"{file.name}: the header names {double!r} twice")
            return separator, row
    best = max(found, key=lambda each: len(found[each]))
    _require(wanted, found[best], file.name)
    raise AssertionError("one of the wanted columns is missing")


def _row(file: Path, line: str, separator: str, quote: str | None) -> list[str]:
    if quote is None:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator, quotechar=quote), [])
    except csv.Error as error:
        raise ValueError(f"{file.name}: the first line is {line[:200]!r}, which is no row: {error}") from error


def _require(wanted: Sequence[str], names: Sequence[str], where: str) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(names) or 'none'}")


def _cut(rows: pl.LazyFrame, separator: str, quote: str | None) -> tuple[pl.LazyFrame, pl.Expr]:
    """Adds the list `_fields`, and says whether the whole line is made of them."""
    line = pl.col(TEXT)
    if quote is None:
        return rows.with_columns(_fields=line.str.split(separator)), pl.lit(True)
    s, q = re.escape(separator), re.escape(quote)
    each = f"{s}(?:{q}(?:[^{q}]|{q}{q})*{q}|[^{s}{q}]*)"
    led = pl.concat_str(pl.lit(separator), line)  # a separator before every field, so that an empty first one is found
    return rows.with_columns(_fields=led.str.extract_all(each)), pl.col("_fields").list.join("") == led


def _field(index: int, quote: str | None) -> pl.Expr:
    field = pl.col("_fields").list.get(index, null_on_oob=True)
    if quote is None:
        return field
    return (
        field.str.slice(1)
        .str.strip_prefix(quote)
        .str.strip_suffix(quote)
        .str.replace_all(quote * 2, quote, literal=True)
    )


def _plain(file: Path) -> Path:
    """What Polars can read: the file itself (plain, gzip, Zstandard), or a copy with the compression undone."""
    if file.suffix.lower() not in (".xz", ".zip"):
        return file
    beside = _spool() / f"{len(list(_spool().iterdir()))}-{file.stem}"
    try:
        with _open(file) as packed, beside.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (lzma.LZMAError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from error
    return beside


def _unended(file: Path) -> bool:
    if file.suffix.lower() in _PACKED:
        return False
    with file.open("rb") as content:
        content.seek(-1, 2)
        return content.read() != b"\n"


def _open(file: Path) -> IO[bytes]:
    if file.suffix.lower() == ".xz":
        return cast("IO[bytes]", lzma.open(file))
    archive = zipfile.ZipFile(file)
    names = members(archive)
    if len(names) != 1:
        raise ValueError(f"{file.name} holds {len(names)} files; expected one")
    return archive.open(names[0])


@cache
def _spool() -> Path:
    """A folder for copies, gone when the process ends: a lazy frame may read them until then."""
    folder = tempfile.TemporaryDirectory(prefix="quantattn-table-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _not_utf8(file: Path) -> str:
    """Where the first line stands that is not UTF-8; "" of a compressed file, or where no file is."""
    if file.suffix.lower() in _PACKED or not file.is_file():
        return ""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f":{number}: byte {error.start + 1} of the line"
    return ""
