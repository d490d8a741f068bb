"""The outcome of a test on each rank, as records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from allranks.agent.diagnose.step_outcome import Step, StepOutcome
from allranks.agent.output import Output
from allranks.agent.program import Program
from allranks.agent.record_stream import Journal
from allranks.agent.stacks import with_source
from allranks.protocol.outcomes import Outcome, Phase, SkipKind, overall, shorten
from allranks.protocol.records import Passed, PhaseEnd, RankEnded, Record
from allranks.protocol.skip_codes import sandcastle_reason


class WithCommands:
    """A journal in which each failure of a script's test ends with the command that runs it without allranks.

    Args:
        journal: Takes the records.
        program: The tests.
    """

    def __init__(self, journal: Journal, program: Program) -> None:
        self._journal = journal
        self._scripts = {test for test, options in zip(program.tests, program.terms, strict=False) if options.is_script}

    def write(self, record: Record) -> None:
        """See :class:`allranks.agent.record_stream.Journal`."""
        if isinstance(record, RankEnded) and record.outcome.is_bad and not record.consequence:
            record = replace(record, text=self._with_command(record))
        self._journal.write(record)

    def _with_command(self, ended: RankEnded) -> str:
        if ended.nodeid not in self._scripts:
            return ended.text
        file, *names = ended.nodeid.split("::")
        return f"{ended.text}\n\nWithout allranks: python {file} {'.'.join(names)}".lstrip("\n")


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
