"""The certificate: it passes for what is right, fails for what is wrong, and says so in words and in JSON."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quantattn.attention import api, checks, machine
from quantattn.attention import validate as validation
from quantattn.attention.certificate import Certificate, Errors, Finding
from quantattn.attention.exact import exact_attention
from quantattn.attention.parts import PARTS, Job
from quantattn.attention.state import Attended, AttentionState
from quantattn.attention.validate import expired, full_jobs, interpreted_jobs, main, validate

GOOD = Finding("tiled", "random: full", "float32", "forward", 1e-7, 2e-7, 4e-7, "pass")
CONTROL = Finding("control", "outputs averaged (practice)", "float32", "forward", 0.8, 0.0, 0.05, "pass")
REFUSED = Finding("sdpa", "random: bias", "float32", "forward", 0.0, 0.0, 0.0, "not offered", "a bias")
BAD = replace(GOOD, worst=1.0, verdict="fail")


@pytest.fixture(scope="module")
def certificate() -> Certificate:
    return validate(["exact", "tiled", "sdpa"], [torch.float32, torch.bfloat16])


def test_the_plain_backends_are_certified(certificate: Certificate) -> None:
    assert certificate.ok, certificate.statement()
    assert {f.backend for f in certificate.passed} == {"state", "control", "exact", "tiled", "sdpa"}
    assert {f.quantity for f in certificate.passed} == {"forward", "gradients", "bits", "lse"}
    refused = [f for f in certificate.findings if f.verdict == "not offered"]
    assert {f.backend for f in refused} == {"sdpa"}
    assert all("window" in f.note or "bias" in f.note for f in refused)


def test_it_says_no_in_the_figures_that_it_measured(certificate: Certificate) -> None:
    said = certificate.statement()
    assert said.startswith("Is it an approximation? No.")
    for dtype in ("float32", "bfloat16"):
        forward = [f for f in certificate.passed if (f.backend, f.dtype, f.quantity) == ("tiled", dtype, "forward")]
        worst = max((f for f in forward if f.case.startswith("random")), key=lambda f: f.worst)
        assert f"tiled in {dtype} is within {worst.worst:.2g} of float64" in said


def test_json_and_back_is_the_identity(certificate: Certificate) -> None:
    unusual = replace(GOOD, worst=math.inf, standard=0.0)
    both = certificate.joined(Certificate("a GPU", {"driver": "1"}, (unusual, REFUSED)))
    again = Certificate.from_json(both.to_json())
    assert again == both
    assert json.loads(both.to_json())["findings"][-2]["ratio"] == "inf"


def test_the_hash_changes_with_everything_that_it_says(certificate: Certificate) -> None:
    row = Errors("tiled", "float32", 64, 9, "full", "out", 1e-7, 1e-8, 9e-8, 2e-7, 1e-8, 1e-7, 0.3, 0.9, 1e-5, 0.01)
    base = replace(certificate, errors=(row,), configurations={"fwd": "64 × 64"})
    assert Certificate.from_json(base.to_json()) == base
    assert Certificate.from_json(base.to_json()).sha == base.sha
    first, *rest = base.findings
    changes: dict[str, Any] = {
        "device": "another",
        "versions": {**base.versions, "torch": "9"},
        "sources": {**base.sources, "kernels": "0"},
        "configurations": {"fwd": "128 × 64"},
        "errors": (replace(row, used=0.02),),
        "findings": tuple(rest),
    }
    altered = [replace(base, **{name: value}) for name, value in changes.items()]
    of_first: list[dict[str, Any]] = [{name: "x"} for name in ("backend", "case", "dtype", "quantity", "note")]
    of_first += [{name: 7.0} for name in ("worst", "standard", "allowed")]
    of_first += [{"verdict": "fail"}, {"cases": 7}, {"seeds": (0, 7)}]
    altered += [replace(base, findings=(replace(first, **change), *rest)) for change in of_first]
    assert len({base.sha, *(each.sha for each in altered)}) == len(altered) + 1


def test_the_hash_is_the_same_in_another_process() -> None:
    """Hashes of strings differ from process to process, and with them the order of a set."""
    ask = (
        "from quantattn.attention.validate import validate; import torch; "
        "print(validate(['exact'], [torch.float64]).sha)"
    )
    shas = {
        subprocess.run(
            [sys.executable, "-c", ask], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(shas) == 1


def test_the_hash_does_not_depend_on_the_number_of_threads() -> None:
    """Threads share out sums, whose last bits then depend on how many there are."""
    before, shas = torch.get_num_threads(), set()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            shas.add(validate(["exact"], [torch.float32]).sha)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert len(shas) == 1


def test_a_changed_file_is_no_certificate(certificate: Certificate) -> None:
    document = json.loads(certificate.to_json())
    document["findings"][0]["worst"] = 0.125
    with pytest.raises(ValueError, match=r"says sha256 \w+ of itself and has"):
        Certificate.from_json(json.dumps(document))
    del document["sources"]
    with pytest.raises(ValueError, match="this is no certificate: it lacks 'sources'"):
        Certificate.from_json(json.dumps(document))


@pytest.mark.parametrize("name", ["ok", "headline", "statement", "ranges"])
def test_words_that_do_not_follow_from_the_findings_are_no_certificate(certificate: Certificate, name: str) -> None:
    document = json.loads(certificate.to_json())
    with pytest.raises(ValueError, match=f"the certificate's {name} does not follow from its findings"):
        Certificate.from_json(json.dumps({**document, name: "Exact to the last bit."}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1, 2]", "it is a JSON list, expected an object"),
        ("{}", "it lacks 'device'"),
    ],
)
def test_a_text_that_is_something_else_is_one_sentence(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"this is no certificate: {said}"):
        Certificate.from_json(text)


@pytest.mark.parametrize(
    "change", [{"findings": 3}, {"findings": ["x"]}, {"versions": 3}, {"errors": None}, {"device": ["x"]}]
)
def test_a_field_of_another_kind_is_one_sentence(certificate: Certificate, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"this is no certificate: a field|says sha256 \w+ of itself"):
        Certificate.from_json(json.dumps(json.loads(certificate.to_json()) | change))


def test_it_expires_with_the_versions_and_sources_that_it_is_about(certificate: Certificate) -> None:
    assert expired(certificate) is None
    versions, sources = dict(certificate.versions), dict(certificate.sources)
    assert {"python", "torch"} <= set(versions)
    assert set(sources) == {"kernels", "attention"}
    assert certificate.expired(versions | {"polars": "1"}, sources) is None
    said = certificate.expired(versions | {"torch": "9.9"}, sources)
    assert said is not None
    assert said.endswith("and torch is 9.9: validate again")
    for name in sources:
        assert f"source files of {name}" in str(certificate.expired(versions, sources | {name: "0" * 64}))
    assert "torch is not there" in str(certificate.expired({"python": versions["python"]}, sources))


def test_the_source_hash_follows_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "attention"
    shutil.copytree(machine._HERE, here, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(machine, "_HERE", here)
    before = machine.sources()
    (here / "kernels" / "configs.py").write_text("# other blocks\n")
    after = machine.sources()
    assert before["kernels"] != after["kernels"]
    assert before["attention"] == after["attention"]
    (here / "tiled.py").rename(here / "tiled2.py")
    assert machine.sources()["attention"] != after["attention"]


def test_the_headline_has_both_roundings(certificate: Certificate) -> None:
    (single, low) = certificate.ranges()
    said = f"largest difference {single[1]:.2g} in float32, where standard attention's own rounding is {single[2]:.2g}"
    assert said in certificate.headline()
    assert f"{low[1]:.2g} in bfloat16, where it is {low[2]:.2g}" in certificate.headline()
    assert certificate.headline().startswith("Exact; ")
    assert Certificate("here", {}, (GOOD, BAD)).headline() == "Not certified."


def test_a_full_validation_is_every_part_of_every_backend_once() -> None:
    for device in (torch.device("cpu"), torch.device("cuda")):
        jobs = full_jobs(("tiled",), (torch.float64, torch.bfloat16), device)
        done = [(part, dtype, job.share) for job in jobs for part in job.parts for dtype in job.dtypes]
        assert len(set(done)) == len(done)
        assert {part for part, _, _ in done} == set(PARTS)
        assert {dtype for part, dtype, _ in done if part == "examples"} == {torch.float64, torch.bfloat16}
        for part in PARTS:
            shares = [share for name, dtype, share in done if name == part and dtype == torch.bfloat16]
            assert sorted(shares) == [(i, len(shares)) for i in range(len(shares))]
    asked = {(part, dtype) for job in interpreted_jobs((torch.float32,)) for part in job.parts for dtype in job.dtypes}
    assert ("theorems", torch.float32) in asked


def test_jobs_run_in_child_processes_and_join_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(("laws",), ("exact",), (torch.float32,)), Job(("examples",), ("tiled",), (torch.float64,))]
    monkeypatch.setattr(validation, "full_jobs", lambda *_: jobs)
    seen: list[Finding] = []
    certificate = validate(["tiled"], [torch.float32], full=True, progress=seen.append, workers=2)
    assert certificate.ok, certificate.statement()
    assert tuple(seen) == certificate.findings
    assert certificate.findings[0].backend == "state"
    assert certificate.findings[-1].backend == "tiled"
    assert certificate.device.count(";") == 0


def test_bad_requests_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        validate(["tiled"], workers=0)
    with pytest.raises(ValueError, match="a device is cpu, cuda or cuda:1 for the second GPU, got 'meta'"):
        validate(["tiled"], device="meta")
    for asked, said in (
        (["--part", "laws", "--share", "2/2"], "--share is I/N with I below N, got 2/2"),
        (["--share", "3/2"], "--share is I/N with I below N, got 3/2"),
        (["--device", "nope"], "a device is cpu, cuda or cuda:1 for the second GPU, got 'nope'"),
        (["--part", "laws", "--device", "nope"], "a device is cpu, cuda or cuda:1 for the second GPU, got 'nope'"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--workers", "0"], "a validation needs at least one worker, got 0"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(asked)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_one_failure_withdraws_the_certificate() -> None:
    assert Certificate("here", {}, (GOOD, CONTROL, REFUSED)).ok
    failed = Certificate("here", {}, (GOOD, BAD, CONTROL))
    assert not failed.ok
    assert failed.statement().startswith("Not certified: 1 of 3 checks failed, the first being tiled, random: full")


def test_nothing_checked_is_nothing_certified() -> None:
    for findings in ((), (REFUSED,)):
        assert not Certificate("here", {}, findings).ok
        assert "nothing is certified" in Certificate("here", {}, findings).statement()


def test_the_ratio_is_in_units_of_standard_attention() -> None:
    assert GOOD.ratio == 0.5
    assert replace(GOOD, worst=0.0, standard=0.0).ratio == 0
    assert replace(GOOD, standard=0.0).ratio == math.inf


def averages_the_halves(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, cu_k: Tensor, **options: Any) -> Attended:
    """An approximation: the mean of the answers over even and over odd keys, where both exist."""
    if k.shape[0] < 2 or cu.shape[0] != 2 or options["bias"] is not None:
        return exact_attention(q, k, v, cu, cu_k, **options)
    outs = []
    for start in (0, 1):
        part = cu_k.new_tensor([0, k[start::2].shape[0]])
        outs.append(exact_attention(q, k[start::2], v[start::2], cu, part, **options).out)
    return Attended((outs[0] + outs[1]) / 2, exact_attention(q, k, v, cu, cu_k, **options).lse)


def forgets_the_last_bit(*args: Tensor, **options: Any) -> Attended:
    """Not repeatable: its noise differs from call to call."""
    out, lse = exact_attention(*args, **options)
    return Attended(out * (1 + 1e-7 * torch.rand(out.shape)), lse)


@pytest.mark.parametrize(("wrong", "quantity"), [(averages_the_halves, "forward"), (forgets_the_last_bit, "bits")])
def test_a_wrong_backend_is_found(monkeypatch: pytest.MonkeyPatch, wrong: Any, quantity: str) -> None:
    monkeypatch.setitem(api._PLAIN, "exact", wrong)
    certificate = validate(["exact"], [torch.float32])
    assert not certificate.ok
    assert quantity in {f.quantity for f in certificate.failed}
    assert "control" not in {f.backend for f in certificate.failed}


def test_a_broken_algebra_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unrescaled(self: AttentionState, other: AttentionState) -> AttentionState:
        return AttentionState(torch.maximum(self.m, other.m), self.l + other.l, self.u + other.u)

    monkeypatch.setattr(AttentionState, "merge", unrescaled)
    verdicts = {f.case: f.verdict for f in checks.check_algebra(torch.float64)}
    assert verdicts["a ⊕ b = b ⊕ a"] == "pass"
    assert verdicts["(a ⊕ b) ⊕ c = softmax"] == "fail"


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="got cuda_magic"):
        validate(["cuda_magic"])


def test_progress_sees_every_finding_in_order() -> None:
    seen: list[Finding] = []
    certificate = validate(["tiled"], [torch.float64], progress=seen.append)
    assert tuple(seen) == certificate.findings


def test_the_command_writes_a_file_and_answers_with_its_exit_code(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--backend", "tiled", "--dtype", "float64"]
    assert main([*asked, "--json", str(tmp_path / "certificate.json")]) == 0
    written = Certificate.from_json((tmp_path / "certificate.json").read_text("utf-8"))
    assert main([*asked, "--json", "-"]) == 0
    assert Certificate.from_json(capsys.readouterr().out) == written
    monkeypatch.setattr(checks, "_VISIBLE", 100.0)  # every mistake now passes for right
    assert main([*asked, "--json", "-"]) == 1


def test_triton_goes_to_a_child_that_has_the_interpreter_on(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Certificate("cpu, interpreted", {"triton": "9"}, (replace(GOOD, backend="triton"),))
    calls: list[tuple[list[str], str]] = []

    def answer(command: list[str], env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, env["TRITON_INTERPRET"]))
        return subprocess.CompletedProcess(command, 0, stdout=child.to_json(), stderr="")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(subprocess, "run", answer)
    certificate = validate(["tiled", "triton"], [torch.float64])
    assert certificate.findings[-1] == child.findings[0]
    ((command, interpreted),) = calls
    assert interpreted == "1"
    assert command[0] == sys.executable
    assert {"--backend=triton", "--dtype=float64", "--part=random"} <= set(command)


def test_a_child_without_a_certificate_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    died = subprocess.CompletedProcess([], -11, stdout="", stderr="Segmentation fault")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: died)
    with pytest.raises(RuntimeError, match=r"code -11: Segmentation fault"):
        validate(["triton"], [torch.float64])


@pytest.mark.slow
def test_the_kernels_are_certified_under_the_interpreter() -> None:
    pytest.importorskip("triton")
    certificate = validate(["triton"], [torch.float16])
    assert certificate.ok, certificate.statement()
    assert {f.quantity for f in certificate.passed if f.backend == "triton"} == {"forward", "lse", "gradients", "bits"}
