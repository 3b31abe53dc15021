"""A model in other runtimes: equal answers on any pack, NaN where the library refuses, and no file that differs."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quantattn.batch import PackedBatch, Vectors
from quantattn.nn import (
    ClassificationConfig,
    GaussianConfig,
    Model,
    OrdinalConfig,
    QuantileConfig,
    load_model,
    save_pretrained,
)
from quantattn.nn import portable as portable_module
from quantattn.nn.ensemble import Ensemble
from quantattn.nn.export import FORMATS, drawn_packs, export_model, held_against, opened
from quantattn.nn.portable import inputs_of

# torch's own code warns while it traces.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning")

SHAPES = ([1], [40], [3, 1, 17, 2], [1] * 9, [0, 5, 0, 2, 0])


def carrying(batch: PackedBatch) -> PackedBatch:
    """The pack with a filing's vector at every other token."""
    rows = torch.arange(0, batch.n_tokens, 2)
    return replace(batch, vectors={"filing": Vectors(rows, torch.randn(len(rows), 3))})


def everything(tiny: Any, packs: Any) -> Model:
    """A causal model with each part that an encoder may have, and three heads."""
    options = {
        "causal": True,
        "time_rotary": 0.5,
        "time_periods": (1e-6, 1e4),
        "local_window": 4,
        "global_every": 2,
        "local_rotary_base": 100.0,
        "value_frequencies": 2,
        "value_edges": {"gap_value": (-1.0, 0.0, 1.0)},
        "vectors": {"filing": ((0.5, 2.0), (0.0, 1.0), (-1.0, 0.1))},
    }
    heads = {
        "move": ClassificationConfig(packs.classes, "mean"),
        "order": OrdinalConfig(packs.classes),
        "size": QuantileConfig((0.25, 0.5, 0.9), 1.0, 2.0, "attention"),
    }
    model = Model(tiny(**options), heads).eval().requires_grad_(False)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def exported(folder: Path, format: str) -> Callable[[Any], Any]:
    return opened(format, (folder / FORMATS[format]).read_bytes())


