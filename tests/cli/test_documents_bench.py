"""`bench=documents` end to end at sizes that a CPU runs, and what each encoder sees of a document."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from quantattn.cli import main
from quantattn.cli.benchmarks import documents, documents_peers, documents_plan
from quantattn.cli.benchmarks.documents_peers import PEERS, Peer, Piece, calls, feeds, pieces
from quantattn.cli.benchmarks.documents_plan import DocumentsRow, Plan
from quantattn.cli.benchmarks.encoder_peers import FIELD
from quantattn.nn import EncoderConfig

TINY = [
    "bench=documents",
    "documents.size=tiny",
    "documents.vocabulary=32",
    "documents.lengths={tokens: 90, shortest: 20, longest: 60, median: 30, sigma: 0.4, seed: 0}",
    "documents.windows={modernbert: 16, longformer: 16}",
    "documents.call=48",
    "documents.precision=32-true",
    "documents.compile=none",
    "documents.rounds=1",
]
OURS = "documents.peers=[quantattn,quantattn_long,quantattn_windows]"
CONFIG = EncoderConfig.of_size("tiny", codes={FIELD: 32})
CPU = torch.device("cpu")


def plan(*peers: str, limit_s: float | None = None, passes: tuple[str, ...] = ("inference",)) -> Plan:
    windows = {"modernbert": 16, "longformer": 16}
    return Plan(CONFIG, (20, 33), peers, passes, windows, 48, "32-true", "none", 1, 0, limit_s)


def measure(*peers: str, limit_s: float | None = None) -> list[DocumentsRow]:
    return list(documents.benchmark(plan(*peers, limit_s=limit_s), lambda _: None))


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["quantattn", *arguments])
    return main("bench")


def test_documents_are_cut_and_dealt_to_calls_as_worked_out_by_hand() -> None:
    assert pieces([5, 3], None) == [Piece(0, 0, 5), Piece(1, 0, 3)]
    cut = pieces([5, 3], 2)
    assert cut == [Piece(0, 0, 2), Piece(0, 2, 4), Piece(0, 4, 5), Piece(1, 0, 2), Piece(1, 2, 3)]
    # Of at most four tokens: 2 + 2, 1 + 2 + 1; of four places, of which every window takes two: 2 + 2, 2 + 2, 2.
    assert calls(cut, 4, None) == [cut[:2], cut[2:]]
    assert calls(cut, 4, 2) == [cut[:2], cut[2:4], cut[4:]]
    assert [len(each) for each in calls(pieces([5, 3], None), 4, None)] == [1, 1]  # a longer row comes alone


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [None, 1, 4, 64])
def test_every_token_is_read_once_and_belongs_to_its_document(window: int | None, padded: bool) -> None:
    given = [torch.arange(2, 13), torch.arange(20, 27), torch.arange(30, 31)]
    made = list(feeds(given, window, padded, 8, CPU))
    tokens = torch.cat([feed.tokens if feed.real is None else feed.tokens[feed.real] for feed in made])
    of = torch.cat([feed.documents for feed in made])
    assert torch.equal(tokens, torch.cat(given))
    assert torch.equal(of, torch.repeat_interleave(torch.arange(3), torch.tensor([11, 7, 1])))
    for feed in made:
        assert int(feed.offsets[-1]) == len(feed.documents)
        if feed.real is not None:
            assert bool((feed.tokens[~feed.real] == 0).all())
            assert feed.tokens.shape[1] == (window or feed.longest)


def influence(name: str, first: int, last: int) -> float:
    """How much token `first` of a document of 33 tokens moves the state of token `last`."""
    torch.manual_seed(0)
    used = plan(name)
    model = PEERS[name].make(CONFIG, used.window(name) or 33, "none").eval()
    moved = []
    for code in (5, 6):
        document = torch.arange(33) % 20 + 3
        document[first] = code
        states = [model(feed) for feed in feeds([document], used.window(name), PEERS[name].padded, 48, CPU)]
        moved.append(torch.cat(states)[last])
    return float((moved[0] - moved[1]).abs().max().detach())


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("quantattn", True),
        ("quantattn_long", True),
        ("quantattn_windows", False),
        ("modernbert_sdpa", False),
        ("longformer", False),
        ("longformer_whole", True),
    ],
)
def test_an_encoder_sees_what_its_row_says(name: str, whole: bool) -> None:
    if not name.startswith("quantattn"):
        pytest.importorskip("transformers")
    assert plan(name).row(name, "inference").sees.startswith("whole" if whole else "windows of 16")
    assert (influence(name, 0, 32) > 0) == whole
    assert influence(name, 30, 31) > 0  # in one window


@pytest.mark.parametrize("name", ["modernbert_sdpa", "longformer_whole"])
def test_padding_moves_no_real_token(name: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = PEERS[name].make(CONFIG, 33, "none").eval()
    document = torch.arange(9) % 20 + 3
    (alone,), (padded,) = (
        [model(feed) for feed in feeds(given, None, True, 99, CPU)]
        for given in ([document], [document, torch.arange(33) % 20 + 3])
    )
    assert torch.allclose(alone, padded[:9], atol=1e-5)


def test_encoders_of_transformers_have_our_width_depth_and_weights() -> None:
    pytest.importorskip("transformers")

    def matrices(name: str) -> int:
        """Weights of layers; of Longformer without the projections that its global tokens have of their own."""
        model = PEERS[name].make(CONFIG, 64, "none")
        named = [(n, p) for n, p in model.named_parameters() if "embedding" not in n and "_global" not in n]
        return sum(p.numel() for _, p in named if p.dim() == 2)

    assert matrices("quantattn") == matrices("modernbert_sdpa") == matrices("longformer")


def test_one_command_writes_rows_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = "documents.passes=[inference,training]"
    assert call(monkeypatch, *TINY, OURS, both, f"results={tmp_path}") == 0
    with (tmp_path / "documents-cpu.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["pass"], row["impl"]) for row in rows] == [
        (stage, impl)
        for stage in ("inference", "training")
        for impl in ("quantattn", "quantattn_long", "quantattn_windows")
    ]
    for row in rows:
        assert row["note"] == ""
        assert row["tokens"] == row["places"] == "90"
        assert float(row["tokens_per_s"]) == pytest.approx(90e3 / float(row["ms"]), rel=0.05)
    assert {row["sees"] for row in rows} == {"whole documents, packed", "windows of 16, packed"}
    picture = (tmp_path / "documents-cpu.svg").read_text()
    assert "training, thousand tokens/s" in picture
    assert "quantattn_windows" in picture
    drawn = tmp_path / "documents-cpu.svg"
    drawn.unlink()
    assert call(monkeypatch, "bench=documents", f"draw={tmp_path / 'documents-cpu.csv'}") == 0
    assert drawn.read_text() == picture


def test_one_training_round_is_one_step_on_all_documents() -> None:
    reader = documents.Reader("quantattn", plan("quantattn"))
    for _ in range(8):
        reader.train()
    assert reader.losses[0] == pytest.approx(math.log(32), rel=0.4)
    assert reader.losses[-1] < reader.losses[0]
    assert all(int(state["step"]) == 8 for state in reader.optimizer.state.values())


def test_padding_is_counted_as_places_and_not_as_tokens() -> None:
    # 20 and 33 tokens in windows of 16: two and three windows of 16 places; whole, one call each.
    rows = [plan(name).row(name, "inference") for name in ("modernbert_sdpa", "quantattn_windows", "longformer_whole")]
    assert [(row.tokens, row.places) for row in rows] == [(53, 80), (53, 53), (53, 53)]


class Broken(nn.Module):
    """Says the same of every token."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.value = value

    def forward(self, feed: documents_peers.Feed) -> Tensor:
        return self.value + 0 * self.weight.expand(len(feed.documents), 64)


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_what_computes_nothing_is_not_timed(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "quantattn", Peer(lambda *_: Broken(value), None, False, "nothing"))
    (row,) = measure("quantattn")
    assert row.note == "not timed: its vectors are not finite, or equal for every document"
    assert row.failed


