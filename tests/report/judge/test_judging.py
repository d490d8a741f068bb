"""The tests of one attempt: how their ranks are held, and where they are in the source."""

import pytest

from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.results import PassedRanks

JOB = "gloo-w2-g0-env/s"
A, B = "s/test_a.py::test_one", "s/test_a.py::test_two"


def judged(folder, **options):
    suites: list[CellSuite] = []
    merge(folder, environ={}, observers=[suites.append], **options)
    return {test.nodeid: test for suite in suites for test in suite.tests}


def test_the_ranks_of_a_plain_pass_are_built_on_access_beside_other_tests_too(run_folder):
    """A run of many ranks would not fit in memory otherwise."""
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed", B: "failed"})
    tests = judged(run_folder.path)
    assert isinstance(tests[A].ranks, PassedRanks)
    assert not isinstance(tests[B].ranks, PassedRanks)
    assert tests[A].time == 0.25


@pytest.mark.parametrize("outcome", ["skipped", "xpassed", "failed"])
def test_a_job_without_a_plain_pass_has_the_results_of_its_tests(run_folder, outcome):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: outcome})
    assert [rank.outcome for rank in judged(run_folder.path)[A].ranks] == [outcome, outcome]


@pytest.mark.parametrize("own", [2, 1, 3])
def test_a_pass_in_a_world_of_another_size_is_held_to_that(run_folder, own):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: {"outcome": "passed", "world_size": own}, B: "passed"})
    test = judged(run_folder.path)[A]
    assert isinstance(test.ranks, PassedRanks) is (own == 2)
    assert test.verdict.is_bad is (own == 3)


@pytest.mark.parametrize(
    "ending", ["", "<failure/>", "<skipped/>", '<properties><property name="k" value="v"/></properties>']
)
def test_a_test_has_the_file_and_the_line_that_its_xml_states(write_ranks, ending):
    case = f'<testcase classname="t" name="x" file="t.py" line="7">{ending}</testcase>'
    plain = '<testcase classname="t" name="y"><failure/></testcase>'
    tests = judged(write_ranks("gloo-w1-g0-env/unit/rank-0.xml", [case, plain]))
    assert (tests["t::x"].file, tests["t::x"].line) == ("t.py", 7)
    assert (tests["t::y"].file, tests["t::y"].line) == ("", 0)


def test_the_first_rank_that_has_a_test_names_it(write_ranks):
    write_ranks("gloo-w2-g0-env/unit/rank-0.xml", [])
    root = write_ranks("gloo-w2-g0-env/unit/rank-1.xml", ['<testcase classname="t" name="x" file="t.py" line="7"/>'])
    test = judged(root)["t::x"]
    assert (test.classname, test.name, test.file, test.line) == ("t", "x", "t.py", 7)


def test_attributes_that_are_allowed_are_so_in_all_files_of_a_job(write_ranks):
    for rank in range(2):
        root = write_ranks(f"gloo-w2-g0-env/unit/rank-{rank}.xml", ['<testcase name="x" owner="me"/>'])
    assert judged(root, allowed=["owner"]).keys() == {"x"}
    assert any(test.verdict.is_bad for test in judged(root).values())


@pytest.mark.parametrize("reason", ["-x", ""])
def test_a_test_that_did_not_run_tells_what_stopped_it(run_folder, reason):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "failed"}, collected=[A, B], not_run=[B], stop_reason=reason)
    assert judged(run_folder.path)[B].verdict.message == f"not run: stopped by {reason or 'the job'}"
