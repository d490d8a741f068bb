"""Forms that look right and that some client reads wrong: why the report's form is what it is.

A trap that springs no more, because a client has been corrected, fails here, and the form may then be freed of it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from client_counts import COUNTING, allure_stats, datadog

pytestmark = pytest.mark.node

Counted = Callable[[str, str], dict[str, int]]

FAILURE = '<failure message="m" type="t">text</failure>'
SKIPPED = '<skipped message="m" type="t">text</skipped>'
FLAKY = '<flakyFailure message="m" type="t"><stackTrace>s</stackTrace></flakyFailure>'


def case(inner: str, name: str = "x") -> str:
    return f'<testcase classname="a.b" name="{name}" time="0.1">{inner}</testcase>'


def suite(inner: str, name: str = "s") -> str:
    return f'<testsuite name="{name}">{inner}</testsuite>'


@pytest.fixture
def counted(clients, tmp_path: Path) -> Counted:
    """What a client counts in a document of these suites."""

    def count(client: str, suites: str) -> dict[str, int]:
        return dict(COUNTING[client](clients, document(tmp_path, suites)))

    return count


def document(tmp_path: Path, suites: str) -> Path:
    folder = tmp_path / "trap"
    folder.mkdir(exist_ok=True)
    (folder / "junit.xml").write_text(f"<testsuites>{suites}</testsuites>")
    return folder


@pytest.mark.parametrize("client", ["allure", "junit2html"])
def test_suites_in_suites_are_no_tests(client: str, counted: Counted):
    assert counted(client, suite(suite(case(FAILURE)))) == {}


def test_two_outcomes_are_a_pass(counted: Counted):
    assert counted("allure", suite(case(FAILURE * 2))) == {"passed": 1}


def test_two_outcomes_are_two_tests_less_passed(counted: Counted):
    assert counted("junitparser", suite(case(FAILURE * 2)))["failure"] == 2


@pytest.mark.parametrize("tag", ["failure", "error"])
def test_an_outcome_without_attributes_is_a_pass(tag: str, counted: Counted):
    assert counted("allure", suite(case(f"<{tag}>text</{tag}>"))) == {"passed": 1}


@pytest.mark.parametrize("outcome", ['<error message="m" type="t"/>', '<skipped message="m"/>', "<failure/>"])
def test_an_outcome_without_text_is_a_pass(outcome: str, counted: Counted):
    assert counted("codecov", suite(case(outcome))) == {"passed": 1}


def test_skipped_after_failure_is_a_skip_in_one_client(counted: Counted):
    assert counted("codecov", suite(case(FAILURE + SKIPPED))) == {"skipped": 1}


def test_skipped_beside_failure_is_a_skip_too_in_another(counted: Counted):
    assert counted("junitparser", suite(case(FAILURE + SKIPPED)))["skipped"] == 1


def test_an_error_of_a_suite_makes_the_file_unreadable(counted: Counted):
    with pytest.raises(AssertionError, match="ParserError"):
        counted("codecov", suite(case("") + '<error message="m" type="t">text</error>'))


def test_equal_names_in_two_cells_are_one_test(clients, tmp_path: Path):
    stats = allure_stats(clients, document(tmp_path, suite(case("")) + suite(case(FAILURE), "other")))
    assert (stats["total"], stats["retries"]) == (1, 1)


def test_names_that_differ_by_white_space_at_the_end_are_one_test(clients, tmp_path: Path):
    stats = allure_stats(clients, document(tmp_path, suite(case("") + case(FAILURE, "x "))))
    assert (stats["total"], stats["retries"]) == (1, 1)


def test_names_with_one_hash_are_one_test(counted: Counted):
    assert counted("xunit-viewer", suite(case("", "Aa") + case(FAILURE, "BB"))) == {"failure": 1}


def test_a_flaky_failure_is_an_outcome_unless_something_stands_before_it(counted: Counted):
    assert counted("xunit-viewer", suite(case(FLAKY))) == {"flakyFailure": 1}
    assert counted("xunit-viewer", suite(case(f"<system-out>o</system-out>{FLAKY}"))) == {"passed": 1}


def test_a_flaky_failure_makes_a_pass_of_a_skip(counted: Counted):
    assert counted("junit-to-ctrf", suite(case(FLAKY + SKIPPED))) == {"passed": 1}


def test_datadog_ends_well_with_a_file_that_it_does_not_take(clients, tmp_path: Path):
    told = datadog(clients, document(tmp_path, "<testsuite>"))
    assert "Invalid" in told
    assert "Uploaded 0 files" in told
