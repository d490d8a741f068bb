"""To which files the page may link."""

from pathlib import Path

import pytest

from allranks.report.judged import JobFacts
from allranks.report.page.files import attempt_folder, files_of_ranks


def test_the_folder_of_an_attempt_is_relative_to_the_page() -> None:
    facts = JobFacts(cell="nccl-w4-g4-env", suite="torch-rpc@2of4", attempt=3)
    assert attempt_folder(facts) == "cells/nccl-w4-g4-env/torch-rpc@2of4/attempt-3"


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "a/b", "a\\b", "javascript:alert(1)", "a?b", "a#b", "a%2e", "a b", "ä", "a\n", "//host", ".hidden"],
)
def test_a_name_that_is_not_plain_is_no_part_of_a_link(name: str) -> None:
    assert attempt_folder(JobFacts(cell=name, suite="s", attempt=1)) == ""
    assert attempt_folder(JobFacts(cell="c", suite=name, attempt=1)) == ""


def test_results_without_attempts_have_no_links() -> None:
    assert attempt_folder(JobFacts(cell="c", suite="s")) == ""


def test_only_files_of_ranks_that_are_there_are_linked(tmp_path: Path) -> None:
    for name in (
        "rank-0.xml",
        "rank-1.xml",
        "rank-3.xml",
        "rank-1.stacks.txt",
        "rank-x.xml",
        "rank-2.xml.bak",
        "job.json",
    ):
        (tmp_path / name).touch()
    assert files_of_ranks(tmp_path.parent, tmp_path.name) == {"stacks.txt": "1", "xml": "0,1,3"}
    assert files_of_ranks(tmp_path, "nowhere") == {}
    assert files_of_ranks(tmp_path, "") == {}
