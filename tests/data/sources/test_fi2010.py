"""FI-2010's matrices: both protocols, shipped labels as they are, damaged files, and a run from files to sequences."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quantattn.data.market.prepare import prepare_market
from quantattn.data.protocol import ByDay, ShippedLabel
from quantattn.data.schema import Events, check
from quantattn.data.sources import SOURCES, scan_fi2010
from quantattn.data.sources.fi2010 import DAYS

NAME = "{}_Dst_NoAuction_{}_CF_{}.txt"
DAY = 86_400 * 10**9


def matrix(events: int, seed: int) -> np.ndarray:
    """Features, and labels of which the first feature tells the direction."""
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(144, events))
    labels = np.where(features[0] > 0.5, 1, np.where(features[0] < -0.5, 3, 2))
    return np.vstack([features, np.tile(labels, (5, 1))])


def write(folder: Path, part: str, fold: int, numbers: np.ndarray, norm: str = "ZScore") -> Path:
    path = folder / NAME.format(part, norm, fold)
    path.write_text("\n".join("   ".join(f"{number:.7e}" for number in row) for row in numbers) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for fold in range(1, 10):
        write(tmp_path, "Test", fold, matrix(20 + fold, fold))
    write(tmp_path, "Train", 1, matrix(50, 0))
    write(tmp_path, "Train", 7, matrix(300, 77))
    return tmp_path


def test_both_protocols_take_their_files_in_order_of_time(folder: Path) -> None:
    three = scan_fi2010(folder)
    frame = check(three.frame.collect(), Events)
    assert frame.height == 300 + 27 + 28 + 29
    days = pl.from_epoch(frame["available_time"], time_unit="ns").dt.date()
    assert days.rle().struct.field("len").to_list() == [43, 43, 43, 43, 43, 43, 42, 27, 28, 29]
    assert days.unique(maintain_order=True).to_list() == list(DAYS)
    assert frame["file"].rle().struct.field("len").to_list() == [300, 27, 28, 29]
    assert three.protocol in three.report.notes[0]
    assert "protocol seven and three" in three.protocol
    anchored = scan_fi2010(folder, protocol="anchored")
    frame = anchored.frame.collect()
    days = pl.from_epoch(frame["available_time"], time_unit="ns").dt.date()
    assert days.unique(maintain_order=True).to_list() == list(DAYS)
    assert days.rle().struct.field("len").to_list() == [50, *range(21, 30)]
    assert "protocol anchored" in anchored.report.notes[0]


def test_values_and_labels_are_those_of_the_file(folder: Path) -> None:
    frame = scan_fi2010(folder).frame.collect()
    shipped = matrix(300, 77)
    assert np.allclose(frame.select(f"feature_{n}" for n in range(1, 145))[:300].to_numpy(), shipped[:144].T, 1e-6)
    for k in (10, 20, 30, 50, 100):
        assert frame[f"label_{k}"][:300].to_list() == shipped[144].astype(int).tolist()
    label = ShippedLabel(10)
    measured = label.measure(frame)
    finished, fitted = label.finish(measured, np.arange(5))
    # 1 is up, 3 is down: the first feature rose with the label.
    names = [label.class_names[code] for code in finished["label"]]
    assert [name == "up" for name in names] == (frame["feature_1"] > 0.5).to_list()
    assert fitted.fitted_until is None
    time = frame["available_time"].to_list()
    assert measured["label_end"].to_list()[:291] == [*time[10:300], time[299]]
    assert measured["label_end"][299] == time[299] + 1  # the last of a file looks at nothing of the next day
    assert (measured["label_end"] > measured["label_start"]).all()
    with pytest.raises(ValueError, match="10, 20, 30, 50 and 100 events ahead, got 40"):
        ShippedLabel(40)
    with pytest.raises(ValueError, match="no column 'label_10'"):
        label.measure(frame.drop("label_10"))


def test_a_run_trains_on_seven_days_and_tests_on_three(folder: Path) -> None:
    source = scan_fi2010(folder)
    given = {"max_seq_len": 16, "min_context": 4, "fields": ["feature_1", "feature_2"]}
    made = prepare_market(source, label=ShippedLabel(20), split=ByDay(n_folds=1, test=3, valid=0), **given)
    assert len(made.as_of["test"]) == 27 + 28 + 29
    assert made.as_of["train"].max() < made.as_of["test"].min()
    chosen = prepare_market(source, label=ShippedLabel(20), split=ByDay(n_folds=1, test=3, valid=1), **given)
    assert len(chosen.as_of["valid"]) == 42  # the last seventh of the training file
    assert (chosen.as_of["test"] == made.as_of["test"]).all()
    assert made.classes == ("down", "flat", "up")
    assert made.baselines["train"]["features"].shape[1] == 144
    assert set(made.codes) == {"feature_1_code", "feature_2_code"}
    assert all(check.verdict != "failed" for check in made.audit.checks)
    folds = scan_fi2010(folder, protocol="anchored")
    ninth = prepare_market(folds, label=ShippedLabel(10), split=ByDay(n_folds=9, test=1, valid=0), fold=8, **given)
    assert len(ninth.as_of["test"]) == 29
    first = prepare_market(folds, label=ShippedLabel(10), split=ByDay(n_folds=9, test=1, valid=0), fold=0, **given)
    assert (len(first.as_of["train"]) <= 50, len(first.as_of["test"])) == (True, 21)


def test_a_packed_file_is_read(folder: Path) -> None:
    plain = scan_fi2010(folder).frame.collect()
    file = folder / NAME.format("Test", "ZScore", 8)
    (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(ValueError, match="are the same file twice"):
        scan_fi2010(folder)
    file.unlink()
    assert scan_fi2010(folder).frame.collect().equals(plain)


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        scan_fi2010(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_damaged_and_missing_files_are_named(folder: Path) -> None:
    file = folder / NAME.format("Test", "ZScore", 9)
    lines = file.read_text().splitlines()

    def said(changed: list[str]) -> str:
        file.write_text("\n".join(changed))
        return refusal(folder).removeprefix(file.name)

    assert said(lines[:-1]).startswith(" has 148 rows of numbers, expected 149")
    assert "line 3: found 28 numbers, expected 29" in said([*lines[:2], lines[2].rsplit(maxsplit=1)[0], *lines[3:]])
    assert "line 4: found 'x' as field 2, expected a number" in said([*lines[:3], "1 x " + lines[3], *lines[4:]])
    assert "line 149: found 4 as the label of event 1" in said([*lines[:-1], "4 " + lines[-1].split(maxsplit=1)[1]])
    assert "line 1: found a number without end" in said(["nan " + lines[0].split(maxsplit=1)[1], *lines[1:]])
    file.unlink()
    assert "lacks test CF_9 of NoAuction ZScore" in refusal(folder)
    write(folder, "Test", 9, matrix(5, 0), "DecPre")
    assert "holds several variants: NoAuction DecPre, NoAuction ZScore" in refusal(folder)
    assert "holds no file such as" in refusal(_empty(folder))
    with pytest.raises(ValueError, match="protocol must be one of"):
        scan_fi2010(folder, protocol="mine")  # type: ignore[arg-type]
    assert SOURCES["fi2010"] is scan_fi2010


def _empty(folder: Path) -> Path:
    (folder / "none").mkdir()
    return folder / "none"
