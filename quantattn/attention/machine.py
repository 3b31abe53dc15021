"""What a certificate is about beside its findings: device, driver, versions, source files, fixed configurations."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

_HERE = Path(__file__).parent


def usable_device(written: torch.device | str) -> torch.device:
    """The CPU or GPU of this machine that is written as "cpu", "cuda" or "cuda:1".

    Raises:
        ValueError: it is no such name, or the machine has no such GPU.
    """
    try:
        device = torch.device(written)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"a device is cpu, cuda or cuda:1 for the second GPU, got {str(written)!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {device} needs an NVIDIA GPU and a CUDA build of torch, and there is none here")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ValueError(f"there is no device {device}: the GPUs here are counted from 0 to {count - 1}")
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one CPU thread inside, because sums that threads share are rounded by how many they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})" + (", Triton under its interpreter" if interpreted() else "")


def versions(device: torch.device | None = None) -> dict[str, str]:
    """Name → version of what takes part on `device`; with a CUDA device also CUDA's and its driver's."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("triton", "quantattn"):
        if has(package):
            try:
                found[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
                found[package] = "from source"
    if device is not None and device.type == "cuda":
        found |= {"cuda": str(torch.version.cuda), "driver": _driver()}
    return found


def sources() -> dict[str, str]:
    """Sha256 of the source files of the kernels, and of everything else of attention, checks included."""
    groups = {"kernels": (_HERE / "kernels").rglob("*.py"), "attention": _HERE.glob("*.py")}
    hashes = {}
    for name, files in groups.items():
        digest = hashlib.sha256()
        for file in sorted(files):
            content = file.read_bytes()
            digest.update(f"{file.relative_to(_HERE).as_posix()} {len(content)}\n".encode() + content)
        hashes[name] = digest.hexdigest()
    return hashes


def configurations(device: torch.device) -> dict[str, str]:
    """Kernel, operand width and head size → the fixed blocks that run on `device`; empty without triton.

    What stands beside q·k in a score takes room, and the kernels then take the blocks of the second column, if they
    are others.
    """
    if not has("triton") or not (device.type == "cuda" or interpreted()):
        return {}
    from quantattn.attention.kernels import configs

    if device.type != "cuda":
        blocks = configs.INTERPRETED
        return {"every kernel": f"{blocks.block_m} × {blocks.block_n}, under the interpreter"}
    major, minor = torch.cuda.get_device_capability(device)
    found = {}
    for which, bits, d in configs._DEFAULT:
        plain, with_terms = (
            configs.configuration(which, bits, d, 10 * int(major) + int(minor), terms=terms) for terms in (False, True)
        )
        said = [
            f"{c.block_m} × {c.block_n}, {c.num_warps} warps, {c.num_stages} stages"
            for c in dict.fromkeys((plain, with_terms))
        ]
        found[f"{which}, {bits} bits, D up to {d}"] = "; with a bias or extras ".join(said)
    if (major, minor) == (9, 0):
        from quantattn.attention.kernels.hopper.configs import BACKWARD, FORWARD

        tables: dict[str, Mapping[int, object]] = {"fwd": FORWARD, "bwd": BACKWARD}
        for way, table in tables.items():
            for d, config in table.items():
                found[f"hopper {way}, 16 bits, D up to {d}"] = ", ".join(
                    f"{name} {value}" for name, value in vars(config).items()
                )
    return found


def interpreted() -> bool:
    """Whether Triton's interpreter is switched on."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def has(package: str) -> bool:
    """Whether the package can be imported."""
    return importlib.util.find_spec(package) is not None


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype without its module."""
    return str(dtype).removeprefix("torch.")


def _driver() -> str:
    """The driver's version as the kernel module reports it, which needs no program."""
    version = Path("/proc/driver/nvidia/version")
    if not version.is_file():
        return "unknown"
    words = version.read_text("utf-8", "replace").split()
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
