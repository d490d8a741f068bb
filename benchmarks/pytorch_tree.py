"""PyTorch's own ``test/distributed`` tree, unmodified, under torch's runner and under allranks: test by test.

``--source`` is a folder with PyTorch's ``test/distributed``, ``test/conftest.py`` and ``pytest.ini``, of the version
that this interpreter has. Each file runs

- **torch's way**, ``python distributed/test_x.py --use-pytest -p no:xdist -v`` in ``test``, as PyTorch's CI does; a
  file without ``__main__``, or whose ``__main__`` does not take these options, runs by ``python -m pytest``;
- **under allranks**, ``allranks run test/distributed/test_x.py`` on the process engine, with the suites of MATRIX.

    python benchmarks/pytorch_tree.py --source DIR --torch 2.6.0 [FILE ...] [--results FOLDER] [--runs N]

A run of a file is kept in FOLDER, so that a benchmark that was broken off goes on where it was; remove a file's JSON to
run it again. With ``--runs``, each side runs as often. A test is the *same* if both sides have the same outcome in all
runs, *flaky* if one side has several of which the other has one, else it *differs*; it is *lost* if only torch's way
has it. *No rank* are tests with a rank for each device on a host without any: torch lets them pass, allranks skips
them. The smallest files run first. Below the table
stand the sums of the files that have torch's classes with a process for each rank, and each other file that is slower
here by more than a fifth and 2 s. Of a run that the limit ends, what it has printed counts. Exit status 1 where a test
differs or is lost.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

TREE = Path("test/distributed")
OF_A_CELL = (TREE / "algorithms/quantization/test_quantization.py", TREE / "test_distributed_spawn.py")
"""Files that read a cell from these variables."""

CELL = {"BACKEND": "gloo", "WORLD_SIZE": "2", "INIT_METHOD": "env://"}
BY_NAME = TREE / "test_distributed_spawn.py"
"""Runs only if it is named: it takes more than an hour torch's way, and ``tests/torch_suites`` compares its tests."""

MATRIX = """\
# Written by benchmarks/pytorch_tree.py
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.pytorch]
path = "test/distributed"
launches_ranks = true
overlap = {overlap}
exclude = {exclude}

[suites.pytorch.test_groups]
port-6789 = ["test_c10d_common.py::PythonProcessGroupExtensionTest"]

{cell}
[images.own]
torch = {torch}

[process]
python = {python}

[limits]
test = 300
job = {limit}
"""

CELL_SUITE = """
[suites.cell]
path = {paths}
overlap = {overlap}

[[env]]
set = {{ TEMP_DIR = "/tmp" }}
"""

