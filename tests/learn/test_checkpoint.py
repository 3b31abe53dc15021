"""Checkpoints come back bit for bit or not at all, and nothing that stands in one is run."""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import struct
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from test_resume import same
from toy import model

from quantattn.learn import checkpoint
from quantattn.learn.checkpoint import read_checkpoint, write_checkpoint
from quantattn.learn.writer import Writer

STATE: dict[str, Any] = {
    "weights": {"a": torch.randn(3, 5), "b": torch.tensor([1, -1], dtype=torch.bfloat16)},
    "optimizer": [{"state": {0: {"step": torch.tensor(3.0)}}, "betas": (0.9, 0.999), "fused": None}],
    "loops": {"done": 7, "best": float("-inf"), "flag": True, "name": "last"},
    "empty": torch.empty(0, 4),
    "generator": torch.get_rng_state(),
}


def test_a_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    """Also NaNs of every kind, tensors that share memory or lie in columns, and 0.1 + 0.2."""
    shared = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    nans = torch.tensor([0x7FC00000, 0x7FC00001, 0xFFC00000 - 2**32, 0x7F800000], dtype=torch.int32)
    given = {**STATE, "shared": (shared, shared.T), "nans": nans.view(torch.float32), "third": 0.1 + 0.2}
    write_checkpoint(OrderedDict(given), tmp_path / "a.ckpt")
    found = read_checkpoint(tmp_path / "a.ckpt")
    assert torch.equal(found.pop("nans").view(torch.int32), nans)
    del given["nans"]
    assert same(found, given)
    assert [type(value) for value in found["optimizer"][0].values()] == [dict, tuple, type(None)]
    assert found["weights"]["b"].dtype is torch.bfloat16
    assert found["third"].hex() == (0.1 + 0.2).hex()


def test_a_header_of_any_length_is_a_header(tmp_path: Path) -> None:
    """Also one whose length begins with the byte of a pickle."""
    begins = set()
    for length in range(0, 256, 8):  # a header is padded to eight
        write_checkpoint({"name": "x" * length}, tmp_path / "a.ckpt")
        assert read_checkpoint(tmp_path / "a.ckpt") == {"name": "x" * length}
        begins.add((tmp_path / "a.ckpt").read_bytes()[0])
    assert 0x80 in begins


