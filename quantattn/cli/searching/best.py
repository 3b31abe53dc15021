"""The best trial of a study, evaluated on the test rows: the only look that a sweep takes at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omegaconf import OmegaConf
from rich.console import Console

from quantattn.cli.config import plain, run_application
from quantattn.cli.errors import DONE
from quantattn.cli.searching.space import as_override
from quantattn.cli.searching.study import BEST, counted
from quantattn.cli.searching.worker import Search
from quantattn.cli.train import train

if TYPE_CHECKING:
    from optuna import Study


def evaluate_best(study: Study, like: Search, console: Console) -> int:
    """Evaluate the trial with the best figure in the folder `best`, told how many trials it was chosen from.

    Nothing is done where that has been done.
    """
    best, trials = study.best_trial, len(counted(study))
    folder, of = like.root / BEST, like.root / str(best.number)
    values = {name: str(value) for name, value in best.user_attrs["values"].items()}
    shown = " ".join(f"{name}={value}" for name, value in values.items())
    what = f"{trials} {'trial' if trials == 1 else 'trials'}"
    console.print(f"best of {what} by {like.metric}: {best.value:.5g}, trial {best.number}: {shown}")
    if _done(like, of, trials):
        console.print(f"report {folder / 'report.html'}")
        return DONE
    if not (of / "checkpoints").is_dir():
        console.print(f"its weights are not here: the same command evaluates it where {of} is")
        return DONE
    own = (f"ckpt_path={as_override(str(of))}", f"trials={trials}", f"paths.output_dir={as_override(str(folder))}")
    return run_application("train", like.arguments(values, "train=false", "test=true", *own), train)


def _done(like: Search, of: object, trials: int) -> bool:
    written = like.root / BEST / "config.yaml"
    if not written.is_file() or not (like.root / BEST / "report.html").is_file():
        return False
    before = plain(OmegaConf.load(written))
    return bool(before.get("ckpt_path") == str(of) and before.get("trials") == trials)
