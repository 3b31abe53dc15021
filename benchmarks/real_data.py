"""What the encoder is good for: trained on real files, beside what is cheaper, one table.

    python benchmarks/real_data.py DIR [OVERRIDE …] [--out runs/real] [--seeds 0 1 2] [--only NAME …]

DIR holds the files at the paths of `TASKS`; those that are not there are left out and named. Each run is an ordinary
`python train.py experiment=…` into OUT, and one that is finished there is not run again. Test rows of all folds are put
together and every row is predicted by a model that did not see it; intervals resample entities or stretches of time.
An override such as `model.value_bins=16` goes to every run and needs an OUT of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from quantattn import load_model
from quantattn.cli.config import plain
from quantattn.cli.instantiate import instantiate, settings
from quantattn.cli.preparation import prepare
from quantattn.cli.settings import TrainSettings
from quantattn.evaluate import Interval, Table, choose_blocks, closing_table
from quantattn.learn.closing import classifiers_beside
from quantattn.learn.predict import predict

ROOT = Path(__file__).resolve().parent.parent
LOBSTER, DATABENTO, CRYPTO = "lob/lobster", "lob/databento", "lob/crypto"
BY_TIME, BY_ENTITY = "by time, 70/10/20 %, purged", "5 folds by entity, pooled"
SHOWN = ("encoder", "majority class", "persistence", "logistic regression", "gradient boosting")


@dataclass(frozen=True)
class Task:
    """A file and what is asked of it: `experiment` and its overrides, once for each of `folds` (empty: the default)."""

    name: str
    path: str
    asked: str
    protocol: str
    overrides: tuple[str, ...]
    folds: tuple[int, ...] = ()


TASKS = (
    Task(
        "LOBSTER AMZN, a day",
        f"{LOBSTER}/AMZN_2012-06-21_34200000_57600000_message_1.csv.gz",
        "move of the mid over 100 events, 3 classes",
        BY_TIME,
        ("experiment=lobster",),
    ),
    Task(
        "ES orders (MBO), 2 s",
        f"{DATABENTO}/orderbooks_mbo_2024-05-08T00-00-00_2s.dbn.zst",
        "kind of the next event, 3 classes",
        BY_TIME,
        ("experiment=databento",),
    ),
    Task(
        "ES quotes (MBP-1), 4 min",
        f"{DATABENTO}/futures_mbp-1_2024-07-01T23-58_2024-07-02T00-02.dbn.zst",
        "kind of the next event, 3 classes",
        BY_TIME,
        ("experiment=databento",),
    ),
    Task(
        "BTC trades (Binance), 46 s",
        f"{CRYPTO}/binance_btcusdt-trades.parquet",
        "move of the price over 10 trades, 3 classes",
        BY_TIME,
        ("experiment=trades",),
    ),
    Task(
        "BTC orders (Bitstamp), 5 h",
        f"{CRYPTO}/bitstamp_2015-05-01_orders.csv.xz",
        "move of the mid over 20 events, 3 classes",
        BY_TIME,
        ("experiment=bitstamp",),
    ),
    Task(
        "ETH depth and trades (Binance), 6 min",
        f"{CRYPTO}/hftbacktest_spot_ethusdt_20240808.gz",
        "move of the mid over 100 events, 3 classes",
        BY_TIME,
        ("experiment=market", "data=hftbacktest"),
    ),
    Task(
        "Sberbank, 100 clients",
        "events/sberbank_age",
        "age group, 4 classes",
        BY_ENTITY,
        ("experiment=sberbank",),
        (0, 1, 2, 3, 4),
    ),
    Task("Berka, 682 loans", "events/berka", "good or bad", BY_ENTITY, ("experiment=berka",), (0, 1, 2, 3, 4)),
)


def train(task: Task, data: Path, folder: Path, seed: int, more: Sequence[str]) -> Iterator[Path]:
    """Run folders of the task's folds, trained where they are not finished."""
    for fold in task.folds or (None,):
        run = folder / f"seed-{seed}" / ("" if fold is None else f"fold-{fold}")
        if not (run / "metrics.json").is_file():
            given = [*task.overrides, f"data.path={data / task.path}", f"seed={seed}", f"paths.output_dir={run}", *more]
            given += [] if fold is None else [f"data.prepare.fold={fold}"]
            subprocess.run([sys.executable, str(ROOT / "train.py"), *given], check=True, stdout=subprocess.DEVNULL)
        yield run


