"""What a model says of the next event: laws over its fields, and quantiles of the time until it."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch
from small_market import encoded, events, model, vocabulary, work

from quantattn.data.meanings import Meaning, meanings
from quantattn.data.tokens import FIRST_CODE, Tokenizer
from quantattn.data.units import every_event
from quantattn.nn import EncoderConfig, Model, NextEvent, TimeConfig
from quantattn.nn.heads import TimeHead
from quantattn.score import Worker, make_plan, score
from quantattn.score.next_events import NextEvents


@cache
def predicting(time: str | None = "lognormal") -> Model:
    """A model of the next event with random weights."""
    encoder = model().encoder
    torch.manual_seed(5)
    made = Model(encoder, NextEvent(time=time, components=2, gap_mean=4.0, gap_std=2.0).heads(encoder.config, ()))
    for parameter in made.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


def table_of(out: Path, of: Model, said: NextEvents, **options: Any) -> pl.DataFrame:
    made = encoded(events())
    given = work(every_event(made, True) if options.pop("every", True) else made)
    plan = make_plan(given, "m", options.pop("shard", 1000))
    assert score(Worker(of, given, plan, options.pop("max_tokens", 200), output=said, **options), out)
    return pl.read_delta(str(out)).sort("key")


def head(density: str, **given: Any) -> TimeHead:
    return TimeHead(EncoderConfig.of_size("tiny", codes={"kind": 3}, values=()), TimeConfig(density, **given))


LEVELS = (0.05, 0.3, 0.5, 0.9, 0.999)


@pytest.mark.parametrize("density", ["lognormal", "exponential"])
def test_half_of_the_law_lies_below_its_median_and_so_for_every_level(density: str) -> None:
    """The law is integrated over steps of its own density, which nothing of the quantile's search has seen."""
    law = head(density, components=3, mean=1.0, std=0.7)
    torch.manual_seed(0)
    parameters = torch.randn(5, law.project.out_features) * 0.5
    found = law.quantiles(parameters, LEVELS)
    assert (found.diff(dim=1) >= 0).all()
    grid = torch.exp(torch.linspace(-18, 12, 60_001, dtype=torch.float64))
    for row in range(5):
        many = parameters[row : row + 1].expand(len(grid), -1)
        density_at = law.log_likelihood(many, grid).double().exp()
        below = torch.cat([torch.zeros(1), torch.cumulative_trapezoid(density_at, grid)])
        at_once = parameters[row, 0].double().sigmoid()
        for level, quantile in zip(LEVELS, found[row].tolist(), strict=True):
            if level <= at_once:
                assert quantile == 0
            else:
                share = np.interp(quantile, grid.numpy(), below.numpy())
                assert at_once + share == pytest.approx(level, abs=2e-4)


def test_quantiles_by_exact_numbers() -> None:
    """P(0) = ¼: ½ of all is ⅓ of the density. Rate 2: τ = ln(3/2)/2. Log-normal around ln 8: its median at 5/8."""
    quarter = math.log(1 / 3)
    exponential = head("exponential", mean=0.0)
    found = exponential.quantiles(torch.tensor([[quarter, math.log(2.0)]]), (0.2, 0.5))
    assert found[0].tolist() == [0.0, pytest.approx(math.log(1.5) / 2, rel=1e-6)]
    normal = head("lognormal", components=1, mean=math.log(8.0), std=3.0)
    found = normal.quantiles(torch.tensor([[quarter, 7.0, 0.0, 0.0]]), (0.24, 0.625))
    assert found[0].tolist() == [0.0, pytest.approx(8.0, rel=1e-6)]


def test_a_quantile_has_the_same_bits_alone() -> None:
    law = head("lognormal", components=2)
    torch.manual_seed(0)
    parameters = torch.randn(37, law.project.out_features)
    together = law.quantiles(parameters, (0.5, 0.9))
    for row in (0, 7, 36):
        assert torch.equal(law.quantiles(parameters[row : row + 1], (0.5, 0.9))[0], together[row])


