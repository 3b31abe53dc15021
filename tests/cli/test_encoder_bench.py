"""`bench=encoder` end to end at sizes that a CPU runs: rows, reasons, the formula of the work, and what is compared."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quantattn.attention import Mask
from quantattn.cli import main
from quantattn.cli.benchmarks import encoder, encoder_peers, encoder_plan
from quantattn.cli.benchmarks.encoder_peers import FIELD, Task
from quantattn.cli.benchmarks.encoder_plan import Case, EncoderRow, Plan
from quantattn.nn import EncoderConfig

TINY = [
    "bench=encoder",
    "encoder.size=tiny",
    "encoder.vocabulary=32",
    "encoder.tokens=64",
    "encoder.window=4",
    "encoder.compile=none",
    "encoder.rounds=1",
    "encoder.warmup=4",
]
CONFIG = EncoderConfig.of_size("tiny", codes={FIELD: 32}, local_window=4, global_every=2, attention_backend="exact")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main("bench")


def read(folder: Path) -> list[dict[str, str]]:
    (table,) = folder.glob("encoder-*.csv")
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def measure(cases: Sequence[Case], peers: Sequence[str], limit_s: float | None = None) -> list[EncoderRow]:
    plan = Plan(CONFIG, dict.fromkeys(("local", "full"), peers), 64, "32-true", "none", 1, 3, 0, limit_s)
    return list(encoder.benchmark(cases, plan, print))


def test_one_command_writes_rows_and_a_second_one_adds_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = "encoder.cases=[[full,32,training],[full,32,inference],[local,16,training]]"
    only = "encoder.peers.local=[quantattn]"
    assert call(monkeypatch, *TINY, cases, only, f"results={tmp_path}") == 0
    first = read(tmp_path)
    assert [(row["impl"], row["pattern"], row["pass"]) for row in first] == [
        ("quantattn", "full", "training"),
        ("quantattn_lean", "full", "training"),
        ("transformer", "full", "training"),
        ("quantattn", "full", "inference"),
        ("quantattn_lean", "full", "inference"),
        ("transformer", "full", "inference"),
        ("quantattn", "local", "training"),
    ]
    assert len({row["parameters"] for row in first}) == 1
    for row in first:
        assert row["note"] == ""
        assert float(row["tokens_per_s"]) > 0
        if row["pass"] == "training":
            assert float(row["loss_last"]) < float(row["loss_first"]) < 1.2 * math.log(32)
    # One case again and a new one: the old row gives way, the others stay.
    again = "encoder.cases=[[local,16,training],[full,16,training]]"
    assert call(monkeypatch, *TINY, again, only, "encoder.peers.full=[quantattn]", f"results={tmp_path}") == 0
    second = read(tmp_path)
    assert second[:6] == first[:6]
    assert [(row["pattern"], row["N"]) for row in second[6:]] == [("local", "16"), ("full", "16")]


def test_kernels_by_time_are_a_text_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [*TINY, "encoder.cases=[[full,32,training]]", "encoder.profile=true", f"results={tmp_path}"]
    assert call(monkeypatch, *asked) == 0
    (table,) = tmp_path.iterdir()
    assert "two steps: full, N 32, training" in table.read_text()
    assert "aten::mm" in table.read_text()


@pytest.mark.parametrize("window", [1, 3, 9, None])
@pytest.mark.parametrize("n", [1, 2, 7, 10])
def test_the_work_counts_what_the_mask_shows(n: int, window: int | None) -> None:
    config = CONFIG.with_changes(local_window=window, n_layers=3)
    seen = [Mask(window=(window, window)) if config.is_local(i) else Mask() for i in range(3)]
    pairs = sum(int(mask.visible(n, n, torch.device("cpu")).sum()) for mask in seen)
    expected = 2 * config.n_parameters * 5 * n + 4 * config.width * pairs * 5
    assert encoder_plan.flops(config, n, 5, training=False) == expected
    assert encoder_plan.flops(config, n, 5, training=True) == 3 * expected


def test_the_work_of_the_base_size_worked_out_by_hand() -> None:
    config = EncoderConfig.of_size("base", codes={FIELD: 512}, local_window=64, global_every=3)
    # A block: 4 · 768² and 3 · 768 · 1152 weights and two norms; a head of 512 · 768, and the last norm.
    weights = 22 * (4 * 768**2 + 3 * 768 * 1152 + 2 * 768) + 512 * 768 + 768
    # Layers 0, 3, …, 21 see 8192² pairs; the other 14 see 129 keys a query, less 1 + … + 64 at both ends.
    pairs = 8 * 8192**2 + 14 * (8192 * 129 - 64 * 65)
    assert encoder_plan.flops(config, 8192, 8, training=True) == 6 * weights * 65536 + 12 * 768 * 8 * pairs


def positions_seen(module: nn.Module, row: int, n: int) -> list[int]:
    """Places whose token has an influence on the logits of one row."""
    (table,) = [m.weight for m in module.modules() if isinstance(m, nn.Embedding)]
    tokens = torch.arange(2, n + 2)[None]
    (gradient,) = torch.autograd.grad(module(tokens).square()[row].sum(), table)
    return [int(token) - 2 for token in gradient.abs().sum(1).nonzero().flatten()]


@pytest.mark.parametrize("local", [False, True])
def test_a_layer_of_modernbert_sees_what_ours_sees(local: bool) -> None:
    pytest.importorskip("transformers")
    config = CONFIG if local else CONFIG.with_changes(local_window=None)
    task = Task(config, 20, 1, "none")
    torch.manual_seed(0)
    theirs, mine = (encoder_peers.PEERS[name](task) for name in ("modernbert_sdpa", "quantattn"))
    # Each has two layers, of which the second is local when there are windows: it alone is left.
    theirs.encoder.model.layers = theirs.encoder.model.layers[1:]  # type: ignore[union-attr,index,assignment]
    mine.encoder.encoder.blocks = mine.encoder.encoder.blocks[1:]  # type: ignore[union-attr,index,assignment]
    for row in (0, 9, 19):
        expected = [j for j in range(20) if not local or abs(row - j) <= 4]
        assert positions_seen(theirs, row, 20) == expected
        assert positions_seen(mine, row, 20) == expected


def test_modernbert_is_timed_with_as_many_parameters_as_ours() -> None:
    pytest.importorskip("transformers")
    rows = measure([Case("local", 16, "training")], ["quantattn", "modernbert_sdpa"])
    assert [row.note for row in rows] == ["", ""]
    assert rows[0].parameters == rows[1].parameters == CONFIG.n_parameters + 32 * 64


def test_a_peer_that_is_not_installed_is_a_row_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    rows = measure([Case("full", 16, "training")], ["modernbert_flex", "quantattn"])
    assert [row.impl for row in rows] == ["modernbert_flex", "quantattn"]
    assert "transformers" in rows[0].note
    assert math.isnan(rows[0].ms)
    assert rows[1].ms > 0
    assert not any(row.failed for row in rows)


class Broken(nn.Module):
    """Answers with one value wherever it is asked, which no step changes."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.value = value

    def forward(self, tokens: Tensor) -> Tensor:
        return self.value + 0 * self.weight.expand(tokens.numel(), 32)


