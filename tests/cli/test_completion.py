"""Completion as a shell does it: a real bash, the script that is installed, and what it offers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quantattn.cli.completion import completion
from quantattn.cli.dispatch import COMMANDS
from quantattn.cli.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def offered(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *asked: str) -> list[str]:
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    assert completion([*asked, "-sc", "query=bash"], tuple(COMMANDS)) == 0
    return capsys.readouterr().out.split()


def test_commands_then_settings_then_choices_are_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert offered("quantattn ", monkeypatch, capsys) == list(COMMANDS)
    assert offered("quantattn train optimizer=", monkeypatch, capsys) == ["optimizer=adamw", "optimizer=muon"]
    assert offered("quantattn train seed=3 trainer.max_s", monkeypatch, capsys) == ["trainer.max_steps="]
    assert offered("python train.py debug=", monkeypatch, capsys, "train") == [
        f"debug={file.stem}" for file in sorted((ROOT / "conf" / "debug").glob("*.yaml"))
    ]
    assert offered("quantattn evaluate ", monkeypatch, capsys) == [], "which takes files and flags"
    with pytest.raises(UsageError, match="there is completion for bash and zsh"):
        completion(["-sc", "install=fish"], tuple(COMMANDS))


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_real_bash_completes_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert completion(["--shell-completion", "install=bash"], tuple(COMMANDS)) == 0
    installed = capsys.readouterr().out
    script = tmp_path / "quantattn"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m quantattn "$@"\n')
    script.chmod(0o755)
    line = "quantattn train optimizer.weight_d"
    asks = f"""
        export PATH="{tmp_path}:$PATH" PYTHONPATH="{ROOT}"
        {installed}
        COMP_LINE='{line}' COMP_POINT={len(line)} COMP_CWORD=2 COMP_WORDS=({line})
        $(complete -p quantattn | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "--norc", "-c", asks], capture_output=True, text=True, timeout=600)
    assert done.stdout.split() == ["optimizer.weight_decay="], done.stderr
