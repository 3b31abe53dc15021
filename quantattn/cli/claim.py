"""Whose a run folder is: which checkpoint a run goes on from, and that it goes on with the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from quantattn.cli.config import plain
from quantattn.cli.errors import UsageError
from quantattn.cli.settings import TrainSettings

SAME = ("labels", "splits", "model", "objective", "optimizer", "tuning", "seed")
"""Groups of settings that a run keeps when it goes on; in its own folder those of the data too."""


def claim_folder(folder: Path, asked: TrainSettings, given: Mapping[str, Any]) -> Path | None:
    """Write the configuration into the run folder, and say which checkpoint the run goes on from."""
    from quantattn.learn.checkpoint import BEST, require_resumable
    from quantattn.learn.files import write_text
    from quantattn.learn.folder import claim
    from quantattn.learn.secrets import redact

    resume = claim(folder, asked.ckpt_path)
    if resume is None and not asked.train:
        raise UsageError("train=false evaluates the weights of a checkpoint: give ckpt_path=FILE")
    if resume is not None and asked.train:
        require_resumable(resume)
    elif resume is not None and (asked.ckpt_path == "auto" or Path(str(asked.ckpt_path)).is_dir()):
        # Of a run it is the best weights that are evaluated, of a file those that it holds.
        best = resume.with_name(BEST)
        resume = best if best.is_file() else resume
    written = folder / "config.yaml"
    now = redact(dict(given))
    if resume is not None:
        begun = resume.parent.parent
        if begun == folder:
            check_same(begun, ("data", *SAME), now)
        elif asked.train:
            check_same(begun, SAME, now)
    write_text(written, OmegaConf.to_yaml(OmegaConf.create(now)))
    return resume


def check_same(begun: Path, groups: tuple[str, ...], now: Mapping[str, Any]) -> None:
    """Raise UsageError when the run in `begun` was given something else in one of these groups of settings."""
    written = begun / "config.yaml"
    if not written.is_file():
        return
    before = plain(OmegaConf.load(written))
    for part in groups:
        if before.get(part, now[part]) != now[part]:  # a group may be newer than the run
            raise UsageError(
                f"{begun} was begun with another {changed_key(part, before.get(part), now[part])}; go on with the same "
                "settings, or begin a run in another folder with paths.output_dir"
            )


def changed_key(name: str, before: Any, now: Any) -> str:
    """The first setting that differs, with both values."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                return changed_key(f"{name}.{key}", before.get(key), now.get(key))
    return f"{name} ({before!r}, now {now!r})"