@pytest.mark.parametrize("value", [Path("x"), print, {1, 2}, torch.zeros(1, dtype=torch.complex128), 1 << 63])
def test_what_is_not_plain_is_refused_with_its_place_and_the_old_file_stands(tmp_path: Path, value: object) -> None:
    write_checkpoint(STATE, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"^state\.callbacks\.mine\[1\] is a .*which is not among plain values"):
        write_checkpoint({"callbacks": {"mine": [0, value]}}, tmp_path / "a.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]
    assert same(read_checkpoint(tmp_path / "a.ckpt"), STATE)


def test_a_byte_that_changed_anywhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    write_checkpoint(STATE, path)
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    places = [0, 7, 9, whole.index(b"sha256") + 12, whole.index(b"tree") + 20, whole.index(b"BF16"), 8 + size]
    for place in [*places, *range(8 + size, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"a\.ckpt (is damaged|was written by|holds tensors, but no state)"):
            read_checkpoint(path)
    for end in (0, 3, 8, 8 + size // 2, 8 + size, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"a\.ckpt is damaged"):
            read_checkpoint(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match=r"a\.ckpt is damaged: its bytes are not those"):
        read_checkpoint(path)
    path.write_bytes(whole)
    assert same(read_checkpoint(path), STATE)


def framed(header: object, data: bytes = b"", size: int | None = None) -> bytes:
    """A safetensors file of this header, which it may announce wrongly."""
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if size is None else size) + encoded + data


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
OTHER = {"format": "2", "library": "9.9.0", "sha256": "", "tree": "{}", "torch": "2"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (framed({"0": ENTRY}, bytes(4), size=1 << 62), "announces a header of 4,611,686,018,427,387,904 bytes and has"),
        (framed({"0": ENTRY}, bytes(4), size=200), "announces a header of 200 bytes and has"),
        (framed({"0": ENTRY})[:20], "announces a header of"),
        (framed({"0": ENTRY}, bytes(4), size=10), "its header is no JSON"),
        (framed([]), "holds tensors, but no state of a run"),
        (framed({"0": ENTRY}, bytes(4)), "holds tensors, but no state of a run"),
        (framed({"__metadata__": OTHER}), r"was written by quantattn 9\.9\.0 in format 2; quantattn .* reads"),
        (framed({"__metadata__": {**OTHER, "format": "1"}}), "its bytes are not those that its hash was made of"),
        (framed({"__metadata__": {"format": "1", "library": "0"}}), "was written by quantattn 0 in format 1"),
        (b"[" * 100_000, "announces a header"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "its header is no JSON"),
    ],
)
def test_a_header_that_lies_is_refused_before_anything_is_made_of_it(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_checkpoint(tmp_path / "a.ckpt")


@pytest.mark.parametrize(
    "tree", ['{"tensor":5}', '{"dict":[[{"dict":[]},1]]}', '{"a":1,"b":2}', '{"code":"os"}', "3", 3, '{"tuple":[]}']
)
def test_a_tree_that_means_nothing_is_refused_though_its_hash_is_right(tmp_path: Path, tree: Any) -> None:
    from quantattn.nn.state_file import _sha

    header: dict[str, Any] = {"__metadata__": {"format": "1", "library": "0", "torch": "2", "tree": tree}, "0": ENTRY}
    header["__metadata__"]["sha256"] = _sha(header, [memoryview(bytes(4))])
    (tmp_path / "a.ckpt").write_bytes(framed(header, bytes(4)))
    with pytest.raises(ValueError, match=r"a\.ckpt (is no state of a run, though its hash is right|holds a \w+)"):
        read_checkpoint(tmp_path / "a.ckpt")


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("kind", ["torch", "torch of before 1.6", "pickle", "pickle 0"])
def test_no_pickle_is_read(tmp_path: Path, kind: str) -> None:
    """The control: whoever unpickles the same bytes runs what stands in them."""
    mark, path = tmp_path / "ran", tmp_path / "a.ckpt"
    state = {"state_dict": Hostile(mark)}
    if kind.startswith("torch"):
        torch.save(state, path, _use_new_zipfile_serialization=kind == "torch")
    else:
        path.write_bytes(pickle.dumps(state, protocol=0 if kind == "pickle 0" else None))
    with pytest.raises(ValueError, match=r"a\.ckpt is damaged or no checkpoint: it (begins as a pickle|announces)"):
        read_checkpoint(path)
    assert not mark.exists()
    if kind.startswith("torch"):
        torch.load(path, weights_only=False)
    else:
        pickle.loads(path.read_bytes())
    assert mark.exists()


def test_a_pickle_inside_of_a_tensor_is_bytes(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    code = torch.frombuffer(bytearray(pickle.dumps(Hostile(mark))), dtype=torch.uint8)
    write_checkpoint({"state_dict": {"a": code}}, tmp_path / "a.ckpt")
    assert torch.equal(read_checkpoint(tmp_path / "a.ckpt")["state_dict"]["a"], code)
    assert not mark.exists()
    pickle.loads(bytes(code.tolist()))
    assert mark.exists()


def test_a_file_of_weights_of_somebody_else_is_told_apart(tmp_path: Path) -> None:
    safetensors.torch.save_file(dict(model().state_dict()), tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match="holds tensors, but no state of a run"):
        read_checkpoint(tmp_path / "model.safetensors")


def test_what_did_not_come_back_as_it_was_written_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that loses a bit: the file beside is changed between its flush and its reading back."""
    write_checkpoint({"a": torch.ones(2)}, tmp_path / "last.ckpt")
    sync = os.fsync

    def lossy(number: int) -> None:
        sync(number)
        os.pwrite(number, b"\x01", os.fstat(number).st_size - 1)

    monkeypatch.setattr(os, "fsync", lossy)
    with pytest.raises(OSError, match="did not come back from the disk") as raised:
        write_checkpoint({"a": torch.zeros(2)}, tmp_path / "last.ckpt")
    assert raised.value.filename == str(tmp_path / "last.ckpt")
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.equal(read_checkpoint(tmp_path / "last.ckpt")["a"], torch.ones(2))


def test_a_file_that_has_no_room_leaves_the_old_one(tmp_path: Path) -> None:
    """While the files of this process may have 64 KiB, a write fails for real, in the middle of the file."""
    path = tmp_path / "last.ckpt"
    write_checkpoint({"a": torch.ones(2)}, path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write_checkpoint({"a": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert raised.value.filename == str(path)
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]
    assert torch.equal(read_checkpoint(path)["a"], torch.ones(2))


def test_training_goes_on_while_a_state_is_written_and_changes_no_bit_of_it(tmp_path: Path) -> None:
    may, written = threading.Event(), []

    def slow(state: Any, path: Path) -> None:
        assert may.wait(10)
        written.append((path.name, float(state["a"][0])))

    writer = Writer(slow, before=lambda: written.append("rows"))
    weights = torch.zeros(3)
    for name in ("best", "last"):
        writer.save({"a": weights}, tmp_path / name)
        weights += 1  # while the writer has not even begun
    writer.check()
    assert not [each for each in written if each != "rows"]
    may.set()
    writer.wait()
    assert written == ["rows", ("best", 0.0), "rows", ("last", 1.0)]
    writer.close()


def test_what_could_not_be_written_is_raised_at_the_next_occasion(tmp_path: Path) -> None:
    writer = Writer(write_checkpoint)
    (tmp_path / "file").touch()
    for ask in (writer.check, writer.wait, lambda: writer.save({}, tmp_path / "b")):
        writer.save({"a": torch.ones(1)}, tmp_path / "file" / "a.ckpt")
        writer.save({"a": torch.ones(1)}, tmp_path / "good.ckpt")
        while not all(each.done() for each in writer._waiting):
            pass
        with pytest.raises(OSError, match=r"Not a directory|File exists"):
            ask()
        writer.wait()
    writer.close()
    assert checkpoint.read_checkpoint(tmp_path / "good.ckpt")


@pytest.mark.parametrize(
    ("value", "best", "smaller", "larger"),
    [
        (1.0, None, True, True),
        (float("nan"), None, True, True),
        (1.0, float("nan"), True, True),
        (float("nan"), float("nan"), False, False),
        (float("nan"), 1.0, False, False),
        (1.0, 2.0, True, False),
        (1.0, 1.0, False, False),
    ],
)
def test_any_number_is_better_than_none_that_is_one(
    value: float, best: float | None, smaller: bool, larger: bool
) -> None:
    assert (checkpoint.improves(value, best, "min"), checkpoint.improves(value, best, "max")) == (smaller, larger)
