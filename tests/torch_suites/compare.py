"""Runs torch's own suites under allranks, and compares every outcome with the record of torch's own runner.

    python tests/torch_suites/compare.py [--engine ENGINE] [SUITE | SUITE::Class::test ...]

The same means: the same outcome over all ranks, and for a skip the same reason. Prints each difference with both sides,
those that are listed in known_differences.json with their cause. Exit status 1 if one is not listed, or a job went
wrong; 2 if there is no record of the installed torch. What is not on record counts as neither same nor different.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from allranks_run import jobs_of_suites, run
from differences import Compared, Relation, compare, read_known
from suite_files import UnknownSuiteError, read_selection
from torch_record import NoRecordError, installed_torch, read_record

GOOD: tuple[Relation, ...] = ("same", "known", "not on record")
BAD: tuple[Relation, ...] = ("differs", "not run")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="process", help="of allranks (default: process)")
    parser.add_argument("tests", nargs="*", metavar="SUITE | SUITE::Class::test", help="default: all suites")
    options = parser.parse_args(arguments)
    try:
        selection, record = read_selection(options.tests), read_record(installed_torch())
    except (NoRecordError, UnknownSuiteError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"under allranks: {', '.join(selection)}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="torch-outcomes-"))
    ran = run(jobs_of_suites(selection), folder, "--engine", options.engine)
    compared = compare(record, ran.suites, selection, read_known())
    print(report(compared, ran.troubles))
    print(f"allranks took {ran.wall:.1f} s")
    if is_good(compared, ran.troubles):
        shutil.rmtree(folder)
        return 0
    if ran.troubles:
        print(ran.output)
    print(f"its results are in {folder}")
    return 1


def report(compared: Sequence[Compared], troubles: Sequence[str]) -> str:
    """What is not the same, with both sides, and a line of counts."""
    counts = Counter(comparison.relation for comparison in compared)
    shown = [*troubles, *(str(comparison) for comparison in compared if comparison.relation != "same")]
    summary = ", ".join(f"{counts[relation]} {relation}" for relation in (*GOOD, *BAD))
    return "\n".join([*shown, f"{len(compared)} tests: {summary}"])


def is_good(compared: Sequence[Compared], troubles: Sequence[str]) -> bool:
    """Whether all that is on record is the same, or listed, and every job went well."""
    return bool(compared) and not troubles and all(comparison.relation in GOOD for comparison in compared)


if __name__ == "__main__":
    sys.exit(main())
