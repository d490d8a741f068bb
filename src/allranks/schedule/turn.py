"""One attempt at a job, from its start to its record: what a thread of its own does."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from allranks.engine.protocol import Engine, JobExit, RunningJob
from allranks.engine.spec import JobSpec
from allranks.engine.stream import Damage
from allranks.errors import AllranksError
from allranks.matrix.model import Job
from allranks.records import JOURNAL, SCHEMA, JobStarted, Printed, Record
from allranks.report.judged import Share
from allranks.report.rank_document import write_rank_files
from allranks.report.run_files import JobError, JobRecord, as_json
from allranks.report.verdict import Setting
from allranks.schedule.again import WHOLE, Again, newest_attempt, to_run_again
from allranks.schedule.cache import keep_cache, keep_cache_of_shard
from allranks.schedule.folder import RunFolder, as_results_error, write_json
from allranks.schedule.job_facts import JobFacts
from allranks.schedule.journal import Journal
from allranks.schedule.leases import Lease
from allranks.schedule.ledger import MOST_BYTES, ContradictionError, Ledger
from allranks.schedule.live import LiveView

_NOBODY_KNOWS = JobExit(status=None)
INTERRUPTED = JobError(kind="interrupted", what="The run was interrupted.")


@dataclass(kw_only=True, eq=False)
class Turn:
    """One attempt at a job.

    Attributes:
        folder: Where its results go.
        again: What of the job it runs.
        spec: None where it could not be made, which `error` says.
        lease: Its GPUs, until it has been put away.
        facts: What the job has reported about itself.
        fault: Why no more of what it reports is taken.
        started: When it got its turn, in seconds since the epoch.
        running: None when the job has not been started, or could not be.
        rank_files: Digests of its rank XML.
        has_record: Whether it came to anything that has been written down.
        left: When it has been put away, what would have to run again; None where all is well.
    """

    run_id: str
    job: Job
    number: int
    folder: Path
    lease: Lease
    again: Again = WHOLE
    spec: JobSpec | None = None
    error: JobError | None = None
    running: RunningJob | None = None
    ending: JobExit = _NOBODY_KNOWS
    facts: JobFacts = field(default_factory=JobFacts)
    fault: JobError | None = None
    started: float = field(default_factory=time.time)
    left: Again | None = None
    rank_files: Mapping[str, str] = field(default_factory=dict)
    has_record: bool = False
    _may_go: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _end: JobError | None = None

    def let_go(self) -> None:
        """Give it its turn; from any thread."""
        self._may_go.set()

    def interrupt(self, why: JobError = INTERRUPTED) -> None:
        """Have it end now, wherever it is; from any thread."""
        with self._lock:
            self._end = why
            if self.running is not None:
                self.running.hang_up()
        self._may_go.set()

    def break_off(self, why: JobError) -> None:
        """Take no more of what the job reports, and have it end; what it has reported stands."""
        with self._lock:
            self.fault = why
            if self.running is not None:
                self.running.hang_up()

    def begin(self, running: RunningJob) -> None:
        """Note that the job has been started."""
        with self._lock:
            self.running = running
            if self._end:
                running.hang_up()

    def go(self) -> None:
        """Let the started job begin, unless it is to end: whoever ends it may do so at this moment."""
        with self._lock:
            if self.running is not None and not self._end:
                self.running.go()

    def forget(self) -> None:
        """Note that the job is being removed: whoever interrupts must not touch it any more."""
        with self._lock:
            self.running = None

    def wait_for_turn(self) -> bool:
        """Wait until it may go; False where it is to end instead."""
        self._may_go.wait()
        return not self._end

    @property
    def end(self) -> JobError | None:
        """Why it was told to end; None where nobody did."""
        return self._end


class Attendant:
    """Sees turns through.

    Args:
        engine: Where the jobs run.
        folder: The run's.
        live: Who is told.
        judges: How results are judged, where something depends on them before the run is over; else None.
    """

    def __init__(self, engine: Engine, folder: RunFolder, live: LiveView, judges: Setting | None = None) -> None:
        self._engine = engine
        self._folder = folder
        self._live = live
        self._judges = judges
        self._caches = threading.Lock()

    def see_through(self, turn: Turn, has_ended: Callable[[], None]) -> None:
        """Start a job, let it go when it may, wait for it, and put it away with its record.

        Args:
            turn: The attempt; whatever happens, its lease has ended afterwards.
            has_ended: Called when the job needs no more cores: putting it away takes a while.

        Raises:
            ResultsError: Nothing can be written any more.
        """
        with ExitStack() as stack:
            stack.enter_context(turn.lease)
            stack.callback(remove_if_empty, turn.folder)
            self._start(turn, stack)
            if not turn.wait_for_turn():
                return
            self._go(turn)
            self._wait(turn)
            has_ended()
            self._put_away(turn)
        self._live.job_ended(turn.job.id, turn.facts.tests, time.time() - turn.started, turn.error)

    def _start(self, turn: Turn, stack: ExitStack) -> None:
        if turn.spec is None:
            return
        try:
            turn.begin(stack.enter_context(self._engine.start(turn.spec, turn.lease.descriptors)))
            stack.callback(turn.forget)
        except AllranksError as error:
            turn.error = JobError.from_exception(error)

    def _go(self, turn: Turn) -> None:
        if turn.running is not None and turn.spec is not None:
            self._live.job_started(turn.job.id, _place(turn.spec))
            turn.started = time.time()
            turn.go()

    def _wait(self, turn: Turn) -> None:
        if turn.running is None:
            return
        ledger = Ledger(turn.job.cell.world_size, turn.job.cell.nodes)
        try:
            with closing(Journal(turn.folder / JOURNAL)) as journal:
                _write(turn, journal, _first_record(turn))
                turn.ending = turn.running.wait(partial(self._take, turn, ledger, journal))
        except AllranksError as error:
            turn.error = JobError.from_exception(error)
        if turn.fault is None:
            _check_end(turn, ledger)
        if turn.end and not turn.facts.is_done:
            turn.error = turn.end

    def _take(self, turn: Turn, ledger: Ledger, journal: Journal, node: int, said: Record | Damage) -> None:
        """Check, keep and show what the agent of a node reports; nothing of a job that has contradicted itself."""
        if turn.fault is not None:
            return
        try:
            is_news = ledger.take(node, said)
        except ContradictionError as error:
            turn.break_off(_not_believed(f"The agent of node {node} {error}"))
            return
        if isinstance(said, Damage) or not is_news:
            return
        if not isinstance(said, Printed):
            _write(turn, journal, said)
            turn.facts.take(said)
        self._live.take(turn.job.id, said)

    def _put_away(self, turn: Turn) -> None:
        """Copy the job's files, and write down what it came to."""
        if turn.running is not None:
            self._collect(turn, turn.running)
        with as_results_error(turn.folder):
            if (journal := turn.folder / JOURNAL).exists():
                turn.rank_files = write_rank_files(turn.folder, journal)
            with self._caches:
                self._keep_cache(turn)
            write_json(turn.folder / "job.json", as_json(_record(turn, self._engine.name)))
            turn.has_record = True
            if self._judges is not None:
                newest = newest_attempt(self._folder.path, turn.job)
                turn.left = to_run_again(newest, self._judges, "failed")

    def _keep_cache(self, turn: Turn) -> None:
        cache = self._folder.cache_of(turn.job)
        if turn.job.shard:
            began_with = self._folder.cache_for(turn.job, turn.number)
            keep_cache_of_shard(turn.folder, cache, began_with, frozenset(turn.facts.collected or ()))
        else:
            keep_cache(turn.folder, cache)

    def _collect(self, turn: Turn, running: RunningJob) -> None:
        try:
            running.collect(turn.folder)
        except AllranksError as error:
            turn.error = turn.error or JobError.from_exception(error)


