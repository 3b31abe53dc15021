"""HTML → text through a pool of guarded child processes.

A document gets a limit on its size, on processor time, on wall time and on memory; one that goes past a limit, or
that kills its child, is refused with a reason, and the pool goes on with a new child. What comes back is checked
against a second, cruder count of the visible characters, so that no parser empties a document silently.
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_CHILD = Path(__file__).with_name("markup_child.py")
_OUT_OF_MEMORY = 86  # exit status by which the child says so
_KEPT_ENVIRONMENT = ("LD_LIBRARY_PATH", "SYSTEMROOT")  # what an interpreter may need to start; no secret goes along


@dataclass(frozen=True)
class Limits:
    """What one document may cost.

    Attributes:
        size_mib: largest HTML source, MiB of UTF-8.
        cpu_seconds: processor time of the child for one document (whole seconds, up to one more).
        wall_seconds: time after which a child that does not answer is ended, whatever it does.
        memory_mib: address space of the child.
        min_share: least share of the visible characters that must survive.
    """

    size_mib: float = 64.0
    cpu_seconds: int = 20
    wall_seconds: float = 180.0
    memory_mib: int = 2_048
    min_share: float = 0.95


@dataclass(frozen=True)
class Rendered:
    """Text of a document.

    Attributes:
        text: one line a paragraph or table row, cells separated by a tab, blanks single.
        share: visible characters kept / visible characters in the source without its hidden parts.
        hidden: visible characters in hidden parts (`display:none`, the inline-XBRL header), which are left out.
        facts: inline-XBRL cover facts by name: `dei:DocumentType`, `dei:EntityCentralIndexKey`, `dei:AmendmentFlag`.
    """

    text: str
    share: float
    hidden: int
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """Why a document has no text; `detail` holds what varies from document to document."""

    reason: str
    detail: str = ""


class _ChildDied(Exception):
    """The child ended or was ended before it answered; the message is the reason."""


class _Child:
    """One child process, kept from document to document."""

    def __init__(self, limits: Limits) -> None:
        spec = importlib.util.find_spec("selectolax")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("HTML filings need the package selectolax")
        self.answered = 0
        self._limits = limits
        site = str(Path(spec.origin).parent.parent)
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(_CHILD), site, str(limits.cpu_seconds), str(limits.memory_mib)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)

    def ask(self, source: bytes) -> tuple[dict[str, object], str]:
        """The child's answer about one document; `_ChildDied` when there is none."""
        answer = self._exchange(len(source).to_bytes(8) + source)
        self.answered += 1
        head = int.from_bytes(answer[:8])
        return json.loads(answer[16 : 16 + head]), answer[16 + head :].decode("utf-8")

    def _exchange(self, request: bytes) -> bytes:
        """Write the request and read the answer in one loop, so that neither side waits for the other in vain."""
        deadline = time.monotonic() + self._limits.wall_seconds
        unsent, answer, size = memoryview(request), bytearray(), 16
        with selectors.DefaultSelector() as selector:
            selector.register(self._input, selectors.EVENT_WRITE)
            selector.register(self._output, selectors.EVENT_READ)
            while len(answer) < size:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise _ChildDied(self._end("time limit"))
                for key, _ in ready:
                    if key.fileobj is self._output:
                        piece = os.read(self._output.fileno(), 1 << 20)
                        if not piece:
                            raise _ChildDied(self._end(None))
                        answer += piece
                    else:
                        unsent = self._send(unsent)
                        if not unsent:
                            selector.unregister(self._input)
                if len(answer) >= 16:
                    size = 16 + int.from_bytes(answer[:8]) + int.from_bytes(answer[8:16])
        return bytes(answer)

    def _send(self, unsent: memoryview) -> memoryview:
        try:
            return unsent[os.write(self._input.fileno(), unsent[: 1 << 20]) :]
        except BrokenPipeError:
            raise _ChildDied(self._end(None)) from None

    def _end(self, reason: str | None) -> str:
        """Make sure that the child is gone; `reason`, or what its exit status says."""
        if reason is not None:
            self._process.kill()
        status = self._process.wait()
        self.close()
        if reason is not None:
            return reason
        if status >= 0 and status != _OUT_OF_MEMORY:
            raise RuntimeError(f"the process that parses HTML ended with status {status}; run {_CHILD.name} to see why")
        return {-signal.SIGXCPU: "time limit", _OUT_OF_MEMORY: "memory limit"}.get(status, "parser died")

    def close(self) -> None:
        """End the child and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
        with contextlib.suppress(BrokenPipeError):  # what was still buffered was for a child that is gone
            self._input.close()


class MarkupPool:
    """`workers` children that render documents; may be used from several threads at once.

    A document whose child dies is tried once more in a fresh child when that child had served others before: no
    document pays for the memory that its predecessors left behind. The second death is the document's own.
    """

    def __init__(self, limits: Limits | None = None, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self.limits = limits or Limits()
        self._idle: queue.Queue[_Child | None] = queue.Queue()
        for _ in range(workers):
            self._idle.put(None)
        self._workers = workers

    def __enter__(self) -> MarkupPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every child; waits for those at work."""
        for _ in range(self._workers):
            child = self._idle.get()
            if child is not None:
                child.close()
        for _ in range(self._workers):
            self._idle.put(None)

    def render(self, source: str) -> Rendered | Refused:
        """Text of an HTML document, or the reason why there is none. Never raises for what is in `source`."""
        content = source.encode("utf-8", errors="replace")
        if len(content) > self.limits.size_mib * 2**20:
            return Refused("size limit", f"{len(content):,} bytes of HTML, at most {self.limits.size_mib:g} MiB")
        child = self._idle.get()
        try:
            for _ in range(2):
                fresh = child is None or child.answered == 0
                child = child or _Child(self.limits)
                try:
                    facts, text = child.ask(content)
                except _ChildDied as death:
                    child = None
                    if fresh or str(death) == "time limit":
                        return Refused(str(death), self._limit_in_words(str(death)))
                else:
                    if "error" in facts:
                        child.close()
                        child = None
                        if fresh:
                            return self._refuse(str(facts["error"]))
                        continue
                    return self._judge(facts, text)
            raise AssertionError("the second child is always a fresh one")
        finally:
            self._idle.put(child)

    def _refuse(self, error: str) -> Refused:
        if error == "memory":
            return Refused("memory limit", self._limit_in_words("memory limit"))
        return Refused("parser error", error)

    def _limit_in_words(self, reason: str) -> str:
        return {
            "time limit": f"{self.limits.cpu_seconds} s of processor or {self.limits.wall_seconds:g} s in all",
            "memory limit": f"{self.limits.memory_mib} MiB",
        }.get(reason, "")

    def _judge(self, facts: dict[str, object], text: str) -> Rendered | Refused:
        """Refuse a text that is empty or lost too much of what the source shows."""
        hidden, expected, noted = facts["hidden"], facts["expected"], facts["facts"]
        assert isinstance(hidden, int)
        assert isinstance(expected, int)
        assert isinstance(noted, dict)
        kept = sum(map(len, text.split()))
        if not kept:
            return Refused("no visible text", f"{expected} characters in the source, {hidden} of them hidden")
        share = kept / max(1, expected - hidden)
        if share < self.limits.min_share:
            return Refused(
                "text lost", f"{share:.1%} of the visible characters kept, least {self.limits.min_share:.0%}"
            )
        return Rendered(text, share, hidden, noted)
