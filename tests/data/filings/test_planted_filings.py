"""Made filings: the law that draws their labels, what each part of a text tells of them, and where the parts stand."""

from __future__ import annotations

from itertools import product
from math import log
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from quantattn.data.filings.items import items_of
from quantattn.data.filings.planted import PlantedFilings
from quantattn.data.filings.planted_text import _bank, count, least_distance
from quantattn.data.filings.prepare import prepare_filings
from quantattn.data.filings.tokenizer import FilingTokenizer
from quantattn.data.prepared import PARTS
from quantattn.data.protocol import WalkForward
from quantattn.data.sources.filings import scan_filings
from quantattn.data.sources.source import Source, SourceReport

SMALL = PlantedFilings(filings=60, companies=10, distance=300, copies=2)


def joint(law: PlantedFilings) -> dict[tuple[int, int, int], float]:
    """(s, d, up) → its chance, by going through everything that can be drawn: seller, rose, other direction."""
    cells: dict[tuple[int, int, int], float] = {}
    for seller, rose, other in product((True, False), repeat=3):
        chance = (law.sellers if seller else 1 - law.sellers) * 0.5 * (law.noise if other else 1 - law.noise)
        key = (2 * seller - 1, 2 * rose - 1, int((seller == rose) != other))
        cells[key] = cells.get(key, 0.0) + chance
    return cells


def reader(law: PlantedFilings, item_1a: bool, item_7: bool) -> tuple[float, float, float]:
    """Log loss, accuracy and Brier score of the posterior given these parts, enumerated."""
    seen: dict[tuple[int, int], list[float]] = {}
    for (s, d, up), chance in joint(law).items():
        seen.setdefault((s * item_1a, d * item_7), [0.0, 0.0])[up] += chance
    loss = sum(-chance * log(chance / sum(cell)) for cell in seen.values() for chance in cell)
    brier = sum(cell[0] * cell[1] / sum(cell) for cell in seen.values())
    return loss, sum(map(max, seen.values())), brier


@pytest.mark.parametrize("sellers", [0.5, 0.7])
def test_the_bayes_figures_are_those_of_enumeration(sellers: float) -> None:
    law = PlantedFilings(sellers=sellers, noise=0.1)
    for parts in product((True, False), repeat=2):
        found = law.bayes(*parts)
        assert (found.log_loss, found.accuracy, found.brier) == pytest.approx(reader(law, *parts), abs=1e-15)
        assert found.marker_seen == float(all(parts))
    for (s, d, up), chance in joint(law).items():
        given = law.probability_up(s, d) if up else 1 - law.probability_up(s, d)
        assert chance == pytest.approx((sellers if s == 1 else 1 - sellers) / 2 * given)


def test_worked_by_hand() -> None:
    """All: −0.95 ln 0.95 − 0.05 ln 0.05 = 0.1985. Item 7 alone is right in 0.7 · 0.95 + 0.3 · 0.05 = 0.68."""
    law = PlantedFilings()
    assert law.bayes().accuracy == pytest.approx(0.95)
    assert law.bayes().log_loss == pytest.approx(0.198515243)
    assert law.bayes(item_1a=False).accuracy == pytest.approx(0.68)
    assert law.bayes(item_1a=False).log_loss == pytest.approx(0.626869458)
    assert law.bayes_of(["we are a net seller; the price rose", "nothing"]).log_loss == pytest.approx(
        (0.198515243 + log(2)) / 2
    )


def test_a_text_without_both_parts_tells_nothing_when_sellers_are_half() -> None:
    """Cut before Item 1A's sentence or after it: the label is independent of what is left, exactly."""
    law = PlantedFilings(filings=40, companies=10, distance=300, copies=2, sellers=0.5)
    for text, end, start in law.truth().select("text", "marker_end", "question_start").iter_rows():
        s, d = law.read(text)
        assert s in (-1, 1)
        assert d in (-1, 1)
        assert law.read(text[:end]) == law.read(text[:start]) == (s, 0)
        assert law.read(text[end:]) == law.read(text[start:]) == (0, d)
        assert law.read(text[end:start]) == (0, 0)
        for left in (text[:start], text[end:], text[end:start], ""):
            assert law.probability_up(*law.read(left)) == 0.5
        assert law.probability_up(s, d) == pytest.approx(1 - law.noise if s == d else law.noise)
    assert PlantedFilings().probability_up(1, 0) == 0.5  # Item 1A alone never tells anything


