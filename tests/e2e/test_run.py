"""``allranks run`` from a matrix file to a report, on both engines."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from junit2htmlreport.parser import Junit
from junitparser import JUnitXml, Properties
from long_lists import quick

from allranks.protocol.skip_codes import SkipCode
from allranks.testing.shared_files import wait_until

ROOT = Path(__file__).parents[2]

ON_ONE_ENGINE = pytest.mark.parametrize(
    "engine",
    [pytest.param("docker", marks=pytest.mark.docker), pytest.param("process", marks=pytest.mark.thorough)],
    indirect=True,
)
"""For what an engine has little to do with."""

EVERY_END = """
import os
import signal

import pytest
import torch.distributed as dist


def test_passing():
    pass


def test_skipped():
    pytest.skip("not today")


def test_failing():
    assert dist.get_rank() == 0


def test_crashing():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)


def test_hanging():
    if dist.get_rank() == 0:
        signal.pause()
"""

ENDLESS = """
import signal

import torch.distributed as dist


def test_failing():
    assert dist.get_rank() == 0


def test_endless():
    signal.pause()
"""


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.setenv("ALLRANKS_GPUS", "")


def counts_by_junitparser(path):
    suites = list(JUnitXml.fromfile(path))
    bad = sum(suite.failures + suite.errors for suite in suites)
    return sum(suite.tests for suite in suites), bad, sum(suite.skipped for suite in suites)


def counts_by_junit2html(path):
    suites = list(Junit(filename=str(path)).suites)
    tests, bad, skipped = (sum(map(len, lists)) for lists in zip(*map(lists_of, suites), strict=True))
    return tests, bad, skipped


def lists_of(suite):
    return suite.all(), suite.failed(), suite.skipped()


def test_every_way_to_end_has_its_verdict_and_names_its_rank(launch, scratch, engine):
    done = launch(scratch(EVERY_END), "--engine", engine)
    assert done.code == 1, done.output
    assert done.output.rstrip().endswith("exit code 1: tests failed")
    printed = {name: [(type(r).__name__, r.message) for r in case.result] for name, case in done.cases.items()}
    assert printed["test_passing"] == []
    assert [kind for kind, _ in printed["test_skipped"]] == ["Skipped"]
    for name, kind, start in (
        ("test_failing", "Failure", "rank 1 failed"),
        ("test_crashing", "Error", "rank 1 was killed by SIGSEGV"),
        ("test_hanging", "Error", "rank 0 timed out"),
    ):
        [(found, message)] = printed[name]
        assert found == kind
        assert message.startswith(start)


@pytest.mark.thorough
def test_another_reader_of_junit_counts_the_same(launch, scratch):
    done = launch(scratch(EVERY_END), "--engine", "process", "--", "-k", "not hanging")
    report = done.folder / "junit.xml"
    assert counts_by_junitparser(report) == counts_by_junit2html(report) == (4, 2, 1)


@pytest.mark.parametrize(
    "engine",
    [pytest.param("process", marks=pytest.mark.thorough), pytest.param("docker", marks=pytest.mark.docker)],
    indirect=True,
)
def test_the_suites_of_this_repository_pass(launch, engine):
    done = launch(ROOT, "gloo-w2-g0-env", "--engine", engine, "--", "-k", "broadcast")
    assert done.code == 0, done.output
    assert len(done.cases) > 3
    assert all(case.is_passed for case in done.cases.values())
    assert (done.folder.parent / "latest" / "junit.xml").exists()
    [record] = [json.loads(path.read_text()) for path in done.folder.glob("cells/*/*/attempt-1/job.json")]
    assert (record["engine"], record["exit_status"], record["error"]) == (engine, 0, None)
    assert record["deselected"] > 0


@pytest.mark.usefixtures("no_gpus")
def test_a_cell_whose_gpus_are_not_here_is_skipped_test_by_test_with_torchs_code(launch, engine):
    from torch.distributed import is_nccl_available

    done = launch(ROOT, "nccl-w2-g2-env", "--engine", engine, "--", "-k", "broadcast")
    assert done.code == 5, done.output
    assert len(done.cases) > 3
    # What lacks first: NCCL in a CPU build of torch, as the image has it, or else the GPU.
    expected = SkipCode.NO_CUDA if engine == "process" and is_nccl_available() else SkipCode.BACKEND_UNAVAILABLE
    for case in done.cases.values():
        assert case.is_skipped
        assert {prop.name: prop.value for prop in case.child(Properties)}["allranks.skip_code"] == str(int(expected))
        assert "GPU" in case.result[0].message


@ON_ONE_ENGINE
def test_a_suite_with_a_syntax_error_is_told_by_its_line(launch, scratch, engine):
    done = launch(scratch("def test_x(:\n"), "--engine", engine)
    assert done.code == 1
    assert "SyntaxError" in done.output
    [case] = done.cases.values()
    assert "test_tiny.py cannot be collected" in case.result[0].message


HOSTILE = r"""
import os, signal, subprocess

