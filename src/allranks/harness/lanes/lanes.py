"""The agent's side of its lanes: it forks them, gives each its next tests, and writes down what they tell."""

import json
import os
import selectors
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from allranks.harness.events import Journal, lane_folder, write_all
from allranks.harness.gangs.gang import HangupError, JobLimitError
from allranks.harness.lanes.lane import MakeWorker, Work, be_lane
from allranks.harness.signals import let_through

LAST_GRACE = 60.0
"""Seconds that lanes get to stop their ranks, look at stacks and write that down, before they are killed."""


Ready = Sequence[tuple[selectors.SelectorKey, int]]
"""What a selector has seen."""


class LaneLostError(Exception):
    """A lane broke, or was killed: what its tests came to is not known."""


@dataclass(kw_only=True, eq=False)
class _Lane:
    """The agent's side of one lane.

    Attributes:
        pidfd: Readable when the process has ended (pidfd_open(2)).
        commands: Descriptor that it hears by; None when it is closed.
        reports: Descriptor that it tells by, non-blocking.
        is_busy: It has tests to run.
    """

    number: int
    pid: int
    pidfd: int
    commands: int | None
    reports: int
    is_busy: bool = False
    rest: bytes = b""

    def give(self, work: Work) -> None:
        """Have it run tests."""
        self.is_busy = True
        if self.commands is not None:
            # One that is gone is noticed by its process.
            with suppress(BrokenPipeError):
                write_all(self.commands, json.dumps(asdict(work)).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]]:
        """What it has told since the last call."""
        with suppress(BlockingIOError):
            while data := os.read(self.reports, 1 << 16):
                self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        return [json.loads(line) for line in lines]

    @property
    def descriptors(self) -> list[int]:
        """The agent's open descriptors of it."""
        return [self.pidfd, self.reports, *([] if self.commands is None else [self.commands])]

    def dismiss(self) -> None:
        """Have it stop what it does, and leave."""
        if self.commands is not None:
            os.close(self.commands)
            self.commands = None

    def reap(self) -> int:
        """Take the exit status of one that has ended, and close its descriptors."""
        _, status = os.waitpid(self.pid, 0)
        for descriptor in self.descriptors:
            os.close(descriptor)
        return os.waitstatus_to_exitcode(status)


@dataclass(frozen=True, kw_only=True)
class LaneTerms:
    """How lanes are forked.

    Attributes:
        count: How many tests may run at a time.
        make_worker: Makes what runs a lane's tests.
        journal: The agent's.
        results: The job's results folder.
        stdin: Descriptor whose end-of-file means that the job is over.
    """

    count: int
    make_worker: MakeWorker
    journal: Journal
    results: Path
    stdin: int


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What lanes are forked for.

    Attributes:
        next_work: The tests that a free lane gets; None when there are no more.
        note_bad: Told how many of the tests of a piece of work went wrong.
    """

    next_work: Callable[[], Work | None]
    note_bad: Callable[[int], None]


class Lanes:
    """Some lanes, from their fork to their end.

    Args:
        terms: How they are forked.
        errand: What for.
    """

    def __init__(self, terms: LaneTerms, errand: Errand) -> None:
        self._terms = terms
        self._journal = terms.journal
        self._errand = errand
        self._lanes: list[_Lane] = []
        self._broken = ""
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Have the lanes do all the work that there is.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
            LaneLostError: A lane broke; the others are stopped.
        """
        with self._selector:
            self._selector.register(self._terms.stdin, selectors.EVENT_READ, None)
            try:
                self._start()
                while any(lane.is_busy for lane in self._lanes):
                    self._wait()
            except JobLimitError:
                for lane in self._lanes:
                    signal.pidfd_send_signal(lane.pidfd, signal.SIGALRM)
                raise
            finally:
                self._selector.unregister(self._terms.stdin)
                self._dismiss()

    def _start(self) -> None:
        for number in range(1, self._terms.count + 1):
            work = self._errand.next_work()
            if work is None:
                return
            lane = _fork_lane(number, self._terms, self._lanes)
            self._lanes.append(lane)
            for descriptor in (lane.reports, lane.pidfd):
                self._selector.register(descriptor, selectors.EVENT_READ, lane)
            lane.give(work)

    def _wait(self) -> None:
        with let_through():
            ready = self._selector.select()
        for told, lane in self._told(ready):
            self._take(told)
            if "done" in told:
                self._give_next(lane)
        if self._broken:
            # Only now: what other lanes have told at the same time is written down.
            raise LaneLostError(self._broken)
        for lane in _ended(ready):
            self._lose(lane)
        if any(key.data is None for key, _ in ready) and not os.read(self._terms.stdin, 4096):
            raise HangupError

    def _told(self, ready: Ready) -> list[tuple[Mapping[str, Any], _Lane]]:
        lanes = dict.fromkeys(key.data for key, _ in ready if key.data is not None)
        return [(told, lane) for lane in lanes for told in lane.hear()]

    def _take(self, told: Mapping[str, Any]) -> None:
        if "write" in told:
            self._journal.write(**told["write"])
        elif "say" in told:
            self._journal.say(**told["say"])
        elif "done" in told:
            self._errand.note_bad(told["done"])
        else:
            self._broken = self._broken or told["broken"]

    def _give_next(self, lane: _Lane) -> None:
        lane.is_busy = False
        work = self._errand.next_work()
        if work is not None:
            lane.give(work)

    def _lose(self, lane: _Lane) -> None:
        status = self._reap(lane)
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"
        msg = f"lane {lane.number}, a fork of the agent that supervises tests, {how}"
        raise LaneLostError(msg)

    def _reap(self, lane: _Lane) -> int:
        for descriptor in (lane.reports, lane.pidfd):
            self._selector.unregister(descriptor)
        self._lanes.remove(lane)
        return lane.reap()

    def _dismiss(self) -> None:
        """Have all lanes leave, and write down what they still tell of."""
        for lane in self._lanes:
            lane.dismiss()
        deadline = time.monotonic() + LAST_GRACE
        while self._lanes and (remaining := deadline - time.monotonic()) > 0:
            ready = self._selector.select(remaining)
            for told, _ in self._told(ready):
                self._take(told)
            for lane in _ended(ready):
                self._reap(lane)
        for lane in list(self._lanes):
            signal.pidfd_send_signal(lane.pidfd, signal.SIGKILL)
            self._reap(lane)


def _ended(ready: Ready) -> list[_Lane]:
    return [key.data for key, _ in ready if key.data is not None and key.fd == key.data.pidfd]


def _fork_lane(number: int, terms: LaneTerms, others: Collection[_Lane]) -> _Lane:
    commands_in, commands_out = os.pipe()
    reports_in, reports_out = os.pipe()
    pid = os.fork()
    if pid == 0:
        # The end of another lane's commands would never come while this one holds it open.
        theirs = [descriptor for lane in others for descriptor in lane.descriptors]
        for descriptor in (commands_out, reports_in, *theirs):
            os.close(descriptor)
        be_lane(terms.make_worker, lane_folder(terms.results, number), commands_in, reports_out)
    os.close(commands_in)
    os.close(reports_out)
    os.set_blocking(reports_in, False)
    return _Lane(number=number, pid=pid, pidfd=os.pidfd_open(pid), commands=commands_out, reports=reports_in)
