"""What is done with trained weights before they are kept: adapters, temperature, the width of sets and intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quantattn.data.prepared import Prepared
from quantattn.evaluate import IGNORE
from quantattn.evaluate.conformal import Conformal, too_few
from quantattn.learn.predict import predict
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Model
from quantattn.nn.adapters import merge_adapters
from quantattn.nn.heads.decision import ClassificationHead
from quantattn.nn.temperature import fitted_temperature, fold_temperature

if TYPE_CHECKING:
    from quantattn.learn.fit import Fitted
    from quantattn.learn.run import RunSettings


def completed(
    model: Model, prepared: Prepared, settings: RunSettings, fitted: Fitted | None, folder: Path
) -> dict[str, float]:
    """Merge adapters, and scale the temperature of classes on the validation rows if asked; figures of the training."""
    merge_adapters(model)
    figures: dict[str, float] = {}
    if fitted is not None:
        figures = {"valid/loss": fitted.best_value, "seconds": fitted.seconds, **of_validation(folder, fitted)}
    for name, head in model.decision_heads().items() if settings.calibrate else ():
        if isinstance(head, ClassificationHead):
            device, half = placed(settings.trainer)
            prob = predict(model, prepared.valid, settings.max_tokens, device=device, autocast=half)["prob"]
            figures["temperature"] = fitted_temperature(prob, torch.tensor(prepared.valid.decisions.targets[name]))
            fold_temperature(head, figures["temperature"])
    return figures


def require_rows(prepared: Prepared, level: float) -> None:
    """Raise ValueError when sets or intervals of this level cannot be calibrated, before a model is trained in vain."""
    for values in list(prepared.valid.decisions.targets.values())[:1]:
        y = values.astype(float)
        known = int((y == y).sum() if values.dtype.kind == "f" else (values != IGNORE).sum())
        if known < level / (1 - level) - 1e-9:
            raise ValueError(too_few(level, known))


def calibrated(model: Model, prepared: Prepared, settings: RunSettings) -> RunSettings:
    """The settings with how wide the model's sets or intervals are to be among what is kept with it, if asked."""
    if settings.conformal is None:
        return settings
    target, (device, half) = next(iter(model.decision_heads())), placed(settings.trainer)
    said = predict(model, prepared.valid, settings.max_tokens, device=device, autocast=half)
    found = Conformal.fitted(arrays(said), prepared.valid.decisions.targets[target], settings.conformal)
    return replace(settings, card={**settings.card, "conformal": found.as_dict()})


def arrays(said: Mapping[str, Tensor]) -> dict[str, Any]:
    """The scores as numpy arrays."""
    return {name: values.numpy() for name, values in said.items()}


def of_validation(folder: Path, fitted: Fitted) -> dict[str, float]:
    """What the history has of the validation that chose the weights, beside the loss: `valid/accuracy` and the like."""
    from quantattn.learn.history import read_rows  # and Lightning, which scores and ensembles do without

    rows = read_rows(folder / "metrics.csv") if fitted.best_step >= 0 else []
    found = {name: value for step, name, value in rows if step == fitted.best_step and name.startswith("valid/")}
    return {name: value for name, value in found.items() if name != "valid/loss"}


def placed(trainer: TrainerSettings) -> tuple[str, torch.dtype | None]:
    """Where a trained model runs, and the dtype of its autocast."""
    device = "cuda" if trainer.accelerator == "gpu" else "cpu"
    return device, torch.bfloat16 if trainer.precision.startswith("bf16") else None