def test_what_is_not_there_and_time_that_ends_are_rows_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    rows = measure("longformer", "quantattn")
    assert "transformers" in rows[0].note
    assert rows[1].ms > 0
    assert not any(row.failed for row in rows)
    (row,) = measure("quantattn", limit_s=0.0)
    assert row.note == "not begun: the limit of 0 s was reached"
    assert not row.begun
    assert not row.failed


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("documents.peers=[longformers]", "documents.peers: there is no 'longformers'; did you mean 'longformer'?"),
        ("documents.passes=[train]", "documents.passes: there is no 'train'"),
        ("documents.precision=bf16", "documents.precision=bf16: expected one of bf16-mixed, bf16-true, 32-true"),
        ("documents.rounds=0", "documents.rounds must be a whole number of at least 1, got 0"),
        ("documents.windows.modernbert=0", "documents.windows.modernbert must be a whole number of at least 1, got 0"),
        ("documents.lengths.shortest=0", "documents.lengths: expected 0 < shortest"),
        ("documents.size=huge", "size must be one of tiny, small, base, long, got 'huge'"),
    ],
)
def test_what_is_refused(
    argument: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *TINY, OURS, argument) in (1, 2)
    assert sentence in capsys.readouterr().err.replace("\n", " ")


def test_a_picture_of_other_rows_is_refused() -> None:
    from quantattn.evaluate.documents import draw_documents

    with pytest.raises(ValueError, match="expected rows of bench=documents, got none with documents"):
        draw_documents([{"impl": "flex", "tflops": 1.0}])
    row = documents_plan.DocumentsRow("quantattn", "whole", "all", "32-true", 1, 1, 1, 1, 1, 1, 1)
    unmeasured = [{**vars(row), "pass": row.stage}]
    with pytest.raises(ValueError, match="got none that was measured"):
        draw_documents(unmeasured)
