"""What each rank did in a step (from its report or its exit), and the conversion to records."""

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
from allranks.agent.diagnose.unmatched_calls import Mismatch, describe_unmatched_call, find_mismatch
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


def pytest_timeout_message(output: str, limit: TimeLimit | None = None) -> str | None:
    """Return the message for a rank that pytest-timeout ended; None if it ended otherwise.

    Such a rank exits like any other that fails: only its output shows the time limit.
    """
    title = _TITLE.search(output)
    if title is None:
        return None
    where = _innermost(output[title.end() :])
    after = f" after {limit.words()}" if limit else ""
    return f"ended by pytest-timeout{after}{'; it was in ' + where if where else ''}"


def _innermost(text: str) -> str:
    """Return the innermost user frame of the main thread; pytest-timeout prints the oldest frame first."""
    parts = _STACK.split(text)
    stacks = dict(zip(parts[1::2], parts[2::2], strict=False))
    frames = reversed(list(_FRAME.finditer(stacks.get("MainThread", ""))))
    frame = next((frame for frame in frames if not is_library(frame["file"])), None)
    return f"{frame['file']}:{frame['line']} in {frame['name']}" if frame else ""


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """The outcome of one step on one rank."""

    rank: int
    outcome: Outcome
    at: float  # seconds since the epoch
    message: str = ""
    text: str = ""
    raised: tuple[str, ...] = ()  # as in the deciding phase
    addition: str = ""  # how the ranks' calls differ: the supervisor's addition to the message
    addition_first: bool = False  # the addition explains the message, and precedes it
    report: StepEnded = field(default_factory=StepEnded)  # the rank's last message of the step
    calls: Calls | None = None  # the rank's calls in its process groups; None if its step is not over
    is_final: bool = True  # the rank's step is over
    # It is a secondary failure, or may be one until :meth:`Step.classify_failures` has decided.
    is_secondary: bool = False
    waits_for: Wait | None = None  # the call that failed or did not return before the rank failed
    failed_before: bool = False  # the test had already failed for another reason before that call
    consequence: bool = False  # the outcome followed from another rank's failure, or came within the grace after it
    caused_by: int | None = None  # the rank with the primary failure
    observed: bool = False  # the supervisor determined the outcome, because the rank itself could not report it
    stacks: Stacks = field(default_factory=Stacks)  # where the rank was when it was stopped or died
    process_ended: bool = False  # the rank's process ended instead of reporting
    is_lost: bool = False  # the rank's exit status is unknown
    was_terminated: bool = False  # SIGTERM ended the rank, or its node: perhaps the job is being ended from outside
    skip_kind: SkipKind | None = None
    skip_code: int | None = None
    gpus_needed: int | None = None

    @property
    def is_primary(self) -> bool:
        """Whether this rank caused its outcome itself, as far as is known."""
        return self.outcome is not Outcome.ABORTED and not self.is_secondary


LauncherMessage = LaunchedEnd | Released | RepeatsRanks | SharesOutcome | HiddenError
"""A message of a launcher about its test, other than its own phases."""

MAX_PHASES = 200
"""Phases of one test that are kept for a rank; each subtest that fails is one."""


