"""A run folder that somebody has changed gets one sentence from every command that reads it, and runs nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_run import SMALL, call

from quantattn.learn.checkpoint import read_checkpoint, write_checkpoint

MADE = [setting for setting in SMALL if setting.startswith("data.source")]


class Touch:
    """Unpickled, it makes a folder."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("trap",)


def rehash(model: Path) -> None:
    """The hashes of a model's files as they are now, as an attacker would write them."""

    def change(manifest: Any) -> None:
        for name in manifest["files"]:
            content = (model / name).read_bytes()
            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}

    edit(model, "manifest.json", change)


@pytest.fixture
def copy(kept_run: Path, tmp_path: Path) -> Path:
    """A copy of a run that has ended, to be changed."""
    return Path(shutil.copytree(kept_run, tmp_path / "copy"))


def edit(run: Path, name: str, change: Callable[[Any], Any]) -> None:
    document = json.loads((run / name).read_text())
    change(document)
    (run / name).write_text(json.dumps(document))


def data(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda run: edit(run, "data.json", change)


def table(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda run: edit(run, "metrics.json", lambda document: change(document["table"]))


def text(name: str, content: str) -> Callable[[Path], Any]:
    return lambda run: (run / name).write_text(content)


def instead(name: str, make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def spoil(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return spoil


LAUGHS = "a: &a [1,1]\n" + "".join(f"{b}: &{b} [*{a},*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))
REPORTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no audit": (
        data(lambda d: d.pop("audit")),
        "data.json must hold the checks of an audit under audit.checks, got None",
    ),
    "no checks": (data(lambda d: d["audit"].pop("checks")), "data.json must hold the checks of an audit"),
    "no hashes": (data(lambda d: d.pop("hashes")), "data.json must hold hashes by name under hashes, got None"),
    "hashes in a list": (data(lambda d: d.update(hashes=["a"])), "data.json must hold hashes by name under hashes"),
    "a check of nothing": (data(lambda d: d["audit"]["checks"].append(3)), "data.json must give name, verdict"),
    "another verdict": (
        data(lambda d: d["audit"]["checks"][0].update(verdict="fine")),
        "verdict (passed, failed, not run)",
    ),
    "nothing": (text("data.json", ""), "data.json is not valid JSON"),
    "deep": (text("data.json", "[" * 200_000), "data.json is not valid JSON"),
    "wide": (text("data.json", "[" + "[]," * (1 << 20) + "[]]"), "data.json has 1,048,578 lists and objects"),
    "not a number": (text("data.json", '{"hashes": NaN}'), "NaN is not JSON"),
    "a key twice": (text("data.json", '{"hashes": {}, "hashes": {}}'), "a key stands twice"),
    "a huge number": (text("metrics.json", '{"table": ' + "9" * 5000 + "}"), "metrics.json is not valid JSON"),
    "half a character": (text("data.json", '{"hashes": {"\\ud800": "a"}}'), "surrogates not allowed"),
    "a pipe": (instead("data.json", os.mkfifo), "data.json must be a regular file"),
    "a link": (
        instead("data.json", lambda p: p.symlink_to("/etc/passwd")),
        "data.json must be a regular file, it is a link",
    ),
    "no end": (
        instead("data.json", lambda p: (p.touch(), os.truncate(p, 1 << 40))),
        "more than the 67108864 that are read",
    ),
    "a folder": (instead("config.yaml", os.mkdir), "config.yaml must be a regular file"),
    "gone": (lambda run: (run / "config.yaml").unlink(), "config.yaml cannot be read: No such file"),
    "words for a count": (table(lambda t: t.update(decisions="many")), "decisions must be int, got 'many'"),
    "words for a figure": (
        table(lambda t: t["skill"].update(value="good")),
        "holds no closing table: TypeError a figure of",
    ),
    "another best": (table(lambda t: t.update(best_baseline="x")), "it has no row 'x'"),
    "no rows": (table(lambda t: t.update(rows=[])), "its rows must be the model and others"),
    "no loss": (table(lambda t: t["rows"][1]["figures"].pop(t["loss"])), "figures of other names than"),
    "code": (text("config.yaml", "!!python/object/apply:os.mkdir [trap]"), "config.yaml cannot be read"),
    "laughs": (text("config.yaml", LAUGHS), "config.yaml has a YAML anchor, &a"),
    "a list": (text("config.yaml", "- 1"), "config.yaml holds list, expected settings by name"),
    "no yaml": (text("config.yaml", "a: [1"), "config.yaml cannot be read"),
    "deep yaml": (text("config.yaml", "a: " + "[" * 3_000), "config.yaml cannot be read"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_report_refuses_it(
    kept_run: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, words = REPORTS[name]
    spoil(copy)
    assert call(monkeypatch, "report", str(kept_run), str(copy)) == 1
    said = capsys.readouterr().err
    assert words in said
    assert str(copy) in said
    assert said.count("\n") == 1
    assert len(said) < 800
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]  # no page, no trap


def test_the_control_runs_the_code_and_a_name_in_a_setting_is_not_looked_up(
    kept_run: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    yaml.unsafe_load("!!python/object/apply:os.mkdir [trap]")
    assert (tmp_path / "trap").is_dir()
    monkeypatch.setenv("QUANTATTN_SECRET_OF_A_TEST", "hunter2")
    with (copy / "config.yaml").open("a") as file:
        file.write("\nnote: ${oc.env:QUANTATTN_SECRET_OF_A_TEST}\n")
    assert call(monkeypatch, "report", str(kept_run), str(copy)) == 0
    page = (tmp_path / "runs.html").read_text()
    assert "hunter2" not in page
    assert "${oc.env:QUANTATTN_SECRET_OF_A_TEST}" in page


def forged(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    """A checkpoint with right hashes that says something else."""

    def spoil(path: Path) -> None:
        state = read_checkpoint(path)
        change(state)
        write_checkpoint(state, path)

    return spoil


CHECKPOINTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "nothing": (
        lambda p: p.write_bytes(b""),
        "last.ckpt is damaged or no checkpoint: it announces a header of 0 bytes",
    ),
    "a pickle": (
        lambda p: p.write_bytes(pickle.dumps(Touch())),
        "it begins as a pickle does, and none is ever read",
    ),
    "no end": (lambda p: os.truncate(p, 1 << 40), "last.ckpt has 1,099,511,627,776 bytes, this machine has"),
    "no weights": (forged(lambda s: s.update(state_dict=3)), "holds a int as state_dict, expected a dict"),
    "words for weights": (forged(lambda s: s.update(state_dict={"a": "b"})), "must hold tensors by name as state_dict"),
    "no steps": (forged(lambda s: s.update(global_step="7")), "holds a str as global_step, expected a int"),
    "no optimizer": (
        forged(lambda s: s.update(optimizer_states={})),
        "holds a dict as optimizer_states, expected a list",
    ),
    "loops of words": (
        forged(lambda s: s["loops"]["fit_loop"]["epoch_progress"]["total"].update(ready="x")),
        "holds 'x' as loops.fit_loop.epoch_progress.total.ready, expected a count from 0",
    ),
    "loops that count backwards": (
        forged(lambda s: s["loops"]["fit_loop"]["state_dict"]["combined_loader"][0].update(position=-1)),
        "holds -1 as loops.fit_loop.state_dict.combined_loader.0.position, expected a count from 0",
    ),
    "loops that count otherwise": (
        forged(lambda s: s.update(global_step=7)),
        "counts 6 optimizer steps under loops and 7 as global_step",
    ),
    "loops of nothing": (forged(lambda s: s.update(loops={})), "does not say under loops how many optimizer steps"),
    "lacking": (forged(lambda s: s.pop("loops")), "last.ckpt lacks loops, so no run can go on from it"),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_run_does_not_go_on_from_it(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, words = CHECKPOINTS[name]
    spoil(copy / "checkpoints" / "last.ckpt")
    given = [f"ckpt_path={copy / 'checkpoints' / 'last.ckpt'}", f"paths.output_dir={tmp_path / 'next'}"]
    assert call(monkeypatch, "train", *SMALL, *given) in (1, 2)
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "trap").exists()
    assert not (tmp_path / "next").exists()


VOCABULARIES = {
    "[]": "this is no vocabulary that a run writes: it is a list",
    '{"_target_": "os.system"}': "this tokenizer has format None",
    '{"format": 2}': "this is no vocabulary that a run writes: it lacks 'categories'",
    '{"format": 2, "categories": {"kind": [1, [2]]}}': "categories of 'kind' must be a list of int",
    '{"format": 2, "categories": {"kind": [1, 1]}}': "categories of 'kind' hold a value twice",
    '{"format": 2, "categories": {}, "numeric": {"size": {"edges": [2, 1], "center": 0, "scale": 1}}}': "rising edges",
}


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_score_refuses_a_vocabulary_that_means_something_else(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, vocabulary: str
) -> None:
    (copy / "model" / "vocabulary.json").write_text(vocabulary)
    rehash(copy / "model")
    given = [f"model={copy / 'model'}", f"out={tmp_path / 'out'}", *MADE]
    assert call(monkeypatch, "score", *given) == 1
    said = capsys.readouterr().err
    assert VOCABULARIES[vocabulary] in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_run_does_not_begin_with_weights_whose_codes_mean_nothing(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (copy / "model" / "vocabulary.json").write_text('{"categories": {"a": 1}, "numeric": {"b": {}}}')
    rehash(copy / "model")
    given = [f"tuning.start={copy}", f"paths.output_dir={tmp_path / 'next'}"]
    assert call(monkeypatch, "train", *SMALL, *given) == 1
    assert "the vocabulary of tuning.start is none that a run writes: KeyError, 'edges'" in capsys.readouterr().err
    (copy / "model" / "card.md").write_text("# changed")
    assert call(monkeypatch, "train", *SMALL, *given) == 1
    assert "card.md is not the file that its manifest describes" in capsys.readouterr().err


def test_a_target_in_the_settings_of_a_model_is_a_word_and_no_class(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trap = {"_target_": "os.mkdir", "path": "trap"}
    edit(copy / "model", "config.json", lambda c: c["extra"]["data"].update(source=trap))
    edit(copy / "model", "config.json", lambda c: c["extra"]["data"]["prepare"].update(trap))
    rehash(copy / "model")
    call(monkeypatch, "score", f"model={copy / 'model'}", f"out={tmp_path / 'out'}", *MADE)
    assert not (tmp_path / "trap").exists()
