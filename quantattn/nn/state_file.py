"""A tree of plain values and tensors as one safetensors file, with a hash of all that it holds.

The tensors are those of the file, named 0, 1, …; the tree stands as JSON among the file's metadata and refers to them
by number. Nothing is pickled and nothing is run: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import safetensors.torch
import torch
from torch import Tensor

from quantattn import __version__
from quantattn.nn.folder import parse_json, read_file, told

FORMAT = "1"
"""Version of the tree's layout; a reader knows exactly one."""
LARGEST_HEADER = 100_000_000
"""The most bytes of a header that safetensors itself reads."""

_LARGEST = 1 << 44
_METADATA = "__metadata__"
_KEYS = {"format", "library", "torch", "tree", "sha256"}
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_state(state: Mapping[str, Any], file: IO[bytes]) -> None:
    """Write `state` to an open file; tensors are on the CPU and keep every bit, also of NaN.

    Args:
        state: dicts, lists and tuples of tensors, strings, booleans, None, integers of 64 bits and floats. The keys of
            a dict may be any of these plain values. Two tensors that share memory become two.
        file: opened for writing in binary.

    Raises:
        ValueError: anything else is in it; the sentence says where.
    """
    tensors: list[Tensor] = []
    tree = json.dumps(_packed(state, tensors, "state"), ensure_ascii=False, separators=(",", ":"))
    header: dict[str, Any] = {
        _METADATA: {"format": FORMAT, "library": __version__, "torch": str(torch.__version__), "tree": tree}
    }
    end = 0
    for number, tensor in enumerate(tensors):
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[str(number)] = {
            "dtype": _CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    contents = [tensor.reshape(-1).view(torch.uint8).numpy().data for tensor in tensors]
    header[_METADATA]["sha256"] = _sha(header, contents)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for content in contents:
        file.write(content)


def read_state(path: Path) -> dict[str, Any]:
    """What `write_state` wrote to `path`, on the CPU.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file, of another format, or damaged; the sentence says which.
    """
    raw = read_file(path.resolve(), _LARGEST)
    tree = _checked(path, raw)
    try:
        loaded = safetensors.torch.load(raw)
        state = _unpacked(tree, [loaded[str(number)] for number in range(len(loaded))])
    except (safetensors.SafetensorError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is no state of a run, though its hash is right: {told(error)}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} holds a {type(state).__name__}, expected the dict of a state")
    return state


def verify_state(path: Path) -> None:
    """Read every byte of `path` and raise, as `read_state` does, unless they are the bytes that were written."""
    if not path.stat().st_size:  # of which there is no map
        _checked(path, b"")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as raw:
        _checked(path, raw)


def _checked(path: Path, raw: bytes | mmap.mmap) -> Any:
    """The tree of a file whose hash is right."""
    size = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or size > min(len(raw) - 8, LARGEST_HEADER):
        if raw[:4] == b"PK\x03\x04" or raw[:1] == b"\x80":
            raise ValueError(f"{path} is damaged or no checkpoint: it begins as a pickle does, and none is ever read")
        raise ValueError(
            f"{path} is damaged or no checkpoint: it announces a header of {size:,} bytes and has {len(raw):,} in all"
        )
    try:
        header = parse_json(path, raw[8 : 8 + size])
    except ValueError as error:
        raise ValueError(f"{path} is damaged or no checkpoint: its header is no JSON") from error
    metadata = header.get(_METADATA) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or not {"format", "library"} <= metadata.keys():
        raise ValueError(f"{path} holds tensors, but no state of a run")
    if metadata["format"] != FORMAT or metadata.keys() != _KEYS:
        raise ValueError(
            f"{path} was written by quantattn {told(metadata['library']):.40} in format "
            f"{told(metadata['format']):.20}; quantattn {__version__} reads format {FORMAT}"
        )
    expected = metadata.pop("sha256")
    # The slice of a view: a copy of a large file would double the memory that it takes.
    with memoryview(raw) as whole, whole[8 + size :] as data:
        if _sha(header, [data]) != expected:
            raise ValueError(f"{path} is damaged: its bytes are not those that its hash was made of")
    return parse_json(path, str(metadata["tree"]).encode())


def _sha(header: Mapping[str, Any], contents: Iterable[memoryview]) -> str:
    digest = hashlib.sha256(json.dumps(header).encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def _packed(value: Any, tensors: list[Tensor], where: str) -> Any:
    """JSON in which an object stands for what JSON lacks: its one key says what, and tensors go to `tensors`."""
    if isinstance(value, Tensor):
        if value.dtype not in _CODES or value.layout is not torch.strided:
            raise ValueError(f"{where} is a tensor of {value.dtype}, {value.layout}, which is not among plain values")
        tensors.append(value.detach())
        return {"tensor": len(tensors) - 1}
    if type(value) is float and not math.isfinite(value):
        return {"float": repr(value)}
    if value is None or type(value) in (bool, str, float) or (type(value) is int and -(1 << 63) <= value < 1 << 63):
        return value
    if type(value) is list:
        return [_packed(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [_packed(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return {"dict": [[_packed(k, tensors, where), _packed(v, tensors, f"{where}.{k}")] for k, v in value.items()]}
    raise ValueError(f"{where} is a {type(value).__name__} ({value!r:.60}), which is not among plain values")


def _unpacked(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "tensor":
        return tensors[held]
    if kind == "float":
        return float(held)
    if kind == "tuple":
        return tuple(_unpacked(item, tensors) for item in held)
    if kind == "dict":
        return {_unpacked(key, tensors): _unpacked(item, tensors) for key, item in held}
    raise ValueError(f"{kind!r:.40} is no kind of value")
