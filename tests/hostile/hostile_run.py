"""Runs several hostile cases in one ``allranks run``, together with innocent jobs, and judges the results."""

import json
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from declaration import literal
from docker.errors import APIError
from fault_run import WARDEN, _by_rank, _environment, _left
from truth import BAD, GOOD, Hostile, Truth

from allranks.images.docker_client import connect

COMMON = Path(__file__).parent / "common"

BYSTANDERS = ("bystander_first", "bystander_last")

BAD_ENDS = (1, 3, 4, 130)
"""Exit codes of a run with hostile cases; a test that interrupts its job's agent leads to 130."""

SIZE = 700 << 20
"""The most bytes of one job's results: allranks collects at most 512 MiB."""

PATIENCE, PATIENCE_EACH = 90.0, 20.0
"""Seconds after which a run counts as hanging, in addition to the limit of a job, and for each case."""

MOST_MEMORY, MOST_FILE = 8 << 30, 2 << 30
"""Bytes of address space of each process on this host, and of each file that it writes. Without these limits, reading a
link to /dev/zero once took 21 GB of memory, and copying it 53 GB of a disk."""

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]
nodes = [{nodes}]
init_method = ["env"]

{suites}

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

[[env]]
when = "world_size > 0"
set = {{ HOSTILE_ENGINE = "{engine}" }}

[process]
python = {python}

[limits]
{limits}
"""

SUITE = """\
[suites.{name}]
path = "suites/{name}"
isolation = "{isolation}"
"""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """One testcase of the merged report: its verdict is ``passed``, ``skipped``, ``failure`` or ``error``."""

    name: str
    verdict: str
    ranks: Mapping[int, str]
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The results of a run.

    Attributes:
        exit_code: The exit code of the command; -9 if it had to be killed.
        suites: The testcases of each job, by suite.
        greens: The ranks and names of tests that passed according to files of ranks, by suite.
        sizes: Bytes of the results of each job.
        contradictions: Differences between report.json and junit.xml.
        left: Processes, containers, folders and locks that are left behind.
        output: The output of the command.
    """

    exit_code: int
    suites: Mapping[str, tuple[Reported, ...]]
    greens: Mapping[str, frozenset[tuple[int, str]]]
    sizes: Mapping[str, int]
    contradictions: tuple[str, ...]
    left: tuple[str, ...]
    output: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The problems of a case on an engine, if any."""

    case: Hostile
    engine: str
    wrong: tuple[str, ...]
    seen: Seen

    @property
    def details(self) -> str:
        """The problems, and the details of the run."""
        wrong = "\n".join(f"- {problem}" for problem in self.wrong)
        tests = "\n".join(
            f"  {test.name[:100]!r}: {test.verdict} {dict(test.ranks)} {test.message[:200]}"
            for test in self.seen.suites.get(self.case.name, ())[:40]
        )
        return f"{self.case.name} on {self.engine} (see {self.case.path}):\n{wrong}\n{tests}\n{self._printed()}"

    def _printed(self) -> str:
        """The last lines of the command's output, and its lines about this case."""
        lines = self.seen.output.splitlines()
        own = [line for line in lines[:-20] if f"/{self.case.name}:" in line]
        return "\n".join(line[:300] for line in (*own[:40], *lines[-20:]))


