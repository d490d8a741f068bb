"""Derives facts about a job from its records: its error, its tests and their counts."""

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from allranks.agent import kernel
from allranks.engines.base import JobExit, NodeExit
from allranks.errors import counted
from allranks.protocol.choices import NoticeKind
from allranks.protocol.config import TimeLimit
from allranks.protocol.records import (
    AgentFailed,
    Collected,
    CollectionFailed,
    FailureCourse,
    FailureKind,
    Finished,
    FullCollection,
    GangReady,
    GangStarted,
    GpuFailed,
    GpusChecked,
    Interrupted,
    JobTimedOut,
    LeftBehind,
    NodeLost,
    NodesFailed,
    Notice,
    NotRun,
    Passed,
    RankEnded,
    Record,
    Repeated,
    Shared,
    SuiteWarning,
    TestStarted,
    Went,
)
from allranks.protocol.repetitions import RepetitionTally, full_rate, summary_of
from allranks.protocol.xml_text import clipped
from allranks.report.run_files import JobError
from allranks.runner.progress import Tests

R = TypeVar("R", bound=Record)

_LEFT_SHOWN = 5
_RATES_SHOWN = 20
_WARNINGS_SHOWN = 20

_UNWRITABLE = re.compile(rf"\[Errno (?:{errno.ENOSPC}|{errno.EDQUOT}|{errno.EROFS})\].*")
"""Python's message for a disk that is full, or read-only."""

_SEE_AGENT_LOG = "See agent.log in the job's results folder."
_SEE_AGENT_LOGS = "See agent.log, agent-1.log and so on in the job's results folder."
_RESUME = "Run the remaining tests: allranks run --resume. To retry such jobs at once: --reruns 1."
_NO_TEST_LIST = "The agent finished without a complete list of its tests."
_ADD_PACKAGE = "Add the package to the cell's image, or to the interpreter of process.python."
_SEE_GPU = "See the job's agent.log, and dmesg and nvidia-smi -q on its host. To run without this GPU: --gpus."
_OTHER_TORCH = (
    "Install that torch for the interpreter of process.python or in the job's container, or change the version "
    "in the matrix file (torch of [images.NAME], or of [matrix])."
)