@dataclass(kw_only=True)
class Step:
    """One action of all ranks of a gang in lockstep: a start, a test or an end."""

    nodeid: str = ""  # the test; empty for a start and an end
    outcomes: list[StepOutcome] = field(default_factory=list)  # in the order of their times
    phases: dict[int, list[Phase]] = field(default_factory=dict)  # the phases that each rank has reported so far
    leaving: dict[int, Leaving] = field(default_factory=dict)  # the exit status that a rank's main thread has announced
    launcher_messages: list[LauncherMessage] = field(default_factory=list)
    lost_gpus: dict[int, str] = field(default_factory=dict)  # why the GPUs of ranks that could not start do not work
    foreign_senders: set[int] = field(default_factory=set)  # ranks over whose connections other processes sent data
    began: int = field(default_factory=clock.monotonic_ns, compare=False)  # on the clock of the call logs
    since: float = field(default_factory=clock.now, compare=False)  # the same in seconds since the epoch
    collectives: tuple[EnteredCollective, ...] = ()  # the last ones that the ranks of a failed step entered
    plugin_limit: TimeLimit | None = None  # the limit that pytest-timeout enforces in the ranks
    mismatch: Mismatch | None = None  # the result of :meth:`compare_calls`

    def store(self, rank: int, message: Progress) -> None:
        """Store the contents of a rank's message."""
        match message:
            case PhasesEnded() | StepEnded():
                kept = self.phases.setdefault(rank, [])
                for phase in message.phases:
                    is_first_failure = phase.outcome.is_bad and not any(other.outcome.is_bad for other in kept)
                    if len(kept) < MAX_PHASES or is_first_failure:
                        kept.append(phase)
            case Leaving():
                self.leaving[rank] = message
            case GpuLost():
                self.lost_gpus[rank] = message.message
            case _:
                self.launcher_messages.append(message)

    def current_phase(self, rank: int) -> str:
        """Return the phase of the test that a rank has not yet reported; empty if there is none."""
        if not self.nodeid:
            return ""
        phases = self.phases.get(rank)
        return following(phases[-1]) if phases else "set-up"

    def may_skip_by_exit(self, rank: int, status: int) -> bool:
        """Return whether an exit status may mean a skip: the main thread exited with it in set-up or call of a test."""
        leaving = self.leaving.get(rank)
        was_announced = leaving is not None and leaving.status == status
        return was_announced and self.current_phase(rank) in ("set-up", "call")

    def add(self, outcome: StepOutcome) -> None:
        """Add an outcome, in the order of times; the first failure of a rank is final."""
        if not self.has_failed_on(outcome.rank):
            # An outcome of another node may arrive after outcomes with later times.
            insort(self.outcomes, outcome, key=lambda other: other.at)

    def has_failed_on(self, rank: int) -> bool:
        """Return whether this rank has failed."""
        return any(failure.rank == rank for failure in self._failures)

    @property
    def has_failed(self) -> bool:
        """Whether any rank has failed."""
        return any(outcome.outcome.is_bad for outcome in self.outcomes)

    @property
    def _failures(self) -> Iterable[StepOutcome]:
        return (outcome for outcome in self.outcomes if outcome.outcome.is_bad)

    @property
    def first_failure(self) -> str:
        """The first failure, as in "rank 1 failed"."""
        first = next(iter(self._failures))
        return f"rank {first.rank} {first.outcome.replace('_', ' ')}"

    @property
    def cause(self) -> StepOutcome | None:
        """The first failure that is known to be primary."""
        return next((failure for failure in self._failures if failure.is_primary), None)

    def has_cause_before(self, at: float) -> bool:
        """Return whether a rank had caused a failure itself by this time."""
        return self.cause is not None and self.cause.at <= at

    @property
    def primary_failure(self) -> StepOutcome | None:
        """The failure to report first: the cause, or the best candidate if all failures seem to be secondary.

        The best candidate is the first rank whose test had already failed for another reason, or else the first failure
        that is no consequence of another.
        """
        independent = (failure for failure in self._failures if not failure.consequence)
        return self.cause or self._failed_before or next(independent, next(iter(self._failures), None))

    @property
    def _failed_before(self) -> StepOutcome | None:
        return next((failure for failure in self._failures if failure.failed_before), None)

    @property
    def first_skip(self) -> StepOutcome | None:
        """The outcome of the first rank that skipped, or that failed as expected."""
        kinds = (Outcome.SKIPPED, Outcome.XFAILED)
        return next((outcome for outcome in self.outcomes if outcome.outcome in kinds), None)

    @property
    def ended(self) -> tuple[int, ...]:
        """The ranks whose step is over."""
        return tuple(sorted(outcome.rank for outcome in self.outcomes if outcome.is_final))

    @property
    def has_launched(self) -> bool:
        """Whether the process is a launcher, whose ranks have started the test."""
        return any(isinstance(message, Released) for message in self.launcher_messages)

    @property
    def has_skipped(self) -> bool:
        """Whether a rank has skipped."""
        return any(outcome.outcome is Outcome.SKIPPED for outcome in self.outcomes)

    @property
    def not_restored(self) -> frozenset[str]:
        """Names of the state that the test changed on some rank and that could not be restored."""
        return frozenset(name for outcome in self.outcomes for name in outcome.report.left)

    @property
    def restored(self) -> frozenset[str]:
        """Names of the state that the test had changed on any rank, and that all ranks have restored."""
        return frozenset(name for outcome in self.outcomes for name in outcome.report.restored) - self.not_restored

    @property
    def unchecked_children(self) -> Mapping[str, list[int]]:
        """How child processes failed without the test noticing, and on which ranks."""
        found: dict[str, set[int]] = {}
        for outcome in self.outcomes:
            for failure in outcome.report.unchecked_children:
                found.setdefault(failure, set()).add(outcome.rank)
        return {failure: sorted(ranks) for failure, ranks in found.items()}

    @property
    def is_clean(self) -> bool:
        """Whether the gang may be kept: all ranks passed, or all skipped early, and left nothing behind."""
        reports = [outcome.report for outcome in self.outcomes]
        has_left = any(report.left or report.has_exited for report in reports)
        return self._agrees and not has_left and not self.has_failed_calls

    @property
    def has_failed_calls(self) -> bool:
        """Whether calls of torch.distributed failed, or were not logged, in a test that did not fail.

        A call that raised may have left its group unusable, even if the test expects the error.
        """
        return self._agrees and any(outcome.calls and outcome.calls.failures for outcome in self.outcomes)

    @property
    def _agrees(self) -> bool:
        """Whether all ranks passed, or all skipped early."""
        all_passed = all(outcome.outcome is Outcome.PASSED for outcome in self.outcomes)
        return all_passed or all(outcome.report.early_skip for outcome in self.outcomes)

    @property
    def _calls(self) -> Mapping[int, Calls]:
        return {outcome.rank: outcome.calls for outcome in self.outcomes if outcome.calls is not None}

    def compare_calls(self) -> Mismatch | None:
        """Compare the calls of ranks that agree; a mismatch that is an error changes the outcomes of its ranks."""
        mismatch = self.mismatch = find_mismatch(self._calls) if self._agrees else None
        if mismatch is not None and mismatch.is_error and self.first_skip is None:
            self.outcomes = [
                replace(outcome, outcome=Outcome.ERRORED, message=mismatch.message, observed=True)
                if outcome.rank in mismatch.ranks
                else outcome
                for outcome in self.outcomes
            ]
        return mismatch

    def describe_unmatched_call(self) -> str:
        """Describe a call that does not match, if all ranks have passed except for those that died; else empty."""
        calls = self._calls
        has_ended = all(outcome.outcome is Outcome.PASSED or outcome.process_ended for outcome in self.outcomes)
        is_complete = set(calls) == {outcome.rank for outcome in self.outcomes}
        return describe_unmatched_call(calls) if has_ended and is_complete else ""

    def compare_subtests(self) -> None:
        """If a rank skipped subtests that its peers ran, count the rank as skipped."""
        skipped = {
            outcome.rank: outcome.report.skipped_subtests
            for outcome in self.outcomes
            if outcome.outcome is Outcome.PASSED
        }
        # Only the part before ':' is compared, because reasons may contain the rank. If some rank skipped nothing, that
        # is the norm.
        usual = min((text.partition(":")[0] for text in skipped.values()), default="")
        self.outcomes = [
            replace(outcome, outcome=Outcome.SKIPPED, message=text, skip_kind=SkipKind.PLAIN)
            if (text := skipped.get(outcome.rank, "")) and text.partition(":")[0] != usual
            else outcome
            for outcome in self.outcomes
        ]

    def classify_failures(self, is_secondary: Callable[[StepOutcome], bool]) -> None:
        """Decide which failures are primary, and which are secondary.

        Args:
            is_secondary: Decides this for the failure of a rank that had waited for something.
        """
        classified: list[StepOutcome] = []
        has_cause = False
        for outcome in self.outcomes:
            follows = outcome.is_secondary and (outcome.waits_for is None or is_secondary(outcome))
            is_failure = outcome.outcome.is_bad
            classified.append(replace(outcome, is_secondary=follows, consequence=has_cause and is_failure))
            has_cause = has_cause or (is_failure and classified[-1].is_primary)
        self.outcomes = classified

    def attribute_secondary_failures(self, first_skip: StepOutcome | None, odd: Collection[int] = ()) -> None:
        """At the step's end, mark secondary failures as consequences of the rank that caused them.

        If all failures are secondary, the cause is the first one in `odd`, the ranks whose calls differ from those of
        the majority.
        """
        odd_one = next((failure for failure in self._failures if failure.rank in odd), None)
        cause = self.cause or first_skip or self._failed_before or odd_one
        if cause is not None:
            self.outcomes = [
                _caused_by(cause, outcome) if outcome.is_secondary and outcome is not cause else outcome
                for outcome in self.outcomes
            ]

    @property
    def last_termination(self) -> float | None:
        """When SIGTERM last ended a rank; None if it ended none."""
        return max((outcome.at for outcome in self.outcomes if outcome.was_terminated), default=None)

    def abort_terminated_ranks(self, reason: str) -> None:
        """Mark ranks as aborted if SIGTERM from outside the job ended them, or if they failed because of that.

        A rank that failed or crashed by itself stays the primary failure, even if it seemed to be a secondary one.
        """
        terminated = {outcome.rank for outcome in self.outcomes if outcome.was_terminated}
        has_no_cause = self.cause is None or self.cause.rank in terminated
        outcomes, cause = self.outcomes, None
        self.outcomes = []
        for outcome in outcomes:
            is_secondary = outcome.outcome.is_bad and outcome.outcome is not Outcome.ABORTED and not outcome.is_primary
            if outcome.rank in terminated or (has_no_cause and is_secondary):
                self.outcomes.append(
                    StepOutcome(
                        rank=outcome.rank, outcome=Outcome.ABORTED, at=outcome.at, message=reason, observed=True
                    )
                )
            elif outcome.outcome.is_bad and has_no_cause:
                self.outcomes.append(replace(outcome, consequence=cause is not None, caused_by=cause))
                cause = outcome.rank if cause is None else cause
            else:
                self.outcomes.append(outcome)

    def promote_outliers(self, outliers: Collection[int]) -> None:
        """Make failures of the outliers, whose call differed from the majority's, primary, and all others secondary."""
        first = next((failure for failure in self._failures if failure.rank in outliers), None)
        if first is not None:
            self.outcomes = [
                _primary(outcome)
                if outcome.rank in outliers
                else _aborted_by(first, outcome)
                if outcome.outcome.is_bad
                else outcome
                for outcome in self.outcomes
            ]

    def explain(self, difference: str) -> None:
        """Add to the primary failure how the ranks' calls differ; empty for no difference.

        The text comes after an error of the rank's own, because that error caused the difference.
        """
        primary = self.primary_failure
        if primary is not None and difference and difference not in primary.message:
            is_reason = (
                primary.addition_first or primary.observed or (primary.is_secondary and not primary.failed_before)
            )
            explained = replace(primary, addition=f"the ranks' calls differ: {difference}", addition_first=is_reason)
            self.outcomes = [explained if outcome is primary else outcome for outcome in self.outcomes]


