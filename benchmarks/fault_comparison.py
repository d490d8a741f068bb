"""The same planted faults under allranks, torch's MultiProcessTestCase, and pytest-xdist: who says what, and when.

Two ranks on gloo (``fault_suite/faults.py``); rank 1 is at fault. Prints a Markdown table, and what each runner said is
read from its own result, never written by hand:

- **allranks**: ``allranks run`` with the process engine; kind, leading rank and message of the merged verdict.
- **torch**: ``MultiProcessTestCase`` under unittest's runner; the result that unittest was given.
- **xdist**: ``pytest --dist each`` with two workers, each of which joins the process group as a rank; the reports that
  the controller got, by worker.

Seconds run from the start of the test to the moment when its last outcome was known; in brackets, to the end of the
command. All three have the same limits: process group 10 s, test 30 s. xdist has none of its own, so pytest-timeout is
given it (torch's default is 300 s, allranks' 120 s, pytest-timeout's none). torch's limit runs while its ranks are
spawned and import torch: on a busy machine that alone can use it up, so run this on a quiet one. A command that has not
ended after 90 s is killed, and what it had said by then counts. Processes that a command leaves are counted and killed.

    PYTHONPATH=src python benchmarks/fault_comparison.py [--runs 3] [FAULT ...]

The interpreter needs torch, allranks' own dependencies, pytest-xdist, pytest-timeout, and ``expecttest``.
"""

import argparse
import contextlib
import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import allranks
from allranks.agent.linux import is_readable
from allranks.errors import AllranksError
from allranks.protocol.records import JOURNAL, Passed, RankEnded, TestStarted, decode
from allranks.report.judged import CellSuite
from allranks.report.merging import merge


class Fault(Protocol):
    """What the table needs of a planted fault; the suite is no package of this repository's own."""

    title: str
    judged: str


FAULTS: Mapping[str, Fault] = importlib.import_module("fault_suite.faults").FAULTS
SUITE = Path(__file__).with_name("fault_suite")
GROUP_LIMIT, TEST_LIMIT, CAP = 10, 30, 90
PACKAGE = str(Path(allranks.__file__).resolve().parents[1])
MARK = "FAULT_COMPARISON"
SHOWN = 160
LOUD = 50_000_000
"""Bytes on standard output and standard error that are worth a word."""

MATRIX = f"""
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.faults]
path = "fault_suite"

[images.any]
torch = "2.13.0"

[limits]
process_group = {GROUP_LIMIT}
test = {TEST_LIMIT}
job = {CAP}

[process]
python = {json.dumps(sys.executable)}
"""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a runner said of a fault.

    Attributes:
        said: Its verdict, in its own words.
        seconds: From the start of the test until the verdict was known; None where there is none.
    """

    message: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a command ended.

    Attributes:
        wall: Seconds.
        status: Its exit status; None where it was killed at the cap.
        printed: Bytes of its output.
        left: Number of processes that it left.
    """

    wall: float
    status: int | None
    printed: int
    left: int


def run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Ending:
    """Run a command to its end, or to the cap, and kill whatever is left of it."""
    mark = uuid.uuid4().hex
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": PACKAGE, MARK: mark}
    began = time.monotonic()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **own, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CAP)
    wall, status = time.monotonic() - began, process.poll()
    left = [pid for pid in _marked(mark) if pid != process.pid and not _ends(pid)]
    for pid in (*left, *([process.pid] if status is None else [])):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return Ending(wall=wall, status=status, printed=(folder / "output").stat().st_size, left=len(left))


def _ends(pid: int) -> bool:
    """Whether a process ends by itself within two seconds, as helpers of a command that has just ended do."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return is_readable(descriptor, 2)
    finally:
        os.close(descriptor)


def _marked(mark: str) -> Iterator[int]:
    """The living processes with this mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def under_allranks(name: str, fault: Fault, folder: Path) -> tuple[Heard, Ending]:
    """The fault in a run of allranks."""
    (folder / "matrix.toml").write_text(MATRIX, encoding="utf-8")
    command = [sys.executable, "-m", "allranks", "run", "--engine", "process"]
    ending = run(command, folder, {"PLANTED_FAULT": name})
    results = folder / "results" / "latest"
    with contextlib.suppress(AllranksError):
        return _merged(results, fault), ending
    return Heard(message="no results"), ending


def _merged(results: Path, fault: Fault) -> Heard:
    suites: list[CellSuite] = []
    merge(results, observers=[suites.append])
    tests = {test.name: test.verdict for suite in suites for test in suite.tests}
    verdict = tests.get(fault.judged)
    if verdict is None:
        return Heard(message="; ".join(test.message for test in tests.values()) or "no verdict")
    leading = "" if verdict.leading is None else f", rank {verdict.leading} leads"
    message = f"{verdict.kind}{leading}: {verdict.message}" if verdict.message else f"{verdict.kind}{leading}"
    return Heard(message=message, seconds=_seconds_of_ranks(results, fault.judged))


def _seconds_of_ranks(results: Path, test: str) -> float | None:
    """From the release of the test to the arrival of the last outcome of it."""
    job = next(results.glob("cells/*/*/attempt-1"))
    records = [decode(line) for line in (job / JOURNAL).read_bytes().splitlines()]
    own = [record for record in records if isinstance(record, TestStarted | Passed | RankEnded)]
    of_test = [item for item in own if item.nodeid.endswith(f"::{test}")]
    began = [record.at for record in of_test if isinstance(record, TestStarted)]
    passed = [at for record in of_test if isinstance(record, Passed) for at in record.arrived]
    arrived = [*passed, *(record.arrived for record in of_test if isinstance(record, RankEnded))]
    return max(arrived) - min(began) if began and arrived else None