@dataclass(eq=False)
class JobFacts:
    """Facts about a job, derived from its records."""

    ignored_notices: Sequence[NoticeKind] = ()
    tests: Tests = field(default_factory=Tests)
    repeated: dict[str, RepetitionTally] = field(default_factory=dict)
    _records: list[Record] = field(default_factory=list)
    _last_test: str = ""

    def take(self, record: Record) -> None:
        """Add the next record."""
        self.tests.update(record)
        match record:
            case Passed() | RankEnded():
                self._last_test = record.nodeid
            case Repeated():
                self.repeated[record.nodeid] = record.tally
            case TestStarted() | GangStarted() | GangReady() | FailureCourse():
                pass
            case _ if _notice_kind(record) in self.ignored_notices:
                pass
            case _:
                self._records.append(record)

    def _all(self, kind: type[R]) -> list[R]:
        return [record for record in self._records if isinstance(record, kind)]

    def _first(self, kind: type[R]) -> R | None:
        return next(iter(self._all(kind)), None)

    @property
    def is_done(self) -> bool:
        """Whether the agent finished, rather than being interrupted."""
        return bool(self._all(Finished)) and not self._all(Interrupted)

    @property
    def collected(self) -> tuple[str, ...] | None:
        """The collected tests; None if the collection did not finish."""
        lists = self._all(Collected)
        if not (lists and lists[-1].is_last):
            return None
        return tuple(nodeid for record in lists for nodeid in record.tests)

    @property
    def full_collection(self) -> Mapping[str, str]:
        """The digests of all collected tests, including those that other jobs or attempts run."""
        lists = self._all(FullCollection)
        return {nodeid: digest for record in lists for nodeid, digest in zip(record.tests, record.digests, strict=True)}

    @property
    def deselected(self) -> int:
        """The number of deselected tests."""
        return sum(record.deselected for record in self._all(Collected))

    @property
    def shared(self) -> Shared | None:
        """How the agent split the suite, if the job is a shard."""
        return self._first(Shared)

    @property
    def not_run(self) -> NotRun | None:
        """The tests that did not run because of ``-x`` or ``--maxfail``, and the reason."""
        found = self._all(NotRun)
        tests = tuple(nodeid for record in found for nodeid in record.tests)
        return NotRun(tests=tests, reason=found[0].reason) if found else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for readers of the report that belong to no testcase."""
        return (*self.notices, *_warnings(self._all(SuiteWarning)))

    @property
    def notices(self) -> tuple[str, ...]:
        """The notes except for warnings during the suite's import, which plain pytest prints itself."""
        texts = (f"{notice.nodeid}: {notice.text}" if notice.nodeid else notice.text for notice in self._all(Notice))
        left = _left_behind(self._all(LeftBehind))
        return (*_rates(self.repeated), *(text.rstrip(".") for text in texts), *left)

    @property
    def unhealthy_gpus(self) -> Mapping[str, str]:
        """The GPUs that failed the job's check, by id, with their error messages."""
        return {record.gpu: record.message for record in self._all(GpuFailed)}

    @property
    def has_lost_a_gpu(self) -> bool:
        """Whether a GPU failed after all of them had passed the check."""
        return any(record.kind is FailureKind.GPU for record in self._all(AgentFailed))

    @property
    def healthy_gpus(self) -> frozenset[str]:
        """The GPUs that passed the job's check; none if a GPU has failed since then."""
        return frozenset(gpu for record in self._all(GpusChecked) for gpu in record.gpus if not self.has_lost_a_gpu)

    def error(self, ending: JobExit, limit: TimeLimit) -> JobError | None:
        """The error of the job as a whole; None if its agent finished its work."""
        found = self._error(ending, limit)
        if ending.is_disturbed and (found or self.tests.counts["failed"]):
            return _external_error(ending)
        return found

    def _error(self, ending: JobExit, limit: TimeLimit) -> JobError | None:
        if failures := self._all(GpuFailed):
            return _gpu_error(failures)
        if broken := self._all(CollectionFailed):
            return _collection_error(
                broken, self._error_apart_from_collection(ending, limit) if self._all(Went) else None
            )
        return self._error_apart_from_collection(ending, limit)

    def _error_apart_from_collection(self, ending: JobExit, limit: TimeLimit) -> JobError | None:
        if ending.ended_by and (not self.is_done or self._first(NodeLost) or self._first(NodesFailed)):
            return _external_error(ending)
        if (early := self._error_of_agents(ending)) is not None:
            return early
        # If the run was suspended, the engine may report a timeout of a job that had finished before.
        if self._all(JobTimedOut) or (ending.timed_out and not self.is_done):
            return self._timeout(limit)
        if self._all(Interrupted):
            return JobError(kind="interrupted", what="The job was interrupted.")
        if self._all(Finished) and self.collected is None:
            return JobError(kind="agent", what=_NO_TEST_LIST, remedy=_SEE_AGENT_LOG)
        return None if self._all(Finished) else _death(ending)

    def _error_of_agents(self, ending: JobExit) -> JobError | None:
        if (failed_node := self._first(NodesFailed) or self._first(NodeLost)) is not None:
            return JobError(kind="agent", what=failed_node.message, why=_ends_of(ending), remedy=_SEE_AGENT_LOGS)
        failed = self._first(AgentFailed)
        return _agent_failure(failed) if failed is not None else None

    def _timeout(self, limit: TimeLimit) -> JobError:
        where = f"after {self._last_test}" if self._last_test else "before the first test ended"
        remedy = "Raise limits.job in the matrix file, or split the suite."
        what = f"The job timed out {where}: not finished after {limit.words()}."
        return JobError(kind="timeout", what=what, remedy=remedy)


def _external_error(ending: JobExit) -> JobError:
    """The error of a job that was ended, or disturbed, from outside."""
    why = "\n".join(filter(None, (ending.output, _ends_of(ending))))
    return JobError(kind="infrastructure", what=f"The job {ending.ended_by}.", why=why, remedy=_RESUME)


def _notice_kind(record: Record) -> NoticeKind | None:
    """The kind of a notice; None if the record is not a notice, or is a notice that cannot be ignored."""
    match record:
        case Notice():
            return record.kind
        case LeftBehind():
            return "processes"
        case SuiteWarning():
            return "warnings"
    return None


def _rates(repeated: Mapping[str, RepetitionTally]) -> list[str]:
    """The failure rates of repeated tests, the highest first."""
    worst = sorted(repeated, key=lambda nodeid: -repeated[nodeid].bad / max(1, repeated[nodeid].runs))
    notes = [summary_of(nodeid, repeated[nodeid]) for nodeid in worst[:_RATES_SHOWN]]
    rest = [repeated[nodeid] for nodeid in worst[_RATES_SHOWN:]]
    rate = full_rate(sum(tally.bad for tally in rest), sum(tally.runs for tally in rest))
    return [*notes, f"{counted(len(rest), 'more test')}: {rate}"] if rest else notes


