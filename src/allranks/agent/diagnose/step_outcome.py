"""What a supervisor learns of a step on one rank, by its reports or by its end, and the records that it makes of that.

A rank that pytest-timeout ends looks like any exit in mid-test; only its output shows that a time limit was reached.
"""

import re
import signal
from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allranks.agent import clock, linux
from allranks.agent.call_log import MESSAGES, Calls, LastCall, Wait
from allranks.agent.channel import (
    GpuLost,
    HiddenError,
    LaunchedEnd,
    Leaving,
    PhasesEnded,
    Progress,
    RankExit,
    RankReport,
    Released,
    RepeatsRanks,
    SharesOutcome,
    StepEnded,
)
from allranks.agent.diagnose.unmatched_calls import Mismatch, find_mismatch, name_unmatched
from allranks.agent.output import Output
from allranks.agent.stacks import Stacks, is_library, with_source
from allranks.protocol import skip_codes
from allranks.protocol.config import TimeLimit
from allranks.protocol.outcomes import Outcome, Phase, SkipKind, following, overall, shorten
from allranks.protocol.records import EnteredCollective, FailureCourse, Passed, PhaseEnd, RankEnded
from allranks.protocol.skip_codes import sandcastle_reason

_TITLE = re.compile(r"\+{10,} Timeout \+{10,}$", re.MULTILINE)
_STACK = re.compile(r"^~+ Stack of (?P<thread>\S+) \(\d+\) ~+$", re.MULTILINE)
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)


def is_pytest_timeout(output: str, limit: TimeLimit | None = None) -> str | None:
    """The message for a rank that pytest-timeout ended; None if it ended otherwise."""
    title = _TITLE.search(output)
    if title is None:
        return None
    where = _innermost(output[title.end() :])
    told = f" after {limit.words()}" if limit else ""
    return f"ended by pytest-timeout{told}{'; it was in ' + where if where else ''}"


def _innermost(text: str) -> str:
    """The innermost frame of the user's own code in the main thread; pytest-timeout prints it oldest frame first."""
    parts = _STACK.split(text)
    stacks = dict(zip(parts[1::2], parts[2::2], strict=False))
    frames = reversed(list(_FRAME.finditer(stacks.get("MainThread", ""))))
    frame = next((frame for frame in frames if not is_library(frame["file"])), None)
    return f"{frame['file']}:{frame['line']} in {frame['name']}" if frame else ""


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """The outcome of one step on one rank, as the supervisor learned it."""

    rank: int
    outcome: Outcome
    at: float  # seconds since the epoch
    message: str = ""
    raised: tuple[str, ...] = ()  # as in the phase that decides
    stacks: Stacks = field(default_factory=Stacks)  # where the rank was when it was stopped or died
    addition: str = ""  # the supervisor's addition to the message, in words
    adds_first: bool = False  # the addition explains the message, and comes first
    text: str = ""
    early_skip: bool = False
    restored: tuple[str, ...] = ()  # as in the rank's report
    left: tuple[str, ...] = ()  # as in the rank's report
    has_exited: bool = False  # as in the rank's report
    is_final: bool = True  # the rank's step is over
    # It follows from another rank's outcome, or may do so until :meth:`Step.weigh_symptoms` has decided.
    is_symptom: bool = False
    waits_for: Wait | None = None  # what the rank had waited for, in vain; None for nothing
    had_failed: bool = False  # its test had failed of something else before it waited
    consequence: bool = False  # the outcome followed from another rank's bad one, or came within the grace after it
    caused_by: int | None = None  # for an aborted rank: the rank that caused it
    observed: bool = False  # the supervisor determined the outcome, because the rank itself could not report it
    has_left: bool = False  # the rank's process has ended instead of reporting
    skip_kind: SkipKind | None = None
    skip_code: int | None = None
    gpus_needed: int | None = None
    is_lost: bool = False  # the rank's exit status is unknown
    was_terminated: bool = False  # SIGTERM ended the rank, or its node: perhaps everything is ended from outside
    calls: Calls | None = None  # the rank's calls in its process groups; None if its step is not over
    skipped_subtests: str = ""  # as in the rank's report
    unchecked_children: tuple[str, ...] = ()
    cold_starts: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """Whether this rank caused its outcome itself, as far as is known."""
        return self.outcome is not Outcome.ABORTED and not self.is_symptom


