"""A judged score in words, to somebody who does not model: the first screen of its report."""

from __future__ import annotations

import math

import numpy as np

from quantattn.evaluate.assessment import Assessment, annual
from quantattn.evaluate.report import Tone, Verdict
from quantattn.evaluate.score_figures import BASIS
from quantattn.evaluate.score_report import length, money
from quantattn.evaluate.significance import Interval


def in_words(judged: Assessment) -> Verdict:
    """What was found, to somebody who does not model."""
    best, ranked = judged.best, judged.model.ranking
    if ranked is None:
        raise ValueError("a score that orders nothing has no verdict")
    difference, own = judged.against_best, ranked.test
    tone: Tone = "unclear"
    if difference.high is not None and difference.high < 0:
        tone = "worse"
    elif difference.low is not None and difference.low > 0 and own.value > 0 and (own.low is None or own.low > 0):
        tone = "better"
    net = judged.model.net
    earns = net.low is not None and net.low > 0
    headline = {
        "better": "The score orders what comes after better than the best baseline"
        + ("." if earns else ", but that it earns its costs is not shown."),
        "unclear": "No evidence that the score orders what comes after better than the best baseline.",
        "worse": "The score orders what comes after worse than the best baseline.",
    }[tone]
    theirs = 0.0 if best.ranking is None else best.ranking.test.value
    better = (
        f"Rank correlation of score and outcome at one time, on average {own.value:.3f}, against {theirs:.3f} for "
        f"{best.name}, the best baseline. 0 is no order, 1 a perfect one: of 100 pairs the higher score did better in "
        f"about {100 * pairs_in_order(own.value):.0f}, against {100 * pairs_in_order(theirs):.0f}."
    )
    return Verdict(
        tone=tone,
        headline=headline,
        figure=f"{own.value - theirs:+.3f} rank correlation",
        better=better,
        chance="May be chance" if tone == "unclear" else "Unlikely to be chance",
        sure=_sure(judged, difference, ranked.at.size, ranked.skipped),
        cost=_cost(judged),
    )


def _sure(judged: Assessment, difference: Interval, times: int, skipped: int) -> str:
    level = judged.terms.level
    if difference.low is None or difference.high is None:
        text = f"No interval: {times:,} times are too few, or do not vary. "
    else:
        text = (
            f"With {level:.0%} confidence the difference in rank IC is between {difference.low:+.3f} and "
            f"{difference.high:+.3f}, from {times:,} times"
            + (f" ({skipped:,} more order nothing). " if skipped else ". ")
        )
    if (entity := judged.intervals.get("entity")) is not None and entity.low is not None and entity.high is not None:
        hangs = "it does not hang on a few names" if entity.excludes(0) else "with other names it may be nothing"
        text += f"Over other entities its rank IC is between {entity.low:.3f} and {entity.high:.3f}: {hangs}. "
    trials = judged.terms.trials
    if trials is None:
        return text + "How many scores were tried before this one nobody said; the more, the less this shows."
    if judged.deflated is None:
        return text
    return text + (
        f"Granted that it is the best of {trials:,} tried, the Sharpe ratio is above zero with a probability of "
        f"{likely(judged.deflated)}."
    )


def pairs_in_order(rank_correlation: float) -> float:
    """Share of pairs in which the higher score did better, where both are normal: ½ + arcsin(2 sin(πρ/6))/π.

    Spearman's ρ gives Pearson's, and that Kendall's τ = 2·share − 1 (Kruskal 1958, JASA 53).
    """
    return 0.5 + math.asin(2 * math.sin(math.pi * rank_correlation / 6)) / math.pi


def _cost(judged: Assessment) -> tuple[str, str]:
    book, net, gross = judged.model.book, judged.model.net, judged.model.gross
    parts = judged.terms.quantiles
    held = length(float(np.median(np.diff(book.times)))) if book.times.size > 1 else "one period"
    period = f"a{'n' * held.endswith('hour')} {held[2:]}" if held.startswith("1 ") else "a period"
    text = (
        f"Long the best {_ordinal(parts)}, short the worst, for {held} each time: "
        f"{BASIS * gross.value:.1f} bp {period} before costs, {BASIS * (gross.value - net.value):.1f} bp of costs at "
        f"{judged.terms.cost_bps:g} bp a unit traded"
    )
    if net.low is not None and net.high is not None:
        text += f"; after costs between {BASIS * net.low:.1f} and {BASIS * net.high:.1f} bp"
    if (ratio := annual(judged.model, judged.periods_a_year)) is not None:
        text += f", a Sharpe ratio of {ratio:.1f} a year"
    text += f". {book.turnover:.0%} of the book is replaced {period}. "
    even = book.break_even_bps
    if even is None:
        text += "Nothing was ever traded."
    elif even > 0:
        text += (
            f"At {even:.1f} bp a unit nothing is left. The deepest fall was {judged.model.fall.depth:.1%} of one side."
        )
    else:
        text += "It loses before any cost."
    if judged.capacity is not None and judged.capacity.most:
        text += f" With market impact nothing is left where a side is {money(judged.capacity.most)}, as volumes count."
    return f"{BASIS * net.value:+.1f} bp {period} left", text


def likely(probability: float) -> str:
    """A probability in per cent, never rounded to a certainty."""
    if 0.01 <= probability <= 0.99:
        return f"{probability:.0%}"
    return "less than 1%" if probability < 0.01 else "more than 99%"


def _ordinal(parts: int) -> str:
    return {2: "half", 3: "third", 4: "quarter", 5: "fifth", 10: "tenth"}.get(parts, f"1/{parts}")