def _left_behind(found: Sequence[LeftBehind]) -> list[str]:
    """Notes about the processes that outlived their ranks and were killed."""
    notes = []
    for left in found[:_LEFT_SHOWN]:
        rank = "a rank" if left.rank is None else f"rank {left.rank}"
        command = clipped(left.command, 200)
        # In a kept gang, an earlier test may have started it.
        notes.append(f"after {left.nodeid}, a process of {rank} was still running; allranks killed it: {command}")
    rest = len(found) - len(notes)
    return [*notes, f"left behind and killed: {counted(rest, 'more process', 'more processes')}"] if rest else notes


def _warnings(found: Sequence[SuiteWarning]) -> list[str]:
    """Notes about warnings during the suite's import, without duplicates: every node imports the suite."""
    notes = [f"{warning.file}:{warning.line}: {warning.category}: {warning.text}".rstrip(".") for warning in found]
    notes = list(dict.fromkeys(notes))
    rest = len(notes) - _WARNINGS_SHOWN
    return [*notes[:_WARNINGS_SHOWN], f"in agent.log: {counted(rest, 'more warning')}"] if rest > 0 else notes


def _gpu_error(failures: Sequence[GpuFailed]) -> JobError:
    what = "; ".join(f"{failure.name} is unhealthy: {failure.message}" for failure in failures)
    why = "Before a job's tests, each of its GPUs multiplies two small matrices."
    return JobError(kind="infrastructure", what=f"{what}.", why=why, remedy=_SEE_GPU)


def _collection_error(failures: Sequence[CollectionFailed], other: JobError | None) -> JobError:
    """The error of a collection; and `other`, a later error of the job, which ran the tests of the other modules."""
    names = ", ".join(dict.fromkeys(failure.nodeid for failure in failures if failure.nodeid)) or "the suite"
    what = f"{names} cannot be collected. {other.what if other else ''}".rstrip()
    why = "\n\n".join([*(failure.text for failure in failures), *([other.why] if other and other.why else [])])
    remedy = "\n".join(dict.fromkeys(failure.remedy for failure in failures if failure.remedy))
    return JobError(kind="collection", what=what, why=why, remedy=remedy)


_REMEDIES: Final = {
    FailureKind.CANNOT_IMPORT: _ADD_PACKAGE,
    FailureKind.OUT_OF_MEMORY: "Raise limits.memory_mib in the matrix file.",
    FailureKind.KERNEL: kernel.REMEDY,
    FailureKind.OTHER_TORCH: _OTHER_TORCH,
    FailureKind.GPU: _SEE_GPU,
}
"""Remedies for failures of an agent's environment."""


def _agent_failure(failed: AgentFailed) -> JobError:
    what, why = failed.message, failed.text
    match failed.kind:
        case FailureKind.SUITE:
            return JobError(kind="collection", what=what, why=why, remedy=_SEE_AGENT_LOG)
        case FailureKind.GATE | FailureKind.USAGE:
            return JobError(kind=failed.kind.value, what=what, why=why)
        case FailureKind.BROKEN:
            return _agent_error(what, why)
        case _:
            return JobError(kind="infrastructure", what=what, why=why, remedy=_REMEDIES[failed.kind])


def _agent_error(what: str, why: str) -> JobError:
    """The error of an agent that raised an exception."""
    if full := _UNWRITABLE.search(f"{what}\n{why}"):
        remedy = (
            "Raise limits.disk_mib if the tests filled the job's folders; results always have 512 MiB. If the host's "
            "disk is full, free space in TMPDIR or Docker's folder. Then resume: allranks run --resume."
        )
        return JobError(kind="infrastructure", what="The agent could not write.", why=full[0], remedy=remedy)
    return JobError(kind="agent", what=what, why=why, remedy="Please report this as a bug in allranks.")


def _death(ending: JobExit) -> JobError:
    """The error of an agent that ended without finishing."""
    why = "\n".join(filter(None, (f"{_out_of_memory(ending)}{ending.output}", _ends_of(ending))))
    remedy = _SEE_AGENT_LOGS if ending.followers else _SEE_AGENT_LOG
    node = " of node 0" if ending.followers else ""
    what = f"The agent{node} ended before its work was done, {_status(ending)}."
    return JobError(kind="agent", what=what, why=why, remedy=remedy)


def _ends_of(ending: JobExit) -> str:
    """How the agents of nodes 1 and up ended, one line each; silent successes are omitted."""
    lines = (
        f"The agent of node {node} ended {_status(end)}. {_out_of_memory(end)}{end.output}".strip()
        for node, end in enumerate(ending.followers, start=1)
        if end.status != 0 or end.out_of_memory or end.output
    )
    return "\n".join(lines)


def _status(end: NodeExit) -> str:
    return "with unknown status" if end.status is None else f"with status {end.status}"


def _out_of_memory(end: NodeExit) -> str:
    if not end.out_of_memory:
        return ""
    return "The kernel's out-of-memory killer ended it or one of its processes (limits.memory_mib). "