_LAUNCHES = re.compile(
    "MultiProcessTestCase|MultiProcContin|DistributedTestBase|DynamoDistributedMultiProc|FSDPTest|DTensorTestBase|"
    "ShardedTensorTestBase|generate_tests"
)
_IS_SCRIPT = re.compile(r"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)
CLEAN: Mapping[str, str] = {}
_SEVERITY = ("passed", "skipped", "failed")
_WORDS = {"PASSED": "passed", "SKIPPED": "skipped", "XFAIL": "skipped", "FAILED": "failed", "ERROR": "failed"}
_WORD = re.compile(rf"\b({'|'.join(_WORDS)})\b")
_PRINTED = re.compile(r"^\S+\.py::(\w+::\S+) ", re.MULTILINE)
_TAGS = {"skipped": "skipped", "failure": "failed", "error": "failed"}
_NOTES = 8000


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run of a file.

    Attributes:
        status: The exit status; None if the time limit ended it.
        seconds: Wall time.
        in_tests: Seconds that the tests themselves took, added up.
        outcomes: Of each test, by class and name.
        reasons: Of each test that was skipped.
        output: The end of what it printed.
    """

    status: int | None
    seconds: float
    in_tests: float = 0.0
    outcomes: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of the tree, and its runs."""

    path: str
    torch: list[Ran] = field(default_factory=list)
    allranks: list[Ran] = field(default_factory=list)

    def relations(self) -> dict[str, str]:
        """How each test of torch's way compares; *more* are tests of allranks alone."""
        tests = {test: None for ran in (*self.torch, *self.allranks) for test in ran.outcomes}
        found = {test: _relation(_seen(self.torch, test), _seen(self.allranks, test)) for test in tests}
        return {test: "no rank" if self._has_no_rank(test) else relation for test, relation in found.items()}

    def _has_no_rank(self, test: str) -> bool:
        """Whether torch let a test pass whose world size is 0, which is a skip under allranks."""
        is_pass = _seen(self.torch, test).keys() == {"passed"}
        return is_pass and all("world size is 0" in ran.reasons.get(test, "") for ran in self.allranks)

    def other_reasons(self) -> list[tuple[str, str, str]]:
        """The tests that both sides skip for reasons in different words."""
        pairs = [(ran.reasons, own.reasons) for ran, own in zip(self.torch[:1], self.allranks[:1], strict=False)]
        return [
            (test, theirs[test], ours[test])
            for theirs, ours in pairs
            for test in theirs.keys() & ours.keys()
            if _plain(theirs[test]) != _plain(ours[test])
        ]


def _seen(runs: Sequence[Ran], test: str) -> Counter[str]:
    return Counter(ran.outcomes[test] for ran in runs if test in ran.outcomes)


def _plain(reason: str) -> str:
    return reason.removeprefix("Skipped: ").strip()


def _relation(theirs: Counter[str], ours: Counter[str]) -> str:
    if not ours or not theirs:
        return "lost" if theirs else "more"
    if theirs.keys() == ours.keys() and len(theirs) == 1:
        return "same"
    return "flaky" if theirs.keys() & ours.keys() else "differs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the files that have no result yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="below test/distributed; default: all")
    parser.add_argument("--source", type=Path, required=True, help="the folder of PyTorch's test/distributed")
    parser.add_argument("--torch", required=True, metavar="VERSION", help="the version that is to be installed")
    parser.add_argument("--results", type=Path, default=Path("pytorch-tree"), help="default: pytorch-tree")
    parser.add_argument("--runs", type=int, default=1, help="of each side (default: 1)")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for a file on each side (default: 1800)")
    parser.add_argument("--overlap", type=int, default=4, help="of the suite (default: 4)")
    parser.add_argument("--report", action="store_true", help="run nothing, and print what there is")
    options = parser.parse_args(arguments)
    if (found := version("torch").partition("+")[0]) != options.torch:
        parser.error(f"this interpreter has torch {found}: install torch=={options.torch}")
    source = options.source.resolve()
    paths = [str(Path(file)) for file in options.files] or _tree(source)
    if absent := [path for path in paths if not (source / TREE / path).is_file()]:
        parser.error(f"{source / TREE} has no {', '.join(absent)}")
    options.results.mkdir(parents=True, exist_ok=True)
    files = []
    with nullcontext() if options.report else _matrix_file(source, options):
        for path in paths:
            file = _read(options.results, path)
            if not options.report:
                _complete(file, source, options)
            files.append(file)
    print(table(files))
    print(speed(files, source))
    return int(any(relation in {"differs", "lost"} for file in files for relation in file.relations().values()))


def _tree(source: Path) -> list[str]:
    found = [path for pattern in ("test_*.py", "*_test.py") for path in (source / TREE).rglob(pattern)]
    # A folder `bin` has programs that tests start.
    found = [path for path in found if path.parent.name != "bin" and path != source / BY_NAME]
    return [str(path.relative_to(source / TREE)) for path in sorted(found, key=lambda path: path.stat().st_size)]


@contextmanager
def _matrix_file(source: Path, options: argparse.Namespace) -> Iterator[None]:
    matrix = source / "matrix.toml"
    if matrix.exists() and not matrix.read_text(encoding="utf-8").startswith(MATRIX.splitlines()[0]):
        sys.exit(f"{matrix} is not this benchmark's: move it away.")
    values = {"torch": options.torch, "python": sys.executable, "limit": max(options.limit, 301)}
    quoted = {name: json.dumps(value) for name, value in values.items()}
    of_a_cell = json.dumps([str(path) for path in OF_A_CELL if (source / path).is_file()])
    cell = CELL_SUITE.format(paths=of_a_cell, overlap=options.overlap) if of_a_cell != "[]" else ""
    text = MATRIX.format(overlap=options.overlap, exclude=of_a_cell, cell=cell, **quoted)
    matrix.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        matrix.unlink()


def _place(results: Path, path: str) -> Path:
    return results / f"{path.replace('/', '.')}.json"


def _read(results: Path, path: str) -> File:
    with suppress(FileNotFoundError):
        read = json.loads(_place(results, path).read_text(encoding="utf-8"))
        return File(
            path=path,
            torch=[Ran(**item) for item in read["torch"]],
            allranks=[Ran(**item) for item in read["allranks"]],
        )
    return File(path=path)


def _complete(file: File, source: Path, options: argparse.Namespace) -> None:
    """Run both sides by turns until each has its runs, and keep each run at once."""
    for number in range(options.runs):
        for runs, run in ((file.torch, _run_torchs_way), (file.allranks, _run_by_allranks)):
            if len(runs) <= number:
                runs.append(run(file.path, source, options.limit))
                place = _place(options.results, file.path)
                place.with_suffix(".new").write_text(json.dumps(asdict(file), indent=1), encoding="utf-8")
                place.with_suffix(".new").replace(place)
    print(_row(file), flush=True)


def _run_torchs_way(path: str, source: Path, limit: int) -> Ran:
    script = f"distributed/{path}"
    by_pytest = ["-m", "pytest", script]
    if not _IS_SCRIPT.search((source / TREE / path).read_text(encoding="utf-8")):
        return _run_plainly(by_pytest, path, source, limit)
    ran = _run_plainly([script, "--use-pytest"], path, source, limit)
    is_refused = not ran.outcomes and ran.status not in (None, 0)
    return _run_plainly(by_pytest, path, source, limit) if is_refused else ran


def _run_plainly(command: Sequence[str], path: str, source: Path, limit: int) -> Ran:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.xml")
        environ = {**CELL, "TEMP_DIR": scratch} if TREE / path in OF_A_CELL else {}
        more = ["-p", "no:xdist", "-p", "no:cacheprovider", "-v", f"--junitxml={report}"]
        return _run([sys.executable, *command, *more], source / "test", report, limit, environ)


def _run_by_allranks(path: str, source: Path, limit: int) -> Ran:
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "allranks",
            "run",
            "--engine",
            "process",
            "--results",
            scratch,
            str(TREE / path),
        ]
        return _run(command, source, Path(scratch, "latest", "junit.xml"), limit + 60)


