"""Parts of a run: the limit of open descriptors, and the paths of its report."""

import subprocess
import sys

import pytest

from allranks.runner.run_jobs import DESCRIPTORS, _relative

PROGRAM = """
import resource, sys
from allranks.runner.run_jobs import raise_descriptor_limit

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
raise_descriptor_limit(int(sys.argv[3]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits_from(soft: int, hard: int, enough: int = DESCRIPTORS) -> tuple[int, int]:
    """The limits of a process after it has raised these limits."""
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, enough))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, most = done.stdout.split()
    return int(found), int(most)


def test_the_limit_is_raised_as_far_as_the_host_allows():
    assert limits_from(256, 2048) == (2048, 2048)


def test_the_limit_is_not_raised_further_than_needed():
    assert limits_from(256, 2048, enough=1024) == (1024, 2048)


@pytest.mark.thorough
def test_a_high_limit_is_not_changed():
    assert limits_from(512, 2048, enough=300) == (512, 2048)


def test_a_path_below_the_current_folder_is_shown_as_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(_relative(tmp_path / "results" / "latest")) == "results/latest"
    assert _relative(tmp_path.parent / "results") == tmp_path.parent / "results"
