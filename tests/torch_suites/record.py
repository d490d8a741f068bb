"""Makes the record of the installed torch version from recordings of torch's own runner, or makes these first.

    python tests/torch_suites/record.py SUITE.jsonl ... SUITE=FILE.jsonl ...
    python tests/torch_suites/record.py --run FOLDER [SUITE ...]

A recording is what ``torch_runner.py`` writes; its name says which suite it is of, unless ``SUITE=`` does. Of a test
that several recordings have, the last one counts; where they differ, the record keeps all that was seen, and calls the
test flaky. What is on record already stays, and counts as an earlier recording.

With ``--run``, suites (all, unless some are named) run under torch's own runner first, which takes an hour for all of
them; what FOLDER has from a run that was broken off is not run again.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outcomes import read_recording
from suite_files import ROOT, SUITES, UnknownSuiteError
from torch_record import NoRecordError, Record, installed_torch, read_record, record_of, write_record

RUNNER = Path(__file__).with_name("torch_runner.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the record, and print what it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="run suites first; their recordings go here")
    parser.add_argument("named", nargs="*", metavar="RECORDING | SUITE")
    options = parser.parse_args(arguments)
    try:
        recordings = (
            run(options.run, options.named or list(SUITES))
            if options.run
            else [_recording(test) for test in options.named]
        )
    except UnknownSuiteError as error:
        sys.exit(str(error))
    record = record_of([(suite, read_recording(path)) for suite, path in recordings], _known())
    print(f"{_shown(write_record(record))}\n{summary(record)}")
    return 0


def run(folder: Path, suites: Sequence[str]) -> list[tuple[str, Path]]:
    """Run suites under torch's own runner; the recordings.

    Raises:
        UnknownSuiteError: One of them is none.
    """
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        msg = f"There is no suite {unknown[0]}: name some of {', '.join(SUITES)}."
        raise UnknownSuiteError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    return [(suite, _run_suite(suite, folder / f"{suite}.jsonl")) for suite in suites]


def _run_suite(suite: str, recording: Path) -> Path:
    print(f"{suite}: into {recording}", flush=True)
    log = recording.with_suffix(".log")
    with log.open("a", encoding="utf-8") as output:
        command = [sys.executable, RUNNER, ROOT / SUITES[suite].file, recording]
        subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if not recording.exists():
        sys.exit(f"torch's runner came to nothing: see {log}")
    return recording


def _recording(argument: str) -> tuple[str, Path]:
    suite, separator, path = argument.partition("=")
    if not separator:
        suite, path = Path(argument).stem, argument
    if suite not in SUITES:
        msg = f"{suite} is no suite: say which {path} is of, as in {next(iter(SUITES))}={path}."
        raise UnknownSuiteError(msg)
    return suite, Path(path)


def _known() -> Record:
    try:
        return read_record(installed_torch())
    except NoRecordError:
        return Record(torch=installed_torch())


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def summary(record: Record) -> str:
    """How many tests of each suite came to what, and which are flaky."""
    lines = []
    for suite, tests in sorted(record.suites.items()):
        kinds = Counter(outcome.kind for outcome in tests.values())
        lines.append(f"{suite}: {len(tests)} tests, " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())))
        lines += [f"  flaky: {test}: {'; '.join(map(str, seen))}" for test, seen in record.flaky.get(suite, {}).items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
