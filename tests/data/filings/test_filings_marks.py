"""Digits are grouped as they are written; marks stand where items, parts and tables begin, and change no text."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from quantattn.data.filings.items import items_of
from quantattn.data.filings.marks import MARKS, OUTSIDE, TABLE, TABLE_END, item_places, place_column, places_of
from quantattn.data.filings.tokenizer import RESERVED, FilingTokenizer

TEXT = """ACME INC.
PART I
Items 1 and 2. Business and Properties
We make anvils in Ohio, in Iowa and in Utah, and we sell them there.
Sales\t2023\t2024
Iron\t1,000\t1,100
Steel\t20\t30
Anvils are heavy, so we sell them near the place where we make them, and there is no other way to sell them at all.
Item 1A. Risk Factors
Anvils fall.
PART II
Item 7. Management's Discussion and Analysis
Sales were 391035 in 2024.
SIGNATURES
Pursuant to the requirements of the Securities Exchange Act of 1934, signed."""


def fitted(texts: list[str], marks: tuple[str, ...] = MARKS) -> FilingTokenizer:
    table = pl.DataFrame({"text": texts, "available_time": list(range(len(texts)))})
    return FilingTokenizer.fit(table, fitted_until=100, vocabulary_size=320, marks=marks)


def pieces_of(tokenizer: FilingTokenizer, text: str) -> list[str]:
    return [tokenizer.decode(np.asarray([code])) for code in tokenizer.encode(text)]


def test_no_token_crosses_a_group_of_three_digits() -> None:
    often = fitted([" ".join(["1234 39 1035 391035"] * 50)] * 3, marks=())  # merges of 1|234 and 39|1035 would pay
    for number in ("1234", "391035", "12345", "7", "1234567890"):
        groups = f"{int(number):,}".split(",")
        ends = {sum(map(len, groups[: n + 1])) for n in range(len(groups))}
        met, at = set(), 0
        for piece in pieces_of(often, number):
            at += len(piece)
            met.add(at)
        assert ends <= met
    assert pieces_of(often, " 391035") == [" 391", "035"]


@settings(max_examples=50, deadline=None)
@given(st.from_regex(r"\A[0-9]{1,40}\Z"))
def test_digits_of_any_length_come_back_in_pieces_of_three_at_most(number: str) -> None:
    tokenizer = fitted(["0123456789" * 20] * 3, marks=())
    pieces = pieces_of(tokenizer, number)
    assert "".join(pieces) == number
    assert max(map(len, pieces)) <= 3


def test_a_million_digits_take_no_long_time() -> None:
    tokenizer = fitted(["12 34"] * 3, marks=())
    began = time.process_time()
    assert len(tokenizer.encode("7" * 1_000_000)) >= 1_000_000 // 3
    assert time.process_time() - began < 20


def test_where_marks_stand() -> None:
    marked = places_of(TEXT, item_places(items_of(TEXT, "10-K")))
    at = TEXT.index
    assert marked == [
        (0, OUTSIDE),
        (at("PART I\n"), "part I"),
        *((at("Items 1 and 2"), f"item {name}") for name in "12"),
        (at("Sales\t"), TABLE),
        (at("Anvils are"), TABLE_END),
        (at("Item 1A"), "item 1A"),
        (at("PART II"), OUTSIDE),
        (at("PART II"), "part II"),
        (at("Item 7"), "item 7"),
        (at("SIGNATURES"), OUTSIDE),
    ]


def test_marks_of_chosen_items_stand_in_the_text_that_is_chosen() -> None:
    items = items_of(TEXT, "10-K")
    chosen = items.select(["2", "7"])
    places = item_places(items, ["2", "7"])
    assert places == [(0, "item 1"), (0, "item 2"), (chosen.index("Item 7"), "item 7")]


def test_a_mark_is_a_code_of_its_own_and_no_text() -> None:
    tokenizer = fitted([TEXT] * 3)
    places = item_places(items_of(TEXT, "10-K"))
    (codes,) = tokenizer.encode_all([TEXT], [places])
    first = RESERVED + tokenizer.tokens
    assert tokenizer.codes == {"token": first + len(MARKS)}
    assert [MARKS[code - first] for code in codes[codes >= first]] == [name for _, name in places_of(TEXT, places)]
    assert tokenizer.decode(codes) == TEXT
    assert tokenizer.encode("item 1A part I table").max() < first  # words are not marks
    for (at, _), end in zip(places_of(TEXT, places), np.flatnonzero(codes >= first), strict=True):
        assert tokenizer.decode(codes[:end]) == TEXT[:at]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["Item 1. Business", "Part I", "a\t1\t2", "b\t(3)", "", "words."]), max_size=12))
def test_marks_change_no_text(lines: list[str]) -> None:
    text = "\n".join(lines)
    tokenizer = fitted([TEXT] * 3)
    (codes,) = tokenizer.encode_all([text], [item_places(items_of(text, "10-K"))])
    assert tokenizer.decode(codes) == text


def test_a_column_of_places_is_that_of_each_filing() -> None:
    table = pl.DataFrame({"form": ["10-K", "10-K"], "text": [TEXT, "nothing"], "event_time": [0, 0]})
    whole, chosen = list(place_column(table)), list(place_column(table, ["7"]))
    assert whole == [item_places(items_of(TEXT, "10-K")), [(0, OUTSIDE)]]
    assert chosen == [[(0, "item 7")], [(0, OUTSIDE)]]  # one in which no item is recognised is read whole


def test_what_was_saved_before_there_were_marks_is_read_as_it_was() -> None:
    text = "Net sales were 391035 in 2024"
    old = Tokenizer(
        models.BPE(vocab={each: n for n, each in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    old.pre_tokenizer, old.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    saved = {"format": "quantattn.filing-bpe", "fitted_rows": 3, "fitted_until": 9, "training_sha256": "ab"}
    tokenizer = FilingTokenizer.from_json(json.dumps(saved | {"bpe": json.loads(old.to_str())}))
    assert (tokenizer.encode(text) - RESERVED).tolist() == old.encode(text).ids
    assert tokenizer.marks == ()
    assert FilingTokenizer.from_json(tokenizer.to_json()).to_json() == tokenizer.to_json()


@pytest.mark.parametrize("marks", ["item 1", [1], {"item 1": 0}])
def test_marks_that_are_no_names_are_refused(marks: object) -> None:
    plain = json.loads(fitted([TEXT] * 3).to_json())
    with pytest.raises(ValueError, match=re.escape("expected marks that are names")):
        FilingTokenizer.from_json(json.dumps(plain | {"marks": marks}))
