"""A small market whose events are known some time after they happened, its tokens, and models that read them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import polars as pl
import torch

from quantattn.data.market.encode import Unlabelled, encode_market
from quantattn.data.sources.source import Source
from quantattn.data.synthetic import SyntheticMarket
from quantattn.data.tokens import Tokenizer
from quantattn.nn import Encoder, Model, Outcome
from quantattn.score import Work

LAG = 600 * 10**9
"""Ns from an event to when it is known; most gaps are shorter, so that events come in between."""
FIELDS = ("kind", "side", "size", "price", "mid_move", "gap")
CLASSES = ("down", "up")


@cache
def events(entities: int = 3, rows: int = 96, seed: int = 0) -> pl.DataFrame:
    """Entities of unequal length, in canonical order."""
    made = SyntheticMarket(entities, rows, channels=2, marker_distance=24, events_per_session=64, seed=seed).source()
    frame = made.frame.collect().with_columns(available_time=pl.col("event_time") + LAG)
    number = pl.col("entity").str.tail(1).cast(pl.Int64)
    return frame.filter(pl.col("seq") < rows - 7 * number)


def source(frame: pl.DataFrame) -> Source:
    """The events as a source."""
    made = SyntheticMarket(9, 2, channels=2).source()
    return Source(frame.lazy(), made.instruments, made.report)


@cache
def vocabulary() -> str:
    """Tokens of these events."""
    made = source(events())
    return Tokenizer.fit(made.frame, made.instruments, fitted_until=2**62, fields=FIELDS, n_bins=6).to_json()


def encoded(frame: pl.DataFrame, **settings: Any) -> Unlabelled:
    """Decisions of the events, every third of an entity."""
    given = {"max_seq_len": 32, "layout": "chunks", "min_context": 12, "decision_every": 3} | settings
    return encode_market(source(frame), vocabulary(), **given)


@cache
def model(causal: bool = True, pooling: str = "last", **changes: Any) -> Model:
    """An encoder of two layers with random weights in its head too."""
    torch.manual_seed(3)
    tokenizer = Tokenizer.from_json(vocabulary())
    given: dict[str, Any] = {"n_layers": 2, "width": 16, "n_heads": 2, "hidden": 16, "time_rotary": 0.5} | changes
    given.setdefault("attention_backend", "tiled")  # under the tests' environment "auto" is the kernels' interpreter
    encoder = Encoder("tiny", codes=tokenizer.codes, values=tokenizer.values, causal=causal, **given)
    made = Model(encoder, Outcome(pooling=pooling).heads(encoder.config, CLASSES))
    for parameter in made.heads.parameters():
        torch.nn.init.normal_(parameter)
    return made.eval()


def work(made: Unlabelled) -> Work:
    """The decisions as work."""
    more = {name: getattr(made, name) for name in ("copies", "described", "notes") if hasattr(made, name)}
    return Work(made.sequences, made.as_of, made.entity, made.hashes, {}, events=made.events, **more)


def bits(given: Work, said: Callable[..., Any], budget: int = 200) -> list[bytes]:
    """What is said of each decision, in order, as bytes; batches are of `budget` tokens."""
    found: dict[int, bytes] = {}
    from quantattn.data.pack import plan

    for indices in plan(given.sequences.lengths, budget, shuffle=False):
        batch = given.sequences.pack(indices)
        if len(batch.keys):
            rows = said(batch)
            found |= {int(key): row.numpy().tobytes() for key, row in zip(batch.keys, rows, strict=True)}
    return [found[key] for key in range(len(given.sequences.decisions))]


def changed_after(frame: pl.DataFrame, time: int) -> pl.DataFrame:
    """Other events after `time`: sides turned, sizes and prices moved, and every third of them gone."""
    late = pl.col("available_time") > time
    prices = pl.col("^(price|ask_price_1|bid_price_1)$")
    moved = frame.with_columns(
        pl.when(late).then(-pl.col("side")).otherwise(pl.col("side")).alias("side"),
        pl.when(late).then(pl.col("size") + 500).otherwise(pl.col("size")).alias("size"),
        pl.when(late).then(prices + 300).otherwise(prices).name.keep(),
    )
    return moved.filter(~late | (pl.col("seq") % 3 != 0))
