"""What is absent is an error that says what is missing."""

import pytest

from allranks.errors import ExitCode
from allranks.protocol.records import JOURNAL, SCHEMA, AgentFailed, Finished, JobStarted, Passed, TestStarted, encode
from allranks.protocol.skip_codes import multi_gpu
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite, MergedRun
from allranks.report.merging import merge
from allranks.report.results import TestVerdict

JOB = "gloo-w2-g0-env/collectives"
A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"


def judged(run_folder) -> MergedRun:
    return merge(run_folder.path, environ={})


def code(merged: MergedRun) -> ExitCode:
    return exit_code(merged, nothing_ran_allowed=False)


def suites_of(merged: MergedRun) -> list[CellSuite]:
    """The jobs of a run with their tests, which a merged run does not hold."""
    suites: list[CellSuite] = []
    merge(merged.folder, environ={}, observers=[suites.append])
    return suites


def only_suite(merged: MergedRun) -> CellSuite:
    (suite,) = suites_of(merged)
    return suite


def only_test(merged: MergedRun) -> TestVerdict:
    (test,) = only_suite(merged).tests
    return test


def test_a_complete_run_is_good(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed", B: "passed"})
    merged = judged(run_folder)
    assert (merged.counts.tests, merged.counts.passed, code(merged)) == (2, 2, ExitCode.OK)
    assert only_suite(merged).axes == {"backend": "gloo", "world_size": 2}


def test_a_rank_that_the_job_cannot_have_is_an_error_that_says_so(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    run_folder.rank(JOB, 7, {A: "passed"})
    merged = judged(run_folder)
    outside = only_suite(merged).tests[0]
    assert outside.name == "rank 7"
    assert "rank-7.xml belongs to rank 7, but this job's highest rank is 1." in outside.verdict.message
    assert code(merged) is ExitCode.UNACCOUNTED


def test_a_rank_of_a_test_with_a_larger_world_of_its_own_is_no_error(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[A])
    for rank in range(3):
        run_folder.rank(JOB, rank, {A: {"outcome": "passed", "world_size": 3}})
    assert code(judged(run_folder)) is ExitCode.OK


def test_a_rank_that_is_missing_for_a_damaged_file_has_one_full_stop(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    (run_folder.attempt(JOB) / "rank-1.xml").write_text("")
    said = [test.verdict.message for test in only_suite(judged(run_folder)).tests]
    assert said[1] == "rank 1 is missing: rank-1.xml cannot be read to the end: it is empty."


def test_a_planned_job_without_results_is_an_error(run_folder):
    run_folder.manifest(JOB, "gloo-w4-g0-env/collectives")
    run_folder.both(JOB, {A: "passed"})
    merged = judged(run_folder)
    absent = suites_of(merged)[1]
    assert absent.name == "gloo-w4-g0-env / collectives"
    assert [(test.classname, test.name) for test in absent.tests] == [("allranks", "job")]
    assert "left no results" in absent.tests[0].verdict.message
    assert code(merged) is ExitCode.UNACCOUNTED


def test_a_job_that_left_results_and_no_record_is_an_error(run_folder):
    run_folder.manifest(JOB)
    run_folder.rank(JOB, 0, {A: "passed"})
    run_folder.rank(JOB, 1, {A: "passed"})
    merged = judged(run_folder)
    assert [test.name for test in only_suite(merged).tests] == ["job", "test_one"]
    assert code(merged) is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("said", [(), (Finished(status=0),), (AgentFailed(message="too low"), Finished(status=1))])
def test_a_journal_without_its_record_and_without_a_plan_is_an_error(run_folder, said):
    begun = JobStarted(schema=SCHEMA, run_id="r1", cell="gloo-w2-g0-env", suite="collectives", attempt=1, world_size=2)
    passed = Passed(nodeid=A, ranks=(0, 1), arrived=(1.0, 1.0), seconds=(0.1, 0.1), world_size=2)
    records = (begun, TestStarted(nodeid=A), passed, *said)
    (run_folder.attempt(JOB) / JOURNAL).write_bytes(b"".join(encode(each) + b"\n" for each in records))
    merged = judged(run_folder)
    assert [test.name for test in only_suite(merged).tests] == ["job", "test_one"]
    assert code(merged) is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": 2}', '{"schema": 2, "world_size": "many"}', "\0"])
def test_a_damaged_job_record_is_an_error_and_the_results_are_kept(run_folder, content: str):
    run_folder.both(JOB, {A: "passed"})
    (run_folder.attempt(JOB) / "job.json").write_text(content)
    merged = judged(run_folder)
    trouble, test = only_suite(merged).tests
    assert trouble.verdict.message.startswith("job.json is damaged: ")
    assert not test.verdict.is_bad
    assert code(merged) is ExitCode.UNACCOUNTED


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", '{"schema": 2, "run_id": "x", "jobs": 3}', '{"schema": 99}', '{"schema": 1, "run_id": "x"}'],
)
def test_a_manifest_that_cannot_be_read_is_an_error_and_the_results_are_kept(run_folder, content: str):
    run_folder.both(JOB, {A: "passed"})
    (run_folder.path / "run.json").write_text(content)
    merged = judged(run_folder)
    assert [suite.name for suite in merged.suites] == ["run / manifest", "gloo-w2-g0-env / collectives"]
    assert (merged.counts.passed, code(merged)) == (1, ExitCode.UNACCOUNTED)


def test_a_collected_test_that_no_rank_reports_is_an_error(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, collected=[A, B])
    merged = judged(run_folder)
    second = only_suite(merged).tests[1]
    assert (second.classname, second.name) == ("s.test_a", "test_two")
    assert second.verdict.message == "ranks 0, 1 are missing: no result arrived."
    assert code(merged) is ExitCode.UNACCOUNTED


def test_a_rank_without_a_file_is_missing_from_each_test(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[A])
    run_folder.rank(JOB, 0, {A: "passed"})
    merged = judged(run_folder)
    job, test = only_suite(merged).tests
    assert (job.name, job.verdict.message) == ("job", "rank 1 has no file.")
    assert test.verdict.message.startswith("rank 1 is missing")
    assert code(merged) is ExitCode.UNACCOUNTED


def test_a_rank_whose_file_is_broken_is_missing_with_the_cause(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    (run_folder.attempt(JOB) / "rank-1.xml").write_bytes(b"")
    trouble, test = only_suite(judged(run_folder)).tests
    assert (trouble.name, trouble.verdict.message) == ("rank 1", "rank-1.xml cannot be read to the end: it is empty.")
    assert "rank-1.xml cannot be read" in test.verdict.message


@pytest.mark.parametrize("kind", ["timeout", "interrupted", "collection"])
def test_a_rank_missing_from_a_test_that_another_ran_names_the_error_that_ended_the_job(run_folder, kind: str):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[A], error={"what": "The job ran out of time.", "kind": kind})
    run_folder.rank(JOB, 0, {A: "passed"})
    merged = judged(run_folder)
    message = only_suite(merged).tests[-1].verdict.message
    assert message == "rank 1 is missing: no result arrived (The job ran out of time.)."


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("collection", ExitCode.TESTS_FAILED),
        ("timeout", ExitCode.TESTS_FAILED),
        ("interrupted", ExitCode.INTERRUPTED),
    ],
)
def test_a_test_that_no_rank_began_because_of_the_jobs_error_did_not_run(run_folder, kind: str, expected: ExitCode):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, collected=[A, B], error={"what": "It ended early.", "kind": kind})
    merged = judged(run_folder)
    error, _, second = (test.verdict for test in only_suite(merged).tests)
    assert error.exit_code is expected
    assert (second.kind, second.message, second.executed) == ("skipped", "not run: It ended early.", False)
    assert code(merged) is expected


