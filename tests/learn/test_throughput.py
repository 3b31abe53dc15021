"""Where the time of a run goes: exact on a clock of known times, unbroken where a run is stopped and goes on."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback, Trainer
from test_profiling import End
from torch.utils.flop_counter import FlopCounterMode
from toy import train

from quantattn.batch import PackedBatch
from quantattn.learn.busy import Busy
from quantattn.learn.checkpoint import write_checkpoint
from quantattn.learn.operations import operations, pairs
from quantattn.learn.throughput import Throughput
from quantattn.learn.throughput_table import Row, quantile, read_rows, sentences, summary, windows
from quantattn.learn.writer import Writer
from quantattn.nn import Encoder

ROW = Row(1, 0, 2.0, 0.5, 100, 3.0, 0.0, 0.0, 1, 10.0, 5.0, 0.5, 0.0)


class Ticks:
    """A clock that is a second later at every look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


@given(st.integers(1, 12), st.none() | st.integers(0, 15), st.booleans())
def test_pairs_are_those_that_a_mask_shows(n: int, window: int | None, causal: bool) -> None:
    reach = n if window is None else window
    shown = [(i, j) for i in range(n) for j in range(n) if abs(i - j) <= reach and (j <= i or not causal)]
    assert pairs(n, window, causal) == len(shown)


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_operations_are_those_that_torch_counts_in_products(n_kv_heads: int) -> None:
    shape = {"n_layers": 3, "width": 8, "n_heads": 2, "n_kv_heads": n_kv_heads, "hidden": 12}
    encoder = Encoder("tiny", codes={"code": 6}, attention_backend="exact", **shape)  # type: ignore[arg-type]
    offsets, code = torch.tensor([0, 7], dtype=torch.int32), torch.tensor([0, 1, 2, 3, 4, 5, 0])
    nothing = torch.zeros(0, dtype=torch.int64)
    batch = PackedBatch({"code": code}, torch.arange(7), offsets, 7, nothing, nothing, {})
    with FlopCounterMode(display=False) as counter:
        encoder(batch).sum().backward()
    counted = operations(encoder.config, encoder.blocks[0], [7])
    assert counted == counter.get_total_flops()
    assert operations(encoder.config, encoder.blocks[0], [7], skipped=1) * 3 == counted * 2
    assert operations(encoder.config, encoder.blocks[0], [7, 7]) == 2 * counted


def test_figures_of_known_rows() -> None:
    """Two starts; what their first steps took is in the whole time and in no share of step time."""
    rows = [
        replace(ROW, seconds=60.0, waited=30.0),
        replace(ROW, step=2),
        replace(ROW, step=3, seconds=4.0, waited=0.0, graphs=2),
        replace(ROW, step=3, seconds=1.0, tokens=0, tflop=0.0, waited=0.0, validating=6.0, saving=3.0, graphs=4),
        replace(ROW, step=4, start=1, seconds=10.0),
        replace(ROW, step=5, start=1, seconds=2.0, peak_mib=20.0),
    ]
    found = summary(rows, peak_tflops=3.0, devices=2)
    assert (found["steps"], found["starts"], found["tokens"], found["seconds"]) == (5, 2, 500, 88.0)
    assert found["tokens_per_second"] == 500 / 88
    assert found["steady_tokens_per_second"] == 300 / 8
    assert found["utilisation"] == 9.0 / (8.0 * 3.0 * 2)
    assert found["loader_share_of_steps"] == 1.0 / 8.0
    assert found["step_seconds"] == {"p50": 2.0, "p90": 4.0, "p99": 4.0, "longest": 4.0}
    assert found["first_steps_seconds"] == [60.0, 10.0]
    assert (found["validation_share"], found["checkpoint_share"]) == (6.0 / 88.0, 3.0 / 88.0)
    assert (found["graphs"], found["last_new_graph_at_step"], found["peak_mib"]) == ([4, 1], 3, 20.0)
    said = "\n".join(sentences(found))
    for words in ("38 in steps", "18.8% of 3 TFLOP/s", "12.50% of step time", "first 60, 10", "last one at step 3"):
        assert words in said
    assert "gone on with once" in said
    nothing = summary([], None)
    assert (nothing["tokens"], nothing["utilisation"], nothing["step_seconds"]["p99"]) == (0, None, None)
    assert "–" in "\n".join(sentences(nothing))


def test_a_stretch_in_which_something_ran_beside_is_told_apart() -> None:
    """Two seconds a step; in the fourth minute another process takes half of the GPU, and memory."""
    alone, beside = replace(ROW, beside_mib=5e2), replace(ROW, seconds=4.0, beside_mib=9e3)
    rows = [replace(row, step=step) for step, row in enumerate([*[alone] * 90, *[beside] * 15, *[alone] * 60], 1)]
    rows[29] = replace(rows[29], ended=60.0)
    found = summary(rows, peak_tflops=6.0)["windows"]
    slow = [window for window in found if window["beside_mib"] == 9e3]
    assert [window["utilisation"] for window in slow] == [0.125]
    assert slow[0]["step_seconds"] == {"p50": 4.0, "p95": 4.0}
    assert {window["utilisation"] for window in found if window not in slow} == {0.25}
    assert found[0]["until"] == "1970-01-01T00:01:00+00:00"


