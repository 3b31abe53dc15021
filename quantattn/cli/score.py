"""`quantattn score`: a trained model over tables, one row a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from quantattn.cli import terminal
from quantattn.cli.certify import expired
from quantattn.cli.config import plain
from quantattn.cli.errors import DONE, STOPPED, UsageError
from quantattn.cli.instantiate import settings
from quantattn.cli.preparation import check_source, decisions_of
from quantattn.cli.score_engine import PRECISIONS, EngineSettings, carry_out, reading, sizes
from quantattn.cli.score_incremental import check_incremental, keep_states, only_new
from quantattn.cli.score_outputs import OutputSettings, check_unit, chooser, output_of, policy_of
from quantattn.cli.settings import DataSettings, PathSettings
from quantattn.data.filed import Room
from quantattn.data.remote import fetch, is_remote
from quantattn.nn import Artefact, load_model
from quantattn.score import Work, check_place, make_plan
from quantattn.score.crew import Recipe
from quantattn.score.plan import shard_cost, shard_size
from quantattn.score.share import scratch
from quantattn.score.sink import place_of
from quantattn.score.worker import repeating


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(OutputSettings, EngineSettings):
    """Everything that `score.yaml` holds.

    Attributes:
        model_folder: folder that a run wrote; `model=FOLDER` on the command line.
        paths: not used; output goes to `out`.
        out: folder of the Delta table.
        max_tokens_per_batch: budget of tokens a batch; None: 131,072 on a GPU, 32,768 on a CPU.
        shard_decisions: decisions written in one transaction; None: see `shard_size` and `shard_cost`.
        attention: which implementation computes attention; None is the model's own.
        items: of filings, names of the items that are read; None: those that the model was trained on, or all.
        allow_targets: more prefixes that a `_target_` may have.
    """

    model_folder: str
    paths: PathSettings
    out: str
    max_tokens_per_batch: int | None
    shard_decisions: int | None
    attention: Mapping[str, Any]
    items: tuple[Any, ...] | None = None
    task_name: str = "score"
    allow_targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, key in (("model_folder", "model"), ("out", "out")):
            if not getattr(self, name).strip():
                raise ValueError(f"{key} must name a folder, got nothing")
        for name in ("max_tokens_per_batch", "shard_decisions"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise ValueError(f"{name} must be at least 1, got {given}")

    @property
    def tokens(self) -> int:
        """The budget of a batch: on a GPU so large that it computes longer than the host needs for the next one."""
        return self.max_tokens_per_batch or (131_072 if self.devices()[0].startswith("cuda") else 32_768)


def score_tables(config: DictConfig) -> int:
    """One scoring job, on data that are fetched first when they lie in an object store; its exit code."""
    path = config.data.get("path")
    with scratch() as folder:
        fetched, work = folder / "fetched", folder / "work"
        if path is not None and is_remote(str(path)):
            fetched.mkdir()
            try:
                config.data.path = str(fetch(str(path), fetched))
            except ValueError as error:
                raise UsageError(str(error)) from error
        work.mkdir()
        return _score(config, work)


def _score(config: DictConfig, folder: Path) -> int:
    asked = settings(ScoreSettings, plain(config), "")
    check_source(asked.data.source, asked.data.path, asked.allow_targets)
    check_unit(asked)
    by_batch = asked.mode == "batch"
    repeating(asked.mode != "off")
    if not Path(asked.model_folder).exists():
        raise UsageError(f"model={asked.model_folder}: there is no such folder")
    out_place = place_of(asked.out)
    check_place(out_place)
    model = load_model(asked.model_folder, attention_backend=asked.attention.get("backend"))
    artefact = model.artefact
    assert artefact is not None
    trained = trained_data(asked, artefact)
    output = output_of(asked, model)
    check_incremental(asked, asked, model, output)
    out = terminal.console()
    if (why := expired(artefact.extra)) is not None:
        out.print(f"note: the model's attention is not certified for this installation: {why}", soft_wrap=True)
    work = decisions_of(
        asked.data.source,
        trained,
        artefact,
        asked.allow_targets,
        chosen_of(asked),
        chooser(asked, model),
        room=(room := Room(folder)),
        progress=reading(out),
    )
    # In the batch-invariant mode the budget of tokens decides no bit.
    budget = {} if by_batch else {"max_tokens": asked.tokens}
    policy = {**asked.bits, **budget, **policy_of(asked, output)}
    work, stream = only_new(asked, work, model, policy, out)
    if stream is not None and not len(work.as_of):
        return DONE
    work = _with_constants(asked, work, artefact, room)
    size, most = _shard(asked, work)
    plan = make_plan(work, artefact.sha, size, policy, sizes(asked.data.path, work.hashes), most)
    for note in work.notes:
        out.print(f"left out: {note}", soft_wrap=True)
    decisions = f"{len(work.sequences.decisions):,} decisions in {len(plan.shards)} shards"
    out.print(f"model {artefact.sha[:12]}, plan {plan.sha[:12]}: {decisions}")
    given = {
        "work": work,
        "plan": plan,
        "max_tokens": asked.tokens,
        "autocast": PRECISIONS[asked.precision],
        "deterministic": "batch" if by_batch else True,
        "output": output,
        "stream": stream,
    }
    recipe = Recipe(asked.model_folder, asked.attention.get("backend"), given, out_place, asked.threads, asked.on_bad)
    if not carry_out(asked, recipe, model, folder, out):
        out.print(f"stopped; the same command goes on in {asked.out}")
        return STOPPED
    keep_states(asked, work, plan, model, policy, out)
    some = "" if asked.shards is None else f" of shards {asked.shards} of 0:{len(plan.shards)}"
    out.print(f"{asked.output}{some} in {asked.out}")
    return DONE


def _shard(asked: ScoreSettings, work: Work) -> tuple[int, int | None]:
    """How many decisions a shard has at least, and what it may cost at most."""
    if asked.shard_decisions is not None:
        return asked.shard_decisions, None
    return shard_size(len(work.sequences.decisions)), shard_cost(asked.devices()[0])


def _with_constants(asked: ScoreSettings, work: Work, artefact: Artefact, room: Room) -> Work:
    """With columns that are the same in all rows, for who reads the table.

    Of how many trials the model is the best; of embeddings whether the table is whole, and from when on it may be used.
    """
    rows = len(work.as_of)
    constant = {"trials": artefact.extra.get("trials")}
    if asked.output == "embeddings":
        constant = {"rows": rows, "seen_until": artefact.extra.get("seen_until")}
    columns = {name: room.constant(value, rows) for name, value in constant.items() if isinstance(value, int)}
    return replace(work, described={**work.described, **columns})


def trained_data(asked: ScoreSettings, artefact: Artefact) -> Mapping[str, Any]:
    """The settings of data that stand in the model's folder.

    Raises:
        UsageError: there are none, or they are of another kind than those of the command.
    """
    trained = artefact.extra.get("data")
    if not isinstance(trained, Mapping):
        raise UsageError(
            f"model={asked.model_folder} does not say how its data were prepared; it was not written by a run"
        )
    try:
        settings(DataSettings, trained, "data")
    except UsageError as error:
        raise UsageError(f"model={asked.model_folder} does not say how its data were prepared: {error}") from error
    if trained["kind"] != asked.data.kind:
        raise UsageError(f"model={asked.model_folder} was trained on {trained['kind']}, but data is {asked.data.kind}")
    return trained


def chosen_of(asked: ScoreSettings) -> dict[str, Any]:
    """What the command says of filings beside the settings of training.

    Raises:
        UsageError: it says so of data that are no filings.
    """
    chosen = {"unit": asked.unit} if asked.unit == "item" else {}
    items = {} if asked.items is None else {"items": [str(name) for name in asked.items]}
    if items and asked.data.kind != "filings":
        raise UsageError(f"items are of filings, but data is {asked.data.kind}")
    return chosen | items
