"""One process a device: started alike, told of signals, and ended together when one of them fails.

The processes meet as those of torchrun do, by a store that this one keeps. A process that ends in any other way than
well takes the others with it, after a while in which each can say why it stops.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

import quantattn

GRACE = 5.0
"""Seconds that the others have once one process has failed."""
LAUNCHED = "QUANTATTN_LAUNCHED"
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Rank:
    """One of the processes, with what it has said on stderr."""

    def __init__(self, rank: int, command: Sequence[str], environment: dict[str, str]) -> None:
        self.rank = rank
        # Its stdin is held open and never written to: it ends when this process does. In a session of its own it gets
        # the signals of a terminal from here alone, once.
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
        )
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stderr or ():
            self.said.append(line)
            if self.rank == 0:
                sys.stderr.write(line)
                sys.stderr.flush()

    def end(self) -> None:
        """Kill the process if it still runs, and hear the rest of what it said."""
        self.process.kill()
        self.process.wait()
        self._reader.join(timeout=1.0)
        for file in (self.process.stdin, self.process.stderr):
            # Where something that the process left behind still has its stderr, closing would wait for that to end.
            if file is not None and not (file is self.process.stderr and self._reader.is_alive()):
                file.close()


def launch(command: Sequence[str], ranks: int, goes_on: str) -> int:
    """Run `command` in so many processes on this machine; the exit code of the first that failed, or 0.

    The first process speaks for all; of the others is heard what one says that fails before it.

    Args:
        command: what each process runs; which one it is stands in its environment, as torchrun says it.
        ranks: processes.
        goes_on: what to do after a kill, for the sentence.

    Raises:
        RuntimeError: a process was killed.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    started: list[Rank] = []
    try:
        with _passing_signals_on(started):
            started.extend(Rank(rank, command, _environment(rank, ranks, store.port)) for rank in range(ranks))
            first = _ended(started)
    finally:
        for each in started:
            each.end()
    if first is None:
        return 0
    code = first.process.returncode
    if code < 0:
        raise RuntimeError(
            f"process {first.rank} of {ranks} was killed by {signal.Signals(-code).name}, and the others were ended; "
            f"{goes_on}"
        )
    heard = set(started[0].said)
    for line in first.said:
        if line not in heard:
            print(f"process {first.rank}: {line.rstrip()}", file=sys.stderr)
    return int(code)


def _ended(started: Sequence[Rank]) -> Rank | None:
    """Wait for all; the first that failed, when one has, and then not much longer for the others."""
    first: Rank | None = None
    until = float("inf")
    while True:
        codes = [each.process.poll() for each in started]
        if first is None and any(codes):
            # Of those that ended in the same moment one that was killed is the cause.
            first = min((each for each, code in zip(started, codes, strict=True) if code), key=_returned)
            until = time.monotonic() + GRACE
        if None not in codes or time.monotonic() > until:
            return first
        time.sleep(0.05)


def _returned(rank: Rank) -> int:
    return int(rank.process.returncode)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun tells its processes, and a fair share of the processors."""
    told: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0}
    told |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": True, LAUNCHED: 1}
    fair: dict[str, Any] = {"OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // ranks)}
    if any(name == "lo" for _, name in socket.if_nameindex()):
        fair["GLOO_SOCKET_IFNAME"] = "lo"  # a machine's name may lead nowhere
    paths = [str(Path(quantattn.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {"PYTHONPATH": os.pathsep.join(paths)}
    return {**{k: str(v) for k, v in fair.items()}, **os.environ, **{k: str(v) for k, v in (told | given).items()}}


@contextmanager
def _passing_signals_on(started: Sequence[Rank]) -> Iterator[None]:
    def forward(number: int, frame: Any) -> None:
        for each in started:
            if each.process.poll() is None:
                each.process.send_signal(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_launcher() -> None:
    """In a process that `launch` started: be told to stop when that one is gone, and be killed a while after."""
    if os.environ.get(LAUNCHED) != "1":
        return

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
