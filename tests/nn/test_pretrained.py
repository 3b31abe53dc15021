"""Models as folders: equal bits back, and no save that loses one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from quantattn import __version__
from quantattn.nn import Model, folder, load_model, pretrained, save_pretrained

FILES = ["card.md", "config.json", "manifest.json", "model.safetensors", "vocabulary.json"]


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
