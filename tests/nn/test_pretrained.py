"""Models as folders: equal bits back, and a hostile folder gets one sentence and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from quantattn import __version__
from quantattn.nn import (
    ClassificationConfig,
    EventsConfig,
    Model,
    RegressionConfig,
    folder,
    load_model,
    pretrained,
    save_pretrained,
)

FILES = ["card.md", "config.json", "manifest.json", "model.safetensors", "vocabulary.json"]


@pytest.fixture
def model(packs: Any, tiny: Any) -> Model:
    heads = {
        "move": ClassificationConfig(packs.classes, "attention"),
        "vol": RegressionConfig(1.5, 2.5, "mean"),
        "events": EventsConfig(("kind", "gap")),
    }
    model = Model(tiny(qk_norm=True, value_frequencies=2, n_heads=4, n_kv_heads=2), heads)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    return save_pretrained(model, tmp_path / "model", vocabulary_json='{"a": 1}', card="# Tiny", extra={"n": [1, None]})


def test_what_was_saved_comes_back_to_the_bit(packs: Any, model: Model, saved: Path) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    loaded = load_model(saved)
    assert torch.equal(torch.get_rng_state(), before)  # loading draws nothing
    batch = packs.random([5, 9, 2])
    scores, again = model.score(batch), loaded.score(batch)
    assert set(scores) == {"move_prob", "vol_value"}
    assert all(torch.equal(scores[name], again[name]) for name in scores)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    assert loaded.encoder.config == model.encoder.config
    assert list(loaded.head_configs.items()) == list(model.head_configs.items())
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())
    assert sorted(os.listdir(saved)) == FILES
    artefact = loaded.artefact
    assert artefact is not None
    assert (artefact.vocabulary_json, artefact.card, artefact.extra) == ('{"a": 1}', "# Tiny", {"n": [1, None]})
    assert artefact.library == __version__
    assert artefact.sha == hashlib.sha256((saved / "manifest.json").read_bytes()).hexdigest()


def test_a_loaded_model_can_be_trained_and_saved_again_with_equal_bytes(
    model: Model, saved: Path, tmp_path: Path
) -> None:
    again = save_pretrained(
        load_model(saved), tmp_path / "again", vocabulary_json='{"a": 1}', card="# Tiny", extra={"n": [1, None]}
    )
    assert all((again / name).read_bytes() == (saved / name).read_bytes() for name in FILES)


def test_run_time_choices_can_be_changed_at_loading(packs: Any, saved: Path) -> None:
    other = load_model(saved, attention_backend="tiled")
    assert other.encoder.config.attention_backend == "tiled"
    batch = packs.random([5, 9])
    torch.testing.assert_close(other.score(batch), load_model(saved).score(batch), rtol=1e-4, atol=1e-5)


def test_saving_replaces_a_model_and_nothing_else(model: Model, saved: Path, tmp_path: Path) -> None:
    save_pretrained(model, saved, card="second")
    assert load_model(saved).artefact.card == "second"
    assert os.listdir(tmp_path) == ["model"]
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"holds notes\.txt, which is no part of a model"):
        save_pretrained(model, saved)
    assert (saved / "notes.txt").read_text() == "mine"
    for other in ("theirs", "model.previous"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "config.json").write_text("of another library")
    (saved / "notes.txt").unlink()
    for place in (tmp_path / "theirs", saved):
        with pytest.raises(ValueError, match=r"holds config\.json, which is no part of a model"):
            save_pretrained(model, place)
    assert (tmp_path / "theirs" / "config.json").read_text() == "of another library"
    assert (tmp_path / "model.previous" / "config.json").read_text() == "of another library"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is not a folder"):
        save_pretrained(model, tmp_path / "file")


def test_a_save_that_fails_leaves_the_old_model(
    model: Model, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise ValueError("cannot be read back")

    monkeypatch.setattr(pretrained, "load_model", fail)
    with pytest.raises(ValueError, match="cannot be read back"):
        save_pretrained(model, saved, card="second")
    assert load_model(saved).artefact.card == "# Tiny"
    assert os.listdir(tmp_path) == ["model"]


def test_a_kill_between_the_renames_loses_nothing(model: Model, saved: Path, tmp_path: Path) -> None:
    saved.rename(tmp_path / "model.previous")  # what stands there at that moment
    with pytest.raises(ValueError, match=r"a save was interrupted and left the previous one at .*model\.previous"):
        load_model(saved)
    assert load_model(tmp_path / "model.previous").artefact.card == "# Tiny"
    save_pretrained(model, saved)
    assert os.listdir(tmp_path) == ["model"]


def test_what_cannot_be_saved_is_named(model: Model, tmp_path: Path) -> None:
    for extra in ({"x": float("nan")}, {"x": object()}, {"x": 1 << 70}, {1: "a", "1": "b"}):
        with pytest.raises(ValueError, match="extra must hold plain JSON values"):
            save_pretrained(model, tmp_path / "m", extra=extra)
    with pytest.raises(ValueError, match=r"vocabulary\.json is not valid JSON"):
        save_pretrained(model, tmp_path / "m", vocabulary_json="{")
    with pytest.raises(ValueError, match=r"saved in float32, its parameters are torch\.float64"):
        save_pretrained(model.double(), tmp_path / "m")
    assert not os.listdir(tmp_path)


# ---- hostile folders: each edit is followed by new hashes, as an attacker would, so that only the last line holds


def rehash(path: Path, **changes: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_bytes())
    for name in manifest["files"]:
        content = (path / name).read_bytes()
        manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


def edit_config(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((path / "config.json").read_bytes())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def replace_text(path: Path, old: str, new: str) -> None:
    text = (path / "config.json").read_text()
    assert old in text
    (path / "config.json").write_text(text.replace(old, new, 1))


def edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = safetensors.torch.load_file(path / "model.safetensors")
    change(weights)
    (path / "model.safetensors").write_bytes(safetensors.torch.save(weights))


def edit_header(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    raw = (path / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    change(header)
    new = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])


def shift_offsets(header: dict[str, Any]) -> None:
    second = sorted(header, key=lambda name: header[name]["data_offsets"])[1]
    length = header[second]["data_offsets"][1] - header[second]["data_offsets"][0]
    header[second]["data_offsets"] = [0, length]  # over the first one


class Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


HOSTILE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is missing": (lambda p: (p / "card.md").unlink(), "must hold card.md"),
    "a file too many": (lambda p: (p / "setup.py").write_text("raise SystemExit"), "it has .*setup.py"),
    "a pickle beside": (lambda p: (p / "pytorch_model.bin").write_bytes(b"x"), "pytorch_model.bin"),
    "no folder": (shutil.rmtree, "there is no model folder"),
    "class of another": (lambda p: edit_config(p, lambda c: c.update({"class": "os.system"})), "this library knows"),
    "unknown head": (lambda p: edit_config(p, lambda c: c["heads"][0].update(kind="builtins.eval")), "must be one of"),
    "head without name": (lambda p: edit_config(p, lambda c: c["heads"][0].pop("name")), "needs a name of its own"),
    "head twice": (lambda p: edit_config(p, lambda c: c["heads"].append(c["heads"][0])), "needs a name of its own"),
    "head name of python": (lambda p: edit_config(p, lambda c: c["heads"][0].update(name="__class__")), "identifier"),
    "key too many": (
        lambda p: edit_config(p, lambda c: c["encoder"].update(_target_="os.system")),
        "no setting _target_",
    ),
    "key missing": (lambda p: edit_config(p, lambda c: c["encoder"].pop("width")), "lacks width"),
    "top key": (lambda p: edit_config(p, lambda c: c.update(hooks=[])), "with the keys class"),
    "wrong kind": (lambda p: edit_config(p, lambda c: c.update(encoder=[])), "must hold objects"),
    "text for a number": (
        lambda p: edit_config(p, lambda c: c["encoder"].update(width="64")),
        "width must be an integer",
    ),
    "a bomb of width": (lambda p: edit_config(p, lambda c: c["encoder"].update(width=1 << 40)), "holds [0-9]+"),
    "a bomb of layers": (lambda p: edit_config(p, lambda c: c["encoder"].update(n_layers=1 << 60)), "holds [0-9]+"),
    "a bomb of classes": (
        lambda p: edit_config(p, lambda c: c["heads"][0].update(classes=list(map(str, range(10_000))))),
        "does not fit",
    ),
    "config is no JSON": (lambda p: (p / "config.json").write_bytes(b"\x80\x04"), "is not valid JSON"),
    "deep JSON": (lambda p: (p / "config.json").write_text("[" * 200_000), "is not valid JSON"),
    "JSON with NaN": (lambda p: edit_config(p, lambda c: c["extra"].update(x=float("nan"))), "NaN is not JSON"),
    "a number beyond floats": (
        lambda p: replace_text(p, '"rotary_base": 10000.0', '"rotary_base": ' + 400 * "9"),
        "99999999999999999999 is beyond 64 bits",
    ),
    "an infinity in digits": (lambda p: replace_text(p, '"n": [', '"x": 1e999, "n": ['), "1e999 is not JSON"),
    "a number without end": (
        lambda p: replace_text(p, '"n_layers": 2', '"n_layers": ' + 4299 * "9"),
        "config.json is not valid JSON: 99999999999999999999 is beyond 64 bits",
    ),
    "a class twice": (
        lambda p: edit_config(p, lambda c: c["heads"][0].update(classes=["up", "up"])),
        "names a class twice",
    ),
    "a shape without end": (
        lambda p: edit_header(p, lambda h: h["encoder.norm.weight"].update(shape=[1] * 5000 + [64])),
        "does not fit",
    ),
    "a key twice": (lambda p: (p / "config.json").write_text('{"class": 1, "class": 2}'), "a key stands twice"),
    "vocabulary is no JSON": (lambda p: (p / "vocabulary.json").write_text("{"), "vocabulary.json is not valid JSON"),
    "card is no text": (lambda p: (p / "card.md").write_bytes(b"\xff\xfe\xff"), "card.md is not UTF-8"),
    "a card without end": (lambda p: (p / "card.md").write_bytes(b"a" * (1 << 22) + b"b"), "more than the 4194304"),
    "weights missing": (lambda p: edit_weights(p, lambda w: w.pop("encoder.norm.weight")), "missing, expected .64,."),
    "weights too many": (lambda p: edit_weights(p, lambda w: w.update(x=torch.ones(2))), r"x is \(2,\), expected none"),
    "weights of another shape": (
        lambda p: edit_weights(p, lambda w: w.update({"encoder.norm.weight": torch.ones(8, 8)})),
        r"\(8, 8\), expected \(64,\)",
    ),
    "weights of another dtype": (
        lambda p: edit_weights(p, lambda w: w.update({"encoder.norm.weight": torch.ones(64).half()})),
        "must give dtype F32",
    ),
    "header beyond the file": (
        lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}"),
        "announces a header",
    ),
    "header cut": (lambda p: (p / "model.safetensors").write_bytes(b"\x01\x02"), "announces a header"),
    "data cut": (lambda p: os.truncate(p / "model.safetensors", 50_000), "bytes of data"),
    "data overlaps": (lambda p: edit_header(p, shift_offsets), "a gap or an overlap"),
    "negative sizes": (
        lambda p: edit_header(p, lambda h: h["encoder.norm.weight"].update(shape=[-8, -8])),
        "lists of counts",
    ),
    "sizes that overflow": (
        lambda p: edit_header(p, lambda h: h["encoder.norm.weight"].update(shape=[1 << 62, 4])),
        "the bytes",
    ),
    "metadata in the header": (
        lambda p: edit_header(p, lambda h: h.update(__metadata__={"a": "b"})),
        "must give dtype",
    ),
    "header is a list": (
        lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]"),
        "must begin with an object",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_gets_one_sentence(saved: Path, name: str) -> None:
    spoil, words = HOSTILE[name]
    spoil(saved)
    if sorted(os.listdir(saved.parent)) == ["model"] and sorted(os.listdir(saved)) == FILES:
        rehash(saved)
    with pytest.raises(ValueError, match=words) as caught:
        load_model(saved)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("name", [name for name in FILES if name != "manifest.json"])
def test_every_byte_is_covered_by_a_hash(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[len(content) // 2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is not the file that its manifest describes"):
        load_model(saved)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, r"of format 2 \(library .*\), this one reads 1"),
        ({"format": True}, "of format True"),
        ({"library": None}, "must name the library"),
        ({"files": {}}, "must list exactly"),
        ({"files": {"../../etc/passwd": {}}}, "must list exactly"),
        ({"more": 1}, "with the keys format, library and files"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(saved: Path, change: dict[str, Any], words: str) -> None:
    rehash(saved, **change)
    with pytest.raises(ValueError, match=words):
        load_model(saved)


def test_a_manifest_without_end_is_refused(saved: Path) -> None:
    (saved / "manifest.json").write_bytes(b" " * (1 << 17))
    with pytest.raises(ValueError, match="more than the 65536"):
        load_model(saved)


def test_links_pipes_and_folders_are_no_files(saved: Path, tmp_path: Path) -> None:
    for make in (
        lambda path: path.symlink_to(tmp_path / "elsewhere"),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(saved, copy)
        (tmp_path / "elsewhere").write_text("# Tiny")
        (copy / "card.md").unlink()
        make(copy / "card.md")
        with pytest.raises(ValueError, match=r"card\.md must be a regular file"):
            load_model(copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocabulary.json"])
def test_a_pickle_in_place_of_a_file_is_never_run(saved: Path, tmp_path: Path, name: str) -> None:
    trap = tmp_path / "trap"
    (saved / name).write_bytes(pickle.dumps(Touch(str(trap))))
    rehash(saved)
    with pytest.raises(ValueError, match=name):
        load_model(saved)
    assert not trap.exists()
    pickle.loads(pickle.dumps(Touch(str(trap))))  # the trap works
    assert trap.exists()


def test_a_file_is_flushed_before_it_takes_its_name(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def sync(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        order.append(f"→ {Path(target).name}")
        return real_rename(self, target)

    monkeypatch.setattr(folder.os, "fsync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    save_pretrained(model, tmp_path / "model")
    assert sorted(order[:5]) == FILES
    assert order[6:] == ["→ model", tmp_path.name]