@pytest.mark.parametrize("kind", ["infrastructure", "agent"])
def test_a_test_that_no_rank_reports_is_missing_after_an_error_that_does_not_explain_it(run_folder, kind: str):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[A], error={"what": "It broke.", "kind": kind})
    assert only_suite(judged(run_folder)).tests[1].verdict.message.startswith("ranks 0, 1 are missing")


def test_what_a_stop_kept_from_running_says_so_even_when_the_job_ended_in_error(run_folder):
    run_folder.manifest(JOB)
    error = {"what": "It was interrupted.", "kind": "interrupted"}
    run_folder.job(JOB, collected=[A], not_run=[A], stop_reason="-x", error=error)
    assert only_suite(judged(run_folder)).tests[1].verdict.message == "not run: stopped by -x"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("infrastructure", "job", ExitCode.INFRASTRUCTURE),
        ("interrupted", "job", ExitCode.INTERRUPTED),
        ("collection", "collection", ExitCode.TESTS_FAILED),
        ("timeout", "job", ExitCode.TESTS_FAILED),
        ("agent", "job", ExitCode.UNACCOUNTED),
        ("something new", "job", ExitCode.UNACCOUNTED),
    ],
)
def test_a_job_error_is_a_testcase_with_its_sentences(run_folder, kind: str, name: str, expected: ExitCode):
    run_folder.manifest(JOB)
    run_folder.job(JOB, error={"what": "It broke.", "why": "Because.", "remedy": "Mend it.", "kind": kind})
    merged = judged(run_folder)
    test = only_test(merged)
    assert (test.classname, test.name, test.verdict.message) == ("allranks", name, "It broke.")
    assert test.verdict.text == "It broke.\nBecause.\nMend it."
    assert code(merged) is expected


