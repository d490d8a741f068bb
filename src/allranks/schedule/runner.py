"""Runs jobs one at a time, the next one already started: its agent imports torch and collects meanwhile."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path

from allranks.engine.protocol import Engine, JobExit, RunningJob
from allranks.engine.spec import JobSpec
from allranks.errors import AllranksError
from allranks.harness.events import JOURNAL, Event, append_events, read_events
from allranks.harness.rank_xml import ranks_with_events, write_rank_xml
from allranks.interruption import uninterrupted
from allranks.matrix.model import Job, Matrix
from allranks.schedule import journal
from allranks.schedule.cache import carried_files, keep_cache, keep_cache_of_shard
from allranks.schedule.folder import SCHEMA, RunFolder, as_results_error, write_json
from allranks.schedule.gpus import Lease, try_lease, wait_for_lease
from allranks.schedule.journal import JobError
from allranks.schedule.live import LiveView
from allranks.schedule.request import Attempt, Surroundings, job_spec
from allranks.schedule.snapshot import cache_to_start_with

_NOBODY_KNOWS = JobExit(status=None)
_INTERRUPTED = JobError(kind="interrupted", what="The run was interrupted.")


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run are run.

    Attributes:
        gpus: UUIDs of the GPUs that jobs may lease.
        surroundings: Where each job's Python comes from, made on first use.
    """

    engine: Engine
    gpus: tuple[str, ...]
    surroundings: Callable[[Job], Surroundings]


@dataclass(kw_only=True)
class Turn:
    """One attempt, from its start to its record.

    Attributes:
        started: When it got its turn, in seconds since the epoch.
        stack: Ends the job and its lease.
        running: None when the job could not be started.
    """

    job: Job
    number: int
    folder: Path
    lease: Lease
    stack: ExitStack
    spec: JobSpec | None = None
    running: RunningJob | None = None
    error: JobError | None = None
    ending: JobExit = _NOBODY_KNOWS
    events: list[Event] = field(default_factory=list)
    started: float = 0.0


class Runner:
    """Runs jobs, and leaves a record of each in the run's folder.

    Args:
        matrix: The matrix that the jobs come from.
        host: Where to run them.
        folder: Where results go.
        live: Who is told.
        pytest_args: Arguments of this run for pytest.
    """

    def __init__(
        self, matrix: Matrix, host: Host, folder: RunFolder, live: LiveView, pytest_args: tuple[str, ...]
    ) -> None:
        self._matrix = matrix
        self._host = host
        self._folder = folder
        self._live = live
        self._pytest_args = pytest_args

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs, in order.

        Raises:
            KeyboardInterrupt: The user wants the run to end; the job that was running has its record.
            ResultsError: Nothing can be written any more.
        """
        with ExitStack() as stack:
            ahead: Turn | None = None
            for job, following in zip_longest(jobs, jobs[1:]):
                current = ahead
                if current is None:
                    current = self._start(job, stack)
                    self._go(current)
                ahead = self._see_through(current, following, stack)

    def _see_through(self, current: Turn, following: Job | None, stack: ExitStack) -> Turn | None:
        """Start the next job, wait for the current one, let the next one go, and only then put the current one away.

        Returns:
            The next turn, gone already; None where there is none, or where it needs the current one's GPUs or
            another image.
        """
        ahead = None
        try:
            # Making another image can take minutes, in which nobody would listen to the current job.
            if following is not None and following.image == current.job.image:
                ahead = self._start_ahead(following, stack)
            self._wait(current)
        except KeyboardInterrupt:
            current.error = _INTERRUPTED
            if current.running is not None:
                current.running.stop()
            self._finish(current)
            raise
        with uninterrupted():
            if ahead is not None:
                self._go(ahead)
            self._finish(current)
        return ahead

    def _start_ahead(self, job: Job, stack: ExitStack) -> Turn | None:
        """Start a job while another one runs, unless it has to wait for that one's GPUs."""
        lease = try_lease(self._host.gpus, self._gpus_of(job))
        return None if lease is None else self._start_with(job, lease, stack)

    def _start(self, job: Job, stack: ExitStack) -> Turn:
        lease = wait_for_lease(self._host.gpus, self._gpus_of(job), self._live.say)
        if lease.gpus:
            # Its last owner may have been killed, and its container not be gone yet.
            self._host.engine.reap()
        return self._start_with(job, lease, stack)

    def _gpus_of(self, job: Job) -> int:
        """How many GPUs a job leases: none where the host lacks them, since all its tests will be skipped."""
        return job.cell.gpu_count if job.cell.gpu_count <= len(self._host.gpus) else 0

    def _start_with(self, job: Job, lease: Lease, outer: ExitStack) -> Turn:
        stack = outer.enter_context(ExitStack())
        stack.enter_context(lease)
        number, folder = self._folder.new_attempt(job)
        stack.callback(_remove_if_empty, folder)
        turn = Turn(job=job, number=number, folder=folder, lease=lease, stack=stack, started=time.time())
        try:
            turn.spec = self._spec(turn)
            turn.running = stack.enter_context(self._host.engine.start(turn.spec, lease.descriptors))
        except AllranksError as error:
            turn.error = JobError.from_exception(error)
        return turn

    def _spec(self, turn: Turn) -> JobSpec:
        attempt = Attempt(
            run_id=self._folder.run_id,
            number=turn.number,
            seed=self._folder.seed,
            gpus=turn.lease.gpus,
            pytest_args=self._pytest_args,
            carried=tuple(carried_files(cache_to_start_with(self._folder, turn.job, turn.number))),
            seconds=self._folder.seconds_of(turn.job),
        )
        return job_spec(self._matrix, turn.job, self._host.surroundings(turn.job), attempt)

    def _go(self, turn: Turn) -> None:
        if turn.running is not None and turn.spec is not None:
            self._live.job_started(turn.job.id, _place(turn.spec))
            turn.started = time.time()
            turn.running.go()

    def _wait(self, turn: Turn) -> None:
        def take(event: Event) -> None:
            if event["event"] != "output":
                turn.events.append(event)
            self._live.event(turn.job.id, event)

        if turn.running is None:
            return
        try:
            turn.ending = turn.running.wait(take)
        except AllranksError as error:
            turn.error = JobError.from_exception(error)
        except Exception as error:  # noqa: BLE001 - a job's words are not ours: they may end that job, never the run
            turn.error = _not_understood(error)
            turn.running.stop()

    def _finish(self, turn: Turn) -> None:
        """Bring the results home, write the record, and remove the job."""
        if turn.running is not None:
            self._collect(turn, turn.running)
        with as_results_error(turn.folder):
            _complete_results(turn)
            turn.events = _whole_journal(turn)
            self._keep_cache(turn)
            try:
                record = _record(turn, self._host.engine.name)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                turn.error, turn.events = _not_understood(error), []
                record = _record(turn, self._host.engine.name)
            write_json(turn.folder / "job.json", record)
        turn.stack.close()
        self._live.job_ended(turn.job.id, turn.events, time.time() - turn.started, turn.error)

    def _keep_cache(self, turn: Turn) -> None:
        cache = self._folder.cache_of(turn.job)
        if turn.job.shard:
            began_with = self._folder.cache_for(turn.job, turn.number)
            keep_cache_of_shard(turn.folder, cache, began_with, _own_tests(turn.events))
        else:
            keep_cache(turn.folder, cache)

    def _collect(self, turn: Turn, running: RunningJob) -> None:
        try:
            running.collect(turn.folder)
        except AllranksError as error:
            turn.error = turn.error or JobError.from_exception(error)


