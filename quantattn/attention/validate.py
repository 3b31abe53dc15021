"""Is it an approximation? Every backend against float64 truth, beside what standard attention itself loses.

`python -m quantattn.attention.validate --json -` prints the certificate as JSON; `python -m quantattn validate` shows
it as a table. Triton kernels on a CPU run under Triton's interpreter, in a child process that has it switched on.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from quantattn.attention.certificate import Certificate, Finding
from quantattn.attention.checks import (
    Size,
    check_algebra,
    check_example,
    check_hidden,
    check_mistakes,
    check_random,
    random_problems,
)
from quantattn.attention.choose import BACKENDS
from quantattn.attention.examples import worked_examples
from quantattn.attention.mask import Mask
from quantattn.attention.testing import error_budget

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Input dtypes that are validated; random problems only below float64, in which their truth is computed."""


def validate(
    backends: Sequence[str] = BACKENDS,
    dtypes: Sequence[torch.dtype] = DTYPES,
    device: torch.device | str = "cpu",
    full: bool = False,
    progress: Callable[[Finding], None] | None = None,
) -> Certificate:
    """Check the algebra of the state and every backend; a failure is a finding, not an exception.

    Args:
        backends: names as `attention(backend=…)` takes them.
        dtypes: of the inputs.
        device: where the tensors stand. On a CPU the backend "triton" is checked in a child process under the
            interpreter, on smaller problems.
        full: more and larger problems (about ten times the work); on a CPU not for "triton".
        progress: called with each finding as it is made.

    Returns:
        The certificate; `certificate.ok` is the verdict, `certificate.statement()` the answer in words.

    Raises:
        ValueError: an unknown backend.
        RuntimeError: the child process ended without a certificate.
    """
    unknown = sorted(set(backends) - set(BACKENDS))
    if unknown:
        raise ValueError(f"backends are {', '.join(BACKENDS)}; got {', '.join(unknown)}")
    device = torch.device(device)
    in_child = "triton" in backends and device.type == "cpu" and not _interpreted() and _has("triton")
    here = [name for name in backends if not (in_child and name == "triton")]
    findings = []
    for finding in _findings(here, dtypes, device, full):
        findings.append(finding)
        if progress is not None:
            progress(finding)
    certificate = Certificate(_device(device), _versions(), tuple(findings))
    if not in_child:
        return certificate
    child = _in_child(dtypes)
    for finding in child.findings:
        if progress is not None:
            progress(finding)
    return certificate.joined(child)


def _findings(
    backends: Sequence[str], dtypes: Sequence[torch.dtype], device: torch.device, full: bool
) -> Iterator[Finding]:
    if "exact" in backends or "tiled" in backends:
        yield from check_algebra(torch.float64)
        yield from check_algebra(torch.float32)
        yield from check_mistakes()
    for dtype in dtypes:
        for name in backends:
            for example in worked_examples():
                yield from check_example(name, example, dtype, device)
    interpreted = "triton" in backends and device.type == "cpu" and _has("triton")
    size: Size = "small" if interpreted else "full" if full else "usual"
    for dtype in dtypes:
        if dtype == torch.float64:
            continue
        for problem in random_problems(dtype, device, size):
            budget = error_budget(problem)
            for name in backends:
                yield from check_random(name, problem, budget)
                if problem.mask == Mask(causal=True):
                    yield from check_hidden(name, problem, budget)


def _in_child(dtypes: Sequence[torch.dtype]) -> Certificate:
    """The certificate of the Triton kernels under the interpreter, which must be on before triton is imported."""
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "quantattn.attention.validate", "--backend", "triton", "--json", "-"]
    for dtype in dtypes:
        command += ["--dtype", _name(dtype)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if child.returncode not in (0, 1) or not child.stdout:
        said = child.stderr.strip()[-2000:]
        raise RuntimeError(f"validating under Triton's interpreter ended with code {child.returncode}: {said}")
    return Certificate.from_json(child.stdout)


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})" + (", Triton under its interpreter" if _interpreted() else "")


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "quantattn"):
        if _has(package):
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:  # a checkout that was not installed
                versions[package] = "from source"
    return versions


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate as asked and write the certificate as JSON; 0 when nothing failed, 1 otherwise."""
    names = {_name(dtype): dtype for dtype in DTYPES}
    parser = argparse.ArgumentParser(prog="python -m quantattn.attention.validate", description=__doc__)
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="one of several; all when left out")
    parser.add_argument("--dtype", action="append", choices=names, help="one of several; all when left out")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 …")
    parser.add_argument("--full", action="store_true", help="more and larger problems")
    parser.add_argument("--json", default="-", metavar="FILE", help="where the certificate goes; - is standard output")
    asked = parser.parse_args(arguments)
    dtypes = [names[name] for name in asked.dtype] if asked.dtype else DTYPES
    certificate = validate(asked.backend or BACKENDS, dtypes, asked.device, asked.full)
    if asked.json == "-":
        print(certificate.to_json())
    else:
        Path(asked.json).write_text(certificate.to_json() + "\n", "utf-8")
    return 0 if certificate.ok else 1


if __name__ == "__main__":
    sys.exit(main())
