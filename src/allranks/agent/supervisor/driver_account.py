"""The outcome of a driver's test: its ranks' outcomes, and the launching process's own."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from allranks.agent.channel import HiddenError, LaunchedEnd, Released, RepeatsRanks, SharesOutcome
from allranks.agent.diagnose.step_outcome import DriverMessage, Step, StepOutcome
from allranks.agent.gangs.gang import Gang
from allranks.agent.output import Output
from allranks.agent.program import DRIVER
from allranks.agent.record_stream import Journal
from allranks.protocol.config import AgentConfig
from allranks.protocol.outcomes import Outcome, Phase, disagree, may_disagree, shorten
from allranks.protocol.records import Passed, PhaseEnd, RankEnded

_WHO = "the launching process"
_MAY_BE_EXPECTED = frozenset({Outcome.PASSED, Outcome.FAILED, Outcome.ABORTED, Outcome.XFAILED})


@dataclass(frozen=True, kw_only=True)
class _DriverReports:
    """What the driver has reported on one test in one step."""

    world_size: int | None  # the number of ranks that got the test; None if none did
    ends: tuple[Passed | RankEnded, ...]
    own: tuple[Phase, ...]  # the launching process's own phases, and its errors that pytest hides
    shares_outcome: bool  # the ranks are threads of the launching process, which has one outcome for all
    expected: Phase | None  # the launching process's own phase, if the test is marked to fail

    @classmethod
    def of(cls, step: Step, nodeid: str) -> "_DriverReports":
        """Read a step; outcomes under another node id are ignored."""
        told, phases = step.driver, step.phases.get(DRIVER, ())
        repeated = {each.when for each in told if isinstance(each, RepeatsRanks)}
        hidden = [each.phase for each in told if isinstance(each, HiddenError)]
        world_size, ends = _launch_that_counts(told, nodeid)
        marked = (Outcome.XFAILED, Outcome.XPASSED)
        return cls(
            world_size=world_size,
            ends=tuple(ends),
            own=(*(phase for phase in phases if phase.when not in repeated), *hidden),
            shares_outcome=any(isinstance(each, SharesOutcome) for each in told),
            expected=next((phase for phase in phases if phase.outcome in marked), None),
        )

    @property
    def trouble(self) -> Phase | None:
        """The first bad phase of the launching process itself."""
        return next((phase for phase in self.own if phase.outcome.is_bad), None)

    @property
    def without_ranks(self) -> Phase:
        """The outcome for ranks without one: the launching process's; its pass counts only if it started no ranks."""
        notable = next((phase for phase in self.own if phase.outcome is not Outcome.PASSED), None)
        calls = (phase for phase in self.own if phase.when == "call" and self.world_size is None)
        return self.trouble or notable or next(calls, _NO_RANKS)

    @property
    def settled(self) -> tuple[Passed | RankEnded, ...]:
        """The outcomes of the ranks; if the test is marked to fail, as pytest interprets that mark."""
        if self.expected is None or not all(end.outcome in _MAY_BE_EXPECTED for end in self.ends):
            return self.ends
        # If no rank was bad, the expected outcome is that of the launching process itself.
        is_its_own = all(end.outcome is Outcome.PASSED for end in self.ends)
        passed = self.expected if is_its_own else replace(self.expected, outcome=Outcome.XPASSED, message="", text="")
        return tuple(each for end in self.ends for each in _as_expected(end, passed))


def _launch_that_counts(told: Sequence[DriverMessage], nodeid: str) -> tuple[int | None, Sequence[Passed | RankEnded]]:
    """The size and outcomes of the ranks that a test started last, or of earlier ones if one of those was bad."""
    launches: list[tuple[int | None, list[Passed | RankEnded]]] = [(None, [])]
    for each in told:
        if isinstance(each, Released):
            launches.append((each.world_size, []))
        elif isinstance(each, LaunchedEnd) and each.end.nodeid == nodeid:
            launches[-1][1].append(each.end)
    return next((each for each in launches if any(end.outcome.is_bad for end in each[1])), launches[-1])


def _ranks(end: Passed | RankEnded) -> tuple[int, ...]:
    return end.ranks if isinstance(end, Passed) else (end.rank,)


def _as_expected(end: Passed | RankEnded, passed: Phase) -> Sequence[RankEnded]:
    """Convert outcomes of ranks for a test that is marked to fail; this phase replaces a pass."""
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


