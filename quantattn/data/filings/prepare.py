"""Filings → what a training run needs: whole documents as sequences, split in time, tokenizer fitted on the past."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from quantattn.data.bayes import Bayes
from quantattn.data.filings.account import account
from quantattn.data.filings.encode import encode_rows, read_texts, tokenizer_for
from quantattn.data.filings.item_table import item_names
from quantattn.data.filings.labels import NO_PRICES, NO_TICKER, closes_without_session, label_filings, require_returns
from quantattn.data.filings.pieces import OnLong, cut_documents
from quantattn.data.filings.planted import CLASSES, PlantedFilings, baseline_inputs, law_in_sight
from quantattn.data.filings.prices import Prices, match_tickers
from quantattn.data.filings.tokenizer import FilingTokenizer, require_vocabulary_size
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import PARTS, Prepared
from quantattn.data.protocol import Audit, Fitted, Intervals, Split, SplitPlan, WalkForward, audit, choose
from quantattn.data.sources.source import Source

Objective = Literal["masked", "volatility", "return", "planted"]

_TARGETS: Mapping[str, tuple[str, str]] = {
    "volatility": ("volatility", "history_volatility"),
    "return": ("forward_return", "history_return"),
}
"""Objective → column of its target and column of the same quantity before the filing."""
_OF_ACCOUNT: Mapping[str, Mapping[str, str]] = {
    name: {target: name, history: "history"} for name, (target, history) in _TARGETS.items()
}
"""Objective → columns of the account of filings."""
_MOST_NAMED = 8
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


def prepare_filings(
    source: Source | PlantedFilings,
    *,
    objective: Objective = "volatility",
    prices: Prices | None = None,
    tickers: Mapping[str, str | tuple[str, ...]] | None = None,
    horizon: int = 252,
    history: int | None = None,
    split: SplitPlan | None = None,
    fold: int = -1,
    market: Prices | None = None,
    items: Sequence[object] | None = None,
    marks: bool = True,
    vocabulary_size: int = 8_192,
    tokenizer_folder: str | Path | None = None,
    max_seq_len: int = 8_192,
    on_long: OnLong = "error",
) -> Prepared:
    """Label, split, tokenize and audit the filings of a source.

    A filing is one sequence: a begin code, its tokens, an end code at which the decision is made, as of the time at
    which the filing became public. Decisions are split by time and purged by label interval; tokenizer and baseline
    are fitted on the training filings alone.

    Args:
        source: what `scan_filings` returns, or made filings.
        objective: "volatility" or "return": filings that have it and a history feature; it is the target of that
            name. "masked": every filing, no target. "planted": the direction that made filings hide, two classes, as
            target `label`, with the best possible figures.
        prices: daily closes; needed for "volatility" and "return".
        tickers: CIK → ticker or tickers; needed with prices.
        horizon: sessions that the label looks at.
        history: sessions that the history feature looks back; `horizon` when not given.
        split: how time is cut, its parts in order; `WalkForward()` when not given.
        fold: which of its folds, the last by default.
        items: names of items (1A, 7, II.1A, 5.02) whose text alone is read, by `select_items`; all text when not given.
        market: closes of one series; then returns and volatility are of what is above its returns.
        marks: whether codes of their own stand where items, parts and tables begin, see `quantattn.data.filings.marks`.
        vocabulary_size: tokens of the BPE at most.
        tokenizer_folder: of a ready-made tokenizer (`FilingTokenizer.of_folder`), which is used and none is fitted.
        max_seq_len: tokens of a sequence at most, begin and end included.
        on_long: what becomes of a longer filing: "error"; "window": it is cut into windows of at most `max_seq_len`
            tokens, each a sequence with the filing's target; "keep": it stays whole and `max_seq_len` is not used.

    Returns:
        Sequences of the three parts. With a target, `baselines[part]` has `last_value` (Q,): the same quantity before
        the filing, v(−h) for volatility; `recalibrated` (Q,): a + b · last_value, least squares on the training
        filings; and `mean` (Q,): the mean target of the training filings. Made filings have what `baseline_inputs`
        gives.

    Raises:
        ValueError: missing prices, a split whose parts are not in order of time, no labelled filing, a part without
            rows, a filing that is too long.
        LeakError: the audit found a leak.
    """
    check_filings(objective, prices, tickers, horizon, history, vocabulary_size, on_long, items, market)
    cut = split or WalkForward()
    planted, source = (source, source.source()) if isinstance(source, PlantedFilings) else (None, source)
    if not cut.in_order:
        raise ValueError("filings need a split whose parts follow one another in time, such as walk_forward or by_day")
    read, counts, without_items = read_texts(source, items, marks)
    decided, labelled, notes = _with_labels(read, objective, prices, tickers, horizon, history, market)
    table, dropped = decided.filter(pl.col("reason").is_null()), _reasons(decided)
    counts = labelled | counts
    folds = cut.split(_intervals(table))
    chosen = choose(folds, fold)
    until = _end_of_training(table, chosen)
    tokenizer = tokenizer_for(table[chosen.train], until, vocabulary_size, tokenizer_folder, marks)
    line = _Line.fit(table[chosen.train], objective)
    proof = _audit(table, folds, chosen, cut, _fitted(chosen, until, objective, tokenizer.ready_made)).require()
    parts = {}
    for name in PARTS:
        rows = table[getattr(chosen, name)]
        parts[name] = _Part.of(rows, encode_rows(rows, tokenizer), objective, max_seq_len, on_long)
        counts |= parts[name].counts(name, rows.height)
    law = planted if objective == "planted" else None
    in_sight = None if law is None else law.bayes_of(map(tokenizer.decode, parts["test"].documents()))
    return Prepared(
        train=parts["train"].sequences,
        valid=parts["valid"].sequences,
        test=parts["test"].sequences,
        codes=tokenizer.codes,
        values=tokenizer.values,
        vocabulary_json=tokenizer.to_json(),
        classes=CLASSES if objective == "planted" else (),
        audit=proof,
        counts=counts | {f"set aside by the source: {why}": n for why, n in source.report.rows_set_aside.items()},
        hashes=_hashes(source, tokenizer),
        baselines={name: part.baselines(line) for name, part in parts.items()},
        as_of={name: part.rows["available_time"].to_numpy() for name, part in parts.items()},
        entity={name: part.rows["entity"].to_numpy() for name, part in parts.items()},
        dropped=dropped | without_items | {why: len(rows) for why, rows in chosen.left_out.items()},
        account=account(source, decided, chosen, _OF_ACCOUNT.get(objective, {})),
        notes=(*source.report.notes, *notes, *tokenizer.notes, *_in_sight(in_sight)),
        bayes=None if law is None else law.bayes(),
        bayes_in_context=in_sight,
    )


def check_filings(
    objective: str = "volatility",
    prices: object = None,
    tickers: object = None,
    horizon: int = 252,
    history: int | None = None,
    vocabulary_size: int = 8_192,
    on_long: str = "error",
    items: Sequence[object] | None = None,
    market: object = None,
    tokenizer_folder: str | Path | None = None,
    **_: object,
) -> None:
    """Refuse settings of `prepare_filings` that no data could be prepared with; of prices and tickers only if given.

    Raises:
        ValueError: naming the setting.
    """
    for name, value, known in (("objective", objective, Objective), ("on_long", on_long, OnLong)):
        if value not in get_args(known):
            raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
    require_vocabulary_size(vocabulary_size)
    if tokenizer_folder is not None:
        FilingTokenizer.of_folder(tokenizer_folder)
    if isinstance(market, Prices) and len(market.entities) != 1:
        raise ValueError(f"market must hold the closes of one series, it has {len(market.entities)}")
    if items is not None:
        item_names(items)
    if objective in ("masked", "planted"):
        return
    if prices is None or tickers is None:
        without = "labels=none objective=masked_language"
        raise ValueError(f"objective {objective!r} needs prices and tickers; only {without} does without")
    require_returns(horizon, history)


def _with_labels(
    filings: pl.DataFrame,
    objective: Objective,
    prices: Prices | None,
    tickers: Mapping[str, str | tuple[str, ...]] | None,
    horizon: int,
    history: int | None,
    market: Prices | None,
) -> tuple[pl.DataFrame, dict[str, int], tuple[str, ...]]:
    """Filings with `label_start`, `label_end` and `reason`, null of those that can be learned from; counts; notes."""
    learned = {"reason": pl.lit(None, pl.String)}
    if objective == "planted":
        if "label" not in filings.columns:
            raise ValueError("objective 'planted' is of made filings (data=synthetic_filings); these have no label")
        return filings.with_columns(**learned), {}, ()
    if objective == "masked":
        # Nothing is looked at beyond the filing itself, so its interval is the moment at which it became public.
        return filings.with_columns(label_start="available_time", label_end="available_time", **learned), {}, ()
    assert prices is not None  # `check_filings` has seen both
    assert tickers is not None
    matched = match_tickers(filings["entity"], prices, tickers)
    labelled = label_filings(filings, prices, matched, horizon=horizon, history=history, market=market)
    named = pl.col("entity").is_in(list(tickers))
    reason = pl.coalesce("label_reason", pl.lit("history: ") + pl.col("history_reason"))
    reason = pl.when(named & (reason == NO_TICKER)).then(pl.lit(NO_PRICES)).otherwise(reason)
    labelled = labelled.with_columns(reason=reason)
    kept = labelled.filter(pl.col("reason").is_null())
    flagged = [ticker for ticker in sorted(set(kept["ticker"])) if prices.adjusted[ticker] is not False]
    counts = {
        "filings with prices that are not point in time": kept.filter(pl.col("ticker").is_in(flagged)).height,
        "closes on days without a session, not used": closes_without_session(prices),
    }
    notes = tuple(filter(None, (_filers(labelled, why) for why in (NO_TICKER, NO_PRICES))))
    return labelled, {name: number for name, number in counts.items() if number or name.startswith("filings")}, notes


def _reasons(decided: pl.DataFrame) -> dict[str, int]:
    """Reason → how many filings are not learned from for it, sorted; ValueError when that is all of them."""
    found = dict(sorted(Counter(decided["reason"].drop_nulls()).items()))
    if sum(found.values()) == decided.height:
        why = ", ".join(f"{why} ({number})" for why, number in found.items())
        raise ValueError(f"none of {decided.height} filings has a label and a history: {why}")
    return found


def _filers(labelled: pl.DataFrame, why: str) -> str:
    """Which filers have most of the filings that are left out for this reason, in a sentence; "" if none are."""
    left = labelled.filter(pl.col("reason") == why)
    found = Counter(left["entity"]).most_common()
    company = dict(left.select("entity", "company").iter_rows()) if "company" in left.columns else {}
    named = [
        f"{entity}{f' {company[entity]}' if company.get(entity) else ''} ({number})"
        for entity, number in found[:_MOST_NAMED]
    ]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"{why}, filers and filings: {', '.join(named)}{more}" if found else ""


def _intervals(table: pl.DataFrame) -> Intervals:
    return Intervals(*(table[name].to_numpy() for name in ("available_time", "label_start", "label_end", "entity")))


def _end_of_training(table: pl.DataFrame, split: Split) -> int:
    """The first time at which a held-out filing became public: what was fitted saw nothing from there on."""
    return int(table["available_time"].to_numpy()[np.concatenate([split.valid, split.test])].min())


def _hashes(source: Source, tokenizer: FilingTokenizer) -> dict[str, str]:
    """One hash of all files by name and content, and one of the tokenizer."""
    files = "".join(f"{name} {digest}\n" for name, digest in sorted(source.report.files.items()))
    named = {f"{len(source.report.files)} source files": files, "tokenizer": tokenizer.to_json()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in named.items()}


def _fitted(split: Split, until: int, objective: Objective, ready_made: bool) -> tuple[Fitted, ...]:
    names = (*(() if ready_made else ("tokenizer",)), *(() if objective == "masked" else ("baseline",)))
    return tuple(Fitted(name, until, len(split.train), split.train) for name in names)


def _in_sight(bayes: Bayes | None) -> tuple[str, ...]:
    return () if bayes is None else (law_in_sight(bayes),)


def _audit(
    table: pl.DataFrame, folds: tuple[Split, ...], chosen: Split, cut: SplitPlan, fitted: tuple[Fitted, ...]
) -> Audit:
    decisions = table.select("entity", "label_start", "label_end", as_of="available_time", input_time="available_time")
    earlier = [each.test for each in folds if each.fold < chosen.fold]
    return audit(decisions, chosen, fitted=fitted, events=table, embargo=cut.embargo, earlier_tests=earlier)


@dataclass(frozen=True)
class _Line:
    """Least squares over the training filings: target ≈ intercept + slope · history."""

    history: str
    intercept: float
    slope: float
    mean: float

    @staticmethod
    def fit(training: pl.DataFrame, objective: Objective) -> _Line | None:
        if objective not in _TARGETS:
            return None
        target, history = _TARGETS[objective]
        x, y = training[history].to_numpy(), training[target].to_numpy()
        design = np.stack([np.ones_like(x), x], axis=1)
        (intercept, slope), *_ = np.linalg.lstsq(design, y, rcond=None)
        return _Line(history, float(intercept), float(slope), float(y.mean()))


@dataclass(frozen=True)
class _Part:
    """One part of the split: its sequences and, row by row, the filing that each decision belongs to."""

    sequences: SequenceSet
    rows: pl.DataFrame

    @staticmethod
    def of(rows: pl.DataFrame, codes: list[_Ints], objective: Objective, max_seq_len: int, on_long: OnLong) -> _Part:
        pieces = cut_documents(codes, max_seq_len, on_long)
        repeated = rows.drop("text", "annual_report", "items", "places", strict=False)[pieces.of]
        named = _TARGETS.get(objective)
        targets: dict[str, npt.NDArray[np.generic]] = {}
        if named is not None:
            targets[objective] = repeated[named[0]].to_numpy().astype(np.float32)
        elif objective == "planted":
            targets["label"] = repeated["label"].to_numpy()
        sequences = pieces.sequences(rows["available_time"].to_numpy(), rows["accession"].to_list(), targets)
        return _Part(sequences, repeated)

    def counts(self, name: str, filings: int) -> dict[str, int]:
        """Filings and tokens of the part of this name, and windows where filings were cut."""
        found = {f"{name} filings": filings, f"{name} tokens": len(self.sequences.table)}
        windows = len(self.sequences)
        return found | ({f"{name} windows": windows} if windows > filings else {})

    def baselines(self, line: _Line | None) -> dict[str, npt.NDArray[np.generic]]:
        if "label" in self.sequences.decisions.targets:
            return baseline_inputs(self.rows)
        if line is None:
            return {}
        past = self.rows[line.history].to_numpy().astype(np.float64)
        return {
            "last_value": past,
            "recalibrated": line.intercept + line.slope * past,
            "mean": np.full(len(past), line.mean),
        }

    def documents(self) -> Iterator[_Ints]:
        """The codes of each sequence."""
        tokens = self.sequences.table.fields["token"].astype(np.int64, copy=False)
        return (tokens[start:stop] for start, stop in zip(self.sequences.start, self.sequences.stop, strict=True))