def _run(command: Sequence[str], folder: Path, report: Path, limit: int, environ: Mapping[str, str] = CLEAN) -> Ran:
    began = time.monotonic()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status = None
        with suppress(subprocess.TimeoutExpired):
            status = process.wait(limit)
        seconds = time.monotonic() - began
        with suppress(ProcessLookupError):
            # What a script leaves behind would take time from the next one.
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        output = printed.read().decode(errors="replace")
    ran = Ran(status=status, seconds=seconds, output=output[-_NOTES:])
    return _with_outcomes(ran, report) if report.exists() else replace(ran, outcomes=_printed_outcomes(output))


def _printed_outcomes(output: str) -> dict[str, str]:
    """The outcomes that ``pytest -v`` had printed before it was ended, so that one hang does not cost a file."""
    # A test may print between its name and its outcome.
    _, *parts = _PRINTED.split(output)
    words = {test: _WORD.search(text) for test, text in zip(parts[::2], parts[1::2], strict=True)}
    return {test: _WORDS[word[1]] for test, word in words.items() if word}


def _with_outcomes(ran: Ran, report: Path) -> Ran:
    seconds, outcomes, reasons = 0.0, dict[str, str](), dict[str, str]()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - of tests that have just run
        if not case.get("classname"):  # the error of a file that could not be collected
            continue
        test = f"{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
        seen = {"passed", outcomes.get(test, "passed"), *(_TAGS[child.tag] for child in case if child.tag in _TAGS)}
        outcomes[test] = max(seen, key=_SEVERITY.index)
        reasons.update((test, child.get("message") or "") for child in case if child.tag == "skipped")
        seconds += float(case.get("time") or 0)
    return replace(ran, in_tests=seconds, outcomes=outcomes, reasons=reasons)