def _caused_by(cause: StepOutcome, outcome: StepOutcome) -> StepOutcome:
    return replace(outcome, consequence=True, caused_by=cause.rank)


def _primary(outcome: StepOutcome) -> StepOutcome:
    """Return the outcome of an outlier; one that was stopped in its call gets an error."""
    own = replace(outcome, is_secondary=False, consequence=False, caused_by=None, addition_first=True)
    if outcome.outcome is not Outcome.ABORTED:
        return own
    message = f"rank {outcome.rank} waited in a call that its peers did not make{outcome.stacks.words}"
    return replace(own, outcome=Outcome.ERRORED, message=message)


def _aborted_by(cause: StepOutcome, outcome: StepOutcome) -> StepOutcome:
    caused = replace(_caused_by(cause, outcome), is_secondary=True)
    if outcome.outcome is not Outcome.ABORTED:
        return caused
    return replace(caused, message=f"aborted by rank {cause.rank}{outcome.stacks.words_for_a_stop}")


def outcome_of_report(event: RankReport, message: PhasesEnded | StepEnded, step: Step) -> StepOutcome:
    """Return the outcome of all phases that a rank has reported, the last ones with this message."""
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
    if isinstance(message, StepEnded):
        return replace(outcome, report=message)
    return replace(
        outcome,
        is_final=False,
        is_secondary=message.is_symptom or message.waits_for is not None,
        waits_for=message.waits_for,
        failed_before=message.had_failed,
    )


