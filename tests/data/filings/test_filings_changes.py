"""How much an item changed: exact on small texts, equal to scikit-learn's, and blind to all that comes later."""

from __future__ import annotations

import math
import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantattn.data.filings.changes import (
    AMENDMENT,
    FIRST,
    NO_EARLIER_EMBEDDING,
    NO_EMBEDDING,
    NOT_ASKED,
    NOT_RECOGNISED,
    NOT_YET,
    SEEN,
    UNKNOWN,
    filing_changes,
    one_minus_cosine,
)

DAY = 86_400 * 10**9
HEAD = "Item 1A. Risk Factors\n"
KEYS = ("entity", "event_time", "available_time", "seq", "form", "accession", "text")


def body(risks: str) -> str:
    return f"Item 1. Business\nWe make anvils.\n{HEAD}{risks}\nItem 2. Properties\nA shed in Ohio."


def filings(*rows: tuple[str, int, str, str]) -> pl.DataFrame:
    """(entity, day, form, risks or whole text) → a table in canonical order, accession numbers A-0, A-1, …"""
    made = [
        (
            entity,
            (DECEMBER_2005 + day) * DAY,
            (DECEMBER_2005 + day) * DAY,
            number,
            form,
            f"A-{number}",
            text if "Item" in text or not text else body(text),
        )
        for number, (entity, day, form, text) in enumerate(rows)
    ]
    return pl.DataFrame(made, schema=KEYS, orient="row").sort("entity", "available_time", "seq")


DECEMBER_2005 = 13_118  # days since 1970; items 1A of before are not missed


def by_accession(table: pl.DataFrame) -> dict[str, dict[str, object]]:
    return {row["accession"]: row for row in table.to_dicts()}


def test_a_worked_example() -> None:
    # Each item holds "item", "a", "risk", "factors" once; then: (fall) and (fall, fall, sue).
    table = filings(("E", 1, "10-K", "fall"), ("E", 2, "10-K", "fall fall sue"))
    first, second = filing_changes(table).to_dicts()
    assert first["reason"] == FIRST
    assert second["earlier_accession"] == "A-0"
    assert (second["earlier_words"], second["words"], second["fitted_items"]) == (5, 7, 1)
    # (1,1,1,1,1,0)·(1,1,1,1,2,1) = 6; norms √5 and √9.
    assert second["change_words"] == pytest.approx(1 - 6 / math.sqrt(45), abs=1e-15)
    # One earlier item: a word that it has weighs 1 + ln(2/2) = 1, one that it lacks 1 + ln 2.
    new = 1 + math.log(2)
    assert second["change_tfidf"] == pytest.approx(1 - 6 / math.sqrt(5 * (8 + new**2)), abs=1e-15)
    assert second["change_embedding"] is None
    assert second["embedding_reason"] == NOT_ASKED


def test_the_same_text_has_changed_by_nothing() -> None:
    table = filing_changes(filings(*[("E", day, "10-K", "Anvils fall, and we are sued.") for day in range(4)]))
    assert table["change_words"].to_list() == [None, 0.0, 0.0, 0.0]
    assert table["change_tfidf"].to_list() == [None, 0.0, 0.0, 0.0]
    vector = np.random.default_rng(0).normal(size=64)
    assert one_minus_cosine(vector, vector) == 0.0
    assert one_minus_cosine(vector, -vector) == 2.0
    assert one_minus_cosine(vector, 0 * vector) == 1.0


def test_tfidf_is_that_of_scikit_learn_fitted_on_what_was_public_before() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    rng = random.Random(0)
    words = [f"w{chr(97 + i)}{chr(97 + j)}" for i in range(6) for j in range(6)]
    rows = [(f"E{day % 3}", day, "10-K", " ".join(rng.choices(words, k=30))) for day in range(12)]
    table = by_accession(filing_changes(filings(*rows)))
    for day in range(3, 12):
        said = [HEAD + rows[i][3] for i in range(day + 1)]
        # The words of the new item are in the vocabulary too: that it has them is what changed.
        everything = text.TfidfVectorizer(token_pattern=r"[a-z]+").fit(said).vocabulary_
        fitted = text.TfidfVectorizer(token_pattern=r"[a-z]+", vocabulary=everything).fit(said[:day])
        now, before = (fitted.transform([said[i]]).toarray()[0] for i in (day, day - 3))
        row = table[f"A-{day}"]
        assert row["earlier_accession"] == f"A-{day - 3}"
        assert row["fitted_items"] == day
        assert row["change_tfidf"] == pytest.approx(1 - now @ before, abs=1e-12)