def _place(spec: JobSpec) -> str:
    """Where a job runs, in words."""
    where = spec.image or f"processes of {spec.python}"
    return where if spec.agent.nodes == 1 else f"{spec.agent.nodes} nodes of {where}"


def _remove_if_empty(folder: Path) -> None:
    """Forget an attempt that never came to anything: its job counts as not started."""
    with suppress(OSError):
        folder.rmdir()


def _complete_results(turn: Turn) -> None:
    """Write what a dead agent could not: its journal, as far as it was heard, and the ranks' XML."""
    if turn.events and not (turn.folder / JOURNAL).exists():
        append_events(turn.folder / JOURNAL, turn.events)
    cell = turn.job.cell
    for rank in ranks_with_events(turn.folder):
        if not (turn.folder / f"rank-{rank}.xml").exists():
            write_rank_xml(turn.folder, rank, cell=cell.id, suite=turn.job.name, world_size=cell.world_size)


def _whole_journal(turn: Turn) -> list[Event]:
    """The file is the truth: what came while the job was being stopped is only there. A full disk is told only here."""
    kept = read_events(turn.folder / JOURNAL) or turn.events
    heard = journal.find(turn.events, "agent_failed")
    return kept if heard is None or journal.find(kept, "agent_failed") else [*kept, heard]


def _not_understood(error: Exception) -> JobError:
    what = f"What the job said cannot be understood: {type(error).__name__}: {error}"
    return JobError(kind="agent", what=what, remedy="See events-agent.jsonl in the job's results folder.")


def _record(turn: Turn, engine: str) -> dict[str, object]:
    """What job.json says; a job that ran and has no error yet is judged by its events first."""
    if turn.running is not None:
        turn.error = turn.error or journal.job_error(turn.events, turn.ending)
    collected, deselected = journal.collected(turn.events)
    return {
        "schema": SCHEMA,
        "id": turn.job.id,
        "cell": turn.job.cell.id,
        "suite": turn.job.name,
        "attempt": turn.number,
        "engine": engine,
        "spec": turn.spec.to_json() if turn.spec else None,
        "gpus": list(turn.lease.gpus),
        "world_size": turn.job.cell.world_size,
        "nodes": turn.job.cell.nodes,
        "exit_status": turn.ending.status,
        "error": asdict(turn.error) if turn.error else None,
        "started": turn.started,
        "finished": time.time(),
        "collected": collected,
        "deselected": deselected,
        **journal.not_run(turn.events),
        "notes": journal.notes(turn.events),
        **_share(turn),
    }


def _own_tests(events: Sequence[Event]) -> frozenset[str]:
    """The tests that a job has collected; none where its words cannot be understood, which its record will say."""
    try:
        return frozenset(journal.collected(events)[0] or ())
    except (LookupError, TypeError, ValueError):
        return frozenset()


def _share(turn: Turn) -> dict[str, object]:
    """Of a shard: which one it is, and how its agent split the suite."""
    if turn.job.shard is None:
        return {}
    return {"share": {"suite": turn.job.suite.name, **asdict(turn.job.shard), **journal.shared(turn.events)}}
