"""What no run leaves, and somebody will: other things than files, links in a circle, folders without end."""

import os
import socket
import stat
import subprocess

import pytest

from allranks.errors import ExitCode
from allranks.report import folder as folder_module
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
    assert tests[f"allranks::rank {name[5]}"].message == f"{name} is {kind}, not a regular file: it is not read."
    assert code is ExitCode.UNACCOUNTED


def test_a_link_from_one_ranks_file_to_another_is_no_result(good):
    path = good.attempt(JOB) / "rank-1.xml"
    path.unlink()
    path.symlink_to("rank-0.xml")
    tests, code = judged(good.path)
    assert "rank-1.xml is a link" in tests[A].message
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_is_said_of_xml_from_elsewhere(write_ranks, kind):
    root = write_ranks("unit/rank-0.xml", ['<testcase name="a"/>'])
    MAKERS[kind](root / "unit/rank-1.xml")
    tests, code = judged(root)
    assert f"is {kind}" in tests["allranks::rank 1"].message
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("end", [".part", ".bak", ".gz", "~", ".1"])
def test_results_under_another_name_than_a_ranks_are_missed_by_that_name(good, write_ranks, end):
    for root, file in (
        (good.path, good.attempt(JOB) / "rank-1.xml"),
        (write_ranks("unit/rank-0.xml", ['<testcase name="a"/>']), None),
    ):
        original = file or root / "unit" / "rank-1.xml"
        renamed = original.with_name(original.name + end)
        if file:
            file.rename(renamed)
        else:
            renamed.write_bytes(b"part")
        tests, code = judged(root)
        assert f"{renamed.name} is not read: rank-1.xml, of which it is a " in tests["allranks::rank 1"].message
        assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("name", ["rank-1.zip", "rank-1.tar.gz", "rank-1.txt", "rank-1.json", "rank-1"])
def test_what_has_a_ranks_results_by_another_name_is_an_error(write_ranks, name):
    root = write_ranks("unit/rank-0.xml", ['<testcase name="a"/>'])
    (root / "unit" / name).write_text('<testsuite name="s"><testcase name="a"><failure/></testcase></testsuite>')
    tests, code = judged(root)
    assert f"{name} is not read: rank-1" in tests["allranks::rank 1"].message
    assert code is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("name", ["rank-1.log", "rank-1.log.gz", "trace_rank_1.json.gz", "logs.zip", ".rank-1.zip"])
def test_logs_and_traces_beside_a_ranks_file_are_of_no_concern(write_ranks, name):
    root = write_ranks("unit/rank-0.xml", ['<testcase name="a"/>'])
    (root / "unit" / name).write_text("[rank 1] a line: <testsuite/>")
    assert judged(root)[1] is ExitCode.OK


@pytest.mark.parametrize("name", ["TEST-b.junit", "TEST-b.xml.bak", "results"])
def test_results_that_are_not_named_as_xml_are_missed(write_ranks, name):
    root = write_ranks("unit/TEST-a.xml", ['<testcase name="a"/>'])
    (root / "unit" / name).write_text('<testsuite name="s"><testcase name="a"><failure/></testcase></testsuite>')
    tests, code = judged(root)
    assert f"{name} is not read: " in tests[f"allranks::{name}"].message
    assert code is ExitCode.UNACCOUNTED


def test_a_copy_of_a_file_of_no_rank_is_noted(write_ranks):
    root = write_ranks("TEST-a.xml", ['<testcase name="a"/>'])
    (root / "TEST-a.xml.bak").write_text("<testsuite/>")
    assert merge(root, environ={}).notes == ("foreign / TEST-a: TEST-a.xml.bak was not read, TEST-a.xml was.",)


def test_folders_of_ranks_are_ranks(write_ranks):
    for rank, case in ((0, "<testcase name='a'/>"), (1, "<testcase name='a'><skipped/></testcase>"), (3, "")):
        root = write_ranks(f"unit/rank-{rank}/r.xml", [case])
    tests, code = judged(root)
    assert tests["a"].message == "ranks 2, 3 are missing: nothing came back."
    assert code is ExitCode.UNACCOUNTED
    write_ranks("unit/rank-3/r.xml", ["<testcase name='a'/>"])
    write_ranks("unit/rank-2/r.xml", ["<testcase name='a'/>"])
    assert judged(root)[0]["a"].message.startswith("ranks disagree: 0, 2, 3 passed; 1 skipped")


def test_a_number_of_ranks_in_the_names_of_files_counts(write_ranks):
    for rank in (0, 1):
        root = write_ranks(f"rank-{rank}-of-4.xml", ['<testcase name="a"/>'])
    tests, code = judged(root)
    assert tests["a"].message == "ranks 2, 3 are missing: nothing came back."
    assert code is ExitCode.UNACCOUNTED


def test_a_copy_beside_a_ranks_file_is_noted(good, write_ranks):
    (good.attempt(JOB) / "rank-1.xml.bak").write_text("old")
    root = write_ranks("unit/rank-0.xml", ['<testcase name="a"/>'])
    (root / "unit/rank-0.xml.part").write_text("<")
    for folder, name in ((good.path, "rank-1.xml.bak"), (root, "rank-0.xml.part")):
        suites = []
        merged = merge(folder, environ={}, observers=[suites.append])
        assert exit_code(merged, nothing_ran_allowed=False) is ExitCode.OK
        assert [note for suite in suites for note in suite.notes] == [f"{name} was not read, {name[:10]} was"]


def test_drafts_beside_a_journal_and_files_of_other_programs_are_of_no_concern(good):
    folder = good.attempt(JOB)
    (folder / "journal.jsonl").touch()
    for name in ("rank-1.xml.part", "frank.xml.bak", ".rank-1.xml.swp", "rank-1.log"):
        (folder / name).touch()
    assert folder_module._renamed(list(folder.iterdir())) == ((), ("rank-1.xml.part was not read, rank-1.xml was",))
    [attempt] = folder_module.read_attempts(good.path, good.path, {})
    assert (attempt.strays, attempt.notes) == ((), ())


def test_the_end_of_a_name_may_be_in_capitals(write_ranks):
    root = write_ranks("unit/rank-0.XML", ['<testcase name="a"/>'])
    assert judged(root)[0]["a"].kind == "passed"


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


def test_folders_may_be_deeper_than_python_recurses(tmp_path, request):
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    request.addfinalizer(lambda: subprocess.run(["/bin/rm", "-r", tmp_path / "d"], check=True))  # pytest recurses
    (tmp_path / "rank-0.xml").write_text('<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>')
    assert judged(tmp_path)[1] is ExitCode.OK
    assert len(list(walk(tmp_path))) == 1201


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