def test_the_labels_are_drawn_by_the_law() -> None:
    law = PlantedFilings(filings=1_000, distance=200, copies=1)
    truth = law.truth()
    up = law.probability_up(truth["exposure"], truth["move"])
    label = truth["label"].to_numpy()
    loss = -np.log(np.where(label == 1, up, 1 - up))
    assert abs(loss.mean() - law.bayes().log_loss) < 4 * loss.std() / np.sqrt(len(loss))
    assert abs((truth["exposure"] == 1).mean() - 0.7) < 4 * np.sqrt(0.7 * 0.3 / 1_000)
    assert (np.sign(truth["amount"]) == 2 * label - 1).all()
    read = [law.read(text) for text in truth["text"]]
    assert read == list(truth.select("exposure", "move").iter_rows())


def test_everything_is_a_function_of_the_seed_and_the_place() -> None:
    assert SMALL.truth().equals(SMALL.truth())
    fewer = PlantedFilings(filings=7, companies=10, distance=300, copies=2)
    assert fewer.truth().equals(SMALL.truth().head(7))
    other = PlantedFilings(filings=60, companies=10, distance=300, copies=2, seed=1)
    assert (other.truth()["text"] != SMALL.truth()["text"]).all()
    assert other.source().report.files != SMALL.source().report.files


@pytest.mark.parametrize("distance", [least_distance(), least_distance() + 1, 300, 1_009])
def test_the_distance_is_as_set_in_tokens_of_a_fitted_tokenizer(distance: int) -> None:
    law = PlantedFilings(filings=40, companies=8, distance=distance, copies=2)
    made = prepare_filings(law, objective="planted", marks=False, vocabulary_size=4_096, max_seq_len=4_096)
    tokenizer = FilingTokenizer.from_json(made.vocabulary_json)
    for text, end, start in law.truth().select("text", "marker_end", "question_start").iter_rows():
        assert count(text[end:start]) == distance
        assert len(tokenizer.encode(text[end:start])) == distance
        whole = [len(tokenizer.encode(part)) for part in (text[:end], text[end:start], text[start:])]
        assert sum(whole) == len(tokenizer.encode(text))
    small = FilingTokenizer.fit(law.source().frame.collect(), fitted_until=2**62, vocabulary_size=300)
    assert len(small.encode(text[end:start])) > distance  # never fewer


