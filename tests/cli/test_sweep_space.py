"""What a sweep may search over, how, and where it is kept; the rest is refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from quantattn.cli.errors import UsageError
from quantattn.cli.instantiate import settings
from quantattn.cli.searching.space import as_override, plain_space, read_space
from quantattn.cli.searching.study import SweepSettings, check_url

LR: dict[str, Any] = {"low": 1e-4, "high": 1e-1}
NO_SPACE = [
    ({}, "space is empty"),
    ({"optimizer": {"lr": {**LR, "low": 1.0}}}, "space.optimizer.lr must rise from low to high, got 1.0 and 0.1"),
    ({"optimizer": {"lr": {**LR, "low": 0.0, "log": True}}}, "a logarithmic range has low above 0 and no step"),
    (
        {"optimizer": {"lr": {**LR, "log": True, "step": 0.1}}},
        "a logarithmic range has low above 0 and no step, got low",
    ),
    ({"optimizer": {"lr": {**LR, "lo": 1}}}, "unknown setting space.optimizer.lr.lo; did you mean 'low'?"),
    ({"optimizer.lr": {"low": "a", "high": 1}}, "space.optimizer.lr.low must be a number, got 'a'"),
    ({"optimizer.lr": {"high": 1}}, "space.optimizer.lr.low must be a number, got None"),
    ({"optimizer.lr": LR, "optimizer": {"lr": LR}}, "space.optimizer.lr stands there twice"),
    ({"model.n_layers": {"low": 1, "high": 8, "step": 0.5}}, "step must be above 0, and whole in a whole range"),
    ({"model": {"n_layers": 3}}, "space.model.n_layers must be a range {low: …, high: …} or a list of choices, got 3"),
    ({"model": ["tiny", "tiny"]}, "space.model must list choices that differ"),
    ({"model": []}, "space.model must list choices that differ"),
    ({"seed": [1, 2]}, "space.seed: the best of several seeds is luck"),
    ({"labels": {"horizon": [1, 2]}}, "space.labels.horizon: trials would be judged by different outcomes"),
    (
        {"objective": ["outcome", "focal"]},
        "losses of different objectives cannot be compared; optimized_metric=valid/lo",
    ),
    ({"paths": {"output_dir": ["a", "b"]}}, "space.paths.output_dir: each trial has its own folder"),
]


@pytest.mark.parametrize(("node", "sentence"), NO_SPACE)
def test_what_is_no_space_is_refused_by_name(node: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        read_space(node, "valid/loss")


def test_a_space_may_be_nested_or_dotted_and_its_values_are_what_hydra_reads() -> None:
    nested = {"optimizer": {"lr": LR}, "model": ["tiny", "small"], "optimizer.betas": [[0.9, 0.95], [0.9, 0.99]]}
    dotted = {"optimizer.lr": LR, "model": ["tiny", "small"], "optimizer": {"betas": [[0.9, 0.95], [0.9, 0.99]]}}
    space = read_space(nested, "valid/loss")
    assert plain_space(space) == plain_space(read_space(dotted, "valid/loss"))
    assert space["optimizer.betas"].tried() == ("[0.9,0.95]", "[0.9,0.99]")
    assert read_space({"objective.focal": LR}, "valid/log_loss"), "the log loss means the same under any focus"
    parser = OverridesParser.create()
    for value in (
        None,
        True,
        3,
        1e-30,
        "tiny",
        "a b",
        "null",
        "3",
        "it's [a] {b}: c,d",
        [1, None],
        {"a": [1.5, "x y"]},
    ):
        assert parser.parse_override(f"key={as_override(value)}").value() == value


SETTINGS = [
    ({"trials": 0}, "sweep.trials must be 1 or more, got 0"),
    ({"name": "a/b"}, "sweep.name must be the name of a folder"),
    ({"name": "best"}, "sweep.name must be the name of a folder, other than best"),
    ({"pruner": "medium"}, "did you mean 'median'?"),
    ({"trial": 3}, "unknown setting sweep.trial; did you mean 'trials'?"),
]


@pytest.mark.parametrize(("given", "sentence"), SETTINGS)
def test_what_is_wrong_about_a_search_is_refused_by_name(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        settings(SweepSettings, {"name": "study", "trials": 3, **given}, "sweep")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("study.db", "sweep.storage must be a URL such as sqlite:///study.db"),
        ("sqlite:////there/is/none/study.db", "there is no folder /there/is/none"),
        ("sqlite://", "sweep.storage is in memory"),
        ("sqlite:///:memory:", "sweep.storage is in memory"),
    ],
)
def test_a_study_is_kept_in_a_database_or_refused(url: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        check_url(url)
