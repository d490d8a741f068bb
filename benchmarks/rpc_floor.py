"""What torch's RPC tests cost torch alone: the same test functions in bare forks, beside the same lists under allranks.

- **start**: ranks start RPC as torch's tests do, and shut it down: once for each test of the lists, and no more.
- **loop**: the plainest loop that can run the lists. A process that has imported them forks the ranks of a test, each
  runs torch's own ``MultiProcessTestCase.run_test``, and it waits for their exit. No supervision, capture or results.
- **allranks**: ``allranks run`` with the lists, on the process engine: the whole command.

The first two run ``--lanes`` tests at a time, as many as the suites' ``overlap``. Of each it prints wall time, and the
processor time of all processes by user and kernel. What *start* and *loop* take is torch's.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH=src python benchmarks/rpc_floor.py [--lanes 6]
        [--only start,loop,allranks] [--tests N]          # every N-th test, in the first two

The interpreter needs torch, ``expecttest`` and allranks' dependencies. Tests that fail in the loop are counted.
"""

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from pathlib import Path

import torch
from torch.distributed import rpc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "torch_suites"))  # the helpers of that folder

from suite_files import SUITES  # noqa: E402
from torch_runner import load, tests_of  # noqa: E402

from allranks.protocol.skip_codes import SkipCode  # noqa: E402

LISTS = ("torch-rpc", "torch-dist-autograd", "torch-dist-optimizer", "torch-ddp-rpc")
"""All but the faulty agent's: importing that gives torch an enumeration of agents that the others do not know."""
LIMIT = 120
"""Seconds for a rank of the loop, whose peers may have failed."""
BEFORE = dict(os.environ)
"""As the lists are not imported yet: that sets the variables of a cell."""
Test = Callable[[int, str], None]
"""A test in a rank, from its number and a file of the test."""


def bare_start(rank: int, file: str) -> None:
    """Start RPC and shut it down."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{file}")
    start: Callable[..., None] = rpc.init_rpc  # torch gives it no types
    start(f"worker{rank}", rank=rank, world_size=4, rpc_backend_options=options)
    rpc.shutdown()


def body(case: type, name: str) -> Test:
    """One of torch's tests, as torch's launcher runs it in a rank."""

    def run(rank: int, file: str) -> None:
        signal.alarm(LIMIT)
        # As allranks does. Called before the fork, it makes torch 2.13's RPC ranks abort (*Invalid thread pool*).
        torch.set_num_threads(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        here, there = Pipe()
        test = case(name)
        test.rank, test.file_name = rank, file
        test.run_test(name, there)
        here.close()

    return run


def listed() -> list[tuple[str, int, Test]]:
    """The tests of the lists: name, number of ranks, and function."""
    tests = [test for suite in LISTS for test in tests_of(load(ROOT / SUITES[suite].file))]
    names: list[tuple[type, str]] = [(type(test), test._testMethodName) for test in tests]  # noqa: SLF001 - nowhere else
    return [(f"{case.__name__}::{name}", case(name).world_size, body(case, name)) for case, name in names]


def run_tests(tests: Sequence[tuple[str, int, Test]], lanes: int) -> None:
    """Run tests, ``lanes`` at a time, each lane in a process of its own, and print how they ended."""
    with tempfile.TemporaryDirectory() as folder:
        for child in [_fork(_lane(tests[number::lanes], Path(folder, str(number)))) for number in range(lanes)]:
            os.waitpid(child, 0)
        ended = [
            line.split() for path in sorted(Path(folder).glob("*.ended")) for line in path.read_text().splitlines()
        ]
    print(Counter(outcome for _, outcome in ended), *sorted(name for name, outcome in ended if outcome == "failed"))


def _lane(tests: Sequence[tuple[str, int, Test]], place: Path) -> Callable[[], None]:
    def run() -> None:
        with Path(f"{place}.ended").open("w") as ended:
            for number, (name, world_size, test) in enumerate(tests):
                meeting = Path(f"{place}.{number}")
                meeting.touch()
                ranks = [_fork(lambda rank=rank: test(rank, str(meeting))) for rank in range(world_size)]  # type: ignore[misc] # noqa: B023
                codes = {os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks}
                ended.write(f"{name} {_outcome(codes)}\n")

    return run


def _outcome(codes: set[int]) -> str:
    if codes == {0}:
        return "passed"
    return "skipped" if codes <= {0, *SkipCode} else "failed"


def _fork(do: Callable[[], None]) -> int:
    if child := os.fork():
        return child
    status = 1
    try:
        do()
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    finally:
        os._exit(status)


def run_allranks() -> None:
    """The lists under allranks."""
    suites = [word for suite in LISTS for word in ("--suite", suite)]
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w") as log:
        command = [sys.executable, "-m", "allranks", "run", "gloo-w2-g0-file", "--engine", "process", *suites]
        results = Path(folder, "results")
        subprocess.run([*command, "--results", results], cwd=ROOT, env=BEFORE, stdout=log, stderr=log, check=False)
        print(json.loads((results / "latest" / "report.json").read_text(encoding="utf-8"))["counts"])


@contextlib.contextmanager
def measured(name: str) -> Iterator[None]:
    """Print what the processes that were started in this block took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    yield
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    print(
        f"{name:8} {wall:6.1f} s wall, {user + kernel:6.1f} s processor: user {user:.1f}, kernel {kernel:.1f}",
        flush=True,
    )


def main() -> None:
    """Measure each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=6, help="tests at a time (default: 6)")
    parser.add_argument("--only", default="start,loop,allranks", help="the ways to measure")
    parser.add_argument("--tests", type=int, default=1, help="every N-th test (default: 1, all)")
    options = parser.parse_args()
    tests = listed()[:: options.tests]
    print(f"torch {torch.__version__}, {len(tests)} tests, {options.lanes} at a time")
    ways: dict[str, Callable[[], None]] = {
        "start": lambda: run_tests([(name, 4, bare_start) for name, _, _ in tests], options.lanes),
        "loop": lambda: run_tests(tests, options.lanes),
        "allranks": run_allranks,
    }
    for name in options.only.split(","):
        with measured(name):
            ways[name]()


if __name__ == "__main__":
    main()