DriverMessage = LaunchedEnd | Released | RepeatsRanks | SharesOutcome | HiddenError
"""What a driver tells about its test, besides its own phases."""

MOST_PHASES = 200
"""Phases of one test that are kept for a rank; each subtest that goes wrong is one."""


@dataclass(kw_only=True)
class Step:
    """One action of all ranks of a gang in lockstep: a start, a test or an end."""

    nodeid: str = ""  # the test; empty for a start and an end
    outcomes: list[StepOutcome] = field(default_factory=list)
    phases: dict[int, list[Phase]] = field(default_factory=dict)  # the phases that each rank has reported so far
    leaving: dict[int, Leaving] = field(default_factory=dict)  # the exit status that a rank's main thread has announced
    # What a driver has told about its test, besides its own phases, in order.
    driver: list[DriverMessage] = field(default_factory=list)
    # Of a start that fails, why the GPUs of ranks do not compute.
    lost_gpus: dict[int, str] = field(default_factory=dict)
    strangers: set[int] = field(default_factory=set)  # ranks in whose place other processes have sent data
    # When it began, on the clock of the call logs.
    began: int = field(default_factory=clock.monotonic_ns, compare=False)
    since: float = field(default_factory=clock.now, compare=False)  # the same in seconds since the epoch
    collectives: tuple[EnteredCollective, ...] = ()  # of a step that went wrong, those that its ranks entered last
    plugin_limit: TimeLimit | None = None  # the limit that pytest-timeout enforces in the ranks; None for none
    mismatch: Mismatch | None = None  # what :meth:`compare_calls` has found

    def take(self, rank: int, message: Progress) -> None:
        """Keep what a rank tells."""
        match message:
            case PhasesEnded() | StepEnded():
                self._take_phases(self.phases.setdefault(rank, []), message.phases)
            case Leaving():
                self.leaving[rank] = message
            case GpuLost():
                self.lost_gpus[rank] = message.message
            case _:
                self.driver.append(message)

    def _take_phases(self, kept: list[Phase], phases: Iterable[Phase]) -> None:
        for phase in phases:
            is_first_bad = phase.outcome.is_bad and not any(each.outcome.is_bad for each in kept)
            if len(kept) < MOST_PHASES or is_first_bad:
                kept.append(phase)

    def phase_under_way(self, rank: int) -> str:
        """The phase of the test that a rank has begun and not yet reported, in words; empty for none."""
        if not self.nodeid:
            return ""
        phases = self.phases.get(rank)
        return following(phases[-1]) if phases else "set-up"

    def may_skip_by_exit(self, rank: int, status: int) -> bool:
        """Whether an exit status may mean a skip: the main thread exited with it in set-up or call of a test."""
        leaving = self.leaving.get(rank)
        was_announced = leaving is not None and leaving.status == status
        return was_announced and self.phase_under_way(rank) in ("set-up", "call")

    def note(self, outcome: StepOutcome) -> None:
        """Add an outcome at its place in time; the first bad outcome of a rank is final."""
        if not self.has_gone_wrong_on(outcome.rank):
            # From another node, one may arrive later than one that came after it.
            insort(self.outcomes, outcome, key=lambda each: each.at)

    def has_gone_wrong_on(self, rank: int) -> bool:
        """Whether a bad outcome of this rank has arrived."""
        return any(each.rank == rank and each.outcome.is_bad for each in self.outcomes)

    @property
    def has_gone_wrong(self) -> bool:
        """Whether a bad outcome of any rank has arrived."""
        return any(each.outcome.is_bad for each in self.outcomes)

    @property
    def first_bad_in_words(self) -> str:
        """The first bad outcome of a step that has gone wrong, as in "rank 1 failed"."""
        first = next(iter(self._bad))
        return f"rank {first.rank} {first.outcome.replace('_', ' ')}"

    @property
    def cause(self) -> StepOutcome | None:
        """The first bad outcome that a rank caused itself."""
        return next((each for each in self._bad if each.is_own), None)

    def has_cause_before(self, at: float) -> bool:
        """Whether a rank had already caused a bad outcome itself at this time."""
        return self.cause is not None and self.cause.at <= at

    @property
    def leader(self) -> StepOutcome | None:
        """The cause; if only symptoms arrived, the first of them that is no consequence of another rank's.

        Of these, one whose test had failed of something else before comes first.
        """
        own = (each for each in self._bad if not each.consequence)
        return self.cause or self._failed_before or next(own, next(iter(self._bad), None))

    @property
    def _failed_before(self) -> StepOutcome | None:
        """The first symptom of a rank whose test had failed of something else before."""
        return next((each for each in self._bad if each.had_failed), None)

    @property
    def skipper(self) -> StepOutcome | None:
        """The first rank that skipped, or that ended with an expected failure."""
        return next((each for each in self.outcomes if each.outcome in (Outcome.SKIPPED, Outcome.XFAILED)), None)

    @property
    def has_skipped(self) -> bool:
        """Whether a rank has skipped."""
        return any(each.outcome is Outcome.SKIPPED for each in self.outcomes)

    @property
    def _bad(self) -> Iterable[StepOutcome]:
        return (each for each in self.outcomes if each.outcome.is_bad)

    @property
    def left(self) -> frozenset[str]:
        """Names of the state that the test left changed on any rank."""
        return frozenset(name for each in self.outcomes for name in each.left)

    @property
    def restored(self) -> frozenset[str]:
        """Names of the state that the test had changed on any rank, and that is as before again on all."""
        return frozenset(name for each in self.outcomes for name in each.restored) - self.left

    @property
    def unchecked_children(self) -> Mapping[str, list[int]]:
        """The ranks that had started processes which failed unnoticed, by how these failed."""
        found: dict[str, list[int]] = {}
        for outcome in self.outcomes:
            for words in outcome.unchecked_children:
                found.setdefault(words, []).append(outcome.rank)
        return {words: sorted(set(ranks)) for words, ranks in found.items()}

    @property
    def is_clean(self) -> bool:
        """Whether the gang may be kept: its ranks ended alike, in its group, and no call of torch.distributed raised.

        A call that raised may have left its group unusable, also where the test expects the exception.
        """
        has_raised = any(each.calls is not None and each.calls.failures for each in self.outcomes)
        return self._ended_alike and not has_raised and not any(each.left or each.has_exited for each in self.outcomes)

    @property
    def _ended_alike(self) -> bool:
        """Whether all ranks passed, or all skipped early."""
        passed = all(each.outcome is Outcome.PASSED for each in self.outcomes)
        return passed or all(each.early_skip for each in self.outcomes)

    def compare_calls(self) -> Mismatch | None:
        """Compare the calls of ranks that ended alike; a mismatch that is an error changes the blamed outcomes."""
        calls = {each.rank: each.calls for each in self.outcomes if each.calls is not None}
        mismatch = self.mismatch = find_mismatch(calls) if self._ended_alike else None
        if mismatch is not None and mismatch.is_error and self.skipper is None:
            self.outcomes = [_blamed(each, mismatch) for each in self.outcomes]
        return mismatch

    def name_unmatched(self) -> str:
        """In words, a call that does not match, where all ranks have passed but for those that died; empty for none."""
        calls = {each.rank: each.calls for each in self.outcomes if each.calls is not None}
        has_ended = all(each.outcome is Outcome.PASSED or each.has_left for each in self.outcomes)
        return name_unmatched(calls) if has_ended and set(calls) == {each.rank for each in self.outcomes} else ""

    def compare_subtests(self) -> None:
        """Count a rank as skipped that skipped subtests which its peers ran."""
        said = {each.rank: each.skipped_subtests for each in self.outcomes if each.outcome is Outcome.PASSED}
        # Reasons may name the rank. A rank that ran all of them, if there is one, decides.
        usual = min((text.partition(":")[0] for text in said.values()), default="")
        self.outcomes = [
            replace(each, outcome=Outcome.SKIPPED, message=text, skip_kind=SkipKind.PLAIN)
            if (text := said.get(each.rank, "")) and text.partition(":")[0] != usual
            else each
            for each in self.outcomes
        ]

    def weigh_symptoms(self, follows: Callable[[StepOutcome], bool]) -> None:
        """Decide which bad outcomes follow from those of other ranks, and which are their rank's own.

        `follows` says so of an outcome of a rank that had waited for something.
        """
        weighed: list[StepOutcome] = []
        has_cause = False
        for each in self.outcomes:
            is_symptom = follows(each) if each.is_symptom and each.waits_for is not None else each.is_symptom
            outcome = replace(each, is_symptom=is_symptom, consequence=has_cause and each.outcome.is_bad)
            weighed.append(outcome)
            has_cause = has_cause or (outcome.outcome.is_bad and outcome.is_own)
        self.outcomes = weighed

    def explain_symptoms(self, skipper: StepOutcome | None, odd: Collection[int] = ()) -> None:
        """At the step's end, mark symptoms as consequences of the rank that caused them.

        If only symptoms arrived, the first of the ranks whose calls differ from most (`odd`) is the cause.
        """
        odd_one = next((each for each in self._bad if each.rank in odd), None)
        cause = self.cause or skipper or self._failed_before or odd_one
        if cause is not None:
            self.outcomes = [
                _caused_by(cause, each) if each.is_symptom and each is not cause else each for each in self.outcomes
            ]

    @property
    def last_termination(self) -> float | None:
        """When SIGTERM ended the last of the ranks that it ended; None if it ended none."""
        return max((each.at for each in self.outcomes if each.was_terminated), default=None)

    def end_from_outside(self, reason: str) -> None:
        """Mark ranks as aborted that the signal ended which has also ended the job, and those that failed for that.

        A rank that failed or crashed by itself leads, as before or even if it seemed to follow from the others' ends.
        """
        ended = {each.rank for each in self.outcomes if each.was_terminated}
        lost = self.cause is None or self.cause.rank in ended
        outcomes, cause = self.outcomes, None
        self.outcomes = []
        for each in outcomes:
            if each.rank in ended or (lost and each.outcome.is_bad and not each.is_own):
                self.outcomes.append(
                    StepOutcome(rank=each.rank, outcome=Outcome.ABORTED, at=each.at, message=reason, observed=True)
                )
            elif each.outcome.is_bad and each.is_own and lost:
                self.outcomes.append(replace(each, consequence=cause is not None, caused_by=cause))
                cause = each.rank if cause is None else cause
            else:
                self.outcomes.append(each)

    def blame_strays(self, strays: Collection[int]) -> None:
        """Let a rank lead that called something else than most, before those whose call failed for that."""
        first = next((each for each in self._bad if each.rank in strays), None)
        if first is not None:
            self.outcomes = [
                _strayed(each) if each.rank in strays else _after(first, each) if each.outcome.is_bad else each
                for each in self.outcomes
            ]

    def add(self, what: str) -> None:
        """Add to the leading outcome how the ranks' calls differ; empty for no difference.

        It comes after an error of the rank's own, which caused the difference.
        """
        leader = self.leader
        if leader is not None and what and what not in leader.message:
            explains = leader.adds_first or leader.observed or (leader.is_symptom and not leader.had_failed)
            added = replace(leader, addition=f"the ranks' calls differ: {what}", adds_first=explains)
            self.outcomes = [added if each is leader else each for each in self.outcomes]