def without_the_library(folder: Path, *blocked: str) -> list[str]:
    """What the example of the page prints in a process that cannot import the library."""
    (code,) = re.findall(r"```python\n(.+?)```", (folder / "README.md").read_text(), re.DOTALL)
    missing = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in ("quantattn", *blocked))
    done = subprocess.run(
        [sys.executable, "-c", missing + code], capture_output=True, text=True, cwd=folder, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_program_of_torch_gives_the_library_s_answers_on_any_pack(packs: Any, tiny: Any, tmp_path: Path) -> None:
    model = everything(tiny, packs)
    source = save_pretrained(model, tmp_path / "model", vocabulary_json='{"a": 1}')
    out = tmp_path / "out"
    said: list[str] = []
    rows = export_model(source, out, "torch", watch=said.append)
    names = ["move_prob", "order_prob", "size_value", "size_quantile_0.25", "size_quantile_0.5", "size_quantile_0.9"]
    assert [row.name for row in rows] == names
    assert said[-1] == "pack 5 of 5: 32 sequences, 528 tokens"
    run = exported(out, "torch")
    for number, lengths in enumerate(SHAPES):
        total = sum(lengths)
        batch = carrying(packs.random(lengths, seed=number, positions=[0, total // 2, total // 2, total - 1]))
        found, expected = run(inputs_of(model.encoder.config, batch)), model.score(batch)
        assert list(found) == list(expected)
        for name in names:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)
    nothing = replace(
        packs.random([5, 2], positions=[]), vectors={"filing": Vectors(torch.arange(0), torch.zeros(0, 3))}
    )
    assert [tuple(x.shape) for x in run(inputs_of(model.encoder.config, nothing)).values()] == [(0, 3)] * 2 + [(0,)] * 4
    document = json.loads((out / "export.json").read_text())
    assert document["model"] == hashlib.sha256((source / "manifest.json").read_bytes()).hexdigest()
    assert document["outputs"][0] == {
        "name": "move_prob",
        "dtype": "float32",
        "shape": ["Q", 3],
        "classes": ["down", "flat", "up"],
    }
    assert {row["name"]: (row["dtype"], row["shape"]) for row in document["inputs"]} == {
        **{name: ("int64", ["T"]) for name in ("kind", "side", "gap", "time")},
        **{name: ("float32", ["T"]) for name in ("size_value", "gap_value")},
        "filing_rows": ("int64", ["K"]),
        "filing_values": ("float32", ["K", 3]),
        "cu_seqlens": ("int32", ["N + 1"]),
        "positions": ("int64", ["Q"]),
    }
    for held in document["checked"]["outputs"]:
        assert held["worst"] <= held["allowed_worst"]
        assert held["mean"] <= held["allowed_mean"]
    with zipfile.ZipFile(out / "model.pt2") as file:
        contents = {name: file.read(name) for name in file.namelist()}
    assert not [name for name, content in contents.items() if content[:2] in (b"\x80\x02", b"PK")]  # no pickles
    assert not [name for name, content in contents.items() if b"quantattn::" in content]
    with pytest.raises(ValueError, match=r"model folder .*out must hold card\.md"):
        load_model(out)


def test_onnx_gives_the_library_s_answers_and_nan_where_it_would_refuse(packs: Any, tiny: Any, tmp_path: Path) -> None:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is an extra: pip install 'quantattn[export]'")
    heads = {"move": ClassificationConfig(packs.classes, "attention"), "vol": GaussianConfig(1.5, 2.5, "mean")}
    model = Model(tiny(n_layers=1, qk_norm=True, n_heads=4, n_kv_heads=2, time_rotary=0.5), heads).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    saved = save_pretrained(model, tmp_path / "model")
    model = load_model(saved, attention_backend="tiled")
    export_model(saved, tmp_path / "out", "onnx", packs=[packs.random([7, 30])])
    run = exported(tmp_path / "out", "onnx")
    again = [packs.random(lengths, seed=number) for number, lengths in enumerate(SHAPES)]
    rows = held_against(model, run, again)
    assert [row.name for row in rows] == ["move_prob", "vol_value", "vol_deviation"]
    for row in rows:
        assert row.worst <= 4 * row.library_worst + 1e-6  # five packs are too few for the budget to bind
    printed = without_the_library(tmp_path / "out", "torch")
    assert [line.split()[0] for line in printed] == ["move_prob", "vol_value", "vol_deviation"]
    assert all(float(line.split()[-1]) < 1e-5 for line in printed)

    config, good = model.encoder.config, packs.random([5, 9, 4])
    ask = lambda batch: run(inputs_of(config, batch))["vol_value"].isnan().tolist()  # noqa: E731
    assert ask(good) == [False] * 3
    early = replace(good, positions=torch.tensor([4, 12, 17]))
    assert ask(early) == [False, True, False]  # of the second sequence, one token before its end
    with pytest.raises(ValueError, match="has 1 tokens of its sequence after it"):
        model.score(early)
    wrong = {
        "positions": torch.tensor([13, 4, 17]),
        "cu_seqlens": torch.tensor([0, 14, 5, 18], dtype=torch.int32),
        "fields": {**good.fields, "kind": good.fields["kind"].clone().index_fill(0, torch.tensor([2]), -1)},
    }
    for name, value in wrong.items():
        assert ask(replace(good, **{name: value})) == [True] * 3, name
    short = replace(good, cu_seqlens=torch.tensor([0, 5, 14], dtype=torch.int32))
    assert ask(short) == [True] * 3


def test_a_file_that_does_not_agree_is_not_written(
    packs: Any, tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX keeps numbers of a program in float32; angles of time that came from such would be wrong unnoticed."""
    model = Model(tiny(n_layers=1, time_rotary=1.0), {"move": ClassificationConfig(packs.classes)})
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    source = save_pretrained(model, tmp_path / "model")
    right = portable_module.time_frequencies
    monkeypatch.setattr(portable_module, "time_frequencies", lambda *given: right(*given).float().double())
    with pytest.raises(ValueError, match=r"does not agree with the library: prob is up to .* nothing was written"):
        export_model(source, tmp_path / "out", "torch")
    assert not (tmp_path / "out").exists()


def test_the_budget_is_that_of_attention_worked_by_hand(saved: Path) -> None:
    model = load_model(saved, attention_backend="tiled")
    drawn = drawn_packs(model.encoder.config)
    assert [pack.cu_seqlens.diff().tolist() for pack in drawn[:4]] == [[1], [97], [5, 1, 33, 2, 64], [2, 0, 3]]
    assert [int(count) for count in (drawn[1].fields["kind"] <= 1).sum()[None]] != [0]  # missing and masked codes too
    assert bool(drawn[1].fields["size_value"].isnan().any())
    by_inputs = {tuple(pack.time.tolist()): pack for pack in drawn}

    def library(given: Any) -> Any:
        return model.score(by_inputs[tuple(given["time"].tolist())])

    for row in held_against(model, library, drawn):
        assert row.ok
        assert row.worst <= row.library_worst
        floor = row.allowed_worst - 2 * row.library_worst
        assert 0 < floor < 2e-6  # twice the rounding of two additions to numbers below 16
    for spoil, words in ((lambda x: x * 1.001, "error"), (lambda x: x.clone().fill_(torch.nan), "nan")):
        spoiled = held_against(model, lambda given: {k: spoil(v) for k, v in library(given).items()}, drawn[:3])  # noqa: B023
        assert not any(row.ok for row in spoiled), words
    with pytest.raises(ValueError, match=r"gives \['prob'\], the library \['move_prob', 'vol_value'\]"):
        held_against(model, lambda _: {"prob": torch.zeros(1)}, drawn[:1])


def test_what_cannot_be_exported_is_refused_by_name(packs: Any, tiny: Any, saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of torch, onnx, got 'tflite'"):
        export_model(saved, tmp_path / "out", "tflite")
    source = save_pretrained(Ensemble([load_model(saved), load_model(saved)]), tmp_path / "ensemble")
    with pytest.raises(ValueError, match="is an ensemble; export its members"):
        export_model(source, tmp_path / "out", "torch")
    config = tiny().config.with_changes(values=("size_value", "time"))
    batch = packs.random([3])
    with pytest.raises(ValueError, match="two inputs of the exported model would be called 'time'"):
        inputs_of(config, replace(batch, fields={**batch.fields, "time": batch.fields["gap_value"]}))
    with pytest.raises(ValueError, match="the batch lacks time, which the model reads"):
        inputs_of(config, batch)
