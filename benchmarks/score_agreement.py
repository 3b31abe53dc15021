"""Figures of `quantattn evaluate` beside those of other packages, where they define the same thing.

    python benchmarks/score_agreement.py [--seeds 20]

The largest difference over seeded tables, some with ties. statsmodels and scikit-learn come with `quantattn[dev]`;
alphalens-reloaded (and empyrical, which it brings) are looked for and named when they are not there:
`pip install --target DIR alphalens-reloaded` and PYTHONPATH=DIR.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy import stats

from quantattn.evaluate import (
    Panel,
    as_panel,
    classification_metrics,
    diebold_mariano,
    long_short,
    mean_test,
    newey_west,
    regression_metrics,
    sharpe_ratio,
)
from quantattn.evaluate.ranking import coefficients, quantile_of, quantile_returns

DAY = 86_400 * 10**9
Found = Iterator[tuple[str, str, float]]
"""Package, what is compared, largest absolute difference."""


def table(seed: int, times: int = 80, entities: int = 25) -> tuple[Panel, np.ndarray]:
    """A panel of daily rows and its scores; every other seed has ties within a time."""
    rng = np.random.default_rng(seed)
    outcome = rng.standard_t(4, size=(times, entities)) * 0.01
    score = 0.2 * outcome / 0.01 + rng.normal(size=outcome.shape)
    at, entity = (grid.ravel() for grid in np.indices(outcome.shape))
    data, order = as_panel(19_723 * DAY + at * DAY, [f"E{i:02d}" for i in entity], outcome.ravel())
    return data, score.ravel()[order]


def gap(ours: Any, theirs: Any) -> float:
    """Largest absolute difference."""
    return float(np.abs(np.asarray(ours, float) - np.asarray(theirs, float)).max())


def with_scipy(seed: int) -> Found:
    """Correlations and the t-test."""
    data, score = table(seed)
    tied = score.round(seed % 2 * 8)
    ic, rank_ic = coefficients(data, tied)
    parts = [(tied[data.at == t], data.outcome[data.at == t]) for t in range(data.times.size)]
    yield "scipy", "IC (pearsonr)", gap(ic, [stats.pearsonr(*part).statistic for part in parts])
    yield "scipy", "rank IC (spearmanr)", gap(rank_ic, [stats.spearmanr(*part).statistic for part in parts])
    yield "scipy", "p without lags (ttest_1samp)", gap(mean_test(ic, 0).p, stats.ttest_1samp(ic, 0).pvalue)


def with_statsmodels(seed: int) -> Found:
    """Standard errors of means."""
    linear = importlib.import_module("statsmodels.regression.linear_model")
    data, score = table(seed)
    series = coefficients(data, score)[1]
    n, lag = series.size, 3 + seed % 20
    how = {"cov_type": "HAC", "cov_kwds": {"maxlags": lag, "use_correction": False}}
    fit = linear.OLS(series, np.ones(n)).fit(**how)
    yield "statsmodels", "Newey–West standard error", gap(np.sqrt(newey_west(series, lag) / n), fit.bse[0])
    yield "statsmodels", "Newey–West t", gap(mean_test(series, lag).t, fit.tvalues[0])
    loss, other = (data.outcome - 0.001 * score) ** 2, data.outcome**2
    found = diebold_mariano(loss, other, data.times[data.at])
    each = np.array([(loss - other)[data.at == t].mean() for t in range(n)])
    how["cov_kwds"] = {"maxlags": found.lag, "use_correction": False}
    theirs = linear.OLS(each, np.ones(n)).fit(**how).tvalues[0]
    yield "statsmodels", "Diebold–Mariano t (regression on a constant)", gap(found.t, theirs)


def with_scikit_learn(seed: int) -> Found:
    """Classification and regression."""
    sk = importlib.import_module("sklearn.metrics")
    rng = np.random.default_rng(seed)
    y, prob = rng.integers(0, 3, 500), rng.dirichlet(np.ones(3), 500)
    ours, said = classification_metrics(y, prob), prob.argmax(axis=1)
    for name, theirs in {
        "mcc": sk.matthews_corrcoef(y, said),
        "balanced_accuracy": sk.balanced_accuracy_score(y, said),
        "macro_f1": sk.f1_score(y, said, average="macro"),
        "accuracy": sk.accuracy_score(y, said),
        "log_loss": sk.log_loss(y, prob),
        "brier": sk.brier_score_loss(y, prob, labels=[0, 1, 2], scale_by_half=False),
    }.items():
        yield "scikit-learn", name, gap(ours[name], theirs)
    actual, forecast = rng.normal(size=(2, 500))
    values = regression_metrics(actual, forecast, np.full(500, actual.mean()))
    yield "scikit-learn", "mse", gap(values["mse"], sk.mean_squared_error(actual, forecast))
    yield "scikit-learn", "mae", gap(values["mae"], sk.mean_absolute_error(actual, forecast))
    yield "scikit-learn", "R², the history being the mean", gap(values["r2"], sk.r2_score(actual, forecast))


def with_alphalens(seed: int) -> Found:
    """Rank IC, quantiles, spread and turnover; empyrical's Sharpe ratio."""
    pd, theirs = importlib.import_module("pandas"), importlib.import_module("alphalens.performance")
    data, score = table(seed)
    names = ["date", "asset"]
    index = pd.MultiIndex.from_arrays(
        [pd.to_datetime(data.times[data.at]), np.array(data.names)[data.entity]], names=names
    )
    frame = pd.DataFrame({"1D": data.outcome, "factor": score}, index=index)
    cut = frame.groupby("date")["factor"].transform(lambda s: pd.qcut(s, 5, labels=False)).to_numpy().astype(int)
    yield "alphalens", "quantile of each row (qcut)", gap(quantile_of(data.at, score, 5), cut)
    frame["factor_quantile"] = cut + 1
    series = theirs.factor_information_coefficient(frame)["1D"].to_numpy()
    yield "alphalens", "rank IC", gap(coefficients(data, score)[1], series)
    means, _ = theirs.mean_return_by_quantile(frame, by_date=True, demeaned=False)
    ours = [test.value for test in quantile_returns(data, score, 5) if test is not None]
    yield "alphalens", "mean outcome by quantile", gap(ours, means["1D"].groupby("factor_quantile").mean())
    book = long_short(data, score, cost_bps=0)
    spread, _ = theirs.compute_mean_returns_spread(means, 5, 1)
    yield "alphalens", "long–short (twice theirs: a unit a side, not half)", gap(book.gross, 2 * spread["1D"])
    still, _ = as_panel(data.times[data.at], data.entity, np.zeros(score.size))
    traded = long_short(still, score).traded[1:-1] / 4
    legs = [theirs.quantile_turnover(frame["factor_quantile"], leg).dropna().to_numpy()[:-1] for leg in (1, 5)]
    yield "alphalens", "turnover of both sides, prices at rest", gap(traded, np.mean(legs, axis=0))
    ratio = importlib.import_module("empyrical").sharpe_ratio(pd.Series(book.gross), annualization=1)
    yield "empyrical", "Sharpe ratio a period", gap(sharpe_ratio(book.gross).ratio, ratio)


def main() -> None:
    """Print the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    groups = {
        "scipy": ("scipy", with_scipy),
        "statsmodels": ("statsmodels", with_statsmodels),
        "scikit-learn": ("sklearn", with_scikit_learn),
        "alphalens-reloaded": ("alphalens", with_alphalens),
    }
    for name, (module, compare) in groups.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's, about their own future
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                print(f"{name}: not compared, {error}")
                continue
            worst: dict[tuple[str, str], float] = {}
            for seed in range(seeds):
                for package, what, difference in compare(seed):
                    worst[package, what] = max(worst.get((package, what), 0.0), difference)
        print(f"{name} {version(name)}, {seeds} tables")
        for (package, what), difference in worst.items():
            print(f"  {difference:8.1e}  {'' if difference <= 1e-10 else 'MORE THAN 1e-10: '}{package}: {what}")


if __name__ == "__main__":
    main()