def test_who_is_compared_with_whom_and_why_not() -> None:
    table = filings(
        ("E", 1, "10-K405", "fall"),
        ("E", 2, "10-Q", "Item 2. Properties"),  # its items have other names
        ("E", 3, "10-K/A", "fall"),
        ("E", 4, "10-K", "fall down"),  # with the 10-K405, not with the amendment
        ("E", 5, "10-K", "A letter without Items of its own."),
        ("E", 6, "10-K", "fall"),
        ("E", 7, "10-K", "Not applicable."),
        ("E", 8, "10-K", "Item 1. Business\nAnvils.\nItem 2. Properties\nSheds."),
        ("F", 8, "10-K", "fall"),
        ("F", 8, "10-K", "fall"),  # public at the same time, so not later
    )
    found = by_accession(filing_changes(table))
    assert {name: row["reason"] for name, row in found.items()} == {
        "A-0": FIRST,
        "A-2": AMENDMENT,
        "A-3": None,
        "A-4": NOT_RECOGNISED,
        "A-5": f"earlier filing: {NOT_RECOGNISED}",
        "A-6": "item omitted",
        "A-7": "item missing",
        "A-8": FIRST,
        "A-9": FIRST,
    }
    assert found["A-3"]["earlier_accession"] == "A-0"
    assert found["A-3"]["fitted_items"] == 1
    assert found["A-5"]["earlier_accession"] == "A-4"
    old = table.with_columns(event_time=pl.lit(0, pl.Int64))
    assert by_accession(filing_changes(old))["A-7"]["reason"] == NOT_YET
    with pytest.raises(ValueError, match=r"none of 10 filings has a form with an item 5\.02"):
        filing_changes(table, 5.02)
    with pytest.raises(ValueError, match="items must be names such as 1A"):
        filing_changes(table, "risk factors")


def vectors(table: pl.DataFrame, until: int | None, item: str | None = "1A") -> pl.DataFrame:
    rng = np.random.default_rng(1)
    made = table.select("accession", item=pl.lit(item, pl.String))
    made = made.with_columns(embedding=pl.Series(rng.normal(size=(table.height, 4)).tolist()))
    return made if until is None else made.with_columns(seen_until=pl.lit(until, pl.Int64))


def test_embeddings_are_used_from_where_their_model_had_seen_its_last_filing() -> None:
    table = filings(*[("E", day, "10-K", f"fall {'down ' * day}") for day in range(5)])
    given = vectors(table, (DECEMBER_2005 + 3) * DAY)
    found = filing_changes(table, "1A", given)
    assert found["embedding_reason"].to_list() == [FIRST, SEEN, SEEN, None, None]
    a, b = (np.array(given["embedding"][i]) for i in (2, 3))
    assert found["change_embedding"][3] == pytest.approx(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-12)
    loose = filing_changes(table, "1A", given, in_sample=True)
    assert loose["change_embedding"].null_count() == 1
    assert set(filing_changes(table, "1A", vectors(table, None))["embedding_reason"]) == {FIRST, UNKNOWN}
    silent = given.with_columns(seen_until=pl.when(pl.col("accession") != "A-3").then("seen_until"))
    assert filing_changes(table, "1A", silent)["embedding_reason"].to_list() == [FIRST, SEEN, SEEN, UNKNOWN, UNKNOWN]
    some = filing_changes(table, "1A", given.filter(pl.col("accession") != "A-3"))
    assert some["embedding_reason"].to_list() == [FIRST, SEEN, SEEN, NO_EMBEDDING, NO_EARLIER_EMBEDDING]
    for wrong, sentence in (
        (vectors(table, 3, None), r"has no item 1A; write it with unit=item items=\[1A\]"),
        (pl.concat([given, given]), "has item 1A of A-0 twice"),
        (given.drop("embedding"), "lacks embedding"),
    ):
        with pytest.raises(ValueError, match=sentence):
            filing_changes(table, "1A", wrong)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_later_filing_changes_a_bit(data: st.DataObject) -> None:
    """Whatever is filed from a day on, also by others, the rows before it stay as they are."""
    risk = st.lists(st.sampled_from(["fall", "sue", "rust", "break", "Not applicable."]), min_size=1, max_size=6)
    row = st.tuples(st.sampled_from("EFG"), st.integers(0, 9), st.sampled_from(["10-K", "10-K/A"]), risk.map(" ".join))
    rows = sorted(data.draw(st.lists(row, min_size=2, max_size=12)), key=lambda each: each[1])
    day = data.draw(st.integers(0, 9))
    past = [each for each in rows if each[1] < day]
    others = data.draw(st.lists(row, max_size=6))
    later = [(entity, day + after, form, risks) for entity, after, form, risks in others]
    if not past:
        return
    first, second = (filing_changes(filings(*past, *future)) for future in ([], later))
    names = first["accession"].to_list()
    assert second.filter(pl.col("accession").is_in(names)).equals(first)