def _blamed(outcome: StepOutcome, mismatch: Mismatch) -> StepOutcome:
    if outcome.rank not in mismatch.ranks:
        return outcome
    return replace(outcome, outcome=Outcome.ERRORED, message=mismatch.message, observed=True)


def _caused_by(cause: StepOutcome, symptom: StepOutcome) -> StepOutcome:
    return replace(symptom, consequence=True, caused_by=cause.rank)


def _strayed(outcome: StepOutcome) -> StepOutcome:
    """The outcome of a rank that called something else; one that was stopped in its call has no own."""
    own = replace(outcome, is_symptom=False, consequence=False, caused_by=None, adds_first=True)
    if outcome.outcome is not Outcome.ABORTED:
        return own
    message = f"rank {outcome.rank} waited in a call that its peers did not make{outcome.stacks.words}"
    return replace(own, outcome=Outcome.ERRORED, message=message)


def _after(first: StepOutcome, other: StepOutcome) -> StepOutcome:
    caused = replace(_caused_by(first, other), is_symptom=True)
    if other.outcome is not Outcome.ABORTED:
        return caused
    return replace(caused, message=f"aborted by rank {first.rank}{other.stacks.words_for_a_stop}")


def reported(event: RankReport, message: PhasesEnded | StepEnded, step: Step) -> StepOutcome:
    """The outcome of the phases that a rank has reported, the last ones with this message; passed without any."""
    phases = step.phases.get(event.rank, ())
    deciding = overall(phases) if phases else Phase(when="", outcome=Outcome.PASSED, duration=0.0)
    outcome = StepOutcome(
        rank=event.rank,
        outcome=deciding.outcome,
        at=event.at,
        message=deciding.message,
        raised=deciding.raised,
        calls=event.calls,
        consequence=step.has_cause_before(event.at) and deciding.outcome.is_bad,
    )
    if isinstance(message, PhasesEnded):
        return replace(
            outcome,
            is_final=False,
            is_symptom=message.is_symptom or message.waits_for is not None,
            waits_for=message.waits_for,
            had_failed=message.had_failed,
        )
    return replace(
        outcome,
        early_skip=message.early_skip,
        restored=message.restored,
        left=message.left,
        has_exited=message.has_exited,
        skipped_subtests=message.skipped_subtests,
        unchecked_children=message.unchecked_children,
        cold_starts=message.cold_starts,
    )


