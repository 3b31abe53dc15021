"""The mean over fields of what codes cost, which every objective that predicts events shares."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from quantattn.nn.heads import EventsHead
from quantattn.nn.objectives.objective import Loss


def mean_nll(head: EventsHead, hidden: Tensor, targets: Mapping[str, Tensor], count: Tensor) -> Loss:
    """The mean over fields of the summed negative log-likelihood, in nats, divided by `count`.

    Logs: loss, nll_<field>, count.
    """
    nll = head.nll(hidden, targets) / count.clamp(min=1)  # (F,)
    loss = nll.mean()
    logs = {f"nll_{name}": nll[i].detach() for i, name in enumerate(head.config.fields)}
    return Loss(loss, {"loss": loss.detach(), **logs, "count": count})
