"""Filings and items to score: one row each, whatever pieces they are read in, and nothing missing without a count."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantattn.data.filings.encode import NO_ITEM, encode_filings, item_texts
from quantattn.data.filings.pieces import cut_documents
from quantattn.data.filings.tokenizer import BEGIN, END, FilingTokenizer
from quantattn.data.sources.source import Source, SourceReport

DAY = 86_400 * 10**9
RISKS = "Item 1A. Risk Factors\nAnvils fall."
FILED = (
    ("0000000001", "10-K", f"Item 1. Business\nWe make anvils.\n{RISKS}\nItem 2. Properties\nNone."),
    ("0000000001", "10-K", f"Item 1. Business\nWe sell anvils in Ohio.\n{RISKS}\nItem 2. Properties\nA shed."),
    ("0000000002", "10-K", "A letter without any heading."),
)


def filings() -> pl.DataFrame:
    rows = [
        (entity, number * DAY, (number + 1) * DAY, number, form, f"A-{number}", text)
        for number, (entity, form, text) in enumerate(FILED)
    ]
    names = ("entity", "event_time", "available_time", "seq", "form", "accession", "text")
    return pl.DataFrame(rows, schema=names, orient="row")


def source() -> Source:
    return Source(filings().lazy(), (), SourceReport(3, {"unreadable": 2}, {"a.txt": "0"}))


@pytest.fixture(scope="module")
def vocabulary() -> str:
    return FilingTokenizer.fit(filings(), fitted_until=10 * DAY, vocabulary_size=300).to_json()


@given(
    lengths=st.lists(st.integers(0, 9), max_size=6),
    size=st.integers(1, 8),
    on_long=st.sampled_from(["window", "keep"]),
)
def test_pieces_joined_are_the_documents(lengths: list[int], size: int, on_long: str) -> None:
    codes = [np.arange(4, 4 + length) for length in lengths]
    pieces = cut_documents(codes, size, on_long)  # type: ignore[arg-type]
    sizes = np.diff(pieces.offsets)
    assert sizes.max(initial=0) <= pieces.max_seq_len
    assert on_long == "keep" or pieces.max_seq_len == size
    for number, each in enumerate(codes):
        own = np.repeat(pieces.of, sizes) == number
        assert pieces.tokens[own].tolist() == [BEGIN, *each, END]


def test_a_filing_is_one_row_in_as_many_pieces_as_it_takes(vocabulary: str) -> None:
    made = encode_filings(source(), vocabulary, max_seq_len=16, on_long="window")
    tokens = made.described["tokens"]
    assert made.entity == tuple(entity for entity, _, _ in FILED)
    assert made.as_of.tolist() == [DAY, 2 * DAY, 3 * DAY]
    assert np.bincount(made.row).tolist() == [-(-int(n) // 16) for n in tokens]
    assert np.bincount(made.row, weights=made.sequences.lengths).tolist() == list(tokens)
    assert made.described["item"] == (None, None, None)
    assert made.notes == ("2 set aside by the source: unreadable",)
    text = FilingTokenizer.from_json(vocabulary).decode(made.sequences.table.fields["token"][: int(tokens[0])])
    assert text == FILED[0][2]


def test_an_item_is_read_by_itself_so_equal_texts_are_equal_tokens(vocabulary: str) -> None:
    made = encode_filings(source(), vocabulary, unit="item", max_seq_len=512)
    assert made.described["item"] == ("1", "1A", "2") * 2
    assert made.described["accession"] == ("A-0",) * 3 + ("A-1",) * 3
    assert made.described["status"] == ("found", "found", "omitted", "found", "found", "found")
    first, second = (made.sequences.pack([row]).fields["token"] for row in (1, 4))
    assert first.tolist() == second.tolist()
    assert f"1 filings: {NO_ITEM}" in made.notes
    assert "2 items: 7 missing" in made.notes


def test_items_by_name(vocabulary: str) -> None:
    table, left_out = item_texts(filings(), ("1A", "7"))
    assert table["text"].to_list() == [RISKS, RISKS]
    assert left_out == {f"filings: {NO_ITEM}": 1, "items: 7 missing": 2}
    whole = encode_filings(source(), vocabulary, items=["1A"])
    assert whole.described["accession"] == ("A-0", "A-1", "A-2")  # the letter, in which nothing is recognised, whole
    with pytest.raises(ValueError, match="none of 3 filings has 5"):
        item_texts(filings(), ("5",))
    with pytest.raises(ValueError, match="unit must be one of filing, item, got 'page'"):
        encode_filings(source(), vocabulary, unit="page")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"document 'A-1 item 1' has \d+ tokens, more than data.max_seq_len = 8"):
        encode_filings(source(), vocabulary, unit="item", max_seq_len=8)
