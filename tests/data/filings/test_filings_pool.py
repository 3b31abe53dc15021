"""The pool of guarded children: what bombs do to a run, and what a run does with them."""

from __future__ import annotations

import ast
import contextlib
import gzip
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quantattn.data.filings.child as child
from quantattn.data.filings.parsed import OK, UNREADABLE, Parsed
from quantattn.data.filings.pool import DIED, MEMORY_LIMIT, TIME_LIMIT, Limits, ParsePool
from quantattn.data.sources.filings import scan_filings

Maker = Callable[..., str]
FORMS = ("10-K", "10-Q", "8-K")
NESTING_BOMB = "<pre>" * 100_000
"""Half a megabyte on which the parser spends many seconds and little memory."""
FORMATTING_BOMB = "".join(f"<p><font size={n}>x</p>" for n in range(20_000))
PAGE = "<html><body><p>FORM 10-K</p><p>{}</p></body></html>"


@pytest.fixture(scope="module")
def pool() -> Iterator[ParsePool]:
    with ParsePool(Limits(cpu_seconds=5, memory_mib=1_024), workers=1) as pool:
        yield pool


def put(folder: Path, content: str | bytes, name: str = "x") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def text_of(pool: ParsePool, path: Path) -> str:
    parsed = pool.parse(path, FORMS)
    assert parsed.status == OK, parsed
    assert parsed.text is not None
    return parsed.text


def test_bombs_end_their_child_and_not_the_run(tmp_path: Path, submission: Maker) -> None:
    """Every bomb is set aside with its reason and counted, and what its header said; the rest is read."""
    put(tmp_path, submission("A filing.", accession="0000000123-24-000001"), "a.txt")
    put(tmp_path, submission(f"<html><body>{NESTING_BOMB}", accession="0000000123-24-000002"), "b.txt")
    put(tmp_path, gzip.compress(b"\n" * 2**22), "c.gz")
    put(tmp_path, submission("<p>" * 3 + "x" * 2**21, accession="0000000123-24-000004"), "d.txt")
    put(tmp_path, submission("Another.", accession="0000000123-24-000005"), "e.txt")
    os.mkfifo(tmp_path / "f")
    source = scan_filings(tmp_path, limits=Limits(size_mib=1, file_mib=3, cpu_seconds=1), workers=2)
    assert source.documents.select("file", "form", "entity", "status", "detail").rows() == [
        ("a.txt", "10-K", "0000000123", "ok", ""),
        ("b.txt", "10-K", "0000000123", "time limit", "1 s of processor or 180 s in all"),
        ("c.gz", None, None, "size limit", "larger than 3,145,728 bytes"),
        ("d.txt", "10-K", "0000000123", "size limit", "a document of 2,097,161 characters, at most 1,048,576"),
        ("e.txt", "10-K", "0000000123", "ok", ""),
        ("f", None, None, "unreadable", "neither a file nor a folder"),
    ]
    assert source.report.rows_set_aside == {"size limit": 2, "time limit": 1, "unreadable": 1}
    assert source.frame.collect()["text"].to_list() == ["A filing.", "Another."]


def test_a_bomb_in_the_annual_report_leaves_the_filing(tmp_path: Path, submission: Maker) -> None:
    exhibit = f"<DOCUMENT>\n<TYPE>EX-13\n<SEQUENCE>2\n<TEXT>\n<html><body>{NESTING_BOMB}</TEXT>\n</DOCUMENT>\n"
    put(tmp_path, submission("Item 1. Business\nAnvils.", more=exhibit))
    source = scan_filings(tmp_path, items=True, limits=Limits(cpu_seconds=1), workers=1)
    (row,) = source.frame.collect().to_dicts()
    assert (row["text"], row["annual_report"]) == ("Item 1. Business\nAnvils.", None)
    (detail,) = source.documents["detail"]
    assert detail == "Exhibit 13: time limit (1 s of processor or 180 s in all)"
    assert any("1 annual reports (Exhibit 13) could not be read" in note for note in source.report.notes)


