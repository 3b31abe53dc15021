"""A run that was stopped and went on is, bit for bit, the run that was never stopped."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping
from toy import train

from quantattn.learn.checkpoint import Checkpoints, read_checkpoint, require_resumable, write_checkpoint
from quantattn.learn.fit import Progress

LAST = Path("checkpoints") / "last.ckpt"


def stop_at(step: int, number: int = signal.SIGTERM):
    return lambda at: os.kill(os.getpid(), number) if at.step == step else None


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(
    ("step", "every", "accumulate"), [c for c in product((1, 3, 5), (2, 3), (1, 2)) if c not in {(1, 3, 2), (5, 2, 2)}]
)
def test_stop_and_resume_equals_never_stopped(tmp_path: Path, step: int, every: int, accumulate: int) -> None:
    settings = {"validate_every": every, "accumulate": accumulate}
    whole, _, batches = train(tmp_path / "whole", **settings)
    first, _, before = train(tmp_path / "parts", watch=stop_at(step), **settings)
    assert first.stopped
    assert first.step == step
    second, _, after = train(tmp_path / "parts", resume=tmp_path / "parts" / LAST, **settings)
    assert not second.stopped
    assert before + after == batches
    assert (second.step, second.best_step, second.best_value) == (whole.step, whole.best_step, whole.best_value)
    one, other = (read_checkpoint(tmp_path / name / LAST) for name in ("whole", "parts"))
    for part in ("state_dict", "optimizer_states", "lr_schedulers"):
        assert same(one[part], other[part]), part
    assert (tmp_path / "whole" / "metrics.csv").read_text() == (tmp_path / "parts" / "metrics.csv").read_text()


@pytest.fixture
def in_the_foreground() -> Iterator[None]:
    """Ctrl-C means what it means there, also where a shell has started the tests as a background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("in_the_foreground")
def test_ctrl_c_saves_and_stops_too_and_gets_its_meaning_back(tmp_path: Path) -> None:
    whole, _, _ = train(tmp_path / "whole", validate_every=3)
    first, _, _ = train(tmp_path / "parts", validate_every=3, watch=stop_at(2, signal.SIGINT))
    assert (first.stopped, first.signal, first.step) == (True, signal.SIGINT, 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    second, _, _ = train(tmp_path / "parts", validate_every=3, resume=tmp_path / "parts" / LAST)
    assert (second.stopped, second.signal, second.best_value) == (False, None, whole.best_value)


def test_sigusr1_is_a_sigterm_that_came_early(tmp_path: Path) -> None:
    """Slurm sends it before the time of a job is over (`--signal=USR1@120`)."""
    whole, _, _ = train(tmp_path / "whole", validate_every=3)
    first, _, _ = train(tmp_path / "parts", validate_every=3, watch=stop_at(2, signal.SIGUSR1))
    assert (first.stopped, first.signal, first.step) == (True, signal.SIGTERM, 2)
    second, _, _ = train(tmp_path / "parts", validate_every=3, resume=tmp_path / "parts" / LAST)
    assert (second.stopped, second.best_value) == (False, whole.best_value)


def test_what_callbacks_draw_goes_on_where_it_stood(tmp_path: Path) -> None:
    """The control: without the states that a checkpoint keeps, the second half would draw the first half's numbers."""

    class Draws(Callback):
        def __init__(self) -> None:
            self.drawn: list[tuple[float, float]] = []

        def on_train_batch_end(self, *given: object) -> None:
            self.drawn.append((random.random(), float(torch.rand(()))))

    def drawn(folder: str, **more: object) -> list[tuple[float, float]]:
        random.seed(1)
        draws = Draws()
        train(tmp_path / folder, validate_every=3, callbacks=[draws], **more)  # type: ignore[arg-type]
        return draws.drawn

    whole = drawn("whole")
    first = drawn("parts", watch=stop_at(3))
    second = drawn("parts", resume=tmp_path / "parts" / LAST)
    assert len(set(whole)) == 6
    assert first + second == whole


@pytest.mark.usefixtures("in_the_foreground")
def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    def twice(at: Progress) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, watch=twice)
    assert not (tmp_path / LAST).exists()


def test_a_stop_in_the_middle_of_a_step_waits_for_its_end(tmp_path: Path) -> None:
    """Gradients that are half accumulated are in no checkpoint."""
    calls = iter(range(100))

    def stop_after_three_batches(at: Progress) -> None:
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = {"validate_every": 5, "accumulate": 2}
    _, _, batches = train(tmp_path / "whole", **settings)
    first, _, before = train(tmp_path / "parts", watch=stop_after_three_batches, **settings)
    assert (first.step, len(before)) == (2, 4)
    _, _, after = train(tmp_path / "parts", resume=tmp_path / "parts" / LAST, **settings)
    assert before + after == batches
    one, other = (read_checkpoint(tmp_path / name / LAST) for name in ("whole", "parts"))
    assert same(one["state_dict"], other["state_dict"])


def test_a_second_stop_and_resume_is_as_good(tmp_path: Path) -> None:
    train(tmp_path / "whole", validate_every=2)
    train(tmp_path / "parts", validate_every=2, watch=stop_at(1))
    train(tmp_path / "parts", validate_every=2, watch=stop_at(4), resume=tmp_path / "parts" / LAST)
    train(tmp_path / "parts", validate_every=2, resume=tmp_path / "parts" / LAST)
    one, other = (read_checkpoint(tmp_path / name / LAST) for name in ("whole", "parts"))
    assert same(one["state_dict"], other["state_dict"])
    assert (tmp_path / "whole" / "metrics.csv").read_text() == (tmp_path / "parts" / "metrics.csv").read_text()


