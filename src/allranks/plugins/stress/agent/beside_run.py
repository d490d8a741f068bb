"""Repeats tests that start their ranks under torch's own runner: to tell the test from allranks.

Each repetition is a process of its own, as on a command line: ``python FILE Class.test``, or pytest where the file is
no script. They run one after the other in the job, with its interpreter and its files.
"""

import math
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.agent import evidence, linux
from allranks.agent.job_end import JobEnd
from allranks.agent.program import ItemOptions, Program
from allranks.agent.supervisor.job import cell_environment
from allranks.agent.supervisor.test_loop import SupervisedJob
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.stress_run import Repetitions
from allranks.protocol.config import AgentConfig, Folders
from allranks.protocol.xml_text import clipped

LOG: Final = "beside-torch.log"
"""The file in the job's results that has the output of the first repetition of each test that went wrong."""

_START: Final = 60.0
"""Seconds beyond the test's limit: its process imports torch, and so do its ranks."""

_UNCLEAR: Final = 3
"""Repetitions that say nothing of the test, after which no more are tried."""

_TAIL: Final = 1 << 16

_RAN: Final = re.compile(r"^Ran [1-9]\d* tests? in |^(=+ )?[1-9]\d* (passed|failed|error)", re.MULTILINE)
_SKIPPED: Final = re.compile(r"^OK \(skipped=|^(=+ )?[1-9]\d* skipped", re.MULTILINE)


@dataclass(kw_only=True)
class _Beside:
    """The repetitions of a test.

    Attributes:
        unclear: Those that ended without a word about the test.
        why: Why there are no more.
    """

    command: Sequence[str]
    limit: float
    most: float
    runs: int = 0
    bad: int = 0
    unclear: int = 0
    why: str = ""

    def take(self, status: int | None, text: str) -> bool:
        """Count one that ended with this status, None for a time-out; True for the first that went wrong."""
        is_bad = outcome_of(status, text)
        self.unclear += is_bad is None
        self.runs, self.bad = self.runs + (is_bad is not None), self.bad + bool(is_bad)
        if _SKIPPED.search(text) and not self.runs:
            self.why = "it is skipped there"
        elif not self.runs and self.unclear == _UNCLEAR:
            last = next((line for line in reversed(text.splitlines()) if line.strip()), f"it ended with {status}")
            self.why = f"it does not run there: {clipped(last.strip(), 200)}"
        return bool(is_bad) and self.bad == 1

    @property
    def is_done(self) -> bool:
        return bool(self.why) or self.runs + self.unclear >= self.most


def repeat_beside(repetitions: Repetitions, stress: Stress, program: Program, job: SupervisedJob) -> None:
    """Repeat the tests that start their ranks as often, or for as long, as here.

    Raises:
        StopRequestedError: The job was ended from outside.
        JobLimitError: Its time is up.
    """
    if not stress.beside:
        return
    tests = {}
    for nodeid in repetitions.ran():
        terms = program.options[program.tests.index(nodeid)]
        most = stress.count or (repetitions.runs_of(nodeid) if stress.seconds is None else math.inf)
        if terms.launches:
            tests[nodeid] = _Beside(command=command_of(nodeid, terms), limit=terms.limit.seconds + _START, most=most)
        else:
            repetitions.set_beside(nodeid, 0, 0, "its ranks are those of the job")
    until, variables = time.monotonic() + (stress.seconds or math.inf), _variables(job.config)
    try:
        while left := [each for each in tests.values() if not each.is_done]:
            for each in left:
                if time.monotonic() >= until:
                    return
                _repeat(each, job.folders, variables, job.end)
    finally:
        for nodeid, each in tests.items():
            # One that ends without a word has gone wrong if others of its test do not.
            unclear = each.unclear if each.runs else 0
            told = each.why or shlex.join(["python", *each.command])
            repetitions.set_beside(nodeid, each.runs + unclear, each.bad + unclear, told)


def command_of(nodeid: str, terms: ItemOptions) -> Sequence[str]:
    """The arguments of Python that run a test without allranks, as its file is written for."""
    file, *names = nodeid.split("::")
    return [file, ".".join(names)] if terms.is_script else ["-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid]


def outcome_of(status: int | None, text: str) -> bool | None:
    """Whether a test went wrong in a process that ended so; None if that says nothing of the test.

    Args:
        status: Negative for a signal, None if it did not end in time.
        text: The end of what it printed.
    """
    if status is None or status < 0:
        return True
    return None if _SKIPPED.search(text) or not _RAN.search(text) else status != 0


def _variables(config: AgentConfig) -> Mapping[str, str]:
    """The job's variables, without those by which processes of allranks know each other."""
    cell = cell_environment(config, os.environ)
    own = {name: value for name, value in cell.items() if not name.startswith("ALLRANKS_") and name != "GROUP_RANK"}
    return {**os.environ, **own}


def _repeat(each: _Beside, folders: Folders, variables: Mapping[str, str], end: JobEnd) -> None:
    end.check()
    output = folders.results / f"{LOG}.new"
    status = _run([sys.executable, *each.command], folders.code, variables, output, each.limit, end)
    text = evidence.read_end(output, _TAIL)
    if each.take(status, text):
        with (folders.results / LOG).open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(['python', *each.command])}\n{text}\n")
    output.unlink()
    end.check()


def _run(  # noqa: PLR0913, PLR0917 - one call
    command: Sequence[str], folder: Path, variables: Mapping[str, str], output: Path, limit: float, end: JobEnd
) -> int | None:
    """Run a process to its end, with all that it starts; its exit status, or None if it was ended."""
    with output.open("wb") as written:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    descriptor = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            selector.register(end.fileno(), selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select(min(limit, end.remaining()))}
    finally:
        os.close(descriptor)
        linux.signal_group(process.pid, signal.SIGKILL)  # before it is reaped: its number is still its own
        status = process.wait()
    return status if descriptor in ready else None