def ended(rank_exit: RankExit, step: Step) -> StepOutcome:
    """The outcome of a rank whose process ended instead of reporting; a fatal signal leaves its stacks."""
    status = rank_exit.status
    reason = None if status is None else skip_codes.reason_of_exit(status)
    if status is not None and reason is not None and step.may_skip_by_exit(rank_exit.rank, status):
        return StepOutcome(
            rank=rank_exit.rank,
            outcome=Outcome.SKIPPED,
            at=rank_exit.at,
            message=step.leaving[rank_exit.rank].reason or reason,
            observed=True,
            has_left=True,
            skip_kind=skip_codes.kind_of_exit(status),
            skip_code=status,
            gpus_needed=skip_codes.gpus_needed(status),
        )
    is_late = any(each.rank == rank_exit.rank and each.is_final for each in step.outcomes)
    printed = rank_exit.output.stdout + rank_exit.output.stderr
    timed_out = is_pytest_timeout(printed, step.plugin_limit) if status == 1 else None
    died = f"rank {rank_exit.rank} {describe_end(rank_exit)}{rank_exit.stacks.words}"
    return StepOutcome(
        rank=rank_exit.rank,
        outcome=Outcome.CRASHED if timed_out is None else Outcome.TIMED_OUT,
        at=rank_exit.at,
        message=f"{timed_out or died}{', when it had ended its own part of the test' if is_late else ''}",
        text=rank_exit.stacks.text,
        stacks=rank_exit.stacks,
        is_symptom=_may_follow(rank_exit),
        waits_for=rank_exit.waits_for,
        calls=rank_exit.calls,
        consequence=step.has_cause_before(rank_exit.at),
        observed=True,
        has_left=True,
        is_lost=bool(rank_exit.lost),
        was_terminated=rank_exit.status == -signal.SIGTERM or rank_exit.was_told_to_stop,
    )


