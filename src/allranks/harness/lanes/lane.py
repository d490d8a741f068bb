"""A lane: a fork of the agent that runs launcher tests while other lanes run others.

It is to its tests what the agent is to tests that run one after the other: it forks their drivers, supervises them and
keeps their books. Its ranks' files are in a folder of its own, so that each is written for one test at a time, and what
would go into the agent's journal it sends to the agent.
"""

import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from allranks.harness import kernel
from allranks.harness.events import Journal, write_all
from allranks.harness.gangs.gang import HangupError, JobLimitError


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a lane is given to do at a time.

    Attributes:
        indices: Tests of one assembly, in the order of collection.
        first_gang: The number of the first gang that they get; the next ones have the numbers after it.
    """

    indices: Sequence[int]
    first_gang: int


class Worker(Protocol):
    """Runs tests one after the other."""

    def run_some(self, work: Work) -> int:
        """Run some tests; returns how many of them went wrong.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
        """


class LaneJournal:
    """The agent's journal, as a lane writes into it.

    Args:
        reports: Descriptor of the pipe to the agent.
    """

    def __init__(self, reports: int) -> None:
        self._reports = reports

    def write(self, event: str, **fields: object) -> None:
        """See :meth:`allranks.harness.events.EventLog.write`."""
        _send(self._reports, {"write": {"event": event, "at": time.time(), **fields}})

    def say(self, event: str, **fields: object) -> None:
        """See :meth:`allranks.harness.events.EventLog.say`."""
        _send(self._reports, {"say": {"event": event, **fields}})


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a lane works.

    Attributes:
        results: Folder of its ranks' files.
        journal: What it writes the agent's events into.
        commands: Descriptor that the agent's commands come from; its end means that the job is over.
    """

    results: Path
    journal: Journal
    commands: int


MakeWorker = Callable[[Place], Worker]
"""Makes what runs a lane's tests; called in the lane."""


def be_lane(make_worker: MakeWorker, results: Path, commands: int, reports: int) -> NoReturn:
    """Be a lane until the agent closes its pipe. Never returns: the fork must not run the agent's code.

    Args:
        make_worker: Makes what runs the tests.
        results: Folder of the files of this lane's ranks.
        commands: Descriptor that the agent's commands come from.
        reports: Descriptor of the pipe to the agent.
    """
    status = 1
    try:
        kernel.die_with_parent()
        kernel.adopt_orphans()
        results.mkdir(exist_ok=True)
        worker = make_worker(Place(results=results, journal=LaneJournal(reports), commands=commands))
        _obey(worker, commands, reports)
        status = 0
    except (HangupError, JobLimitError):
        # What that made of the test is written down.
        status = 0
    except BaseException:  # noqa: BLE001 - whatever broke the lane is for the agent to tell
        _send(reports, {"broken": traceback.format_exc()})
    finally:
        os._exit(status)


def _obey(worker: Worker, commands: int, reports: int) -> None:
    with os.fdopen(commands, "rb", closefd=False) as lines:
        for line in lines:
            bad = worker.run_some(Work(**json.loads(line)))
            _send(reports, {"done": bad})


def _send(descriptor: int, message: dict[str, object]) -> None:
    write_all(descriptor, json.dumps(message).encode() + b"\n")