def test_a_suite_without_tests_is_an_error(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[])
    merged = judged(run_folder)
    assert only_test(merged).verdict.message.startswith("No test was collected")
    assert code(merged) is ExitCode.NOTHING_RAN


def test_a_selection_that_leaves_nothing_ran_nothing_and_is_said(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[], deselected=7)
    merged = judged(run_folder)
    assert (merged.counts.tests, code(merged)) == (0, ExitCode.NOTHING_RAN)
    assert merged.notes == ("gloo-w2-g0-env / collectives: pytest's options deselected all of its tests (7).",)


def test_what_several_jobs_note_is_said_once_for_all_of_them(run_folder):
    jobs = [f"gloo-w2-g0-{init}/collectives" for init in ("env", "file", "tcp")]
    run_folder.manifest(*jobs)
    for job in jobs:
        run_folder.both(job, {A: "passed"}, notes=["t.py:3: UserWarning: old", f"only {job}"])
    names = [job.replace("/", " / ") for job in jobs]
    assert judged(run_folder).notes == (
        f"{', '.join(names)}: t.py:3: UserWarning: old.",
        *(f"{name}: only {job}." for name, job in zip(names, jobs, strict=True)),
    )


def test_a_job_in_which_every_test_skipped_is_said_even_when_another_ran(run_folder):
    other = "nccl-w2-g2-env/collectives"
    run_folder.manifest(JOB, other)
    run_folder.both(JOB, {A: "passed"})
    run_folder.both(other, {A: "skipped"})
    merged = judged(run_folder)
    assert code(merged) is ExitCode.OK
    assert merged.notes == ("No test executed in 1 of 2 jobs: nccl-w2-g2-env / collectives.",)
    assert merged.only({JOB}).notes == ()


def test_an_attempt_that_left_nothing_is_missed_without_a_plan_too(run_folder):
    run_folder.both(JOB, {A: "passed"})
    run_folder.attempt("gloo-w2-g0-tcp/collectives")
    merged = judged(run_folder)
    assert code(merged) is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("deselected", [0, 5])
def test_a_record_without_results_that_does_not_tell_why_is_an_error(run_folder, deselected):
    run_folder.both(JOB, {A: "passed"})
    run_folder.job("gloo-w2-g0-tcp/collectives", collected=None, deselected=deselected)
    assert code(judged(run_folder)) is ExitCode.UNACCOUNTED


def test_tests_that_a_stop_kept_from_running_are_skipped_and_did_not_execute(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "failed"}, collected=[A, B], not_run=[B], stop_reason="-x")
    merged = judged(run_folder)
    second = only_suite(merged).tests[1].verdict
    assert (second.kind, second.message, second.executed) == ("skipped", "not run: stopped by -x", False)
    assert code(merged) is ExitCode.TESTS_FAILED


def test_the_newest_attempt_counts(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "failed"})
    for number in range(2, 11):
        run_folder.job(JOB, number=number, collected=[A])
        for rank in range(2):
            run_folder.rank(JOB, rank, {A: "passed" if number == 10 else "failed"}, number=number)
    merged = judged(run_folder)
    assert (only_suite(merged).attempt, code(merged)) == (10, ExitCode.OK)


