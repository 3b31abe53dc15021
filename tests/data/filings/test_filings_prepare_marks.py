"""Marks and ready-made tokenizers on the way from filings to sequences, and in what is scored with a saved one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from quantattn.data.filings.encode import encode_filings
from quantattn.data.filings.marks import MARKS
from quantattn.data.filings.prepare import check_filings, prepare_filings
from quantattn.data.filings.tokenizer import RESERVED, FilingTokenizer
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import WalkForward
from quantattn.data.sources.source import Source, SourceReport

DAY = 86_400 * 10**9
TEXT = "ACME\nItem 1. Business\nWe sell anvils.\nItem 1A. Risk Factors\nAnvils fall {n} times.\nItem 2. Properties\nNo."


def source() -> Source:
    times = [(18_000 + n) * DAY for n in range(20)]
    rows = [("0000000001", t, t, n, "10-K", f"0000000001-20-{n:06}", TEXT.format(n=n)) for n, t in enumerate(times)]
    schema = ["entity", "event_time", "available_time", "seq", "form", "accession", "text"]
    return Source(pl.DataFrame(rows, schema=schema, orient="row").lazy(), (), SourceReport(20, files={"made": "up"}))


def prepared(**settings: Any) -> Prepared:
    given = {"split": WalkForward(test=0.2, valid=0.2), "vocabulary_size": 300} | settings
    return prepare_filings(source(), objective="masked", **given)


def read(made: Prepared, part: str) -> list[list[str]]:
    """Names of the marks of each sequence, in order."""
    tokenizer = FilingTokenizer.from_json(made.vocabulary_json)
    first = RESERVED + tokenizer.tokens
    table = getattr(made, part).table
    pieces = np.split(table.fields["token"], table.offsets[1:-1])
    return [[tokenizer.marks[code - first] for code in piece if code >= first] for piece in pieces]


def test_marks_stand_in_what_is_learned_from_and_its_text_is_as_it_was() -> None:
    made, plain = prepared(), prepared(marks=False)
    for part in PARTS:
        assert {tuple(marks) for marks in read(made, part)} == {("outside", "item 1", "item 1A", "item 2")}
        assert {tuple(marks) for marks in read(plain, part)} == {()}
        tokens = [getattr(each, part).table.fields["token"] for each in (made, plain)]
        texts = [FilingTokenizer.from_json(made.vocabulary_json).decode(each) for each in tokens]
        assert texts[0] == texts[1]
    assert made.codes["token"] == plain.codes["token"] + len(MARKS)


def test_of_chosen_items_there_are_their_marks() -> None:
    assert read(prepared(items=["1A"]), "test") == [["item 1A"]] * 4


@pytest.mark.parametrize("settings", [{}, {"unit": "item", "items": ["1A"]}, {"items": ["1A"]}])
def test_what_is_scored_has_the_codes_that_were_learned_from(settings: dict[str, Any]) -> None:
    made = prepared(items=settings.get("items"))
    scored = encode_filings(source(), made.vocabulary_json, **settings)
    last = scored.sequences.table.fields["token"][scored.sequences.table.offsets[-5] :]
    assert last.tolist() == made.test.table.fields["token"].tolist()


def folder_with(tmp_path: Path, content: str) -> Path:
    (tmp_path / "tokenizer.json").write_text(content)
    return tmp_path


def test_a_ready_made_tokenizer_is_used_and_told(tmp_path: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    theirs = Tokenizer(models.BPE(vocab={each: n for n, each in enumerate(alphabet)}, merges=[]))
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    folder = folder_with(tmp_path, theirs.to_str())
    made = prepared(tokenizer_folder=folder)
    assert made.codes == {"token": RESERVED + 256 + len(MARKS)}
    assert any("ready-made" in note for note in made.notes)
    assert json.loads(made.vocabulary_json)["fitted_rows"] == 0
    assert not any("tokenizer" in check for check in str(made.audit).split("\n") if "fitted" in check)
    assert not any("ready-made" in note for note in prepared().notes)


def test_a_folder_without_one_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        check_filings("masked", tokenizer_folder=tmp_path)
    with pytest.raises(ValueError, match="is no tokenizer"):
        check_filings("masked", tokenizer_folder=folder_with(tmp_path, "{}"))
