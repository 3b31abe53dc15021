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
from quantattn.data.shards import PARSED, Written, pieces_of, prepare_shards, read_plan
from quantattn.data.shards.cut import Cutting, Period
from quantattn.data.shards.prepare import Watch
from quantattn.data.sources import Source
from quantattn.learn.secrets import redact

ELSEWHERE = ("set_aside", "store", "workers")
"""Settings of sources that change nothing in the table."""
PREPARED = {"market": "prepared", "filings": "prepared_filings", "table": "prepared_table"}
"""Kind of data → the configuration that trains on its shards."""
TRAINING = ("kind", "max_seq_len", "max_tokens_per_batch", "prepare")
"""Settings of data that are kept with the shards, so that training on them is training on the source."""


@dataclass(frozen=True)
class ShardSettings:
    """Where shards end.

    Attributes:
        period: "day", "month", "year" or "none"; None is a year for bars and filings, runs of entities for a table,
            else a day.
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
        UsageError: settings or data that have no shards.
        ValueError: see `prepare_shards`.
    """
    cut = cut or ShardSettings()
    _require_shardable(data, cut, entities)
    calendar = data.prepare.get("calendar")
    zone = cut.zone or ("UTC" if calendar is None else exchange_zone(calendar))
    own = {name: value for name, value in data.source.items() if name != "_target_"}
    store = {"store": str(folder / PARSED)} if data.kind == "filings" and own.get("store") is None else {}

    def read(changes: Mapping[str, Any]) -> Source:
        made = instantiate({**data.source, **store, **changes}, "data.source", allow)
        source: Source = made if isinstance(made, Source) else made.source()
        return source

    kept = redact({name: value for name, value in data.source.items() if name not in ELSEWHERE})
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


def _require_shardable(data: DataSettings, cut: ShardSettings, entities: Sequence[str] | None) -> None:
    """Refuse what shards cannot hold.

    Raises:
        UsageError: naming the setting.
    """
    if data.kind == "table":
        if entities is not None:
            raise UsageError("entities: shards of a table are runs of entities that one process writes; leave it null")
        if cut.period not in (None, "none"):
            raise UsageError(f"cut.period={cut.period}: shards of a table are runs of whole entities; leave it null")
    if data.kind == "filings":
        if "path" not in data.source:
            raise UsageError("made filings know more than their table, the best possible figures; they have no shards")
        if data.source.get("facts"):
            raise UsageError("data.source.facts=true: shards hold filings, and no table of their facts; leave it false")


def training_setting(path: str, name: str) -> Any:
    """The resolver behind `conf/data/prepared.yaml`: a setting with which the source of these shards is trained on.

    Raises:
        UsageError: the folder is none of shards, or keeps no such setting.
    """
    folder = Path(path)
    if not folder.exists():
        raise UsageError(f"data.path={path}: there is no such file or folder")
    try:
        plan = read_plan(folder)
    except ValueError as error:
        raise UsageError(f"data.path={path}: {error}") from error
    found: Any = plan["training"]
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise UsageError(f"data.path={path} keeps no setting {name}; {_remedy(name, plan['training'].get('kind'))}")
        found = found[part]
    return found


def _remedy(name: str, kind: str | None) -> str:
    """What may help where a folder of shards keeps no such setting."""
    other = "" if kind is None else f", or data={PREPARED[kind]}, since it holds {kind} data"
    return f"give data.{name}=…{other}"