def tested(run: Path, baselines: bool) -> dict[str, Any]:
    """Test rows of a run: `y`, `as_of`, `entity`, the kind of block, and probabilities by method."""
    asked = settings(TrainSettings, plain(OmegaConf.load(run / "config.yaml")), "")
    prepared = prepare(asked, instantiate(asked.splits, "splits"))
    model = load_model(run / "model")
    target = next(iter(model.decision_heads()))
    prob = predict(model, prepared.test, asked.data.max_tokens_per_batch)["prob"].numpy()
    beside = classifiers_beside(prepared, target, asked.seed) if baselines else {}
    return {
        "y": prepared.test.decisions.targets[target],
        "as_of": prepared.as_of["test"],
        "entity": prepared.entity["test"],
        "kind": prepared.block_kind,
        "trained": len(prepared.train.decisions),
        "methods": {"encoder": prob, **beside},
    }


def pooled(parts: Sequence[dict[str, Any]], beside: dict[str, Any] | None = None) -> tuple[Table, dict[str, Any]]:
    """The closing table of all test rows together, and the baselines' probabilities, to be used again."""
    y, as_of, entity = (np.concatenate([part[name] for part in parts]) for name in ("y", "as_of", "entity"))
    names = parts[0]["methods"]
    methods = {name: np.concatenate([part["methods"][name] for part in parts]) for name in names}
    prob = methods.pop("encoder")
    others = methods or beside or {}
    blocks = choose_blocks(as_of, entity, kind=parts[0]["kind"])
    return closing_table(y, as_of, blocks, prob, others), others


def said(found: Interval) -> str:
    """A figure with its interval."""
    if found.low is None or found.high is None:
        return f"{found.value:.3f}"
    return f"{found.value:.3f} ({found.low:.3f} … {found.high:.3f})"


def evidence(difference: Interval) -> str:
    """What the interval of encoder − best baseline lets one say."""
    if not difference.excludes(0.0):
        return "none"
    return "better" if difference.value < 0 else "worse"


def line(task: Task, trained: int, table: Table, seeds: Sequence[float]) -> str:
    """A row of the table; `seeds` are the encoder's log losses with other seeds."""
    rows = {row.method: row.figures["log_loss"] for row in table.rows}
    figures = [said(rows[name]) if name in rows else "" for name in SHOWN]
    figures[0] += "".join(f"; {loss:.3f}" for loss in seeds)
    difference = table.difference["log_loss"]
    counts = f"{trained:,} / {table.decisions:,}"
    ends = [f"{said(difference)} to {table.best_baseline}", evidence(difference)]
    return f"| {' | '.join([task.name, task.asked, counts, task.protocol, *figures, *ends])} |"


def main() -> None:
    """Print the table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DIR")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of every run")
    parser.add_argument("--out", type=Path, default=Path("runs/real"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="beginnings of the tasks' names")
    asked = parser.parse_args()
    head = ["task", "predicted", "decisions, train / test", "protocol", *SHOWN, "encoder − best baseline", "evidence"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for task in TASKS:
        if asked.only and not task.name.startswith(tuple(asked.only)):
            continue
        if not (asked.data / task.path).exists():
            print(f"{task.name}: {asked.data / task.path} is not there", file=sys.stderr)
            continue
        folder = asked.out / task.name.lower().translate(str.maketrans(" ,()", "----"))
        beside: dict[str, Any] | None = None
        tables, trained = [], 0
        for seed in asked.seeds:
            runs = list(train(task, asked.data, folder, seed, asked.overrides))
            parts = [tested(run, baselines=beside is None) for run in runs]
            table, beside = pooled(parts, beside)
            tables.append(table)
            trained = sum(part["trained"] for part in parts) // len(parts)
        losses = [table.model.figures["log_loss"].value for table in tables]
        print(line(task, trained, tables[0], losses[1:]), flush=True)
        (folder / "table.json").write_text(json.dumps([table.to_dict() for table in tables]))


if __name__ == "__main__":
    main()
