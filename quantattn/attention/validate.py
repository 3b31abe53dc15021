"""Is it an approximation? Every backend against float64 truth, beside what standard attention itself loses.

`python -m quantattn.attention.validate --json -` prints the certificate as JSON and needs nothing but torch; `python -m
quantattn validate` shows it as a table and as a page. Triton kernels on a CPU run under Triton's interpreter, in a
child process that has it switched on. `--full` shares its parts out over child processes of one thread each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from quantattn.attention import machine
from quantattn.attention.certificate import Certificate, Errors, Finding
from quantattn.attention.choose import BACKENDS
from quantattn.attention.machine import dtype_name
from quantattn.attention.parts import PARTS, USUAL, Job, findings_of

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Input dtypes that are validated; random problems only below float64, in which their truth is computed."""


def validate(
    backends: Sequence[str] = BACKENDS,
    dtypes: Sequence[torch.dtype] = DTYPES,
    device: torch.device | str = "cpu",
    full: bool = False,
    progress: Callable[[Finding], None] | None = None,
    workers: int | None = None,
) -> Certificate:
    """Check the algebra of the state and every backend; a failure is a finding, not an exception.

    Args:
        backends: names as `attention(backend=…)` takes them.
        dtypes: of the inputs.
        device: where the tensors stand. On a CPU the backend "triton" is checked in a child process under the
            interpreter, on smaller problems.
        full: also the theorems, every feature, error tables beside an a-priori bound, a fuzz, repeats, memory and
            planted mistakes; in child processes.
        progress: called with each finding as it is made.
        workers: child processes at a time; as many as there are cores, at most twelve, when None.

    Returns:
        The certificate; `certificate.ok` is the verdict, `certificate.statement()` the answer in words.

    Raises:
        ValueError: an unknown backend, a device that is not here, or fewer than one worker.
        RuntimeError: a child process ended without a certificate.
    """
    unknown = sorted(set(backends) - set(BACKENDS))
    if unknown:
        raise ValueError(f"backends are {', '.join(BACKENDS)}; got {', '.join(unknown)}")
    device = check_request(device, workers)
    in_child = "triton" in backends and device.type == "cpu" and not machine.interpreted() and machine.has("triton")
    here = tuple(name for name in backends if not (in_child and name == "triton"))
    if full:
        jobs = full_jobs(here, tuple(dtypes), device) + (interpreted_jobs(tuple(dtypes)) if in_child else [])
        return _joined(jobs, device, workers or min(12, os.cpu_count() or 1), progress)
    certificate = offindings_of(findings_of(Job(USUAL, here, tuple(dtypes)), device, progress), device)
    if not in_child:
        return certificate
    return certificate.joined(_joined([Job(USUAL, ("triton",), tuple(dtypes))], device, 1, progress))


