"""The card of a model: what it was trained and tested on, how good it was found, and what nobody has tested.

It says nothing that the JSON files of the run folder do not say; tests hold every number against them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantattn.data.prepared import PARTS, Prepared

_MOST_NAMES = 50
_ROLES = {"train": "fitted on", "valid": "chosen by", "test": "reported on"}


@dataclass(frozen=True)
class Card:
    """What a card is made of.

    Attributes:
        title: of the model.
        question: what it predicts, for what, from what.
        licence: of the data, and so of what was learned from them, in words.
        settings: plain values that stand in the model's folder: those of data among them.
        causal: whether a token sees its past alone.
        data: what `data.json` holds.
        metrics: what `metrics.json` holds.
        environment: what `environment.json` holds.
        certificate: what `certificate.json` holds; None when nobody looked.
        trials: runs that this one was chosen from; None when nobody said.
    """

    title: str
    question: str
    licence: str
    settings: Mapping[str, Any]
    causal: bool
    data: Mapping[str, Any]
    metrics: Mapping[str, Any]
    environment: Mapping[str, Any]
    certificate: Mapping[str, Any] | None = None
    trials: int | None = None

    def text(self) -> str:
        """The card, Markdown."""
        parts = {
            "Figures": self._figures(),
            "Data": self._data(),
            "Limits": self._limits(),
            "Hashes": self._hashes(),
            "Use": _USE,
        }
        lines = [f"# {self.title}", "", self.question]
        for heading, said in parts.items():
            lines += ["", f"## {heading}", "", *said]
        return "\n".join(lines) + "\n"

    def _figures(self) -> list[str]:
        table, figures = self.metrics["table"], self.metrics["figures"]
        said = [f"- best validation loss {figures['valid/loss']:.6g}"] if "valid/loss" in figures else []
        if "temperature" in figures:
            said.append(f"- temperature of the classes {figures['temperature']:.6g}, fitted on the validation rows")
        if self.trials is not None:
            said.append(f"- chosen from {self.trials:,} trials")
        if table is None:
            unknown = "There are no figures of the test rows: nothing says how good it is."
            return [unknown, *(["", *said] if said else [])]
        names = [metric["name"] for metric in table["metrics"]]
        rows = _table(
            ["method", *(metric["title"] for metric in table["metrics"])],
            [[row["method"], *(_interval(row["figures"].get(name)) for name in names)] for row in table["rows"]],
        )
        said.insert(0, f"- skill against {table['best_baseline']}, the best baseline: {_interval(table['skill'])}")
        if table["gap_closed"] is not None:
            said.insert(1, f"- of the way from there to the best that is possible: {_interval(table['gap_closed'])}")
        above = (
            f"On {table['decisions']:,} test decisions, {table['unlabelled']:,} more without a label; "
            f"{table['level']:.0%} intervals by resampling {table['blocks']:,} blocks ({table['block_kind']}):"
        )
        return [above, "", *rows, "", *said]

    def _data(self) -> list[str]:
        found = self.data["parts"]
        rows = [
            [f"{name}, {_ROLES[name]}", f"{part['decisions']:,}", f"{part['entities']:,}", *map(_time, _window(part))]
            for name, part in found.items()
        ]
        universe = self.data["universe"]
        names = ": " + ", ".join(" ".join(name.split()) for name in universe["names"]) if universe["names"] else ""
        said = [f"- {universe['entities']:,} entities{names}"]
        said += [f"- left out, {why}: {count:,}" for why, count in self.data["dropped"].items()]
        checks = [check["name"] for check in self.data["audit"]["checks"] if check["verdict"] == "passed"]
        said.append(f"- checks of the audit that passed, of {len(self.data['audit']['checks'])}: {len(checks)}")
        said.append(f"- licence: {self.licence}")
        return [*_table(["part", "decisions", "entities", "first (UTC)", "last (UTC)"], rows), "", *said]

    def _limits(self) -> list[str]:
        test = self.data["parts"]["test"]
        first, last = map(_time, _window(test))
        said = []
        if self.metrics["table"] is not None:
            said.append(
                f"- tested on {test['entities']:,} entities from {first} to {last} and on nothing else: not on other "
                f"entities, markets or kinds of data, and not on what came after"
            )
            said.append(f"- entities of the test rows that training had not seen: {test['new_entities']:,}")
        longest = self.settings.get("data", {}).get("max_seq_len")
        if longest is not None:
            said.append(f"- context: at most {longest:,} tokens of a sequence; longer ones were never seen")
        said.append(
            "- a token sees the past of its sequence alone"
            if self.causal
            else "- a token sees its whole sequence, so every sequence must end at its decision"
        )
        for check in self.data["audit"]["checks"]:
            if check["verdict"] != "passed":
                said.append(
                    f"- {check['verdict']}: {check['name']}" + (f" ({check['sentence']})" * bool(check["sentence"]))
                )
        if self.certificate is None:
            return [*said, "- its attention was not certified"]
        said.append(f"- attention on {self.certificate['device']}: {self.certificate['headline']}")
        said.append(
            "- the certificate covers the attention that this run used, on that device and with the sources below. It "
            "does not cover other devices or later versions, and says nothing of what the model predicts"
        )
        return said

    def _hashes(self) -> list[str]:
        packages = self.environment["packages"]
        rows = [[f"data: {name}", value] for name, value in self.data["hashes"].items()]
        rows.append(["code: commit", self.environment["commit"]])
        rows += [[f"code: {name}", packages[name]] for name in ("torch", "triton") if name in packages]
        if self.certificate is not None:
            rows.append(["certificate of the attention", str(self.certificate["sha"])])
            rows += [[f"source of {name}", value] for name, value in self.certificate["sources"].items()]
        return [
            *_table(["what", "sha256 or version"], rows),
            "",
            "Those of the files beside this one: `manifest.json`.",
        ]


_USE = [
    "```sh",
    "python score.py model=THIS_FOLDER data=NAME data.path=DIR out=DIR  # the same kind of data as it was trained on",
    "python -m quantattn export model=THIS_FOLDER out=DIR format=onnx",
    "```",
    "",
    "```python",
    "from quantattn import load_model",
    "",
    "scores = load_model(folder).score(batch)",
    "```",
]


def parts_of(prepared: Prepared) -> dict[str, Any]:
    """The windows of time of the parts, and whose decisions they are, as plain values.

    `parts`: name → decisions, entities, new_entities (those that training has not), first and last (ns UTC, None for
    no decision). `universe`: entities of all parts, and their names when there are at most 50.
    """
    entities = {name: {str(each) for each in prepared.entity[name].tolist()} for name in PARTS}
    found = {}
    for name in PARTS:
        as_of = prepared.as_of[name]
        found[name] = {
            "decisions": len(as_of),
            "entities": len(entities[name]),
            "new_entities": len(entities[name] - entities["train"]),
            "first": int(as_of.min()) if len(as_of) else None,
            "last": int(as_of.max()) if len(as_of) else None,
        }
    every = sorted(set().union(*entities.values()))
    return {
        "parts": found,
        "universe": {"entities": len(every), "names": every if len(every) <= _MOST_NAMES else []},
    }


def _window(part: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return part["first"], part["last"]


def _time(nanoseconds: int | None) -> str:
    if nanoseconds is None:
        return "–"
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    whole = dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{whole}.{rest:09d}" if rest else whole


def _interval(figure: Mapping[str, Any] | None) -> str:
    if figure is None or figure["value"] is None:
        return "–"
    bounds = [figure["low"], figure["high"]]
    return f"{figure['value']:.6g}" + (f" [{bounds[0]:.6g}, {bounds[1]:.6g}]" if None not in bounds else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    # A bar in a name, an entity's for instance, would begin another column.
    lines = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (head, *rows)]
    return [f"| {' | '.join(lines[0])} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in lines[1:])]
