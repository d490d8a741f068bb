"""Finds the problems of a disturbed run: in its output, in its report, and in what it has left behind."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from project import GPUS, WANTED
from world import HostDaemon

from allranks import ownership
from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import JOURNAL, Collected, Passed, RankEnded, Record, decode
from allranks.protocol.typed_json import RecordError

Ranks = dict[int, str]

_CRASHED = (
    "Traceback (most recent call last)",
    "This is a bug in allranks",
    "Exception in thread",
    "Exception ignored",
)

_NOT_RUN = frozenset({"missing", "aborted", "crashed"})
"""The outcomes of a rank's test that its job did not finish."""


_OF_CLUSTER = ("slurmd ", "slurmctld ", ": slurmscriptd", "munged ", "unshare ", "sh -ec ", "sleep 1")
"""Prefixes of the commands of a cluster's own processes."""


_OF_A_JOB = "allranks::"
"""The prefix of the names of testcases that are not tests."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A merged report.

    Attributes:
        tests: The outcomes of each test's ranks, by cell, suite and node id; empty for a testcase that is not a test.
        messages: The verdict and message of each.
    """

    tests: Mapping[tuple[str, str, str], Ranks]
    messages: Mapping[tuple[str, str, str], str]

    @property
    def jobs(self) -> set[tuple[str, str]]:
        """The jobs that are in it."""
        return {(cell, suite) for cell, suite, _ in self.tests}


def read_report(path: Path) -> Report:
    """Read ``report.json``."""
    output = json.loads(path.read_text())
    tests: dict[tuple[str, str, str], Ranks] = {}
    messages = {}
    for suite in output["suites"]:
        for test in suite["tests"]:
            key = suite["cell"], suite["suite"], test["nodeid"]
            tests[key] = dict(by_rank(test.get("ranks", "")))
            messages[key] = f"{test['verdict']}: {test.get('message', '')}"
    return Report(tests=tests, messages=messages)


def by_rank(compact: str) -> Iterator[tuple[int, str]]:
    """Each rank with its outcome, from ``0-2,5:passed 3:failed``."""
    for group in compact.split():
        numbers, word = group.split(":")
        for run in numbers.split(","):
            first, _, last = run.partition("-")
            yield from ((rank, word) for rank in range(int(first), int(last or first) + 1))


def of_words(output: str) -> Iterator[str]:
    """Output that no run may print."""
    yield from (f"it printed {word!r}" for word in _CRASHED if word in output)


def of_report(
    run: Path, report: Report, output: str, *, is_whole: bool, may_crash: bool = False, is_spoiled: bool = False
) -> Iterator[str]:
    """Missing or wrong results in the report.

    Args:
        run: The run's folder.
        report: Its report.
        output: The output of the run.
        is_whole: Whether each test must have its usual outcome.
        may_crash: Whether a rank may have been killed: that is a result, and stays one.
        is_spoiled: Whether tests of a job that ended with an error may have any outcome.
    """
    errors = {(cell, suite) for cell, suite, nodeid in report.tests if nodeid.startswith(_OF_A_JOB)}
    yield from _of_jobs(run, report)
    yield from _of_journaled_tests(run, report)
    yield from _of_ended_jobs(report, output)
    yield from _of_collected_tests(run, report)
    for (cell, suite, nodeid), ranks in report.tests.items():
        wanted = dict(by_rank(WANTED[suite].get(nodeid, ""))) if suite in WANTED else {}
        if is_whole and nodeid.startswith(_OF_A_JOB):
            yield f"{cell}/{suite}: it has all its results, but also an error: {report.messages[cell, suite, nodeid]}"
        if ranks and wanted and not wanted.keys() <= ranks.keys():
            yield f"{cell}/{suite} {nodeid}: {ranks}, and nothing of the other ranks"
        strange = {rank: word for rank, word in ranks.items() if word != wanted.get(rank) and word not in _NOT_RUN}
        has_crashed = "crashed" in ranks.values()
        if has_crashed:
            strange = {}  # peers of a rank that was killed may say so in their own words
        if is_spoiled and (cell, suite) in errors:
            continue
        if strange or (is_whole and ranks != wanted and not (has_crashed and may_crash)):
            yield f"{cell}/{suite} {nodeid}: {ranks}, not {wanted}: {report.messages[cell, suite, nodeid]}"
    if is_whole:
        for cell, suite in report.jobs:
            there = {nodeid for key, name, nodeid in report.tests if (key, name) == (cell, suite)}
            yield from (f"{cell}/{suite} {nodeid}: not in the report" for nodeid in WANTED[suite].keys() - there)


def _of_jobs(run: Path, report: Report) -> Iterator[str]:
    manifest = json.loads((run / "run.json").read_text())
    for job in manifest["jobs"]:
        if (job["cell"], job["suite"]) not in report.jobs:
            yield f"{job['id']}: planned, and not in the report"


def _of_collected_tests(run: Path, report: Report) -> Iterator[str]:
    """Collected tests that are missing in the report, unless it has an error of their job."""
    for path in run.glob(f"cells/*/*/attempt-1/{JOURNAL}"):
        cell, suite = path.parts[-4], path.parts[-3]
        there = {nodeid for key, name, nodeid in report.tests if (key, name) == (cell, suite)}
        if not any(nodeid.startswith(_OF_A_JOB) for nodeid in there):
            lists = (record.tests for record in _records(path) if isinstance(record, Collected))
            collected = {test for tests in lists for test in tests}
            yield from (f"{cell}/{suite} {nodeid}: collected, and not in the report" for nodeid in collected - there)


