"""Temperature scaling: a number that makes a classifier's probabilities come true (Guo et al. 2017, 1706.04599)."""

from __future__ import annotations

import torch
from torch import Tensor

from quantattn.batch import IGNORE
from quantattn.nn.heads.decision import ClassificationHead

COLDEST, HOTTEST = 0.05, 20.0
"""Between these the temperature is sought; rows that a model tells apart without a mistake ask for 0."""


def fitted_temperature(prob: Tensor, label: Tensor) -> float:
    """T > 0 with the least mean −ln softmax(z / T)[y], z = ln `prob`.

    In 1 / T the loss is convex, and its derivative, the mean of E_p[z] − z_y, rises: its zero is found by halves.

    Args:
        prob: (Q, K) probabilities.
        label: (Q,) classes, `IGNORE` for none.

    Raises:
        ValueError: no row has a label.
    """
    known = label != IGNORE
    if not bool(known.any()):
        raise ValueError("a temperature is fitted to rows with a label, and there is none")
    z = prob[known].double().clamp(min=torch.finfo(torch.float32).tiny).log()
    own = z.gather(1, label[known].long()[:, None]).squeeze(1)

    def slope(inverse: float) -> float:
        expected = ((z * inverse).softmax(dim=-1) * z).sum(dim=-1)
        return float((expected - own).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return 2 / (low + high)


@torch.no_grad()
def fold_temperature(head: ClassificationHead, temperature: float) -> None:
    """Divide the head's map by T: its probabilities are then those of logits / T, and no format knows of it."""
    head.project.weight.div_(temperature)
    head.project.bias.div_(temperature)
