"""Scoring what is new: the states of streams are kept from job to job, so that old events are not computed again.

A folder holds an index and files of states, all of them safetensors with a hash of every byte:

    index.safetensors          what the states were made of, and for each entity how much of it they know
    <plan>-<shard>.safetensors keys and values of the sequences that may go on

A job goes on from the index as it stood when it began and writes the states of a shard before the shard's rows, so a
job that is killed is gone on with by the same command. The index is written once every row is in the table; until then
the next job would begin where this one did. One job at a time has the folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantattn.batch import PackedBatch
from quantattn.data.files import replacing
from quantattn.data.grown import last_sequences, only_new, past_sha256
from quantattn.data.units import places
from quantattn.nn import Model
from quantattn.nn.state_file import read_state, verify_state, write_state
from quantattn.nn.streaming import Past, go_on, rest
from quantattn.score.outputs import Output
from quantattn.score.plan import Plan, Shard, Work, changed

INDEX = "index.safetensors"
_CARRIED = "carried"
_ANEW = "remove the folder, or name another one, to score from the first event on"


@dataclass(frozen=True)
class Kept:
    """What is known of an entity: its first `events` events, of which `sha256` is the hash.

    The last sequence that was computed is its events from place `start` up to `stop`, exclusive; its keys and values
    are number `slot` in `file`.
    """

    events: int
    sha256: str
    start: int
    stop: int
    file: str
    slot: int

    def __post_init__(self) -> None:
        numbers = (self.events, self.start, self.stop, self.slot)
        if any(type(x) is not int or x < 0 for x in numbers) or Path(self.file).name != self.file:
            raise TypeError(f"{self} is no place of a state")


class Stream:
    """What the sequences of a job go on from, and where their states are kept.

    Args:
        folder: of the states.
        past: entity → what is known of it.
        last: numbers of the sequences that are the last ones of their entities.
    """

    def __init__(self, folder: Path, past: Mapping[str, Kept], last: Sequence[int]) -> None:
        self.folder, self.past, self.last = folder, past, frozenset(last)
        self._made: dict[int, Past] = {}

    def said(
        self, model: Model, work: Work, batch: PackedBatch, numbers: Sequence[int], output: Output, device: str
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Keys, and what is said of them, for the sequences of these numbers, whose tokens are `batch`."""
        encoder = model.encoder
        before = [self._past_of(work, number) for number in numbers]
        past = Past.joined([Past.empty(encoder, 1) if each is None else each.to(device) for each in before])
        new = rest(batch, past.lengths.to(batch.positions.device)).to(device)
        states, kept = go_on(encoder, new, past)
        for place, number in enumerate(numbers):
            if number in self.last:
                self._made[number] = kept.of(torch.tensor([place], device=kept.lengths.device)).to("cpu")
        return new.keys.cpu(), output.said(model, new, "batch", states[new.positions])

    def keep(self, work: Work, plan: Plan, shard: Shard) -> None:
        """Write the states of a shard's sequences that may go on; those of a shard that was begun again count once."""
        numbers = [number for number in range(shard.first, shard.last) if number in self._made]
        made = [self._made.pop(number) for number in numbers]
        _write(self.folder / _name(plan, shard.name), plan, work, numbers, made)

    def _past_of(self, work: Work, number: int) -> Past | None:
        name, start, stop = _whereabouts(work, number)
        kept = self.past.get(name)
        if kept is None or kept.start != start or kept.stop > stop:
            return None
        return _read(self.folder, kept.file).past.of(torch.tensor([kept.slot]))


@dataclass(frozen=True)
class States:
    """A file of states: entities, where their sequences lie, and their keys and values, in one order."""

    plan: str
    entities: tuple[tuple[str, int, int], ...]
    past: Past


def begin(folder: Path, work: Work, made_of: Mapping[str, Any]) -> tuple[Work, Stream, int]:
    """The decisions that are new, what their sequences go on from, and how many decisions are not new.

    Args:
        folder: of the states; one that is not there, or is empty, knows nothing.
        work: all decisions of the streams as they are now.
        made_of: plain values: model, settings, policy and code, on which the bits of a state depend.

    Raises:
        ValueError: the folder holds something else, states of another model or setting or damaged ones, or the past of
            an entity is not what its state was made of.
    """
    past = _index(folder, made_of)
    table = work.sequences.table
    number = {name: e for e, name in enumerate(table.entities)}
    done = torch.zeros(len(table.entities), dtype=torch.int64)
    for name, kept in past.items():
        if name not in number:
            raise ValueError(f"{folder} knows {kept.events:,} events of {name}, which these data lack; {_ANEW}")
        there = int(table.offsets[number[name] + 1] - table.offsets[number[name]])
        if there < kept.events or past_sha256(table, work.events, number[name], kept.events) != kept.sha256:
            raise ValueError(
                f"{folder} knows {kept.events:,} events of {name}, and these data begin with others ({there:,}); "
                f"{_ANEW}"
            )
        done[number[name]] = kept.events
    cut, new = only_new(work.sequences, done.numpy())
    rows = torch.as_tensor(new).nonzero().flatten().tolist()
    told = {"place": places(cut)}
    if "event_time" in work.events:
        told["event_time"] = work.events["event_time"][cut.decisions.row]
    fresh = replace(
        work, sequences=cut, as_of=work.as_of[new], entity=tuple(work.entity[row] for row in rows), described=told
    )
    last = torch.as_tensor(last_sequences(cut)).nonzero().flatten().tolist()
    return fresh, Stream(folder, past, last), len(new) - len(rows)


