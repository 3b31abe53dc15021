"""What is said when memory is out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from quantattn.batch import PackedBatch

_SAID = ("not enough memory", "can't allocate memory", "Cannot allocate memory", "bad_alloc", "out of memory")


class OutOfMemory(RuntimeError):
    """A batch does not fit into memory; what was written before stands."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or of Python is that memory is out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID)


def cause_of(error: BaseException) -> str:
    """What torch says of it, on one line and not at length."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextmanager
def scoring(batch: PackedBatch, setting: str) -> Iterator[None]:
    """Say of which batch memory was out in the block, and what helps.

    Args:
        batch: that is given to a model for its scores.
        setting: name of the one that says how many tokens a batch may have.

    Raises:
        OutOfMemory: in place of what torch and Python say.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        said = f"memory is out where a batch of {batch.n_tokens:,} tokens is scored ({cause_of(error)})"
        if batch.n_sequences == 1:
            helps = "it is one sequence, so take shorter ones, by a smaller data.max_seq_len, or another device"
        else:
            helps = f"give a smaller {setting}; the longest sequence of this batch has {batch.max_seqlen:,}"
        raise OutOfMemory(f"{said}; {helps}") from error