def test_says_what_no_terminal_can_show():
    raise ValueError("bad \ud800 surrogate")

def test_kills_its_agent(rank):
    if rank == 0:
        subprocess.Popen(["sleep", "3110"], start_new_session=True)
        os.kill(os.getppid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_words_of_a_test_that_cannot_be_printed_end_nothing(launch, scratch):
    done = launch(scratch(HOSTILE), "--engine", "process", "--", "-k", "terminal")
    assert done.code == 1, done.output
    assert "surrogate" in done.output
    assert (done.folder / "junit.xml").exists()


@pytest.mark.thorough
def test_an_agent_that_is_killed_takes_what_its_ranks_had_started_with_it(launch, scratch):
    # `launch` asserts that nothing of the run is left
    done = launch(scratch(HOSTILE), "--engine", "process", "--", "-k", "agent")
    assert done.code == 3, done.output
    assert "The agent ended before its work was done, with status -9" in done.output


@pytest.mark.thorough
def test_a_suite_without_tests_is_an_error(launch, scratch):
    done = launch(scratch("VALUE = 1\n"), "--engine", "process")
    assert done.code == 5
    assert "No test was collected" in done.output


@pytest.mark.thorough
def test_a_suite_that_skips_as_a_whole_ran_nothing(launch, scratch):
    suite = "import pytest\npytest.skip('no GPU', allow_module_level=True)\n"
    done = launch(scratch(suite), "--engine", "process")
    assert done.code == 5, done.output


@pytest.mark.thorough
def test_a_selection_that_leaves_nothing_ran_nothing(launch, scratch):
    done = launch(scratch(EVERY_END), "--engine", "process", "--", "-k", "nosuch")
    assert done.code == 5, done.output
    assert "deselected all of its tests" in done.output


@pytest.mark.thorough
def test_stopping_at_the_first_failure_leaves_the_rest_unrun(launch, scratch):
    done = launch(scratch(EVERY_END), "--engine", "process", "--", "-x")
    assert done.code == 1, done.output
    assert "test_hanging" not in done.output
    assert done.cases["test_hanging"].is_skipped


TWO_ENDS = """\
def test_green():
    pass


def test_red_on_one_rank(rank):
    assert rank == 0
"""


@ON_ONE_ENGINE
def test_what_failed_last_can_be_run_alone_whatever_ran_in_between(launch, scratch, engine):
    repository = scratch(TWO_ENDS)
    assert set(launch(repository, "--engine", engine).cases) == {"test_green", "test_red_on_one_rank"}
    replace(launch, run_id=f"{launch.run_id}-2")(repository, "--engine", engine, "--", "-k", "green")
    third = replace(launch, run_id=f"{launch.run_id}-3")
    assert set(third(repository, "--engine", engine, "--", "--lf").cases) == {"test_red_on_one_rank"}


SHARED = """
import time

import pytest


@pytest.mark.isolation("test")
@pytest.mark.parametrize("tenths", [1, 2, 3])
def test_sleeping(tenths, rank):
    time.sleep(tenths / 10)


@pytest.mark.isolation("test")
def test_red_on_one_rank(rank):
    assert rank == 0
"""


@ON_ONE_ENGINE
def test_shards_run_a_suite_together_and_what_failed_in_it_alone_afterwards(launch, scratch, engine):
    folder = scratch(SHARED)
    matrix = folder / "matrix.toml"
    matrix.write_text(matrix.read_text().replace('path = "suite"', 'path = "suite"\nshards = 2'))
    done = launch(folder, "--engine", engine)
    assert done.code == 1, done.output
    assert sorted(done.cases) == ["test_red_on_one_rank", *(f"test_sleeping[{tenths}]" for tenths in (1, 2, 3))]
    known = json.loads((folder / ".allranks-durations.json").read_text())["seconds"]["tiny"]["gloo"]
    assert sorted(known) == [f"suite/test_tiny.py::test_sleeping[{tenths}]" for tenths in (1, 2, 3)]
    again = replace(launch, run_id=f"{launch.run_id}-2")(folder, "--engine", engine, "--", "--lf")
    assert again.code == 1, again.output
    assert list(again.cases) == ["test_red_on_one_rank"]


def test_a_results_folder_that_cannot_be_used_is_said_before_anything_runs(launch, scratch):
    launch.results.write_text("a file in the way")
    done = launch(scratch(EVERY_END), "--engine", "process")
    assert done.code == 4
    assert "cannot be used" in done.output
    assert "--results" in done.output
    assert "Traceback" not in done.output
    assert "running" not in done.output


@pytest.mark.thorough
def test_a_python_without_torch_is_told_and_never_green(launch, scratch):
    folder = scratch(EVERY_END)
    (folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    wrapper = folder / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{folder}" exec {shlex.quote(sys.executable)} "$@"\n')
    wrapper.chmod(0o755)
    matrix = (folder / "matrix.toml").read_text()
    (folder / "matrix.toml").write_text(matrix.replace(repr(sys.executable), "'./python'"))
    done = launch(folder, "--engine", "process")
    assert done.code == 4, done.output
    assert "cannot import torch" in done.output


def wait_for(process, text):
    """Read what a run says until it says this."""
    heard = []
    for line in process.stdout:
        heard.append(line)
        if text in line:
            return
    pytest.fail("".join(heard))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.thorough)])