class DriverAccount:
    """Accounts for the outcomes of one driver's tests.

    The pytest item of the launching process decides a test, which fails as well if the item ignored a bad rank. Ranks
    that ended the test keep their outcomes. An error of the item itself goes to rank 0, and aborts the ranks that have
    not ended the test; without such an error, they get the item's outcome. If it started none, the cell's ranks do.
    """

    def __init__(self, journal: Journal, config: AgentConfig) -> None:
        self._journal = journal
        self._world_size = config.world_size
        self._mixed_skip = config.mixed_skip
        self._open: dict[str, set[int]] = {}
        self._sizes: dict[str, int] = {}
        self.found_port_in_use = False  # whether the last step failed because of that

    def settle(self, gang: Gang, nodeid: str, step: Step) -> bool:
        """Report one step of the driver under a test, empty if it only tore down; returns whether the test is bad."""
        output = gang.take_output(nodeid).get(DRIVER, Output())
        reports = _DriverReports.of(step, nodeid)
        ends = reports.settled
        for end in ends:
            self._journal.write(end)
        lost = next((each for each in step.outcomes if each.observed), None)
        own = reports.trouble or (None if lost is None else _as_phase(lost))
        left = sorted(self._close(nodeid, reports))
        at = max((each.at for each in step.outcomes), default=0.0)
        bad_rank = any(end.outcome.is_bad and not getattr(end, "consequence", False) for end in ends)
        if own is not None and not reports.shares_outcome:
            self._report(nodeid, 0, at, _named(own, output), is_consequence=bad_rank)
            for rank in left:
                if rank != 0:
                    self._abort(nodeid, rank, at)
        elif step.outcomes and left:
            own = own or reports.without_ranks
            for rank in left:
                self._report(nodeid, rank, at, _named(own, output), is_consequence=False)
        texts = [own.text if own else "", *(getattr(end, "text", "") for end in ends)]
        self.found_port_in_use = any(map(_PORT_IN_USE.search, texts))
        disagreement = disagree({end.outcome for end in ends}) and not may_disagree(nodeid, self._mixed_skip)
        return bad_rank or disagreement or (own is not None and own.outcome.is_bad)

    def _close(self, nodeid: str, reports: _DriverReports) -> AbstractSet[int]:
        """Return the ranks that have not ended a test, and mark all of them as ended."""
        size = self._sizes.setdefault(nodeid, reports.world_size or self._world_size)
        ranks = self._open.pop(nodeid, set(range(size)))
        self._open[nodeid] = set()
        return ranks - {rank for end in reports.ends for rank in _ranks(end)}

    def _abort(self, nodeid: str, rank: int, at: float) -> None:
        message = f"aborted by {_WHO}, which did not end the test"
        aborted = Phase(when="", outcome=Outcome.ABORTED, duration=0.0, message=message, text=message)
        self._report(nodeid, rank, at, (aborted, Output()), is_consequence=True, caused_by=0)

    def _report(  # noqa: PLR0913 - all of it goes into one record
        self,
        nodeid: str,
        rank: int,
        at: float,
        result: tuple[Phase, Output],
        *,
        is_consequence: bool,
        caused_by: int | None = None,
    ) -> None:
        phase, output = result
        size = self._sizes[nodeid]
        if phase.outcome is Outcome.PASSED:
            arrived, seconds = (round(at, 6),), (round(phase.duration, 6),)
            self._journal.write(Passed(nodeid=nodeid, ranks=(rank,), arrived=arrived, seconds=seconds, world_size=size))
            return
        self._journal.write(
            RankEnded(
                nodeid=nodeid,
                rank=rank,
                outcome=phase.outcome,
                world_size=size,
                arrived=round(at, 6),
                phases=(PhaseEnd(when=phase.when, outcome=phase.outcome, seconds=round(phase.duration, 6)),),
                phase=phase.when,
                message=phase.message,
                text=phase.text,
                stdout=shorten(output.stdout),
                stderr=shorten(output.stderr),
                caused_by=caused_by,
                consequence=is_consequence,
                skip_kind=phase.skip_kind,
                skip_code=phase.skip_code,
                gpus_needed=phase.gpus_needed,
            )
        )


_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)

_NO_RANKS = Phase(
    when="call",
    outcome=Outcome.ERRORED,
    duration=0.0,
    message=f"{_WHO} did not wait for the ranks of this test: call setUp of the base class and _spawn_processes",
)


def _as_phase(lost: StepOutcome) -> Phase:
    """How the launching process ended, if it could no longer report."""
    how = "timed out: " if lost.outcome is Outcome.TIMED_OUT else ""
    message = f"{_WHO} {how}{lost.message.removeprefix(f'rank {lost.rank} ')}"
    return Phase(when="call", outcome=lost.outcome, duration=0.0, message=message, text=lost.text)


def _named(phase: Phase, output: Output) -> tuple[Phase, Output]:
    """A bad phase with the launching process named in its message, and the output of that process."""
    if not phase.outcome.is_bad:
        return phase, Output()
    message = phase.message if phase.message.startswith(_WHO) else f"{_WHO}: {phase.message}"
    return replace(phase, message=message), output
