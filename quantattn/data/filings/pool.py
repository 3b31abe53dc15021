"""Files → what they say, through a pool of guarded child processes.

Every parse of a file, from unpacking to its items, happens in a child, under limits on size, on processor time, on wall
time and on memory. A file that goes past a limit, or that kills its child, is set aside with the reason, and the pool
goes on with a new child. Children serve file after file; no file is told from another by what its child did before.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from quantattn.data.filings.parsed import SIZE_LIMIT, UNREADABLE, Parsed, Request

TIME_LIMIT = "time limit"
MEMORY_LIMIT = "memory limit"
DIED = "parser died"
BAD = (UNREADABLE, SIZE_LIMIT, TIME_LIMIT, MEMORY_LIMIT, DIED)
"""Reasons for which a file that may be a filing cannot be read."""

_ROOT = Path(__file__).parents[3]
_CHILD = Path(__file__).with_name("child.py")
_OUT_OF_MEMORY = 86  # exit status by which the child says so
_LONG = ("text", "annual_report")  # what follows the JSON of an answer, as its docstring says
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "SYSTEMROOT")  # what an interpreter may need to start; no secret goes along
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**26)}
"""Let the child's memory from one file serve the next; else it goes back to the kernel and comes anew, page by page."""
_PIPE = 2**16  # bytes that a pipe holds
_MOST_WORKERS = 8
_MOST = 1_000_000
_LEAST = {"size_mib": 0.001, "file_mib": 0.001, "cpu_seconds": 1, "wall_seconds": 0.01, "memory_mib": 64}
"""Limit → the least that it may be; 64 MiB is what a child has after its start, and a little."""


@dataclass(frozen=True)
class Limits:
    """What one file may cost.

    Attributes:
        size_mib: largest document in HTML, 2^20 characters.
        file_mib: largest file, unpacked, MiB.
        cpu_seconds: processor time of the child for one file (whole seconds, up to one more).
        wall_seconds: time after which a child that does not answer is ended, whatever it does.
        memory_mib: address space of the child.
        min_share: least share of the visible characters that must survive.
    """

    size_mib: float = 64.0
    file_mib: float = 256.0
    cpu_seconds: int = 20
    wall_seconds: float = 180.0
    memory_mib: int = 2_048
    min_share: float = 0.95

    def __post_init__(self) -> None:
        """Refuse limits under which nothing could be read, and such as no kernel takes.

        Raises:
            ValueError: naming the limit.
        """
        for name, least in _LEAST.items():
            value = getattr(self, name)
            whole = name in ("cpu_seconds", "memory_mib")
            kind = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not kind or not least <= value <= _MOST:
                what = "a whole number" if whole else "a number"
                raise ValueError(f"{name} must be {what} from {least:g} to {_MOST:,}, got {value!r}")
        if not isinstance(self.min_share, int | float) or not 0 <= self.min_share <= 1:
            raise ValueError(f"min_share must be a number from 0 to 1, got {self.min_share!r}")

    def request(
        self, path: Path, forms: tuple[str, ...], form: str | None, annual_report: bool, facts: bool
    ) -> Request:
        """What to ask a child about a file."""
        sizes = (int(self.file_mib * 2**20), int(self.size_mib * 2**20))
        return Request(str(path.absolute()), forms, form, annual_report, facts, *sizes, self.min_share)

    def in_words(self, reason: str) -> str:
        """The limit that was passed; "" for another reason."""
        return {
            TIME_LIMIT: f"{self.cpu_seconds} s of processor or {self.wall_seconds:g} s in all",
            MEMORY_LIMIT: f"{self.memory_mib} MiB",
        }.get(reason, "")


class _ChildDied(Exception):
    """The child ended or was ended before it had answered; the message is the reason."""


