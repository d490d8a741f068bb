"""The folder of a job on a node's own disk."""

import tempfile
from pathlib import Path

import pytest

from allranks.plugins.slurm.agent.node_scratch import scratch_folder

JOB = Path("/spool/job")


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_is_removed_at_the_end(temporary):
    with scratch_folder(JOB) as (folder, _):
        assert folder.is_dir()
    assert list(temporary.iterdir()) == []


def test_the_next_job_removes_that_of_a_dead_one_and_no_other(temporary):
    dead, made, strange = (temporary / f"allranks-node-{name}" for name in ("dead", "made", "strange"))
    for folder in (dead, made, strange):
        folder.mkdir()
    (dead / ".lock").touch()
    (strange / ".lock").symlink_to("/dev/null")
    with scratch_folder(JOB) as (living, _), scratch_folder(JOB) as (other, _):
        assert sorted(temporary.iterdir()) == sorted((made, strange, living, other))