def run_cases(cases: Sequence[Hostile], engine: str, folder: Path) -> list[Outcome]:
    """Run cases with equal settings; if the run as a whole fails, run each half again to find the culprit."""
    seen = _run(cases, engine, folder / "run")
    if any(_of_run(seen)) and (half := len(cases) // 2):
        return run_cases(cases[:half], engine, folder / "1") + run_cases(cases[half:], engine, folder / "2")
    return [Outcome(case=case, engine=engine, wrong=judge(case, seen), seen=seen) for case in cases]


def judge(case: Hostile, seen: Seen) -> tuple[str, ...]:
    """The problems of a run as a whole, and of a case in it."""
    return (*_of_run(seen), *_of_case(case, seen))


def _run(cases: Sequence[Hostile], engine: str, folder: Path) -> Seen:
    run_id = f"hostile-{secrets.token_hex(5)}"
    repository, results, temporary, report = (folder / name for name in ("repository", "results", "tmp", "warden.json"))
    temporary.mkdir(parents=True)
    _write_repository(cases, engine, repository)
    command = [sys.executable, str(WARDEN), str(report), "--", sys.executable, "-m", "allranks", "run"]
    command += ["--engine", engine, "--results", str(results), "--seed", "7", "--jobs", "3", *cases[0].arguments]
    patience = cases[0].limits["job"] + PATIENCE + PATIENCE_EACH * len(cases)
    output = _complete(command, repository, _environment(run_id, temporary), patience)
    warden = json.loads(report.read_text()) if report.exists() else {"status": -signal.SIGKILL, "left": []}
    left = (*warden["left"], *_left(run_id, engine, temporary))
    if engine == "docker" and left:
        _end_containers(run_id)
    seen = read(results / run_id, warden["status"], left, output)
    _remove(folder)
    return seen


def _end_containers(run_id: str) -> None:
    """Remove the containers that a run has left behind."""
    with closing(connect()) as client:
        for container in client.api.containers(all=True, filters={"label": f"allranks.run={run_id}"}):
            with suppress(APIError):  # it is already being removed
                client.api.remove_container(container["Id"], force=True, v=True)


def _write_repository(cases: Sequence[Hostile], engine: str, repository: Path) -> None:
    """A suite for each case, and a bystander before and after them."""
    for name in BYSTANDERS:
        _write_suite(repository, name, {"test_bystander.py": COMMON / "bystander.py"})
    for case in cases:
        around = () if case.attack_only else ("test_0_before.py", "test_2_after.py")
        files = {name: COMMON / name for name in (*around, "reach.py")}
        own = (
            {path.name: path for path in case.path.glob("*.py")}
            if case.path.is_dir()
            else {"test_1_attack.py": case.path}
        )
        _write_suite(repository, case.name, {**files, **own})
        if case.function:
            with (repository / "suites" / case.name / "test_1_attack.py").open("a", encoding="utf-8") as file:
                file.write(f"\n\ntest_attack = {case.function}\n")
    suites = {BYSTANDERS[0]: "job", **{case.name: case.isolation for case in cases}, BYSTANDERS[1]: "job"}
    matrix = MATRIX.format(
        nodes=cases[0].nodes,
        engine=engine,
        suites="\n".join(SUITE.format(name=name, isolation=isolation) for name, isolation in suites.items()),
        python=json.dumps(sys.executable),
        limits="\n".join(f"{name} = {value}" for name, value in cases[0].limits.items()),
    )
    (repository / "matrix.toml").write_text(matrix)


def _write_suite(repository: Path, name: str, files: Mapping[str, Path]) -> None:
    suite = repository / "suites" / name
    suite.mkdir(parents=True)
    for target, source in files.items():
        shutil.copy(source, suite / target)


def _complete(command: Sequence[str], folder: Path, environment: dict[str, str], patience: float) -> str:
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
        preexec_fn=_protect_the_host,  # noqa: PLW1509 - no thread of this process holds a lock that it needs
    ) as process:
        last_resort = threading.Timer(patience, _kill_command, [process.pid])
        last_resort.start()
        output, _ = process.communicate()
        last_resort.cancel()
    return output


def _protect_the_host() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE, MOST_FILE))


def _kill_command(warden: int) -> None:
    """Kill the command of the warden, which then kills everything that the command leaves."""
    for pid in Path(f"/proc/{warden}/task/{warden}/children").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def _remove(folder: Path) -> None:
    """Remove a folder that may be too deep for `shutil.rmtree`."""
    subprocess.run(["/bin/chmod", "-R", "u+rwX", str(folder)], check=False, stderr=subprocess.DEVNULL)
    subprocess.run(["/bin/rm", "-rf", str(folder)], check=False)


def read(folder: Path, exit_code: int, left: tuple[str, ...], output: str) -> Seen:
    """Read the results of a run from its folder."""
    suites: dict[str, list[Reported]] = {}
    for document in sorted(folder.glob("junit*.xml")):
        for suite in ET.parse(document).getroot().iter("testsuite"):  # noqa: S314 - our own report
            suites.setdefault(suite.get("name", "").rpartition(" / ")[2], []).extend(map(_test, suite.iter("testcase")))
    attempts = {path.parent.name: path for path in sorted(folder.glob("cells/*/*/attempt-*"))}
    return Seen(
        exit_code=exit_code,
        suites={name: tuple(tests) for name, tests in suites.items()},
        greens={name: frozenset(_greens(path)) for name, path in attempts.items()},
        sizes={path.name: sum(_size(item) for item in path.rglob("*")) for path in folder.glob("cells/*/*")},
        contradictions=tuple(_contradictions(folder / "report.json", suites)),
        left=left,
        output=output,
    )


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # a name that is too long for a path
        return 0


def _test(case: ET.Element) -> Reported:
    facts = {prop.get("name", "").removeprefix("allranks."): prop.get("value", "") for prop in case.iter("property")}
    [outcome] = [child for child in case if child.tag in ("failure", "error", "skipped")] or [None]
    return Reported(
        name=_name(facts.get("nodeid", case.get("name", ""))),
        verdict="passed" if outcome is None else outcome.tag,
        ranks=dict(_by_rank(facts.get("ranks", ""))),
        message="" if outcome is None else outcome.get("message", ""),
    )


def _name(nodeid: str) -> str:
    """A test's name and class, without its file."""
    return nodeid.partition("::")[2] or nodeid


