"""From a source to training sequences: labels, split, tokens and audit agree, and nothing looks ahead."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import quantattn.data.market.prepare as prepare
from quantattn.data.market.encode import decision_rows, encode_market
from quantattn.data.market.features import FEATURES
from quantattn.data.market.prepare import MidLabel, prepare_market
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import LeakError, WalkForward, perturb_future
from quantattn.data.sample import SAMPLE, write_lobster
from quantattn.data.schema import CROSS, EXECUTE_HIDDEN, MARKER
from quantattn.data.sources import scan_lobster
from quantattn.data.sources.source import Source
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer

MARKET = SyntheticMarket(entities=4, events_per_entity=12_000, seed=5)
NEXT_MOVE = MidLabel(horizon=1, method=0, classes=2, rule="fixed")
SETTINGS: dict[str, Any] = {"label": NEXT_MOVE, "decision_kinds": [EXECUTE_HIDDEN], "min_context": 320}
SAMPLE_FOLDER = Path(__file__).parents[2] / "data" / "sample"


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    return MARKET.source().frame.collect()


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare_market(MARKET, **SETTINGS)


def source_of(frame: pl.DataFrame) -> Source:
    return replace(MARKET.source(), frame=frame.lazy())


def test_labels_are_what_the_market_drew(prepared: Prepared, events: pl.DataFrame) -> None:
    truth = {(row[0], row[1]): row[2] for row in MARKET.truth().select("entity", "seq", "outcome").iter_rows()}
    used = 0
    for part in PARTS:
        decisions = getattr(prepared, part).decisions
        for row, label in zip(decisions.row, decisions.targets["label"], strict=True):
            assert truth[events["entity"][int(row)], events["seq"][int(row)]] == 2 * label - 1
        used += len(decisions)
    assert used + prepared.dropped.get("purged", 0) == prepared.counts["labelled"] == len(truth)
    assert prepared.counts["decisions"] - prepared.counts["labelled"] == prepared.dropped.get("session end", 0)
    assert prepared.classes == ("down", "up")


def test_arrays_of_a_part_are_aligned(prepared: Prepared, events: pl.DataFrame) -> None:
    for part in PARTS:
        cut = getattr(prepared, part)
        row = cut.decisions.row
        assert prepared.as_of[part].tolist() == events["available_time"].to_numpy()[row].tolist()
        assert prepared.entity[part].tolist() == events["entity"].gather(row).to_list()
        baselines = prepared.baselines[part]
        assert baselines["features"].shape == (len(row), len(FEATURES))
        assert np.isfinite(baselines["features"].astype(np.float64)).all()
        bid, ask = (events[f"{side}_size_1"].to_numpy()[row] for side in ("bid", "ask"))
        assert np.allclose(baselines["imbalance"].astype(np.float64), (bid - ask) / (bid + ask))
        assert (cut.contexts >= np.minimum(320, row + 1 - cut.table.offsets[cut.table.entity_of(row)])).all()


def test_persistence_is_the_label_before(prepared: Prepared) -> None:
    labels, last, entity = (
        np.concatenate([source[part] for part in PARTS])
        for source in (
            {part: getattr(prepared, part).decisions.targets["label"] for part in PARTS},
            {part: prepared.baselines[part]["persistence"] for part in PARTS},
            prepared.entity,
        )
    )
    checked = 0
    for name in np.unique(entity):
        own, before = labels[entity == name], last[entity == name]
        assert before[0] == -1
        agree = before[1:] == own[:-1]
        checked += len(agree)
        assert agree.sum() >= len(agree) - 2  # a purged decision is no row, but its label was known
    assert checked > 1_000


def test_parts_follow_each_other_and_the_fit_is_on_training(prepared: Prepared) -> None:
    train, valid, test = (prepared.as_of[part] for part in PARTS)
    assert train.max() < valid.min() <= valid.max() < test.min()
    tokenizer = Tokenizer.from_json(prepared.vocabulary_json)
    assert tokenizer.fitted_last <= train.max() < tokenizer.fitted_until <= valid.min()
    assert prepared.audit.passed
    assert {check.name for check in prepared.audit.checks if check.verdict == "not run"} == {
        "label crosses a session end",
        "trained on during the embargo",
    }


def test_the_same_source_gives_the_same_hashes(prepared: Prepared) -> None:
    assert prepare_market(MARKET, **SETTINGS).hashes == prepared.hashes
    other = prepare_market(replace(MARKET, seed=6), **SETTINGS)
    assert all(other.hashes[name] != digest for name, digest in prepared.hashes.items())


def test_another_future_leaves_training_untouched(prepared: Prepared, events: pl.DataFrame) -> None:
    """The test block gets another history; tokenizer, training rows, targets and inputs keep every bit."""
    later = perturb_future(events, int(prepared.as_of["valid"].max()))
    again = prepare_market(source_of(later), **SETTINGS, split=WalkForward(test=0.2, valid=0.1))
    until = int(prepared.as_of["train"].max())
    shared = np.intersect1d(prepared.as_of["train"], again.as_of["train"])
    assert len(shared) > 0.8 * len(prepared.as_of["train"])
    one, other = (_inputs(each, shared, until) for each in (prepared, again))
    assert one["raw"] == other["raw"]
    assert one["label"] == other["label"]
    assert one["features"] == other["features"]


def _inputs(prepared: Prepared, shared: np.ndarray, until: int) -> dict[str, bytes]:
    chosen = np.isin(prepared.as_of["train"], shared)
    table = prepared.train.table
    early = table.time <= until
    return {
        "raw": b"".join(table.fields[name][early].tobytes() for name in ("kind_code", "side_code", "price_code")),
        "label": prepared.train.decisions.targets["label"][chosen].tobytes(),
        "features": prepared.baselines["train"]["features"][chosen].tobytes(),
    }


def test_a_planted_leak_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = Tokenizer.fit

    def fit_on_everything(*args: Any, fitted_until: int, **settings: Any) -> Tokenizer:
        return fit(*args, fitted_until=2**62, **settings)

    monkeypatch.setattr(Tokenizer, "fit", staticmethod(fit_on_everything))
    with pytest.raises(LeakError, match="tokenizer was fitted until"):
        prepare_market(MARKET, **SETTINGS)


@pytest.mark.parametrize("stage", ["token_table", "feature_table"])
def test_inputs_that_look_ahead_fail_the_run_whatever_times_they_claim(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    honest = getattr(prepare, stage)

    def tokens_of_the_next_event(*args: Any) -> Any:
        table = honest(*args)
        return replace(table, fields={name: np.roll(column, -1) for name, column in table.fields.items()})

    def features_of_the_next_event(*args: Any, **settings: Any) -> pl.DataFrame:
        frame: pl.DataFrame = honest(*args, **settings)
        return frame.with_columns(pl.col(FEATURES).shift(-1, fill_value=0))

    made = {"token_table": tokens_of_the_next_event, "feature_table": features_of_the_next_event}[stage]
    monkeypatch.setattr(prepare, stage, made)
    with pytest.raises(LeakError, match=r"input depends on the future: \w+ of event \d+ is .* when nothing after"):
        prepare_market(MARKET, **SETTINGS)


def test_the_bound_is_told_only_when_it_is_one(prepared: Prepared) -> None:
    assert prepared.bayes == MARKET.bayes()
    assert prepared.bayes_in_context is not None
    assert prepared.bayes_in_context.log_loss == pytest.approx(MARKET.bayes().log_loss, abs=0.02)
    assert prepare_market(MARKET.source(), **SETTINGS).bayes is None
    assert prepare_market(MARKET, **{**SETTINGS, "label": replace(NEXT_MOVE, horizon=2)}).bayes is None
    short = prepare_market(MARKET, **{**SETTINGS, "min_context": None}, max_seq_len=64)
    assert short.bayes_in_context is not None
    assert short.bayes_in_context.log_loss == pytest.approx(MARKET.bayes(64).log_loss, abs=1e-12)
    assert short.bayes_in_context.marker_seen == 0
    some = prepare_market(MARKET, **{**SETTINGS, "min_context": 220}, max_seq_len=300)
    contexts = [
        int(row + 1 - start)
        for s, start in enumerate(some.test.start)
        for row in some.test.decisions.row[some.test.first[s] : some.test.first[s + 1]]
    ]
    losses = [MARKET.bayes(context).log_loss for context in contexts]
    assert some.bayes_in_context is not None
    assert some.bayes_in_context.log_loss == pytest.approx(np.mean(losses), abs=1e-12)
    assert MARKET.bayes().log_loss < some.bayes_in_context.log_loss < MARKET.bayes(200).log_loss


def test_windows_of_the_parts_share_no_token() -> None:
    made = prepare_market(MARKET, **{**SETTINGS, "min_context": None}, layout="windows", max_seq_len=128)
    times = [getattr(made, part).table.time for part in PARTS]
    assert times[0].max() < times[1].min() <= times[1].max() < times[2].min()
    for part in PARTS:
        cut = getattr(made, part)
        assert cut.table.time[cut.decisions.row].tolist() == made.as_of[part].tolist()


def test_fields_bins_and_folds_are_asked_for() -> None:
    folds = WalkForward(n_folds=3, test=0.1, valid=0.1, embargo=10**9)
    asked = {**SETTINGS, "split": folds, "fields": ["kind", "side", "gap"], "n_bins": 8}
    made = [prepare_market(MARKET, **asked, fold=fold) for fold in (0, 2)]
    assert made[0].codes == {"kind_code": 7, "side_code": 5, "gap_code": 10}
    assert made[0].as_of["test"].max() < made[1].as_of["test"].min()
    assert {c.name: c.verdict for c in made[1].audit.checks}["trained on during the embargo"] == "passed"


def test_decisions_by_kind_and_by_count(events: pl.DataFrame) -> None:
    every = decision_rows(events, every=7)
    assert (np.diff(every[every < 12_000]) == 7).all()
    assert [row % 12_000 for row in every[::1_715]] == [0, 0, 0, 0]
    hidden = decision_rows(events, kinds=[EXECUTE_HIDDEN])
    assert (events["kind"].to_numpy()[hidden] == EXECUTE_HIDDEN).all()
    assert len(decision_rows(events, every=2, kinds=[EXECUTE_HIDDEN])) <= len(hidden) // 2 + 4
    with pytest.raises(ValueError, match="is a decision"):
        decision_rows(events, kinds=[7])
    with pytest.raises(ValueError, match="decision_every"):
        decision_rows(events, every=0)


def test_scoring_sees_the_tokens_of_training(prepared: Prepared) -> None:
    work = encode_market(MARKET, prepared.vocabulary_json, decision_kinds=[EXECUTE_HIDDEN], min_context=320)
    assert len(work.sequences.decisions) == prepared.counts["decisions"] == len(work.as_of) == len(work.entity)
    for name, column in prepared.train.table.fields.items():
        assert (work.sequences.table.fields[name] == column).all()
    assert set(prepared.test.decisions.row) <= set(work.sequences.decisions.row)


def test_lobster_files_give_back_what_was_written(tmp_path: Path) -> None:
    market = SyntheticMarket(entities=2, events_per_entity=5_000, events_per_session=2_000, levels=3)
    events = market.source().frame.collect()
    files = write_lobster(events, tmp_path)
    assert len(files) == 2 * 2 * 3
    marker = pl.col("kind") == MARKER
    expected = events.with_columns(
        pl.when(marker).then(CROSS).otherwise("kind").cast(pl.UInt8).alias("kind"),
        pl.when(marker).then(0).otherwise("side").cast(pl.Int8).alias("side"),
    )
    assert scan_lobster(tmp_path).frame.collect().drop("halted").equals(expected)
    before = [file.read_bytes() for file in files]
    assert [file.read_bytes() for file in write_lobster(events, tmp_path)] == before
    with pytest.raises(ValueError, match="event 3 has no price"):
        write_lobster(events.with_columns(price=pl.when(pl.col("seq") != 3).then("price")), tmp_path)


def test_the_committed_sample_is_what_the_generator_writes(tmp_path: Path) -> None:
    write_lobster(SAMPLE.source().frame.collect(), tmp_path)
    committed = scan_lobster(SAMPLE_FOLDER).frame.collect()
    assert committed.equals(scan_lobster(tmp_path).frame.collect())
    assert sum(file.stat().st_size for file in SAMPLE_FOLDER.iterdir()) < 200_000


@pytest.mark.parametrize("folder", ["sample", "AMZN_2012"])
def test_a_lobster_day_is_prepared(folder: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = SAMPLE_FOLDER
    if folder != "sample":
        path = tmp_path
        for file in (request.getfixturevalue("realdata") / "lob" / "lobster").glob(f"{folder}*"):
            shutil.copy(file, path)
    made = prepare_market(scan_lobster(path), decision_every=10, max_seq_len=256, calendar="XNAS")
    assert made.audit.passed
    assert {c.name: c.verdict for c in made.audit.checks}["label crosses a session end"] == "passed"
    assert made.classes == ("down", "flat", "up")
    assert made.notes == scan_lobster(path).report.notes
    assert Tokenizer.from_json(made.vocabulary_json).zone == "America/New_York"
    assert made.bayes is None
    accounted = made.counts["decisions"] - made.dropped["session end"]
    assert (
        accounted == made.counts["labelled"] == sum(len(made.as_of[p]) for p in PARTS) + made.dropped.get("purged", 0)
    )
    share = np.bincount(made.train.decisions.targets["label"]) / len(made.as_of["train"])
    assert share.min() > 0.1
    assert math.isclose(share.sum(), 1)


def test_two_classes_count_what_did_not_move() -> None:
    label = MidLabel(horizon=5, method=0, classes=2, rule="fixed")
    made = prepare_market(MARKET, label=label, decision_every=3, layout="each", max_seq_len=8)
    assert made.dropped["no move"] > 0
    total = sum(len(made.as_of[p]) for p in PARTS)
    assert total <= made.counts["labelled"]
    assert made.counts["labelled"] + made.dropped["no move"] + made.dropped["session end"] == made.counts["decisions"]


@pytest.mark.parametrize(
    ("split", "fold"),
    [
        (WalkForward(), -1),
        (WalkForward(n_folds=3, test=0.1), 0),
        (WalkForward(n_folds=2, test=0.1, window="rolling", train=0.3), -1),
        (WalkForward(n_folds=4, test=0.1, embargo=86_400 * 10**9), -1),
    ],
)
def test_every_decision_is_used_or_counted_with_its_reason(split: WalkForward, fold: int) -> None:
    label = MidLabel(horizon=40, method=0, classes=2, rule="fixed")
    made = prepare_market(MARKET, label=label, split=split, fold=fold, layout="each", max_seq_len=8, calendar="XNYS")
    assert made.dropped["no move"] > 0
    assert made.dropped["purged"] > 0
    assert sum(len(made.as_of[p]) for p in PARTS) + sum(made.dropped.values()) == made.counts["decisions"]
    assert ("outside the fold" in made.dropped) == (fold == 0 or split.window == "rolling")


def test_books_that_give_no_price_are_counted(events: pl.DataFrame) -> None:
    row = pl.int_range(pl.len())
    bid = pl.when(row == 20).then(pl.col("ask_price_1") + 100).when(row == 30).then("ask_price_1")
    damaged = events.with_columns(
        bid.when(row.is_between(40, 42)).then(None).otherwise("bid_price_1").alias("bid_price_1"),
        halted=row.is_between(50, 54),
    )
    made = prepare_market(source_of(damaged), label=MidLabel(horizon=5), layout="each", max_seq_len=8)
    found = {name: count for name, count in made.counts.items() if name.startswith("events ")}
    assert found == {
        "events with a crossed book": 1,
        "events with a locked book": 1,
        "events with a one-sided book": 3,
        "events during a halt": 5,
    }
    assert made.dropped["crossed book"] == 2 * 6
    assert made.dropped["halt"] == 5 + 5


def test_one_class_to_learn_from_is_refused_at_once(events: pl.DataFrame) -> None:
    still = events.with_columns(bid_price_1=pl.lit(100, pl.Int64), ask_price_1=pl.lit(200, pl.Int64))
    with pytest.raises(ValueError, match=r"every one of the \d+ training decisions is 'flat'"):
        prepare_market(source_of(still), label=MidLabel(horizon=5))


def test_sources_that_cannot_be_used_are_one_sentence(events: pl.DataFrame, prepared: Prepared) -> None:
    made = MARKET.source()
    for broken, sentence in (
        (replace(made, frame=events[:0].lazy()), "the source holds no event"),
        (
            replace(made, instruments=made.instruments[1:]),
            "no instrument is given for SYN000000, so its tick",
        ),
        (replace(made, instruments=()), "no instrument is given for SYN000000, SYN000001, SYN000002 and 1 more"),
    ):
        with pytest.raises(ValueError, match=sentence):
            prepare_market(broken)
        with pytest.raises(ValueError, match=sentence):
            encode_market(broken, prepared.vocabulary_json)
    with pytest.raises(ValueError, match=r"fold 1 of 1: folds are numbered 0 … 0, or -1 … -1 from the end"):
        prepare_market(MARKET, fold=1)
    with pytest.raises(ValueError, match="n_bins must lie in 2 … 65533"):
        prepare_market(MARKET, n_bins=70_000)
