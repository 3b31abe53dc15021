"""What is said where memory is out in evaluation and in scoring, under a limit of memory that is real."""

from __future__ import annotations

from collections.abc import Callable

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


@pytest.mark.parametrize(
    ("call", "length", "helps"),
    [
        (evaluated, 50, FEWER.format("data.")),
        (evaluated, TOKENS, SHORTER),
        (scored, 50, FEWER.format("")),
        (scored, TOKENS, SHORTER),
    ],
)
def test_the_batch_and_the_setting_are_named(
    call: Callable[[Recorded], Callable[[], object]], length: int, helps: str
) -> None:
    run = call(sequences(TOKENS // length, length=length))

    def said() -> str:
        torch.set_num_threads(1)
        limit(100)
        try:
            run()
        except OutOfMemory as error:
            return str(error)
        return "nothing was raised"

    sentence = answer(said)
    assert sentence.startswith("memory is out where a batch of 1,000,000 tokens is scored ("), sentence
    assert sentence.endswith(f"); {helps}")
    assert "\n" not in sentence


def test_other_errors_pass() -> None:
    batch = sequences(3).pack([0])
    for error in (RuntimeError("shapes cannot be multiplied"), ValueError("out of memory"), OutOfMemory("said before")):
        with pytest.raises(type(error), match=f"^{error}$"), scoring(batch, "x"):
            raise error