@pytest.mark.parametrize("value", [0.0, math.nan])
@pytest.mark.parametrize("stage", ["training", "inference"])
def test_what_computes_nothing_is_not_timed(value: float, stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(encoder_peers.PEERS, "quantattn", lambda task: Broken(value))
    (row,) = measure([Case("full", 16, stage)], ["quantattn"])
    assert row.note.startswith("not timed: its lo")
    assert row.failed


def test_memory_and_time_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = encoder_peers.PEERS["quantattn_checkpointed"]

    def small(task: Task) -> nn.Module:
        if task.n > 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has 2 GiB.")
        return real(task)

    for name in ("quantattn", "quantattn_checkpointed"):
        monkeypatch.setitem(encoder_peers.PEERS, name, small)
    rows = measure([Case("full", 16, "longest"), Case("full", 128, "training")], ["quantattn", "transformer"])
    assert [(row.N, row.stage, row.note) for row in rows] == [
        (16, "longest", ""),
        (32, "longest", ""),
        (64, "longest", ""),
        (128, "longest", "out of memory: Tried to allocate 3.00 GiB"),
        (128, "training", "out of memory: Tried to allocate 3.00 GiB"),
        (128, "training", ""),
    ]
    assert not any(row.failed for row in rows)
    rows = measure([Case("full", 16, "training"), Case("full", 16, "longest")], ["quantattn"], limit_s=0.0)
    assert [row.note for row in rows] == [
        "not begun: the limit of 0 s was reached",
        "not begun: it would pass the limit of 0 s",
    ]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("encoder.precision=bf16", "encoder.precision=bf16: expected one of bf16-mixed, bf16-true, 32-true"),
        ("encoder.compile=all", "encoder.compile=all: expected one of model, blocks, none"),
        ("encoder.peers.full=[transformers]", "did you mean 'transformer'?"),
        ("encoder.cases=[[causal,8192,training]]", "expected [local | full, tokens, training | inference | longest]"),
        ("encoder.size=huge", "size must be one of tiny, small, base, long, got 'huge'"),
    ],
)
def test_what_is_refused(
    argument: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "bench=encoder", argument) in (1, 2)
    assert sentence in capsys.readouterr().err