def outcome_of_exit(rank_exit: RankExit, step: Step) -> StepOutcome:
    """Return the outcome of a rank whose process ended instead of reporting."""
    status = rank_exit.status
    reason = None if status is None else skip_codes.reason_of_exit(status)
    if status is not None and reason is not None and step.may_skip_by_exit(rank_exit.rank, status):
        return StepOutcome(
            rank=rank_exit.rank,
            outcome=Outcome.SKIPPED,
            at=rank_exit.at,
            message=step.leaving[rank_exit.rank].reason or reason,
            observed=True,
            process_ended=True,
            skip_kind=skip_codes.kind_of_exit(status),
            skip_code=status,
            gpus_needed=skip_codes.gpus_needed(status),
        )
    is_late = any(outcome.rank == rank_exit.rank and outcome.is_final for outcome in step.outcomes)
    printed = rank_exit.output.stdout + rank_exit.output.stderr
    timed_out = pytest_timeout_message(printed, step.plugin_limit) if status == 1 else None
    died = f"rank {rank_exit.rank} {describe_exit(rank_exit)}{rank_exit.stacks.words}"
    return StepOutcome(
        rank=rank_exit.rank,
        outcome=Outcome.CRASHED if timed_out is None else Outcome.TIMED_OUT,
        at=rank_exit.at,
        message=f"{timed_out or died}{', after it had ended its own part of the test' if is_late else ''}",
        text=rank_exit.stacks.text,
        stacks=rank_exit.stacks,
        is_secondary=_may_be_secondary(rank_exit),
        waits_for=rank_exit.waits_for,
        calls=rank_exit.calls,
        consequence=step.has_cause_before(rank_exit.at),
        observed=True,
        process_ended=True,
        is_lost=bool(rank_exit.lost),
        was_terminated=rank_exit.status == -signal.SIGTERM or rank_exit.was_told_to_stop,
    )