def commit(folder: Path, work: Work, plan: Plan, made_of: Mapping[str, Any]) -> tuple[int, int]:
    """Make what a finished job kept the states that the next one goes on from; entities, and bytes of their states.

    Raises:
        ValueError: states of a shard are missing or damaged, or see `begin`.
    """
    past = dict(_index(folder, made_of))
    old = {kept.file for kept in past.values()}
    table = work.sequences.table
    number = {name: e for e, name in enumerate(table.entities)}
    for shard in plan.shards:
        file = _name(plan, shard.name)
        for slot, (name, start, stop) in enumerate(_read(folder, file).entities):
            count = int(table.offsets[number[name] + 1] - table.offsets[number[name]])
            sha = past_sha256(table, work.events, number[name], count)
            past[name] = Kept(count, sha, start, stop, file, slot)
    past = _carried(folder, plan, past, old)
    tree = {"made_of": dict(made_of), "entities": {name: asdict(kept) for name, kept in past.items()}}
    with replacing(folder / INDEX, verify_state) as into:
        write_state(tree, into)
    live = {kept.file for kept in past.values()} | {INDEX}
    for path in folder.glob("*.safetensors"):
        if path.name not in live:
            path.unlink()
    return len(past), sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _carried(folder: Path, plan: Plan, past: Mapping[str, Kept], old: set[str]) -> dict[str, Kept]:
    """The same, with what is left of files that are no longer of use as a whole in one new file."""
    moved: list[tuple[str, Kept, Past]] = []
    for file in sorted(old):
        own = {name: kept for name, kept in past.items() if kept.file == file}
        if own and len(own) < len((states := _read(folder, file)).entities):
            moved += [(name, kept, states.past.of(torch.tensor([kept.slot]))) for name, kept in own.items()]
    if not moved:
        return dict(past)
    file = _name(plan, _CARRIED)
    entities = [(name, kept.start, kept.stop) for name, kept, _ in moved]
    _put(folder / file, plan, entities, [held for _, _, held in moved])
    return {**past, **{name: replace(kept, file=file, slot=i) for i, (name, kept, _) in enumerate(moved)}}


def _index(folder: Path, made_of: Mapping[str, Any]) -> Mapping[str, Kept]:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is no folder; name another with incremental=DIR")
    if not folder.exists() or not any(folder.iterdir()):
        return {}
    if not (folder / INDEX).exists():
        if all(path.suffix == ".safetensors" for path in folder.iterdir() if not path.name.startswith(".")):
            return {}  # of a first job that has not come to its end
        raise ValueError(f"{folder} holds something that is no states of streams; name another with incremental=DIR")
    tree = _checked(folder / INDEX)
    try:
        before, entities = tree["made_of"], tree["entities"]
        past = {str(name): Kept(**kept) for name, kept in entities.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / INDEX} is no index of states; {_ANEW}") from error
    if before != made_of:
        why = changed(before, made_of)
        raise ValueError(f"the states in {folder} were made otherwise ({why}); {_ANEW}")
    return past


def _checked(path: Path) -> dict[str, Any]:
    try:
        return read_state(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{error}; {_ANEW}") from error


def _name(plan: Plan, shard: str) -> str:
    return f"{plan.sha[:16]}-{shard}.safetensors"


def _whereabouts(work: Work, number: int) -> tuple[str, int, int]:
    """Entity of a sequence, and the places of its first token and behind its last."""
    cut, table = work.sequences, work.sequences.table
    entity = int(table.entity_of(cut.start[number]))
    begin = int(table.offsets[entity])
    return table.entities[entity], int(cut.start[number]) - begin, int(cut.stop[number]) - begin


def _write(path: Path, plan: Plan, work: Work, numbers: Sequence[int], held: list[Past]) -> None:
    _put(path, plan, [_whereabouts(work, number) for number in numbers], held)


def _put(path: Path, plan: Plan, entities: Sequence[tuple[str, int, int]], held: list[Past]) -> None:
    none = torch.zeros(0, dtype=torch.int64)
    past = Past.joined(held) if held else Past(none, none, ())
    tree = {
        "plan": plan.sha,
        "entities": list(entities),
        "lengths": past.lengths,
        "began": past.began,
        "layers": list(past.layers),
    }
    with replacing(path, verify_state) as into:
        write_state(tree, into)


def _read(folder: Path, file: str) -> States:
    path = folder / file
    try:
        status = path.stat()
    except OSError as error:
        raise ValueError(f"{path} is not there, though the index of states names it; {_ANEW}") from error
    states = _file(path, status.st_mtime_ns, status.st_size)
    if not file.startswith(states.plan[:16]):
        raise ValueError(f"{path} holds the states of another job; {_ANEW}")
    return states


@lru_cache(maxsize=4)
def _file(path: Path, changed_at: int, size: int) -> States:
    tree = _checked(path)
    try:
        past = Past(tree["lengths"], tree["began"], tuple((k, v) for k, v in tree["layers"]))
        return States(str(tree["plan"]), tuple((str(n), int(a), int(b)) for n, a, b in tree["entities"]), past)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of states; {_ANEW}") from error
