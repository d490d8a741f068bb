"""Runs jobs side by side, as many as fit, and the next one already started: its agent imports torch and collects.

Each job has a thread that does nothing but see it through. The main thread decides what begins, makes images, and is
the only one that an interrupt reaches.
"""

import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from allranks.engine.protocol import Engine
from allranks.engine.spec import JobSpec
from allranks.errors import AllranksError, EngineError
from allranks.harness.collection.shuffling import drawn
from allranks.interruption import uninterrupted
from allranks.matrix.model import Image, Job, Matrix
from allranks.report.run_files import JobError
from allranks.report.verdict import Setting
from allranks.schedule.again import WHOLE, Again, newest_attempt
from allranks.schedule.cache import carried_files, earlier_coverage
from allranks.schedule.folder import RunFolder
from allranks.schedule.inventory import Inventory
from allranks.schedule.leases import Holder, Lease, count_free, try_lease
from allranks.schedule.line import Ticket, stand_in_line
from allranks.schedule.live import LiveView
from allranks.schedule.packing.backlog import Backlog
from allranks.schedule.packing.order import ordered
from allranks.schedule.packing.task import Room, Running, Task
from allranks.schedule.progress import Tests
from allranks.schedule.request import Attempt, Pdb, Surroundings, job_spec, room_of
from allranks.schedule.snapshot import cache_to_start_with
from allranks.schedule.turn import Attendant, Turn, record_unstarted, remove_if_empty

NOTHING_BEFORE: Final[Mapping[str, Again]] = MappingProxyType({})
"""What is left of the jobs of a new run: all."""

_NO_GPUS = Inventory()

_POLL = 0.25
"""Seconds between two looks at GPUs that another run holds."""

_NAP = 1.0
"""Seconds for which nobody looks up: an interrupt that comes in the instant before a wait is noticed only after it."""


