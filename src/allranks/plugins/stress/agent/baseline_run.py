"""Repeats multi-process tests under torch's own runner, to distinguish failures of the test from those of allranks.

Each repetition is a separate process, as on a command line: ``python FILE Class.test``, or pytest if the file is not a
script. They run one after another in the job, with its interpreter and its files.
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
"""The file in the job's results with the output of the first failed repetition of each test."""

_START: Final = 60.0
"""Seconds added to the test's limit, because its process and its ranks import torch."""

_UNCLEAR: Final = 3
"""Repetitions without an outcome of the test, after which it is not repeated any more."""

_TAIL: Final = 1 << 16

_RAN: Final = re.compile(r"^Ran [1-9]\d* tests? in |^(=+ )?[1-9]\d* (passed|failed|error)", re.MULTILINE)
_SKIPPED: Final = re.compile(r"^OK \(skipped=|^(=+ )?[1-9]\d* skipped", re.MULTILINE)


@dataclass(kw_only=True)
class _Baseline:
    """The repetitions of a test."""

    command: Sequence[str]
    limit: float
    most: float
    runs: int = 0
    bad: int = 0
    unclear: int = 0  # those that ended without an outcome of the test
    why: str = ""  # why there are no more

    def take(self, status: int | None, text: str) -> bool:
        """Count a repetition by its exit status, None for a timeout; return whether it is the first that failed."""
        is_bad = has_failed(status, text)
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


def run_baseline(repetitions: Repetitions, stress: Stress, program: Program, job: SupervisedJob) -> None:
    """Repeat the multi-process tests as often, or for as long, as this job has repeated them.

    Raises:
        StopRequestedError: The job was ended from outside.
        JobLimitError: Its time is up.
    """
    if not stress.baseline:
        return
    tests = {}
    for nodeid in repetitions.ran():
        options = program.options[program.tests.index(nodeid)]
        most = stress.count or (repetitions.runs_of(nodeid) if stress.seconds is None else math.inf)
        if options.launches:
            command = torch_command(nodeid, options)
            tests[nodeid] = _Baseline(command=command, limit=options.limit.seconds + _START, most=most)
        else:
            repetitions.set_baseline(nodeid, 0, 0, "it does not start its own ranks")
    until, variables = time.monotonic() + (stress.seconds or math.inf), _variables(job.config)
    try:
        while left := [test for test in tests.values() if not test.is_done]:
            for test in left:
                if time.monotonic() >= until:
                    return
                _repeat(test, job.folders, variables, job.end)
    finally:
        for nodeid, test in tests.items():
            # A repetition without an outcome counts as failed if other repetitions of the test have one.
            unclear = test.unclear if test.runs else 0
            command = test.why or shlex.join(["python", *test.command])
            repetitions.set_baseline(nodeid, test.runs + unclear, test.bad + unclear, command)


def torch_command(nodeid: str, options: ItemOptions) -> Sequence[str]:
    """The arguments of Python that run a test without allranks: as a script if its file is one, else with pytest."""
    file, *names = nodeid.split("::")
    return [file, ".".join(names)] if options.is_script else ["-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid]


def has_failed(status: int | None, text: str) -> bool | None:
    """Whether a test failed, judged by its process; None if that does not show an outcome.

    Args:
        status: The exit status; negative for a signal, None if it did not end in time.
        text: The end of its output.
    """
    if status is None or status < 0:
        return True
    return None if _SKIPPED.search(text) or not _RAN.search(text) else status != 0


def _variables(config: AgentConfig) -> Mapping[str, str]:
    """The job's environment, without the variables through which processes of allranks find each other."""
    cell = cell_environment(config, os.environ)
    own = {name: value for name, value in cell.items() if not name.startswith("ALLRANKS_") and name != "GROUP_RANK"}
    return {**os.environ, **own}


def _repeat(test: _Baseline, folders: Folders, variables: Mapping[str, str], end: JobEnd) -> None:
    end.check()
    output = folders.results / f"{LOG}.new"
    status = _run([sys.executable, *test.command], folders.code, variables, output, test.limit, end)
    text = evidence.read_end(output, _TAIL)
    if test.take(status, text):
        with (folders.results / LOG).open("a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(['python', *test.command])}\n{text}\n")
    output.unlink()
    end.check()


def _run(  # noqa: PLR0913, PLR0917 - one call
    command: Sequence[str], folder: Path, variables: Mapping[str, str], output: Path, limit: float, end: JobEnd
) -> int | None:
    """Run a process, then kill everything that it started; return its exit status, or None if its time was up."""
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
        linux.signal_group(process.pid, signal.SIGKILL)  # before it is reaped, so that its id is not reused
        status = process.wait()
    return status if descriptor in ready else None
