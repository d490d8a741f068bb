"""The merged report in clients that we did not write: each counts what we counted."""

import re

import pytest
from client_counts import COUNTING, allure, allure_stats, as_seen_by, ctrf_report, datadog

from allranks.report.judged import Counts
from allranks.report.junit_case import JUnitForm

pytestmark = pytest.mark.node

USUAL = JUnitForm()
WITH_CELL = JUnitForm(classname="cell")
SPLIT = JUnitForm(classname="cell", file_limit=60_000)


def ours(counts: Counts) -> dict[str, int]:
    """Our counts, in the words of JUnit."""
    words = {"passed": counts.passed, "failure": counts.failed, "error": counts.errors, "skipped": counts.skipped}
    return {word: number for word, number in words.items() if number}


def test_the_rich_run_has_every_kind_of_verdict(report):
    merged, _ = report(USUAL)
    counts = merged.counts
    assert (counts.tests, counts.passed, counts.failed, counts.errors, counts.skipped) == (40, 15, 16, 5, 4)
    assert (counts.flaky, counts.skip_but_pass) == (2, 1)


@pytest.mark.parametrize("client", sorted(COUNTING.keys() - {"allure"}))
def test_the_usual_form_is_counted_right(client: str, clients, report):
    merged, folder = report(USUAL)
    assert COUNTING[client](clients, folder) == as_seen_by(client, ours(merged.counts))


@pytest.mark.parametrize("client", sorted(COUNTING))
@pytest.mark.parametrize("form", [WITH_CELL, SPLIT], ids=["whole", "split"])
def test_with_the_cell_in_class_names_every_client_counts_right(client: str, form: JUnitForm, clients, report):
    merged, folder = report(form)
    assert (len(merged.junit_files) > 1) is (form is SPLIT)
    assert COUNTING[client](clients, folder) == as_seen_by(client, ours(merged.counts))


def test_allure_takes_a_test_in_two_cells_for_two_attempts_unless_class_names_tell_the_cell(clients, report):
    merged, folder = report(USUAL)
    folded = allure_stats(clients, folder)
    assert folded["total"] + folded["retries"] == merged.counts.tests
    assert folded["retries"] == 3  # passes and plain_skip, which are in two cells, and two jobs that went wrong
    merged, folder = report(WITH_CELL)
    told_apart = allure_stats(clients, folder)
    assert (told_apart["total"], told_apart.get("retries", 0)) == (merged.counts.tests, 0)


@pytest.mark.parametrize("form", [USUAL, WITH_CELL, SPLIT], ids=["usual", "cell", "split"])
def test_datadog_would_upload_every_file(form: JUnitForm, clients, report):
    merged, folder = report(form)
    told = datadog(clients, folder)
    assert "Invalid" not in told
    assert f"Uploaded {len(merged.junit_files)} files" in told


def test_junit_to_ctrf_tells_flaky_tests_and_each_attempt_with_its_stack(clients, report):
    _, folder = report(USUAL)
    tests = {test["name"].rpartition(": ")[2]: test for test in ctrf_report(clients, folder)["tests"]}
    flaky = tests["flaky_error"]
    assert (flaky["status"], flaky["flaky"], flaky["retries"]) == ("passed", True, 2)
    assert [attempt["message"] for attempt in flaky["retryAttempts"]] == ["rank 0 crashed: flaky_error <&>"] * 2
    assert "trace of flaky_error" in flaky["retryAttempts"][0]["trace"]
    assert "--- rank 0 ---" in flaky["retryAttempts"][0]["stdout"]
    failed = tests["always_fails"]
    assert (failed["status"], failed["retries"]) == ("failed", 2)


def test_allure_shows_text_as_it_stands_in_the_file_with_its_escapes(clients, report):
    """Its parser replaces no entities (``processEntities`` is off): nothing that we could write would look right."""
    _, folder = report(WITH_CELL)
    allure(clients, folder)
    shown = "".join(path.read_text() for path in (clients.scratch / "allure").rglob("data/test-results/*.json"))
    assert re.search(r"flaky_failure|test\[&lt;b&gt;", shown)
    assert "test[<b>" not in shown
