"""Any bytes in any file, and anything in its place: a report, a documented exit code, other jobs as they were."""

import json
import os
import shutil
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_lists import quick

from allranks.errors import AllranksError
from allranks.report.input_rule import InputRule
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.summary import render_table

GOOD, OTHER = "gloo-w2-g0-env/s", "gloo-w2-g0-tcp/s"
ATTEMPT = f"cells/{OTHER}/attempt-1"
A = "t.py::test_a"
PLACES = [
    "run.json", f"{ATTEMPT}/job.json", f"{ATTEMPT}/rank-0.xml", f"{ATTEMPT}/rank-1.xml", f"{ATTEMPT}/rank-2.xml",
    f"{ATTEMPT}/events.jsonl", f"{ATTEMPT}/rank-0.log", "junit.xml", "junit-2.xml", "report.html", "report.json",
    "summary.md", ".junit.xml.unfinished", ".report.html.unfinished", ".merge.lock", "elsewhere/run.json",
    "elsewhere/cells/x/s/attempt-1/rank-0.xml", f"cells/{OTHER}/attempt-2/job.json",
    f"cells/{OTHER}/attempt-2/rank-0.xml", ATTEMPT, f"cells/{OTHER}", "cells/x", "elsewhere", "cells/x/s/attempt-1",
]  # fmt: skip
OF_MERGE = {
    "junit.xml", "junit-2.xml", "report.html", "report.json", "summary.md", ".junit.xml.unfinished",
    ".report.html.unfinished", ".merge.lock",
}  # fmt: skip
SAID = {
    "rank": "9" * 20, "world_size": "-1", "nodeid": "&#9;", "at": "1e308", "skip_code": "9" * 20, "outcome": "missing",
    "caused_by": "7",
}  # fmt: skip
PIECES = [
    *(f"<property name='allranks.{name}' value='{value}'/>" for name, value in SAID.items()),
    *("<testsuites>", "</testsuites>", "<testsuite tests='1'>", "</testsuite>", "<testcase name='a'>", "</testcase>"),
    *("<testcase name='a' time='1e308' status='odd'/>", "<failure>", "</failure>", "<skipped/>", "<rerun/>", "]]>"),
    *("&amp;", "\x00", "<![CDATA[", "<!--", "-->", "<?xml version='1.0'?>", "\udcff"),
]
XML = st.lists(st.sampled_from(PIECES), max_size=12).map(
    lambda parts: "".join(parts).encode(errors="surrogateescape"),
)
BYTES = st.one_of(st.binary(max_size=300), XML, XML.map(lambda xml: b"<testsuites><testsuite>" + xml))


def write(folder):
    """A run of two jobs in which all is well."""
    jobs = [job.split("/") for job in (GOOD, OTHER)]
    manifest = {
        "schema": 2,
        "run_id": "r1",
        "allranks": "0",
        "cells": {cell: {"backend": "gloo", "world_size": 2} for cell, _ in jobs},
        "jobs": [{"cell": cell, "suite": suite} for cell, suite in jobs],
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    for job in (GOOD, OTHER):
        attempt = folder / "cells" / job / "attempt-1"
        attempt.mkdir(parents=True)
        (attempt / "job.json").write_text(json.dumps({"schema": 2, "world_size": 2, "collected": [A]}))
        for rank in range(2):
            case = f'<testcase name="{A}" time="0.1"/>'
            (attempt / f"rank-{rank}.xml").write_text(
                f'<testsuites><testsuite tests="1">{case}</testsuite></testsuites>'
            )


def clear(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def judged(folder):
    """Merges and renders: the exit code, and the verdicts of the job that nothing was done to."""
    suites: list[CellSuite] = []
    merged = merge(folder, environ={}, observers=[suites.append])
    assert render_table(merged)
    for path in (merged.junit, merged.page, merged.summary):
        path.read_text(encoding="utf-8")
    good = next(suite for suite in suites if suite.id == GOOD)
    return int(exit_code(merged, nothing_ran_allowed=False)), [test.verdict.kind for test in good.tests]


def check(folder, place):
    """That the other job is as it was, and that nothing that is absent is green."""
    try:
        code, kinds = judged(folder)
    except AllranksError as error:
        refused = error
    else:
        refused = None
    if refused:  # merge would overwrite what is not its own
        assert place in OF_MERGE
        assert refused.exit_code in {2, 4}
        assert refused.remedy
        return
    assert kinds == ["passed"]
    assert code in {0, 1, 3}
    if place.startswith(f"{ATTEMPT}/") and place.endswith(("job.json", "rank-0.xml", "rank-1.xml")):
        assert code != 0


@given(place=st.sampled_from(PLACES), content=BYTES)
def test_any_bytes_in_any_file(tmp_path_factory, place, content):
    folder = tmp_path_factory.mktemp("run")
    write(folder)
    path = folder / place
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    check(folder, place)
    shutil.rmtree(folder)


@given(
    place=st.sampled_from([place for place in PLACES if place.endswith((".json", ".xml")) and "attempt-1" in place]),
    at=st.integers(0, 300),
    piece=BYTES,
    taken=st.integers(0, 20),
)
def test_any_damage_to_a_file_that_was_good(tmp_path_factory, place, at, piece, taken):
    folder = tmp_path_factory.mktemp("run")
    write(folder)
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    content = path.read_bytes() if path.exists() else b""
    path.write_bytes(content[:at] + piece[:20] + content[at + taken :])
    code, kinds = judged(folder)
    assert kinds == ["passed"]
    assert code in {0, 1, 3}
    shutil.rmtree(folder)


def _socket(path):
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


MAKERS = {
    "fifo": os.mkfifo,
    "socket": _socket,
    "folder": os.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "up": lambda path: path.symlink_to(".."),
    "nowhere": lambda path: path.symlink_to("nowhere"),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "process": lambda path: path.symlink_to("/proc/self/mem"),
    "empty": lambda path: path.write_bytes(b""),
    "sparse": lambda path: os.truncate(path, 1 << 24) if path.write_bytes(b"") is not None else None,
}


@pytest.mark.parametrize("make", quick(1, MAKERS.values()), ids=MAKERS)
@pytest.mark.parametrize("place", quick(1, PLACES))
def test_anything_in_any_place(tmp_path, place, make):
    write(tmp_path)
    path = tmp_path / place
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    check(tmp_path, place)


@given(times=st.lists(st.floats() | st.sampled_from([1e308, -1e308, 1e15, 1e9]), min_size=1, max_size=4))
def test_any_durations(tmp_path_factory, times):
    folder = tmp_path_factory.mktemp("run")
    cases = "".join(f'<testcase name="{number}" time="{time}"/>' for number, time in enumerate(times))
    (folder / "rank-0.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    merged = merge(folder, InputRule(world_size=1), environ={})
    good = next((at for at, time in enumerate(times) if not 0 <= time <= 1e9), len(times))
    assert merged.counts.passed == good
    assert merged.counts.errors == (good < len(times))
    assert 0 <= merged.counts.time <= len(times) * 1e9
    assert render_table(merged)


@pytest.mark.parametrize("make", [MAKERS["loop"], MAKERS["fifo"], MAKERS["nowhere"], MAKERS["empty"]])
def test_a_folder_that_is_none_is_an_error_of_usage(tmp_path, make):
    make(tmp_path / "run")
    with pytest.raises(AllranksError, match=r"no results folder|is a file") as caught:
        merge(tmp_path / "run", environ={})
    assert caught.value.exit_code == 2
