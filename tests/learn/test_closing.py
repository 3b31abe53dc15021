"""What a report says beside its figures, and what pretraining is compared with."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from toy import sequences

from quantattn.data.filings.pieces import OnLong, cut_documents
from quantattn.data.pack import Decisions, SequenceSet
from quantattn.data.protocol.findings import Audit, Check, LeakError
from quantattn.evaluate import Blocks, likelihood_table
from quantattn.learn.closing import VERDICTS, caveats, classifiers_beside, judged, span
from quantattn.learn.datamodule import PreparedData
from quantattn.learn.fit import fit
from quantattn.learn.module import Training
from quantattn.learn.optimisers import Schedule
from quantattn.learn.predict import predict
from quantattn.learn.pretraining import losses_of, without_context
from quantattn.learn.run import run
from quantattn.learn.trainer import TrainerSettings
from quantattn.nn import Encoder, MaskedEvents, Model, NextEvent, Outcome


def test_a_check_that_was_not_run_has_not_passed() -> None:
    assert VERDICTS == {"passed": True, "failed": False, "not run": None}


def test_a_test_within_one_day_is_not_said_to_last_for_days() -> None:
    table = SimpleNamespace(block_kind="time", blocks=40, decisions=5000)
    (said,) = caveats(table, 7_200 * 10**9)  # type: ignore[arg-type]
    assert "span 2 hours" in said
    assert [span(s * 10**9) for s in (50, 600, 86_400, 10 * 86_400)] == [
        "50 seconds",
        "10 minutes",
        "24 hours",
        "10 days",
    ]


def test_a_run_does_not_begin_on_data_whose_audit_failed(tmp_path: Path) -> None:
    audit = Audit((Check("inputs come after the decision", "failed", 9, sentence="row 5 sees row 6"),))
    with pytest.raises(LeakError, match="row 5 sees row 6"):
        run(tmp_path / "run", SimpleNamespace(audit=audit), *[None] * 4)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def market(seed: int, **changed: np.ndarray) -> SimpleNamespace:
    """Prepared decisions of three classes with what baselines are given of them, and nothing else."""
    random = np.random.default_rng(seed)
    made: dict[str, Any] = {"classes": ("down", "flat", "up"), "baselines": {}, "as_of": {}}
    for part, rows in (("train", 90), ("valid", 30), ("test", 40)):
        given = {"features": random.normal(size=(rows, 4)), "persistence": random.integers(-1, 3, rows)}
        targets = {"label": changed.get(part, random.integers(0, 3, rows))}
        made["baselines"][part], made["as_of"][part] = given, np.arange(rows)
        made[part] = SimpleNamespace(decisions=SimpleNamespace(targets=targets))
    return SimpleNamespace(**made)


def test_events_of_a_market_have_trees_beside_them_that_see_no_label_of_the_test() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not here (pip install 'quantattn[compare]')")
    found = classifiers_beside(market(0), "label")  # type: ignore[arg-type]
    assert list(found) == ["majority class", "persistence", "logistic regression", "gradient boosting"]
    assert all(prob.shape == (40, 3) and np.allclose(prob.sum(axis=1), 1) for prob in found.values())
    other = classifiers_beside(market(0, test=np.zeros(40, np.int64)), "label")  # type: ignore[arg-type]
    assert all(np.array_equal(found[name], other[name]) for name in found)
    retrained = classifiers_beside(market(0, train=np.arange(90) % 3), "label")  # type: ignore[arg-type]
    assert not any(np.array_equal(found[name], retrained[name]) for name in found)


def test_aggregates_of_a_history_go_the_same_way_as_features() -> None:
    prepared = market(1)
    found = classifiers_beside(prepared, "label")  # type: ignore[arg-type]
    for part in prepared.baselines.values():
        part["aggregates"] = part.pop("features")
    again = classifiers_beside(prepared, "label")  # type: ignore[arg-type]
    assert list(found) == list(again)
    assert all(np.array_equal(found[name], again[name]) for name in found)


def documents(on_long: OnLong) -> tuple[SimpleNamespace, torch.Tensor, np.ndarray]:
    """Prepared documents, whole or in windows of 8; a forecast of each test sequence, and how many tokens it has."""
    random = np.random.default_rng(0)
    made: dict[str, Any] = {
        "classes": (),
        "codes": {},
        "baselines": {},
        "as_of": {},
        "entity": {},
        "block_kind": "auto",
    }
    for part, size in (("train", 20), ("valid", 6), ("test", 30)):
        codes = [random.integers(2, 9, n) for n in random.integers(1, 30, size)]
        of_each = random.normal(size=(2, size))
        time, names = np.arange(size) * 10**15, [f"filing {n}" for n in range(size)]
        pieces = cut_documents(codes, 8, on_long)
        made[part] = pieces.sequences(time, names, {"volatility": of_each[0][pieces.of].astype(np.float32)})
        made["baselines"][part] = {"last_value": of_each[1][pieces.of]}
        made["as_of"][part], made["entity"][part] = time[pieces.of], np.asarray(names)[pieces.of]
    of_window = random.normal(size=(30, 4))
    place = np.concatenate([np.arange(n) for n in np.bincount(pieces.of)])
    tokens = np.diff(pieces.offsets)
    return SimpleNamespace(**made), torch.tensor(of_window[pieces.of, place]), tokens


def test_windows_of_a_filing_are_judged_as_one_decision() -> None:
    cut, said, tokens = documents("window")
    whole, _, length = documents("keep")
    names = np.asarray(cut.test.table.entities)
    mean = [np.average(said[names == name], weights=tokens[names == name]) for name in whole.test.table.entities]
    assert len(said) > len(mean) == 30
    assert [tokens[names == name].sum() for name in whole.test.table.entities] == length.tolist()
    expected, _ = judged(whole, "volatility", {"value": torch.tensor(mean, dtype=torch.float64)})
    found, forecasts = judged(cut, "volatility", {"value": said})
    assert found.decisions == expected.decisions == 30
    assert {len(values) for values in forecasts.values()} == {30}
    for mine, theirs in zip(found.rows, expected.rows, strict=True):
        for name, figure in mine.figures.items():
            assert figure.value == pytest.approx(theirs.figures[name].value, rel=1e-9, nan_ok=True)
    _, control, _ = documents("window")
    other, _ = judged(cut, "volatility", {"value": control.flip(0)})
    assert other.model.figures["mse"].value != pytest.approx(found.model.figures["mse"].value, rel=1e-3)


def pretrained(objective: MaskedEvents | NextEvent) -> Model:
    torch.manual_seed(0)
    small = {"n_layers": 1, "width": 8, "n_heads": 2, "hidden": 8}
    encoder = Encoder("tiny", codes={"code": 6}, values=("size_value",), causal=True, **small)
    return Model(encoder, objective.heads(encoder.config, ()))


@pytest.mark.parametrize("objective", [NextEvent(), MaskedEvents(1.0)])
def test_baselines_of_pretraining_are_the_cross_entropy_of_frequencies(objective: MaskedEvents | NextEvent) -> None:
    """By hand: next event, tokens 2 … N of each sequence; masked at rate 1, all of them."""
    train, test, model = sequences(12), sequences(6, seed=1), pretrained(objective)
    models = {"unigram": without_context(model, train), "uniform": without_context(model)}
    losses, counts, _ = losses_of(models, test, objective)
    code = np.asarray(test.table.fields["code"]).reshape(6, 5)
    targets = code[:, 1:] if isinstance(objective, NextEvent) else code
    shares = np.bincount(np.asarray(train.table.fields["code"]), minlength=6) + 1
    expected = -np.log(shares / shares.sum())[targets].sum(axis=1)
    assert counts.tolist() == [targets.shape[1]] * 6
    np.testing.assert_allclose(losses["unigram"].numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(losses["uniform"].numpy(), math.log(6) * targets.shape[1], rtol=1e-5)


def test_frequencies_are_those_of_training_rows_alone_each_counted_once() -> None:
    """The table holds the test rows too, and overlapping sequences hold a row several times."""
    whole = sequences(4)
    train = SequenceSet(whole.table, Decisions(np.arange(5)), 5, "each")
    (head,) = without_context(pretrained(NextEvent()), train).heads.values()
    counts = np.bincount(np.asarray(whole.table.fields["code"])[:5], minlength=6) + 1
    np.testing.assert_allclose(head.project.bias.detach().exp().numpy(), counts / counts.sum(), rtol=1e-5)  # type: ignore[union-attr]


def test_the_table_of_likelihoods_averages_over_targets_not_over_sequences() -> None:
    blocks = Blocks(np.asarray([0, 1, 1]), "entity", 2)
    table = likelihood_table({"encoder": [1.0, 4.0, 1.0], "unigram": [2.0, 8.0, 2.0]}, [1, 4, 1], blocks)
    assert [row.figures["log_loss"].value for row in table.rows] == [1.0, 2.0]
    assert (table.skill.value, table.skill.low, table.skill.high) == (0.5, 0.5, 0.5)
    assert table.decisions == 6
    both = {"encoder": [1.0, 4.0, 1.0], "worse": [3.0, 12.0, 3.0], "better": [2.0, 8.0, 2.0]}
    for order in (["encoder", "worse", "better"], ["encoder", "better", "worse"]):
        found = likelihood_table({name: both[name] for name in order}, [1, 4, 1], blocks)
        assert (found.best_baseline, found.skill.value, found.difference["log_loss"].value) == ("better", 0.5, -1.0)
    with pytest.raises(ValueError, match="expected targets"):
        likelihood_table({"encoder": [0.0], "unigram": [0.0]}, [0], Blocks(np.asarray([0]), "time", 1))


def test_a_decision_that_would_see_its_future_stops_training_and_prediction_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU the model itself has no sentence for this, so the batch is looked at before it goes there.
    monkeypatch.setattr("quantattn.nn.model._require_no_leak", lambda batch, config: None)
    table = sequences(8).table
    inside = SequenceSet(table, Decisions(np.arange(8) * 5 + 2, {"label": np.zeros(8, np.int64)}), 5, "document")
    small = {"n_layers": 1, "width": 8, "n_heads": 2, "hidden": 8}
    encoder = Encoder("tiny", codes={"code": 6}, values=("size_value",), causal=False, **small)
    model = Model(encoder, Outcome().heads(encoder.config, ("even", "odd")))
    with pytest.raises(ValueError, match="2 tokens of its sequence after it"):
        predict(model, inside, 20)
    optimizer = functools.partial(torch.optim.AdamW, lr=0.01)
    module = Training(model, Outcome(), optimizer=optimizer, schedule=Schedule(2))
    data = PreparedData(inside, inside, max_tokens=20, seed=1, batches=2)
    with pytest.raises(ValueError, match="2 tokens of its sequence after it"):
        fit(module, data, tmp_path, TrainerSettings(max_steps=2), total_steps=2)
    assert not (tmp_path / "checkpoints").exists()