def _greens(attempt: Path) -> Iterator[tuple[int, str]]:
    """Rank and name of each test that passed according to the files of ranks."""
    for path in attempt.glob("rank-*.xml"):
        rank = path.stem.removeprefix("rank-")
        if not rank.isdecimal() or not path.is_file():
            continue
        with suppress(ET.ParseError):
            for case in ET.parse(path).getroot().iter("testcase"):  # noqa: S314 - what merge reads, too
                test = _test(case)
                if test.verdict == "passed":
                    yield int(rank), test.name


def _contradictions(path: Path, suites: Mapping[str, Sequence[Reported]]) -> Iterator[str]:
    if not path.exists():
        yield "there is no report.json"
        return
    report = json.loads(path.read_text())
    there = {
        suite["suite"]: Counter((_name(test["nodeid"]), test["verdict"]) for test in suite["tests"])
        for suite in report["suites"]
    }
    for name, tests in suites.items():
        here = Counter((test.name, test.verdict) for test in tests)
        if here != there.get(name):
            yield f"{name}: report.json differs from junit.xml"


def _of_run(seen: Seen) -> Iterator[str]:
    """The problems of the run as a whole."""
    if seen.exit_code not in BAD_ENDS:
        yield f"exit code {seen.exit_code}" if seen.exit_code != -signal.SIGKILL else "it never ended"
    if "bug in allranks" in seen.output:
        yield "the command broke down"
    if any(line.startswith("Traceback (most recent call last)") for line in seen.output.splitlines()):
        yield "the command printed a traceback"
    if any(line.startswith("FORGED") for line in seen.output.splitlines()):
        yield "a suite wrote a line of the terminal's"
    yield from (f"left behind: {item}" for item in seen.left)
    yield from (f"reports: {contradiction}" for contradiction in seen.contradictions)
    declared = literal(COMMON / "bystander.py", "TRUTH")["tests"]
    tests = {name: Truth.read(line) for name, line in declared.items()}
    for name in BYSTANDERS:
        yield from (f"{name}: {problem}" for problem in _of_suite(tests, name, seen))


def _of_case(case: Hostile, seen: Seen) -> Iterator[str]:
    yield from _of_suite(case.tests, case.name, seen)
    if not any(test.verdict in ("failure", "error") for test in seen.suites.get(case.name, ())):
        yield "the job is not bad"
    if (size := seen.sizes.get(case.name, 0)) > SIZE:
        yield f"its results take {size >> 20} MiB"


def _of_suite(truths: Mapping[str, Truth], suite: str, seen: Seen) -> Iterator[str]:
    tests = seen.suites.get(suite, ())
    declared: dict[str, list[Reported]] = {name: [] for name in truths}
    for test in tests:
        name = next((name for name in truths if _stands_for(name, test.name)), None)
        if name is not None:
            declared[name].append(test)
        elif test.verdict == "passed":
            yield f"{test.name[:80]!r}: passed, and there is no such test"
    for name, found in declared.items():
        yield from _of_tests(name, truths[name], found)
        yield from _of_files(name, truths[name], seen.greens.get(suite, frozenset()))


def _stands_for(declared: str, name: str) -> bool:
    return name.startswith(declared[:-1]) if declared.endswith("*") else name == declared


def _of_tests(name: str, truth: Truth, found: Sequence[Reported]) -> Iterator[str]:
    if len(found) != truth.count and not (truth.may_be_absent and len(found) < truth.count):
        yield f"{name}: {len(found)} in the report, not {truth.count}"
    if truth.one_is_bad and found and all(test.verdict in ("passed", "skipped") for test in found):
        yield f"{name}: none is bad"
    for test in found:
        yield from (f"{test.name[:80]!r}: {problem}" for problem in _of_test(truth, test))


def _of_test(truth: Truth, test: Reported) -> Iterator[str]:
    if test.verdict == "skipped" and "not run" in test.message and all(len(allowed) > 1 for allowed in truth.ranks):
        return  # its job, which is bad, ended before it
    if truth.is_bad and test.verdict not in ("failure", "error"):
        yield f"{test.verdict}, and it is bad"
    if test.verdict == "passed" and any(not allowed & GOOD for allowed in truth.ranks):
        yield "passed, and it did not on every rank"
    for rank in sorted(test.ranks.keys() - range(len(truth.ranks))) if truth.ranks else ():
        yield f"rank {rank} {test.ranks[rank]}, and there is no such rank"
    for rank, allowed in enumerate(truth.ranks):
        outcome = test.ranks.get(rank, "missing")
        if outcome not in allowed:
            words = (
                "|".join(sorted(allowed))
                if len(allowed) < 4
                else "bad"
                if allowed == BAD
                else f"none of {len(allowed)}"
            )
            yield f"rank {rank} {outcome}, not {words}"


def _of_files(name: str, truth: Truth, greens: Iterable[tuple[int, str]]) -> Iterator[str]:
    for rank, test in greens:
        if _stands_for(name, test) and rank < len(truth.ranks) and not truth.ranks[rank] & GOOD:
            yield f"rank-{rank}.xml says that {test[:80]!r} passed"
