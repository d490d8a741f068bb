"""Attempts that ran a part of their job again: what they did not run is of the attempt that they go on with."""

import shutil

import pytest

from allranks.protocol.records import JOURNAL, SCHEMA, Finished, JobStarted, Passed, TestStarted, encode
from allranks.report.journal import read_journal
from allranks.report.judge import judging
from allranks.report.judge.exit_code import exit_code
from allranks.report.merging import merge
from allranks.report.untrusted import digest

JOB = "gloo-w2-g0-env/s"
A, B, C = "t.py::test_a", "t.py::test_b", "t.py::test_c"


@pytest.fixture
def attempt(run_folder):
    """Writes an attempt whose two ranks say the same; the tests without an outcome did not run."""
    run_folder.manifest(JOB)

    def write(number, tests, continues=0, **changes):
        run_folder.job(JOB, number=number, **{"collected": list(tests), "continues": continues, **changes})
        ran = {nodeid: outcome for nodeid, outcome in tests.items() if outcome}
        for rank in range(2):
            run_folder.rank(JOB, rank, ran, number=number)
        return run_folder.attempt(JOB, number)

    return write


@pytest.fixture
def write(part):
    """Writes an attempt on one of several machines, whose two ranks say the same."""

    def write(place, number, started, tests, continues=0):
        folder = part(place)
        folder.manifest(JOB)
        folder.job(JOB, number=number, started=started, collected=list(tests), continues=continues, run_id="r1")
        for rank in range(2):
            folder.rank(JOB, rank, tests, number=number)

    return write


@pytest.fixture
def merged(run_folder):
    """Merges: the exit code, and for each test its verdict and the attempts before in which it went wrong."""

    def of():
        found = []
        run = merge(run_folder.path, observers=[found.append])
        [suite] = found
        kinds = {test.nodeid: (test.verdict.kind.value, [each.number for each in test.earlier]) for test in suite.tests}
        return int(exit_code(run, nothing_ran_allowed=False)), kinds

    return of


def test_the_tests_of_all_attempts_are_one_job(attempt, merged):
    attempt(1, {A: "passed", B: "failed", C: "failed"})
    attempt(2, {B: "passed", C: "failed"}, continues=1)
    attempt(3, {C: "passed"}, continues=2)
    assert merged() == (0, {A: ("passed", []), B: ("passed", [1]), C: ("passed", [1, 2])})


def test_tests_that_ran_again_keep_their_places(attempt, merged):
    attempt(1, {A: "passed", B: "failed", C: "failed"})
    attempt(2, {C: "passed", B: "passed"}, continues=1)
    assert [*merged()[1]] == [A, B, C]


def test_a_failure_that_is_not_run_again_stays(attempt, merged):
    attempt(1, {A: "passed", B: "failed", C: "failed"})
    attempt(2, {C: "passed"}, continues=1)
    assert merged() == (1, {A: ("passed", []), B: ("failure", []), C: ("passed", [1])})


def test_rank_xml_of_the_attempt_before_that_somebody_has_written_is_found(attempt, merged):
    folder = attempt(1, {A: "passed", B: "failed"})
    digests = {path.name: digest(path) for path in folder.glob("rank-*.xml")}
    attempt(1, {A: "passed", B: "failed"}, rank_files=digests)
    attempt(2, {B: "passed"}, continues=1)
    assert merged()[0] == 0
    attempt(1, {A: "passed", B: "passed"}, rank_files=digests)
    code, kinds = merged()
    assert code == 3
    assert {"allranks::rank-0.xml", "allranks::rank-1.xml"} <= kinds.keys()


def test_an_earlier_attempt_that_somebody_has_written_or_removed_is_missed(attempt, merged):
    folder = attempt(1, {A: "passed", B: "failed"})
    digests = {path.name: digest(path) for path in folder.glob("rank-*.xml")}
    attempt(1, {A: "passed", B: "passed"}, rank_files=digests)
    attempt(2, {A: "passed", B: "skipped"})
    code, kinds = merged()
    assert code == 3
    assert {"allranks::rank-0.xml", "allranks::rank-1.xml"} <= kinds.keys()
    shutil.rmtree(folder)
    code, kinds = merged()
    assert (code, kinds["allranks::job"]) == (3, ("error", []))
    (folder.parent / "attempt-2").rename(folder)
    code, kinds = merged()
    assert (code, kinds["allranks::job"]) == (3, ("error", []))


def test_a_damaged_record_of_an_earlier_attempt_is_an_error(attempt, merged):
    (attempt(1, {A: "failed"}) / "job.json").write_text("{")
    attempt(2, {A: "passed"})
    code, kinds = merged()
    assert (code, kinds["allranks::job"][0]) == (3, "error")


def test_a_test_that_neither_attempt_has_run_is_missed(attempt, merged):
    attempt(1, {A: "passed", B: None, C: None}, error={"kind": "interrupted", "what": "Ctrl-C"})
    attempt(2, {B: "passed"}, continues=1)
    code, kinds = merged()
    assert (code, kinds[B], kinds[C]) == (3, ("passed", []), ("error", []))