def test_rows_written_after_the_last_checkpoint_are_written_once(tmp_path: Path) -> None:
    """A killed run leaves rows beyond its checkpoint; the resumed one replaces them."""
    train(tmp_path / "whole", validate_every=3)

    def die(at: object) -> None:
        if at.step == 5:  # type: ignore[attr-defined]
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path / "parts", validate_every=3, watch=die)
    rows = (tmp_path / "parts" / "metrics.csv").read_text()
    assert "\n4,train/loss" in rows
    train(tmp_path / "parts", validate_every=3, resume=tmp_path / "parts" / LAST)
    assert (tmp_path / "whole" / "metrics.csv").read_text() == (tmp_path / "parts" / "metrics.csv").read_text()


def test_a_run_that_early_stopping_ended_stays_as_it_is(tmp_path: Path) -> None:
    def patient() -> EarlyStopping:
        return EarlyStopping("valid/loss", patience=1, min_delta=1e9)

    first, _, before = train(tmp_path, validate_every=2, callbacks=[patient()])
    assert (first.step, len(before)) == (4, 4)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    again, _, _ = train(tmp_path, validate_every=2, callbacks=[patient()], resume=tmp_path / LAST)
    assert not again.stopped
    assert (again.step, again.best_step, again.best_value) == (first.step, first.best_step, first.best_value)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("content", [b"", b"some nonsense", None])
def test_a_run_goes_on_from_whole_checkpoints_only(tmp_path: Path, content: bytes | None) -> None:
    train(tmp_path, validate_every=3)
    require_resumable(tmp_path / LAST)
    with pytest.raises(ValueError, match=r"best\.ckpt lacks optimizer_states, .* with train=false"):
        require_resumable(tmp_path / "checkpoints" / "best.ckpt")
    whole = (tmp_path / LAST).read_bytes()
    (tmp_path / LAST).write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(ValueError, match=r"last\.ckpt is damaged"):
        require_resumable(tmp_path / LAST)


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    """The control: equality above is not for lack of randomness."""
    _, one, _ = train(tmp_path / "a")
    _, again, _ = train(tmp_path / "b")
    _, other, _ = train(tmp_path / "c", seed=4)
    assert same(one.state_dict(), again.state_dict())
    assert not same(one.state_dict(), other.state_dict())


def test_a_run_that_goes_on_elsewhere_takes_the_best_weights_along(tmp_path: Path) -> None:
    """Nothing after the checkpoint is better, so the weights of before it are the best of the run, wherever it is."""
    impatient = {"validate_every": 2, "mode": "max", "monitor": "valid/loss"}
    train(tmp_path / "first", steps=4, **impatient)
    best = read_checkpoint(tmp_path / "first" / "checkpoints" / "best.ckpt")
    second, module, _ = train(tmp_path / "second", steps=6, resume=tmp_path / "first" / LAST, **impatient)
    assert second.best_step == best["step"]
    assert same(dict(module.state_dict()), best["state_dict"])
    assert same(read_checkpoint(tmp_path / "second" / "checkpoints" / "best.ckpt"), best)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_checkpoint_without_the_best_weights_it_speaks_of_is_refused_at_once(tmp_path: Path, elsewhere: bool) -> None:
    train(tmp_path / "first", steps=4, validate_every=2)
    (tmp_path / "first" / "checkpoints" / "best.ckpt").unlink()
    folder = tmp_path / "second" if elsewhere else tmp_path / "first"
    steps: list[Progress] = []
    with pytest.raises(ValueError, match=r"best\.ckpt is not there, but .* best validation is that of step \d"):
        train(folder, steps=6, validate_every=2, resume=tmp_path / "first" / LAST, watch=steps.append)
    assert not steps


def test_a_kill_between_the_best_and_the_last_weights_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, trained, _ = train(tmp_path / "whole", validate_every=1)

    def killed(self: Checkpoints, trainer: object) -> None:
        if self.best_step > 1 and self.saved_step >= 1:
            raise RuntimeError("killed")
        save_last(self, trainer)  # type: ignore[arg-type]

    save_last = Checkpoints.save_last
    monkeypatch.setattr(Checkpoints, "save_last", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path / "parts", validate_every=1)
    monkeypatch.setattr(Checkpoints, "save_last", save_last)
    assert read_checkpoint(tmp_path / "parts" / "checkpoints" / "best.ckpt")["step"] == 2
    assert read_checkpoint(tmp_path / "parts" / LAST)["global_step"] == 1
    second, again, _ = train(tmp_path / "parts", validate_every=1, resume=tmp_path / "parts" / LAST)
    assert (second.best_step, second.best_value) == (whole.best_step, whole.best_value)
    assert same(dict(again.state_dict()), dict(trained.state_dict()))


def test_a_checkpoint_of_another_model_is_refused_by_the_name_of_a_weight(tmp_path: Path) -> None:
    train(tmp_path / "first", steps=3, validate_every=3)
    last = tmp_path / "first" / LAST
    state = read_checkpoint(last)
    name, weight = next((n, w) for n, w in sorted(state["state_dict"].items()) if w.ndim == 2)
    state["state_dict"][name] = weight[:, :-1]
    write_checkpoint(state, last)
    before = last.read_bytes()
    with pytest.raises(ValueError, match=r"last\.ckpt is of another model: ") as raised:
        train(tmp_path / "first", resume=last)
    rows, columns = weight.shape
    assert f"{name} is ({rows}, {columns - 1}), expected ({rows}, {columns}); 1 of " in str(raised.value)
    assert last.read_bytes() == before
