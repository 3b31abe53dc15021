"""How a run is trained: settings that are checked before anything is read, and before Lightning is imported."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantattn.learn.optimisers import SHAPES

SHARING = ("ddp", "fsdp")
"""Strategies whose ranks share the batches of a step."""
STRATEGIES = ("single", *SHARING, "context")
PRECISIONS = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Precision, as Lightning spells it → dtype in which attention is computed; parameters are float32 in all of them."""
MOST_THREADS = 1024
_AT_LEAST_1 = (
    *("devices", "nodes", "max_steps", "max_epochs"),
    *("validate_every", "accumulate", "log_every", "threads", "fsdp_blocks"),
)


@dataclass(frozen=True)
class TrainerSettings:
    """How a run is trained.

    Attributes:
        accelerator: "cpu" or "gpu".
        devices: how many of them on each machine, with a process each.
        nodes: machines; more than one under torchrun or srun.
        strategy: "single", or what several processes share: "ddp" a step's batches, "fsdp" parameters and optimizer
            states too, "context" the rows of every batch.
        precision: a key of `PRECISIONS`; 16-mixed is for GPUs.
        deterministic: refuse operations whose result differs from run to run.
        max_steps: optimizer steps; None leaves it to max_epochs.
        max_epochs: passes over the training set; None leaves it to max_steps. The smaller of the two wins.
        validate_every: optimizer steps between validations.
        checkpoint_every: optimizer steps between writes of the last state, beside those after validations; 0 for none.
        accumulate: batches an optimizer step, of all processes; None is one for each that shares them. Losses and order
            are the same however many processes share them.
        gradient_clip: largest norm of the gradient; 0 does not clip.
        warmup: share of the steps over which the learning rate rises.
        lr_floor: share of the peak learning rate at the end.
        schedule: how the learning rate comes down, a key of `quantattn.learn.optimisers.SHAPES`.
        log_every: optimizer steps between rows of the history.
        threads: CPU threads; None leaves torch its choice.
        workers: processes that make training batches ahead; they change no bit.
        one_batch: train on the first batch again and again; it should be learnt by heart.
        fsdp_blocks: blocks of the encoder whose parameters FSDP2 puts together at once; None is as many as have 2²⁵.
    """

    accelerator: str = "cpu"
    devices: int = 1
    nodes: int = 1
    strategy: str = "single"
    precision: str = "32-true"
    deterministic: bool = True
    max_steps: int | None = 1000
    max_epochs: int | None = None
    validate_every: int = 100
    checkpoint_every: int = 0
    accumulate: int | None = 1
    gradient_clip: float = 1.0
    warmup: float = 0.05
    lr_floor: float = 0.05
    schedule: str = "cosine"
    log_every: int = 10
    threads: int | None = None
    workers: int = 0
    one_batch: bool = False
    fsdp_blocks: int | None = None

    def __post_init__(self) -> None:
        if self.accelerator not in ("cpu", "gpu"):
            raise ValueError(f"trainer.accelerator must be cpu or gpu, got {self.accelerator!r}")
        if self.strategy not in STRATEGIES:
            raise ValueError(f"trainer.strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}")
        if self.accelerator == "gpu" and not torch.cuda.is_available():
            raise ValueError("trainer=gpu needs an NVIDIA GPU and a CUDA build of torch, and there is none here")
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("one of trainer.max_steps and trainer.max_epochs must be given")
        for name in _AT_LEAST_1:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"trainer.{name} must be at least 1, got {value}")
        for name in ("checkpoint_every", "gradient_clip", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(f"trainer.{name} must be 0 or more, got {getattr(self, name)}")
        for name in ("threads", "workers"):
            # The system's limit on threads and processes is met by a crash of the whole process.
            if (getattr(self, name) or 0) > MOST_THREADS:
                raise ValueError(f"trainer.{name} must be at most {MOST_THREADS}, got {getattr(self, name)}")
        if self.schedule not in SHAPES:
            raise ValueError(f"trainer.schedule must be one of {', '.join(SHAPES)}, got {self.schedule!r}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.precision == "16-mixed" and self.accelerator == "cpu":
            raise ValueError("trainer.precision=16-mixed needs trainer=gpu: Lightning would take bfloat16 on a CPU")
        if self.one_batch and (self.batches_a_step > 1 or self.max_steps is None):
            raise ValueError("trainer.one_batch=true needs trainer.max_steps and one batch a step, so one process")
        self._check_ranks()

    def _check_ranks(self) -> None:
        asked = f"trainer.devices={self.devices} and trainer.nodes={self.nodes}"
        if self.ranks > 1 and self.strategy == "single":
            raise ValueError(f"{asked} make {self.ranks} processes: choose trainer=ddp, fsdp or context for them")
        if self.accelerator == "gpu" and self.devices > torch.cuda.device_count():
            raise ValueError(f"trainer.devices={self.devices}, but there are {torch.cuda.device_count()} GPUs here")
        if self.batches_a_step % self.sharing:
            raise ValueError(
                f"trainer.accumulate={self.accumulate} batches a step cannot be shared by {self.ranks} processes; "
                f"give a multiple of {self.ranks}"
            )

    @property
    def ranks(self) -> int:
        """Processes of the run."""
        return self.devices * self.nodes

    @property
    def sharing(self) -> int:
        """How many processes share the batches of a step."""
        return self.ranks if self.strategy in SHARING else 1

    @property
    def batches_a_step(self) -> int:
        """Batches an optimizer step, of all processes."""
        return self.sharing if self.accumulate is None else self.accumulate

    @property
    def attention_dtype(self) -> torch.dtype:
        """The dtype in which attention is computed in training."""
        return PRECISIONS[self.precision]
