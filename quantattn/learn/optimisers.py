"""What an optimizer is given and how its learning rate goes over a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

SHAPES = ("cosine", "linear", "constant", "cooldown")


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a share of its peak: a linear warm-up, then one of four ways down to `floor`.

        cosine      half a cosine
        linear      a line
        constant    no way down
        cooldown    the peak, then a line over the last fifth of the steps (Hägele et al. 2024, arXiv 2405.18392)

    Args:
        total_steps: optimizer steps of the run.
        warmup: share of them in [0, 1] that rise.
        floor: share of the peak at the end, in [0, 1].
        shape: one of `SHAPES`.
    """

    total_steps: int
    warmup: float = 0.05
    floor: float = 0.05
    shape: str = "cosine"

    def __post_init__(self) -> None:
        if self.total_steps < 1:
            raise ValueError(f"a run needs at least one step, got {self.total_steps}")
        for name in ("warmup", "floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.shape not in SHAPES:
            raise ValueError(f"schedule must be one of {', '.join(SHAPES)}, got {self.shape!r}")

    def __call__(self, step: int) -> float:
        """The share at optimizer step `step`, counted from 0."""
        rising = round(self.warmup * self.total_steps)
        if step < rising:
            return (step + 1) / rising
        progress = min((step - rising) / max(self.total_steps - rising, 1), 1.0)
        left = {
            "cosine": (1 + math.cos(math.pi * progress)) / 2,
            "linear": 1 - progress,
            "constant": 1.0,
            "cooldown": min(1.0, (1 - progress) * 5),
        }[self.shape]
        return self.floor + (1 - self.floor) * left


def parameter_groups(
    module: nn.Module, depth: Callable[[str], int] = lambda name: 0, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """What is trained, in groups: matrices of blocks, other weight matrices, and embeddings, norms and vectors.

    The last kind has weight decay 0, and only the first has `hidden` true: what Muon is for. Each kind is a group for
    every layer whose learning rate differs, `lr_scale` = layer_decay^depth of the peak.

    Args:
        module: whose parameters.
        depth: name of a parameter → how many layers lie above it.
        layer_decay: in (0, 1].
    """
    embedded = {id(p) for m in module.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    groups: dict[tuple[bool, bool, float], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        inside = name.split(".")
        decays = parameter.ndim >= 2 and id(parameter) not in embedded and "embedding" not in inside
        hidden = decays and parameter.ndim == 2 and "blocks" in inside
        scale = layer_decay ** depth(name)
        key = (not decays, not hidden, -scale)
        group = {"params": [], "hidden": hidden, "lr_scale": scale} | ({} if decays else {"weight_decay": 0.0})
        groups.setdefault(key, group)["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


class MuonAdamW(Optimizer):
    """Muon for the matrices of blocks, AdamW for everything else; both are torch's own.

    Muon orthogonalises the momentum of a matrix (Jordan et al. 2024); its step is scaled so that one learning rate does
    for both (Liu et al. 2025, arXiv 2502.16982: 0.2 · √max(rows, columns)).

    Args:
        params: groups of parameters; `hidden` is true for those that Muon takes, which are matrices.
        lr: learning rate of both.
        weight_decay: decoupled, of both, where a group does not say otherwise.
        momentum: Muon's.
        betas, eps: AdamW's.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
    ) -> None:
        given = [dict(group) for group in params]
        hidden = [group for group in given if group.get("hidden")]
        others = [group for group in given if not group.get("hidden")]
        self._parts: list[Optimizer] = []
        if hidden:
            muon = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "adjust_lr_fn": "match_rms_adamw"}
            self._parts.append(Muon(hidden, **muon))  # type: ignore[arg-type]
        if others:
            self._parts.append(AdamW(others, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts see the groups and the state of the whole, which is what is saved and scheduled."""
        groups = iter(self.param_groups)
        for part in self._parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up a state; torch calls it when one is loaded, with groups and states of its own."""
        super().__setstate__(state)
        self._share()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both; what the closure gives, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """() the Euclidean norm of all gradients together, before any clipping; 0 when there are none."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