@pytest.mark.parametrize(("kind", "earlier"), [("interrupted", []), ("infrastructure", []), ("agent", [1])])
def test_to_be_cut_short_from_outside_is_not_flaky(attempt, merged, kind, earlier):
    attempt(1, {A: "failed", B: "aborted"}, error={"kind": kind, "what": "Over."})
    attempt(2, {A: "passed", B: "passed"})
    assert merged() == (0, {A: ("passed", [1]), B: ("passed", earlier)})


def test_a_test_that_was_cut_off_in_the_newer_attempt_keeps_its_failure(attempt, merged):
    attempt(1, {A: "passed", B: "failed"})
    attempt(2, {B: None}, continues=1, not_run=[B], stop_reason="--collect-only")
    assert merged() == (1, {A: ("passed", []), B: ("failure", [])})


@pytest.mark.parametrize("damage", ["gone", "empty", "damaged"])
@pytest.mark.parametrize("chain", [1, 2])
def test_a_base_that_is_not_what_it_was_is_an_error_however_far_back(attempt, merged, damage, chain):
    folder = attempt(1, {A: "passed", B: "failed", C: "failed"})
    attempt(2, {B: "passed", C: "failed"}, continues=1)
    if chain == 2:
        attempt(3, {C: "passed"}, continues=2)
    if damage == "gone":
        shutil.rmtree(folder)
    elif damage == "empty":
        for path in folder.iterdir():
            path.unlink()
    else:
        (folder / "job.json").write_text("{")
    code, kinds = merged()
    assert code == 3
    assert kinds["allranks::job"] == ("error", [])


def test_files_of_a_base_that_cannot_be_trusted_are_an_error(attempt, merged, run_folder):
    attempt(1, {A: "passed", B: "failed"})
    attempt(2, {B: "passed"}, continues=1)
    path = run_folder.rank(JOB, 0, {A: "failed", B: "failed"})
    path.rename(path.with_name("rank-00.xml"))
    run_folder.rank(JOB, 0, {A: "passed", B: "failed"})
    code, kinds = merged()
    assert code == 3
    assert "allranks::rank 0" in kinds


def test_attempts_of_several_machines_are_numbered_anew_with_what_they_go_on_with(write, tmp_path):
    write("y", 1, 1000.0, {A: "failed", B: "failed", C: "passed"})
    write("x", 1, 2000.0, {A: "passed", B: "failed", C: "passed"})
    write("x", 2, 3000.0, {B: "passed"}, continues=1)
    found = []
    merge(tmp_path / "gathered", observers=[found.append])
    earlier = {test.nodeid: [each.number for each in test.earlier] for test in found[0].tests}
    assert earlier == {A: [1], B: [1, 2], C: []}


def test_a_good_result_stays_if_the_attempt_that_was_to_repeat_it_did_not_reach_it(attempt, merged):
    attempt(1, {A: "passed", B: "skipped"})
    attempt(2, {A: None, B: None, C: "passed"}, continues=1, not_run=[A, B], stop_reason="-x")
    assert merged() == (0, {A: ("passed", []), B: ("skipped", []), C: ("passed", [])})
    attempt(3, {C: "passed"}, continues=2)
    assert merged() == (0, {A: ("passed", []), B: ("skipped", []), C: ("passed", [])})


def test_a_failure_on_another_machine_stands_though_a_later_attempt_continues_one_before_it(write, tmp_path):
    write("x", 1, 1000.0, {A: "passed", B: "failed"})
    write("y", 1, 2000.0, {A: "failed", B: "failed"})
    write("x", 2, 3000.0, {B: "passed"}, continues=1)
    found = []
    merge(tmp_path / "gathered", observers=[found.append])
    kinds = {test.nodeid: (test.verdict.kind.value, [each.number for each in test.earlier]) for test in found[0].tests}
    assert kinds == {A: ("failure", []), B: ("passed", [1, 2])}


def test_a_journal_is_read_once_in_a_merge_however_many_attempts_continue_it(run_folder, monkeypatch):
    read = []
    monkeypatch.setattr(judging, "read_journal", lambda path: read.append(path) or read_journal(path))
    run_folder.manifest(JOB)
    for number in (1, 2, 3):
        run_folder.job(JOB, number=number, collected=[A], continues=number - 1)
        start = JobStarted(schema=SCHEMA, run_id="r1", cell="gloo-w2-g0-env", suite="s", attempt=number, world_size=2)
        passed = Passed(nodeid=A, ranks=(0, 1), arrived=(1.0, 1.0), seconds=(0.5, 0.5), world_size=2)
        lines = [encode(each) + b"\n" for each in (start, TestStarted(nodeid=A), passed, Finished(status=0))]
        (run_folder.attempt(JOB, number) / JOURNAL).write_bytes(b"".join(lines))
    assert merge(run_folder.path).counts.passed == 1
    assert len(read) == len(set(read)) == 3
