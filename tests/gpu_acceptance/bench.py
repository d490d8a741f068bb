"""What a part works with: it runs ``allranks``, as a user would, and compares what the report says."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from warden import end_descendants

from gpu_acceptance import notes
from gpu_acceptance.command import Command, Run
from gpu_acceptance.junit import Case
from gpu_acceptance.machine import Machine
from gpu_acceptance.matrix_file import Cells, Suite, matrix_file
from gpu_acceptance.verdict import ImpossibleError, WrongError

SUITES = Path(__file__).parent / "suites"


@dataclass
class Bench:
    """The place of one part.

    Attributes:
        folder: Its own, empty at first.
        deadline: When its time is up, on the host's monotonic clock.
        is_alone: True if no other part runs at the same time.
        checks: How many facts have been compared.
        figure: The figure that matters most, with its unit.
    """

    machine: Machine
    folder: Path
    deadline: float
    image: str = ""
    is_alone: bool = True
    checks: int = 0
    figure: str = ""

    def check(self, holds: bool, otherwise: str) -> None:
        """Compare a fact.

        Raises:
            WrongError: It does not hold.
        """
        self.checks += 1
        if not holds:
            raise WrongError(otherwise)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    @property
    def nccl(self) -> str:
        """The backend of cells for NCCL.

        Raises:
            ImpossibleError: This torch is built without it.
        """
        if self.machine.pretended:
            return "gloo"
        if not self.machine.nccl:
            msg = f"torch {self.machine.torch} is built without NCCL"
            raise ImpossibleError(msg)
        return "nccl"

    @property
    def notes(self) -> Path:
        """Where ranks leave notes."""
        folder = self.folder / "notes"
        folder.mkdir(exist_ok=True)
        return folder

    def run(self, name: str, cells: Cells, suite: Suite, *arguments: str, **variables: str) -> Run:
        """Run a suite to its end, and see that no process is left of it."""
        with self.running(name, cells, suite, *arguments, **variables) as command:
            run = command.wait()
        self.no_process_is_left()
        return run

    @contextmanager
    def running(self, name: str, cells: Cells, suite: Suite, *arguments: str, **variables: str) -> Iterator["Command"]:
        """A run that goes on; it is interrupted where the block ends before it."""
        repository = self.folder / name
        shutil.copytree(suite.source, repository / suite.source.name, ignore=shutil.ignore_patterns("__pycache__"))
        (repository / "matrix.toml").write_text(matrix_file(self.machine, cells, suite))
        command = ["run", "--engine", "docker" if suite.image else "process"]
        command += ["--results", str(repository / "results"), "--seed", "7", *arguments]
        with self.command(name, command, repository, **variables) as started:
            yield started

    @contextmanager
    def command(self, name: str, arguments: Sequence[str], folder: Path, **variables: str) -> Iterator["Command"]:
        """A command of allranks that goes on."""
        output = self.folder / f"{name}.txt"
        environment = {**os.environ, notes.FOLDER: str(self.notes), **variables}
        with output.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "allranks", *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        command = Command(process, output, folder / "results", time.monotonic(), self.deadline)
        try:
            yield command
        finally:
            command.end()
            print(f"$ allranks {' '.join(arguments)}\n{command.output}", flush=True)

    def no_process_is_left(self) -> None:
        """End and name what commands that are over have left running.

        Raises:
            WrongError: There was any.
        """
        left = end_descendants()
        self.check(not left, f"processes were left behind: {'; '.join(left)[:500]}")

    def expect_passes(self, run: Run, cells: Cells, tests: Sequence[str]) -> None:
        """See that each of these tests has passed on every rank of every cell, and that nothing is bad.

        Raises:
            ImpossibleError: NCCL refuses two ranks on one GPU.
            WrongError: One has not.
        """
        self.excuse(run)
        self.check(run.code == 0, run.story)
        self.check(bool(tests), "no test was asked for")
        for cell, size in cells.ids.items():
            passed = {case.name for case in run.cases if case.cell == cell and _has_passed(case, size)}
            lacking = [test for test in tests if test not in passed]
            self.check(not lacking, f"{cell}: {', '.join(lacking)} did not pass on all {size} ranks; {run.story}")

    def expect_no_failures(self, run: Run, cells: Cells, at_least: int) -> str:
        """See that a suite whose tests may skip has no bad one and so many passes in each cell; the counts in words.

        Raises:
            ImpossibleError: All tests were skipped, or NCCL refuses two ranks on one GPU.
            WrongError: A test is bad, or too few passed.
        """
        self.excuse(run)
        skipped = [case.message for case in run.cases if case.verdict[0] == "skipped"]
        if run.code == 5 and run.cases and len(skipped) == len(run.cases):
            msg = f"all {len(skipped)} tests were skipped: {max(set(skipped), key=skipped.count)}"
            raise ImpossibleError(msg)
        self.check(run.code == 0, run.story)
        for cell, size in cells.ids.items():
            passed = sum(_has_passed(case, len(case.ranks)) for case in run.cases if _is_of(case, cell, size))
            self.check(passed >= at_least, f"{cell}: {passed} tests passed, fewer than {at_least}; {run.story}")
        self.figure = f"{len(run.cases) - len(skipped)} passed, {len(skipped)} skipped"
        return f"{len(run.cases) - len(skipped)} tests passed, {len(skipped)} skipped"

    def excuse(self, run: Run) -> None:
        """See that NCCL takes as many ranks on one GPU as the cells have.

        Raises:
            ImpossibleError: It does not.
        """
        told = (line for case in run.cases for line in f"{case.message}\n{case.text}".splitlines())
        if refused := next((line.strip() for line in told if "Duplicate GPU detected" in line), ""):
            msg = f"NCCL {self.machine.nccl} refuses two ranks on one GPU: {refused[:300]}"
            raise ImpossibleError(msg)


def _is_of(case: Case, cell: str, world_size: int) -> bool:
    """True for a test of a cell with all its ranks: torch's own tests may start more."""
    return case.cell == cell and len(case.ranks) >= world_size


def _has_passed(case: Case, world_size: int) -> bool:
    return case.verdict == ("passed", "") and case.ranks == dict.fromkeys(range(world_size), "passed")