def _first_record(turn: Turn) -> JobStarted:
    return JobStarted(
        at=time.time(),
        schema=SCHEMA,
        run_id=turn.run_id,
        cell=turn.job.cell.id,
        suite=turn.job.name,
        attempt=turn.number,
        world_size=turn.job.cell.world_size,
    )


def _write(turn: Turn, journal: Journal, record: Record) -> None:
    """Append a record to the job's journal; a job without one is ended, since nobody would know what it came to."""
    try:
        journal.write(record)
    except OSError as error:
        what = f"The journal of the job could not be written: {error.strerror}."
        remedy = "Free space where the results folder is, then go on: allranks run --resume."
        turn.break_off(JobError(kind="infrastructure", what=what, why="The job was stopped.", remedy=remedy))
    if journal.size > MOST_BYTES:
        turn.break_off(_not_believed(f"Its journal has {journal.size} bytes, and no job's has more than {MOST_BYTES}."))


def _check_end(turn: Turn, ledger: Ledger) -> None:
    try:
        ledger.close()
    except ContradictionError as error:
        turn.fault = _not_believed(f"The agent of a node {error}")


def _not_believed(why: str) -> JobError:
    what = "What the job reports cannot be true, and the job was stopped; what it had reported before stands."
    remedy = "See agent.log in the job's results folder: something in the job may write to its agent's output."
    return JobError(kind="agent", what=what, why=why, remedy=remedy)


