"""A real browser for pages: headless Chromium, driven over its debugging pipe with nothing but the standard library."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantattn.evaluate import Check, ReportData, classification_figures, closing_table

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. Messages are JSON objects that end in a zero byte, written to descriptor 3 and read from 4."""

    def __init__(self, program: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The shell puts the two pipes where the browser looks for them, then becomes the browser.
        launch = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", launch, "browser", program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._last, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer; events that arrive meanwhile are kept in `events`."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, seconds: float = 30) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the browser said nothing for {seconds:.0f} s")
            piece = os.read(self._in, 1 << 16)
            if not piece:
                raise RuntimeError(f"the browser went away, exit status {self._process.wait()}")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Show a page and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script: str) -> Any:
        """The value of a script evaluated in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """What the page wrote to its console or log, and what it threw."""
        self.run("new Promise(done => setTimeout(done, 50))")
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """Addresses the page asked for."""
        sent = (event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium; skips when none is installed."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(NAMES)})")
    running = Browser(program, tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def report_data() -> ReportData:
    """A report on forecasts drawn from known probabilities."""
    rng = np.random.default_rng(0)
    n = 6000
    logits = rng.normal(size=(n, 3)) * 1.5
    oracle = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (rng.random((n, 1)) > oracle.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    time = 1_700_000_000 * 10**9 + np.arange(n) * 86_400 * 10**9 // 200
    model, linear, majority = (w * oracle + (1 - w) / 3 for w in (0.9, 0.5, 0.0))
    baselines = {"majority class": majority, "logistic regression": linear}
    table = closing_table(y, time, None, model, baselines, {"log_loss": 0.72, "accuracy": 0.68})
    steps = np.arange(0, 400, 5)
    curves = {
        "training": (steps, 0.8 + 0.35 * np.exp(-steps / 80)),
        "validation": (steps[::8], 0.82 + 0.33 * np.exp(-steps[::8] / 80)),
    }
    return ReportData(
        title="Synthetic market, tiny encoder",
        question="Whether the mid price of each of 64 simulated securities falls, stays or rises over the next "
        "20 events, from the last 512 events of its order book.",
        table=table,
        figures=classification_figures(y, model, time, ("down", "flat", "up"), linear, table, curves),
        rows={
            "events read": 1_200_000,
            "training decisions": 40_000,
            "validation decisions": 8_000,
            "test decisions": n,
        },
        dropped={"session end": 320, "halt": 12},
        checks=(
            Check("Label intervals end before the next part begins", True, "48,000 rows"),
            Check("Features are not later than decisions", True),
            Check("No label crosses a session end", None, "no sessions were given"),
            Check("Vocabulary fitted on training rows only", True, "until 2023-11-20 00:00 UTC"),
        ),
        certificate=Check("Attention exactness", True, "sdpa, float32: worst error 1.1 × standard attention's own"),
        settings={"model": "tiny", "trainer.max_steps": "400", "data.max_seq_len": "512", "seed": "0"},
        hashes={"data": "9f" * 32, "vocabulary": "c4" * 32, "commit": "ab" * 20},
        caveats=(
            "Prices are simulated: skill here says nothing about a real market.",
            "Costs of trading are not part of any figure on this page.",
        ),
        created="2026-11-29 18:00 UTC",
    )


@pytest.fixture(scope="session")
def certificate() -> dict[str, Any]:
    """A validation's plain values: passes, a failure, a refusal, a control, numbers that are not finite."""

    def finding(backend: str, dtype: str, case: str, worst: Any, standard: Any, allowed: Any, verdict: str) -> Any:
        found = {"backend": backend, "dtype": dtype, "case": case, "quantity": "forward", "verdict": verdict}
        return {**found, "worst": worst, "standard": standard, "allowed": allowed, "note": f"about {case}", "ratio": 0}

    findings = [
        finding("tiled", "float32", "random: ragged", 3e-7, 4e-7, 1e-6, "pass"),
        finding("tiled", "float32", "random: window", 6e-7, 3e-7, 1e-6, "pass"),
        finding("tiled", "float16", "random: ragged", 3e-3, 1e-3, 2e-3, "fail"),
        finding("tiled", "float64", "example: two blocks", 0.0, 0.0, 0.0, "pass"),
        finding("sdpa", "float16", "example: an additive −∞", "nan", 0.0, 0.0, "not offered"),
        finding("control", "float64", "block outputs averaged", 0.83, 0.0, 0.05, "pass"),
        finding("tiled", "bfloat16", "random: ragged", "inf", 1e-3, 2e-3, "fail"),
    ]
    said = "Not certified: 2 of 6 checks failed.\nA second line."
    return {"ok": False, "statement": said, "device": "cpu", "versions": {"torch": "2.13"}, "findings": findings}


