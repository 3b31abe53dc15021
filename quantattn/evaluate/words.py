"""Forecasts from the words of documents, beside which a text encoder stands (Kogan et al. 2009, NAACL, pages 272–280).

A document d with n_t tokens t has the row x_t = ln(1 + n_t) · (1 + ln((1 + N) / (1 + df_t))), scaled to length one; N
documents and df_t of them with t are counted in training, and a t that none of them has counts as 0. Penalty and number
of trees are those with the lowest squared error on the validation documents, as the encoder is stopped there.
scikit-learn is an extra (`compare`), needed for boosting alone.

Dimensions: D documents, T tokens of all of them, V codes, Q decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import scipy  # whose parts are imported where they are used first
from numpy.typing import ArrayLike, NDArray

from quantattn.evaluate.baselines import Recalibrated
from quantattn.evaluate.boosting import BOOSTING, FEW_ROWS, TREE_SETTINGS, boosting_is_installed
from quantattn.evaluate.metrics import finite

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RIDGE, HISTORY_AND_RIDGE = "TF-IDF ridge", "history and TF-IDF ridge"
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
COMPONENTS = 16


@dataclass(frozen=True)
class Words:
    """The documents of one part.

    Attributes:
        tokens: (T,) codes, document after document.
        offsets: (D + 1,) tokens offsets[d]:offsets[d + 1] are those of document d.
        decision: (Q,) the document of each decision; every document has one.
        history: (Q,) the target's own past as of each decision, the same for decisions of one document.
        target: (Q,) what is to be forecast; of test documents it is not read.
    """

    tokens: Ints
    offsets: Ints
    decision: Ints
    history: Floats
    target: Floats

    def __post_init__(self) -> None:
        documents = len(self.offsets) - 1
        if not len(self.decision) == len(self.history) == len(self.target):
            raise ValueError(
                f"{len(self.decision)} decisions, {len(self.history)} histories, {len(self.target)} targets"
            )
        if self.offsets[-1] != len(self.tokens) or not np.array_equal(np.unique(self.decision), np.arange(documents)):
            raise ValueError(f"every one of {documents} documents needs its tokens and a decision")

    @classmethod
    def of_pieces(
        cls, tokens: ArrayLike, offsets: Ints, names: Sequence[str], piece: Ints, history: ArrayLike, target: ArrayLike
    ) -> Words:
        """The documents of which these are the pieces, put together again.

        Args:
            tokens: (T,) codes, piece after piece.
            offsets: (P + 1,) tokens offsets[p]:offsets[p + 1] are those of piece p.
            names: of the document of each of the P pieces; those of one document follow one another.
            piece: (Q,) the piece of each decision.
            history: (Q,).
            target: (Q,).
        """
        new = np.asarray([at == 0 or name != names[at - 1] for at, name in enumerate(names)], bool)
        return cls(
            np.asarray(tokens, np.int64),
            np.append(offsets[:-1][new], offsets[-1]),
            (np.cumsum(new) - 1)[piece],
            np.asarray(history, np.float64),
            np.asarray(target, np.float64),
        )

    @property
    def first(self) -> Ints:
        """(D,) the first decision of each document."""
        return np.unique(self.decision, return_index=True)[1].astype(np.int64)

    def counts(self, codes: int) -> scipy.sparse.csr_array[Any, Any]:
        """(D, V) how often each document has each code."""
        ones = np.ones(len(self.tokens))
        # A copy: summing works in place.
        made = scipy.sparse.csr_array(
            (ones, self.tokens, self.offsets), shape=(len(self.offsets) - 1, codes), copy=True
        )
        made.sum_duplicates()
        return made


@dataclass(frozen=True)
class Weights:
    """1 + ln((1 + N) / (1 + df_t)) of training documents, (V,); 0 for a code that none of them has."""

    idf: Floats

    @classmethod
    def fit(cls, counts: scipy.sparse.csr_array[Any, Any]) -> Weights:
        """Count documents by code."""
        with_code = np.bincount(counts.indices, minlength=counts.shape[1])
        return cls(np.where(with_code > 0, 1 + np.log((1 + counts.shape[0]) / (1 + with_code)), 0.0))

    def rows(self, counts: scipy.sparse.csr_array[Any, Any]) -> scipy.sparse.csr_array[Any, Any]:
        """(D, V) of length one, or zero for a document without any code of the training documents."""
        made = counts.copy()
        made.data = np.log1p(made.data) * self.idf[made.indices]
        length = np.sqrt(made.multiply(made).sum(axis=1))
        made.data /= np.repeat(np.where(length > 0, length, 1.0), np.diff(made.indptr))
        return made


@dataclass(frozen=True)
class Ridge:
    """Mean of y + (x − mean of x) · w, with w the minimum of ‖y − ŷ‖² + penalty · ‖w‖² over training rows."""

    mean: Floats  # (V,)
    level: float
    weights: Floats  # (V,)

    @classmethod
    def fit(cls, x: scipy.sparse.csr_array[Any, Any], y: Floats, penalty: float) -> Ridge:
        """Solve the smaller of the two normal equations, over rows or over columns."""
        n, v = x.shape
        mean, level = np.asarray(x.mean(axis=0)).ravel(), float(y.mean())
        if n <= v:
            gram = (x @ x.T).toarray()
            side = np.asarray(x @ mean)
            gram += float(mean @ mean) - side[:, None] - side[None, :]
            dual = scipy.linalg.solve(gram + penalty * np.eye(n), y - level, assume_a="pos")
            weights = np.asarray(x.T @ dual) - mean * dual.sum()
        else:
            gram = (x.T @ x).toarray() - n * np.outer(mean, mean)
            weights = scipy.linalg.solve(gram + penalty * np.eye(v), np.asarray(x.T @ (y - level)), assume_a="pos")
        return cls(mean, level, weights)

    def predict(self, x: scipy.sparse.csr_array[Any, Any]) -> Floats:
        """(D,) values."""
        return np.asarray(x @ self.weights - float(self.mean @ self.weights) + self.level, np.float64)


def word_values(train: Words, valid: Words, test: Words, codes: int, *, seed: int = 0) -> dict[str, Floats]:
    """Name → (Q_test,) forecasts: the words alone, the words beside the history, and boosted trees of both.

    "TF-IDF ridge" reads the words alone. "history and TF-IDF ridge" is the recalibrated history plus a ridge of what
    that leaves. "gradient boosting" has the history, the log of the length and the first 16 singular components of the
    rows; without scikit-learn it is not there.

    Args:
        train: what is fitted on.
        valid: what penalty and number of trees are chosen by.
        test: what is forecast.
        codes: V.
        seed: of the boosting's bins.

    Raises:
        ValueError: fewer than two training documents, no validation or test document, or a target or a history that is
            not finite.
    """
    parts = (train, valid, test)
    counts = [part.counts(codes) for part in parts]
    if counts[0].shape[0] < 2:
        raise ValueError(f"forecasts from words need two training documents or more, got {counts[0].shape[0]}")
    weights = Weights.fit(counts[0])
    rows = [weights.rows(each) for each in counts]
    y_train, y_valid = (finite(part.target[part.first], "target") for part in parts[:2])
    past = [finite(part.history[part.first], "history") for part in parts]
    line = Recalibrated.fit(past[0], y_train)
    lines = [line.predict(each) for each in past]
    found = {
        RIDGE: _ridge(rows, y_train, y_valid),
        HISTORY_AND_RIDGE: lines[2] + _ridge(rows, y_train - lines[0], y_valid - lines[1]),
    }
    if boosting_is_installed():
        features = _features(rows, counts, past)
        found[BOOSTING] = boosted_values(features[0], y_train, features[1], y_valid, features[2], seed=seed)
    return {name: values[test.decision] for name, values in found.items()}


def _ridge(rows: list[scipy.sparse.csr_array[Any, Any]], y_train: Floats, y_valid: Floats) -> Floats:
    fits = [Ridge.fit(rows[0], y_train, penalty) for penalty in PENALTIES]
    return fits[_best((fit.predict(rows[1]) for fit in fits), y_valid)].predict(rows[2])


def _features(
    rows: list[scipy.sparse.csr_array[Any, Any]], counts: list[scipy.sparse.csr_array[Any, Any]], past: list[Floats]
) -> tuple[Floats, Floats, Floats]:
    """(D, 2 + K) of each part: history, log of the length, the first singular components of the training rows."""
    size = min(COMPONENTS, min(rows[0].shape) - 1)
    _, _, axes = scipy.sparse.linalg.svds(rows[0], k=size, v0=np.ones(min(rows[0].shape)))
    train, valid, test = (
        np.column_stack([h, np.log1p(np.asarray(n.sum(axis=1)).ravel()), np.asarray(x @ axes.T)])
        for h, n, x in zip(past, counts, rows, strict=True)
    )
    return train, valid, test


def boosted_values(
    train: Floats, y_train: Floats, valid: Floats, y_valid: Floats, test: Floats, *, seed: int = 0
) -> Floats:
    """(D_test,) values of histogram gradient boosting, trees and leaves as for classes (`boosted_probabilities`).

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    model = HistGradientBoostingRegressor(**TREE_SETTINGS, random_state=seed)
    with threadpool_limits(limits=1 if len(train) < FEW_ROWS else None):
        model.fit(train, y_train)
        best = _best(model.staged_predict(valid), y_valid)
        return np.asarray(next(islice(model.staged_predict(test), best, None)), np.float64)


def _best(forecasts: Iterable[ArrayLike], y: Floats) -> int:
    """Number of the forecasts with the lowest squared error."""
    return int(np.argmin([np.mean((np.asarray(each) - y) ** 2) for each in forecasts]))
