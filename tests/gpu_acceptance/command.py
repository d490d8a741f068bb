"""A command of allranks that a part runs, and the report that it leaves."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.junit import Case, read_cases
from gpu_acceptance.verdict import TimeUpError, WrongError


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has ended.

    Attributes:
        code: The exit code of the command.
        output: What it printed.
        seconds: How long it took.
    """

    code: int
    output: str
    cases: tuple[Case, ...]
    seconds: float
    results: Path

    def case(self, name: str) -> Case:
        """The only testcase of a name.

        Raises:
            WrongError: There is none, or there are several.
        """
        found = [case for case in self.cases if case.name == name]
        if len(found) != 1:
            msg = f"{len(found)} testcases of the name {name}; {self.story}"
            raise WrongError(msg)
        return found[0]

    @property
    def story(self) -> str:
        """What went wrong in a few words."""
        bad = [case for case in self.cases if case.verdict[0] in {"failure", "error"}]
        told = f"{len(bad)} of {len(self.cases)} tests are bad" if self.cases else "there is no report"
        first = f", first {bad[0].cell} {bad[0].name}: {bad[0].message[:400]}" if bad else f": {self.output[-600:]}"
        return f"exit code {self.code}, {told}{first}"


@dataclass
class Command:
    """A command of allranks that runs, or has ended."""

    process: subprocess.Popen[bytes]
    log: Path
    results: Path
    began: float
    deadline: float

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="backslashreplace")

    def wait(self) -> Run:
        """Wait for its end.

        Raises:
            TimeUpError: It does not end in time.
        """
        try:
            code = self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            msg = f"the command does not end: {self.output[-600:]}"
            raise TimeUpError(msg) from None
        seconds = time.monotonic() - self.began
        runs = [path for path in self.results.glob("*/junit.xml") if path.parent.name != "latest"]
        report = runs[0] if runs else self.results / "none"
        return Run(code=code, output=self.output, cases=read_cases(report), seconds=seconds, results=report.parent)

    def wait_until(self, comes: Callable[[], bool], what: str) -> None:
        """Wait for something that comes while it runs.

        Raises:
            WrongError: It ends first.
            TimeUpError: It does not come in time.
        """
        while not comes():
            if self.process.poll() is not None and not comes():
                msg = f"the command has ended, and {what} did not come: {self.output[-600:]}"
                raise WrongError(msg)
            if time.monotonic() > self.deadline:
                msg = f"{what} does not come: {self.output[-600:]}"
                raise TimeUpError(msg)
            time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, as a terminal or a person does."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Have it end, if it runs."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.send(number)
                try:
                    self.process.wait(20)
                except subprocess.TimeoutExpired:
                    continue