def test_memory_has_a_limit(tmp_path: Path) -> None:
    bomb, after = put(tmp_path, PAGE.format(FORMATTING_BOMB), "a"), put(tmp_path, PAGE.format("after"), "b")
    with ParsePool(Limits(cpu_seconds=20, memory_mib=256), workers=1) as pool:
        parsed = pool.parse(bomb, FORMS)
        # A parser that gets no memory says so, or dies of it.
        assert (parsed.status, parsed.detail) == (MEMORY_LIMIT, "256 MiB") or parsed.status == DIED
        assert text_of(pool, after) == "FORM 10-K\nafter"


@pytest.mark.parametrize("tag", ["div", "span", "table><tr><td", "b><p", "font><i"])
def test_deep_nesting_gives_text_or_a_limit(pool: ParsePool, tmp_path: Path, tag: str) -> None:
    depth = 20_000 if tag in ("div", "span") else 1_000
    parsed = pool.parse(put(tmp_path, PAGE.format(f"<{tag}>" * depth + "deep")), FORMS)
    assert (parsed.text == "FORM 10-K\ndeep") if parsed.status == OK else parsed.status == TIME_LIMIT
    assert tag not in ("div", "span") or parsed.status == OK


@pytest.mark.parametrize(
    "body",
    [
        "Item 1 " + "1, " * 400_000 + "x",
        "Item 1. Business\n" + "7\n" * 400_000,
        "* " * 500_000,
        "item 1 and " * 50_000,
        "Item 1\n" * 20_000,
        "PART I\n" * 20_000,
        "SIGNATURES\n" * 50_000,
        "&amp;" * 400_000,
        "words\n" + "begin 644 x\n" * 100_000,
        "\n" * 2_000_000 + "x",
        "a" + "\t " * 1_000_000 + "b",
        "a\tb" + " " * 1_000_000 + "c",
        "<PAGE>" + " " * 2_000_000 + "x",
    ],
    ids=lambda body: repr(body[:16]),
)
def test_a_long_text_of_one_kind_takes_no_time(pool: ParsePool, tmp_path: Path, submission: Maker, body: str) -> None:
    """Nothing of these is quadratic: two megabytes of them are read within the limit."""
    parsed = pool.parse(put(tmp_path, submission(body)), FORMS)
    assert (parsed.status, parsed.detail) == (OK, "")


def test_a_child_that_hangs_is_ended_at_the_limit_of_wall_time(tmp_path: Path) -> None:
    path = put(tmp_path, PAGE.format("text"))
    with ParsePool(Limits(wall_seconds=1.0), workers=1) as pool:
        assert text_of(pool, path)
        (stopped,) = pool.processes
        os.kill(stopped, signal.SIGSTOP)
        parsed = pool.parse(path, FORMS)
        assert (parsed.status, parsed.detail) == (TIME_LIMIT, "20 s of processor or 1 s in all")
        assert text_of(pool, path)
        assert stopped not in pool.processes


def test_pool_survives_the_death_of_a_child_between_files(tmp_path: Path) -> None:
    path = put(tmp_path, PAGE.format("text"))
    with ParsePool(workers=1) as pool:
        assert text_of(pool, path)
        (first,) = pool.processes
        os.kill(first, signal.SIGKILL)
        assert text_of(pool, path)
        assert pool.processes != (first,)