def test_an_interrupt_ends_a_run_with_a_partial_report(launch, scratch, engine, number):
    with launch.start(scratch(ENDLESS), "--engine", engine) as process:
        wait_for(process, "first failure")
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in output
    report = JUnitXml.fromfile(launch.results / launch.run_id / "junit.xml")
    cases = {case.name: case for suite in report for case in suite}
    assert cases["test_failing"].result[0].message.startswith("rank 1 failed")


@pytest.mark.thorough
def test_a_second_run_of_one_id_is_refused_while_the_first_one_lives_and_after_it(launch, scratch, monkeypatch):
    monkeypatch.delenv("ALLRANKS_INVOCATION_ID", raising=False)  # these tests may be run by nox themselves
    folder = scratch(ENDLESS)
    with launch.start(folder, "--engine", "process") as process:
        wait_for(process, "first failure")
        before = sorted((launch.results / launch.run_id / "cells").rglob("attempt-*"))
        for arguments in ((), ("--", "-k", "failing")):
            second = launch(folder, "--engine", "process", *arguments)
            assert second.code == 2, second.output
            assert "is being run by another process" in second.output
            assert "Traceback" not in second.output
            assert "running" not in second.output
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    third = launch(folder, "--engine", "process")
    assert third.code == 2, third.output
    assert "has already been run" in third.output
    assert sorted((launch.results / launch.run_id / "cells").rglob("attempt-*")) == before


@pytest.mark.thorough
def test_a_cell_and_its_prefix_run_one_after_the_other_under_one_nox(launch, scratch, monkeypatch):
    monkeypatch.setenv("ALLRANKS_INVOCATION_ID", "one-nox")
    folder = scratch(TWO_ENDS)
    with launch.start(folder, "--engine", "process") as first:
        second = launch(folder, "--engine", "process")
        output, _ = first.communicate(timeout=60)
    assert (first.returncode, second.code) == (1, 1), output + second.output
    attempts = list((launch.results / launch.run_id / "cells").glob("*/*/attempt-*"))
    assert {path.name for path in attempts} == {"attempt-1", "attempt-2"}
    records = [json.loads((path / "job.json").read_text()) for path in sorted(attempts)]
    assert records[0]["finished"] < records[1]["started"]


def test_what_a_killed_run_left_is_cleaned_up(launch, scratch, engine, left_of):
    with launch.start(scratch(ENDLESS), "--engine", engine) as process:
        wait_for(process, "first failure")
        assert left_of(launch.run_id) != []
        process.kill()
        process.wait()
    subprocess.run([sys.executable, "-m", "allranks", "clean"], check=True)
    assert wait_until(lambda: left_of(launch.run_id) == [], timeout=30)  # a run that starts now may be at it already
    merge = [sys.executable, "-m", "allranks", "report", str(launch.results / launch.run_id)]
    merged = subprocess.run(merge, capture_output=True, text=True, env=os.environ, check=False)
    assert merged.returncode == 3, merged.stderr
    report = JUnitXml.fromfile(launch.results / launch.run_id / "junit.xml")
    cases = {case.name: case for suite in report for case in suite}
    assert cases["test_failing"].result[0].message.startswith("rank 1 failed")