def test_results_that_nobody_planned_are_merged_and_said(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    run_folder.both("gloo-w2-g0-tcp/collectives", {A: "failed"})
    merged = judged(run_folder)
    assert merged.counts.failed == 1
    assert merged.notes == ("gloo-w2-g0-tcp / collectives: has results, but is not in the plan.",)


def test_without_a_record_the_world_size_that_a_rank_states_is_expected(run_folder):
    run_folder.rank("cell/s", 0, {A: "passed"}, world_size=4)
    *_, test = only_suite(judged(run_folder)).tests
    assert test.verdict.message.startswith("ranks 1-3 are missing")


@pytest.mark.parametrize("cell", ["gloo-w64-g0-env", "nccl-w64-g64-tcp-n8", "my_backend-w64-g0-file-n2-t2.14.1"])
def test_without_a_record_the_world_size_of_the_cells_id_is_expected(run_folder, cell):
    run_folder.rank(f"{cell}/s", 0, {A: "passed"}, world_size=None)
    *_, test = only_suite(judged(run_folder)).tests
    assert test.verdict.message == "ranks 1-63 are missing: no result arrived."


def test_a_damaged_record_leaves_the_world_size_of_the_cells_id(run_folder):
    run_folder.rank("gloo-w4-g0-env/s", 0, {A: "passed"}, world_size=None)
    (run_folder.attempt("gloo-w4-g0-env/s") / "job.json").write_text("{")
    *_, test = only_suite(judged(run_folder)).tests
    assert test.verdict.message == "ranks 1-3 are missing: no result arrived."


def test_without_a_record_the_world_size_of_the_manifest_is_expected(run_folder):
    run_folder.manifest("cell/s")
    run_folder.rank("cell/s", 0, {A: "passed"}, world_size=None)
    *_, test = only_suite(judged(run_folder)).tests
    assert test.verdict.message == "rank 1 is missing: no result arrived."


def test_a_record_of_another_world_size_than_the_cell_is_an_error(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, world_size=1)
    trouble = only_suite(judged(run_folder)).tests[0]
    assert trouble.verdict.message == "job.json states 1 rank, but the cell states 2 ranks."
    assert code(judged(run_folder)) is ExitCode.UNACCOUNTED


@pytest.mark.parametrize("size", ["9" * 5000, "99999", "0", "-1", "two"])
def test_a_world_size_that_no_run_has_is_an_error_of_its_file(run_folder, size):
    run_folder.rank("gloo-w1-g0-env/s", 0, {A: "passed"}, world_size=size)
    suite = only_suite(judged(run_folder))
    assert "world" in suite.tests[1].verdict.message
    assert code(judged(run_folder)) is ExitCode.UNACCOUNTED


def test_a_test_with_a_world_size_of_its_own_is_expected_of_its_ranks_alone(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[A])
    run_folder.rank(JOB, 0, {A: {"outcome": "passed", "world_size": 1}})
    run_folder.rank(JOB, 1, {})
    assert code(judged(run_folder)) is ExitCode.OK


def test_a_gpu_job_turns_a_hardware_skip_into_an_error(run_folder):
    skip = {A: {"outcome": "skipped", "message": "no CUDA", "skip_kind": "hardware", "skip_code": 74}}
    run_folder.manifest(JOB)
    run_folder.both(JOB, skip, gpus=["GPU-1", "GPU-2"])
    assert "coverage was lost" in only_test(judged(run_folder)).verdict.message


@pytest.mark.parametrize(
    ("needed", "gpus", "nodes", "is_lost"),
    [(16, 8, 1, False), (72, 8, 1, False), (9, 8, 1, False), (3, 4, 2, False), (8, 8, 1, True), (2, 3, 2, True)],
)
def test_a_skip_for_more_gpus_than_a_node_of_the_cell_has_loses_no_coverage(run_folder, needed, gpus, nodes, is_lost):
    said = {"skip_kind": "hardware", "skip_code": int(multi_gpu(needed)), "gpus_needed": needed}
    run_folder.manifest(JOB)
    run_folder.both(
        JOB,
        {A: {"outcome": "skipped", "message": "too few", **said}},
        gpus=[f"GPU-{n}" for n in range(gpus)],
        nodes=nodes,
    )
    assert only_test(judged(run_folder)).verdict.is_bad is is_lost


CONTROL, LITERAL = "t.py::a[\x01]", "t.py::a[#x01]"


def kinds_of(run_folder) -> dict[str, str]:
    return {test.nodeid: test.verdict.kind.value for test in only_suite(judged(run_folder)).tests}


def test_an_id_that_is_no_xml_and_one_that_looks_like_it_are_two_tests(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {CONTROL: "passed", LITERAL: "failed"})
    assert kinds_of(run_folder) == {"t.py::a[#x01]": "passed", "t.py::a[#x23x01]": "failure"}


@pytest.mark.parametrize(("reported", "lost"), [(CONTROL, "t.py::a[#x23x01]"), (LITERAL, "t.py::a[#x01]")])
def test_one_of_two_such_tests_cannot_hide_that_the_other_is_missing(run_folder, reported, lost):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {reported: "passed"}, collected=[CONTROL, LITERAL])
    assert kinds_of(run_folder)[lost] == "error"
    assert code(judged(run_folder)) is ExitCode.UNACCOUNTED