def _may_be_secondary(rank_exit: RankExit) -> bool:
    """Return whether a rank may have ended itself because a peer was late or gone.

    Code that handles such failures often exits, and NCCL's watchdog aborts a process whose collective takes too long.
    """
    status, wait = rank_exit.status, rank_exit.waits_for
    if wait is None or status is None:
        return False
    return status == -signal.SIGABRT or (status >= 0 and wait.seconds is not None)


def describe_exit(rank_exit: RankExit) -> str:
    """Describe how a rank's process ended, as a predicate."""
    if rank_exit.status is None:
        return f"is lost: {rank_exit.lost}"
    if rank_exit.kill_reason:
        return f"{rank_exit.kill_reason} and was killed"
    if rank_exit.status < 0:
        return f"was {linux.killed(-rank_exit.status, for_memory=rank_exit.by_memory_killer)}"
    return f"exited with code {rank_exit.status} during the test"


MAX_COLLECTIVES = 16
"""Collectives of one test that are kept: the last ones."""

MAX_RANKS = 1_024
"""Ranks whose collectives are kept."""

_MAX_NUMBER = 10**12
"""No rank counts more collectives: a greater number is garbage, and must not get into a record."""

_NAME_LENGTH = 60
"""Characters of a group or a kind, which a rank may have overwritten with anything."""


def entered_collectives(
    calls: Mapping[int, Sequence[LastCall]], began: int, ended: int
) -> tuple[EnteredCollective, ...]:
    """Return the last collectives that began between two times, in nanoseconds on the clock of the calls."""
    found: dict[tuple[str, int, str], dict[int, float]] = {}
    for rank in sorted(calls)[:MAX_RANKS]:
        for call in calls[rank]:
            if call.kind not in MESSAGES and began <= call.at <= ended and 0 <= call.number <= _MAX_NUMBER:
                key = (call.group[:_NAME_LENGTH], call.number, call.kind[:_NAME_LENGTH])
                found.setdefault(key, {})[rank] = round((call.at - began) / 1e9, 6)
    last = sorted(found.items(), key=lambda item: max(item[1].values()))[-MAX_COLLECTIVES:]
    return tuple(
        EnteredCollective(group=group, number=number, kind=kind, ranks=tuple(seconds), seconds=tuple(seconds.values()))
        for (group, number, kind), seconds in last
    )


