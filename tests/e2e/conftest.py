"""Whole runs of the command line in scratch repositories, each of which must leave the host as it was."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from junitparser import JUnitXml, TestCase

from allranks.errors import EngineError
from allranks.images.docker_client import connect

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.tiny]
path = "suite"
isolation = "job"

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

[process]
python = {python!r}

[limits]
process_group = 4
test = 5
job = 60
peer_grace = 1
"""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that has ended.

    Attributes:
        output: Standard output and standard error together.
        folder: Where it left its results.
    """

    code: int
    output: str
    folder: Path

    @property
    def cases(self) -> dict[str, TestCase]:
        """The test cases of the merged report, by name."""
        return {case.name: case for suite in JUnitXml.fromfile(self.folder / "junit.xml") for case in suite}


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Starts ``python -m allranks run`` as the run `run_id`.

    Attributes:
        results: The folder of all its runs.
    """

    run_id: str
    results: Path

    @contextmanager
    def start(self, folder: Path, *arguments: str, command: str = "run") -> Iterator[subprocess.Popen[str]]:
        """A run that goes on while the context lasts."""
        words = [sys.executable, "-m", "allranks", command, "--results", str(self.results), *arguments]
        environment = {**os.environ, "ALLRANKS_RUN_ID": self.run_id}
        with subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def __call__(self, folder: Path, *arguments: str, command: str = "run") -> Done:
        """A whole run."""
        with self.start(folder, *arguments, command=command) as process:
            output, _ = process.communicate(timeout=300)
        return Done(code=process.returncode, output=output, folder=self.results / self.run_id)


@pytest.fixture
def run_id(left_of: Callable[[str], list[str]]) -> Iterator[str]:
    """The name of the test's own run, of which nothing may be left afterwards."""
    name = f"e2e-{secrets.token_hex(4)}"
    before = _foreign_objects()
    yield name
    assert left_of(name) == []
    assert _foreign_objects() <= before


def _foreign_objects() -> set[str]:
    """Networks and volumes without the label of a run; whoever else uses this host labels theirs."""
    try:
        client = connect()
    except EngineError:
        return set()
    with closing(client):
        found = [*client.api.networks(), *(client.api.volumes()["Volumes"] or [])]
        return {match["Name"] for match in found if "allranks.run" not in (match["Labels"] or {})}


@pytest.fixture
def launch(run_id: str, tmp_path: Path) -> Launcher:
    return Launcher(run_id=run_id, results=tmp_path / "results")


@pytest.fixture(params=["process", pytest.param("docker", marks=pytest.mark.docker)])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "docker":
        request.getfixturevalue("docker_client")
    return str(request.param)


@pytest.fixture
def scratch(tmp_path: Path) -> Callable[[str], Path]:
    """Make a repository with one suite of one file."""

    def make(suite: str) -> Path:
        folder = tmp_path / "repository"
        (folder / "suite").mkdir(parents=True)
        (folder / "suite" / "test_tiny.py").write_text(suite)
        (folder / "matrix.toml").write_text(MATRIX.format(python=sys.executable))
        return folder

    return make
