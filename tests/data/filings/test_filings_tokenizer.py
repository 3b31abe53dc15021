"""Byte-level BPE: exact round trip, fitted on the past alone, the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.tokenizer import RESERVED, FilingTokenizer

TEXTS = ["Net sales rose 10% to $391,035 million.\nCost of sales\t210,352", "Net sales fell. Risk factors: none."] * 4
HOURS = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
"""A normalizer that tries 2^n ways to read n letters."""


def table(texts: list[str], times: list[int] | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "accession": [f"a{n}" for n in range(len(texts))],
            "text": texts,
            "available_time": times or list(range(len(texts))),
        }
    )


@pytest.fixture(scope="module")
def tokenizer() -> FilingTokenizer:
    return FilingTokenizer.fit(table(TEXTS), fitted_until=100, vocabulary_size=300)


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_round_trip(tokenizer: FilingTokenizer, text: str) -> None:
    codes = tokenizer.encode(text)
    assert tokenizer.decode(codes) == text
    assert codes.dtype == np.int64
    assert ((codes >= RESERVED) & (codes < tokenizer.codes["token"])).all()


@pytest.mark.parametrize("text", ["<mask>", "[MASK]", "<s></s><pad><unk>", "<|endoftext|>", "\x00\x01", "Ġ"])
def test_no_text_is_a_kept_code(tokenizer: FilingTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text).min() >= RESERVED


def test_kept_codes_have_no_text(tokenizer: FilingTokenizer) -> None:
    codes = np.concatenate([[0, 1, 2], tokenizer.encode("x y"), [3]])
    assert tokenizer.decode(codes) == "x y"


def test_json_round_trip(tokenizer: FilingTokenizer) -> None:
    again = FilingTokenizer.from_json(tokenizer.to_json())
    assert again.to_json() == tokenizer.to_json()
    assert (again.fitted_rows, again.fitted_until) == (len(TEXTS), 100)
    for text in TEXTS:
        assert (again.encode(text) == tokenizer.encode(text)).all()
    with pytest.raises(ValueError, match="not a filing tokenizer"):
        FilingTokenizer.from_json("{}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.pop("bpe"), "it lacks 'bpe'"),
        (lambda p: p.update(bpe=[]), "list indices must be"),
        (lambda p: p["bpe"].pop("model"), "it lacks 'model'"),
        (lambda p: p["bpe"].update(model={"type": "WordPiece"}), "a model of type 'WordPiece', expected BPE"),
        (lambda p: p["bpe"].update(normalizer=HOURS), "bpe has a normalizer, .*'Replace'"),
        (lambda p: p["bpe"].update(pre_tokenizer={"type": "Split"}), "a pre_tokenizer of type 'Split'"),
        (lambda p: p["bpe"].update(added_tokens=[{"id": 0, "content": "a"}]), "bpe has added tokens"),
        (lambda p: p["bpe"]["model"].update(merges=[["no", "such"]]), "not a filing tokenizer: bpe is none"),
        (lambda p: p["bpe"]["model"].update(vocab=3), "not a filing tokenizer: bpe is none"),
        (lambda p: p.update(fitted_rows="7"), "fitted_rows must be an integer, got '7'"),
        (lambda p: p.update(_target_="os.system", format="os.system"), "expected format 'quantattn"),
    ],
)
def test_a_stored_tokenizer_that_fit_would_not_make_is_refused(
    tokenizer: FilingTokenizer, change: Callable[[Any], Any], words: str
) -> None:
    plain = json.loads(tokenizer.to_json())
    change(plain)
    with pytest.raises(ValueError, match=words):
        FilingTokenizer.from_json(json.dumps(plain))


def test_learns_the_training_words(tokenizer: FilingTokenizer) -> None:
    assert len(tokenizer.encode("Net sales")) < len(tokenizer.encode("qZ#vK8!x~"))


def test_a_filing_from_after_the_training_time_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"a1 became public at 100 ns, at or after the end of the training time 100 ns"
    ):
        FilingTokenizer.fit(table(["a", "b"], [99, 100]), fitted_until=100)
    assert FilingTokenizer.fit(table(["a", "b"], [98, 99]), fitted_until=100).fitted_rows == 2
    with pytest.raises(ValueError, match="no training filing"):
        FilingTokenizer.fit(table([]), fitted_until=1)
    with pytest.raises(ValueError, match="at least 256"):
        FilingTokenizer.fit(table(["a"]), fitted_until=1, vocabulary_size=255)


def test_same_texts_give_the_same_bytes_in_another_process(tokenizer: FilingTokenizer) -> None:
    program = (
        "import polars as pl\nfrom quantattn.data.filings.tokenizer import FilingTokenizer\n"
        f"table = pl.DataFrame({{'text': {TEXTS!r}, 'available_time': {list(range(len(TEXTS)))}}})\n"
        "print(FilingTokenizer.fit(table, fitted_until=100, vocabulary_size=300).to_json(), end='')"
    )
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert again.stdout == tokenizer.to_json()


def test_the_training_hash_is_of_the_texts() -> None:
    one = FilingTokenizer.fit(table(["ab", "c"]), fitted_until=9)
    assert one.training_sha256 == FilingTokenizer.fit(table(["ab", "c"]), fitted_until=9).training_sha256
    assert one.training_sha256 != FilingTokenizer.fit(table(["a", "bc"]), fitted_until=9).training_sha256
