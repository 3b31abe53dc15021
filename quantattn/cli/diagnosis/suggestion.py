"""The command that trains on the data that the doctor has read, and what stands in its way."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from quantattn.cli.config import conf_folder
from quantattn.cli.diagnosis.reading import Reading
from quantattn.data.examine import Examination

FEWEST = 200
"""Decisions below which parts for training, validation and test are not worth making."""
_HORIZONS = 20
"""Horizons that the labelled rows must reach over, or nothing is left of a part when its ends are purged."""
_PLENTY = 2_000
LABEL_HORIZON = 100
"""That of the default label, in events."""


@dataclass(frozen=True)
class Suggestion:
    """A command, and sentences about it.

    Attributes:
        command: for a shell; "" when nothing can be trained on.
        remarks: what to know of it.
    """

    command: str
    remarks: tuple[str, ...] = ()


def suggest(reading: Reading, found: Examination, refused: bool) -> Suggestion:
    """The command that reads the same data with the same settings.

    Args:
        reading: what was read.
        found: in it.
        refused: whether the source refuses the data unless bad rows are set aside.
    """
    name = reading.form.name
    words = ["python", "train.py", *_experiment(name), *reading.overrides()]
    remarks: list[str] = []
    if refused:
        aside = "set_aside" if reading.form.source == "tables" else "set_aside.csv"
        words += ["data.source.on_bad=quarantine", f"data.source.set_aside={aside}"]
        remarks.append(f"what breaks a rule is written to {aside} and left out; without that the data are refused")
    if name == "filings":
        words += ["labels=none", "objective=masked_language"]
        remarks.append(
            "labels need prices: experiment=filings data.prepare.prices=DIR data.prepare.tickers=company_tickers.json"
        )
        decisions = found.rows
    elif "decision_every" in reading.prepare:
        decisions, more = _market(reading, found)
        words += more
    else:
        decisions = found.entities
    if found.books.get("empty") == found.looked_at and "from_empty" in reading.given:
        remarks.append("no snapshot came, so there is no book: --set from_empty=true lets books begin empty")
    if not found.rows:
        return Suggestion("", ("there is nothing to train on",))
    if decisions < FEWEST:
        what = "rows with a label" if "decision_every" in reading.prepare else "sequences"
        remarks.append(f"{decisions:,} {what} are too few to train on; the command is for more of the kind")
    elif any(max(each.down, each.flat, each.up) == each.down + each.flat + each.up for each in found.balance[:1]):
        remarks.append("all labels are equal, so that nothing can be learned; the command is for more of the kind")
    return Suggestion(shlex.join(words), tuple(remarks))


def _experiment(name: str) -> list[str]:
    """The experiment of this name, or the one for its kind of data."""
    experiments = conf_folder() / "experiment"
    if name == "filings":
        return ["data=filings"]
    if (experiments / f"{name}.yaml").is_file():
        return [f"experiment={name}"]
    return ["experiment=market", f"data={name}"]


def _market(reading: Reading, found: Examination) -> tuple[int, list[str]]:
    """How many decisions there are for the best horizon, and the settings that it takes."""
    words: list[str] = []
    if not found.balance and not found.no_balance:
        return found.rows, words  # without prices, but with labels of its own
    if found.outside == found.looked_at:
        # No row would have a label; with an instrument's whole table as one session some may.
        words.append("data.prepare.calendar=null")
    known = {each.horizon: each.down + each.flat + each.up for each in found.balance}
    horizon = LABEL_HORIZON if known.get(LABEL_HORIZON, 0) >= _HORIZONS * LABEL_HORIZON else 10
    labelled = known.get(horizon, 0)
    if horizon != LABEL_HORIZON and labelled:
        words.append(f"labels.horizon={horizon}")
    if labelled < _PLENTY and reading.prepare.get("decision_every", 1) > 1:
        words.append("data.prepare.decision_every=1")
    return labelled, words