def _may_follow(rank_exit: RankExit) -> bool:
    """Whether a rank may have ended itself because a peer was late or gone: code that handles such failures often does.

    NCCL's watchdog aborts a process whose collective goes on for too long.
    """
    status, wait = rank_exit.status, rank_exit.waits_for
    if wait is None or status is None:
        return False
    return status == -signal.SIGABRT or (status >= 0 and wait.seconds is not None)


def describe_end(rank_exit: RankExit) -> str:
    """In words, how a rank's process ended."""
    if rank_exit.status is None:
        return f"is lost: {rank_exit.lost}"
    if rank_exit.kill_reason:
        return f"{rank_exit.kill_reason} and was killed"
    if rank_exit.status < 0:
        return f"was {linux.killed(-rank_exit.status, for_memory=rank_exit.by_memory_killer)}"
    return f"left with exit code {rank_exit.status} in mid-test"


MOST_COLLECTIVES = 16
"""Of one test; the last ones count."""

MOST_RANKS = 1_024
"""Ranks whose collectives are kept."""

MOST_CALLS = 10**12
"""A greater number of a collective is none that a rank has counted, and no record may have any integer."""

_NAME = 60
"""Characters of a group or a kind, which a rank may have overwritten with anything."""


def entered(calls: Mapping[int, Sequence[LastCall]], began: int, ended: int) -> tuple[EnteredCollective, ...]:
    """The last collectives that began between two times, in nanoseconds on the clock of the calls."""
    found: dict[tuple[str, int, str], dict[int, float]] = {}
    for rank in sorted(calls)[:MOST_RANKS]:
        for call in calls[rank]:
            if call.kind not in MESSAGES and began <= call.at <= ended and 0 <= call.number <= MOST_CALLS:
                key = (call.group[:_NAME], call.number, call.kind[:_NAME])
                found.setdefault(key, {})[rank] = round((call.at - began) / 1e9, 6)
    last = sorted(found.items(), key=lambda each: max(each[1].values()))[-MOST_COLLECTIVES:]
    return tuple(
        EnteredCollective(group=group, number=number, kind=kind, ranks=tuple(seconds), seconds=tuple(seconds.values()))
        for (group, number, kind), seconds in last
    )


