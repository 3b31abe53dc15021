"""Bytes → text, and the plain path: white space changes, visible characters do not."""

from __future__ import annotations

import binascii
import gzip
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.text import (
    decode,
    drop_uuencoded,
    is_html,
    is_uuencoded,
    plain_text,
    read_bytes,
    tidy,
    unwrap,
)

PAGE = """
<PAGE>   12

     ACME   INC.
<TABLE>
<CAPTION>
                        1993      1992
<S>                     <C>       <C>
Sales                   $ 10       $ 9
AT&amp;T lines&nbsp;&#151; old             7
</TABLE>



R&D and bonds&notes rose."""


def test_page_of_the_nineties() -> None:
    assert plain_text(PAGE) == (
        "ACME\tINC.\n\n1993\t1992\n\nSales\t$ 10\t$ 9\nAT&T lines — old\t7\n\nR&D and bonds&notes rose."
    )


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cf"), exclude_characters="<&")))
def test_plain_path_keeps_every_visible_character(body: str) -> None:
    assert "".join(plain_text(body).split()) == "".join(body.split())


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_tidy_is_final(text: str) -> None:
    once = tidy(text)
    assert tidy(once) == once
    assert "\n\n\n" not in once
    assert "  " not in once


def test_what_is_html() -> None:
    assert is_html("<HTML><BODY>x")
    assert is_html("x <p>a<p>b<p>c")
    assert not is_html(PAGE)
    assert not is_html("<TYPE>10-K\nprofit < 3 > 2 and a <p> once")


def test_wrapping_lines_go() -> None:
    long = "x" * 200
    assert unwrap(f"\n<XBRL>\n{long}\n</XBRL>\n") == long
    assert unwrap("<PDF>\nshort\n</PDF>") == "short"


def uuencoded(content: bytes, name: str = "a.jpg") -> str:
    lines = [binascii.b2a_uu(content[at : at + 45]).decode() for at in range(0, len(content), 45)]
    return f"begin 644 {name}\n{''.join(lines)}`\nend\n"


@settings(max_examples=25, deadline=None)
@given(st.binary(max_size=300), st.text("abc .\n", max_size=40))
def test_uuencoded_parts_go_and_text_stays(content: bytes, text: str) -> None:
    assert is_uuencoded(uuencoded(content))
    kept, count = drop_uuencoded(f"{text}\n{uuencoded(content, '../../etc/passwd')}{text}")
    assert count == 1
    assert kept.split() == (text + "\n" + text).split()
    assert drop_uuencoded(text) == (text, 0)


def test_encodings() -> None:
    assert decode("café\r\nx".encode()) == "café\nx"
    assert decode("\ufeffcafé".encode()) == "café"
    assert decode(b"caf\xe9 \x93x\x94") == "café “x”"
    assert decode("café".encode("utf-16")) == "café"
    assert decode(b"\x81\xff") == "\x81ÿ"


def test_reading_has_a_limit_and_goes_by_content(tmp_path: Path) -> None:
    packed = tmp_path / "no_suffix"
    packed.write_bytes(gzip.compress(b"x" * 1000))
    assert read_bytes(packed, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="larger than 999 bytes"):
        read_bytes(packed, 999)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(ValueError, match="larger than"):
        read_bytes(bomb, 10**5)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"abc" * 1000)[:30])
    with pytest.raises(ValueError, match="damaged gzip"):
        read_bytes(tmp_path / "cut.gz", 10**6)
    (tmp_path / "plain.gz").write_bytes(b"plain")
    assert read_bytes(tmp_path / "plain.gz", 10) == b"plain"


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 70_000]), st.sampled_from([0, 1, 40_000])), min_size=1, max_size=4))
def test_a_packed_file_is_its_members_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]]
) -> None:
    file, dice = tmp_path_factory.mktemp("packed") / "a.gz", Random(0)
    members = [dice.randbytes(size) for size, _ in sizes]
    packed = b"".join(gzip.compress(each) + bytes(zeros) for each, (_, zeros) in zip(members, sizes, strict=True))
    whole = b"".join(members)
    file.write_bytes(packed)
    assert read_bytes(file, len(whole)) == whole
    end = len(packed) - sizes[-1][1]
    checked = packed[: end - 5] + bytes([packed[end - 5] ^ 1]) + packed[end - 4 :]
    for damaged in (packed + b"x", packed[: end - 1], checked):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged gzip"):
            read_bytes(file, 10**6)