def _of_journaled_tests(run: Path, report: Report) -> Iterator[str]:
    """Outcomes in the report that differ from the journal: the first failure counts, or else the pass.

    If an interrupt aborted a test, its outcome in the resumed run counts.
    """
    for path in run.glob(f"cells/*/*/attempt-1/{JOURNAL}"):
        cell, suite = path.parts[-4], path.parts[-3]
        resumed = path.parents[1] / "attempt-2" / JOURNAL
        later = journal_outcomes(resumed) if resumed.exists() else {}
        for (nodeid, rank), first in journal_outcomes(path).items():
            outcome = later.get((nodeid, rank), first) if first == Outcome.ABORTED else first
            found = report.tests.get((cell, suite, nodeid), {}).get(rank)
            if found != outcome:
                yield f"{cell}/{suite} {nodeid}: rank {rank} {outcome} by the journal, {found} in the report"


def journal_outcomes(journal: Path) -> dict[tuple[str, int], str]:
    """The outcomes of a journal by test and rank; the unknown outcome of a lost rank does not count."""
    found: dict[tuple[str, int], Outcome] = {}
    for record in _records(journal):
        ends = []
        if isinstance(record, Passed):
            ends = [(rank, Outcome.PASSED) for rank in record.ranks]
        elif isinstance(record, RankEnded) and not record.is_lost:
            ends = [(record.rank, record.outcome)]
        for rank, outcome in ends:
            if not found.get((record.nodeid, rank), Outcome.PASSED).is_bad:
                found[record.nodeid, rank] = outcome
    return {key: outcome.value for key, outcome in found.items()}


def _records(path: Path) -> Iterator[Record]:
    for line in path.read_bytes().splitlines():
        with suppress(RecordError):  # torn by a kill
            yield decode(line)


def _of_ended_jobs(report: Report, output: str) -> Iterator[str]:
    """Results of ended jobs that the run has printed, and that are missing in the report."""
    for cell, suite, words in re.findall(
        r"^(\S+)/(\S+): (\d+ (?:bad|passed|skipped).*) \([\d.]+ s\)$", output, re.MULTILINE
    ):
        listed = {word: int(count) for count, word in (part.split() for part in words.split(", "))}
        kinds = Counter(
            _word(set(ranks.values())) for (key, name, _), ranks in report.tests.items() if (key, name) == (cell, suite)
        )
        lacking = {word: count for word, count in listed.items() if kinds[word] < count}
        if lacking:
            yield f"{cell}/{suite}: it printed {words}, and the report has {dict(kinds)}"


def of_printed_failures(report: Report, output: str) -> Iterator[str]:
    """First failures that were printed during the run, and that the report contradicts."""
    listed = re.findall(r"^(\S+)/(\S+): first failure: rank (\d+) (.+?) in (\S+::\S+): ", output, re.MULTILINE)
    for cell, suite, rank, words, nodeid in listed:
        found = report.tests.get((cell, suite, nodeid), {}).get(int(rank))
        if found != words.replace(" ", "_"):
            yield f"{cell}/{suite} {nodeid}: it printed rank {rank} {words}, and the report has {found}"


def _word(outcomes: set[str]) -> str:
    if outcomes <= {"passed", "skipped"}:
        return "passed" if "passed" in outcomes else "skipped"
    return "bad"


def of_host(run_id: str, temporary: Path, known: AbstractSet[int | Path]) -> Iterator[str]:
    """What a run has left behind on this host.

    Args:
        run_id: The run.
        temporary: The parent of temporary folders.
        known: Processes and temporary folders that do not belong to the run.
    """
    yield from (f"left: process {pid}: {command}" for pid, command in strangers(known).items())
    yield from (f"left: {path}" for path in temporary.iterdir() if path not in known)
    yield from (f"left: {path}" for path in ownership.lock_folder().glob(f"run-{run_id}*"))


def strangers(known: AbstractSet[int | Path]) -> dict[int, str]:
    """The living processes of this world that are neither known nor a Docker daemon's, each with its command."""
    found = {}
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            stat = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            parents[pid] = int(stat[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if stat[0] not in (b"Z", b"X") and command:
                found[pid] = command[:150]
    return {
        pid: command for pid, command in found.items() if pid not in known and not _is_of_daemon(pid, found, parents)
    }


def _is_of_daemon(pid: int, commands: Mapping[int, str], parents: Mapping[int, int]) -> bool:
    """Whether a process belongs to the Docker daemon, and not to a container."""
    words = commands[pid].split()[0].rpartition("/")[2]
    if commands[pid].startswith(_OF_CLUSTER):
        return True
    return words in {"dockerd", "containerd", "runc", "docker-proxy", "containerd-shim", "docker-init"} or (
        "containerd-shim" in words and not any(parent == pid for parent in parents.values())
    )


def in_daemon(run_id: str, daemon: HostDaemon) -> Iterator[str]:
    """What a run has left behind in a Docker daemon."""
    mine = {"label": f"{ownership.RUN_LABEL}={run_id}"}
    with closing(daemon.connect()) as client:
        yield from (
            f"left: container {container['Names']}" for container in client.api.containers(all=True, filters=mine)
        )
        yield from (f"left: volume {volume['Name']}" for volume in client.api.volumes(filters=mine)["Volumes"] or [])
        yield from (f"left: network {network['Name']}" for network in client.api.networks(filters=mine))


def of_leases(output: str) -> Iterator[str]:
    """GPUs that `allranks doctor --gpus` does not report as free."""
    for gpu in GPUS:
        if f"{gpu}: free" not in output:
            yield f"not free: {[line for line in output.splitlines() if gpu in line] or output}"
