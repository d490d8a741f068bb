"""``allranks bisect --git`` in a real repository, with real ranks."""

import subprocess
import sys

import pytest

TEST = """
import torch
import torch.distributed as dist


def test_sum(rank, world_size):
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x == world_size + {more}
"""


@pytest.fixture
def engine():
    """The one that needs nothing."""
    return "process"


@pytest.mark.thorough
def test_the_commit_is_found_and_the_checkout_is_left_alone(scratch, engine, tmp_path):
    folder, results = scratch(TEST.format(more=0)), tmp_path / "results"

    def run(*command):
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)

    def git(*arguments):
        return run("git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments).stdout

    git("init", "--quiet")
    for more, subject in ((0, "Begin"), (1, "Expect too much"), (1, "Go on")):
        (folder / "suite" / "test_tiny.py").write_text(TEST.format(more=more))
        git("add", "--all")
        git("commit", "--quiet", "--allow-empty", "--message", subject)
    command = [sys.executable, "-m", "allranks", "bisect", "suite/test_tiny.py::test_sum", "--git", "HEAD~2..HEAD"]
    done = run(*command, "--engine", engine, "--results", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "suite/test_tiny.py::test_sum starts to fail with " in done.stdout
    assert "Expect too much: it failed 10 of 10 times at BAD, and none of 3 times" in done.stdout
    assert git("status", "--porcelain") == ""
    assert git("worktree", "list").count("\n") == 1