def under_torch(name: str, fault: Fault, folder: Path) -> tuple[Heard, Ending]:
    """The fault under torch's class."""
    if name == "hang_tear_down":
        return Heard(message=NO_TEAR_DOWN), NONE
    variables = {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TEST_LIMIT), **_common(name, folder)}
    ending = run([sys.executable, "-m", "fault_suite.torch_faults"], folder, variables)
    heard = [line for line in _lines(folder) if line["test"] == fault.judged]
    if not heard:
        return Heard(message="nothing"), ending
    return Heard(message=heard[-1]["message"], seconds=heard[-1]["seconds"]), ending


def under_xdist(name: str, fault: Fault, folder: Path) -> tuple[Heard, Ending]:
    """The fault under pytest-xdist."""
    shutil.copy(SUITE / "xdist_conftest.py", folder / "fault_suite" / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    variables = {"RENDEZVOUS": str(folder / "rendezvous"), **_common(name, folder)}
    options = ["-q", "-p", "no:cacheprovider", "--dist", "each", "--tx", "2*popen", f"--timeout={TEST_LIMIT}"]
    ending = run([sys.executable, "-m", "pytest", *options, "fault_suite"], folder, variables)
    events = [line for line in _lines(folder) if line["test"] == fault.judged]
    return _of_workers(events), ending


def _of_workers(events: Sequence[Mapping[str, Any]]) -> Heard:
    started = [event["at"] for event in events if event["when"] == "start"]
    outcomes: dict[str, str] = {}
    for event in events:
        is_bad = event["when"] != "start" and event["outcome"] != "passed"
        if is_bad or event["when"] == "call":
            why = f": {shortened(event['said'], SHOWN // 2)}" if is_bad else ""
            outcomes[event["worker"]] = f"{event['worker']} {event['outcome']}{why}"
    if not outcomes:
        return Heard(message="nothing")
    last = max(event["at"] for event in events)
    return Heard(message="; ".join(outcomes[worker] for worker in sorted(outcomes)), seconds=last - min(started))


def _common(name: str, folder: Path) -> dict[str, str]:
    return {"PLANTED_FAULT": name, "GROUP_LIMIT": str(GROUP_LIMIT), "HEARD": str(folder / "heard.jsonl")}


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "heard.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


NO_TEAR_DOWN = "cannot be expressed: its ranks run nothing but the test, set-up and tear-down are the parent's"

NONE = Ending(wall=0.0, status=0, printed=0, left=0)
"""Of a command that was not run."""

RUNNERS = {"allranks": under_allranks, "torch": under_torch, "xdist": under_xdist}


def cell(heard: Heard, ending: Ending) -> str:
    """What a runner said, and its seconds, for one cell of the table."""
    if ending is NONE:
        return shortened(heard.message)
    end = f"no end after {CAP} s" if ending.status is None else f"{ending.wall:.1f} s"
    seconds = "never" if heard.seconds is None else f"{heard.seconds:.1f} s"
    loud = f"; prints {ending.printed / 1e6:.0f} MB" if ending.printed > LOUD else ""
    left = f"; leaves {ending.left} process{'es' if ending.left > 1 else ''}" if ending.left else ""
    return f"{shortened(heard.message)} | {seconds} ({end}{loud}{left})"


def shortened(text: str, limit: int = SHOWN) -> str:
    """One line for a table: the first, and of the others the last one that names an exception, or else the last.

    What xdist puts above it, the worker with its platform and interpreter, says nothing of the fault.
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.startswith("[gw")]
    telling = [line for line in lines[1:] if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    words = " … ".join(part[:limit] for part in (*lines[:1], *(telling or lines[1:])[-1:]))
    words = re.sub(r"(.)\1{9,}", r"\1\1\1…", words)
    return words.replace("|", "\\|").replace("<", "&lt;")


def row(name: str, fault: Fault, runners: Sequence[str], runs: int) -> str:
    """The fault under each runner, in turn; of several runs, the one of the median time."""
    cells = []
    for runner in runners:
        found = sorted((_tried(runner, name, fault) for _ in range(runs)), key=lambda item: item[0])
        text = found[(runs - 1) // 2][1]
        cells.append(text if " | " in text else f"{text} | ")
    return f"| {fault.title} | {' | '.join(cells)} |"


def _tried(runner: str, name: str, fault: Fault) -> tuple[float, str]:
    """The seconds until the verdict, endless where there is none, and the cell."""
    with tempfile.TemporaryDirectory(prefix="fault-comparison-", ignore_cleanup_errors=True) as scratch:
        folder = Path(shutil.copytree(SUITE, Path(scratch) / SUITE.name)).parent
        heard, ending = RUNNERS[runner](name, fault, folder)
        seconds = math.inf if heard.seconds is None else heard.seconds
        return seconds, cell(heard, ending).replace(f"{folder}/", "")


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}; default: all")
    parser.add_argument("--runner", action="append", choices=RUNNERS, help="repeatable; default: all three")
    parser.add_argument("--runs", type=int, default=1, help="of each; the median time counts (default: 1)")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # spawned ranks would compile the suite again for each test
    runners = options.runner or list(RUNNERS)
    limits = f"process group {GROUP_LIMIT} s, test {TEST_LIMIT} s, command {CAP} s"
    print(f"Limits: {limits}. In brackets: the whole command.\n")
    print("| fault | " + " | ".join(f"{runner} | seconds" for runner in runners) + " |")
    print("|---|" + "---|--:|" * len(runners))
    for name in options.faults or FAULTS:
        print(row(name, FAULTS[name], runners, options.runs), flush=True)


if __name__ == "__main__":
    main()
