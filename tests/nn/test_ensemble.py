"""An ensemble is the mean of its members, exactly; it is never worse than they are on average; it is one folder."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from quantattn.nn import (
    ClassificationConfig,
    Encoder,
    GaussianConfig,
    Model,
    QuantileConfig,
    load_model,
    save_pretrained,
)
from quantattn.nn.ensemble import Ensemble, mean_scores
from quantattn.nn.folder import MANIFEST

HEADS: dict[str, Any] = {
    "move": ClassificationConfig(("down", "flat", "up")),
    "vol": GaussianConfig(mean=1.0, std=2.0),
    "size": QuantileConfig((0.1, 0.5, 0.9)),
}


def member(packs: Any, seed: int, heads: dict[str, Any] | None = None, **changes: Any) -> Model:
    torch.manual_seed(seed)
    given = {"n_layers": 1, "width": 16, "n_heads": 2, "hidden": 16} | changes
    made = Model(Encoder("tiny", codes=packs.codes, values=packs.values, **given), HEADS if heads is None else heads)
    for parameter in made.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


def test_what_it_says_is_the_mean_of_its_members_and_how_far_they_lie_apart(packs: Any) -> None:
    members, batch = [member(packs, seed) for seed in range(3)], packs.random([5, 9, 2])
    said, whole = [each.score(batch) for each in members], Ensemble(members).score(batch)
    for name in ("move_prob", "vol_value", "size_value", "size_quantile_0.1"):
        each = torch.stack([scores[name] for scores in said]).double()
        assert torch.equal(whole[name], (each.sum(0) / 3).float())
        apart = ((each - each.sum(0) / 3) ** 2).sum(0) / 3
        torch.testing.assert_close(whole[f"spread_{name}"].double(), apart.sqrt(), rtol=1e-6, atol=1e-8)
    mu, sigma = (torch.stack([s[f"vol_{what}"] for s in said]).double() for what in ("value", "deviation"))
    mixture = (sigma**2 + mu**2).mean(0) - mu.mean(0) ** 2
    torch.testing.assert_close(whole["vol_deviation"].double(), mixture.sqrt(), rtol=1e-6, atol=0)
    assert bool((whole["move_disagreement"] > 0).all())


def test_worked_by_hand() -> None:
    """Two members that are sure of opposite classes disagree by ln 2 nats; two that say the same by nothing."""
    sure, even = torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    whole = mean_scores([{"prob": sure}, {"prob": even}])
    assert whole["prob"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert whole["spread_prob"].tolist() == [[0.5, 0.5], [0.0, 0.0]]
    assert whole["disagreement"].tolist() == pytest.approx([math.log(2), 0.0])
    one, two = ({"value": torch.tensor([v]), "deviation": torch.tensor([d])} for v, d in ((1.0, 3.0), (5.0, 4.0)))
    whole = mean_scores([one, two])
    assert whole["value"].tolist() == [3.0]
    assert whole["spread_value"].tolist() == [2.0]
    assert whole["deviation"].tolist() == pytest.approx([math.sqrt((9 + 16) / 2 + 4)])


@pytest.mark.parametrize("deterministic", [True, "batch"])
def test_of_one_member_it_is_the_member_to_the_bit(packs: Any, deterministic: Any) -> None:
    alone, batch = member(packs, 0), packs.random([5, 9, 2])
    said, whole = (
        alone.score(batch, deterministic=deterministic),
        Ensemble([alone]).score(batch, deterministic=deterministic),
    )
    assert all(torch.equal(whole[name], values) for name, values in said.items() if not name.endswith("deviation"))
    torch.testing.assert_close(whole["vol_deviation"], said["vol_deviation"], rtol=1e-6, atol=0)
    assert all(not values.any() for name, values in whole.items() if name.startswith("spread_") or "disagree" in name)


def test_its_log_loss_and_squared_error_are_never_above_the_mean_of_its_members(packs: Any) -> None:
    """Jensen: −ln and the square are convex. Strictly below where members differ."""
    members, batch = [member(packs, seed) for seed in range(4)], packs.random([7] * 20)
    said, whole = [each.score(batch) for each in members], Ensemble(members).score(batch)
    label, outcome = batch.targets["label"], torch.linspace(-2, 4, 20, dtype=torch.float64)

    def log_loss(scores: Any) -> torch.Tensor:
        return functional.nll_loss(scores["move_prob"].double().log(), label, reduction="none")

    def error(scores: Any) -> torch.Tensor:
        return (scores["vol_value"].double() - outcome) ** 2

    for loss in (log_loss, error):
        each = torch.stack([loss(scores) for scores in said]).mean(0)
        assert bool((loss(whole) <= each + 1e-6).all())
        assert float(loss(whole).mean()) < float(each.mean())
    worse = {**whole, "move_prob": torch.stack([s["move_prob"] for s in said]).amin(0)}
    assert float(log_loss(worse).mean()) > float(torch.stack([log_loss(s) for s in said]).mean()), "the control"


def test_it_is_a_folder_like_a_model_and_comes_back_to_the_bit(packs: Any, tmp_path: Path) -> None:
    members, batch = [member(packs, seed) for seed in range(3)], packs.random([5, 9])
    folder = save_pretrained(Ensemble(members), tmp_path / "model", extra={"classes": ["down", "flat", "up"]})
    again = load_model(folder)
    assert isinstance(again, Ensemble)
    assert again.artefact is not None
    assert again.artefact.extra["classes"] == ["down", "flat", "up"]
    whole = Ensemble(members).score(batch)
    assert all(torch.equal(values, whole[name]) for name, values in again.score(batch).items())
    for before, after in zip(members, again.members, strict=True):
        assert all(torch.equal(values, after.score(batch)[name]) for name, values in before.score(batch).items())


@pytest.mark.parametrize(
    ("members", "sentence"),
    [(0, "must give members, 1 to 1000"), (10**9, "must give members, 1 to 1000"), (None, "must give members"),
     (True, "must give members"), (900, "describes 900 encoders of"),
     (2, "does not fit"), (4, "describes 4 encoders of")],
)  # fmt: skip
def test_a_folder_that_tells_nonsense_of_its_members_is_refused(
    packs: Any, tmp_path: Path, members: object, sentence: str
) -> None:
    folder = save_pretrained(Ensemble([member(packs, seed) for seed in range(3)]), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config = {name: value for name, value in config.items() if name != "members"}
    config |= {} if members is None else {"members": members}
    sign(folder, json.dumps(config).encode())
    with pytest.raises(ValueError, match=sentence):
        load_model(folder)


def sign(folder: Path, config: bytes) -> None:
    """Put another configuration into a folder, with its hash, as somebody hostile would."""
    from hashlib import sha256

    (folder / "config.json").write_bytes(config)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["config.json"] = {"sha256": sha256(config).hexdigest(), "bytes": len(config)}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_models_that_differ_are_refused_by_what_differs(packs: Any, tmp_path: Path) -> None:
    first = member(packs, 0)
    with pytest.raises(ValueError, match=r"model 2 differs from the first in its encoder's hidden \(16, 32\)"):
        Ensemble([first, member(packs, 1, hidden=32)])
    with pytest.raises(ValueError, match="model 3 differs from the first in its heads"):
        Ensemble([first, member(packs, 1), member(packs, 2, {"move": HEADS["move"]})])
    with pytest.raises(ValueError, match="have no such head"):
        Ensemble([member(packs, 0, {})])
    with pytest.raises(ValueError, match="has 1 to 1000 members, got 0"):
        Ensemble([])
    with pytest.raises(ValueError, match="give their members"):
        Ensemble([Ensemble([first]), first])
    for place in ("a", "b"):
        save_pretrained(first, tmp_path / place, vocabulary_json=json.dumps({"of": place}))
    with pytest.raises(ValueError, match="its vocabulary: they were trained on different data"):
        Ensemble([load_model(tmp_path / place) for place in ("a", "b")])
    shutil.rmtree(tmp_path / "b")
    batch, whole = packs.random([4]), Ensemble([first])
    for call in (lambda: whole.embed(batch), lambda: whole.score(batch, states=torch.zeros(1, 16)), whole.require_last):
        with pytest.raises(ValueError, match=r"take one member|an encoder a member"):
            call()
    with pytest.raises(TypeError, match="is not trained"):
        whole(batch)
