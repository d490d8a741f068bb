"""One attempt at a job, from its start to its record: what a thread of its own does."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from allranks.engine.protocol import Engine, JobExit, RunningJob
from allranks.engine.spec import JobSpec
from allranks.errors import AllranksError
from allranks.harness.events import JOURNAL, Event, append_events, read_events
from allranks.matrix.model import Job
from allranks.report.verdict import Setting
from allranks.schedule import journal
from allranks.schedule.again import WHOLE, Again, newest_attempt, to_run_again
from allranks.schedule.cache import keep_cache, keep_cache_of_shard
from allranks.schedule.folder import RunFolder, as_results_error, write_json
from allranks.schedule.heard import Heard, write_missing_xml
from allranks.schedule.journal import JobError
from allranks.schedule.leases import Lease
from allranks.schedule.live import LiveView
from allranks.schedule.manifest import SCHEMA

_NOBODY_KNOWS = JobExit(status=None)
_MAY_BE_HEARD_ONLY = frozenset({"agent_failed", "gpu_failed", "gpus_checked"})
INTERRUPTED = JobError(kind="interrupted", what="The run was interrupted.")


@dataclass(kw_only=True, eq=False)
class Turn:
    """One attempt at a job.

    Attributes:
        folder: Where its results go.
        again: What of the job it runs.
        spec: None where it could not be made, which `error` says.
        lease: Its GPUs, until it has been put away.
        started: When it got its turn, in seconds since the epoch.
        running: None when the job has not been started, or could not be.
        has_record: Whether it came to anything that has been written down.
        left: When it has been put away, what would have to run again; None where all is well.
    """

    job: Job
    number: int
    folder: Path
    lease: Lease
    again: Again = WHOLE
    spec: JobSpec | None = None
    error: JobError | None = None
    running: RunningJob | None = None
    ending: JobExit = _NOBODY_KNOWS
    events: list[Event] = field(default_factory=list)
    started: float = field(default_factory=time.time)
    left: Again | None = None
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
        self._live.job_ended(turn.job.id, turn.events, time.time() - turn.started, turn.error)

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
        try:
            with closing(Heard(turn.folder / JOURNAL)) as heard:
                turn.ending = turn.running.wait(partial(self._take, turn, heard))
        except AllranksError as error:
            turn.error = JobError.from_exception(error)
        except Exception as error:  # noqa: BLE001 - a job's words are not ours: they may end that job, never the run
            turn.error = _not_understood(error)
            turn.running.stop()
        if turn.end and not _is_done(turn.events):
            turn.error = turn.end

    def _take(self, turn: Turn, heard: Heard, event: Event) -> None:
        if event["event"] != "output":
            turn.events.append(event)
            heard.write(event)
        self._live.event(turn.job.id, event)

    def _put_away(self, turn: Turn) -> None:
        """Bring the results home, and write the record."""
        if turn.running is not None:
            self._collect(turn, turn.running)
        with as_results_error(turn.folder):
            _complete_results(turn)
            turn.events = _whole_journal(turn)
            with self._caches:
                self._keep_cache(turn)
            try:
                record = _record(turn, self._engine.name)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                turn.error, turn.events = _not_understood(error), []
                record = _record(turn, self._engine.name)
            write_json(turn.folder / "job.json", record)
            turn.has_record = True
            if self._judges is not None:
                newest = newest_attempt(self._folder.path, turn.job)
                turn.left = to_run_again(newest, self._judges, "failed")

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


def _is_done(events: Sequence[Event]) -> bool:
    """Whether the agent had done all its work before it heard that it was to end."""
    return bool(journal.find(events, "agent_finished")) and not journal.find(events, "interrupted")


def _place(spec: JobSpec) -> str:
    """Where a job runs, in words."""
    where = spec.image or f"processes of {spec.python}"
    return where if spec.agent.nodes == 1 else f"{spec.agent.nodes} nodes of {where}"


def remove_if_empty(folder: Path) -> None:
    """Forget an attempt that never came to anything: its job counts as not started."""
    with suppress(OSError):
        folder.rmdir()


def _complete_results(turn: Turn) -> None:
    """Write what a dead agent could not: its journal, as far as it was heard, and the ranks' XML."""
    if turn.events and not (turn.folder / JOURNAL).exists():
        append_events(turn.folder / JOURNAL, turn.events)
    cell = turn.job.cell
    write_missing_xml(turn.folder, cell=cell.id, suite=turn.job.name, world_size=cell.world_size)


def _whole_journal(turn: Turn) -> list[Event]:
    """The file is the truth, where a disk was full and of other nodes' GPUs it says nothing."""
    kept = read_events(turn.folder / JOURNAL) or turn.events
    return [*kept, *(event for event in turn.events if event["event"] in _MAY_BE_HEARD_ONLY and event not in kept)]


def _not_understood(error: Exception) -> JobError:
    what = f"What the job said cannot be understood: {type(error).__name__}: {error}"
    return JobError(kind="agent", what=what, remedy="See events-agent.jsonl in the job's results folder.")


def _record(turn: Turn, engine: str) -> dict[str, object]:
    """What job.json says; a job that ran and has no error yet is judged by its events first."""
    if turn.running is not None:
        found = journal.job_error(turn.events, turn.ending)
        # What cannot be collected stays so, however the job ended, and so does a sick GPU, which may have ended it.
        comes_first = found and (found.kind == "collection" or journal.sick_gpus(turn.events))
        turn.error = found if comes_first else turn.error or found
    collected, deselected = journal.collected(turn.events)
    return {
        "schema": SCHEMA,
        "id": turn.job.id,
        "cell": turn.job.cell.id,
        "suite": turn.job.name,
        "attempt": turn.number,
        "continues": turn.again.base,
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


def record_unstarted(folder: RunFolder, job: Job, engine: str, why: JobError) -> None:
    """Write down why a job was never started.

    Raises:
        ResultsError: Nothing can be written any more.
    """
    number, path = folder.new_attempt(job)
    turn = Turn(job=job, number=number, folder=path, lease=Lease(), error=why)
    with as_results_error(path):
        write_json(path / "job.json", _record(turn, engine))


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