class _Child:
    """One child process, kept from file to file."""

    def __init__(self, limits: Limits) -> None:
        spec = importlib.util.find_spec("selectolax")
        assert spec is not None  # a dependency of ours, which `parsing` imports
        assert spec.origin is not None
        self.answered = 0
        self._limits = limits
        site = str(Path(spec.origin).parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-IS", str(_CHILD), str(_ROOT), site, str(limits.cpu_seconds), str(limits.memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ} | _KEEP_MEMORY,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.pid = self._process.pid
        os.set_blocking(self._output.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def ask(self, request: Request) -> Iterator[dict[str, Any]]:
        """The child's answers about one file up to the last; `_ChildDied` where they break off."""
        deadline = time.monotonic() + self._limits.wall_seconds
        body = json.dumps(vars(request)).encode()
        try:
            self._input.write(len(body).to_bytes(8) + body)
            self._input.flush()
        except BrokenPipeError:
            raise _ChildDied(self._end(None)) from None
        received = bytearray()

        def take(size: int) -> bytes:
            while len(received) < size:
                received.extend(self._receive(deadline))
            taken = bytes(memoryview(received)[:size])
            del received[:size]
            return taken

        while True:
            answer: dict[str, Any] = json.loads(take(int.from_bytes(take(8))))
            parsed = answer.get("parsed", {})
            for name in _LONG:
                if parsed.get(name) is not None:
                    parsed[name] = take(parsed[name]).decode()
            yield answer
            if not parsed.get("to_come"):
                self.answered += 1
                return

    def _receive(self, deadline: float) -> bytes:
        if not self._selector.select(max(0.0, deadline - time.monotonic())):
            raise _ChildDied(self._end(TIME_LIMIT))
        piece = os.read(self._output.fileno(), _PIPE)
        if not piece:
            raise _ChildDied(self._end(None))
        return piece

    def _end(self, reason: str | None) -> str:
        """Make sure that the child is gone; `reason`, or what its exit status says."""
        if reason is not None:
            self._process.kill()
        status = self._process.wait()
        self.close()
        if reason is not None:
            return reason
        if status >= 0 and status != _OUT_OF_MEMORY:
            raise RuntimeError(f"the process that parses filings ended with status {status}; run {_CHILD} to see why")
        return {-signal.SIGXCPU: TIME_LIMIT, _OUT_OF_MEMORY: MEMORY_LIMIT}.get(status, DIED)

    def close(self) -> None:
        """End the child and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        self._output.close()
        with contextlib.suppress(BrokenPipeError):  # what was still buffered was for a child that is gone
            self._input.close()


class ParsePool:
    """`workers` children that parse files; may be used from several threads at once.

    A file whose child dies is tried once more in a fresh child when that child had served others before: no file pays
    for the memory that its predecessors left behind. The second death is the file's own.
    """

    def __init__(self, limits: Limits | None = None, workers: int | None = None) -> None:
        """Children start when they are needed.

        Args:
            limits: what one file may cost.
            workers: how many children; as many as this process has cores, 8 at most, when None.
        """
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.limits = limits or Limits()
        self.workers = workers or min(_MOST_WORKERS, available_cores())
        self._alive: set[_Child] = set()
        self._idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()
        for _ in range(self.workers):
            self._idle.put(None)

    def __enter__(self) -> ParsePool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def processes(self) -> tuple[int, ...]:
        """Process ids of the children, ascending, for whoever watches them."""
        return tuple(sorted(child.pid for child in tuple(self._alive)))

    def close(self) -> None:
        """End every child; waits for those at work."""
        for _ in range(self.workers):
            child = self._idle.get()
            if child is not None:
                self._end(child)
        for _ in range(self.workers):
            self._idle.put(None)

    def parse(
        self,
        path: Path,
        forms: tuple[str, ...],
        form: str | None = None,
        annual_report: bool = False,
        facts: bool = False,
    ) -> Parsed:
        """What a file says, or the reason for which it is set aside. Never raises for what is in the file.

        Args:
            path: the file.
            forms: families to keep; others are set aside before their text is read.
            form: what an index says, for a file that states no form before its text.
            annual_report: whether to read Exhibit 13 and to follow items into it.
            facts: whether to read those of inline XBRL.
        """
        request = self.limits.request(path, forms, form, annual_report, facts)
        child = self._idle.get()
        try:
            while True:
                fresh = child is None or child.answered == 0
                child = child or self._start()
                parsed, reason, detail = self._ask(child, request)
                if not reason:
                    assert parsed is not None
                    return parsed
                self._end(child)
                child = None
                if fresh or reason == TIME_LIMIT:
                    return _without_answer(parsed, reason, detail)
        finally:
            self._idle.put(child)

    def _start(self) -> _Child:
        child = _Child(self.limits)
        self._alive.add(child)
        return child

    def _end(self, child: _Child) -> None:
        child.close()
        self._alive.discard(child)

    def _ask(self, child: _Child, request: Request) -> tuple[Parsed | None, str, str]:
        """The last answer that came, and why there is no end to the answers, if so, in two words and in more."""
        values: dict[str, Any] | None = None
        reason = detail = ""
        try:
            for answer in child.ask(request):
                values = answer.get("parsed", values)
                if "error" in answer:
                    error = str(answer["error"])
                    reason, detail = UNREADABLE, f"parser error: {error}"
                    if error == "memory":
                        reason, detail = MEMORY_LIMIT, self.limits.in_words(MEMORY_LIMIT)
        except _ChildDied as death:
            reason, detail = str(death), self.limits.in_words(str(death))
        return None if values is None else Parsed.from_dict(values), reason, detail


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _without_answer(parsed: Parsed | None, reason: str, detail: str) -> Parsed:
    """A file whose parse broke off: set aside, or without the part that was to come when it had its text before."""
    told = f"{reason} ({detail})" if detail else reason
    if parsed is None or parsed.text is None:
        return replace(parsed or Parsed(), to_come="", status=reason, detail=detail or "while the file was parsed")
    return parsed.without(told)