HEAD = (
    "| file | tests | same | no rank | flaky | differs | lost | more | torch | allranks | in tests, torch | allranks |"
)
COUNTED = ("same", "no rank", "flaky", "differs", "lost", "more")


def table(files: Sequence[File]) -> str:
    """All files, their sum, and each test that is not the same with both sides."""
    lines = [HEAD, "|---|" + "--:|" * 11, *map(_row, files), _sum(files)]
    for file in files:
        for test, relation in file.relations().items():
            if relation not in {"same", "no rank", "more"}:
                sides = " / ".join(_rates(_seen(runs, test)) for runs in (file.torch, file.allranks))
                lines.append(f"  {relation}: {file.path} {test}: {sides}")
        lines += [f"  other reason: {file.path} {test}: {a!r} / {b!r}" for test, a, b in file.other_reasons()]
        lines += [
            f"  no outcome: {file.path}: exit status {[ran.status for ran in runs]} {side}"
            for side, runs in (("torch's way", file.torch), ("under allranks", file.allranks))
            if runs and not any(ran.outcomes for ran in runs)
        ]
    return "\n".join(lines)


def speed(files: Sequence[File], source: Path) -> str:
    """The sums of the files with a process for each rank, and the others that are slower here."""
    ran = [file for file in files if file.allranks and any(run.outcomes for run in file.torch)]
    kept = {file.path for file in ran if _LAUNCHES.search((source / TREE / file.path).read_text(encoding="utf-8"))}
    launching = [file for file in ran if file.path in kept]
    lines = ["files with a process for each rank:", _sum(launching)]
    for name in ("seconds", "in_tests"):
        theirs = sum(_mean(file.torch, name) for file in launching)
        if ours := sum(_mean(file.allranks, name) for file in launching):
            lines.append(f"  {name}: {theirs:.0f} s and {ours:.0f} s, {theirs / ours:.1f} times as fast")
    for file in ran:
        theirs, ours = _mean(file.torch, "seconds"), _mean(file.allranks, "seconds")
        if file.path not in kept and ours > max(1.2 * theirs, theirs + 2):
            lines.append(f"slower: {file.path}: {theirs:.1f} s, here {ours:.1f} s")
    return "\n".join(lines)


def _rates(seen: Counter[str]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(seen.items())) or "absent"


def _row(file: File) -> str:
    relations = file.relations()
    counts = Counter(relations.values())
    times = [f"{_mean(runs, name):.1f}" for name in ("seconds", "in_tests") for runs in (file.torch, file.allranks)]
    return f"| {' | '.join([file.path, str(len(relations)), *(str(counts[item]) for item in COUNTED), *times])} |"


def _mean(runs: Sequence[Ran], name: str) -> float:
    return float(sum(getattr(ran, name) for ran in runs)) / max(1, len(runs))


def _sum(files: Sequence[File]) -> str:
    counts = Counter(relation for file in files for relation in file.relations().values())
    times = [
        f"{sum(_mean(runs, name) for runs in sides):.1f}"
        for name in ("seconds", "in_tests")
        for sides in ([file.torch for file in files], [file.allranks for file in files])
    ]
    cells = [f"**{len(files)} files**", str(counts.total()), *(str(counts[item]) for item in COUNTED), *times]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
