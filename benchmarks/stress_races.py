"""Whether planted races are found: by plain repetition and by late ranks, for the same time each.

Ten tests of three ranks on gloo (``stress_races_suite``), each with one race. For each test:

- **plain**: ``allranks stress`` until the first failure, for ``--seconds``;
- **skewed**: the same with ``--skew heavy``;
- **replayed**: how many of ten repetitions fail again by the command that the report has for it: with the delays that
  the search found (``--skew 1:before:2:40ms --replay SEED``), or else with all of its seed.

    PYTHONPATH=src python benchmarks/stress_races.py [--seconds 60] [TEST ...]

The interpreter needs torch. Exit status 1 unless late ranks find all, each is replayed in eight of ten runs, and plain
repetition finds at most half of them.
"""

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from allranks.protocol.records import JOURNAL, RankEnded, Record, Repeated, TestStarted, decode
from allranks.protocol.repetitions import command_to_repeat

SUITE = Path(__file__).parent / "stress_races_suite"
SEED = 7
TRIES = 10
ENOUGH = 8
"""Of these tries, those that have to fail again."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a run has come to.

    Attributes:
        runs: Repetitions.
        bad: Those that failed.
        number: Of the first of them; 0 for none.
        name: What the report calls the last failure: of the search, where that found delays.
        seconds: To the end of the first.
        how: What the search found, or the message of the leading rank.
    """

    runs: int
    bad: int
    number: int
    name: str
    seconds: float
    how: str


def stress(*arguments: str) -> Found:
    """Run ``allranks stress``."""
    with tempfile.TemporaryDirectory() as results:
        command = [sys.executable, "-m", "allranks", "stress", "--matrix", str(SUITE), "--engine", "process", "-q"]
        own = ["--results", results, "--seed", str(SEED), *arguments]
        subprocess.run([*command, *own], check=False, stdout=subprocess.DEVNULL)
        journals = list(Path(results).glob(f"*/cells/*/*/attempt-*/{JOURNAL}"))
        records: list[Record] = [decode(line) for path in journals for line in path.read_bytes().splitlines()]
    tally = [record.tally for record in records if isinstance(record, Repeated)][-1]
    leads = [record for record in records if isinstance(record, RankEnded) and not record.consequence]
    bad = [f"rank {record.rank}: {record.message}" for record in leads if "(repetition " in record.nodeid]
    names = [record.nodeid for record in records if isinstance(record, TestStarted) and "(repetition " in record.nodeid]
    return Found(
        runs=tally.runs,
        bad=tally.bad,
        number=tally.first_bad,
        name=names[-1] if names else "",
        seconds=tally.first_bad_after,
        how=tally.shrunk or next(iter(bad), "")[:90],
    )


def main() -> int:
    """Run the benchmark; return its exit status."""
    names = [
        line.split("(")[0].split()[1]
        for line in (SUITE / "test_races.py").read_text().splitlines()
        if "def test" in line
    ]
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("tests", nargs="*", default=names)
    options = parser.parse_args()
    until = ("--until-failure", "--duration", str(options.seconds))
    plain_finds, is_good = 0, True
    print("| race | plain | with late ranks | replayed | how |\n|---|--:|--:|--:|---|")
    for test in options.tests:
        selected = ("--", f"test_races.py::{test}")
        plain, late = stress(*until, *selected), stress(*until, "--skew", "heavy", *selected)
        again = 0
        if late.number:
            words = command_to_repeat(late.name, ["--count", str(TRIES), "--gangs", "1"])[2:]
            again = stress(*words).bad
        plain_finds += bool(plain.number)
        is_good = is_good and bool(late.number) and again >= ENOUGH
        columns = [result(plain), result(late), f"{again} of {TRIES}", late.how]
        print(f"| {test.removeprefix('test_').replace('_', ' ')} | {' | '.join(columns)} |", flush=True)
    print(f"\nPlain repetition found {plain_finds} of {len(options.tests)}.")
    return 0 if is_good and 2 * plain_finds <= len(options.tests) else 1


def result(found: Found) -> str:
    """A run in a cell of the table."""
    return f"{found.seconds:.1f} s ({found.number})" if found.number else f"none in {found.runs:,}"


if __name__ == "__main__":
    raise SystemExit(main())
