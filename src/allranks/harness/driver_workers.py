"""Lanes: threads of the supervisor that each run launcher tests while others run others.

Each has files of its own for its ranks, so that a file is written for one test at a time.
"""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from allranks.harness.forks import ForkServerError
from allranks.harness.job_end import HangupError, JobLimitError


class WorkerLostError(Exception):
    """A lane broke: what its tests came to is not known."""


class Worker(Protocol):
    """Runs tests one after the other."""

    def run_some(self, indices: Sequence[int]) -> None:
        """Run some tests.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
            ForkServerError: Nobody is there any more who could start ranks.
        """


def lane_folder(results: Path, lane: int) -> Path:
    """The folder of the files of a lane's ranks."""
    return results / f"lane-{lane}"


@dataclass(kw_only=True)
class DriverWorkers:
    """Some lanes, from their start to their end.

    Attributes:
        count: How many tests may run at a time.
        results: The job's results folder.
        make_worker: Makes what runs a lane's tests; gets the folder of its ranks' files.
        next_work: The tests that a free lane gets, of one assembly; None when there are no more.
    """

    count: int
    results: Path
    make_worker: Callable[[Path], Worker]
    next_work: Callable[[], Sequence[int] | None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _errors: list[Exception] = field(default_factory=list)

    def run(self) -> None:
        """Have the lanes do all the work that there is.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
            ForkServerError: Nobody is there any more who could start ranks.
            LaneLostError: A lane broke.
        """
        threads = [threading.Thread(target=self._be_lane, args=(number,)) for number in range(1, self.count + 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _be_lane(self, number: int) -> None:
        try:
            work = self._next()
            if work is None:
                return
            folder = lane_folder(self.results, number)
            folder.mkdir(exist_ok=True)
            worker = self.make_worker(folder)
            while work is not None:
                worker.run_some(work)
                work = self._next()
        except (HangupError, JobLimitError, ForkServerError) as error:
            self._errors.append(error)
        except Exception:  # noqa: BLE001 - whatever broke the lane is the job's result
            self._errors.append(WorkerLostError(traceback.format_exc()))

    def _next(self) -> Sequence[int] | None:
        """The next tests; none after something went wrong."""
        with self._lock:
            return None if self._errors else self.next_work()
