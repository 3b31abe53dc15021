"""`quantattn ensemble RUN RUN …`: runs that differ by their seed, as one model, judged beside them and baselines."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.console import Console
from torch import Tensor

from quantattn.cli import show, terminal
from quantattn.cli.claim import changed_key
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, UsageError
from quantattn.cli.instantiate import instantiate, settings
from quantattn.cli.preparation import check_data, prepare
from quantattn.cli.report import short_names
from quantattn.cli.settings import TrainSettings
from quantattn.data.pack import SequenceSet
from quantattn.data.prepared import Prepared
from quantattn.evaluate.conformal import Conformal
from quantattn.evaluate.report import write_report
from quantattn.learn.closing import Story, close, figures_of
from quantattn.learn.completing import arrays, placed
from quantattn.learn.coverage import with_coverage
from quantattn.learn.files import write_json, write_text
from quantattn.learn.folder import commit, environment, holding
from quantattn.learn.keeping import described_data
from quantattn.learn.predict import predict
from quantattn.nn import Ensemble, Model, load_model, save_pretrained

ALIKE = ("data", "labels", "splits")
"""Groups of settings in which the runs may not differ: they would have learned and been chosen on other rows."""


@dataclass(frozen=True)
class Member:
    """A run that has ended: its folder, how it is called, its settings and its model."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    model: Model


