"""Runs one fault as a user would, with ``allranks run`` in a separate repository, and judges it by the report.

Nothing is mocked: this uses the command line, a real engine, an agent that imports torch, real ranks, and
``junit.xml``. Faults spend most of their time waiting, so several run at once.
"""

import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from declaration import CLUSTER, Expectation, Fault, passed
from junitparser import JUnitXml, Properties, SystemErr, SystemOut, TestCase
from strike import WORD, strike
from trial_cluster import left_on_cluster

from allranks import ownership
from allranks.engines.package import package_folder
from allranks.images.docker_client import connect
from allranks.protocol.records import JOURNAL, Imported, NodeLost, Record, Went, decode

SLACK = 4.0
"""Seconds that any fault may take beyond its declared time, in addition to those of its import of torch."""

SPOOL = "spool"
"""The folder of the jobs of a cluster, among the run's temporary files."""

SIZE = 16 << 20
"""Bytes that the results of a small suite may take, whatever it prints."""

LAST_RESORT = 240.0
"""Seconds after which a whole run is given up: the command itself hangs."""

WARDEN = Path(__file__).with_name("warden.py")

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [{world_size}]
nodes = [{nodes}]
init_method = ["{init_method}"]

[suites.faulty]
path = "suite"
isolation = "{isolation}"
launches_ranks = {launches_ranks}

[images.cpu]
torch = "2.13.0"
packages = ["numpy", "expecttest"]

[process]
python = {python}

[slurm]
spool = {spool}
extra = [{slurm_variables}]

[limits]
{limits}
{environment}"""


AFTER = """

def test_after(world_size):
    import torch

    tensor = torch.ones(1)
    torch.distributed.all_reduce(tensor)
    assert tensor.item() == world_size
"""
"""The innocent test that follows each fault of a single file, unless the file has its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One testcase of the merged report."""

    name: str
    verdict: tuple[str, str]
    leading: int | None
    ranks: dict[int, str]
    message: str
    text: str
    output: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The results of one run of a fault.

    Attributes:
        seconds: From the job's go (or the end of torch's import, if it did not get that far) to its record; None
            without a record. A daemon may take half a minute to kill a container, and as long to remove it, so the time
            before a strike does not count, and a job that lost a node ends with its agent's last record.
        importing: The seconds of torch's import, which show how busy the machine is; 0 without one.
        collected: Names of the tests that the job's record lists.
        size: Bytes of all results of the run.
        left: Processes, containers, folders and locks that are left behind.
        output: The output of the command.
    """

    exit_code: int
    seconds: float | None
    importing: float
    cases: tuple[Case, ...]
    collected: tuple[str, ...]
    size: int
    left: tuple[str, ...]
    output: str
    folder: Path

    @property
    def slack(self) -> float:
        """Seconds that the run may take beyond what is declared."""
        return SLACK + self.importing

    @property
    def details(self) -> str:
        """The testcases, the output and the folder, for a failure message."""
        cases = "\n".join(
            f"  {case.name}: {case.verdict} leading={case.leading} {case.ranks}\n    {case.message}"
            for case in self.cases
        )
        return f"{cases}\n{self.output}\nresults: {self.folder}"


def run_fault(fault: Fault, engine: str, folder: Path) -> Seen:
    """Run a fault once, in an empty folder."""
    run_id = f"fault-{secrets.token_hex(5)}"
    repository, results, temporary = folder / "repository", folder / "results", folder / "tmp"
    temporary.mkdir(parents=True)
    _write_repository(fault, repository, temporary)
    report = folder / "warden.json"
    command = [sys.executable, str(WARDEN), str(report), *_confinement(fault, engine, temporary), "--"]
    command += [sys.executable, "-m", "allranks", "run", "--engine", engine, "--results", str(results), "--seed", "7"]
    command += ["--", *fault.pytest_args]
    struck: list[float] = []
    output = _complete(command, repository, _environment(run_id, temporary), partial(_notice, fault, run_id, struck))
    warden = json.loads(report.read_text()) if report.exists() else {"status": None, "left": []}
    left = (*warden["left"], *_left(run_id, engine, temporary))
    return _seen(results / run_id, warden["status"], left, output, struck)


def _confinement(fault: Fault, engine: str, temporary: Path) -> list[str]:
    """The warden's options for limits that an engine cannot set, such as those of the process engine's jobs."""
    disk = ["--disk", str(temporary), str(fault.disk_mib)] if fault.disk_mib else []
    memory = ["--memory", str(fault.memory_mib)] if fault.memory_mib else []
    return {"process": [*disk, *memory], CLUSTER: memory}.get(engine, [])


