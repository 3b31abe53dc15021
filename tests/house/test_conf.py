"""Every file of the configuration composes and becomes objects; what is wrong is refused by name before any data."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from quantattn.cli.config import compose, conf_folder, explain, flags_first, plain
from quantattn.cli.errors import UsageError
from quantattn.cli.instantiate import instantiate, settings
from quantattn.cli.settings import TrainSettings
from quantattn.cli.sharding import write_shards
from quantattn.cli.train import build

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
GROUPS = ("data", "labels", "splits", "model", "objective", "optimizer", "trainer", "callbacks", "logger")
GROUPS += ("experiment", "paths", "hydra", "tuning", "debug")
OPTIONS = [(group, file.stem) for group in GROUPS for file in sorted((CONF / group).glob("*.yaml"))]
EXPERIMENTS = sorted(file.stem for file in (CONF / "experiment").glob("*.yaml"))
NEEDS = {
    ("data", "berka"): "berka",
    ("data", "prepared_filings"): "filings",
    ("data", "prepared_table"): "sberbank",
    ("data", "sberbank"): "sberbank",
    ("data", "synthetic_filings"): "planted_filings",
    ("data", "table"): "sberbank",
    ("labels", "berka"): "berka",
    ("labels", "outcome"): "sberbank",
    ("labels", "planted"): "planted_filings",
    ("labels", "sberbank"): "sberbank",
    ("splits", "stratified"): "sberbank",
    ("labels", "volatility"): "filings",
    ("objective", "gaussian"): "filings",
    ("objective", "quantile"): "filings",
    ("objective", "regression"): "filings",
    ("objective", "masked_language"): "filings",
}
"""Options that go with an experiment other than the default one."""
ABSENT = {("trainer", name): "needs an NVIDIA GPU" for name in ("gpu", "ddp", "fsdp", "context")}
"""Options that compose and are then refused on a machine without a GPU."""
LOGGERS = ("tensorboard", "mlflow", "wandb")
"""Loggers whose package, of the same name, is an extra."""


PREPARED = ("prepared", "prepared_filings", "prepared_table")
SUBMISSION = (
    "<SEC-HEADER>\n<ACCEPTANCE-DATETIME>20240315101500\nCONFORMED SUBMISSION TYPE:\t10-K\nCENTRAL INDEX KEY:\t1\n"
    "</SEC-HEADER>\n<DOCUMENT>\n<TYPE>10-K\n<TEXT>\nFORM 10-K\n\nAnvils.\n</TEXT>\n</DOCUMENT>\n</SEC-DOCUMENT>\n"
)


def write_some_shards(option: str, folder: Path) -> None:
    """Shards of one entity, for a configuration that reads them."""
    raw = folder.with_name("raw")
    asked = ["data.source.entities=1", "data.source.events_per_entity=64"]
    if option == "prepared_filings":
        raw.write_text(SUBMISSION)
        asked = ["experiment=filings", "labels=none", "objective=masked_language", f"data.path={raw}"]
    elif option == "prepared_table":
        raw.write_text("client,day,amount\n1,2024-01-02,3\n")
        asked = ["experiment=table", f"data.path={raw}", "data.source.id=client", "data.source.time=day"]
        asked.append("data.source.columns={amount: integer}")
    write_shards(settings(TrainSettings, plain(compose("train", asked)), "").data, folder, allow=())


def overrides(group: str, option: str, tmp_path: Path) -> list[str]:
    experiment = option if group == "experiment" else NEEDS.get((group, option))
    found = [] if group == "experiment" or experiment is None else [f"experiment={experiment}"]
    found.append(f"{group}={option}")
    if group == "data" and option in ("filings", "prepared_filings"):
        found += ["labels=none", "objective=masked_language"]
    reads = group == "data" and "path: ???" in (CONF / group / f"{option}.yaml").read_text("utf-8")
    on_filings = ("filings", "filing_volatility", "kogan_volatility")
    if reads or experiment in ("bitstamp", "databento", "fi2010", "lobster", "trades", *on_filings):
        found.append(f"data.path={tmp_path}")
    if experiment in on_filings:
        found += [f"data.prepare.prices={tmp_path}", f"data.prepare.tickers={tmp_path}"]
    if experiment in ("fine_tune", "probe") or (group == "tuning" and option != "full"):
        (tmp_path / "manifest.json").touch()
        found.append(f"tuning.start={tmp_path}")
    if experiment in ("berka", "sberbank"):
        found += [f"data.path={tmp_path}", f"labels.path={tmp_path}"]
    if (group, option) == ("labels", "outcome"):
        found.append("labels.label=group")
    if group == "data" and option in PREPARED:
        write_some_shards(option, tmp_path)
    if (group, option) == ("data", "prepared_table"):
        found.append("labels.id=client")
    if (group, option) == ("experiment", "table"):
        found.append(f"data.path={tmp_path}")
    if option == "table":
        found += ["data.source.id=client", "data.source.time=day", "data.source.columns={amount: integer}"]
    if option in ("realised_volatility", "next_time"):
        found.append("objective=regression")
    if option in ("coles", "next_window"):
        found.append("test=false")
    if option in ("masked_events", "next_event", "coles", "next_window"):
        found += ["labels=none", "data.prepare.layout=windows"]
    if (group, option) == ("data", "made_filings"):
        found += ["labels=none", "objective=masked_language"]
    if (group, option) == ("labels", "none"):
        found += ["objective=next_event", "data.prepare.layout=windows"]
    return found


def test_every_group_of_the_design_is_there() -> None:
    assert {path.name for path in CONF.iterdir() if path.is_dir()} == set(GROUPS)
    assert conf_folder() == CONF


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_is_made(group: str, option: str, tmp_path: Path) -> None:
    given = plain(compose("train", overrides(group, option, tmp_path)))
    if (group, option) in ABSENT:
        with pytest.raises(UsageError, match=ABSENT[group, option]):
            settings(TrainSettings, given, "")
        return
    if group == "logger" and option in LOGGERS and find_spec(option) is None:
        with pytest.raises(UsageError, match=rf"a package that is not here: pip install 'quantattn\[{option}\]'$"):
            build(settings(TrainSettings, given, ""))
        return
    parts = build(settings(TrainSettings, given, ""))
    assert callable(parts["objective"])
    assert callable(parts["optimizer"])


def test_root_configurations_put_self_first() -> None:
    """Otherwise keys of the root would silently beat those of an experiment."""
    for path in CONF.glob("*.yaml"):
        defaults = yaml.safe_load(path.read_text())["defaults"]
        assert defaults[0] == "_self_", path
    for path in CONF.rglob("*/*.yaml"):
        defaults = (yaml.safe_load(path.read_text()) or {}).get("defaults")
        if defaults and not any("override" in str(entry) for entry in defaults):
            assert defaults[-1] == "_self_", path


def test_the_top_keys_are_those_that_users_know() -> None:
    keys = set(plain(compose("train", [])))
    assert {"task_name", "tags", "seed", "ckpt_path", "train", "test", "optimized_metric"} <= keys
    given = plain(compose("train", ["seed=0", "data.max_seq_len=512", "data.max_tokens_per_batch=1024"]))
    assert given["seed"] == 0
    asked = settings(TrainSettings, given, "")
    assert (asked.seed, asked.data.max_seq_len, asked.data.max_tokens_per_batch) == (0, 512, 1024)
    for name in ("precision", "deterministic", "max_steps", "max_epochs"):
        assert name in given["trainer"]
    assert "compile" in given["model"]
    assert given["attention"]["backend"] == "auto"


def test_an_experiment_beats_the_root_and_the_command_line_beats_both() -> None:
    assert plain(compose("train", []))["task_name"] == "synthetic"
    assert plain(compose("train", ["task_name=mine"]))["task_name"] == "mine"


MASKED = ["experiment=filings", "data.path=.", "objective=masked_language", "labels=none"]
SBERBANK = ["experiment=sberbank", "data.path=."]
CLIENTS = [*SBERBANK, "labels.path=."]
FILINGS = ["experiment=filings", "data.path=.", "data.prepare.prices=.", "data.prepare.tickers=."]
WRONG = [
    (["data.max_seqlen=5"], "unknown setting 'data.max_seqlen'; did you mean 'data.max_seq_len'?"),
    (["modle=tiny"], "unknown setting 'modle'; did you mean 'model'?"),
    (
        ["experiment=nope"],
        f"experiment=nope: there is no such experiment; there is {', '.join(EXPERIMENTS)}\n",
    ),
    (["model=tinny"], "model=tinny: there is no such model; did you mean 'tiny'? (base, default, long, small, tiny)"),
    (["train=false"], "train=false evaluates the weights of a checkpoint: give ckpt_path=FILE"),
    (["trainer.max_step=5"], "unknown setting 'trainer.max_step'; did you mean 'trainer.max_steps'?"),
    (["+trainer.speed=5"], "unknown setting trainer.speed"),
    (["+sede=5"], "unknown setting sede; did you mean 'seed'?"),
    (["optimizer.lr=-1"], "optimizer: Invalid learning rate: -1"),
    (["+optimizer.learning_rate=1"], "unknown setting optimizer.learning_rate"),
    (["trainer.max_steps=many"], "trainer.max_steps must be"),
    (["seed=-1"], "seed must be a whole number from 0 to 2^63 - 1, got -1"),
    (["data.source.seed=-1"], "data.source.seed must be a whole number from 0, got -1"),
    (
        ["callbacks.early_stopping.patience=-3"],
        "callbacks.early_stopping.patience must be a whole number from 1, got -3",
    ),
    (["seed"], "'seed' is no setting: write key=value"),
    (["seed=1.5"], "seed must be a whole number, got 1.5"),
    (["model.n_heads=3"], "width must be a multiple of 2 · n_heads"),
    (["splits.test=1.5"], "splits: "),
    (["+data.source.colour=red"], "unknown setting data.source.colour"),
    (["+labels.colour=red"], "unknown setting labels.colour"),
    (["experiment=lobster"], "data.path is missing: give data.path=…"),
    (["experiment=lobster", "data.path=/there/is/nothing"], "data.path=/there/is/nothing: there is no such file"),
    (["objective._target_=os.system"], "objective._target_=os.system is not allowed"),
    (["callbacks.early_stopping._target_=builtins.open"], "builtins.open is not allowed"),
    (["data.source._target_=shutil.copyfile"], "shutil.copyfile is not allowed"),
    (["objective._target_=quantattn.learn.folder.os.getcwd"], "folder.os.getcwd is not allowed: it is posix.getcwd"),
    (["objective._target_=quantattn.nn.objectives"], "objective._target_=quantattn.nn.objectives is no class or"),
    (["optimizer._target_=torch.optim.Adamw"], "optimizer._target_=torch.optim.Adamw cannot be imported: module"),
    (["data.source._target_=quantattn.data.sources.scan_nothing"], "scan_nothing cannot be imported"),
    (["optimizer._partial_=false", "+optimizer.params=[]"], "optimizer"),
    (["+callbacks.x._target_=quantattn.learn.fit.TrainerSettings"], "callbacks.x._target_ must name a Callback of"),
    (["+logger.x._target_=quantattn.nn.Outcome"], "logger.x._target_ must name a Logger of Lightning, got Outcome"),
    (["optimizer.betas=[0.9]"], "optimizer: "),
    (["optimizer=muon", "optimizer.lr=-1"], "optimizer: Invalid learning rate: -1"),
    (["trainer.schedule=sine"], "trainer.schedule must be one of cosine, linear, constant, cooldown, got 'sine'"),
    (["callbacks=ema", "callbacks.weight_average.decay=2"], "callbacks.weight_average: decay must lie in [0, 1)"),
    (["experiment=probe"], "tuning.start is missing: give tuning.start=…"),
    (["tuning.start=/there/is/nothing"], "tuning.start=/there/is/nothing is no model; name the folder of a run"),
    (["tuning.frezee=[encoder]"], "unknown setting 'tuning.frezee'; did you mean 'tuning.freeze'?"),
    (["tuning.layer_decay=0"], "tuning.layer_decay must lie in (0, 1], got 0"),
    (["tuning=prob"], "tuning=prob: there is no such tuning; did you mean 'probe'?"),
    (
        ["optimized_metric=test/los"],
        "optimized_metric=test/los: a run has no such figure; did you mean 'test/log_",
    ),
    (["optimized_metric=test/mcc", "test=false"], "a run with test=false has no such figure; there is seconds, valid"),
    (["data.prepare.fold=1"], "data.prepare.fold: fold 1 of 1: folds are numbered 0 … 0, or -1 … -1 from the end"),
    (["splits=combinatorial_purged", "data.prepare.fold=15"], "data.prepare.fold: fold 15 of 15"),
    (["data.prepare.fold=last"], "data.prepare.fold: fold last of 1"),
    (["trainer.threads=100000"], "trainer.threads must be at most 1024, got 100000"),
    (["trainer.workers=100000"], "trainer.workers must be at most 1024, got 100000"),
    (["=1"], "'=1' is no setting: write key=value"),
    (["+logger.wandb.api_key=it's"], "the value of +logger.wandb.api_key cannot be read: put it in quotes of its own"),
    (["optimizer.lr=[1"], "the value of optimizer.lr cannot be read"),
    (["callbacks=[early_stopping,emma]"], "callbacks=emma: there is no such callbacks; did you mean 'ema'?"),
    (["trainer=ddp", "trainer.accelerator=cpu", "trainer.accumulate=3"], "cannot be shared by 2 processes"),
    (["trainer.devices=2"], "choose trainer=ddp, fsdp or context"),
    (["data.max_tokens_per_batch=10"], "max_tokens_per_batch = 10 must be at least max_seq_len"),
    (["attention.backend=magic"], "attention.backend"),
    (["seed=["], ""),
    (["optimizer.lr=fast"], "optimizer.lr must be a number, got 'fast'"),
    (["optimizer=muon", "optimizer.momentum=high"], "optimizer.momentum must be a number, got 'high'"),
    (["objective.focal=x"], "objective.focal must be a number, got 'x'"),
    (["labels.classes=5"], "labels: classes must be 2 or 3, got 5"),
    (["labels.horizon=0"], "labels: horizon must be a whole number of events, at least 1, got 0"),
    (["labels.rule=median"], "labels: rule must be one of fixed, mean, quantile, spread, got 'median'"),
    (["labels.theta=-1"], "labels: the threshold of a move must be at least 0, got -1.0"),
    (["labels=mid_move", "labels.quantile=2"], "labels: quantile must lie in [0, 1], got 2"),
    (["labels=tlob", "labels.smoothing=100"], "labels: method tlob must have a horizon in events and 0 ≤ smoothing"),
    (["labels=triple_barrier", "labels.stop=0"], "labels: stop must be a positive multiple of σ, or null"),
    (["labels=next_kind", "labels.kinds=[4]"], "labels: two types of event or more must be told apart, got execute"),
    (["labels=realised_volatility"], "over 100 events is a value, so objective=regression is needed"),
    (["objective=regression"], "labels: mid move 0 over 1 events is classes, so objective=outcome is needed"),
    (["splits=purged_k_fold", "splits.n_folds=2"], "splits: there must be a group to test, 1 to validate and one to"),
    (["splits=by_day", "splits.zone=Mars"], "splits: no time zone 'Mars'; expected a name such as"),
    (["splits=by_entity", "splits.embargo=5"], "splits: an embargo must go with time='around'"),
    (["data.prepare.n_bins=1"], "n_bins must lie in 2 … "),
    (["data.prepare.n_bins=many"], "data.prepare and labels: "),
    (["data.prepare.fields=[kind,colour]"], "fields must be some of "),
    (["data.prepare.merges=5"], "merges = 5 joins types of events: say with joint which fields a type has"),
    (["data.prepare.joint=[colour]"], "joint must be some of the token fields kind, side, size, "),
    (
        ["objective=next_event", "data.prepare.joint=[kind]", "data.prepare.merges=9", "data.prepare.layout=windows"],
        "objective=next_event needs data.prepare.merges=0",
    ),
    (["data.prepare.layout=heap"], "layout must be one of each, chunks, windows, document, got 'heap'"),
    (["data.prepare.min_context=0"], "min_context must lie in 1 … max_seq_len = 512, got 0"),
    (["data.prepare.decision_every=0"], "decision_every must be at least 1, got 0"),
    (["data.prepare.calendar=XNOPE"], "XNOPE"),
    (["experiment=filings", "data.path=."], "objective 'volatility' needs prices and tickers"),
    (SBERBANK, "labels: ./age-bin.csv: there is no such file of outcomes"),
    ([*CLIENTS, "labels.after=1d"], "labels: after=DURATION goes with date=COLUMN"),
    ([*CLIENTS, "data.prepare.min_count=0"], "min_count must be at least 1 row, got 0"),
    ([*SBERBANK, "labels=none"], "labels=none goes with objectives that predict the data themselves"),
    ([*SBERBANK, "labels=mid_move"], "a table needs labels=outcome with its file of outcomes"),
    ([*CLIENTS, "data.source.colum=x"], "unknown setting 'data.source.colum'; did you mean 'data.source.columns'?"),
    ([*MASKED, "data.prepare.vocabulary_size=9"], "vocabulary_size must be at least 256, one token a byte; got 9"),
    ([*MASKED, "data.prepare.on_long=cut"], "on_long must be one of error, window, keep, got 'cut'"),
    ([*FILINGS, "labels.horizon=1"], "needs at least 2 returns, got horizon 1, history 1"),
]


@pytest.mark.parametrize(("arguments", "sentence"), WRONG)
def test_what_is_wrong_is_said_in_one_sentence_and_nothing_is_left_behind(
    arguments: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from quantattn.cli import main

    folder = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments, f"paths.output_dir={folder}"])
    assert main("train") == 2
    said = capsys.readouterr()
    assert said.err.startswith("quantattn train: ")
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert not list(tmp_path.iterdir())


def test_an_empty_output_dir_is_not_taken_for_the_folder_one_stands_in() -> None:
    with pytest.raises(UsageError, match=r"paths\.output_dir must name a folder"):
        settings(TrainSettings, plain(compose("train", ["paths.output_dir="])), "")


def test_the_user_may_allow_targets() -> None:
    node = {"_target_": "fractions.Fraction", "numerator": 3}
    with pytest.raises(UsageError, match="not allowed"):
        instantiate(node, "thing")
    assert instantiate(node, "thing", ("fractions.",)) == 3
    nested = {"_target_": "quantattn.nn.Outcome", "pooling": {"_target_": "os.getcwd"}}
    with pytest.raises(UsageError, match=r"thing\.pooling\._target_=os.getcwd is not allowed"):
        instantiate(nested, "thing")


def test_flags_may_stand_anywhere_among_overrides() -> None:
    assert flags_first(["model=small", "-m", "seed=1,2"]) == ["-m", "model=small", "seed=1,2"]
    assert flags_first(["seed=1", "--cfg", "job"]) == ["--cfg", "job", "seed=1"]
    with pytest.raises(UsageError, match="loads a pickle"):
        flags_first(["--experimental-rerun=config.pickle"])


def test_explanations_name_the_nearest_key() -> None:
    error = Exception("Could not override 'trainer.max_stepz'.\nTo append to your config use +trainer.max_stepz=5")
    assert explain("train", error, ["trainer.max_stepz=5"]).endswith("did you mean 'trainer.max_steps'?")


def test_output_dir_is_exactly_the_run_folder(tmp_path: Path) -> None:
    given = compose("train", [f"paths.output_dir={tmp_path / 'here'}"])
    assert plain(given)["paths"]["output_dir"] == str(tmp_path / "here")
    default = plain(compose("train", []))["paths"]["output_dir"]
    assert default.startswith("runs/synthetic/2")