def run(arguments: list[str]) -> int:
    """Put the runs together, judge them on their test rows, and write a folder like that of a run."""
    parser = argparse.ArgumentParser("quantattn ensemble", description="Make one model of runs that differ by a seed.")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders, or the folder of one multirun")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write: model/, report.html and so on")
    parser.add_argument("--no-test", action="store_true", help="leave the test rows unread, so that there is no report")
    asked = parser.parse_args(arguments)
    folders = [inner for folder in asked.runs for inner in of_multirun(folder)]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError("a run is named twice, and would weigh twice")
    if (asked.out / "model").exists() or (asked.out / "metrics.csv").exists():
        raise UsageError(f"--out {asked.out} holds a run or an ensemble already; name another folder")
    members = [read(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    for member in members[1:]:
        for part in ALIKE:
            if (mine := member.config[part]) != (first := members[0].config[part]):
                what = changed_key(part, first, mine)
                raise UsageError(f"{member.folder} was run with another {what} than {members[0].folder}")
    ensemble = Ensemble([member.model for member in members])
    with holding(asked.out):
        return judge(members, ensemble, asked.out, terminal.console(), test=not asked.no_test)


def of_multirun(folder: Path) -> list[Path]:
    """The runs of a multirun in order of their numbers; a folder that is no multirun is taken for a run."""
    if (folder / "config.yaml").is_file() or not folder.is_dir():
        return [folder]
    numbered = [path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(numbered, key=lambda path: int(path.name)) or [folder]


def read(folder: Path, name: str) -> Member:
    """A run from its folder.

    Raises:
        UsageError: there is none, or it has not ended.
        ValueError: a file that does not hold what a run writes.
    """
    if not (folder / "config.yaml").is_file() or not (folder / "model").is_dir():
        raise UsageError(f"{folder} is no run that has ended: it lacks config.yaml or model/")
    config = plain(OmegaConf.load(folder / "config.yaml"))
    if not isinstance(config, dict) or any(part not in config for part in ALIKE):
        raise ValueError(f"{folder / 'config.yaml'} does not hold the settings of a run")
    return Member(folder, f"seed {config.get('seed')} ({name})", config, load_model(folder / "model"))


def judge(members: list[Member], ensemble: Ensemble, out: Path, console: Console, *, test: bool) -> int:
    """Write the folder of the ensemble; the exit code."""
    first, seeds = members[0], [member.config.get("seed") for member in members]
    asked = settings(TrainSettings, {**first.config, "ckpt_path": None, "logger": {}, "callbacks": {}}, "")
    check_data(asked)
    prepared = prepare(asked, instantiate(asked.splits, "splits", asked.allow_targets))
    prepared.audit.require()
    for member in members:
        check_hashes(member, prepared)
    described = {
        "ensemble": f"{len(members)} members",
        **{member.name: str(member.folder) for member in members},
        "question": asked.question,
    }
    config = {**first.config, "seed": seeds, "ensemble": [str(member.folder) for member in members]}
    write_text(out / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    write_json(out / "environment.json", environment())
    write_json(out / "data.json", described_data(prepared))
    artefact = first.model.artefact
    assert artefact is not None
    trials = [member.model.artefact.extra.get("trials") for member in members if member.model.artefact is not None]
    most = {"trials": max(each for each in trials if isinstance(each, int))} if any(trials) else {}
    names = [member.name for member in members]
    extra: dict[str, Any] = {**artefact.extra, "members": names, **most}
    if asked.conformal is not None:  # how wide the mean has to be, not a member
        extra |= {"conformal": calibrated_on(prepared, ensemble, asked, asked.conformal).as_dict()}
    card = f"# {asked.title}: ensemble\n\n{asked.question}\n\nThe mean of {len(members)} runs: {', '.join(names)}.\n"
    save_pretrained(
        ensemble.cpu(),
        out / "model",
        vocabulary_json=artefact.vocabulary_json,
        card=card,
        extra=extra,
    )
    if not test:
        write_json(out / "metrics.json", {"figures": {}, "table": None, "members": {}})
        console.print(f"model  {out / 'model'}")
        return DONE
    return _tested(members, ensemble, prepared, asked, described, extra, out, console)


def calibrated_on(prepared: Prepared, ensemble: Ensemble, asked: TrainSettings, level: float) -> Conformal:
    """How wide the ensemble's sets or intervals are, by the validation rows."""
    target = next(iter(ensemble.decision_heads()))
    return Conformal.fitted(
        arrays(scored(ensemble, prepared.valid, asked)), prepared.valid.decisions.targets[target], level
    )


def scored(model: Model, part: SequenceSet, asked: TrainSettings) -> dict[str, Tensor]:
    """The scores of a part, computed as its run computes."""
    device, half = placed(asked.trainer)
    tokens = asked.data.max_tokens_per_batch
    most = asked.data.max_seq_len if tokens == "auto" else int(tokens)
    return predict(model, part, most, device=device, autocast=half)


def _tested(
    members: list[Member],
    ensemble: Ensemble,
    prepared: Prepared,
    asked: TrainSettings,
    described: Mapping[str, str],
    extra: Mapping[str, Any],
    out: Path,
    console: Console,
) -> int:
    """The closing table and the report on the test rows."""
    target = next(iter(ensemble.decision_heads()))
    said = {member.name: scored(member.model, prepared.test, asked) for member in members}
    whole = scored(ensemble, prepared.test, asked)
    story = Story(
        f"{asked.title}: ensemble of {len(members)}",
        asked.question,
        described,
        {"commit": commit()},
        caveats=("The best single member was found by looking at these rows, so it is a hard rival to beat.",),
        created=dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    table, report = close(prepared, target, whole, {}, story, method="ensemble", beside=said)
    report, found = with_coverage(report, extra, arrays(whole), prepared.test.decisions.targets[target])
    write_report(out / "report.html", report)
    losses = {member.name: table.row(member.name).figures[table.loss].value for member in members}
    mean = sum(losses.values()) / len(losses)
    figures = {**figures_of(table), **found, f"members/{table.loss}": mean}
    write_json(out / "metrics.json", {"figures": figures, "table": table.to_dict(), "members": losses})
    show.closing(console, table)
    title = next(metric.title for metric in table.metrics if metric.name == table.loss)
    ours = table.model.figures[table.loss].value
    console.print(f"{title}: {ours:.5g} of the ensemble, {mean:.5g} of its {len(members)} members on average")
    console.print(f"report {out / 'report.html'}")
    console.print(f"model  {out / 'model'}")
    return DONE


def check_hashes(member: Member, prepared: Prepared) -> None:
    """Refuse data that are not those of the run any more.

    Raises:
        ValueError: naming the first thing that has changed.
    """
    path = member.folder / "data.json"
    try:
        before = json.loads(path.read_text("utf-8"))["hashes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    for name, value in prepared.hashes.items():
        if before.get(name) != value:
            raise ValueError(f"the data have changed since {member.folder} was run: {name} is not what it was")
