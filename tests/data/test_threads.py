"""The number of threads decides nothing but the time: equal bits, order, and errors, whatever it is."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from quantattn.data.market import encode, feature_blocks
from quantattn.data.market.encode import token_table
from quantattn.data.market.features import FEATURES, book_features, feature_table
from quantattn.data.market.sessions import Sessions
from quantattn.data.protocol.labels import Label, MidLabel, NextEventLabel, TripleBarrier, stretch, threshold
from quantattn.data.sample import write_lobster
from quantattn.data.sources.source import files_sha256
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.threads import each, spans
from quantattn.data.tokens import Tokenizer

MARKET = SyntheticMarket(entities=3, events_per_entity=1_500, removals=0.3, events_per_session=400)
THREADS = (1, 2, 3, 16)
TABLE = 4_500


def threads(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As many threads as a machine with so many cores gives, and a part for each however few its rows are."""
    monkeypatch.setattr(pl, "thread_pool_size", lambda: number)
    for module in (encode, feature_blocks, stretch, threshold):
        monkeypatch.setattr(module, "LEAST_ROWS", 1)
    monkeypatch.setattr(stretch, "_BLOCK", TABLE // number)
    monkeypatch.setattr(threshold, "_CLASSED_AT_ONCE", TABLE // number)


@pytest.fixture(scope="module", params=["whole", "holes"])
def events(request: pytest.FixtureRequest) -> pl.DataFrame:
    """Drawn events; and with books that are empty for longer than a window around every edge, crossed, or halted."""
    drawn = MARKET.source().frame.collect()
    if request.param == "whole":
        return drawn
    row = pl.int_range(pl.len())
    edge = ((row + 120) % (TABLE // 16) < 140) | (row % (TABLE // 3) < 210)
    return drawn.with_columns(
        ask_price_1=pl.when(edge).then(None).otherwise("ask_price_1"),
        bid_price_1=pl.when(row % 577 == 5).then(pl.col("ask_price_1") + row % 2 * 100).otherwise("bid_price_1"),
        bid_size_1=pl.when(row % 401 < 3).then(None).otherwise("bid_size_1"),
        halted=row % 900 < 7,
    )


def sessions_of(events: pl.DataFrame) -> Sessions:
    """Two sessions a day, and events outside of both."""
    day = np.unique(events["available_time"].to_numpy() // (86_400 * 10**9)) * 86_400 * 10**9
    opens = np.sort(np.concatenate([day + hour * 3_600 * 10**9 for hour in (14, 18)]))
    return Sessions("MADE", opens, opens + 3 * 3_600 * 10**9)


@pytest.mark.parametrize("within", [False, True])
def test_features_are_those_of_one_pass(events: pl.DataFrame, within: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = MARKET.source().instruments
    sessions = sessions_of(events) if within else None
    truth = book_features(events.lazy(), instruments, sessions=sessions).select(FEATURES).collect()
    for number in THREADS:
        threads(monkeypatch, number)
        assert feature_table(events, instruments, sessions=sessions).equals(truth)


def test_tokens_are_those_of_one_pass(events: pl.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    instruments = MARKET.source().instruments
    until = int(np.quantile(events["available_time"].to_numpy(), 0.6))
    tokenizer = Tokenizer.fit(events.lazy(), instruments, fitted_until=until)
    truth = tokenizer.transform(events.lazy()).collect()
    for number in THREADS:
        threads(monkeypatch, number)
        assert Tokenizer.fit(events.lazy(), instruments, fitted_until=until) == tokenizer
        table = token_table(events, tokenizer, instruments)
        assert table.entities == MARKET.names
        assert np.array_equal(table.time, events["available_time"].to_numpy())
        for name in (*tokenizer.codes, *tokenizer.values):
            column = truth[name].to_numpy()
            assert table.fields[name].dtype == column.dtype
            assert table.fields[name].tobytes() == column.tobytes(), name


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    "label",
    [
        MidLabel(1),
        MidLabel(70),
        MidLabel(70, method=0),
        MidLabel(70, method=2),
        MidLabel(70, method="tlob", smoothing=30),
        MidLabel(2_000),
        MidLabel(3_000, "seconds"),
        TripleBarrier(50),
        NextEventLabel(),
    ],
    ids=str,
)
def test_labels_are_those_of_whole_stretches(
    events: pl.DataFrame, label: Label, within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = sessions_of(events) if within else None
    truth = label.measure(events, sessions)  # with few rows a stretch is one part
    assert truth["label_reason"].is_null().any() or label == MidLabel(2_000)
    for number in THREADS:
        threads(monkeypatch, number)
        assert label.measure(events, sessions).equals(truth)


@pytest.mark.parametrize("rule", ["mean", "quantile", "spread"])
@pytest.mark.parametrize("classes", [2, 3])
def test_thresholds_and_classes_are_those_of_one_pass(
    events: pl.DataFrame, rule: Any, classes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = MidLabel(20, rule=rule, classes=classes)
    measured = label.measure(events)
    train = np.arange(0, events.height * 2 // 3)
    truth, fitted = label.finish(measured, train)
    for number in THREADS:
        threads(monkeypatch, number)
        made, again = label.finish(measured, train)
        assert made.equals(truth)
        assert again == fitted


def test_a_threshold_of_rows_in_a_row_is_that_of_the_same_rows_picked(events: pl.DataFrame) -> None:
    measured = MidLabel(20).measure(events)
    rows = np.arange(100, 1_250)
    for rule in ("mean", "quantile", "spread"):
        asked = MidLabel(20, rule=rule)
        assert asked.threshold(measured, rows) == asked.threshold(measured, rows[::-1])
        assert asked.threshold(measured, rows) != asked.threshold(measured, rows[500:])


def test_a_sum_is_exact_however_it_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal(3_000) * 2.0 ** random.integers(-200, 200, 3_000)
    truth = math.fsum(values)
    for number in THREADS:
        threads(monkeypatch, number)
        assert threshold.exact_sum(values) == truth
    assert float(values.sum()) != truth  # the control: an ordinary sum is another number


def test_the_first_error_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(number: int) -> int:
        if number % 3 == 2:
            raise ValueError(str(number))
        return number * number

    for count in THREADS:
        monkeypatch.setattr(pl, "thread_pool_size", lambda count=count: count)
        assert each(work, [0, 1, 3, 4, 6]) == [0, 1, 9, 16, 36]
        assert each(work, []) == []
        with pytest.raises(ValueError, match=r"^2$"):
            each(work, range(9))


def test_spans_part_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in THREADS:
        monkeypatch.setattr(pl, "thread_pool_size", lambda count=count: count)
        for rows in (0, 1, 5, 16, 1_000):
            for least in (1, 7, 100):
                found = spans(rows, least)
                assert [first for first, _ in found] == [0, *(last for _, last in found[:-1])]
                assert found[-1][1] == rows
                assert len(found) == 1 or len(found) <= count
                assert len(found) == 1 or min(last - first for first, last in found) >= least


def test_hashes_are_those_of_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"file {number}": tmp_path / str(number) for number in (3, 1, 2)}
    for name, path in files.items():
        path.write_bytes(name.encode() * 1_000)
    truth = {name: hashlib.sha256(name.encode() * 1_000).hexdigest() for name in files}
    for count in THREADS:
        monkeypatch.setattr(pl, "thread_pool_size", lambda count=count: count)
        assert list(files_sha256(files).items()) == list(truth.items())


PREPARE = """
import sys
import polars as pl
from quantattn.data.market import encode, feature_blocks
from quantattn.data.market.prepare import prepare_market
from quantattn.data.protocol.labels import stretch
from quantattn.data.sources import scan_lobster
for module in (encode, feature_blocks, stretch):
    module.LEAST_ROWS = 100
stretch._BLOCK = 700
made = prepare_market(scan_lobster(sys.argv[1]))
columns = [made.baselines[part][name] for part in made.baselines for name in sorted(made.baselines[part])]
print(pl.thread_pool_size(), sorted(made.hashes.items()), [hash(column.tobytes()) for column in columns])
"""


def test_a_real_process_prepares_the_same_with_any_number_of_threads(tmp_path: Path) -> None:
    market = SyntheticMarket(entities=("MADE",), events_per_entity=6_000, events_per_session=2_000)
    write_lobster(market.source().frame.collect(), tmp_path)
    said = {}
    for number in (1, 4):
        environment = os.environ | {"POLARS_MAX_THREADS": str(number), "PYTHONHASHSEED": "0"}
        done = subprocess.run(
            [sys.executable, "-c", PREPARE, str(tmp_path)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        count, rest = done.stdout.split(maxsplit=1)
        assert count == str(number)
        said[number] = rest
    assert said[1] == said[4]