def course_of(step: Step, nodeid: str, outputs: Mapping[int, Output]) -> FailureCourse | None:
    """The record of a test that went wrong; None if it did not, or if nothing is known."""
    if not (step.nodeid and step.has_gone_wrong):
        return None
    bad = {each.rank for each in step.outcomes if each.outcome is not Outcome.PASSED}
    passed = next((rank for rank, each in sorted(outputs.items()) if rank not in bad and each != Output()), None)
    if passed is None and not step.collectives:
        return None
    printed = Output() if passed is None else outputs[passed]
    return FailureCourse(
        nodeid=nodeid,
        collectives=step.collectives,
        passed=passed,
        stdout=shorten(printed.stdout),
        stderr=shorten(printed.stderr),
    )


def ends_of(step: Step, nodeid: str, world_size: int, outputs: Mapping[int, Output]) -> list[Passed | RankEnded]:
    """Turn a step of a test into records, with the output of each rank.

    The ranks that simply passed have one record. Failures come last, in the order of their arrival, so that the reader
    of the first one has everything before it.
    """
    outcomes = [_skipped_in_words(each, outputs.get(each.rank, Output()).stderr) for each in step.outcomes]
    final = {each.rank: each for each in outcomes}.values()
    passed = [each for each in final if each.outcome is Outcome.PASSED]
    others = [
        _ended(each, step, nodeid, world_size, outputs.get(each.rank, Output()))
        for each in final
        if each.outcome is not Outcome.PASSED
    ]
    return [_passed(passed, step, nodeid, world_size), *others] if passed else [*others]


