"""pytest-cov: what every rank runs is in one figure, and that figure decides."""

import json

import pytest

from allranks.protocol.records import AgentFailed, FailureKind

COV = ["pytest_cov"]
JSON = ("--cov=measured", "--cov-report=json")

CODE = {
    "measured.py": """
        def of_rank(rank):
            if rank == 0:
                return "zero"
            return "one"

        def never():
            return 1
    """,
    "conftest.py": """
        import sys
        from pathlib import Path

        sys.path.insert(0, str(Path(__file__).parent))
    """,
}

ON_EACH_RANK = """
    import os
    import measured

    def test_each():
        measured.of_rank(int(os.environ["RANK"]))
"""


def lines(agent):
    """The lines of measured.py that ran."""
    report = json.loads((agent.results / "coverage" / "coverage.json").read_text())
    return next(file["executed_lines"] for name, file in report["files"].items() if name.endswith("measured.py"))


@pytest.mark.thorough
def test_lines_that_one_rank_alone_runs_are_counted(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, *JSON)
    assert agent.outcomes("test_each") == ("passed", "passed")
    assert {4, 5} <= set(lines(agent))
    assert 8 not in lines(agent)


def test_data_of_all_ranks_is_one_file(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, *JSON)
    assert sorted(path.name for path in (agent.results / "coverage").glob("data*")) == ["data"]


@pytest.mark.thorough
def test_lines_of_a_suites_own_tests_are_counted(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, "--cov=suite", "--cov-report=json")
    report = json.loads((agent.results / "coverage" / "coverage.json").read_text())
    assert 6 in report["files"]["suite/test_a.py"]["executed_lines"]


@pytest.mark.thorough
def test_each_gang_brings_its_own(run_with):
    tests = """
        import measured
        import pytest

        @pytest.mark.parametrize("rank", [0, 1])
        def test_each(rank):
            measured.of_rank(rank)
    """
    agent = run_with(COV, {**CODE, "test_a.py": tests}, *JSON, isolation="test")
    assert len(agent.gangs()) == 2
    assert {4, 5} <= set(lines(agent))


@pytest.mark.thorough
def test_a_failure_loses_nothing_that_ran(run_with):
    tests = ON_EACH_RANK + "        assert not measured.never()\n"
    agent = run_with(COV, {**CODE, "test_a.py": tests}, *JSON)
    assert agent.outcomes("test_each") == ("failed", "failed")
    assert {4, 5, 8} <= set(lines(agent))


@pytest.mark.thorough
def test_a_test_that_leaves_by_os_exit_is_counted(run_with):
    tests = ON_EACH_RANK + "        os._exit(77)\n"
    agent = run_with(COV, {**CODE, "test_a.py": tests}, *JSON)
    assert agent.outcomes("test_each") == ("skipped", "skipped")
    assert {4, 5} <= set(lines(agent))


@pytest.mark.thorough
def test_ranks_that_a_launcher_test_starts_are_counted(run_with):
    tests = """
        import measured
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestLauncher(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_each(self):
                measured.of_rank(self.rank)
    """
    agent = run_with(COV, {**CODE, "test_a.py": tests}, *JSON)
    assert agent.outcomes("test_each") == ("passed", "passed")
    assert {4, 5} <= set(lines(agent))


@pytest.mark.thorough
def test_the_configuration_of_the_code_is_read(run_with):
    code = {**CODE, "test_a.py": ON_EACH_RANK, "../.coveragerc": "[report]\nexclude_also =\n    def never\n"}
    agent = run_with(COV, code, *JSON)
    report = json.loads((agent.results / "coverage" / "coverage.json").read_text())
    assert report["totals"]["percent_covered"] == 100


@pytest.mark.thorough
@pytest.mark.parametrize(("wanted", "status"), [(80, 0), (90, 1)])
def test_the_figure_over_all_ranks_decides(start_with, wanted, status):
    agent = start_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, "--cov=measured", f"--cov-fail-under={wanted}").go()
    assert agent.wait() == status
    assert [failed.kind for failed in agent.all(AgentFailed)] == [FailureKind.GATE] * status


@pytest.mark.thorough
def test_a_figure_that_is_too_low_is_told_beside_a_failure(start_with):
    tests = ON_EACH_RANK + "        assert 0\n"
    agent = start_with(COV, {**CODE, "test_a.py": tests}, "--cov=measured", "--cov-fail-under=100").go()
    agent.wait()
    assert agent.outcomes("test_each") == ("failed", "failed")
    assert "83.33%" in agent.all(AgentFailed)[0].message


@pytest.mark.thorough
def test_what_another_plugin_counts_as_a_failure_is_not_taken_for_a_figure(start_with):
    conftest = """
        import pytest

        @pytest.hookimpl(wrapper=True)
        def pytest_runtestloop(session):
            result = yield
            session.testsfailed += 1
            return result
    """
    agent = start_with(COV, {**CODE, "test_a.py": ON_EACH_RANK, "conftest.py": CODE["conftest.py"] + conftest}, *JSON)
    agent.go().wait()
    [failed] = agent.all(AgentFailed)
    assert failed.message == "pytest ended its session with exit status 1, although no test failed: see agent.log."


@pytest.mark.thorough
def test_the_report_for_the_terminal_is_kept(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, "--cov=measured", "--cov-report=term-missing")
    table = (agent.results / "coverage" / "report.txt").read_text()
    assert "measured.py       6      1    83%   8" in table


@pytest.mark.thorough
def test_reports_are_in_the_results_and_not_in_the_code(run_with):
    code = {**CODE, "test_a.py": ON_EACH_RANK}
    agent = run_with(COV, code, "--cov=measured", "--cov-report=xml:deep/own.xml", "--cov-report=html")
    assert {path.name for path in (agent.results / "coverage").iterdir()} == {
        "data",
        "own.xml",
        "htmlcov",
        "report.txt",
    }
    assert not (agent.folder / "code" / "deep").exists()


@pytest.mark.thorough
def test_contexts_name_tests(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, "--cov=measured", "--cov-context=test")
    assert b"test_each|run" in (agent.results / "coverage" / "data").read_bytes()


@pytest.mark.thorough
def test_branches_are_counted(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, *JSON, "--cov-branch")
    report = json.loads((agent.results / "coverage" / "coverage.json").read_text())
    assert (report["totals"]["covered_branches"], report["totals"]["num_branches"]) == (2, 2)


@pytest.mark.thorough
def test_coverage_is_switched_off_as_ever(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK}, *JSON, "--no-cov")
    assert agent.outcomes("test_each") == ("passed", "passed")
    assert not (agent.results / "coverage").exists()


@pytest.mark.thorough
def test_without_pytest_cov_nothing_is_left(run_with):
    agent = run_with(COV, {**CODE, "test_a.py": ON_EACH_RANK})
    assert not (agent.results / "coverage").exists()