def why_not_here(fault: Fault, engine: str) -> str:
    """Why a fault cannot be run on an engine, or on this host; empty if it can."""
    if engine in fault.not_on:
        return fault.not_on[engine]
    confinement = _confinement(fault, engine, Path("/mnt"))
    return _refusal(tuple(confinement)) if confinement else ""


@functools.cache
def _refusal(confinement: tuple[str, ...]) -> str:
    """Why a small disk or a memory limit cannot be set up: both need root and kernel support."""
    command = [sys.executable, str(WARDEN), os.devnull, *confinement, "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]


def _environment(run_id: str, temporary: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(package_folder().parent), os.environ.get("PYTHONPATH", ""))))
    own = {"ALLRANKS_RUN_ID": run_id, "TMPDIR": str(temporary), "PYTHONPATH": path, "ALLRANKS_GPUS": ""}
    # Without bytecode, every agent would compile its imports again, which takes seconds that users do not see.
    host = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**host, **own}


def _write_repository(fault: Fault, repository: Path, temporary: Path) -> None:
    suite = repository / "suite"
    if fault.path.is_dir():
        shutil.copytree(fault.path, suite, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        suite.mkdir(parents=True)
        source = fault.path.read_text(encoding="utf-8")
        text = source if "def test_after(" in source else f"{source}{AFTER}"
        (suite / f"test_{fault.name}.py").write_text(text, encoding="utf-8")
    limits = {**fault.limits, **({"memory_mib": fault.memory_mib} if fault.memory_mib else {})}
    variables = ", ".join(f"{name} = {json.dumps(value)}" for name, value in fault.environment.items())
    matrix = MATRIX.format(
        world_size=fault.world_size,
        nodes=fault.nodes,
        init_method=fault.init_method,
        isolation=fault.isolation,
        launches_ranks=json.dumps(fault.launches_ranks),
        python=json.dumps(sys.executable),
        spool=json.dumps(str(temporary / SPOOL)),
        # By default, a node's temporary folder is the host's /tmp, which others use as well.
        slurm_variables=json.dumps(f"--export=ALL,TMPDIR={temporary}"),
        limits="\n".join(f"{name} = {value}" for name, value in limits.items()),
        environment=f'\n[[env]]\nwhen = "world_size > 0"\nset = {{ {variables} }}\n' if variables else "",
    )
    (repository / "matrix.toml").write_text(matrix)


def _notice(fault: Fault, run_id: str, struck: list[float], line: str) -> None:
    """Watch the output of the command; when a rank waits, strike, and note the time."""
    if fault.strike is not None and line.rstrip().endswith(WORD):
        strike(run_id, *fault.strike)
        struck.append(time.time())


def _complete(command: Sequence[str], folder: Path, environment: dict[str, str], notice: Callable[[str], None]) -> str:
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
    ) as process:
        last_resort = threading.Timer(LAST_RESORT, process.kill)
        last_resort.start()
        for line in process.stdout or ():
            lines.append(line)
            notice(line)
        last_resort.cancel()
    if process.returncode == -signal.SIGKILL:
        lines.append(f"no end of the command after {LAST_RESORT:g} s\n")
    return "".join(lines)


def _left(run_id: str, engine: str, temporary: Path) -> Iterator[str]:
    if engine == CLUSTER:
        yield from left_on_cluster(run_id)
    scratch = ("allranks-job-*", "allranks-node-*", f"{SPOOL}/allranks-*")
    yield from (f"folder {path}" for pattern in scratch for path in temporary.glob(pattern))
    yield from (f"lock {path}" for path in ownership.lock_folder().glob(f"run-{run_id}"))
    if engine == "docker":
        with closing(connect()) as client:
            mine = {"label": f"allranks.run={run_id}"}
            yield from (
                f"container {container['Names']}" for container in client.api.containers(all=True, filters=mine)
            )
            yield from (f"volume {volume['Name']}" for volume in client.api.volumes(filters=mine)["Volumes"] or [])
            yield from (f"network {network['Name']}" for network in client.api.networks(filters=mine))


def _seen(folder: Path, exit_code: int, left: tuple[str, ...], output: str, struck: Sequence[float]) -> Seen:
    attempt = next(folder.glob("cells/*/faulty/attempt-1"), folder)
    record = json.loads((attempt / "job.json").read_text()) if (attempt / "job.json").exists() else {}
    records = records_of(attempt / JOURNAL)
    report = folder / "junit.xml"
    suites = JUnitXml.fromfile(str(report)) if report.exists() else ()
    return Seen(
        exit_code=exit_code,
        seconds=_seconds(records, record, struck),
        importing=next((each.seconds for each in records if isinstance(each, Imported)), 0.0),
        cases=tuple(_case(case) for suite in suites for case in suite),
        collected=tuple(nodeid.rpartition("::")[2] for nodeid in record.get("collected") or ()),
        size=sum(path.lstat().st_size for path in folder.rglob("*")),
        left=left,
        output=output,
        folder=attempt,
    )