@pytest.fixture(scope="session")
def full_certificate() -> dict[str, Any]:
    """A full validation's plain values, everything passed but one theorem of one implementation being not offered."""

    def finding(backend: str, case: str, quantity: str, worst: float, allowed: float, **other: Any) -> Any:
        found = {"backend": backend, "dtype": "bfloat16", "case": case, "quantity": quantity, "verdict": "pass"}
        found |= {
            "worst": worst,
            "standard": 0.0,
            "allowed": allowed,
            "note": "",
            "ratio": 0,
            "cases": 9,
            "seeds": None,
        }
        return {**found, **other}

    findings = [
        finding("tiled", "random: ragged", "forward", 5e-3, 2e-2, standard=9e-3),
        finding("tiled", "theorem: masked is removed", "forward", 5e-3, 2e-2, seeds=[0, 2]),
        finding("sdpa", "theorem: masked is removed", "forward", 1e-2, 2e-2, seeds=[0, 2]),
        finding("tiled", "theorem: changing the future changes no earlier bit", "bits", 0.0, 0.0, seeds=[0, 2]),
        finding("tiled", "feature: softcap", "forward", 4e-3, 3e-2),
        finding("tiled", "feature: softcap, again", "bits", 0.0, 0.0),
        finding("sdpa", "feature: softcap", "forward", 0.0, 0.0, verdict="not offered", note="no softcap"),
        finding("tiled", "repeat: 100 times the same call", "bits", 0.0, 0.0, cases=100),
        finding("tiled", "memory: N 512 to 4096", "slope", 0.96, 1.1, note="2.5 MiB at 512"),
        finding("control", "memory: N 512 to 2048", "slope", 1.96, 1.6),
        finding("tiled", "fuzz: 60 sorts of problems", "failures", 0.0, 0.0, cases=120, seeds=[0, 1]),
        finding("control", "planted: small weights dropped", "caught", 0.02, 0.01),
        finding("tiled", "bound: causal, D 64, N 1024", "forward", 4e-3, 5e-2, standard=9e-3),
        finding("tiled", "random: table, causal, D 64, N 1024", "forward", 4e-3, 2e-2, standard=9e-3),
    ]
    row = {"backend": "tiled", "dtype": "bfloat16", "d": 64, "length": 1024, "mask": "causal", "ratio": 0.44}
    sizes = {"worst": 4e-3, "mean": 1e-4, "q999": 2e-3, "standard": 9e-3, "standard_mean": 3e-4, "standard_q999": 5e-3}
    units = {"ulp_median": 0.26, "ulp_q999": 0.6}
    errors = [
        {**row, **sizes, **units, "result": "out", "bound": 5e-2, "used": 0.3},
        {**row, **sizes, **units, "result": "dq", "bound": 0.0, "used": 0.0},
    ]
    return {
        "ok": True,
        "statement": "Is it an approximation? No.\n  tiled in bfloat16 is within 0.005 of float64.",
        "headline": "Exact; largest difference 0.005 in bfloat16, where standard attention's own rounding is 0.009.",
        "sha": "ab" * 32,
        "device": "cpu",
        "versions": {"torch": "2.13", "driver": "550.54"},
        "sources": {"kernels": "cd" * 32, "attention": "ef" * 32},
        "configurations": {"fwd, 16 bits, D up to 64": "64 × 128, 4 warps, 3 stages"},
        "ranges": [{"dtype": "bfloat16", "worst": 5e-3, "standard": 9e-3}],
        "findings": findings,
        "errors": errors,
    }