def timeline_record(step: Step, nodeid: str, outputs: Mapping[int, Output]) -> FailureCourse | None:
    """Return the timeline of a failed test; None if there are no collectives and no output of a passing rank."""
    if not (step.nodeid and step.has_failed):
        return None
    others = {outcome.rank for outcome in step.outcomes if outcome.outcome is not Outcome.PASSED}
    passed = next((rank for rank, own in sorted(outputs.items()) if rank not in others and own != Output()), None)
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


def outcome_records(
    step: Step, nodeid: str, world_size: int, outputs: Mapping[int, Output]
) -> list[Passed | RankEnded]:
    """Convert a step of a test into records, with the output of each rank.

    Ranks that passed share one record, which comes first, so that it has arrived before any failure is shown. The
    others follow in the order of their times.
    """
    outcomes = [_as_sandcastle_skip(outcome, outputs.get(outcome.rank, Output()).stderr) for outcome in step.outcomes]
    final = {outcome.rank: outcome for outcome in outcomes}.values()
    passed = [outcome for outcome in final if outcome.outcome is Outcome.PASSED]
    others = [
        _rank_ended(outcome, step, nodeid, world_size, outputs.get(outcome.rank, Output()))
        for outcome in final
        if outcome.outcome is not Outcome.PASSED
    ]
    return [_passed(passed, step, nodeid, world_size), *others] if passed else [*others]


def _passed(outcomes: Sequence[StepOutcome], step: Step, nodeid: str, world_size: int) -> Passed:
    durations = [sum(phase.duration for phase in step.phases.get(outcome.rank, ())) for outcome in outcomes]
    return Passed(
        nodeid=nodeid,
        ranks=tuple(outcome.rank for outcome in outcomes),
        arrived=tuple(round(outcome.at, 6) for outcome in outcomes),
        seconds=tuple(round(duration, 6) for duration in durations),
        world_size=world_size,
    )


def _rank_ended(outcome: StepOutcome, step: Step, nodeid: str, world_size: int, output: Output) -> RankEnded:
    """Return one rank's record: its phases decide, unless the supervisor observed the outcome and no phase failed."""
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
        message="; ".join(filter(None, parts if outcome.addition_first else reversed(parts))),
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


def _printed(output: str, phases: Sequence[Phase], name: str) -> str:
    """Return a rank's output or, without any, the output that a plugin added to a phase, the last one first."""
    sources = (output, *(getattr(phase, name) for phase in reversed(phases)))
    return shorten(next(filter(None, sources), ""))


def failed_start(start: Step, first: StepOutcome) -> Step:
    """Return a failed start as the next test's outcome: the first rank that did not join aborts those that did."""
    return replace(start, outcomes=[_aborted_at_start(outcome, first) for outcome in start.outcomes])


def _aborted_at_start(outcome: StepOutcome, first: StepOutcome) -> StepOutcome:
    if outcome.outcome is not Outcome.PASSED:
        return outcome
    why = "skipped" if first.outcome is Outcome.SKIPPED else "did not join the process group"
    message = f"aborted by rank {first.rank}, which {why}"
    return replace(_caused_by(first, outcome), outcome=Outcome.ABORTED, message=message, observed=True)


def _as_sandcastle_skip(outcome: StepOutcome, stderr: str) -> StepOutcome:
    """Return a skip for a rank that passed, but printed torch's sandcastle skip on standard error."""
    reason = sandcastle_reason(stderr) if stderr and outcome.outcome is Outcome.PASSED else None
    if reason is None:
        return outcome
    return replace(
        outcome, outcome=Outcome.SKIPPED, message=reason, text=reason, skip_kind=SkipKind.ENVIRONMENT, observed=True
    )
