"""Lanes: threads of the supervisor that each run launcher tests while others run others.

Each worker has its own files for its ranks, so only one test at a time writes to a file.
"""

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from allranks.agent.gangs.forks import ForkServerError
from allranks.agent.job_end import HangupError, JobLimitError, LostGpuError


class WorkerLostError(Exception):
    """A worker broke: the outcomes of its tests are unknown."""


class Worker(Protocol):
    """Runs tests one after the other."""

    def run_some(self, indices: Sequence[int]) -> None:
        """Run some tests.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
            LostGpuError: A GPU no longer computes.
            ForkServerError: The fork server is gone or does not answer.
        """


def lane_folder(results: Path, lane: int) -> Path:
    """The folder for the files of a worker's ranks."""
    return results / f"lane-{lane}"


@dataclass(kw_only=True)
class DriverWorkers:
    """Workers that run side by side, from their start to their end."""

    count: int  # how many tests may run at a time
    results: Path
    make_worker: Callable[[Path], Worker]  # makes a worker from the folder for its ranks' files
    # The next tests for a free worker, from one assembly; None if there are no more.
    next_work: Callable[[], Sequence[int] | None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _errors: list[Exception] = field(default_factory=list)

    def run(self) -> None:
        """Run all tests on the workers.

        Raises:
            HangupError: The job was ended from outside.
            JobLimitError: The job's time is up.
            LostGpuError: A GPU no longer computes.
            ForkServerError: The fork server is gone or does not answer.
            WorkerLostError: A worker broke.
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
        except (HangupError, JobLimitError, LostGpuError, ForkServerError) as error:
            self._errors.append(error)
        except Exception:  # noqa: BLE001 - any failure of a worker is the job's result
            self._errors.append(WorkerLostError(traceback.format_exc()))

    def _next(self) -> Sequence[int] | None:
        """The next tests; None after an error."""
        with self._lock:
            return None if self._errors else self.next_work()