@pytest.mark.parametrize(("place", "suite"), [(JOB, "a"), (JOB, "z"), ("gloo-w2-g0-tcp/collectives", "collectives")])
def test_a_record_of_another_job_is_an_error_wherever_it_sorts(run_folder, place, suite):
    run_folder.manifest(place)
    run_folder.both(place, {A: "passed"}, cell="gloo-w2-g0-env", suite=suite)
    merged = judged(run_folder)
    assert [test.name for test in only_suite(merged).tests] == ["job.json", "test_one"]
    assert code(merged) is ExitCode.UNACCOUNTED


def test_a_record_that_states_no_job_is_of_the_job_of_its_folder(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, cell="", suite="")
    assert code(judged(run_folder)) is ExitCode.OK


def test_a_job_of_unknown_size_has_the_ranks_up_to_the_highest_that_is_there(run_folder):
    for rank in (0, 2):
        run_folder.rank("cell/s", rank, {A: "passed"}, world_size=None)
    said = {test.name: test.verdict.message for test in only_suite(judged(run_folder)).tests}
    assert said["job"] == "rank 1 has no file."
    assert said["test_one"] == "rank 1 is missing: no result arrived."
    assert set(said) == {"job", "test_one"}


def test_a_job_of_unknown_size_with_all_ranks_only_lacks_its_record(run_folder):
    run_folder.rank("cell/s", 0, {A: "passed"}, world_size=None)
    job, test = only_suite(judged(run_folder)).tests
    assert job.verdict.message == "job.json is missing: the job is still running, or was killed."
    assert not test.verdict.is_bad


def test_ranks_without_a_file_are_named_together(run_folder):
    run_folder.manifest("gloo-w4-g0-env/s")
    run_folder.job("gloo-w4-g0-env/s", collected=[A], world_size=4)
    run_folder.rank("gloo-w4-g0-env/s", 1, {A: "passed"}, world_size=4)
    assert "ranks 0, 2, 3 have no file." in [test.verdict.message for test in only_suite(judged(run_folder)).tests]


@pytest.mark.parametrize(("own", "is_outside"), [(2, True), (3, False), (4, False)])
def test_a_rank_outside_needs_tests_with_a_world_that_has_it(run_folder, own, is_outside):
    run_folder.manifest(JOB)
    run_folder.job(JOB, collected=[A])
    for rank in range(3):
        run_folder.rank(JOB, rank, {A: {"outcome": "passed", "world_size": own}})
    names = [test.name for test in only_suite(judged(run_folder)).tests]
    assert ("rank 2" in names) is is_outside