def _seconds(records: Sequence[Record], record: dict[str, Any], struck: Sequence[float]) -> float | None:
    if not record:
        return None
    times = {type(each): each.at for each in reversed(records)}
    ended = records[-1].at if NodeLost in times else record["finished"]
    began = times.get(Went, times.get(Imported, record["started"]))
    return float(ended - max([began, *struck]))


def records_of(journal: Path) -> list[Record]:
    """The records of a journal; a torn last line is left out."""
    lines = journal.read_bytes().split(b"\n") if journal.exists() else []
    return [decode(line) for line in lines if line.endswith(b"]")]


def _by_rank(compact: str) -> Iterator[tuple[int, str]]:
    """Each rank with its outcome, from ``0-2,5:passed 3:failed``."""
    for group in compact.split():
        numbers, word = group.split(":")
        for run in numbers.split(","):
            first, _, last = run.partition("-")
            yield from ((rank, word) for rank in range(int(first), int(last or first) + 1))


def _case(case: TestCase) -> Case:
    facts = {prop.name.removeprefix("allranks."): prop.value for prop in case.child(Properties) or ()}
    [outcome] = case.result or [None]
    captured = [child.text or "" for kind in (SystemOut, SystemErr) if (child := case.child(kind)) is not None]
    return Case(
        name=case.name,
        verdict=("passed", "") if outcome is None else (type(outcome).__name__.lower(), outcome.type),
        leading=int(facts["leading"]) if "leading" in facts else None,
        ranks=dict(_by_rank(facts.get("ranks", ""))),
        message="" if outcome is None else outcome.message or "",
        text="" if outcome is None else outcome.text or "",
        output="\n".join(captured),
        seconds=case.time or 0.0,
    )


def differences(fault: Fault, seen: Seen) -> list[str]:
    """The differences between the declared and the actual results; empty if there are none."""
    return [
        *_of_run(fault, seen),
        *(difference for case in seen.cases for difference in _of_case(fault, case)),
        *_of_absent_cases(fault, seen),
    ]


def _of_run(fault: Fault, seen: Seen) -> Iterator[str]:
    if seen.exit_code not in fault.exit_code:
        yield f"exit code {seen.exit_code}, not {_any(fault.exit_code)}"
    if seen.seconds is None:
        yield "there is no record of the job"
    elif seen.seconds > fault.seconds + seen.slack:
        yield f"it took {seen.seconds:.1f} s, more than {fault.seconds:g} s and {seen.slack:.1f} s of slack"
    if seen.size > SIZE:
        yield f"its results take {seen.size >> 20} MiB, more than {SIZE >> 20}"
    left = (item for item in seen.left if not any(part in item for part in fault.leaves))
    yield from (f"left behind: {item}" for item in left)
    output = " ".join(seen.output.split())  # long notes are wrapped
    yield from (f"the command did not print {text!r}" for text in fault.prints if text not in output)
    if "This is a bug in allranks" in seen.output:
        yield "the command broke down"


def _of_absent_cases(fault: Fault, seen: Seen) -> Iterator[str]:
    names = [case.name for case in seen.cases]
    for name in dict.fromkeys((*fault.others, fault.test, *seen.collected)):
        if name not in names:
            yield f"{name}: not in the report"


def _of_case(fault: Fault, case: Case) -> Iterator[str]:
    expected = fault.expected if case.name == fault.test else fault.others.get(case.name, passed(fault.world_size))
    return (f"{case.name}: {difference}" for difference in _between(expected, case))


def _between(expected: Expectation, case: Case) -> Iterator[str]:
    if case.verdict not in expected.verdict:
        yield f"{_shown(case.verdict)}, not {_any(expected.verdict)}"
    if case.leading not in expected.leading:
        yield f"led by rank {case.leading}, not {_any(expected.leading)}"
    if sorted(case.ranks) != list(range(len(expected.ranks))):
        yield f"outcomes of ranks {sorted(case.ranks)}, not of {len(expected.ranks)} ranks"
    else:
        for rank, allowed in enumerate(expected.ranks):
            if case.ranks[rank] not in allowed:
                yield f"rank {rank} {case.ranks[rank]}, not {_any(sorted(allowed))}"
    yield from (f"the message lacks {word!r}: {case.message}" for word in expected.words if word not in case.message)
    yield from (f"the text lacks {word!r}" for word in expected.text if word not in case.text)
    yield from (f"the output lacks {word!r}" for word in expected.output if word not in case.output)


def _any(answers: Sequence[object]) -> str:
    return " or ".join(_shown(answer) for answer in answers)


def _shown(answer: object) -> str:
    return " ".join(answer).strip() if isinstance(answer, tuple) else str(answer)