@dataclass(frozen=True, kw_only=True)
class Host:
    """Where the jobs of a run are run.

    Attributes:
        gpus: Ids of the GPUs that jobs may lease.
        inventory: How containers are given them.
        cores: CPU cores that ranks share.
        memory: MiB.
        surroundings: Where each job's Python comes from, made on first use.
        other_engines: Those by which other runs may have used the GPUs.
    """

    engine: Engine
    gpus: tuple[str, ...]
    cores: int
    memory: int
    surroundings: Callable[[Job], Surroundings]
    inventory: Inventory = _NO_GPUS
    other_engines: tuple[Engine, ...] = ()

    def vacate(self, gpus: Sequence[str]) -> None:
        """Have nothing else use GPUs that have just been leased.

        Raises:
            EngineError: The engine cannot tell what uses them.
        """
        self.engine.vacate(gpus)
        for engine in self.other_engines:
            with suppress(EngineError):  # it has nothing to do with this run
                engine.vacate(gpus)

    @property
    def room(self) -> Room:
        """All that jobs share."""
        return Room(gpus=len(self.gpus), cores=self.cores, memory=self.memory)

    def name_of(self, gpu: str) -> str:
        """What people call one of its GPUs."""
        return replace(self.inventory, gpus=self.gpus).name_of(gpu)

    def places(self, gpus: Sequence[str]) -> tuple[int, ...]:
        """The numbers by which people know some of its GPUs: their places among all that it has."""
        return tuple(map((self.inventory.everything or self.gpus).index, gpus))


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How the jobs of a run follow each other.

    Attributes:
        most: Jobs that may run at a time; None for as many as fit.
        retries: How often a job may be tried again for tests that went wrong, and as often for the infrastructure.
        fail_fast: Whether the run ends with the first job that is not good.
        shuffle: What the order of jobs, and of the tests of each, is drawn by; None for one that ends soonest.
        judges: How the results of a job are judged, for `retries` and `fail_fast`.
        seconds: How long the run may take; None for as long as it does.
        pdb: Where a debugger is wanted; None for nowhere.
    """

    most: int | None = None
    retries: int = 0
    fail_fast: bool = False
    shuffle: int | None = None
    judges: Setting = field(default_factory=lambda: Setting(skip="skip"))
    seconds: float | None = None
    pdb: Pdb | None = None


class _News(NamedTuple):
    """What a thread tells the main one.

    Attributes:
        is_away: Whether the job is put away, and not only over.
        error: What went wrong with the thread, and ends the run.
    """

    place: int
    is_away: bool
    error: BaseException | None = None


@dataclass(eq=False)
class _Seat:
    """A job that has been started, and what it holds of the host."""

    task: Task
    turn: Turn
    thread: threading.Thread
    began: float
    held: Room
    is_going: bool = field(default=False)


_USUAL: Final = Rules()


class Runner:
    """Runs jobs, and leaves a record of each in the run's folder.

    Args:
        matrix: The matrix that the jobs come from.
        host: Where to run them.
        folder: Where results go.
        live: Who is told.
        pytest_args: Arguments of this run for pytest.
        rules: How they follow each other.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - each is something else
        self,
        matrix: Matrix,
        host: Host,
        folder: RunFolder,
        live: LiveView,
        pytest_args: tuple[str, ...],
        rules: Rules = _USUAL,
    ) -> None:
        self._matrix = matrix
        self._host = host
        self._folder = folder
        self._live = live
        self._pytest_args = pytest_args
        self._rules = rules
        looks = rules.retries > 0 or rules.fail_fast
        self._attendant = Attendant(host.engine, folder, live, rules.judges if looks else None)
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._jobs: Sequence[Job] = ()
        self._again: dict[int, Again] = {}
        self._tries: Counter[tuple[int, bool]] = Counter()
        self._stopped: JobError | None = None
        self._seats: dict[int, _Seat] = {}
        self._free = host.room
        self._made: set[Image] = set()
        self._has_told = False
        self._ticket: Ticket | None = None
        self._stands_for: int | None = None
        self._sick: set[str] = set()
        self._left_out: set[str] = set()
        self._seen_well: set[tuple[str, Surroundings]] = set()
        self._ends: float | None = None

    def run(self, jobs: Sequence[Job], again: Mapping[str, Again] = NOTHING_BEFORE) -> None:
        """Run all jobs.

        Args:
            jobs: What to run.
            again: What of a job is left to do, by its id; of the others, all is.

        Raises:
            KeyboardInterrupt: The user wants the run to end; the jobs that were running have their records.
            ResultsError: Nothing can be written any more.
        """
        self._jobs = jobs
        self._again = {number: again[job.id] for number, job in enumerate(jobs) if job.id in again}
        backlog = Backlog(self._in_order(jobs), self._host.room)
        self._ends = None if self._rules.seconds is None else time.monotonic() + self._rules.seconds
        try:
            while backlog or self._seats:
                self._begin_what_fits(backlog)
                self._listen(backlog)
                self._mind_the_time(backlog)
        finally:
            self._leave_line()
            self._end_all()

    def _in_order(self, jobs: Sequence[Job]) -> list[Task]:
        seconds = [self._folder.expected(job) for job in jobs]
        known = sorted(each for each in seconds if each is not None)
        usual = known[len(known) // 2] if known else 1.0
        tasks = [
            Task(number, room_of(self._matrix, job, gpus=self._gpus_of(job)), usual if expected is None else expected)
            for number, (job, expected) in enumerate(zip(jobs, seconds, strict=True))
        ]
        if self._rules.shuffle is not None:
            seed = self._rules.shuffle
            return sorted(tasks, key=lambda task: drawn(seed, jobs[task.number].id))
        return ordered(tasks, self._host.room) if known else sorted(tasks, key=lambda task: -task.room.gpus)

    def _gpus_of(self, job: Job) -> int:
        """How many GPUs a job leases: none where the host lacks them, since all its tests will be skipped."""
        return job.cell.gpu_count if job.cell.gpu_count <= len(self._host.gpus) else 0

    def _begin_what_fits(self, backlog: Backlog) -> None:
        """Let jobs go as long as there is room; then start the next one, if cores are all that it has to wait for."""
        self._let_go_who_waits()
        while self._has_place and (task := self._take(backlog)):
            if not self._seat(task, goes=True):
                backlog.put_back(task)
                return
        following = backlog.first
        if not self._waiting and following and self._seats and self._can_stand_by(following):
            backlog.take_first()
            if not self._seat(following, goes=False):
                backlog.put_back(following)
        self._let_go_who_waits()

    @property
    def _gpus(self) -> tuple[str, ...]:
        """The GPUs that jobs may lease."""
        return tuple(gpu for gpu in self._host.gpus if gpu not in self._sick)

    @property
    def _waiting(self) -> list[_Seat]:
        return [seat for seat in self._seats.values() if not seat.is_going]

    @property
    def _has_place(self) -> bool:
        most = self._rules.most
        return most is None or len(self._seats) - len(self._waiting) < most

    def _let_go_who_waits(self) -> None:
        for seat in self._waiting if self._stopped is None else ():
            cores = Room(cores=self._room(seat.task).cores)
            if self._has_place and self._free.holds(cores):
                self._hold(seat, cores)
                seat.is_going = True
                seat.began = time.monotonic()
                seat.turn.let_go()

    def _take(self, backlog: Backlog) -> Task | None:
        running = [
            Running(replace(seat.task, room=seat.held), seat.began) for seat in self._seats.values() if seat.is_going
        ]
        before = next((Room(cores=self._room(seat.task).cores) for seat in self._waiting), None)
        return backlog.take(time.monotonic(), self._free_now(), running, before)

    def _free_now(self) -> Room:
        """What nobody uses: of the GPUs, other runs on this host may hold some."""
        return self._free._replace(gpus=min(self._free.gpus, count_free(self._gpus, self._ticket)))

    def _can_stand_by(self, task: Task) -> bool:
        """Whether cores are all that it lacks: making its image may take minutes, in which nobody hears the others."""
        fits = self._free._replace(cores=self._host.cores).holds(self._room(task))
        return fits and self._jobs[task.number].image in self._made

    def _room(self, task: Task) -> Room:
        return task.room.within(self._host.room)

    def _hold(self, seat: _Seat, room: Room) -> None:
        seat.held = seat.held.plus(room)
        self._free = self._free.minus(room)

    def _let_off(self, seat: _Seat, room: Room) -> None:
        seat.held = seat.held.minus(room)
        self._free = self._free.plus(room)

    def _seat(self, task: Task, *, goes: bool) -> bool:
        """Start a job in a thread of its own; False where another run was quicker with its GPUs."""
        job = self._jobs[task.number]
        self._live.job_is(job.id, "preparing")
        made = self._surroundings(job)
        lease = self._lease(job)
        if lease is None:
            self._live.job_is(job.id, "waiting")
            return False
        self._live.job_is(job.id, "preparing", self._host.places(lease.gpus))
        if lease.gpus and task.number == self._stands_for:
            self._leave_line()  # whoever came meanwhile is before our next job
        with ExitStack() as undo:
            undo.enter_context(lease)
            turn = self._turn(task, lease, made, undo)
            thread = threading.Thread(target=self._attend, args=(task.number, turn), name=job.id)
            # A thread takes over which signals are held back: an interrupt is for this one.
            with uninterrupted():
                thread.start()
                undo.pop_all()
                seat = self._seats[task.number] = _Seat(task, turn, thread, time.monotonic(), Room(), goes)
                room = self._room(task)
                self._hold(seat, room if goes else room._replace(cores=0))
                if goes:
                    turn.let_go()
        return True

    def _surroundings(self, job: Job) -> Surroundings | AllranksError:
        """What the job's Python is, or why there is none; made before GPUs are leased for it."""
        try:
            return self._host.surroundings(job)
        except AllranksError as error:
            return error
        finally:
            self._made.add(job.image)

    def _lease(self, job: Job) -> Lease | None:
        holder = Holder(run_id=self._folder.run_id, job_id=job.id, pid=os.getpid(), since=time.time())
        lease = try_lease(self._gpus, self._gpus_of(job), holder, self._ticket)
        if lease is None or self._sick.isdisjoint(lease.gpus):
            return lease
        with lease:  # the job that had it before ended in between, and told of it
            return None

    def _turn(self, task: Task, lease: Lease, made: Surroundings | AllranksError, undo: ExitStack) -> Turn:
        job = self._jobs[task.number]
        number, folder = self._folder.new_attempt(job)
        undo.callback(remove_if_empty, folder)
        again = self._again.get(task.number, WHOLE)
        turn = Turn(run_id=self._folder.run_id, job=job, number=number, folder=folder, lease=lease, again=again)
        try:
            if isinstance(made, AllranksError):
                raise made
            if lease.gpus:
                # Their last owner may have been killed, and its container not be gone yet.
                self._host.vacate(lease.gpus)
            turn.spec = self._spec(turn, made)
        except AllranksError as error:
            turn.error = JobError.from_exception(error)
        return turn

    def _spec(self, turn: Turn, surroundings: Surroundings) -> JobSpec:
        attempt = Attempt(
            run_id=self._folder.run_id,
            number=turn.number,
            seed=self._folder.seed,
            gpus=turn.lease.gpus,
            passthrough=self._host.inventory.of(turn.lease.gpus),
            pytest_args=self._pytest_args,
            carried=(
                *carried_files(cache_to_start_with(self._folder, turn.job, turn.number)),
                *(earlier_coverage(turn.folder.with_name(f"attempt-{turn.again.base}")) if turn.again.base else ()),
            ),
            seconds=self._folder.seconds_of(turn.job),
            only=turn.again.tests,
            shuffle=self._rules.shuffle,
            pdb=self._rules.pdb,
            unchecked={
                gpu: self._host.name_of(gpu) for gpu in turn.lease.gpus if (gpu, surroundings) not in self._seen_well
            },
        )
        return job_spec(self._matrix, turn.job, surroundings, attempt)

    def _attend(self, place: int, turn: Turn) -> None:
        """What a job's thread does."""
        try:
            self._attendant.see_through(turn, lambda: self._has_ended(place, turn))
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._news.put(_News(place, is_away=True, error=error))
        else:
            self._news.put(_News(place, is_away=True))

    def _has_ended(self, place: int, turn: Turn) -> None:
        """A job needs no more cores. Its lease lasts yet: who is sick must be known before the next one can be made."""
        self._sick |= turn.facts.sick_gpus & set(turn.lease.gpus)
        self._news.put(_News(place, is_away=False))

    def _listen(self, backlog: Backlog) -> None:
        """Wait until there is more room, and take note of it.

        Raises:
            BaseException: What a thread has raised.
        """
        wanted = backlog.first
        fits = wanted is not None and self._has_place and not self._waiting and self._free.holds(self._room(wanted))
        is_others = fits and bool(wanted and wanted.room.gpus)
        if wanted is not None and is_others:
            self._wait_in_line(wanted)
        else:
            self._leave_line()
        try:
            news = self._news.get(timeout=self._patience(_POLL if is_others else _NAP))
        except queue.Empty:
            return
        self._take_note(news, backlog)
        if news.error is not None:
            raise news.error

    def _wait_in_line(self, task: Task) -> None:
        """Have other runs know that GPUs are waited for: who came later leaves them to us."""
        self._stands_for = task.number
        if not self._has_told:
            self._has_told = True
            self._live.say(f"waiting for {task.room.gpus} of {len(self._host.gpus)} GPUs: another run holds them")
        if self._ticket is None:
            self._ticket = stand_in_line(self._gpus)
        self._ticket.touch()

    def _leave_line(self) -> None:
        if self._ticket is not None:
            self._ticket.leave()
            self._ticket = None

    def _patience(self, wanted: float) -> float:
        """How long to wait for news, in seconds: no longer than the run may take."""
        if self._ends is None or self._stopped is not None:
            return wanted
        return min(max(0.0, self._ends - time.monotonic()), wanted)

    def _mind_the_time(self, backlog: Backlog) -> None:
        """End the run where its time is over: whoever ends it later from outside leaves no report."""
        if self._ends is None or self._stopped is not None or time.monotonic() < self._ends:
            return
        if backlog or self._seats:
            over = f"the run's limit of {self._rules.seconds:g} s is over"
            self._stop(f"Not run to its end: {over}.", f"{over}, and ends it", backlog)

    def _take_note(self, news: _News, backlog: Backlog) -> None:
        seat = self._seats[news.place]
        if not news.is_away:
            self._let_off(seat, Room(cores=seat.held.cores))
            return
        seat.thread.join()
        self._let_off(seat, seat.held)
        del self._seats[news.place]
        self._learn_of_gpus(seat.turn)
        if self._stopped is not None and not seat.turn.has_record:
            self._record_unstarted(seat.task, self._stopped)
        elif seat.turn.left is not None and self._stopped is None:
            self._try_again(seat, seat.turn.left, backlog)
        self._give_up_too_large(backlog)

    def _learn_of_gpus(self, turn: Turn) -> None:
        """Take note of which GPUs compute in these surroundings, and lease those no more that do not."""
        if turn.spec is not None:
            made = Surroundings(image=turn.spec.image, python=turn.spec.python, python_path=turn.spec.python_path)
            self._seen_well.update((gpu, made) for gpu in turn.facts.well_gpus)
        new = self._sick & set(turn.lease.gpus) - self._left_out
        self._left_out |= new
        self._free = self._free.minus(Room(gpus=len(new)))
        for gpu in sorted(new):
            self._live.say(f"{self._host.name_of(gpu)} is sick: no job of this run gets it any more")

    def _give_up_too_large(self, backlog: Backlog) -> None:
        """Write down of the jobs that need more GPUs than are well that they cannot run."""
        there = len(self._gpus)
        if not self._sick:
            return
        for task in backlog.clear():
            if task.room.gpus <= there:
                backlog.add(task)
                continue
            names = ", ".join(map(self._host.name_of, sorted(self._sick)))
            what = f"It needs {task.room.gpus} GPUs, and {there} of this host's are well: {names} is sick."
            why = JobError(kind="infrastructure", what=what, remedy="Repair it, and go on: allranks run --resume.")
            self._record_unstarted(task, why)
            self._live.job_ended(self._jobs[task.number].id, Tests(), 0.0, why)

    def _try_again(self, seat: _Seat, left: Again, backlog: Backlog) -> None:
        """See that what is left of a job runs again, if it may; else the job is not good."""
        turn, number = seat.turn, seat.task.number
        kind = turn.error.kind if turn.error else ""
        counted = (number, kind == "infrastructure")
        if kind not in {"collection", "usage"} and turn.spec is not None and self._tries[counted] < self._rules.retries:
            self._tries[counted] += 1
            self._again[number] = left
            backlog.add(seat.task)
            self._live.job_is(turn.job.id, "waiting")
            self._live.say(f"{turn.job.id}: {_words(left)} again ({self._tries[counted]} of {self._rules.retries})")
        elif self._rules.fail_fast:
            what = f"Not run to its end: --fail-fast ended the run when {turn.job.id} was not good."
            self._stop(what, f"{turn.job.id} is not good, and --fail-fast ends the run", backlog)

    def _stop(self, what: str, said: str, backlog: Backlog) -> None:
        """End the run: those that run are ended, and of those that wait it is written down why they did not run."""
        self._stopped = JobError(kind="stopped", what=what, remedy="Go on with it: allranks run --resume.")
        self._live.say(said)
        for seat in self._seats.values():
            seat.turn.interrupt(self._stopped)
        for task in backlog.clear():
            self._record_unstarted(task, self._stopped)

    def _record_unstarted(self, task: Task, why: JobError) -> None:
        """Say why a job did not run; one that was to run again has results already."""
        job = self._jobs[task.number]
        if newest_attempt(self._folder.path, job) is None:
            record_unstarted(self._folder, job, self._host.engine.name, why)

    def _end_all(self) -> None:
        """End whatever runs, and wait until all of it is put away; the first interrupt may come even now."""
        try:
            with uninterrupted():
                self._interrupt_all()
        except KeyboardInterrupt:
            self._interrupt_all()
            raise

    def _interrupt_all(self) -> None:
        for seat in self._seats.values():
            seat.turn.interrupt()
        for seat in self._seats.values():
            seat.thread.join()
        self._seats.clear()


def _words(again: Again) -> str:
    return "the whole job" if again.tests is None else f"{len(again.tests)} test{'s' if len(again.tests) > 1 else ''}"
