"""How many tokens a batch may have: the most that fit, found by trying, and what is said when memory is out."""

from __future__ import annotations

import copy
import gc
import resource
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

from quantattn.data.pack import SequenceSet, plan
from quantattn.learn.module import Training
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn.memory import OutOfMemory, cause_of, is_out_of_memory

T = TypeVar("T")
FINENESS = 16
"""A budget is found up to this part of itself; as much is left free, for batches that take more than the one tried."""
HELPS = (
    "less memory is also taken with model.gradient_checkpointing=true, trainer.precision=bf16-mixed, a smaller model "
    "or a smaller data.max_seq_len"
)


def require_limit(trainer: TrainerSettings) -> None:
    """Raise ValueError where a budget cannot be found by trying: on several devices, or where trying too much kills."""
    if trainer.ranks > 1:
        raise ValueError("data.max_tokens_per_batch=auto is found on one device: give several a number of tokens")
    limits = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    if trainer.accelerator == "cpu" and all(limit == resource.RLIM_INFINITY for limit in limits):
        raise ValueError(
            "data.max_tokens_per_batch=auto tries batches until memory is out, and a CPU process without a limit is "
            "killed for that; set one (ulimit -v KIB), use trainer=gpu, or give a number of tokens"
        )


def largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """A budget b that fits, least ≤ b ≤ most, when b + b/16 + 1 does not or is beyond `most`; None: `least` does not.

    `fits` must be true up to some budget and false beyond it; it is asked about 4 times for each doubling that fits.
    """
    if not fits(least):
        return None
    low, high = least, min(2 * least, most)
    while low < most and fits(high):
        low, high = high, min(2 * high, most)
    while high - low > max(low // FINENESS, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def find_budget(
    module: Training, train: SequenceSet, trainer: TrainerSettings, said: Callable[[str], None] = lambda line: None
) -> int | None:
    """The most tokens of a batch whose training step fits into memory, a sixteenth left free; None: no sequence does.

    Each try is two whole steps, with the optimizer's state, of a copy of the module: neither its weights nor the global
    generators change. The most is all tokens of the training set.

    Args:
        module: what is to be trained.
        train: its sequences.
        trainer: on what device, in which precision.
        said: told of each try.
    """
    trials = _Trials(module, train, trainer)

    def fits(tokens: int) -> bool:
        done = trials.fits(tokens)  # noqa: F821  it is deleted after the last call
        said(f"a batch of {tokens:,} tokens {'fits' if done else 'does not fit'}")
        return done

    least = train.max_seq_len  # other parts may have a longer sequence than the longest of this one
    most = max(int(train.lengths.sum()), least)
    found = largest(fits, least, most)
    del trials
    gc.collect()
    if trainer.accelerator == "gpu":
        torch.cuda.empty_cache()
    return None if found is None else max(found - found // FINENESS, least) if found < most else found


class _Trials:
    """Steps of a copy of a module, made with the first, that are as large as they are asked to be."""

    def __init__(self, module: Training, train: SequenceSet, trainer: TrainerSettings) -> None:
        self.module, self.train = module, train
        self.device = torch.device("cuda" if trainer.accelerator == "gpu" else "cpu")
        self.mixed = None if trainer.attention_dtype is torch.float32 else trainer.attention_dtype
        self.copied: tuple[Training, torch.optim.Optimizer] | None = None

    def fits(self, tokens: int) -> bool:
        """Whether two whole steps with a batch of so many tokens have enough memory."""
        try:
            with torch.random.fork_rng(["cuda"] if self.device.type == "cuda" else []):
                self._steps(tokens)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        gc.collect()  # now that the error no longer holds the tensors of the step
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _steps(self, tokens: int) -> None:
        if self.copied is None:
            trained = copy.deepcopy(self.module).to(self.device).train()
            made: Any = trained.configure_optimizers()
            self.copied = (trained, made["optimizer"])
        trained, optimizer = self.copied
        optimizer.zero_grad()
        batch = self.train.pack(_fullest(self.train, tokens)).to(self.device)
        for _ in range(2):
            with nullcontext() if self.mixed is None else torch.autocast(self.device.type, self.mixed):
                loss = trained.objective(trained.model, batch, step=0).loss
            optimizer.zero_grad()  # after the forward pass, as Lightning does
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _fullest(train: SequenceSet, tokens: int) -> Any:
    """The numbers of the sequences of a batch that leaves as little room as any."""
    some = torch.randperm(len(train), generator=torch.Generator().manual_seed(0)).numpy()
    enough = int((train.lengths[some].cumsum() < 4 * tokens).sum()) + 1
    some = some[:enough]
    batches = plan(train.lengths[some], tokens)
    return some[max(batches, key=lambda batch: int(train.lengths[some[batch]].sum()))]


def within_memory(train: Callable[[], T], tokens: int, longest: int, find: Callable[[], int | None] | None) -> T:
    """What `train` returns.

    Args:
        train: trains.
        tokens: the most of a batch.
        longest: tokens of the longest sequence.
        find: tries what fits, see `find_budget`; None where that is not possible.

    Raises:
        OutOfMemory: memory was out; the sentence names settings that help and, with `find`, the budget that fits.
    """
    try:
        return train()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        cause = cause_of(error)
    # Outside of the handler nothing holds the tensors of the step that failed any more.
    gc.collect()
    out = f"memory is out at a batch of at most {tokens:,} tokens ({cause})"
    if find is None:
        raise OutOfMemory(f"{out}; give a smaller data.max_tokens_per_batch and a larger trainer.accumulate; {HELPS}")
    if (found := find()) is None:
        raise OutOfMemory(f"{out}; not even one sequence of {longest:,} tokens fits; {HELPS}")
    raise OutOfMemory(
        f"{out}; data.max_tokens_per_batch={found} fits, and {-(-tokens // found)} such batches a step, by "
        f"trainer.accumulate, have as many tokens; {HELPS}"
    )
