"""Settings of data → a folder of shards, for `quantattn prepare` and for a run that reads its source through one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra

from quantattn.cli.errors import UsageError
from quantattn.cli.instantiate import instantiate
from quantattn.cli.settings import DataSettings
from quantattn.data.market.sessions import exchange_zone
from quantattn.data.shards import Written, pieces_of, prepare_shards, read_plan
from quantattn.data.shards.cut import Cutting, Period
from quantattn.data.shards.prepare import Watch
from quantattn.data.sources import Source
from quantattn.learn.folder import redact

TRAINING = ("max_seq_len", "max_tokens_per_batch", "prepare")
"""Settings of data that are kept with the shards, so that training on them is training on the source."""


@dataclass(frozen=True)
class ShardSettings:
    """Where shards end.

    Attributes:
        period: "day", "month" or "year"; None is a year for bars, else a day.
        zone: time zone of the days; None is that of the exchange whose calendar the preparation names, or UTC.
        rows: the most rows of a shard.
    """

    period: Period | None = None
    zone: str | None = None
    rows: int = 500_000

    def __post_init__(self) -> None:
        Cutting(self.period or "day", self.zone or "UTC", self.rows)


def write_shards(
    data: DataSettings,
    folder: Path,
    *,
    allow: Sequence[str],
    cut: ShardSettings | None = None,
    entities: Sequence[str] | None = None,
    watch: Watch | None = None,
) -> Written:
    """Write what is lacking of the source of `data` into the folder.

    Raises:
        UsageError: data of a kind that has no shards.
        ValueError: see `prepare_shards`.
    """
    if data.kind != "market":
        raise UsageError(
            f"shards hold events of markets; {data.kind} is not part of this version: train and score read the raw "
            "files themselves"
        )
    cut = cut or ShardSettings()
    calendar = data.prepare.get("calendar")
    zone = cut.zone or ("UTC" if calendar is None else exchange_zone(calendar))
    own = {name: value for name, value in data.source.items() if name != "_target_"}

    def read(changes: Mapping[str, Any]) -> Source:
        made = instantiate({**data.source, **changes}, "data.source", allow)
        source: Source = made if isinstance(made, Source) else made.source()
        return source

    kept = redact({name: value for name, value in data.source.items() if name != "set_aside"})
    return prepare_shards(
        pieces_of(hydra.utils.get_object(str(data.source["_target_"])), own, read),
        folder,
        asked=kept,
        training=redact({name: getattr(data, name) for name in TRAINING}),
        entities=entities,
        period=cut.period,
        zone=zone,
        rows=cut.rows,
        watch=watch,
    )


def training_setting(path: str, name: str) -> Any:
    """The resolver behind `conf/data/prepared.yaml`: a setting with which the source of these shards is trained on.

    Raises:
        UsageError: the folder is none of shards, or keeps no such setting.
    """
    folder = Path(path)
    if not folder.exists():
        raise UsageError(f"data.path={path}: there is no such file or folder")
    try:
        found: Any = read_plan(folder)["training"]
    except ValueError as error:
        raise UsageError(f"data.path={path}: {error}") from error
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise UsageError(f"data.path={path} keeps no setting {name}; give data.{name}=…")
        found = found[part]
    return found