def check_request(device: torch.device | str, workers: int | None) -> torch.device:
    """The device, where it is one of this machine and there is a worker.

    Raises:
        ValueError: a device that is not here, or fewer than one worker.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"a validation needs at least one worker, got {workers}")
    return machine.usable_device(device)


def full_jobs(backends: tuple[str, ...], dtypes: tuple[torch.dtype, ...], device: torch.device) -> list[Job]:
    """The long ones first. On a GPU they are cut finer, since most of their time goes into compiling kernels."""
    jobs: list[Job] = []
    shares = 2 if device.type == "cuda" else 1
    for dtype in dtypes:
        if dtype == torch.float64:
            continue
        jobs += [Job(("tables",), backends, (dtype,), (i, shares)) for i in range(shares)]
        if device.type != "cuda" or dtype != torch.float16:  # whose kernels differ from bfloat16's in nothing
            jobs += [Job(("features",), backends, (dtype,), (i, shares)) for i in range(shares)]
        others = [("fuzz",), ("theorems", "repeats"), USUAL[1:]]
        if device.type != "cuda":
            others = [tuple(part for parts in others for part in parts)]
        jobs += [Job(parts, backends, (dtype,)) for parts in others]
    if torch.float64 in dtypes:
        jobs.append(Job(("examples",), backends, (torch.float64,)))
    return [*jobs, Job(("laws", "controls", "memory"), backends, dtypes)]


def interpreted_jobs(dtypes: tuple[torch.dtype, ...]) -> list[Job]:
    """The kernels under the interpreter, on small problems; bfloat16 is refused there."""
    few = tuple(dtype for dtype in dtypes if dtype in (torch.float32, torch.float16))
    return [Job(("examples", "random"), ("triton",), dtypes)] + [
        Job(("theorems", "features", "tables"), ("triton",), (dtype,)) for dtype in few
    ]


def offindings_of(found: Iterator[Finding | Errors], device: torch.device) -> Certificate:
    """The certificate of what is found on this machine, by one CPU thread, so that its hash knows of no number."""
    with machine.one_thread():
        everything = list(found)
    return Certificate(
        machine.device_name(device),
        machine.versions(device),
        tuple(f for f in everything if isinstance(f, Finding)),
        tuple(e for e in everything if isinstance(e, Errors)),
        machine.sources(),
        machine.configurations(device),
    )


def expired(certificate: Certificate, device: torch.device | str | None = None) -> str | None:
    """Why a certificate says nothing about what is installed here, in one sentence; None while it holds.

    Args:
        certificate: of any device.
        device: of this machine; None is the sort of device that the certificate is of.
    """
    if device is None:
        device = "cuda" if "cuda" in certificate.versions and torch.cuda.is_available() else "cpu"
    return certificate.expired(machine.versions(torch.device(device)), machine.sources())


def _joined(
    jobs: Sequence[Job], device: torch.device, workers: int, progress: Callable[[Finding], None] | None
) -> Certificate:
    """One certificate of all jobs, in their order."""
    whole: Certificate | None = None
    with ThreadPoolExecutor(workers) as pool:
        for part in pool.map(lambda job: _in_child(job, device), jobs):
            for finding in part.findings:
                if progress is not None:
                    progress(finding)
            whole = part if whole is None else whole.joined(part)
    if whole is None:
        raise ValueError("there is nothing to validate: no dtype or no backend")
    return whole


def _command(job: Job, device: torch.device) -> list[str]:
    """What the child process of a job is started with."""
    said = [f"--part={part}" for part in job.parts] + [f"--backend={name}" for name in job.backends]
    said += [f"--dtype={dtype_name(dtype)}" for dtype in job.dtypes]
    share = "/".join(map(str, job.share))
    here = [sys.executable, "-m", "quantattn.attention.validate"]
    return [*here, f"--device={device}", f"--share={share}", "--json=-", *said]


def _in_child(job: Job, device: torch.device) -> Certificate:
    """The certificate of one job; Triton's interpreter must be on before triton is imported."""
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    if job.backends == ("triton",) and device.type == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    child = subprocess.run(_command(job, device), env=environment, capture_output=True, text=True, check=False)
    if child.returncode not in (0, 1) or not child.stdout.startswith("{"):
        what = f"{', '.join(job.parts)} of {', '.join(job.backends)}"
        said = child.stderr.strip()[-2000:]
        raise RuntimeError(f"validating {what} in a child process ended with code {child.returncode}: {said}")
    return Certificate.from_json(child.stdout)


def main(arguments: Sequence[str] | None = None) -> int:
    """Validate as asked and write the certificate as JSON; 0 when nothing failed, 1 otherwise."""
    names = {dtype_name(dtype): dtype for dtype in DTYPES}
    parser = argparse.ArgumentParser(prog="python -m quantattn.attention.validate", description=__doc__)
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="one of several; all when left out")
    parser.add_argument("--dtype", action="append", choices=names, help="one of several; all when left out")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 …")
    parser.add_argument("--full", action="store_true", help="all parts, shared out over child processes")
    parser.add_argument("--workers", type=int, help="child processes at a time; the number of cores, at most 12")
    parser.add_argument("--part", action="append", choices=PARTS, help="one of several, in this process alone")
    parser.add_argument(
        "--share", default="0/1", metavar="I/N", help="with --part: every N-th problem from the I-th on"
    )
    parser.add_argument("--json", default="-", metavar="FILE", help="where the certificate goes; - is standard output")
    asked = parser.parse_args(arguments)
    dtypes = tuple(names[name] for name in asked.dtype) if asked.dtype else DTYPES
    backends, share = tuple(asked.backend or BACKENDS), _parsed_share(parser, asked.share)
    try:
        device = check_request(asked.device, asked.workers)
    except ValueError as error:
        parser.error(str(error))
    if asked.part:
        certificate = offindings_of(findings_of(Job(tuple(asked.part), backends, dtypes, share), device), device)
    else:
        certificate = validate(backends, dtypes, device, asked.full, workers=asked.workers)
    if asked.json == "-":
        print(certificate.to_json())
    else:
        Path(asked.json).write_text(certificate.to_json() + "\n", "utf-8")
    return 0 if certificate.ok else 1


def _parsed_share(parser: argparse.ArgumentParser, written: str) -> tuple[int, int]:
    first, _, step = written.partition("/")
    if not (first.isdecimal() and step.isdecimal() and int(first) < int(step)):
        parser.error(f"--share is I/N with I below N, got {written}")
    return int(first), int(step)


if __name__ == "__main__":
    sys.exit(main())
