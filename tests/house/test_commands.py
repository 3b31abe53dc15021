"""Every command by its name, as a script and as a process: what `--help` says, and that it says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from quantattn.cli.dispatch import COMMANDS, main, usage

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_takes(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["quantattn", command, "--help"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert (left.value.code or 0, said.err) == (0, "")
    root = CONF / f"{command}.yaml"
    if root.is_file():
        own = set(yaml.safe_load(root.read_text("utf-8"))) - {"defaults", "hydra"}
        assert own <= {line.partition(":")[0] for line in said.out.splitlines()}
    else:
        assert said.out.startswith(f"usage: quantattn {command} ")


SCRIPT = '''"""The same as `quantattn {0}`."""

from quantattn.cli import main

if __name__ == "__main__":
    raise SystemExit(main("{0}"))
'''


def test_root_scripts_are_commands() -> None:
    for command in ("train", "score", "sweep", "bench"):
        assert (ROOT / f"{command}.py").read_text("utf-8") == SCRIPT.format(command)


@pytest.mark.parametrize("start", [["train.py"], ["-m", "quantattn", "doctor"]])
def test_processes_answer_without_a_traceback(start: list[str]) -> None:
    done = subprocess.run([sys.executable, *start, "--help"], capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_lists_what_there_is_and_nothing_else() -> None:
    listed = [line.split()[0] for line in usage().split("\n") if line.startswith("  ")]
    known = ["train", "sweep", "score", "export", "ensemble", "evaluate", "report", "bench"]
    known += ["validate", "prepare", "changes", "doctor"]
    assert listed == list(COMMANDS) == known