def test_columns_are_the_heads_own_laws(tmp_path: Path) -> None:
    known, of = meanings(vocabulary()), predicting()
    table = table_of(tmp_path / "out", of, NextEvents(known), deterministic="batch")
    made = every_event(encoded(events()), True).sequences
    batch = made.pack([2])
    with torch.no_grad():
        states = of.encoder(batch)[batch.positions]
        laws = {name: logits.softmax(-1) for name, logits in cast("Any", of.heads["events"])(states).items()}
    rows = table.filter(pl.col("key").is_in(batch.keys.tolist()))
    kinds = known["kind"].labels
    assert kinds is not None
    for place, label in enumerate(kinds):
        expected = laws["kind_code"][:, FIRST_CODE + place]
        np.testing.assert_allclose(rows[f"next_kind_prob_{label}"].to_numpy(), expected.numpy(), atol=1e-6)
    assert rows["next_kind_likeliest"].to_list() == [
        kinds[i] for i in laws["kind_code"][:, FIRST_CODE:].argmax(1).tolist()
    ]
    total = sum(table[f"next_kind_prob_{label}"] for label in kinds) + table["next_kind_unknown_prob"]
    np.testing.assert_allclose(total.to_numpy(), 1, atol=1e-5)
    bins = np.stack(rows["next_size_bin_prob"].to_numpy())
    np.testing.assert_allclose(bins, laws["size_code"][:, FIRST_CODE:].numpy(), atol=1e-6)
    edges = Tokenizer.from_json(vocabulary()).numeric["size"].edges
    for row in range(len(rows)):
        share = np.cumsum(bins[row].astype(float))
        place = int((share >= share[-1] / 2).argmax())
        low, high = rows["next_size_median_from"][row], rows["next_size_median_below"][row]
        assert low == (edges[place - 1] if place else None)
        assert high == (edges[place] if place < len(edges) else None)
    times = [f"next_seconds_quantile_{level}" for level in ("0.1", "0.5", "0.9")]
    assert (table[times[0]] <= table[times[1]]).all()
    assert (table[times[1]] <= table[times[2]]).all()
    assert table["next_at_once_prob"].is_between(0, 1).all()


def test_no_batch_and_no_shard_changes_a_bit(tmp_path: Path) -> None:
    said = NextEvents(meanings(vocabulary()), (0.5,))
    tables = [
        table_of(
            tmp_path / str(i), predicting(), said, deterministic="batch", max_tokens=tokens, shard=shard, every=False
        )
        for i, (tokens, shard) in enumerate([(32, 1000), (3000, 17)])
    ]
    assert tables[0].drop("plan_sha").equals(tables[1].drop("plan_sha"))


def test_fields_without_a_meaning_are_told_by_code_and_no_time_is_no_column(tmp_path: Path) -> None:
    table = table_of(tmp_path / "out", predicting(None), NextEvents({}))
    assert "next_at_once_prob" not in table.columns
    laws = np.stack(table["next_kind_code_prob"].to_numpy())
    np.testing.assert_allclose(laws.sum(1), 1, atol=1e-5)


def test_many_values_are_one_list() -> None:
    law = torch.full((2, 43), 1 / 43)
    said = NextEvents({"shop": Meaning(3, labels=tuple(map(str, range(40))))})
    made = said.columns("next_shop", law, work(encoded(events())), torch.arange(2))
    assert set(made) == {"next_shop_prob", "next_shop_unknown_prob", "next_shop_likeliest"}


@pytest.mark.parametrize("levels", [(), (0.5, 0.1), (0.0, 0.5), (0.5, 1.0)])
def test_levels_rise_between_0_and_1(levels: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="levels must rise within"):
        NextEvents({}, levels)


def test_a_model_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="trained with objective=next_event; the heads of this one are label, and"):
        NextEvents({}).check(model(), streamed=False)
    bidirectional = Model(model(False).encoder, predicting().head_configs)
    with pytest.raises(ValueError, match="it is not causal"):
        NextEvents({}).check(bidirectional, streamed=False)
