"""torch's own suites under allranks, beside torch's own runner: seconds, and whether they say the same.

A sample of torch's two long lists, ``distributed_test`` and RPC (the generic and the TensorPipe tests), on gloo at
world size 2. On both sides each list is one process that leads:

- **torch**: unittest, and ranks that torch spawns (``tests/torch_suites/torch_runner.py``). Once: it takes minutes.
- **allranks**: ``allranks run`` on the process engine, one agent; ``--runs`` times, of which the median counts.

Seconds are those of the whole command: start, imports, collection, ranks, and for allranks its report. In brackets,
those of the tests alone: for torch the sum over its tests, for allranks from the agent's turn to its last event.
Interpreter and environment are the same.

The sample does not know how long a test takes: a list is sorted by what torch's runner makes of its tests (what it
executes before what it skips, skips by their reason) and then by name, and every n-th is taken, so that executed tests
and each kind of skip have their share. What torch's runner makes of them is on record (``tests/torch_suites/records``).

The 60 tests of each list that are measured by default were drawn so once, and are kept by name in
``tests/torch_suites/samples.json``; ``--tests N`` draws N from the record.

    python benchmarks/torch_suites.py [--list c10d|rpc] [--tests N] [--runs 3]
    python benchmarks/torch_suites.py --names         # print the sample, and run nothing
    python benchmarks/torch_suites.py --full          # the whole lists; an hour and more

Both outcomes of every test, and the reasons of skips, are compared on the way. Exit status 1 where they differ, or
where allranks is less than 20 times as fast. The interpreter needs torch, ``expecttest`` and allranks' dependencies.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "torch_suites"))  # the helpers of that folder

from allranks_run import Ran, one_job, run
from compare import is_good, report
from differences import compare, read_known
from outcomes import read_recording
from sampling import Listed, fixed_sample, listed, sample, selection_of
from suite_files import LISTS, ROOT, SUITES, Selection, suite_of_module
from torch_record import NoRecordError, Record, installed_torch, read_record, record_of

RUNNER = ROOT / "tests" / "torch_suites" / "torch_runner.py"

WANTED = 20
"""How many times as fast allranks is to be."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """What one side took.

    Attributes:
        wall: The whole command.
        tests: Its tests alone.
    """

    wall: float
    tests: float

    def __str__(self) -> str:
        """Both, for a person."""
        return f"{self.wall:.1f} s ({self.tests:.1f} s)"


def under_torch(selection: Selection, folder: Path) -> tuple[Record, Seconds]:
    """One run of torch's own runner: what it made of each test, and its seconds."""
    out, log = folder / "torch.jsonl", folder / "torch.log"
    files = os.pathsep.join(str(ROOT / SUITES[suite].file) for suite in selection)
    names = [test for tests in selection.values() for test in tests]
    began = time.monotonic()
    with log.open("w") as output:
        command = [sys.executable, str(RUNNER), files, str(out), *names]
        subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    wall = time.monotonic() - began
    if not out.exists():
        sys.exit(f"torch's runner came to nothing:\n{log.read_text(encoding='utf-8')}")
    recording = list(read_recording(out))
    record = record_of([(suite_of_module(test.module), [test]) for test in recording], Record(torch=installed_torch()))
    return record, Seconds(wall=wall, tests=sum(test.seconds for test in recording))


def under_allranks(name: str, selection: Selection, folder: Path) -> Ran:
    """One run of allranks."""
    print(".", end="", flush=True)
    return run([one_job(f"torch-list-{name}", selection)], folder)


def measure(name: str, selection: Selection, runs: int) -> bool:
    """Run a list on both sides and print what came of it; whether all is well."""
    with tempfile.TemporaryDirectory(prefix="torch-suites-") as scratch:
        record, theirs = under_torch(selection, Path(scratch))
        rans = [under_allranks(name, selection, Path(scratch) / f"run-{number}") for number in range(runs)]
    print()
    sames = [_is_same(record, selection, ran) for ran in rans]
    ours = Seconds(wall=statistics.median(ran.wall for ran in rans), tests=statistics.median(ran.tests for ran in rans))
    ratio = theirs.wall / ours.wall
    missed = "" if ratio >= WANTED else "  MISSED"
    print(f"{name}: torch {theirs}; allranks {ours}, median of {_spread(rans)}")
    alone = f"the tests alone {theirs.tests / ours.tests:.1f}" if ours.tests else "no test ran"
    print(f"{name}: {ratio:.1f} times as fast (at least {WANTED}){missed}; {alone}")
    return all(sames) and not missed


def _is_same(record: Record, selection: Selection, ran: Ran) -> bool:
    compared = compare(record, ran.suites, selection, read_known())
    print(report(compared, ran.troubles))
    # What one side alone has is a difference here: both have just run the same.
    return is_good(compared, ran.troubles) and all(comparison.torch for comparison in compared)


def _spread(rans: Sequence[Ran]) -> str:
    return ", ".join(f"{ran.wall:.1f}" for ran in rans)


def chosen(name: str, record: Record, size: int) -> Selection:
    """The sample of a list; prints how it stands to the whole."""
    tests = listed(record, name)
    if not tests:
        sys.exit(f"No test of the list {name} is on record for torch {record.torch}: tests/torch_suites/record.py")
    taken = sample(tests, size)
    print(f"{name}: {_shares(taken)}, of {_shares(tests)} on record")
    return selection_of(taken)


def _shares(tests: Sequence[Listed]) -> str:
    skipped = sum(test.outcome.kind == "skipped" for test in tests)
    return f"{len(tests)} tests ({len(tests) - skipped} executed, {skipped} skipped)"


def main() -> None:
    """Measure, print, and fail where outcomes differ or allranks is too slow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=LISTS, action="append", help="repeatable; default: both")
    parser.add_argument("--tests", type=int, help="draw so many of a list (default: the kept 60)")
    parser.add_argument("--runs", type=int, default=3, help="of allranks; torch's runner runs once")
    parser.add_argument("--full", action="store_true", help="the whole lists")
    parser.add_argument("--names", action="store_true", help="print the tests and run nothing")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # torch's ranks would compile the suite again for each test
    selections = {name: _selected(name, options.tests, full=options.full) for name in options.list or LISTS}
    if options.names:
        print(
            "\n".join(
                f"{suite}::{test}"
                for selection in selections.values()
                for suite in selection
                for test in selection[suite]
            )
        )
        return
    held = [measure(name, selection, options.runs) for name, selection in selections.items()]
    sys.exit(not all(held))


def _selected(name: str, size: int | None, *, full: bool) -> Selection:
    if full:
        return dict.fromkeys(LISTS[name], ())
    if size is None:
        return fixed_sample(name)
    try:
        return chosen(name, read_record(installed_torch()), size)
    except NoRecordError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
