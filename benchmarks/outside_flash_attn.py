"""FlashAttention's own tests, run with ours in its place.

    python benchmarks/outside_flash_attn.py path/to/flash-attention [--every 200] [--device cpu] [PYTEST …]

The suite is the reader's: a checkout of Dao-AILab/flash-attention, whose tests/test_flash_attn.py and padding functions
are read where they stand. A module named flash_attn with its signatures calls `quantattn.attention`; ALiBi slopes
become a bias. Each test holds the error against its own reference within a multiple, mostly two, of what standard
attention loses in the same dtype. On a CPU a copy of the file is run in which the device's name is another.

`--every N` keeps every Nth of the hundred thousand cases, the same ones each time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn import Mask, attention

REFUSED: list[str] = []
"""What was refused since the current case began."""
CALLS: list[str] = []
"""Which functions were called since the current case began."""


def alibi(slopes: Tensor, lengths: list[int], lengths_k: list[int]) -> Tensor:
    """−slope·|distance| as (N, H, longest Nq, longest Nk), the last query beside the last key."""
    count, n_q, n_k = len(lengths), max(lengths), max(lengths_k)
    slopes = slopes.expand(count, -1) if slopes.dim() == 1 else slopes
    shift = torch.tensor([b - a for a, b in zip(lengths, lengths_k, strict=True)], device=slopes.device)
    places, keys = (torch.arange(n, device=slopes.device) for n in (n_q, n_k))
    distance = (places[None, :, None] + shift[:, None, None] - keys).abs()
    return -slopes[:, :, None, None] * distance[:, None]


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor | None, cu_k: Tensor | None, max_q: int, max_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """The signature of flash_attn; q (T, H, D) with offsets, or (B, N, H, D) without."""
    CALLS.append("attention")
    if block_table is not None:
        REFUSED.append("paged keys and values are not offered")
        raise NotImplementedError(REFUSED[-1])
    left, right = (None if int(w) < 0 else int(w) for w in window_size)
    bias = None
    if alibi_slopes is not None and cu_q is not None and cu_k is not None:
        bias = alibi(alibi_slopes, cu_q.diff().tolist(), cu_k.diff().tolist())
    elif alibi_slopes is not None:
        bias = alibi(alibi_slopes, [q.shape[1]] * q.shape[0], [k.shape[1]] * k.shape[0])
    options = {"mask": Mask(causal=causal, window=(left, right)), "bias": bias, "scale": softmax_scale}
    options |= {"dropout": dropout_p, "softcap": softcap or None, "deterministic": True}
    try:
        out, lse = attention(q, k, v, cu_q, cu_k, **options)
    except (ValueError, TypeError) as error:
        REFUSED.append(str(error))
        raise
    return (out, lse.transpose(-1, -2), None) if return_attn_probs else out


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Of flash_attn: dense, (B, N, H, D)."""
    return flash_attn_varlen_func(q, k, v, None, None, 0, 0, *args, **kwargs)


def flash_attn_with_kvcache(*args: Any, **kwargs: Any) -> Any:
    """Of flash_attn: writes to a cache and turns its queries, which is not attention alone."""
    REFUSED.append("caches that attention writes to are not offered")
    raise NotImplementedError(REFUSED[-1])


def stand_in(checkout: Path) -> dict[str, types.ModuleType]:
    """The modules that the suite imports from flash_attn."""
    spec = importlib.util.spec_from_file_location("flash_attn.bert_padding", checkout / "flash_attn/bert_padding.py")
    assert spec is not None
    assert spec.loader is not None
    padding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(padding)
    top, interface, layers, rotary = (
        types.ModuleType(f"flash_attn{name}") for name in ("", ".flash_attn_interface", ".layers", ".layers.rotary")
    )
    names: dict[str, Any] = {
        "flash_attn_func": flash_attn_func,
        "flash_attn_kvpacked_func": lambda q, kv, *a, **o: flash_attn_func(q, *kv.unbind(2), *a, **o),
        "flash_attn_qkvpacked_func": lambda qkv, *a, **o: flash_attn_func(*qkv.unbind(2), *a, **o),
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_varlen_kvpacked_func": lambda q, kv, *a, **o: flash_attn_varlen_func(q, *kv.unbind(1), *a, **o),
        "flash_attn_varlen_qkvpacked_func": lambda qkv, cu, longest, *a, **o: flash_attn_varlen_func(
            *qkv.unbind(1), cu, cu, longest, longest, *a, **o
        ),
        "flash_attn_with_kvcache": flash_attn_with_kvcache,
    }
    top.__dict__.update(names, __path__=[])
    interface.__dict__.update(_get_block_size_n=None, USE_TRITON_ROCM=False)
    rotary.__dict__.update(apply_rotary_emb=flash_attn_with_kvcache)
    return {module.__name__: module for module in (top, interface, layers, rotary, padding)}


class Record:
    """A pytest plugin: each case kept, and what came of it as (kind, reason)."""

    def __init__(self, every: int) -> None:
        self.every, self.cases = every, dict[str, tuple[str, str]]()

    @pytest.hookimpl(trylast=True)  # after pytest's own choice
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep every Nth case."""
        items[:] = items[:: self.every]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A new case."""
        REFUSED.clear()
        CALLS.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """How the case ended."""
        message = str(getattr(getattr(report.longrepr, "reprcrash", None), "message", "")).strip().split("\n")[0]
        if report.when == "call" and report.outcome == "passed":
            self.cases[report.nodeid] = ("passed" if CALLS else "never calls attention", "")
        elif report.outcome == "skipped":
            where = report.longrepr
            self.cases[report.nodeid] = ("skipped by the suite", str(where[2]) if isinstance(where, tuple) else "")
        elif report.outcome == "failed":
            why = re.sub(r"[-\d.]+(?:e-?\d+)?|nan", "#", message)[:120]
            self.cases[report.nodeid] = ("refused", REFUSED[-1]) if REFUSED else ("disagrees", why)


def main() -> int:
    """Run the suite and print the table; 1 when a case fails in which nothing was refused."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options, pytest_options = parser.parse_known_args()
    text = (options.checkout / "tests/test_flash_attn.py").read_text("utf-8")
    sys.modules.update(stand_in(options.checkout))
    if options.device == "cpu":
        text = text.replace('device = "cuda"', 'device = "cpu"').replace('device="cuda"', 'device="cpu"')
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(
            total_memory=1 << 40, multi_processor_count=1
        )
    record = Record(options.every)
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder, "test_flash_attn.py")
        suite.write_text(text, "utf-8")
        quiet = ["-q", "--no-header", "--tb=no", "-rN", "-p", "no:cacheprovider", "-W", "ignore", "-c", "/dev/null"]
        pytest.main([*quiet, f"--rootdir={folder}", str(suite), *pytest_options], [record])
    if options.json:
        options.json.write_text(json.dumps(record.cases, indent=1))
    print(f"{len(record.cases)} cases on {options.device}, torch {torch.__version__}")
    counts = Counter(record.cases.values())
    for kind, number in Counter(kind for kind, _ in record.cases.values()).most_common():
        print(f"{number:6}  {kind}")
        for (other, why), count in counts.most_common():
            if other == kind and why:
                print(f"        {count:6}  {why}")
    return int(any(kind == "disagrees" for kind, _ in record.cases.values()))


if __name__ == "__main__":
    sys.exit(main())
