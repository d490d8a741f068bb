"""Derives the outcomes of multi-process tests from their ranks and the launching process."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from allranks.agent.channel import HiddenError, LaunchedEnd, Released, RepeatsRanks, SharesOutcome
from allranks.agent.diagnose.step_outcome import LauncherMessage, Step, StepOutcome, outcome_records
from allranks.agent.gangs.gang import Gang
from allranks.agent.output import Output
from allranks.agent.program import LAUNCHER_RANK
from allranks.agent.record_stream import Journal
from allranks.protocol.config import AgentConfig
from allranks.protocol.outcomes import Outcome, Phase, disagree, may_disagree
from allranks.protocol.records import Passed, PhaseEnd, RankEnded

_LAUNCHER = "the launching process"
_MAY_BE_EXPECTED = frozenset({Outcome.PASSED, Outcome.FAILED, Outcome.ABORTED, Outcome.XFAILED})
_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
_NO_RANKS = Phase.of_error(
    "call", f"{_LAUNCHER} did not wait for the ranks of this test: call setUp of the base class and _spawn_processes"
)


_ABORT_MESSAGE = f"aborted by {_LAUNCHER}, which did not end the test"
_ABORTED = Phase.of_error("", _ABORT_MESSAGE, _ABORT_MESSAGE, Outcome.ABORTED)


@dataclass(frozen=True, kw_only=True)
class _LauncherReports:
    """What a launcher has reported on one test in one step."""

    world_size: int | None  # the number of ranks that ran the test; None if it started none
    ends: tuple[Passed | RankEnded, ...]
    own: tuple[Phase, ...]  # the launching process's own phases, and its errors that pytest hides
    shares_outcome: bool  # the ranks are threads of the launching process, which has one outcome for all
    expected: Phase | None  # the launching process's own phase, if the test is marked to fail

    @classmethod
    def of(cls, step: Step, nodeid: str) -> "_LauncherReports":
        """Read a step; outcomes under another node id are ignored."""
        messages, phases = step.launcher_messages, step.phases.get(LAUNCHER_RANK, ())
        repeated = {message.when for message in messages if isinstance(message, RepeatsRanks)}
        hidden = [message.phase for message in messages if isinstance(message, HiddenError)]
        world_size, ends = _deciding_launch(messages, nodeid)
        marked = (Outcome.XFAILED, Outcome.XPASSED)
        return cls(
            world_size=world_size,
            ends=tuple(ends),
            own=(*(phase for phase in phases if phase.when not in repeated), *hidden),
            shares_outcome=any(isinstance(message, SharesOutcome) for message in messages),
            expected=next((phase for phase in phases if phase.outcome in marked), None),
        )

    @property
    def failure(self) -> Phase | None:
        """The first failed phase of the launching process itself."""
        return next((phase for phase in self.own if phase.outcome.is_bad), None)

    @property
    def default_outcome(self) -> Phase:
        """The launching process's outcome, for ranks without one; a pass counts only if it started no ranks."""
        notable = next((phase for phase in self.own if phase.outcome is not Outcome.PASSED), None)
        calls = (phase for phase in self.own if phase.when == "call" and self.world_size is None)
        return self.failure or notable or next(calls, _NO_RANKS)

    @property
    def interpreted_ends(self) -> tuple[Passed | RankEnded, ...]:
        """The outcomes of the ranks; for an xfail test, those that pytest derives from them."""
        if self.expected is None or not all(end.outcome in _MAY_BE_EXPECTED for end in self.ends):
            return self.ends
        # If no rank failed, the expected failure is that of the launching process itself.
        has_passed = all(end.outcome is Outcome.PASSED for end in self.ends)
        passed = self.expected if has_passed else replace(self.expected, outcome=Outcome.XPASSED, message="", text="")
        return tuple(own for end in self.ends for own in _as_expected(end, passed))


def _deciding_launch(
    messages: Sequence[LauncherMessage], nodeid: str
) -> tuple[int | None, Sequence[Passed | RankEnded]]:
    """Return the world size and outcomes of the first launch in which a rank failed, or else of the last one."""
    launches: list[tuple[int | None, list[Passed | RankEnded]]] = [(None, [])]
    for message in messages:
        if isinstance(message, Released):
            launches.append((message.world_size, []))
        elif isinstance(message, LaunchedEnd) and message.end.nodeid == nodeid:
            launches[-1][1].append(message.end)
    failed = (launch for launch in launches if any(end.outcome.is_bad for end in launch[1]))
    return next(failed, launches[-1])


