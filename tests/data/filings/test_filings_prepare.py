"""From filings to sequences: whole documents, nothing fitted on the future, every filing accounted for."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import polars as pl
import pytest

import quantattn.data.filings.prepare as prepare
from quantattn.data.filings.clock import new_york_sessions, session_days, session_on
from quantattn.data.filings.labels import NO_PRICES, NO_TICKER
from quantattn.data.filings.prepare import prepare_filings
from quantattn.data.filings.prices import Prices
from quantattn.data.filings.tokenizer import BEGIN, END, FilingTokenizer
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import LeakError, WalkForward
from quantattn.data.sources.source import Source, SourceReport

FILINGS, HORIZON = 60, 5
FIRST = session_on(date(2020, 1, 2)) or 0
TICKERS = {"0000000001": "A", "0000000002": "B"}


def source(last_words: str = "", seed: int = 0) -> Source:
    """Sixty filings of two filers, one every eight sessions; the texts of the last twelve end in `last_words`."""
    rng = np.random.default_rng(seed)
    opens = new_york_sessions().open
    rows = []
    for n in range(FILINGS):
        words = " ".join(rng.choice(["net", "sales", "rose", "fell", "risk", "litigation", "cash"], 20 + n % 7 * 10))
        text = f"FORM 10-K number {n}\n{words}" + (last_words if n >= FILINGS - 12 else "")
        time = int(opens[FIRST + 40 + 8 * n]) - 3_600 * 10**9
        rows.append((f"000000000{1 + n % 2}", time, time, n, "10-K", f"0000000001-20-{n:06}", text))
    schema = ["entity", "event_time", "available_time", "seq", "form", "accession", "text"]
    frame = pl.DataFrame(rows, schema=schema, orient="row").sort("entity", "available_time", "seq")
    return Source(frame.lazy(), (), SourceReport(frame.height, files={"made": "up"}))


def prices(changed_from: int | None = None, until: int = 600) -> Prices:
    """Random walks of two tickers over `until` sessions; closes from number `changed_from` on are replaced."""
    rng = np.random.default_rng(1)
    walk = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, (2, 600)), axis=1))
    if changed_from is not None:
        walk[:, changed_from:] *= np.exp(rng.normal(0, 0.3, walk[:, changed_from:].shape))
    days = session_days()[FIRST : FIRST + until]
    parts = [pl.DataFrame({"entity": name, "date": days, "close": walk[k, :until]}) for k, name in enumerate("AB")]
    return Prices(pl.concat(parts), {"A": True, "B": None}, {"A": "a.csv", "B": "b.csv"})


CUT = WalkForward(test=0.2, valid=0.1)


def prepared(made: Source | None = None, **settings: Any) -> Prepared:
    given = {"prices": prices(), "tickers": TICKERS, "horizon": HORIZON, "split": CUT, "vocabulary_size": 300}
    return prepare_filings(made or source(), **{**given, **settings})


def texts_of(part: SequenceSet, tokenizer: FilingTokenizer) -> dict[str, str]:
    tokens, table = part.table.fields["token"], part.table
    texts: dict[str, str] = {}
    for n, name in enumerate(table.entities):
        codes = tokens[table.offsets[n] : table.offsets[n + 1]]
        texts[name] = texts.get(name, "") + tokenizer.decode(codes)
    return texts


def test_filings_come_whole_and_every_one_is_accounted_for() -> None:
    made = prepared()
    tokenizer = FilingTokenizer.from_json(made.vocabulary_json)
    wanted = dict(source().frame.collect().select("accession", "text").iter_rows())
    found: dict[str, str] = {}
    for name in PARTS:
        part = getattr(made, name)
        found |= texts_of(part, tokenizer)
        batch = part.pack(range(len(part))).check()
        assert (batch.fields["token"][batch.positions] == END).all()
        assert (batch.fields["token"][batch.cu_seqlens[:-1].long()] == BEGIN).all()
        assert len(made.as_of[name]) == len(made.entity[name]) == len(part.decisions) == len(part)
        assert {len(column) for column in made.baselines[name].values()} == {len(part)}
        assert made.counts[f"{name} filings"] == len(part)
    assert found == {name: wanted[name] for name in found}
    assert len(found) + sum(made.dropped.values()) == made.counts["filings"] == FILINGS
    assert made.codes == tokenizer.codes
    assert made.classes == ()


def test_time_is_cut_with_the_labels() -> None:
    made = prepared()
    for earlier, later in (("train", "valid"), ("valid", "test"), ("train", "test")):
        assert made.as_of[earlier].max() + HORIZON * 86_400 * 10**9 < made.as_of[later].min()
    assert made.audit.passed
    assert made.dropped == {}  # filings come every eight sessions and labels look at five
    long = prepared(horizon=30)
    assert long.dropped["purged"] > 0
    assert len(long.train.decisions) < len(made.train.decisions)


def test_nothing_is_fitted_on_the_future() -> None:
    """Other words in the last filings and other prices from there on change nothing that was made for training."""
    made = prepared()
    assert prepared(source(" zebra quagga" * 50)).vocabulary_json == made.vocabulary_json
    first_test = int(np.searchsorted(new_york_sessions().open, made.as_of["valid"].min())) - FIRST
    other = prepared(prices=prices(changed_from=first_test))
    assert not np.allclose(other.test.decisions.targets["volatility"], made.test.decisions.targets["volatility"])
    assert (other.train.decisions.targets["volatility"] == made.train.decisions.targets["volatility"]).all()
    for name, column in made.baselines["train"].items():
        assert (column == other.baselines["train"][name]).all()


def test_a_tokenizer_that_saw_held_out_filings_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = prepare._end_of_training
    monkeypatch.setattr(prepare, "_end_of_training", lambda table, split: honest(table, split) + 1)
    with pytest.raises(LeakError, match="tokenizer was fitted until"):
        prepared()


def test_planted_training_filing_from_the_test_block_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = FilingTokenizer.fit

    def peek(frame: pl.DataFrame, **settings: Any) -> FilingTokenizer:
        late = source().frame.collect().sort("available_time").tail(1).select(frame.columns[:7])
        return fit(pl.concat([frame.select(late.columns), late]), **settings)

    monkeypatch.setattr(FilingTokenizer, "fit", peek)
    with pytest.raises(ValueError, match="fitted on training filings only"):
        prepared()


def test_recalibration_is_the_least_squares_line_of_the_training_filings() -> None:
    made = prepared()
    x = made.baselines["train"]["last_value"].astype(np.float64)
    y = made.train.decisions.targets["volatility"].astype(np.float64)
    slope = np.cov(x, y)[0, 1] / np.var(x, ddof=1)
    for name in PARTS:
        history = made.baselines[name]["last_value"].astype(np.float64)
        expected = y.mean() + slope * (history - x.mean())
        assert np.allclose(made.baselines[name]["recalibrated"].astype(np.float64), expected, atol=1e-6)


def test_long_filings_are_refused_cut_or_kept() -> None:
    with pytest.raises(
        ValueError, match=r"document '0000000001-20-\d{6}' has \d+ tokens, more than data.max_seq_len = 40"
    ):
        prepared(max_seq_len=40)
    whole, kept, cut = prepared(), prepared(max_seq_len=40, on_long="keep"), prepared(max_seq_len=40, on_long="window")
    tokenizer = FilingTokenizer.from_json(whole.vocabulary_json)
    for name in PARTS:
        one, two, three = (getattr(each, name) for each in (whole, kept, cut))
        assert (one.table.fields["token"] == two.table.fields["token"]).all()
        assert one.lengths.max() > 40
        assert (one.table.fields["token"] == three.table.fields["token"]).all()
        assert three.lengths.max() == 40
        assert texts_of(one, tokenizer) == texts_of(three, tokenizer)
        by_name = dict(zip(one.table.entities, one.decisions.targets["volatility"], strict=True))
        shared = zip(three.table.entities, three.decisions.targets["volatility"], strict=True)
        assert all(by_name[entity] == value for entity, value in shared)
        assert len(cut.as_of[name]) == len(three.decisions) > len(one.decisions)


def test_without_labels_every_filing_is_used() -> None:
    made = prepared(objective="masked", prices=None, tickers=None)
    assert sum(len(getattr(made, name).decisions) for name in PARTS) == FILINGS
    assert made.train.decisions.targets == {}
    assert dict(made.baselines["train"]) == {}
    with pytest.raises(ValueError, match="'volatility' needs prices and tickers"):
        prepared(prices=None)


def test_filings_without_a_label_are_counted_by_reason() -> None:
    made = prepared(prices=prices(until=400), tickers={"0000000001": "A"})
    kept = sum(made.counts[f"{name} filings"] for name in PARTS)
    assert made.dropped["no ticker"] == FILINGS // 2
    assert made.dropped["prices end too early"] > 0
    assert kept + sum(made.dropped.values()) == FILINGS
    assert made.counts["filings with prices that are not point in time"] == kept
    priceless = prepared(tickers={"0000000001": "A", "0000000002": "C"})
    assert (priceless.dropped[NO_PRICES], NO_TICKER in priceless.dropped) == (FILINGS // 2, False)
    assert f"no prices of its ticker, filers and filings: 0000000002 ({FILINGS // 2})" in priceless.notes
    assert f"no ticker, filers and filings: 0000000002 ({FILINGS // 2})" in made.notes
    with pytest.raises(ValueError, match=r"none of 60 filings has a label and a history: no ticker \(60\)"):
        prepared(tickers={})
    with pytest.raises(ValueError, match="objective must be one of"):
        prepared(objective="price")
    with pytest.raises(ValueError, match=r"fold -2 of 1: folds are numbered"):
        prepared(fold=-2)


def test_the_account_says_of_every_filing_what_became_of_it() -> None:
    made = prepared(prices=prices(until=400), tickers={"0000000001": "A"})
    told = pl.read_csv(io.StringIO(made.account), schema_overrides={"entity": pl.String})
    frame = source().frame.collect()
    assert sorted(told["accession"]) == sorted(frame["accession"])
    for name in PARTS:
        part, of_part = getattr(made, name), told.filter(pl.col("became") == name)
        assert sorted(of_part["accession"]) == sorted(part.table.entities)
        named = dict(of_part.select("accession", "volatility").iter_rows())
        given = zip(part.table.entities, part.decisions.targets["volatility"].tolist(), strict=True)
        assert all(named[entity] == pytest.approx(value, rel=1e-6) for entity, value in given)
        past = dict(of_part.select("accession", "history").iter_rows())
        assert [past[entity] for entity in part.table.entities] == made.baselines[name]["last_value"].tolist()
    others = Counter(told.filter(~pl.col("became").is_in(PARTS))["became"])
    assert others == made.dropped
    public = told["public"].str.to_datetime("%Y-%m-%dT%H:%M:%SZ").dt.epoch("s")
    times = dict(frame.select("accession", pl.col("available_time") // 10**9).iter_rows())
    assert [times[name] for name in told["accession"]] == public.to_list()


def test_a_filing_without_a_past_is_left_out_too() -> None:
    """The baselines need what came before; model and baselines are compared on the same filings."""
    late = prices().frame.filter(pl.col("date") >= session_days()[FIRST + 40].item())
    made = prepared(prices=Prices(late, {"A": None, "B": None}, {"A": "a.csv", "B": "b.csv"}))
    assert made.dropped == {"history: prices start later": 1}


def test_return_is_measured_beside_the_past_return() -> None:
    made = prepared(objective="return")
    assert abs(np.concatenate([made.baselines[name]["last_value"] for name in PARTS])).max() < 0.5
    up = pl.DataFrame({"date": session_days()[FIRST : FIRST + 600], "close": np.arange(100.0, 700.0)})
    up = up.select(pl.lit("A").alias("entity"), "date", "close")
    both = Prices(pl.concat([up, up.with_columns(entity=pl.lit("B"))]), {"A": None, "B": None}, {"A": "a", "B": "b"})
    grown = prepared(objective="return", prices=both)
    assert (grown.test.decisions.targets["return"] > 0).all()


def test_every_filing_is_used_or_counted_with_its_reason() -> None:
    made = source()
    report = SourceReport(FILINGS, {"no acceptance time": 7}, made.report.files, ("dated by day alone",))
    first = prepared(replace(made, report=report), fold=0, split=WalkForward(n_folds=3, test=0.2, valid=0.1), horizon=9)
    assert first.dropped["outside the fold"] > 0
    assert sum(first.counts[f"{name} filings"] for name in PARTS) + sum(first.dropped.values()) == FILINGS
    assert first.counts["set aside by the source: no acceptance time"] == 7
    assert first.notes == ("dated by day alone",)
    assert not any("without a session" in name for name in first.counts)
    sundays = pl.DataFrame({"entity": "A", "date": [date(2020, 3, 1), date(2020, 3, 8)], "close": [1.0, 2.0]})
    more = prices()
    more = replace(more, frame=pl.concat([more.frame, sundays]).sort("entity", "date"))
    assert prepared(prices=more).counts["closes on days without a session, not used"] == 2
