"""What no run leaves, and somebody will: other things than files, links in a circle, folders without end."""

import os
import socket
import stat
import subprocess

import pytest

from allranks.errors import ExitCode
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.untrusted import head, leads_out, open_regular, special, walk

JOB = "gloo-w2-g0-env/s"
A = "t.py::test_a"
REPORTS = ("junit.xml", "report.html", "report.json", "summary.md")


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(f"/proc/self/fd/{folder}/{path.name}")  # the path itself may be too long for a socket
    finally:
        os.close(folder)


def make_loop(path):
    path.symlink_to(path.name)


def make_link(path):
    path.symlink_to("nowhere")


def make_link_to_device(path):
    path.symlink_to("/dev/zero")


MAKERS = {
    "a FIFO": make_fifo,
    "a socket": make_socket,
    "a folder": lambda path: path.mkdir(),
    "a link": make_loop,
}
ODD = [*MAKERS.values(), make_link, make_link_to_device]


def judged(folder):
    suites: list[CellSuite] = []
    merged = merge(folder, environ={}, observers=[suites.append])
    tests = {test.nodeid: test.verdict for suite in suites for test in suite.tests}
    return tests, exit_code(merged, nothing_ran_allowed=False)


@pytest.fixture
def good(run_folder):
    """A run in which all is well."""
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    return run_folder


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", ["rank-1.xml", "rank-7.xml"])
def test_what_is_named_like_a_ranks_file_and_is_none_is_an_error_that_says_what_it_is(good, kind, name):
    path = good.attempt(JOB) / name
    path.unlink(missing_ok=True)
    MAKERS[kind](path)
    tests, code = judged(good.path)
    assert tests[f"allranks::rank {name[5]}"].message == f"{name} is {kind}, not a regular file, and was not read."
    assert code is ExitCode.UNACCOUNTED


def test_a_link_from_one_ranks_file_to_another_is_no_result(good):
    path = good.attempt(JOB) / "rank-1.xml"
    path.unlink()
    path.symlink_to("rank-0.xml")
    tests, code = judged(good.path)
    assert "rank-1.xml is a link" in tests[A].message
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("name", ["run.json", "cells/gloo-w2-g0-env/s/attempt-1/job.json"])
def test_a_record_that_is_no_file_is_an_error_and_the_results_are_kept(good, make, name):
    (good.path / name).unlink()
    make(good.path / name)
    tests, code = judged(good.path)
    assert [each for each in tests if each.startswith("allranks::")]
    assert not tests[A].is_bad
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("make", ODD)
def test_an_attempt_that_is_no_folder_is_an_error(good, make):
    make(good.path / "cells" / JOB / "attempt-2")
    tests, code = judged(good.path)
    assert tests["allranks::job"].is_bad
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_loop, make_link])
@pytest.mark.parametrize("name", REPORTS)
def test_an_earlier_report_that_is_no_file_is_replaced(good, make, name):
    make(good.path / name)
    assert judged(good.path)[1] is ExitCode.OK
    assert stat.S_ISREG((good.path / name).lstat().st_mode)


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_loop, make_link])
@pytest.mark.parametrize("name", REPORTS)
def test_what_stands_where_a_report_is_drafted_is_replaced(good, make, name):
    make(good.path / f".{name}.unfinished")
    assert judged(good.path)[1] is ExitCode.OK
    assert (good.path / name).is_file()


def test_a_link_where_a_report_is_drafted_leads_nobody_elsewhere(good, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in REPORTS:
        (good.path / f".{name}.unfinished").symlink_to(precious)
    judged(good.path)
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("place", ["cells/rank-0.xml", "cells/gloo-w2-g0-env/rank-0.xml", f"cells/{JOB}/rank-0.xml"])
def test_results_beside_the_attempts_are_missed_by_somebody(good, place):
    good.rank(JOB, 0, {A: "passed"}).rename(good.path / place)
    good.rank(JOB, 0, {A: "passed"})
    tests, code = judged(good.path)
    assert place in tests["allranks::manifest"].message
    assert code is ExitCode.UNACCOUNTED


def test_two_folders_of_one_number_are_two_attempts(good):
    (good.path / "cells" / JOB / "attempt-01").mkdir()
    (good.path / "cells" / JOB / "attempt-1").rename(good.path / "cells" / JOB / "attempt-001")
    assert "job.json is missing" in judged(good.path)[0]["allranks::job"].message


@pytest.mark.thorough
def test_folders_may_be_deeper_than_python_recurses(tmp_path, request):
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    request.addfinalizer(lambda: subprocess.run(["/bin/rm", "-r", tmp_path / "d"], check=True))  # pytest recurses
    job = tmp_path / "gloo-w1-g0-env/s"
    job.mkdir(parents=True)
    (job / "rank-0.xml").write_text('<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>')
    assert judged(tmp_path)[1] is ExitCode.OK
    assert len(list(walk(tmp_path))) == 1203


def test_a_folder_that_the_walker_does_not_want_is_left_out(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "link").symlink_to("a")
    seen = []
    for path, folders, others in walk(tmp_path):
        seen.append((path.name, list(folders), others))
        folders[:] = [name for name in folders if name != "a"]
    assert seen == [(tmp_path.name, ["a", "c"], ["link"]), ("c", [], [])]


@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_but_a_regular_file_is_opened(tmp_path, kind):
    path = tmp_path / "x"
    MAKERS[kind](path)
    assert special(path) == kind
    assert head(path, 8) == b""
    with pytest.raises(OSError, match=r"not a regular file|symbolic links"):
        open_regular(path)


def test_a_file_that_becomes_a_fifo_in_between_is_not_waited_for(tmp_path, monkeypatch):
    path, regular = tmp_path / "x", tmp_path / "y"
    regular.write_bytes(b"")
    os.mkfifo(path)
    status = regular.stat()
    monkeypatch.setattr(type(path), "stat", lambda _: status)
    with pytest.raises(OSError, match="FIFO"):
        open_regular(path)


def test_a_regular_file_is_opened_through_a_link(tmp_path):
    (tmp_path / "x").write_bytes(b"said")
    (tmp_path / "link").symlink_to("x")
    assert head(tmp_path / "link", 2) == b"sa"
    assert special(tmp_path / "x") == special(tmp_path / "nowhere") == ""
    assert not leads_out(tmp_path, tmp_path / "link")
    assert leads_out(tmp_path / "below", tmp_path / "link")
