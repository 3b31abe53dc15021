"""Loaders beside each other: packs of mapped files, and padded batches as libraries for event sequences collate them.

Both get the same sequences in the same batches; what they return must have the same hash once padding is taken away.
Each runs in a process of its own, so that peak memory is its own.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from quantattn.batch import PackedBatch
from quantattn.cli.benchmarks.processes import apart, peak_since_here, resident
from quantattn.data.mapped import MappedSequences, open_sequences, write_sequences
from quantattn.data.pack import Array, Decisions, Ints, SequenceSet, TokenTable, plan

Say = Callable[[str], None]
Padded = tuple[dict[str, Tensor], Tensor]
SEED = 0


@dataclass(frozen=True)
class LoaderRow:
    """One loader over one set of sequences.

    Attributes:
        impl: packed (ours) or padded.
        shortest, longest: bounds of the lengths, which are log-uniform between them.
        sequences: in an epoch.
        budget: tokens of a batch at most, without padding.
        batches: in an epoch.
        ms: milliseconds of processor time of a batch, on one thread, in the fastest epoch: what else the machine does
            at the same time counts little.
        plan_ms: milliseconds a batch that it takes to say what is in it; given to both, and not among their ms.
        sequences_per_s: of a core, in that epoch.
        tokens_per_s: the same; padding is no token.
        padding: share of what is returned that is padding.
        peak_mib: peak resident memory above that of the imports, MiB; mapped files count while they are resident.
            NaN where the system does not tell.
        times: this loader's tokens a second over those of padded.
        sha256: of everything that an epoch returns, without padding.
    """

    impl: str
    shortest: int
    longest: int
    sequences: int
    budget: int
    batches: int
    ms: float
    plan_ms: float
    sequences_per_s: int
    tokens_per_s: int
    padding: float
    peak_mib: float
    times: float
    sha256: str


class Records(Dataset[dict[str, Tensor]]):
    """A record an entity, in memory: name of a field → its values, in the types that a model takes."""

    def __init__(self, cut: SequenceSet) -> None:
        columns = {name: torch.from_numpy(column.copy()) for name, column in cut.table.fields.items()}
        columns["time"] = torch.from_numpy(cut.table.time.copy())
        bounds = list(zip(cut.start.tolist(), cut.stop.tolist(), strict=True))
        self.records: list[dict[str, Tensor]] = [{} for _ in bounds]
        for name, column in columns.items():
            kept = torch.float32 if column.is_floating_point() else torch.int64
            for record, (start, stop) in zip(self.records, bounds, strict=True):
                record[name] = column[start:stop].to(kept, copy=True)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.records[index]


def collate(records: Sequence[Mapping[str, Tensor]]) -> Padded:
    """Every field as (N, longest), padded with 0 at the end, and the lengths (N,)."""
    lengths = torch.tensor([len(next(iter(record.values()))) for record in records])
    return {name: pad_sequence([r[name] for r in records], batch_first=True) for name in records[0]}, lengths


def make(shortest: int, longest: int, tokens: int, codes: int, values: int) -> SequenceSet:
    """Sequences with about so many tokens in all, each of `codes` integer and `values` float fields."""
    rng = torch.Generator().manual_seed(SEED)
    mean = longest if shortest == longest else (longest - shortest) / math.log(longest / shortest)
    drawn = torch.rand(max(1, round(tokens / mean)), generator=rng, dtype=torch.float64)
    lengths = (shortest * (longest / shortest) ** drawn).round().long()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).numpy()
    rows = int(offsets[-1])
    fields: dict[str, Array] = {}
    fields |= {f"f{i}_code": torch.randint(34, (rows,), generator=rng, dtype=torch.int16).numpy() for i in range(codes)}
    fields |= {f"f{i}_value": torch.randn(rows, generator=rng).numpy() for i in range(values)}
    table = TokenTable(fields, torch.arange(rows).numpy(), offsets, tuple(map(str, range(len(lengths)))))
    return SequenceSet(table, Decisions(offsets[1:] - 1), longest, "document")


def packed(cut: MappedSequences, batches: Sequence[Ints]) -> Iterator[PackedBatch]:
    """One epoch of packs."""
    return map(cut.pack, batches)


def padded(records: Records, batches: Sequence[Ints]) -> Iterator[Padded]:
    """One epoch of padded batches."""
    return iter(DataLoader(records, batch_sampler=[batch.tolist() for batch in batches], collate_fn=collate))


def content(batch: PackedBatch | Padded) -> dict[str, Tensor]:
    """The fields without padding, end to end."""
    if isinstance(batch, PackedBatch):
        return {**batch.fields, "time": batch.time, "lengths": batch.cu_seqlens.diff().long()}
    fields, lengths = batch
    real = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
    return {**{name: values[real] for name, values in fields.items()}, "lengths": lengths}


def run(impl: str, folder: str, budget: int, rounds: int, answer: Any) -> None:
    """In a process of its own: seconds of each epoch, the hash, and MiB; sent through the pipe `answer`."""
    torch.set_num_threads(1)
    before = peak_since_here()
    cut = open_sequences(folder)
    batches = plan(cut.lengths, budget, seed=SEED)
    records = Records(cut) if impl == "padded" else None

    def epoch() -> Iterator[Any]:
        return packed(cut, batches) if records is None else padded(records, batches)

    seconds = []
    for _ in range(rounds + 1):  # the first epoch brings files and code into memory
        began = process_time()
        for _ in epoch():
            pass
        seconds.append(process_time() - began)
    peak = resident("VmHWM") - before
    digest, size, real = hashlib.sha256(), 0, 0
    for batch in epoch():
        for name, values in sorted(content(batch).items()):
            digest.update(name.encode() + values.contiguous().numpy().tobytes())
        time = batch.time if isinstance(batch, PackedBatch) else batch[0]["time"]
        size, real = size + time.numel(), real + int(content(batch)["lengths"].sum())
    answer.send((seconds[1:], digest.hexdigest(), peak, 1 - real / size))


def benchmark(asked: Mapping[str, Any], say: Say) -> Iterator[LoaderRow]:
    """Two rows a case, ours after the other's.

    Raises:
        ValueError: the loaders return different contents.
    """
    budget = asked["budget"]
    for shortest, longest in asked["lengths"]:
        cut = make(shortest, longest, asked["tokens"], asked["codes"], asked["values"])
        with tempfile.TemporaryDirectory(prefix="quantattn-loader-") as scratch:
            folder = write_sequences(cut, Path(scratch) / "set").folder
            # In turn, so that what else the machine does meets both.
            found: dict[str, list[Any]] = {"padded": [], "packed": []}
            for _ in range(asked["turns"]):
                for impl, answers in found.items():
                    answers.append(apart(f"the loader {impl}", run, impl, str(folder), budget, asked["rounds"]))
        hashes = {answer[1] for answers in found.values() for answer in answers}
        if len(hashes) != 1:
            raise ValueError(f"lengths {shortest} … {longest}: the loaders do not return the same tokens")
        began = process_time()
        batches = len(plan(cut.lengths, budget, seed=SEED))
        planned = process_time() - began
        slowest = 0.0
        for impl, answers in found.items():
            took = min(seconds for answer in answers for seconds in answer[0])
            slowest = slowest or took
            yield LoaderRow(
                impl=impl,
                shortest=shortest,
                longest=longest,
                sequences=len(cut),
                budget=budget,
                batches=batches,
                ms=round(1e3 * took / batches, 3),
                plan_ms=round(1e3 * planned / batches, 3),
                sequences_per_s=round(len(cut) / took),
                tokens_per_s=round(len(cut.table) / took),
                padding=round(answers[0][3], 4),
                peak_mib=round(max(answer[2] for answer in answers), 1),
                times=round(slowest / took, 2),
                sha256=answers[0][1],
            )
        say(f"lengths {shortest} … {longest}: equal contents, sha256 {hashes.pop()[:16]}…")
