"""Every real file is taken for what it is, or refused in one sentence; the smaller ones are read and counted."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from quantattn.data.examine import examine
from quantattn.data.recognise import bundle, one_format, recognise, recognise_folder
from quantattn.data.sources import SOURCES

pytest.importorskip("databento_dbn", reason="databento-dbn is not here (pip install 'quantattn[dbn]')")

EXPECTED: Mapping[str, str] = {
    "lob/lobster/LOBSTER_SampleFiles_ReadMe.txt": "a text that is no data",
    "lob/lobster/*": "lobster",
    "lob/databento/tiny/test_data.imbalance.dbn": "holds the schema imbalance, expected one of mbo",
    "lob/databento/tiny/test_data.mbo.dbz": "it is DBZ, the container before DBN",
    "lob/databento/*": "databento",
    "lob/itch/*": "itch",
    "lob/crypto/binance_*-depth-*": "binance_depth",
    "lob/crypto/binance_*-trades.parquet": "binance",
    "lob/crypto/bitstamp_*": "bitstamp",
    "lob/crypto/hftbacktest_*": "hftbacktest",
    "lob/crypto/cryptofeed_*": "capture",
    "lob/crypto/tardis_*": "tardis",
    "lob/fx_and_taq/truefx_*": "ticks",
    "lob/fx_and_taq/taq_*": "taq",
    "lob/fx_and_taq/es_dollar_bars*": "bars",
    "events/*/client.*": "without a column of times",
    "events/*/disp.*": "without a column of times",
    "events/*/district.*": "without a column of times",
    "events/*/order.*": "without a column of times",
    "events/*/age-bin.csv": "without a column of times",
    "events/*": "table",
    "prices/*": "bars",
    "filings/full_submission/*": "filings",
    "filings/old_ascii/*": "filings",
    "filings/html_*/*": "filings",
    "filings/edgar_crawler_raw_8-K/*": "filings",
    "filings/edgar_corpus_json_*/*": "filings",
    "filings/edgar_crawler_FILINGS_METADATA.csv.gz": "an index of filings",
    "filings/sec_company_tickers.json.gz": "EDGAR's list of tickers",
}
"""Pattern of names → the format, or words of the sentence; the first that fits counts."""
ROWS: Mapping[str, tuple[dict[str, Any], int]] = {
    "lob/lobster/AAPL_2012-06-21_34200000_57600000_message_10.csv": ({}, 999),
    "lob/databento/tiny/test_data.mbp-10.dbn": ({}, 2),
    "lob/crypto/binance_btcusdt-trades.parquet": ({}, 2_001),
    "lob/crypto/tardis_bitmex_trades_XBTUSD.csv": ({}, 10),
    "lob/crypto/hftbacktest_hyperliquid_btcusd_20250126.gz": ({}, 110),
    "lob/fx_and_taq/truefx_usdjpy-ticks.csv": ({}, 1_185),
    "prices/yfinance_ohlcv_2000_2025/PLTR.csv.gz": ({}, 1_209),
    "events/sberbank_age/age-transactions.csv": (
        {"id": "client_id", "time": "trans_date", "time_format": "day", "columns": {"small_group": "category"}},
        1_000,
    ),
}
"""File → settings of its source that it does not tell, and the rows of its table."""


def test_every_file_has_its_format_or_its_sentence(realdata: Path) -> None:
    files = [f for room in ("lob", "events", "prices", "filings") for f in sorted((realdata / room).rglob("*"))]
    wrong = []
    for file in files:
        if not file.is_file():
            continue
        name = file.relative_to(realdata).as_posix()
        wanted = next(answer for pattern, answer in EXPECTED.items() if fnmatch(name, pattern))
        found = recognise(file)
        if " " in wanted:
            right = not found.read and wanted in found.sentence and "\n" not in found.sentence
        else:
            right = found.read and found.format is not None and found.format.name == wanted
        if not right:
            wrong.append((name, found.format and found.format.name, found.sentence))
    assert len(files) > 100
    assert wrong == []


@pytest.mark.parametrize("name", ROWS)
def test_the_source_that_is_named_reads_the_file(realdata: Path, name: str) -> None:
    given, rows = ROWS[name]
    found = recognise(realdata / name)
    assert found.format is not None
    source = SOURCES[found.format.source](realdata / name, **given)
    counted, curve = examine(source, found.format.zone, found.format.calendar)
    assert (counted.rows, counted.looked_at) == (rows, rows)
    assert counted.rows == source.report.rows_read
    assert curve is not None


def test_folders_of_one_format_are_told_as_such(realdata: Path) -> None:
    for name, wanted in (
        ("prices/yfinance_ohlcv_2000_2025", "bars"),
        ("lob/lobster", "lobster"),
        ("filings/full_submission", "filings"),
        ("lob/crypto", None),
    ):
        found = one_format(recognise_folder(realdata / name)[0])
        assert (found and found.name) == wanted
    for name, wanted in (("events/sberbank_age", "sberbank"), ("events/berka", "berka"), ("lob/lobster", None)):
        told = bundle(realdata / name)
        assert (told and told[0].name) == wanted
