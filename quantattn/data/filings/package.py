"""Zips of XBRL, as EDGAR gives them out (ACCESSION-xbrl.zip) → the one document that has text or facts.

Beside it stand a schema and linkbases, which say how facts are named and added up and state none. Names in the archive
are read to be shown and never become paths; sizes that it states are believed by nobody. Runs in the child.
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib

from quantattn.data.filings.instance import is_instance
from quantattn.data.filings.text import TooLarge, decode, is_html

ZIP = b"PK\x03\x04"
MOST_FILES = 1_000
"""Files of an archive; packages have some ten."""
HEAD = 1 << 16
"""Bytes of a file by which it is told."""
_PIECE = 1 << 20
_INLINE = re.compile(r"\bxmlns:ix\s*=|<ix:\w", re.IGNORECASE)
_COVER = re.compile(r"\bdei:DocumentType\b")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of these zipfile unpacks no more than it is asked for; of the others, all that a piece of the archive holds."""
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError)
"""What damage raises, and NotImplementedError: packed in another way; RuntimeError: encrypted."""


def unpack_main(content: bytes, max_bytes: int) -> bytes:
    """The main document of an archive: its page with inline XBRL, else its instance, else the one file that it holds.

    Of several pages it is the one with the filing's cover, else the largest.

    Raises:
        TooLarge: that document has more than `max_bytes`.
        ValueError: no archive that can be read, too many files, none or none of these in it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = main_file(archive)
            pieces, size = [], 0
            with archive.open(found) as file:
                while size <= max_bytes and (piece := file.read(_PIECE)):
                    pieces.append(piece)
                    size += len(piece)
    except NotInIt:
        raise
    except _BROKEN as error:
        reason = "it is encrypted" if "encrypted" in str(error) else str(error)[:120] or type(error).__name__
        raise ValueError(f"a zip that cannot be read: {reason}") from None
    if size > max_bytes:
        raise TooLarge(f"a zip with a document larger than {max_bytes:,} bytes")
    return b"".join(pieces)


class NotInIt(ValueError):
    """An archive that can be read and holds no document of a filing."""


def main_file(archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    """The main document, told by the beginning of each file.

    Raises:
        NotInIt: there is none.
        ValueError, OSError, …: what zipfile raises for damage.
    """
    files = [each for each in archive.infolist() if not each.is_dir()]
    if any(each.compress_type not in _METHODS for each in files):
        raise NotImplementedError("packed in another way than EDGAR packs")
    if not files or len(files) > MOST_FILES:
        raise NotInIt(f"a zip of {len(files):,} files, expected 1 to {MOST_FILES:,}")
    if len(files) == 1:
        return files[0]
    ranked = [(_rank(_beginning(archive, each)), each.file_size, -number) for number, each in enumerate(files)]
    (rank, _, number) = max(ranked)
    if not rank:
        raise NotInIt(
            f"a zip of {len(files)} files, none of which is a page with inline XBRL or an XBRL instance: if "
            "they are filings, unpack them into a folder"
        )
    return files[-number]


def _beginning(archive: zipfile.ZipFile, file: zipfile.ZipInfo) -> str:
    with archive.open(file) as opened:
        return decode(opened.read(HEAD))


def _rank(text: str) -> int:
    if is_html(text) and _INLINE.search(text):
        return 3 if _COVER.search(text) else 2
    return int(is_instance(text))
