"""Everything that `attention` offers beside plain scores, one problem each, and a short fuzz over mixtures of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from quantattn.attention.certificate import Finding, verdict
from quantattn.attention.fuzz import run_task, tasks
from quantattn.attention.machine import dtype_name
from quantattn.attention.mask import Mask
from quantattn.attention.problems import Problem, random_problem

_CAUSAL = Mask(causal=True)


def feature_problems(dtype: torch.dtype, device: torch.device, *, small: bool = False) -> list[Problem]:
    """One problem a feature, on a causal or full mask, with blind queries and an empty sequence in the pack."""
    lengths, lengths_k = ((19, 0, 5), (23, 2, 5)) if small else ((70, 0, 41), (90, 4, 30))
    draw = partial(
        random_problem, lengths=lengths, lengths_k=lengths_k, heads=2, heads_k=1, d=16 if small else 64,
        dtype=dtype, device=device,
    )  # fmt: skip
    return [
        draw(300, mask=_CAUSAL, extras=("softcap",), label="softcap"),
        draw(301, mask=_CAUSAL, extras=("sinks",), dlse=True, label="sinks"),
        draw(302, mask=_CAUSAL, extras=("alibi",), label="ALiBi"),
        draw(303, mask=_CAUSAL, extras=("scales",), label="scales by head"),
        draw(304, mask=_CAUSAL, extras=("segments",), label="segments"),
        draw(305, extras=("dropout",), label="dropout"),
        draw(306, mask=Mask(causal=True, prefix=5), label="prefix"),
        draw(307, mask=Mask(window=(9, 2), prefix=3), label="prefix and window"),
        draw(308, bias="key", label="bias, a number a key"),
        draw(309, bias="query", label="bias, a number a query"),
        draw(310, bias="place", label="bias, a number a place"),
        draw(311, bias="head", label="bias, a number a head"),
        draw(312, bias="full", label="bias everywhere, with −∞"),
        draw(313, bias="bool", label="bias, bool"),
        draw(314, mask=_CAUSAL, extras=("softcap", "alibi", "sinks", "segments"), bias="key", label="five together"),
    ]


def check_fuzz(name: str, dtype: torch.dtype, device: torch.device, kinds: int, instances: int) -> Iterator[Finding]:
    """Problems of any sort within their budgets: how many, and the first that was not."""
    done, refused = 0, 0
    failures: list[str] = []
    for task in tasks(name, (dtype,), kinds, instances, str(device)):
        outcome = run_task(task)
        done, refused = done + outcome.run, refused + outcome.refused
        failures += outcome.failures
    case = f"fuzz: {kinds} sorts of problems"
    if done == 0:
        note = f"none of {refused} problems is of a sort that it takes"
        yield Finding(name, case, dtype_name(dtype), "all", 0.0, 0.0, 0.0, "not offered", note, 0)
        return
    last = -(-instances // kinds) - 1
    note = failures[0] if failures else f"{refused} of {done + refused} not offered" if refused else ""
    failed = float(len(failures))
    yield Finding(
        name, case, dtype_name(dtype), "failures", failed, 0.0, 0.0, verdict(not failures), note, done, (0, last)
    )
