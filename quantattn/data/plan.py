"""Which sequences make which batch of an epoch, and which batch belongs to which rank.

There is no padding, hence nothing to gain from putting sequences of one length together, and a batch stays a random
sample. What a token budget can waste is the room left at the end of a batch; `plan` keeps that small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

OPEN_BATCHES = 32  # how many unfinished batches `plan` keeps while it looks for room


def plan(lengths: Ints, max_tokens: int, *, seed: int = 0, epoch: int = 0, shuffle: bool = True) -> list[Ints]:
    """The batches of one epoch: every sequence once, at most `max_tokens` tokens a batch.

    Shuffled, sequences come in a random order, each goes to the first of a few unfinished batches that has room, and
    the finished batches are shuffled again; so the step at which a sequence comes is uniform whatever its length.
    Unshuffled, batches are runs of consecutive sequences. The result is a function of the arguments alone.

    Raises:
        ValueError: when a sequence has more than `max_tokens` tokens.
    """
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) and int(lengths.max()) > max_tokens:
        raise ValueError(
            f"sequence {int(lengths.argmax())} has {int(lengths.max())} tokens, more than max_tokens_per_batch = "
            f"{max_tokens}; a batch has to hold the longest sequence"
        )
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    order = rng.permutation(len(lengths)) if shuffle else np.arange(len(lengths))
    batches = _fill(order, lengths, max_tokens, OPEN_BATCHES if shuffle else 1)
    if shuffle:
        batches = [batches[i] for i in rng.permutation(len(batches))]
    return batches


def shard(batches: Sequence[Ints], rank: int, world: int, step: int | None = None) -> list[Ints]:
    """The batches of one of `world` ranks: batch b goes to rank b mod world, and every rank gets as many.

    `step` batches make a step of all ranks, `world` when None. When the number of batches is no multiple of it, some of
    the last are cut in two, so that no rank waits, none repeats a sequence and none drops one; what a step is made of
    is then the same for every `world` that divides `step`.

    Raises:
        ValueError: when there are fewer sequences than batches a step, `world` does not divide `step`, or rank is not
            in 0 … world − 1.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank must lie in 0 … world − 1 = {world - 1}, got {rank}")
    step = world if step is None else step
    if step % world:
        raise ValueError(f"{step} batches a step cannot be shared by {world} ranks")
    return _whole_steps(batches, step)[rank::world]


def _whole_steps(batches: Sequence[Ints], step: int) -> list[Ints]:
    """The batches, with some of the last cut in two so that they are a multiple of `step`."""
    kept = len(batches) - len(batches) % step
    pieces = list(batches[kept:])
    while len(pieces) % step:
        longest = max(range(len(pieces)), key=lambda i: len(pieces[i]), default=0)
        if len(pieces[longest]) > 1:
            half = len(pieces[longest]) // 2
            pieces[longest : longest + 1] = [pieces[longest][:half], pieces[longest][half:]]
        elif kept:
            kept -= step
            pieces = [*batches[kept : kept + step], *pieces]
        else:
            raise ValueError(
                f"{len(pieces)} sequences cannot make whole steps of {step} batches; use fewer ranks or batches a step"
            )
    return [*batches[:kept], *pieces]


def _fill(order: Ints, lengths: Ints, max_tokens: int, n_open: int) -> list[Ints]:
    """First fit into at most `n_open` unfinished batches; the oldest is finished when none has room."""
    finished: list[list[int]] = []
    unfinished: list[list[int]] = []
    room: list[int] = []
    for sequence, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
        at = next((i for i, free in enumerate(room) if free >= length), None)
        if at is None:
            if len(unfinished) == n_open:
                finished.append(unfinished.pop(0))
                room.pop(0)
            unfinished.append([])
            room.append(max_tokens)
            at = len(unfinished) - 1
        unfinished[at].append(sequence)
        room[at] -= length
    return [np.asarray(batch, np.int64) for batch in (*finished, *unfinished)]
