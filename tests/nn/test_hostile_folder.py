"""A hostile folder gets one sentence and nothing else.

Each edit is followed by new hashes, as an attacker would, so that only the last line holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import shutil
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from quantattn.nn import load_model

FILES = ["card.md", "config.json", "manifest.json", "model.safetensors", "vocabulary.json"]


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


def header_twice(path: Path) -> None:
    raw = (path / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    new = raw[8 : 8 + size].rstrip()[:-1] + b',"encoder.norm.weight":{}}'
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + size :])


def small_layers(path: Path, layers: int = 200_000) -> None:
    """As many layers as one tensor has weights for: they would take hours to build."""
    tiny = {"width": 2, "n_heads": 1, "n_kv_heads": None, "hidden": 1, "n_layers": layers}
    edit_config(path, lambda c: c["encoder"].update(tiny))
    edit_weights(path, lambda w: (w.clear(), w.update(x=torch.zeros(layers * 40))))


def many_heads(config: dict[str, Any]) -> None:
    config["heads"] = [{**config["heads"][1], "name": f"h{i}"} for i in range(20_000)]


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
    "a tensor twice": (header_twice, "a key stands twice among"),
    "a size that is no whole number": (
        lambda p: edit_header(p, lambda h: h["encoder.norm.weight"].update(shape=[64.0])),
        "lists of counts",
    ),
    "bytes of another dtype": (
        lambda p: edit_header(p, lambda h: h["encoder.norm.weight"].update(shape=[128])),
        "the bytes",
    ),
    "a code name": (lambda p: edit_header(p, lambda h: h["encoder.norm.weight"].update(dtype="F64")), "dtype F32"),
    "a bomb of small layers": (small_layers, r"describes 200003 layers and heads, .* holds 1 tensors"),
    "a bomb of heads": (lambda p: edit_config(p, many_heads), r"describes 20002 layers and heads"),
    "a bomb of lists": (
        lambda p: (p / "vocabulary.json").write_text("[" + "[]," * (1 << 20) + "[]]"),
        "vocabulary.json has 1,048,578 lists and objects, more than the 1,048,576",
    ),
    "a bomb of digits": (
        lambda p: replace_text(p, '"rotary_base": 10000.0', '"rotary_base": 1' + 1_000_000 * "0" + ".0"),
        "is not JSON",
    ),
    "weights without blocks": (
        lambda p: os.truncate(p / "model.safetensors", 1 << 40),
        "has 1,099,511,627,776 bytes, this machine has",
    ),
    "a name without end": (
        lambda p: edit_config(p, lambda c: c.update({"class": "x" * 3_000_000})),
        "describes a 'xxx",
    ),
    "a kind without end": (
        lambda p: edit_config(p, lambda c: c["heads"][0].update(kind="x" * 3_000_000)),
        "got 'xxx",
    ),
    "a key of the terminal": (
        lambda p: edit_config(p, lambda c: c["encoder"].update({"\x1b[2J\n\u202e": 1})),
        r"no setting \\x1b\[2J\\n\\u202e",
    ),
    "a tensor of the terminal": (
        lambda p: edit_weights(p, lambda w: w.update({"\x1b[2J\n\u202e": torch.ones(2)})),
        r"\\x1b\[2J\\n\\u202e is \(2,\), expected none",
    ),
    "a head of another script": (
        lambda p: edit_config(p, lambda c: c["heads"][0].update(name="mo\u202eve")),
        "identifier",
    ),
    "half a character": (
        lambda p: replace_text(p, '"up"', '"\\ud800"'),
        "surrogates not allowed",
    ),
    "a file of another script": (
        lambda p: (p / "config.json").rename(p / "\u0441onfig.json"),
        "must hold card.md, config.json",
    ),
    "ten thousand files": (lambda p: [(p / f"{i:05}").touch() for i in range(10_000)], "must hold .* …$"),
    "a path for a name": (
        lambda p: edit_config(p, lambda c: c["heads"][0].update(name="../../etc/passwd")),
        "identifier",
    ),
    "a target in the vocabulary's place": (
        lambda p: edit_config(p, lambda c: c["heads"][0].update(_target_="os.system")),
        "has the keys",
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
    whole = sorted(os.listdir(saved.parent)) == ["model"] and sorted(os.listdir(saved)) == FILES
    if whole and (saved / "model.safetensors").stat().st_size < 1 << 30:
        rehash(saved)
    with pytest.raises(ValueError, match=words) as caught:
        load_model(saved)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


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


def listen(path: Path) -> None:
    """A socket, whose name may have a hundred bytes."""
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(path.parent):
        server.bind(path.name)


def test_a_hard_link_to_a_file_elsewhere_is_read_for_what_its_hash_says(saved: Path, tmp_path: Path) -> None:
    """Links to equal content are how stores save space; other content is another file."""
    (tmp_path / "outside").write_text("# Secrets")
    (saved / "card.md").unlink()
    os.link(tmp_path / "outside", saved / "card.md")
    with pytest.raises(ValueError, match=r"card\.md is not the file that its manifest describes"):
        load_model(saved)
    (tmp_path / "outside").write_text("# Tiny")
    assert load_model(saved).artefact.card == "# Tiny"


def test_links_pipes_and_folders_are_no_files(saved: Path, tmp_path: Path) -> None:
    for make in (
        lambda path: path.symlink_to(tmp_path / "elsewhere"),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
        listen,
        *([lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))] if os.geteuid() == 0 else []),
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