def test_killing_children_at_random_changes_nothing(tmp_path: Path, submission: Maker) -> None:
    for n in range(40):
        put(
            tmp_path, submission(f"<html><body>{'<p>words</p>' * 400}{n}", accession=f"0000000123-24-{n:06}"), f"{n:02}"
        )
    wanted = scan_filings(tmp_path, workers=1)
    with ParsePool(workers=2) as pool:
        stop, killed = threading.Event(), list[int]()

        def kill() -> None:
            while len(killed) < 15 and not stop.wait(0.1):
                for process in pool.processes[:1]:
                    with contextlib.suppress(ProcessLookupError):  # it may just have ended
                        os.kill(process, signal.SIGKILL)
                        killed.append(process)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            parsed = [pool.parse(path, FORMS) for path in sorted(tmp_path.iterdir())]
        finally:
            stop.set()
            killer.join()
    # A file whose fresh child is killed too is set aside and says so; none is lost, none has half of its text.
    texts = dict(wanted.frame.collect().select("file", "text").iter_rows())
    for path, each in zip(sorted(tmp_path.iterdir()), parsed, strict=True):
        assert each.text == texts[path.name] if each.status == OK else each.status == DIED
    assert sum(each.status != OK for each in parsed) <= len(killed)


def test_children_are_kept_from_file_to_file_and_end_with_the_pool(tmp_path: Path) -> None:
    path = put(tmp_path, PAGE.format("text"))
    with ParsePool(workers=3) as pool:
        assert pool.processes == ()  # none before it is needed
        assert text_of(pool, path)
        first = pool.processes
        assert len(first) == 1
        assert text_of(pool, path)
        assert pool.processes == first
    for process in first:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        ParsePool(workers=0)


def test_result_does_not_depend_on_what_the_child_did_before(pool: ParsePool, tmp_path: Path) -> None:
    path = put(tmp_path, PAGE.format("<table><tr><td>a</td><td>b</td></tr></table><pre>x    y</pre>"), "a")
    first = pool.parse(path, FORMS)
    pool.parse(put(tmp_path, "<pre><table><tr><td>unclosed" * 3, "b"), FORMS)
    assert pool.parse(path, FORMS) == first
    with ParsePool(workers=1) as fresh:
        assert fresh.parse(path, FORMS) == first


def test_a_file_that_is_gone_is_told(pool: ParsePool, tmp_path: Path) -> None:
    parsed = pool.parse(tmp_path / "gone", FORMS)
    assert (parsed.status, parsed.detail) == (UNREADABLE, "cannot be opened: No such file or directory")


def test_a_child_writes_no_file_and_leaves_no_core() -> None:
    """The kernel says what it may do: no file larger than nothing, no core, this much memory."""
    with ParsePool(Limits(memory_mib=512), workers=1) as pool:
        pool.parse(Path("gone"), FORMS)
        limits = Path(f"/proc/{pool.processes[0]}/limits").read_text()
    soft = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
    assert (soft["Max file size"], soft["Max core file size"]) == ("0", "0")
    assert soft["Max address space"] == str(512 * 2**20)
    assert int(soft["Max cpu time"]) <= 25


def test_memory_of_one_file_serves_the_next(pool: ParsePool, tmp_path: Path, submission: Maker) -> None:
    file = put(tmp_path, submission("Item 1. Business\n\nAnvils.\n", more="x" * 4_000_000))
    for _ in range(3):
        before = page_faults(pool) if pool.processes else 0
        text_of(pool, file)
    assert page_faults(pool) - before < 400  # the file alone has a thousand pages


def page_faults(pool: ParsePool) -> int:
    (child,) = pool.processes
    return int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[7])


def test_the_child_is_light() -> None:
    """It may load selectolax, the standard library and modules of ours that need no more than these."""
    here = Path(child.__file__).parent
    waiting, seen = ["child"], set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for node in ast.walk(ast.parse((here / f"{name}.py").read_text())):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for module in [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]:
                if module.startswith("quantattn.data.filings."):
                    waiting += [module.rpartition(".")[2]] if module.rpartition(".")[2] not in seen else []
                else:
                    assert module.split(".")[0] in {"selectolax", *sys.stdlib_module_names}, (name, module)
    assert {"parsing", "markup", "items"} <= seen


def test_answers_survive_the_pipe() -> None:
    parsed = Parsed(kind="html", ciks=("1",), text="é\n\t😀", share=0.5)
    assert Parsed.from_dict(parsed.as_dict()) == parsed
