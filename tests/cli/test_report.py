"""`quantattn report`: run folders in, one page out; what is no run is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_run import call

from quantattn.evaluate import closing_table


def write_run(folder: Path, seed: int) -> Path:
    """A folder with what the report reads of a run."""
    rng = np.random.default_rng(seed)
    y, prob = np.arange(90) % 3, rng.dirichlet(np.ones(3), 90)
    time = 1_700_000_000 * 10**9 + np.arange(90) * 86_400 * 10**9
    table = closing_table(y, time, None, prob, {"flat": np.full((90, 3), 1 / 3)}, replicates=50)
    audit = {"checks": [{"name": "no leak", "verdict": "passed", "sentence": "", "looked_at": 90}]}
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps({"figures": {}, "table": table.to_dict()}))
    (folder / "data.json").write_text(
        json.dumps({"hashes": {"source": "ab"}, "audit": audit, "dropped": {"purged": 7 + seed}})
    )
    (folder / "config.yaml").write_text(f"seed: {seed}\nmodel: {{width: 64}}\npaths: {{output_dir: {folder}}}\n")
    return folder


def test_two_runs_make_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    one, two = (write_run(tmp_path / name / "0", seed) for seed, name in enumerate("ab"))
    page = tmp_path / "runs.html"
    assert call(monkeypatch, "report", str(one), str(two), f"--out={page}") == 0
    said = capsys.readouterr().out
    assert "of 2 runs" in said
    text = page.read_text()
    assert "a/0: purged</th><td>7</td>" in text
    assert "b/0: purged</th><td>8</td>" in text
    assert "a/0" in text  # as many parts of the path as it takes
    assert "1 of 2 settings differ" in text  # where a run is kept is none of them


@pytest.mark.parametrize(
    ("broken", "sentence", "code"),
    [
        (lambda run: (run / "metrics.json").unlink(), "is no run that has ended: there is no metrics.json", 2),
        (lambda run: (run / "metrics.json").write_text('{"table": null}'), "has no closing table", 2),
        (lambda run: (run / "metrics.json").write_text('{"table": {"rows": 3}}'), "holds no closing table", 1),
        (lambda run: (run / "metrics.json").write_text("[1"), "is not valid JSON", 1),
        (lambda run: (run / "data.json").write_text("[]"), "holds list, expected an object", 1),
        (
            lambda run: (run / "data.json").write_text('{"hashes": {}, "audit": {"checks": []}, "dropped": {"a": -1}}'),
            "must hold counts by reason under dropped",
            1,
        ),
        (lambda run: (run / "config.yaml").unlink(), "cannot be read", 1),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, monkeypatch, capsys, broken, sentence: str, code: int) -> None:
    one, two = (write_run(tmp_path / name, 0) for name in "ab")
    broken(two)
    assert call(monkeypatch, "report", str(one), str(two), f"--out={tmp_path}/runs.html") == code
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "runs.html").exists()


def test_one_run_or_one_twice_is_refused(tmp_path, monkeypatch, capsys) -> None:
    one = write_run(tmp_path / "a", 0)
    for arguments, sentence in (
        ([str(one)], "name two runs or more; what one run found stands in"),
        ([str(one), str(tmp_path / "a" / ".." / "a")], "a run is named twice"),
        ([str(one), str(one), f"--out={tmp_path}/no/page.html"], "there is no folder"),
    ):
        assert call(monkeypatch, "report", *arguments) == 2
        assert sentence in capsys.readouterr().err
