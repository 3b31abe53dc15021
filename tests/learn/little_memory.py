"""Training in a process with little memory left, made for it: one that has run tests has freed memory to draw on.

python little_memory.py FOLDER     prints one line of JSON
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import resource
import sys
from pathlib import Path

import torch
from toy import model, sequences

from quantattn.learn.budget import find_budget, within_memory
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import Fitted, fit
from quantattn.learn.module import Schedule, Training
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Outcome
from quantattn.nn.memory import OutOfMemory

CPU = TrainerSettings(max_steps=3, validate_every=3)
LENGTH = 50
MIB = 1 << 20
_M_MMAP_THRESHOLD = -3
"""Of glibc's malloc.h: pieces from so many bytes on are asked of the system."""


def module(steps: int = 3) -> Training:
    optimizer = functools.partial(torch.optim.AdamW, lr=0.01)
    return Training(model(), Outcome(), optimizer=optimizer, schedule=Schedule(steps), seed=0)


def limit(mebibytes: int) -> None:
    """Let this process have so much more address space than it has, and draw on nothing that it had and gave up.

    A process that has freed large pieces takes larger ones from its heap, where they lie: as many as tests before left;
    and what nobody refers to any more may be given up at any time.
    """
    gc.collect()
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 16)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + mebibytes * MIB
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def trained(folder: Path, tokens: int) -> Fitted:
    train = sequences(6000, length=LENGTH)
    data = PreparedData(train, sequences(6, seed=1), max_tokens=tokens, seed=1, batches=3)
    return within_memory(
        lambda: fit(module(), data, folder, CPU, total_steps=3),
        tokens,
        LENGTH,
        lambda: find_budget(module(), train, CPU),
    )


def main(folder: Path) -> None:
    """What is found with 64 MiB left, steps of a run with half of it, what four times as much says; with 10, none."""
    torch.set_num_threads(1)
    trained(folder / "first", 20 * LENGTH)  # everything that is made once is made
    long = sequences(2, length=300_000)
    limit(64)
    found = find_budget(module(), sequences(6000, length=LENGTH), CPU)
    # A run keeps some MiB of its own, which are much of so few.
    step = trained(folder / "fits", (found or LENGTH) // 2).step
    said = "nothing was raised"
    try:
        trained(folder / "more", 4 * (found or LENGTH))
    except OutOfMemory as error:
        said = str(error)
    limit(10)
    print(json.dumps({"found": found, "step": step, "said": said, "of_none": find_budget(module(), long, CPU)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
