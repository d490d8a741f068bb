"""The three actions that annotate from JUnit XML: they count what we counted, and point at the line that went wrong."""

import shutil
import subprocess

import pytest
from client_counts import as_seen_by
from github_actions import ACTIONS, DORNY, ENRICOMI, MIKEPENZ

from allranks.report.junit_case import JUnitForm
from allranks.report.merging import merge

pytestmark = [pytest.mark.node, pytest.mark.github]

WITH_CELL = JUnitForm(classname="cell")
TEST = "tests/test_sums.py::test_sum"
TEXT = """\
tests/test_sums.py:12: in test_sum
    check(total)
tests/helpers.py:8: in check
    assert total == 6
E   assert 4 == 6"""


def ours(counts):
    words = {"passed": counts.passed, "failure": counts.failed, "error": counts.errors, "skipped": counts.skipped}
    return {word: number for word, number in words.items() if number}


@pytest.fixture
def repository(tmp_path):
    """The user's repository, in which an action looks for the files of annotations."""
    root = tmp_path / "repository"
    (root / "tests").mkdir(parents=True)
    for name in ("test_sums.py", "helpers.py"):
        (root / "tests" / name).write_text("pass\n" * 20)
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run([shutil.which("git") or "git", *command], cwd=root, check=True)
    return root


@pytest.fixture
def seen_by(clients, repository):
    """What an action makes of the report in a folder."""

    def look(name, folder, **options):
        return ACTIONS[name](clients, clients.action(name), folder, repository, **options)

    return look


@pytest.mark.parametrize("name", sorted(ACTIONS))
@pytest.mark.parametrize("form", [JUnitForm(), WITH_CELL], ids=["usual", "cell"])
def test_an_action_counts_right(name, form, seen_by, report):
    merged, folder = report(form)
    seen = seen_by(name, folder).counts
    expected = ours(merged.counts)
    if name == ENRICOMI:
        assert (seen == expected) is (form is WITH_CELL), seen  # it identifies a test by class and name
    else:
        assert seen == as_seen_by("junit2html", expected)


@pytest.fixture
def wrong(run_folder, tmp_path):
    """A report in which one test went wrong in line 12 of its file."""
    run_folder.manifest("gloo-w2-g0-env/s")
    said = {"outcome": "failed", "message": "assert 4 == 6", "text": TEXT}
    run_folder.both("gloo-w2-g0-env/s", {TEST: said, "tests/test_sums.py::test_other": "passed"})
    merge(run_folder.path, environ={}, junit_form=WITH_CELL)
    alone = tmp_path / "alone"
    alone.mkdir()
    (run_folder.path / "junit.xml").rename(alone / "junit.xml")
    return alone


@pytest.mark.parametrize("name", [ENRICOMI, MIKEPENZ, DORNY])
def test_an_action_points_at_the_line_that_went_wrong(name, seen_by, wrong):
    assert seen_by(name, wrong).places == {("tests/test_sums.py", 12)}


def test_dornys_reporter_for_java_finds_no_line_in_python(seen_by, wrong):
    """It takes the place from a Java stack trace; the one for PHPUnit takes it from ``file`` and ``line``."""
    seen = seen_by(DORNY, wrong, reporter="java-junit")
    assert {line for _, line in seen.places} == {0}
