"""The law of the time until the next event: it integrates to one, and is the closed form where there is one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import expon, lognorm

from quantattn.nn import Model, NextEvent, TimeConfig, TrainingRows
from quantattn.nn.heads import TimeHead, head_from_dict, head_to_dict, make_head

LAWS = [TimeConfig("lognormal", 3, mean=0.7, std=1.3), TimeConfig("exponential", mean=-0.4)]


def drawn(config: TimeConfig, encoder: Any) -> tuple[TimeHead, torch.Tensor]:
    """A head, and parameters of one law that are nothing special."""
    head: Any = make_head(encoder.config, config)
    torch.manual_seed(3)
    return head, torch.randn(1, head.project.out_features)


@pytest.mark.parametrize("config", LAWS)
def test_mass_and_density_are_one_together(config: TimeConfig, tiny: Any) -> None:
    head, law = drawn(config, tiny())

    def density(log_time: float) -> float:
        seconds = torch.tensor([math.exp(log_time)], dtype=torch.float64)
        return math.exp(float(head.log_likelihood(law, seconds)) + log_time)

    at_once = math.exp(float(head.log_likelihood(law, torch.zeros(1, dtype=torch.float64))))
    assert 0.05 < at_once < 0.95
    assert quad(density, -25, 25, limit=200)[0] + at_once == pytest.approx(1, abs=1e-5)


def test_one_component_is_the_log_normal_of_scipy(tiny: Any) -> None:
    head, _ = drawn(TimeConfig("lognormal", 1, mean=0.7, std=1.3), tiny())
    law = torch.tensor([[0.0, 5.0, 0.5, -0.25]])
    seconds = torch.tensor([0.02, 1.0, 30.0], dtype=torch.float64)
    deviation = 1.3 * math.exp(4 * math.tanh(-0.25 / 4))
    expected = lognorm.logpdf(seconds.numpy(), deviation, scale=math.exp(0.7 + 1.3 * 0.5)) + math.log(0.5)
    np.testing.assert_allclose(head.log_likelihood(law, seconds).numpy(), expected, rtol=1e-5)


def test_the_exponential_is_that_of_scipy(tiny: Any) -> None:
    head, _ = drawn(TimeConfig("exponential", mean=math.log(2)), tiny())
    seconds = torch.tensor([0.02, 1.0, 30.0], dtype=torch.float64)
    found = head.log_likelihood(torch.tensor([[-50.0, math.log(3)]]), seconds)  # rate 3 / 2, never at once
    np.testing.assert_allclose(found.numpy(), expon.logpdf(seconds.numpy(), scale=2 / 3), rtol=1e-5)


def poisson(packs: Any, rate: float, n: int) -> Any:
    """One sequence of a Poisson process, events to the nanosecond."""
    batch = packs.random([n])
    seconds = np.random.default_rng(0).exponential(1 / rate, n)
    return replace(batch, time=torch.as_tensor(np.cumsum(seconds) * 1e9).long())


def test_on_a_poisson_process_the_best_constant_law_is_the_rate_and_costs_one_minus_its_logarithm(
    packs: Any, tiny: Any
) -> None:
    """−ln f = −ln λ + λ τ, whose mean at λ = 1 / mean τ is 1 − ln λ exactly; the gradient there is zero."""
    batch = poisson(packs, rate=5.0, n=4001)
    gaps = batch.time.diff().double() / 1e9
    objective = NextEvent(fields=("kind",), time="exponential").fitted(TrainingRows({}, (), gaps))
    encoder = tiny(causal=True)
    model = Model(encoder, objective.heads(encoder.config, ()))
    head: Any = model.heads["time"]
    rate = 1 / float(gaps.mean())
    with torch.no_grad():
        head.project.bias.copy_(torch.tensor([-50.0, math.log(rate) + head.config.mean]))
    found = objective(model, batch)
    assert found.logs["nll_time"].item() == pytest.approx(1 - math.log(rate), rel=1e-5)
    assert rate == pytest.approx(5.0, rel=0.05)
    found.loss.backward()
    assert head.project.bias.grad[1].item() == pytest.approx(0, abs=1e-5)
    with torch.no_grad():
        head.project.bias[1] += 0.1
    assert objective(model, batch).logs["nll_time"] > found.logs["nll_time"] + 1e-3


def test_events_of_one_moment_have_a_mass_and_no_density(packs: Any, tiny: Any) -> None:
    objective = NextEvent(fields=("kind",), time="lognormal")
    encoder = tiny(causal=True)
    model = Model(encoder, objective.heads(encoder.config, ()))
    batch = packs.random([4, 3])
    together = replace(batch, time=torch.full_like(batch.time, 7))
    assert objective(model, together).logs["nll_time"].item() == pytest.approx(math.log(2), rel=1e-6)


def test_the_time_to_the_next_sequence_is_nobody_s(packs: Any, tiny: Any) -> None:
    objective = NextEvent(time="lognormal", components=4)
    encoder = tiny(causal=True)
    model = Model(encoder, objective.heads(encoder.config, ()))
    torch.nn.init.normal_(model.heads["time"].project.weight, std=0.3)
    batch = packs.random([5, 1, 6])
    moved = batch.time.clone()
    moved[6:] += 3_600_000_000_000
    loss, other = objective(model, batch), objective(model, replace(batch, time=moved))
    torch.testing.assert_close(loss.logs["nll_time"], other.logs["nll_time"], rtol=1e-5, atol=1e-6)
    parts = [objective(model, packs.take(batch, [n])) for n in (0, 2)]
    weighted = sum(p.logs["nll_time"].item() * p.logs["count"].item() for p in parts) / 9
    assert loss.logs["nll_time"].item() == pytest.approx(weighted, rel=1e-5)
    crossing = batch.time.clone()
    crossing[3:] += 3_600_000_000_000  # the control: within a sequence it counts
    assert abs(objective(model, replace(batch, time=crossing)).logs["nll_time"] - loss.logs["nll_time"]) > 0.1


def test_the_loss_is_that_of_the_codes_and_of_the_time_with_its_weight(packs: Any, tiny: Any) -> None:
    encoder, batch = tiny(causal=True), packs.random([7])
    timed = NextEvent(time="lognormal", time_weight=0.25)
    model = Model(encoder, timed.heads(encoder.config, ()))
    found, codes = timed(model, batch), NextEvent()(model, batch)
    expected = codes.loss.item() + 0.25 * found.logs["nll_time"].item()
    assert found.loss.item() == pytest.approx(expected, rel=1e-6)
    found.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.heads["time"].parameters())


@pytest.mark.parametrize("lengths", [[], [1, 1], [0]])
def test_without_a_next_event_there_is_no_loss(packs: Any, tiny: Any, lengths: list[int]) -> None:
    objective, encoder = NextEvent(time="lognormal"), tiny(causal=True)
    model = Model(encoder, objective.heads(encoder.config, ()))
    loss = objective(model, packs.random(lengths))
    loss.loss.backward()
    assert loss.loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_the_law_begins_at_what_is_usual_in_training_rows() -> None:
    gaps = torch.tensor([0.0, 1.0, math.e**2, 0.0], dtype=torch.float64)
    fitted = NextEvent(time="lognormal").fitted(TrainingRows({}, (), gaps))
    assert (fitted.gap_mean, fitted.gap_std) == pytest.approx((1.0, math.sqrt(2)))
    even = torch.full((12_345,), 60.0, dtype=torch.float64)
    assert NextEvent(time="lognormal").fitted(TrainingRows({}, (), even)).gap_std == 1.0
    with pytest.raises(ValueError, match="2 training gaps are all zero"):
        NextEvent(time="lognormal").fitted(TrainingRows({}, (), torch.zeros(2, dtype=torch.float64)))
    with pytest.raises(ValueError, match="density must be one of lognormal, exponential, got 'weibull'"):
        NextEvent(time="weibull")
    with pytest.raises(ValueError, match="components must be a whole number from 1"):
        NextEvent(time="lognormal", components=0)


@pytest.mark.parametrize("config", LAWS)
def test_a_head_of_times_survives_json(config: TimeConfig) -> None:
    assert head_from_dict(head_to_dict(config)) == config
