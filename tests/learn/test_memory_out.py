"""What is said where memory is out in evaluation and in scoring, under a limit of memory that is real."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from forked import answer
from little_memory import limit
from toy import Recorded, model, sequences

from quantattn.learn.predict import predict
from quantattn.nn.memory import OutOfMemory, scoring
from quantattn.score import Work, make_plan
from quantattn.score.outputs import Scores
from quantattn.score.worker import Worker

TOKENS = 1_000_000
"""Numbers of so many tokens are asked of the system one tensor at a time: none is given what others have freed."""


def evaluated(given: Recorded) -> Callable[[], object]:
    return lambda: predict(model().eval(), given, TOKENS)


def scored(given: Recorded) -> Callable[[], object]:
    row = given.decisions.row
    names = tuple(given.table.entities[entity] for entity in given.table.entity_of(row))
    work = Work(given, given.table.time[row], names, {"file": "a"}, {})
    plan = make_plan(work, "m", len(row))
    worker = Worker(model(), work, plan, TOKENS, output=Scores(("even", "odd")))
    return lambda: worker.rows(plan.shards[0])


FEWER = "give a smaller {}max_tokens_per_batch; the longest sequence of this batch has 50"
SHORTER = "it is one sequence, so take shorter ones, by a smaller data.max_seq_len, or another device"
CASES = {
    "evaluated": (evaluated, 50, FEWER.format("data.")),
    "one sequence is evaluated": (evaluated, TOKENS, SHORTER),
    "scored": (scored, 50, FEWER.format("")),
    "one sequence is scored": (scored, TOKENS, SHORTER),
}


def said(case: str) -> str:
    call, length, _ = CASES[case]
    run = call(sequences(TOKENS // length, length=length))
    torch.set_num_threads(1)
    limit(40)
    try:
        run()
    except OutOfMemory as error:
        return str(error)
    return "nothing was raised"


@pytest.fixture(scope="module")
def sentences() -> dict[str, str]:
    """Of a process of its own, and of each case in a child of that: one that has run tests has memory to draw on."""
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_batch_and_the_setting_are_named(case: str, sentences: dict[str, str]) -> None:
    sentence = sentences[case]
    assert sentence.startswith("memory is out where a batch of 1,000,000 tokens is scored ("), sentence
    assert sentence.endswith(f"); {CASES[case][2]}")
    assert "\n" not in sentence


def test_other_errors_pass() -> None:
    batch = sequences(3).pack([0])
    for error in (RuntimeError("shapes cannot be multiplied"), ValueError("out of memory"), OutOfMemory("said before")):
        with pytest.raises(type(error), match=f"^{error}$"), scoring(batch, "x"):
            raise error


if __name__ == "__main__":
    print(json.dumps({case: answer(partial(said, case)) for case in CASES}))
