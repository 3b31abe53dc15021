"""The process in which filings are parsed. A bomb ends it, and not the one that asked.

Started by path, as `python -IS child.py ROOT SITE CPU_SECONDS MEMORY_MIB`, where ROOT holds our package and SITE
selectolax; never imported. It reads requests from its standard input and writes answers to its standard output until
the input ends, each 8 bytes of length (big-endian) and that much JSON in UTF-8. A request is a `Request`; the answers
to it are one or more of `{"parsed": …}`, each in place of the one before, up to one with nothing more to come, or to
`{"error": …}`. In the JSON of what was parsed a long text (`LONG`) is its number of bytes; the texts follow the JSON,
in that order, in UTF-8.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import types
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = 86
"""Exit status when memory ran out outside a file's own parse."""
LONG = ("text", "annual_report")
PACKAGES = ("quantattn", "quantattn.data", "quantattn.data.filings")


def open_packages(root: Path) -> None:
    """Let modules of ours be imported without what their packages import.

    `import quantattn` brings torch, `quantattn.data.filings` Polars: more seconds and more memory than a filing has.
    """
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")))]
        sys.modules[name] = package


def limit(memory_mib: int) -> None:
    """No more than so much address space, no file written, no core left behind."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def allow(cpu_seconds: int) -> None:
    """Let this process use `cpu_seconds` more of processor time; beyond that the kernel ends it (SIGXCPU)."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def send(answer: dict[str, Any]) -> None:
    """Write one answer."""
    parsed, texts = answer.get("parsed", {}), {}
    for name in LONG:
        if parsed.get(name) is not None:
            texts[name] = parsed[name].encode("utf-8", errors="replace")
    if texts:
        answer = {"parsed": parsed | {name: len(text) for name, text in texts.items()}}
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", errors="replace")
    for piece in (len(body).to_bytes(8), body, *texts.values()):
        sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


def main(root: str, site: str, cpu_seconds: int, memory_mib: int) -> None:
    """Answer requests until the input ends."""
    open_packages(Path(root))
    sys.path.append(site)
    from quantattn.data.filings.parsed import Request
    from quantattn.data.filings.parsing import parse

    limit(memory_mib)
    while len(size := sys.stdin.buffer.read(8)) == 8:
        request = Request(**json.loads(sys.stdin.buffer.read(int.from_bytes(size))))
        allow(cpu_seconds)
        try:
            for parsed in parse(request):
                send({"parsed": parsed.as_dict()})
        except MemoryError:
            send({"error": "memory"})
        except Exception as error:  # whatever a parser raises is this file's reason, told to the parent
            send({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # sys.exit raises, for which there may be no memory; the status would be 1
