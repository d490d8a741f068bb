"""To which files the page may link."""

from pathlib import Path

import pytest

from allranks.report.judged import JobSummary
from allranks.report.page.case_list import files_of_ranks, folder_to_link


def test_the_folder_of_an_attempt_is_relative_to_the_page() -> None:
    folder = "node-3/r1/cells/nccl-w4-g4-env/torch-rpc@2of4/attempt-3"
    assert folder_to_link(JobSummary(cell="nccl-w4-g4-env", suite="torch-rpc@2of4", folder=folder)) == folder


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "a\\b", "javascript:alert(1)", "a?b", "a#b", "a%2e", "a b", "ä", "a\n", "//host", ".hidden"],
)
def test_a_name_that_is_not_plain_is_no_part_of_a_link(name: str) -> None:
    for folder in (f"cells/{name}/s/attempt-1", f"{name}/cells/c/s/attempt-1"):
        assert folder_to_link(JobSummary(cell="c", suite="s", folder=folder)) == ""


def test_results_without_attempts_have_no_links() -> None:
    assert folder_to_link(JobSummary(cell="c", suite="s")) == ""


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