def _passed(outcomes: Sequence[StepOutcome], step: Step, nodeid: str, world_size: int) -> Passed:
    return Passed(
        nodeid=nodeid,
        ranks=tuple(each.rank for each in outcomes),
        arrived=tuple(round(each.at, 6) for each in outcomes),
        seconds=tuple(round(_seconds(step.phases.get(each.rank, ())), 6) for each in outcomes),
        world_size=world_size,
    )


def _seconds(phases: Iterable[Phase]) -> float:
    return sum(phase.duration for phase in phases)


def _ended(outcome: StepOutcome, step: Step, nodeid: str, world_size: int, output: Output) -> RankEnded:
    """One rank's record: its phases decide, unless the supervisor observed the outcome and no phase was bad."""
    phases = step.phases.get(outcome.rank, ())
    deciding = overall(phases) if phases else None
    if deciding is None or (outcome.observed and not deciding.outcome.is_bad) or outcome.outcome != deciding.outcome:
        deciding = Phase(
            when="",
            outcome=outcome.outcome,
            duration=0.0,
            message=outcome.message,
            text=outcome.text,
            skip_kind=outcome.skip_kind,
            skip_code=outcome.skip_code,
            gpus_needed=outcome.gpus_needed,
        )
    parts = outcome.addition, deciding.message
    return RankEnded(
        nodeid=nodeid,
        rank=outcome.rank,
        outcome=deciding.outcome,
        world_size=world_size,
        arrived=round(outcome.at, 6),
        phases=tuple(
            PhaseEnd(when=phase.when, outcome=phase.outcome, seconds=round(phase.duration, 6)) for phase in phases
        ),
        observed=round(max(0.0, outcome.at - step.since), 6) if outcome.observed else 0.0,
        phase=deciding.when,
        message="; ".join(filter(None, parts if outcome.adds_first else reversed(parts))),
        text=shorten(with_source(deciding.text) if outcome.observed else deciding.text),
        stdout=_printed(output.stdout, phases, "stdout"),
        stderr=_printed(output.stderr, phases, "stderr"),
        caused_by=outcome.caused_by,
        consequence=outcome.consequence,
        is_lost=outcome.is_lost,
        skip_kind=deciding.skip_kind,
        skip_code=deciding.skip_code,
        gpus_needed=deciding.gpus_needed,
    )


def _printed(printed: str, phases: Sequence[Phase], name: str) -> str:
    """What a rank printed; a phase has text of its own only if a plugin put it there."""
    sources = (printed, *(getattr(phase, name) for phase in reversed(phases)))
    return shorten(next(filter(None, sources), ""))


def failed_start(start: Step, first: StepOutcome) -> Step:
    """A failed start as the next test's outcome: ranks that had joined are aborted by the one that did not."""
    return replace(start, outcomes=[_aborted_at_start(each, first) for each in start.outcomes])


def _aborted_at_start(outcome: StepOutcome, first: StepOutcome) -> StepOutcome:
    if outcome.outcome is not Outcome.PASSED:
        return outcome
    why = "skipped" if first.outcome is Outcome.SKIPPED else "did not join the process group"
    return replace(
        outcome,
        outcome=Outcome.ABORTED,
        message=f"aborted by rank {first.rank}, which {why}",
        observed=True,
        consequence=True,
        caused_by=first.rank,
    )


def _skipped_in_words(outcome: StepOutcome, stderr: str) -> StepOutcome:
    """The outcome; a skip if the rank passed but printed torch's sandcastle skip on standard error."""
    reason = sandcastle_reason(stderr) if stderr and outcome.outcome is Outcome.PASSED else None
    if reason is None:
        return outcome
    return replace(
        outcome, outcome=Outcome.SKIPPED, message=reason, text=reason, skip_kind=SkipKind.ENVIRONMENT, observed=True
    )
