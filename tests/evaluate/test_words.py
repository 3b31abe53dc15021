"""Forecasts from words: worked rows, the ridge beside its equation and scikit-learn's, what they may not look at."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from quantattn.evaluate.baselines import Recalibrated
from quantattn.evaluate.boosting import BOOSTING
from quantattn.evaluate.words import HISTORY_AND_RIDGE, RIDGE, Ridge, Weights, Words, word_values

CODES = 40


def words(n: int, seed: int, slope: float = 2.0) -> Words:
    """Documents of which the target goes by the share of word 7, and less by the history."""
    rng = np.random.default_rng(seed)
    documents, target, history = [], [], rng.normal(size=n)
    for place in range(n):
        often = int(rng.integers(0, 30))
        documents.append(np.concatenate([rng.integers(8, CODES, 200), np.full(often, 7)]))
        target.append(slope * np.log1p(often) + 0.3 * history[place] + rng.normal(0, 0.1))
    offsets = np.cumsum([0, *map(len, documents)])
    return Words(np.concatenate(documents), offsets, np.arange(n), history, np.asarray(target))


def test_rows_worked_by_hand() -> None:
    """Two documents, "a a b" and "a c": a is in both and weighs 1, b and c are in one and weigh 1 + ln(3/2)."""
    tokens, offsets = np.array([1, 1, 2, 1, 3]), np.array([0, 3, 5])
    counts = Words(tokens, offsets, np.array([0, 1]), np.zeros(2), np.zeros(2)).counts(5)
    assert counts.toarray().tolist() == [[0, 2, 1, 0, 0], [0, 1, 0, 1, 0]]
    assert tokens.tolist() == [1, 1, 2, 1, 3]
    weights = Weights.fit(counts)
    rare = 1 + np.log(1.5)
    assert weights.idf == pytest.approx([0, 1, rare, rare, 0])
    first, second = np.array([0, np.log(3), np.log(2) * rare, 0, 0]), np.array([0, 1, 0, rare, 0])
    truth = np.stack([first / np.linalg.norm(first), second / np.linalg.norm(second)])
    assert weights.rows(counts).toarray() == pytest.approx(truth)
    unknown = csr_array(np.array([[9.0, 0, 3, 0, 4], [9, 0, 0, 0, 9]]))
    assert weights.rows(unknown).toarray() == pytest.approx(np.array([[0.0, 0, 1, 0, 0], [0] * 5]))


@pytest.mark.parametrize(("n", "v"), [(12, 30), (30, 12)])
def test_both_equations_give_the_ridge_of_scikit_learn(n: int, v: int) -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is an extra")
    rng = np.random.default_rng(0)
    x, y, new = rng.normal(size=(n, v)), rng.normal(size=n), rng.normal(size=(5, v))
    for penalty in (0.1, 10.0):
        found = Ridge.fit(csr_array(x), y, penalty)
        truth = linear.Ridge(alpha=penalty).fit(x, y)
        assert found.weights == pytest.approx(truth.coef_, abs=1e-9)
        assert found.predict(csr_array(new)) == pytest.approx(truth.predict(new), abs=1e-9)
    heavy = Ridge.fit(csr_array(x), y, 1e12).predict(csr_array(new))
    assert heavy == pytest.approx(np.full(5, y.mean()), abs=1e-6)


def test_words_that_tell_are_found_and_more_with_the_history() -> None:
    train, valid, test = words(80, 0), words(20, 1), words(40, 2)
    found = word_values(train, valid, test, CODES)
    error = {name: float(np.mean((values - test.target) ** 2)) for name, values in found.items()}
    line = Recalibrated.fit(train.history, train.target).predict(test.history)
    nothing = float(np.mean((line - test.target) ** 2))
    assert error[HISTORY_AND_RIDGE] < error[RIDGE] < 0.2 * nothing
    if BOOSTING in error:
        assert error[BOOSTING] < 0.5 * nothing


def test_where_words_tell_nothing_little_is_lost_to_the_history() -> None:
    train, valid, test = words(80, 0, slope=0.0), words(40, 1, slope=0.0), words(80, 2, slope=0.0)
    found = word_values(train, valid, test, CODES)[HISTORY_AND_RIDGE]
    line = Recalibrated.fit(train.history, train.target).predict(test.history)
    assert np.mean((found - test.target) ** 2) < 1.1 * np.mean((line - test.target) ** 2)


def test_test_targets_are_not_read_and_each_document_is_forecast_alone() -> None:
    train, valid, test = words(30, 0), words(10, 1), words(10, 2)
    found = word_values(train, valid, test, CODES)
    blind = Words(test.tokens, test.offsets, test.decision, test.history, np.full(10, np.nan))
    first = Words(test.tokens[: test.offsets[1]], test.offsets[:2], test.decision[:1], test.history[:1], np.zeros(1))
    for name, values in word_values(train, valid, blind, CODES).items():
        assert (values == found[name]).all()
        alone = word_values(train, valid, first, CODES)[name]
        assert alone == pytest.approx(values[:1], abs=1e-12)


def test_pieces_of_a_document_have_its_forecast() -> None:
    train, valid, test = words(30, 0), words(10, 1), words(3, 2)
    pieces = np.array([0, 0, 0, 1, 2, 2])
    cut = Words(test.tokens, test.offsets, pieces, test.history[pieces], test.target[pieces])
    whole = word_values(train, valid, test, CODES)
    for name, values in word_values(train, valid, cut, CODES).items():
        assert (values == whole[name][pieces]).all()


def test_what_cannot_be_is_refused() -> None:
    one = words(1, 0)
    with pytest.raises(ValueError, match="two training documents or more, got 1"):
        word_values(one, one, one, CODES)
    with pytest.raises(ValueError, match="every one of 2 documents needs its tokens and a decision"):
        Words(np.arange(4), np.array([0, 2, 4]), np.array([0]), np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="1 decisions, 2 histories, 1 targets"):
        Words(np.arange(4), np.array([0, 4]), np.array([0]), np.zeros(2), np.zeros(1))
    nothing = Words(np.zeros(0, np.int64), np.array([0]), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    with pytest.raises(ValueError, match="target must be a non-empty"):
        word_values(words(9, 0), nothing, words(3, 1), CODES)