def _as_expected(end: Passed | RankEnded, passed: Phase) -> Sequence[RankEnded]:
    """Convert outcomes of ranks for a test that is marked to fail; a pass becomes the phase `passed`."""
    if isinstance(end, RankEnded):
        return [replace(end, outcome=Outcome.XFAILED, consequence=False, text=end.text or end.message)]
    return [
        RankEnded(
            nodeid=end.nodeid,
            rank=rank,
            outcome=passed.outcome,
            world_size=end.world_size,
            arrived=arrived,
            phases=(PhaseEnd(when="call", outcome=passed.outcome, seconds=seconds),),
            phase="call",
            message=passed.message,
            text=passed.text,
        )
        for rank, arrived, seconds in zip(end.ranks, end.arrived, end.seconds, strict=True)
    ]


class LauncherOutcomes:
    """Records the outcomes of the tests of one launcher.

    The pytest item of the launching process decides; if it ignored a failed rank, the test fails as well. Ranks that
    have finished the test keep their outcomes. An error of the item itself goes to rank 0, and aborts the ranks that
    have not finished; without such an error, these get the item's outcome. If the test started no ranks, the cell's
    ranks get it.
    """

    def __init__(self, journal: Journal, config: AgentConfig) -> None:
        self._journal = journal
        self._world_size = config.world_size
        self._mixed_skip = config.mixed_skip
        self._pending: dict[str, set[int]] = {}
        self._sizes: dict[str, int] = {}
        self.found_port_in_use = False  # whether an error of the last step says so

    def record(self, gang: Gang, nodeid: str, step: Step) -> bool:
        """Record a launcher's step for a test; one that only tore down adds no outcomes.

        Returns:
            Whether the test has failed.
        """
        output = gang.take_output(nodeid).get(LAUNCHER_RANK, Output())
        reports = _LauncherReports.of(step, nodeid)
        ends = reports.interpreted_ends
        for end in ends:
            self._journal.write(end)
        lost = next((outcome for outcome in step.outcomes if outcome.observed), None)
        own = reports.failure or (None if lost is None else _as_phase(lost))
        pending = sorted(self._take_pending(nodeid, reports))
        at = max((outcome.at for outcome in step.outcomes), default=0.0)
        has_failed_rank = any(end.outcome.is_bad and not getattr(end, "consequence", False) for end in ends)
        if own is not None and not reports.shares_outcome:
            failed = StepOutcome(rank=0, outcome=own.outcome, at=at, consequence=has_failed_rank)
            self._write(nodeid, failed, _named(own), output)
            for rank in filter(None, pending):
                aborted = StepOutcome(rank=rank, outcome=Outcome.ABORTED, at=at, caused_by=0, consequence=True)
                self._write(nodeid, aborted, _ABORTED, Output())
        elif step.outcomes and pending:
            own = own or reports.default_outcome
            for rank in pending:
                outcome = StepOutcome(rank=rank, outcome=own.outcome, at=at)
                self._write(nodeid, outcome, _named(own), output)
        texts = [own.text if own else "", *(getattr(end, "text", "") for end in ends)]
        self.found_port_in_use = any(map(_PORT_IN_USE.search, texts))
        disagreement = disagree({end.outcome for end in ends}) and not may_disagree(nodeid, self._mixed_skip)
        return has_failed_rank or disagreement or (own is not None and own.outcome.is_bad)

    def _take_pending(self, nodeid: str, reports: _LauncherReports) -> set[int]:
        """Return the ranks that have not ended a test, and mark all of them as ended."""
        size = self._sizes.setdefault(nodeid, reports.world_size or self._world_size)
        pending = self._pending.pop(nodeid, set(range(size)))
        self._pending[nodeid] = set()
        for end in reports.ends:
            pending.difference_update(end.ranks if isinstance(end, Passed) else (end.rank,))
        return pending

    def _write(self, nodeid: str, outcome: StepOutcome, phase: Phase, output: Output) -> None:
        step = Step(nodeid=nodeid, outcomes=[outcome], phases={outcome.rank: [phase]})
        outputs = {outcome.rank: output} if outcome.outcome.is_bad else {}
        for record in outcome_records(step, nodeid, self._sizes[nodeid], outputs):
            self._journal.write(record)


def _as_phase(lost: StepOutcome) -> Phase:
    """Return how the launching process ended, if it could no longer report."""
    how = "timed out: " if lost.outcome is Outcome.TIMED_OUT else ""
    message = f"{_LAUNCHER} {how}{lost.message.removeprefix(f'rank {lost.rank} ')}"
    return Phase.of_error("call", message, lost.text, lost.outcome)


def _named(phase: Phase) -> Phase:
    """Name the launching process in the message of a failed phase."""
    if not phase.outcome.is_bad or phase.message.startswith(_LAUNCHER):
        return phase
    return replace(phase, message=f"{_LAUNCHER}: {phase.message}")