def _place(spec: JobSpec) -> str:
    """Where a job runs, in words."""
    where = spec.image or f"processes of {spec.python}"
    return where if spec.agent.nodes == 1 else f"{spec.agent.nodes} nodes of {where}"


def remove_if_empty(folder: Path) -> None:
    """Forget an attempt that never came to anything: its job counts as not started."""
    with suppress(OSError):
        folder.rmdir()


def _record(turn: Turn, engine: str) -> JobRecord:
    """What job.json says; a job that ran and has no error yet is judged by its records first."""
    facts, spec = turn.facts, turn.spec
    if turn.running is not None:
        found = facts.error(turn.ending)
        # What cannot be collected stays so, however the job ended, and so does a sick GPU, which may have ended it.
        comes_first = found and (found.kind == "collection" or facts.sick_gpus)
        turn.error = turn.fault or (found if comes_first else turn.error or found)
    return JobRecord(
        id=turn.job.id,
        run_id=turn.run_id,
        cell=turn.job.cell.id,
        suite=turn.job.name,
        attempt=turn.number,
        continues=turn.again.base,
        engine=engine,
        image=(spec.image or "") if spec else "",
        spec=spec.to_json() if spec else None,
        gpus=turn.lease.gpus,
        world_size=turn.job.cell.world_size,
        nodes=turn.job.cell.nodes,
        exit_status=turn.ending.status,
        error=turn.error,
        started=turn.started,
        finished=time.time(),
        collected=facts.collected,
        deselected=facts.deselected,
        not_run=facts.not_run.tests if facts.not_run else (),
        stop_reason=facts.not_run.reason if facts.not_run else "",
        notes=facts.notes,
        share=_share(turn),
        rank_files=turn.rank_files,
    )


def record_unstarted(folder: RunFolder, job: Job, engine: str, why: JobError) -> None:
    """Write down why a job was never started.

    Raises:
        ResultsError: Nothing can be written any more.
    """
    number, path = folder.new_attempt(job)
    turn = Turn(run_id=folder.run_id, job=job, number=number, folder=path, lease=Lease(), error=why)
    with as_results_error(path):
        write_json(path / "job.json", as_json(_record(turn, engine)))


def _share(turn: Turn) -> Share | None:
    """Of a shard: which one it is, and how its agent split the suite."""
    shard, shared = turn.job.shard, turn.facts.shared
    if shard is None:
        return None
    split, elsewhere = (shared.split, shared.elsewhere) if shared else ("", 0)
    return Share(suite=turn.job.suite.name, **asdict(shard), split=split, elsewhere=elsewhere)
