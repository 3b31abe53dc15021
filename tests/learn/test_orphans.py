"""Processes that make batches do not outlive the one that they make them for, even where they had not begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve()
SCRIPT = """
import multiprocessing, os, signal, sys, threading, time
from pathlib import Path

def main():
    from toy import sequences
    from quantattn.data.mapped import write_sequences
    from quantattn.learn.datamodule import PlannedLoader

    folder = Path(sys.argv[1])
    loader = PlannedLoader(write_sequences(sequences(12), folder), 20, seed=1, shuffle=True, total=99, workers=1)
    threading.Thread(target=next, args=(iter(loader),), daemon=True).start()
    while not multiprocessing.active_children():
        time.sleep(0.001)
    (folder / "worker").write_text(str(multiprocessing.active_children()[0].pid))
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    main()
"""


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_worker_ends_soon_after_a_kill_of_its_parent(tmp_path: Path) -> None:
    """Also one that had not begun yet: torch's own watch would let it stay for ever."""
    (tmp_path / "parent.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[2]}:{HERE.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "parent.py"), str(tmp_path / "sequences")]
    assert subprocess.run(command, env=environment, timeout=600).returncode == -signal.SIGKILL
    worker, until = int((tmp_path / "sequences" / "worker").read_text()), time.monotonic() + 120
    while runs(worker) and time.monotonic() < until:
        time.sleep(0.02)
    if runs(worker):
        os.kill(worker, signal.SIGKILL)
        pytest.fail(f"process {worker} has outlived its parent")
