"""What is told of a study: `trials.json` after every trial, a table and a page when a worker ends."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as RichTable

from quantattn.cli.searching.study import DIRECTIONS, counted
from quantattn.evaluate import trials as pages
from quantattn.learn.files import write_json

if TYPE_CHECKING:
    from optuna import Study

SHOWN = 10
"""Trials that the closing table names."""
ENOUGH = 10
"""Complete trials below which nothing is said of which settings matter."""
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def write_account(study: Study, metric: str, storage: str, root: Path) -> dict[str, Any]:
    """Write `trials.json`: how many trials there were, in which state, which is best, and all of them."""
    every = counted(study)
    done = [trial for trial in every if trial.state.name == "COMPLETE"]
    best = study.best_trial.number if done else None
    account = {
        "study": study.study_name,
        "storage": storage,
        "metric": metric,
        "direction": DIRECTIONS[metric],
        "trials": len(every),
        "states": dict(Counter(STATES[trial.state.name] for trial in every)),
        "best": best,
        "space": study.user_attrs["space"],
        "each": [
            {
                "number": trial.number,
                "state": STATES[trial.state.name],
                "value": trial.value,
                "settings": trial.user_attrs.get("values", {}),
                "seconds": trial.user_attrs.get("seconds"),
                "why": trial.user_attrs.get("why"),
            }
            for trial in every
        ],
    }
    write_json(root / "trials.json", account)
    return account


def tell(study: Study, metric: str, storage: str, root: Path, console: Console) -> None:
    """Print the best trials and write the page."""
    account = write_account(study, metric, storage, root)
    states = ", ".join(f"{number} {state}" for state, number in sorted(account["states"].items()))
    drawn = RichTable(title=f"{account['trials']} trials: {states}", title_justify="left")
    names = list(account["space"])
    for name in ("trial", metric, *names):
        drawn.add_column(name, justify="right")
    downwards = account["direction"] == "maximize"
    done = [trial for trial in account["each"] if trial["state"] == "complete"]
    for trial in sorted(done, key=lambda one: one["value"], reverse=downwards)[:SHOWN]:
        chosen = trial["settings"]
        drawn.add_row(
            str(trial["number"]), f"{trial['value']:.5g}", *(shortened(chosen.get(name, "–")) for name in names)
        )
    console.print(drawn)
    for trial in account["each"]:
        if trial["state"] == "failed":
            console.print(f"trial {trial['number']} failed: {trial['why']}")
    page = pages.Study(
        name=account["study"],
        metric=metric,
        maximise=downwards,
        space={name: in_words(each) for name, each in account["space"].items()},
        trials=tuple(
            pages.Trial(
                number=each["number"],
                state=each["state"],
                value=each["value"],
                settings=each["settings"],
                seconds=each["seconds"],
                why=each["why"] or "",
            )
            for each in account["each"]
        ),
        importance=importance(study) if len(done) >= ENOUGH else {},
    )
    created = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    console.print(f"page   {pages.write_study(root / 'sweep.html', page, created)}")


def in_words(parameter: Any) -> str:
    """A parameter of the space, as a study keeps it."""
    if isinstance(parameter, list):
        return ", ".join(parameter)
    log = ", logarithmic" if parameter["log"] else ""
    step = "" if parameter["step"] is None else f", in steps of {parameter['step']}"
    return f"{parameter['low']} … {parameter['high']}{log}{step}"


def importance(study: Study) -> dict[str, float]:
    """Setting → its share in what makes a trial good, by PED-ANOVA (Watanabe et al. 2023)."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    return dict(get_param_importances(study, evaluator=PedAnovaImportanceEvaluator()))


def shortened(value: str) -> str:
    """A number with few digits, anything else as it is."""
    try:
        return f"{float(value):.4g}"
    except ValueError:
        return value