@given(st.lists(st.floats(0.1, 400.0), min_size=1, max_size=60))
def test_windows_are_the_rows_in_order_in_whole_minutes_thirty_at_most(seconds: list[float]) -> None:
    rows = [replace(ROW, step=step, seconds=each) for step, each in enumerate(seconds, 1)]
    parts = windows(rows)
    assert [row for part in parts for row in part] == rows
    length = 60 * -(-sum(seconds) // 1800)
    assert len(parts) <= 31
    assert all(sum(row.seconds for row in part[1:]) < length + 1e-6 for part in parts)


@given(st.lists(st.integers(-9, 9), min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_the_least_value_that_so_many_do_not_pass(values: list[int], q: float) -> None:
    found = quantile(sorted(values), q)
    assert found is not None
    assert sum(v <= found for v in values) >= q * len(values)
    assert sum(v < found for v in values) < q * len(values)


def test_every_second_is_counted_once_and_every_step_has_its_row(tmp_path: Path) -> None:
    ticks = Ticks()
    callback = Throughput(str(tmp_path), peak_tflops=1.0, clock=ticks)
    _, _, asked = train(tmp_path, steps=6, validate_every=3, accumulate=2, callbacks=[callback])
    rows = read_rows(tmp_path / "throughput.csv")
    assert [row.step for row in rows if row.tokens] == [1, 2, 3, 4, 5, 6]
    assert (rows[-1].step, rows[-1].tokens) == (6, 0), "what came after the last step"
    assert sum(row.tokens for row in rows) == 5 * sum(map(len, asked))
    assert sum(row.seconds + row.validating + row.saving for row in rows) == pytest.approx(ticks.looks - 1)
    assert [row.validating for row in rows] == [0, 0, 0, 1, 0, 0, 1]
    assert sum(row.saving for row in rows) > 0
    found = json.loads((tmp_path / "throughput.json").read_text())
    assert found["steps"] == sum(window["steps"] for window in found["windows"]) == 6
    assert found["utilisation"] == 0, "the only block is computed for decisions alone"


def test_the_table_is_unbroken_where_a_run_is_stopped_or_killed_and_goes_on(tmp_path: Path) -> None:
    last = tmp_path / "checkpoints" / "last.ckpt"

    class Fail(Callback):
        def on_train_batch_end(self, trainer: Trainer, *given: object) -> None:
            if trainer.global_step == 5:
                raise KeyError("as a kill: the step has its row, and no checkpoint")

    def begin(*more: Callback, resume: Path | None = None) -> bool:
        callbacks = [Throughput(str(tmp_path), 1.0), *more]
        return train(tmp_path, steps=6, validate_every=6, checkpoint_every=4, callbacks=callbacks, resume=resume)[
            0
        ].stopped

    assert begin(End(by_signal=True))
    with pytest.raises(KeyError, match="as a kill"):
        begin(Fail(), resume=last)
    torn = (tmp_path / "throughput.csv").read_bytes() + b"5,1,0.2"
    (tmp_path / "throughput.csv").write_bytes(torn)
    assert not begin(resume=last)
    rows = read_rows(tmp_path / "throughput.csv")
    assert [(row.step, row.start) for row in rows if row.tokens] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
    found = json.loads((tmp_path / "throughput.json").read_text())
    assert (found["steps"], found["starts"], len(found["first_steps_seconds"])) == (6, 3, 3)


def test_what_holds_the_loop_up_is_waiting_for_the_disk_and_not_the_writing(tmp_path: Path) -> None:
    writer = Writer(write_checkpoint)
    writer.save({"a": torch.zeros(3)}, tmp_path / "a")
    writer.wait()
    before = writer.seconds
    assert before > 0
    writer.wait()
    assert writer.seconds - before < 1e-3
    writer.close()


def test_how_busy_a_gpu_is_is_what_its_library_says_and_unknown_where_it_says_nothing(tmp_path: Path) -> None:
    library = tmp_path / "libtold.so"
    (tmp_path / "told.c").write_text("""
        #include <string.h>
        static int one;
        int nvmlInit_v2(void) { return 0; }
        int nvmlDeviceGetHandleByUUID(const char *name, void **handle) { *handle = &one; return strcmp(name, "GPU-1"); }
        int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) { rates[0] = 37; return handle != &one; }
    """)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "told.c"], check=True)
    assert Busy.named("GPU-1", str(library)).share() == 0.37
    assert math.isnan(Busy.named("GPU-2", str(library)).share())
    assert math.isnan(Busy.named("GPU-1", str(tmp_path / "missing.so")).share())


def test_another_table_and_a_peak_of_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "throughput.csv"
    assert read_rows(path) == []
    for text in ("step,loss\n", "\n".join([",".join(vars(ROW)), "1,0,x,0,0,0,0,0,0,0,0,0,0\n"])):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"throughput\.csv is no table of throughput: "):
            read_rows(path)
    with pytest.raises(ValueError, match="peak_tflops must be positive, got 0"):
        Throughput(str(tmp_path), peak_tflops=0)
