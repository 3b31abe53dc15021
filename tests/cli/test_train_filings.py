"""The whole line on filings and prices: submissions as EDGAR writes them, CSV closes, a regression, a report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from quantattn import load_model
from quantattn.cli import main
from quantattn.data.market.sessions import exchange_sessions

DAY = 86_400 * 10**9
FIRST = 1_577_836_800 * 10**9  # 2020-01-01
COMPANIES = {"AAA": 11, "BBB": 22}
WORDS = ("revenue", "margin", "litigation", "guidance", "inventory", "covenant", "dividend", "backlog")


def submission(number: int, cik: int, day: str, words: list[str]) -> str:
    name = f"{number:010d}-20-000001"
    return (
        f"<SEC-DOCUMENT>{name}.txt : {day}\n<SEC-HEADER>{name}.hdr.sgml : {day}\n<ACCEPTANCE-DATETIME>{day}101500\n"
        f"ACCESSION NUMBER:\t\t{name}\nCONFORMED SUBMISSION TYPE:\t10-K\nFILED AS OF DATE:\t\t{day}\n\n"
        "FILER:\n\n\tCOMPANY DATA:\n\t\tCOMPANY CONFORMED NAME:\t\t\tACME\n"
        f"\t\tCENTRAL INDEX KEY:\t\t\t{cik}\n</SEC-HEADER>\n"
        f"<DOCUMENT>\n<TYPE>10-K\n<SEQUENCE>1\n<TEXT>\nFORM 10-K\n\n{' '.join(words)}\n</TEXT>\n</DOCUMENT>\n"
        "</SEC-DOCUMENT>\n"
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Forty filings of two companies over two years, and the closes of their stocks."""
    home = tmp_path_factory.mktemp("edgar")
    rng = np.random.default_rng(0)
    opens = exchange_sessions("XNYS", FIRST, FIRST + 800 * DAY).open
    days = [str(np.datetime64(int(t), "ns").astype("datetime64[D]")) for t in opens]
    (home / "filings").mkdir()
    (home / "prices").mkdir()
    for ticker, cik in COMPANIES.items():
        closes = 100 * np.exp(np.cumsum(rng.normal(0, 0.02, len(days))))
        lines = [f"{day},{close:.4f}" for day, close in zip(days, closes, strict=True)]
        (home / "prices" / f"{ticker}.csv").write_text("date,close\n" + "\n".join(lines) + "\n")
        for place in range(20):
            words = [str(word) for word in rng.choice(WORDS, 40)]
            text = submission(100 * cik + place, cik, days[40 + 22 * place].replace("-", ""), words)
            (home / "filings" / f"{ticker}-{place:02d}.txt").write_text(text)
    tickers = {
        str(i): {"cik_str": cik, "ticker": t, "title": t} for i, (t, cik) in enumerate((("AAA", 11), ("BBB", 22)))
    }
    (home / "tickers.json").write_text(json.dumps(tickers))
    return {"filings": home / "filings", "prices": home / "prices", "tickers": home / "tickers.json"}


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main("train")


def settings(folders: dict[str, Path]) -> list[str]:
    return [
        "experiment=filings",
        f"data.path={folders['filings']}",
        "data.prepare.vocabulary_size=300",
        "data.max_seq_len=512",
        "data.max_tokens_per_batch=2048",
        "trainer.max_steps=4",
        "trainer.validate_every=2",
        "trainer.threads=1",
    ]


def test_volatility_after_filings(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [f"data.prepare.prices={folders['prices']}", f"data.prepare.tickers={folders['tickers']}"]
    run = tmp_path / "run"
    code = call(monkeypatch, *settings(folders), *given, "labels.horizon=20", f"paths.output_dir={run}")
    assert code == 0
    table = json.loads((run / "metrics.json").read_text())["table"]
    words = {"TF-IDF ridge", "history and TF-IDF ridge", "gradient boosting"}
    others = {"history", "recalibrated history", "training mean"}
    assert {row["method"] for row in table["rows"]} == {"encoder"} | others | words
    assert (run / "report.html").is_file()
    (head,) = load_model(run / "model").head_configs.values()
    assert head.kind == "regression"
    assert head.mean < 0 < head.std  # type: ignore[union-attr]  # log of a daily deviation of about 2 %


def test_masked_language_needs_no_prices(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    given = ["objective=masked_language", "labels=none", f"paths.output_dir={run}"]
    assert call(monkeypatch, *settings(folders), *given) == 0
    assert 0 < json.loads((run / "metrics.json").read_text())["figures"]["test/log_loss"] < np.log(300)


def test_labels_without_prices_are_refused(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *settings(folders), f"paths.output_dir={tmp_path / 'run'}") == 2
    assert "needs prices and tickers" in capsys.readouterr().err
