"""Derives facts about a whole job from its records: its error, its tests, their counts."""

import errno
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from allranks.agent import kernel
from allranks.engines.base import JobExit, NodeExit
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

_SEE_THE_AGENT = "See agent.log in the job's results folder."
_SEE_THE_OTHER_AGENTS = "See agent.log, and agent-1.log and so on, in the job's results folder."
_GO_ON = "Go on with what is left: allranks run --resume; or have it tried again at once: --reruns 1."
_NO_LIST = "The agent finished, and has not told which tests it collected."
_BETTER_PYTHON = "Add the package to the cell's image in the matrix file, or to the interpreter of process.python."
_SEE_THE_GPU = "See agent.log there, and dmesg and nvidia-smi -q on its host; or leave it out: --gpus."
_OTHER_TORCH = (
    "Install that torch for the interpreter of process.python or in the job's container, or state the one it has "
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
        """Take in the next record."""
        self.tests.note(record)
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
        """True if the agent had done all its work before its cancellation."""
        return bool(self._all(Finished)) and not self._all(Interrupted)

    @property
    def collected(self) -> tuple[str, ...] | None:
        """The collected tests; None if the collection never ended."""
        lists = self._all(Collected)
        if not (lists and lists[-1].is_last):
            return None
        return tuple(nodeid for each in lists for nodeid in each.tests)

    @property
    def full_collection(self) -> Mapping[str, str]:
        """All tests that pytest collected, also those that other jobs or attempts run, each with its digest."""
        lists = self._all(FullCollection)
        return {nodeid: digest for each in lists for nodeid, digest in zip(each.tests, each.digests, strict=True)}

    @property
    def deselected(self) -> int:
        """How many tests were deselected."""
        return sum(each.deselected for each in self._all(Collected))

    @property
    def shared(self) -> Shared | None:
        """How the agent split the suite that its job has a share of."""
        return self._first(Shared)

    @property
    def not_run(self) -> NotRun | None:
        """The tests that ``-x`` or ``--maxfail`` kept from running, and the reason."""
        found = self._all(NotRun)
        return NotRun(tests=tuple(t for each in found for t in each.tests), reason=found[0].reason) if found else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts about the job for readers of the report that no testcase has."""
        return (*self.notices, *_warnings(self._all(SuiteWarning)))

    @property
    def notices(self) -> tuple[str, ...]:
        """The notes without the warnings of the suite's import, which pytest's own session shows."""
        said = (f"{each.nodeid}: {each.text}" if each.nodeid else each.text for each in self._all(Notice))
        left = _left_behind(self._all(LeftBehind))
        return (*_rates(self.repeated), *(text.rstrip(".") for text in said), *left)

    @property
    def sick_gpus(self) -> Mapping[str, str]:
        """The GPUs of the job that did not compute, by id, with what each has come to."""
        return {each.gpu: each.message for each in self._all(GpuFailed)}

    @property
    def has_lost_a_gpu(self) -> bool:
        """Whether one of its GPUs no longer computed after the check of all of them."""
        return any(each.kind is FailureKind.GPU for each in self._all(AgentFailed))

    @property
    def well_gpus(self) -> frozenset[str]:
        """The GPUs of the job that did compute, as far as it tried them."""
        return frozenset(gpu for each in self._all(GpusChecked) for gpu in each.gpus if not self.has_lost_a_gpu)

    def error(self, ending: JobExit, limit: TimeLimit) -> JobError | None:
        """What went wrong with the job as a whole; None if its agent did all its work."""
        found = self._error(ending, limit)
        return _ended_from_outside(ending) if ending.is_disturbed and (found or self.tests.counts["bad"]) else found

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
            return _ended_from_outside(ending)
        if (early := self._error_of_agents(ending)) is not None:
            return early
        # A run that was stopped may see a job's end later than the job's time was up.
        has_ended_itself = self._all(Finished) and not self._all(Interrupted)
        if self._all(JobTimedOut) or (ending.timed_out and not has_ended_itself):
            return self._timeout(limit)
        if self._all(Interrupted):
            return JobError(kind="interrupted", what="The job was interrupted.")
        if self._all(Finished) and self.collected is None:
            return JobError(kind="agent", what=_NO_LIST, remedy=_SEE_THE_AGENT)
        return None if self._all(Finished) else _death(ending)

    def _error_of_agents(self, ending: JobExit) -> JobError | None:
        if (apart := self._first(NodesFailed) or self._first(NodeLost)) is not None:
            return JobError(kind="agent", what=apart.message, why=_ends_of(ending), remedy=_SEE_THE_OTHER_AGENTS)
        failed = self._first(AgentFailed)
        return _agent_failure(failed) if failed is not None else None

    def _timeout(self, limit: TimeLimit) -> JobError:
        where = f"after {self._last_test}" if self._last_test else "before the first test ended"
        remedy = "Raise limits.job in the matrix file, or split the suite."
        return JobError(kind="timeout", what=f"The job timed out {where}: no end after {limit.words()}.", remedy=remedy)


def _ended_from_outside(ending: JobExit) -> JobError:
    why = "\n".join(filter(None, (ending.output, _ends_of(ending))))
    return JobError(kind="infrastructure", what=f"The job {ending.ended_by}.", why=why, remedy=_GO_ON)


def _notice_kind(record: Record) -> NoticeKind | None:
    """What kind of notice a record is; None if it is none, or has to be shown."""
    match record:
        case Notice():
            return record.kind
        case LeftBehind():
            return "processes"
        case SuiteWarning():
            return "warnings"
    return None


def _rates(repeated: Mapping[str, RepetitionTally]) -> list[str]:
    """How tests fared that were repeated, in words; the highest rates first."""
    worst = sorted(repeated, key=lambda nodeid: -repeated[nodeid].bad / max(1, repeated[nodeid].runs))
    words = [summary_of(nodeid, repeated[nodeid]) for nodeid in worst[:_RATES_SHOWN]]
    rest = [repeated[nodeid] for nodeid in worst[_RATES_SHOWN:]]
    more = f"{len(rest)} more tests: {full_rate(sum(each.bad for each in rest), sum(each.runs for each in rest))}"
    return [*words, more] if rest else words


def _left_behind(found: Sequence[LeftBehind]) -> list[str]:
    """The processes that outlived their ranks and were killed, in words."""
    words = [
        f"{_whose(each)} left a process behind in {each.nodeid}, which was killed: {clipped(each.command, 200)}"
        for each in found[:_LEFT_SHOWN]
    ]
    rest = len(found) - len(words)
    return [*words, f"{rest} more processes were left behind and killed"] if rest else words


def _warnings(found: Sequence[SuiteWarning]) -> list[str]:
    """The warnings of the suite's import, each once: every node imports it."""
    words = list(dict.fromkeys(f"{each.file}:{each.line}: {each.category}: {each.text}".rstrip(".") for each in found))
    rest = len(words) - _WARNINGS_SHOWN
    return [*words[:_WARNINGS_SHOWN], f"{rest} more warnings are in agent.log"] if rest > 0 else words


def _whose(left: LeftBehind) -> str:
    return "a rank" if left.rank is None else f"rank {left.rank}"


def _gpu_error(failures: Sequence[GpuFailed]) -> JobError:
    what = "; ".join(f"{each.name} is sick: {each.message}" for each in failures)
    why = "Before a job's tests each of its GPUs multiplies two small matrices."
    return JobError(kind="infrastructure", what=f"{what}.", why=why, remedy=_SEE_THE_GPU)


def _collection_error(failures: Sequence[CollectionFailed], other: JobError | None) -> JobError:
    """The error of a collection, and the one that the tests of other modules met with."""
    names = ", ".join(dict.fromkeys(each.nodeid for each in failures if each.nodeid)) or "the suite"
    what = f"{names} cannot be collected. {other.what if other else ''}".rstrip()
    why = "\n\n".join([*(each.text for each in failures), *([other.why] if other and other.why else [])])
    remedy = "\n".join(dict.fromkeys(each.remedy for each in failures if each.remedy))
    return JobError(kind="collection", what=what, why=why, remedy=remedy)


_REMEDIES: Final = {
    FailureKind.CANNOT_IMPORT: _BETTER_PYTHON,
    FailureKind.OUT_OF_MEMORY: "Raise limits.memory_mib in the matrix file.",
    FailureKind.KERNEL: kernel.REMEDY,
    FailureKind.OTHER_TORCH: _OTHER_TORCH,
    FailureKind.GPU: _SEE_THE_GPU,
}
"""The remedies for failures of the place where an agent runs."""


def _agent_failure(failed: AgentFailed) -> JobError:
    what, why = failed.message, failed.text
    match failed.kind:
        case FailureKind.SUITE:
            return JobError(kind="collection", what=what, why=why, remedy=_SEE_THE_AGENT)
        case FailureKind.GATE | FailureKind.USAGE:
            return JobError(kind=failed.kind.value, what=what, why=why)
        case FailureKind.BROKEN:
            return _breakdown(what, why)
        case _:
            return JobError(kind="infrastructure", what=what, why=why, remedy=_REMEDIES[failed.kind])


def _breakdown(what: str, why: str) -> JobError:
    if full := _UNWRITABLE.search(f"{what}\n{why}"):
        remedy = (
            "Either its tests filled the job's folders (512 MiB of results, limits.disk_mib of other files), or the "
            "host's disk is full: free space in TMPDIR, or in Docker's own folder. Then go on: allranks run --resume."
        )
        return JobError(kind="infrastructure", what="The agent could not write.", why=full[0], remedy=remedy)
    return JobError(kind="agent", what=what, why=why, remedy="Please report this as a bug in allranks.")


def _death(ending: JobExit) -> JobError:
    why = "\n".join(filter(None, (f"{_memory(ending)}{ending.output}", _ends_of(ending))))
    remedy = _SEE_THE_OTHER_AGENTS if ending.followers else _SEE_THE_AGENT
    whose = " of node 0" if ending.followers else ""
    what = f"The agent{whose} ended before its work was done, {_how(ending)}."
    return JobError(kind="agent", what=what, why=why, remedy=remedy)


def _ends_of(ending: JobExit) -> str:
    """How the agents of the nodes from 1 on ended, a line each; silent and successful ends are left out."""
    said = (
        f"The agent of node {node} ended {_how(end)}. {_memory(end)}{end.output}".strip()
        for node, end in enumerate(ending.followers, start=1)
        if end.status != 0 or end.out_of_memory or end.output
    )
    return "\n".join(said)


def _how(end: NodeExit) -> str:
    return "with unknown status" if end.status is None else f"with status {end.status}"


def _memory(end: NodeExit) -> str:
    words = "The kernel's out-of-memory killer ended it or one of its processes (limits.memory_mib). "
    return words if end.out_of_memory else ""