def test_filings_grow_by_equal_ratios_and_those_to_test_on_have_the_whole_distance() -> None:
    law = PlantedFilings(filings=60, companies=10, distance=1_600, first_distance=200, growing=3, copies=2)
    assert [law.distance_in(year) for year in range(6)] == [200, 400, 800, 1_600, 1_600, 1_600]  # · 2 a year
    text, end, start = law.truth().select("text", "marker_end", "question_start").get_columns()
    between = [count(t[a:b]) for t, a, b in zip(text, end, start, strict=True)]
    assert between == [200] * 10 + [400] * 10 + [800] * 10 + [1_600] * 30
    # The last twelve of the sixty are tested on; what is drawn of a filing does not depend on its length.
    drawn = ["accession", "accepted", "exposure", "move", "amount", "label"]
    short = PlantedFilings(filings=60, companies=10, distance=200, copies=2)
    assert law.truth().select(drawn).equals(short.truth().select(drawn))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"first_distance": 1_001}, "first_distance grows to distance = 1000 and is no more, got 1001"),
        ({"first_distance": least_distance() - 1}, "first_distance must be at least"),
        ({"growing": 0}, "growing must be at least 1, got 0"),
    ],
)
def test_growth_that_is_none_is_refused(given: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PlantedFilings(**given)


def test_no_boilerplate_has_a_deciding_word() -> None:
    assert all(SMALL.read(paragraph) == (0, 0) for paragraph in _bank())


def test_the_item_parser_sees_a_10_k() -> None:
    for text, end, start in SMALL.truth().select("text", "marker_end", "question_start").head(5).iter_rows():
        items = items_of(text, "10-K")
        for name in ("1", "1A", "2", "3", "5", "7", "8"):
            assert items.status[name] == "found"
        assert SMALL.read(items["1A"])[0] != 0
        assert SMALL.read(items["7"]) == (0, SMALL.read(text)[1])
        assert text[start:].split("\n")[0] in items["7"]
        assert text[:end].split("\n")[-1] in items["1A"]
    counted = prepare_filings(SMALL, objective="planted", items=["7"], vocabulary_size=4_096, max_seq_len=4_096)
    assert counted.bayes_in_context is not None
    assert counted.bayes_in_context.log_loss == pytest.approx(SMALL.bayes(item_1a=False).log_loss)


def test_written_as_submissions_and_read_back_they_are_the_same(tmp_path: Path) -> None:
    law = PlantedFilings(filings=6, companies=2, distance=300, copies=2)
    law.write(tmp_path)
    shared = ["entity", "event_time", "available_time", "form", "accession", "text"]
    assert scan_filings(tmp_path).frame.select(shared).collect().equals(law.source().frame.select(shared).collect())


def test_prepared_like_any_filings_with_what_is_possible_in_each_window() -> None:
    cut = WalkForward(test=0.2, valid=0.1)
    whole = prepare_filings(SMALL, objective="planted", split=cut, vocabulary_size=4_096, max_seq_len=4_096)
    assert whole.audit.passed
    assert whole.classes == ("down", "up")
    assert whole.bayes is not None
    assert whole.bayes.log_loss == pytest.approx(reader(SMALL, True, True)[0])
    assert whole.bayes_in_context is not None
    assert whole.bayes_in_context.log_loss == pytest.approx(whole.bayes.log_loss)
    truth = dict(SMALL.truth().select("accession", "label").iter_rows())
    for name in PARTS:
        part = getattr(whole, name)
        assert part.decisions.targets["label"].tolist() == [truth[which] for which in part.table.entities]
    windows = prepare_filings(
        SMALL, objective="planted", split=cut, vocabulary_size=4_096, max_seq_len=256, on_long="window"
    )
    assert windows.bayes_in_context is not None
    assert windows.bayes_in_context.marker_seen == 0.0  # 256 tokens cannot hold what lies 300 apart
    assert windows.bayes_in_context.log_loss > SMALL.bayes(item_1a=False).log_loss
    assert "0.0% of the test sequences hold what Item 1A says and what Item 7 says" in windows.notes[-1]


def test_the_baseline_knows_no_label_before_it_is_told() -> None:
    table = SMALL.source().frame.collect()
    for _, rows in table.group_by("entity", maintain_order=True):
        assert rows["last_label"].to_list() == [-1, *rows["label"].to_list()[:-1]]
        assert (rows["label_end"][:-1].to_numpy() < rows["available_time"][1:].to_numpy()).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"distance": 100}, "distance must be at least 1"),
        ({"sellers": 0.4}, "sellers is a share"),
        ({"noise": 0.5}, "noise is the share"),
        ({"copies": 0}, "copies must be at least 1"),
        ({"filings": 3_000}, "raise companies"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        PlantedFilings(**settings)


def test_real_filings_have_no_planted_label() -> None:
    table = SMALL.source().frame.drop("label").collect()
    with pytest.raises(ValueError, match="is of made filings"):
        prepare_filings(Source(table.lazy(), (), SourceReport(table.height)), objective="planted")
    masked = prepare_filings(SMALL, objective="masked", vocabulary_size=4_096, max_seq_len=4_096)
    assert masked.bayes is None
    assert isinstance(SMALL.source().frame, pl.LazyFrame)
