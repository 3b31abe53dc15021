"""The way in which rows are scored without this library's jobs: Lightning's `trainer.predict` and a table of pandas.

Batches are padded to the longest item, the trainer has bfloat16, Lightning gathers the predictions, and one Parquet
file comes at the end; `processes` load and pad into page-locked memory, or with 0, a loader's default, this one does.
The encoder is causal and padding lies behind an item, so no row sees any, and the encoder needs no mask: it computes
padding as if it were events. Model, weights, rows and device are the same. Items are of two kinds:

- `windows`, what a data set with a row for each decision gives: the history of every decision, computed anew for each;
- `sequences`, as somebody writes it who knows that a causal encoder answers all decisions of a sequence at once.
"""

from __future__ import annotations

import logging
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from quantattn.batch import PackedBatch
from quantattn.data.pack import Ints, SequenceSet
from quantattn.nn import Model
from quantattn.score import Work


def sequences(cut: SequenceSet, numbers: Ints) -> Ints:
    """(n, 4): the first row, the one behind the last, and likewise the decisions, of the sequences of these numbers."""
    return np.stack([cut.start[numbers], cut.stop[numbers], cut.first[numbers], cut.first[numbers + 1]], 1)


def windows(cut: SequenceSet, count: int) -> Ints:
    """(count, 4) likewise of the first decisions: each alone, with the rows that it sees in its sequence."""
    key = np.arange(count)
    end = np.asarray(cut.decisions.row[:count]) + 1
    start = cut.start[np.searchsorted(cut.first, key, side="right") - 1]
    return np.stack([start, end, key, key + 1], 1)


class OneByOne(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Item → its fields, times, and the places and numbers of its decisions."""

    def __init__(self, cut: SequenceSet, items: Ints) -> None:
        self.cut, self.items = cut, items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        cut, (start, stop, first, last) = self.cut, self.items[place].tolist()
        fields = {name: column[start:stop].astype(np.int64) for name, column in cut.table.fields.items()}
        own = {"time": cut.table.time[start:stop], "place": cut.decisions.row[first:last] - start}
        return {n: torch.from_numpy(np.array(x)) for n, x in (fields | own | {"key": np.arange(first, last)}).items()}


def padded(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Items as one batch: (B, longest) fields and times, and (Q,) places in it and numbers of the decisions."""
    laid = {
        name: pad_sequence([item[name] for item in items], batch_first=True)
        for name in items[0]
        if name not in ("place", "key")
    }
    longest = laid["time"].shape[1]
    place = torch.cat([item["place"] + number * longest for number, item in enumerate(items)])
    return {**laid, "place": place, "key": torch.cat([item["key"] for item in items])}


def as_pack(batch: dict[str, Tensor]) -> PackedBatch:
    """A padded batch as the sequences of one length that a model computes."""
    count, longest = batch["time"].shape
    ends = torch.arange(0, (count + 1) * longest, longest, dtype=torch.int32, device=batch["time"].device)
    fields = {n: x.flatten() for n, x in batch.items() if n not in ("time", "place", "key")}
    return PackedBatch(fields, batch["time"].flatten(), ends, longest, batch["place"], batch["key"])


def predicted(
    model: Model,
    work: Work,
    items: Ints,
    size: int,
    out: Path,
    device: str,
    processes: int,
) -> tuple[float, int]:
    """Seconds from the call of `trainer.predict` to the file, and the tokens that were computed, padding included.

    Args:
        model: what scores.
        work: the decisions.
        items: see `sequences` and `windows`.
        size: items a batch.
        out: the file.
        device: where the model runs.
        processes: that load ahead.
    """
    import lightning.pytorch as pl
    import pandas as pd

    computed: list[int] = []

    class Scoring(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def predict_step(self, batch: Any, number: int) -> Any:
            computed.append(batch["time"].numel())
            return batch["key"], self.model.score(as_pack(batch))["prob"]

    on_gpu = device.startswith("cuda")
    ahead: Any = {"num_workers": processes, "pin_memory": on_gpu and processes > 0, "timeout": 30 * (processes > 0)}
    if processes:  # by name and not by handing over open files, which not every container has
        torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    loader = torch.utils.data.DataLoader(OneByOne(work.sequences, items), size, collate_fn=padded, **ahead)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet: Any = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    entity = np.asarray(work.entity, object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="gpu" if on_gpu else "cpu", devices=1, precision="bf16-mixed" if on_gpu else "32-true", **quiet
        )
        module = Scoring()
        began = time.perf_counter()
        said = trainer.predict(module, loader)
    assert said is not None
    every: Any = said
    keys, prob = (torch.cat([each[place] for each in every]).numpy() for place in (0, 1))
    order = np.argsort(keys)
    keys, prob = keys[order], prob[order]
    table = pd.DataFrame(
        {
            "entity": entity[keys],
            "as_of": work.as_of[keys],
            "key": keys,
            "prob_down": prob[:, 0],
            "prob_up": prob[:, 1],
        }
    )
    if find_spec("pyarrow") is not None:
        table.to_parquet(out)
    else:  # which pandas needs for Parquet; polars is no slower
        import polars

        polars.DataFrame({name: table[name].tolist() for name in table}).write_parquet(out)
    return time.perf_counter() - began, sum(computed)
