"""What a job may not do, tried from inside one: a suite that tries it in real containers, after another job."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.docker

FORBIDDEN = Path(__file__).with_name("forbidden.py")

BEFORE = """
from pathlib import Path

import pytest

NAME = "allranks-of-another-job"


@pytest.mark.parametrize("folder", ["/job/results", "/job/shared", "/job/code", "/tmp", "/dev/shm"])
def test_that_leaves_its_name(folder, rank):
    Path(folder, f"{NAME}-{rank}").write_text("x")
"""

LIMITS = """\
[limits]
process_group = 30
test = 40
job = 120
disk_mib = 64
memory_mib = 1792
"""


@pytest.fixture
def done(launch, scratch):
    """A run of both suites."""
    folder = scratch(BEFORE)
    (folder / "forbidden").mkdir()
    shutil.copy(FORBIDDEN, folder / "forbidden" / "test_forbidden.py")
    matrix = (folder / "matrix.toml").read_text()
    suite = '[suites.zz_forbidden]\npath = "forbidden"\n\n[images.cpu]'
    (folder / "matrix.toml").write_text(matrix.partition("[limits]")[0].replace("[images.cpu]", suite) + LIMITS)
    return launch(folder, "--engine", "docker", "--jobs", "1")


def test_what_a_job_may_not_do_is_refused_and_no_link_that_it_plants_comes_home(done):
    outcomes = {name: [item.message for item in case.result] for name, case in done.cases.items()}
    [message] = outcomes.pop("test_using_more_memory_than_allowed")
    assert message.startswith("rank 1 was killed by the kernel's out-of-memory killer")
    assert {name: found for name, found in outcomes.items() if found} == {}, done.output
    tried = {name.partition("[")[0] for name in outcomes} - {"test_that_leaves_its_name"}
    assert len(tried) == FORBIDDEN.read_text().count("\ndef test_") - 1
    assert done.code == 1

    attempt = done.folder / "cells" / "gloo-w2-g0-env" / "zz_forbidden" / "attempt-1"
    assert [path for path in done.folder.rglob("*") if path.is_symlink() or path.is_fifo()] == []
    names = {path.name for path in attempt.iterdir()}
    assert {"journal.jsonl", "rank-0.xml", "rank-1.xml", "job.json"} <= names
    assert names & {"passwords", "elsewhere", "rank-9.xml", "pipe"} == set()