@ON_ONE_ENGINE
def test_a_run_that_was_killed_is_gone_on_with_and_what_failed_in_it_is_run_again(launch, scratch, engine):
    folder = scratch(ENDLESS)
    with launch.start(folder, "--engine", engine) as process:
        wait_for(process, "first failure")
        process.kill()
        process.wait()
    suite = folder / "suite" / "test_tiny.py"
    ends = f"{TWO_ENDS}\n\ndef test_failing():\n    pass\n"
    suite.write_text(ends)
    resumed = launch(folder, "--engine", engine, "--resume")
    assert resumed.code == 1, resumed.output
    assert set(resumed.cases) == {"test_green", "test_red_on_one_rank", "test_failing"}
    suite.write_text(ends.replace("rank == 0", "rank >= 0"))
    mended = launch(folder, "--engine", engine, "--lf")
    assert mended.code == 0, mended.output
    assert set(mended.cases) == set(resumed.cases)
    assert "2 flaky or fixed tests" in mended.output


FLAKY = """\
import pathlib


def test_good():
    pass


def test_passes_the_second_time():
    once = pathlib.Path({once!r})
    if not once.exists():
        once.touch()
        raise AssertionError
"""


@pytest.mark.thorough
def test_what_passes_when_tried_again_is_good_and_flaky(launch, scratch, tmp_path):
    done = launch(scratch(FLAKY.format(once=str(tmp_path / "once"))), "--engine", "process", "--reruns", "1")
    assert done.code == 0, done.output
    assert set(done.cases) == {"test_good", "test_passes_the_second_time"}
    assert "retrying 1 test (1 of 1)" in done.output
    assert "1 flaky or fixed test" in done.output


@ON_ONE_ENGINE
def test_what_cannot_be_collected_is_red_beside_tests_that_run(scratch, launch, engine):
    folder = scratch("def test_fine(): pass\n")
    (folder / "suite" / "test_broken.py").write_text("import there_is_no_such_module\n")
    done = launch(folder, "--engine", engine)
    assert done.code == 1, done.output
    assert done.cases["test_fine"].is_passed
    assert "there_is_no_such_module" in done.cases["collection"].result[0].text


@ON_ONE_ENGINE
def test_a_suite_is_what_its_patterns_match_but_for_what_it_excludes(scratch, launch, engine):
    folder = scratch("def test_in_the_folder(): pass\n")
    for name in ("more/test_one", "more/test_two", "suite/test_slow"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(f"def {name.partition('/')[2]}(): pass\n")
    matrix = (folder / "matrix.toml").read_text()
    paths = 'path = ["more/*.py", "suite"]\nexclude = ["**/test_slow.py", "more/test_two.py"]'
    (folder / "matrix.toml").write_text(matrix.replace('path = "suite"', paths))
    done = launch(folder, "--engine", engine)
    assert done.code == 0, done.output
    assert set(done.cases) == {"test_in_the_folder", "test_one"}


@pytest.mark.parametrize(
    ("conftest", "arguments", "code"),
    quick(
        1,
        [
            ("", ("-k", "nosuch"), 5),
            ("def pytest_sessionfinish(session): session.exitstatus = 1\n", (), 1),
            pytest.param("", (), 0, marks=pytest.mark.thorough),
        ],
    ),
)
def test_the_exit_code_that_pytest_would_have(scratch, launch, conftest, arguments, code):
    folder = scratch("def test_fine(): pass\n")
    (folder / "suite" / "conftest.py").write_text(conftest)
    done = launch(folder, "--engine", "process", "--", *arguments)
    assert done.code == code, done.output


@pytest.mark.thorough
def test_a_rank_is_debugged_on_the_terminal_of_the_run(scratch, launch):
    folder = scratch("def test_stops(rank):\n    breakpoint()\n    assert rank == 0\n")
    command = [sys.executable, "-m", "allranks", "run", "--results", str(launch.results), "--pdb-rank", "0"]
    own, theirs = pty.openpty()
    with subprocess.Popen(
        command, cwd=folder, env={**os.environ, "ALLRANKS_RUN_ID": launch.run_id},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = ""
        for wanted, typed in (("(rank 0) ", "p 'rank', rank\n"), ("('rank', 0)", "c\n"), ("exit code 1", "")):
            while wanted not in seen:
                assert select.select([own], [], [], 120)[0], seen
                seen += os.read(own, 4096).decode()
            seen = seen.partition(wanted)[2]
            os.write(own, typed.encode())
        assert process.wait(60) == 1
    os.close(own)