def test_a_rank_whose_file_lacks_a_test_is_missing_for_the_reason_that_the_job_has(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, error={"what": "The job ran out of time.", "kind": "timeout"})
    run_folder.rank(JOB, 1, {})
    message = only_suite(judged(run_folder)).tests[-1].verdict.message
    assert message == "rank 1 is missing: no result arrived (The job ran out of time.)."


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ExitCode.TESTS_FAILED),
        ({"error": {"kind": "infrastructure", "what": "It broke."}}, ExitCode.INFRASTRUCTURE),
        ({"error": {"kind": "agent", "what": "It died."}}, ExitCode.UNACCOUNTED),
    ],
)
def test_a_failure_explains_a_missing_rank_only_if_the_job_ended_by_itself(run_folder, changes, expected):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "failed"}, **changes)
    run_folder.rank(JOB, 1, {})
    merged = judged(run_folder)
    test = only_suite(merged).tests[-1]
    assert (test.verdict.exit_code is ExitCode.TESTS_FAILED) == (not changes)
    assert code(merged) is expected


def test_a_failure_explains_no_rank_whose_file_is_damaged(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "failed"})
    (run_folder.attempt(JOB) / "rank-1.xml").write_text("")
    assert only_suite(judged(run_folder)).tests[-1].verdict.exit_code is ExitCode.UNACCOUNTED


def test_a_failure_explains_no_missing_rank_without_a_record(run_folder):
    run_folder.manifest(JOB)
    run_folder.rank(JOB, 0, {A: "failed"})
    run_folder.rank(JOB, 1, {})
    assert only_suite(judged(run_folder)).tests[-1].verdict.exit_code is ExitCode.UNACCOUNTED


def test_an_earlier_attempt_with_two_files_of_a_rank_is_an_error_while_its_tests_count(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed", B: "failed"})
    path = run_folder.rank(JOB, 0, {A: "passed", B: "failed"})
    path.with_name("rank-00.xml").write_bytes(path.read_bytes())
    for continues, expected in ((1, ExitCode.UNACCOUNTED), (0, ExitCode.OK)):
        run_folder.job(JOB, number=2, collected=[A, B], continues=continues)
        for rank in range(2):
            run_folder.rank(JOB, rank, {A: "passed", B: "passed"}, number=2)
        assert code(judged(run_folder)) is expected


def test_a_file_that_could_have_results_and_is_not_read_is_an_error(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    (run_folder.path / "logs.zip").write_text("")
    merged = judged(run_folder)
    assert [suite.name for suite in merged.suites if suite.counts.bad] == ["run / manifest"]
    assert code(merged) is ExitCode.UNACCOUNTED


def test_the_image_of_a_job_is_that_of_its_plan_or_else_of_its_record(run_folder):
    run_folder.manifest(JOB)
    for job in (JOB, "gloo-w2-g0-tcp/collectives"):
        run_folder.both(job, {A: "passed"}, image="sha256:1")
    assert [suite.image for suite in suites_of(judged(run_folder))] == ["cpu", "sha256:1"]


def test_a_changed_file_that_was_read_and_one_that_was_not_are_told_apart(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"}, rank_files={"rank-0.xml": "another", "rank-1.xml": "another"})
    texts = [test.verdict.text for test in only_suite(judged(run_folder)).tests if test.verdict.is_bad]
    assert len(texts) == 2
    assert all("It was read nevertheless." in text for text in texts)
    begun = JobStarted(schema=SCHEMA, run_id="r1", cell="gloo-w2-g0-env", suite="collectives", attempt=1, world_size=2)
    passed = Passed(nodeid=A, ranks=(0, 1), arrived=(1.0, 1.0), seconds=(0.1, 0.1), world_size=2)
    records = (begun, TestStarted(nodeid=A), passed, Finished(status=0))
    (run_folder.attempt(JOB) / JOURNAL).write_bytes(b"".join(encode(each) + b"\n" for each in records))
    texts = {test.name: test.verdict.text for test in only_suite(judged(run_folder)).tests if test.verdict.is_bad}
    assert f"{JOURNAL} was read instead." in texts["rank-0.xml"]
    assert "It was read nevertheless." in texts[JOURNAL]


def test_an_error_of_a_file_tells_what_to_do_once(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    (run_folder.attempt(JOB) / "rank-1.xml").write_text("")
    text = only_suite(judged(run_folder)).tests[0].verdict.text
    assert text.endswith("\nCopy the results of this job again, or rerun it.")
    assert len(text.splitlines()) == 2
