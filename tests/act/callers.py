"""Repositories that call dist.yml: a matrix file, tests, a workflow of their own, and one commit."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

OWN = "owner/allranks@" + "a" * 40
"""Where the caller finds dist.yml."""

CALL = f"""\
on: push
jobs:
  dist:
    uses: {OWN.replace("@", "/.github/workflows/dist.yml@")}
    permissions:
      contents: read
      packages: read
    with:
      allranks: allranks
      name: {{name}}
      python: "3.11"
      select: {{select}}
"""

SUITE = """\
import torch
import torch.distributed as dist


def test_ranks_add_up():
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
"""

RECIPE = """\
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.tiny]
path = "."

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]
"""


def command(*words: str, folder: Path) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lay(repository: Path, matrix: str, suites: dict[str, str]) -> None:
    """Lay a matrix file and tests into a folder, and make it a repository of GitHub's with one commit."""
    (repository / "matrix.toml").write_text(matrix)
    for suite, text in suites.items():
        (repository / "tests" / suite).mkdir(parents=True)
        (repository / "tests" / suite / f"test_{suite}.py").write_text(text)
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@localhost")
    command(*git, "init", "--quiet", "--initial-branch", "main", folder=repository)
    command(*git, "remote", "add", "origin", "https://github.com/owner/repository", folder=repository)
    command(*git, "add", "--all", folder=repository)
    command(*git, "commit", "--quiet", "--message", "all", folder=repository)
