"""What a run that goes on gets back from its checkpoint, held against what it would write itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Optimizer

from quantattn.nn.folder import told

if TYPE_CHECKING:
    from quantattn.learn.module import Training


class Restored(Callback):
    """Refuses states of callbacks that are of another kind, and takes up what follows from the settings of this run.

    The learning rate is that of this run's schedule, also when the run is now to be longer; and a run that early
    stopping had ended ends at once.

    Attributes:
        done: whether a batch has been trained on since, so that what fails now is not what was read.
    """

    def __init__(self) -> None:
        self.done = False

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Look before the callbacks do.

        Raises:
            ValueError: naming the first value that is of another kind.
        """
        states = checkpoint["callbacks"]
        for each in trainer.callbacks:  # type: ignore[attr-defined]
            if each.state_key in states:
                own, where = each.state_dict(), f"callbacks.{type(each).__name__}"
                require_alike(states[each.state_key], own, where, trainer.ckpt_path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Every callback, optimizer and schedule has its state back by now."""
        if trainer.ckpt_path is None:
            return
        for each in trainer.lr_scheduler_configs:
            schedule: Any = each.scheduler
            rates = [peak * share(schedule.last_epoch) for peak, share in peaks_of(schedule)]
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            schedule._last_lr = rates
        stoppers = trainer.early_stopping_callbacks
        trainer.should_stop = any(each.wait_count >= each.patience for each in stoppers)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *given: Any) -> None:
        """The first one shows that everything was there."""
        self.done = True


def require_optimizer(states: Any, module: Training, device: torch.device, path: Path) -> None:
    """Raise ValueError unless `states` is of one optimizer, with tensors as the module's own would have them.

    What that is shows a step of an optimizer alike on zeros of each shape.

    Args:
        states: what a checkpoint has of optimizers.
        module: what is trained.
        device: where.
        path: of the checkpoint.
    """
    if len(states) != 1:
        raise ValueError(f"{path} holds states of {len(states)} optimizers, expected 1")
    optimizer: Optimizer = module.configure_optimizers()["optimizer"]
    require_alike(states[0], optimizer.state_dict(), "optimizer_states.0", path)
    found: Mapping[Any, Any] = states[0]["state"]
    number, known = 0, dict[tuple[int, torch.Size], Any]()
    for at, group in enumerate(optimizer.param_groups):
        settings = {name: value for name, value in group.items() if name != "params"}
        for parameter in group["params"]:
            if (at, parameter.shape) not in known:
                zeros = torch.nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype, device=device))
                zeros.grad = torch.zeros_like(zeros)
                tried = module.make_optimizer([settings | {"params": [zeros]}])
                tried.step()
                known[at, parameter.shape] = tried.state_dict()["state"].get(0, {})
            require_alike(found.get(number, {}), known[at, parameter.shape], f"optimizer_states.0.{number}", path)
            number += 1


def peaks_of(schedule: Any) -> Iterator[tuple[float, Any]]:
    """The peak of every group's learning rate, and its share as a function of the step."""
    return zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)


def require_alike(found: Any, expected: Any, where: str, path: str | Path | None) -> None:
    """Raise ValueError unless `found` is of the kind of `expected`; anything may stand where nothing would.

    Of mappings what both have is looked at, of tensors the shape and the dtype.

    Args:
        found: what was read.
        expected: what would be written.
        where: its place.
        path: its file.
    """
    if expected is None:
        return
    if isinstance(expected, Tensor):
        same = isinstance(found, Tensor) and (found.shape, found.dtype) == (expected.shape, expected.dtype)
    else:
        kind = Mapping if isinstance(expected, Mapping) else (int, float) if _is_number(expected) else type(expected)
        same = isinstance(found, kind)
    if not same:
        raise ValueError(f"{path} holds {_kind(found)} as {where}, expected {_kind(expected)}")
    for name in expected if isinstance(expected, Mapping) else ():
        if name in found:
            require_alike(found[name], expected[name], f"{where}.{name}", path)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} {tuple(value.shape)}"
    return "a number" if _is_number(value) else f"a {type(value).__name__}"


@contextmanager
def naming_the_checkpoint(resume: Path | None, restored: Restored) -> Iterator[None]:
    """Say in one sentence that a run cannot go on from what it has read, where the reading or the first batch fails.

    Raises:
        ValueError: in place of what Lightning, torch and their like raise, with the name of the file.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, AssertionError, ArithmeticError) as error:
        if resume is None or restored.done:
            raise
        said = told(f"{type(error).__name__}, {error}")
        raise ValueError(f"{resume} is no state that this run can go on from: {said}") from error
