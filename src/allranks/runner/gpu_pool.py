"""The GPUs that a run may lease: free, leased or sick, and its place in the host-wide queue."""

import os
import time
from collections.abc import Iterable

from allranks.engines.base import JobEnvironment
from allranks.runner import gpu_leases
from allranks.runner.gpu_leases import Holder, Lease, QueueEntry


class GpuPool:
    """Leases GPUs to the jobs of one run."""

    def __init__(self, gpus: tuple[str, ...], run_id: str) -> None:
        self._gpus = gpus
        self._run_id = run_id
        self._sick: set[str] = set()
        self._checked: set[tuple[str, JobEnvironment]] = set()
        self._queue_entry: QueueEntry | None = None
        self._queued_job = ""

    @property
    def healthy(self) -> tuple[str, ...]:
        """The GPUs that are not known to be sick."""
        return tuple(gpu for gpu in self._gpus if gpu not in self._sick)

    def sick_among(self, gpus: Iterable[str]) -> list[str]:
        """Those of the GPUs that are leased no more, sorted."""
        return sorted(self._sick.intersection(gpus))

    def count_free(self) -> int:
        """How many GPUs no run holds at this moment, nor waits for ahead of this run."""
        return gpu_leases.count_free(self.healthy, self._queue_entry)

    def lease(self, count: int, job_id: str) -> Lease | None:
        """Lease GPUs to a job, all of them or none; None if too few are free or another run is ahead in the queue."""
        holder = Holder(run_id=self._run_id, job_id=job_id, pid=os.getpid(), since=time.time())
        lease = gpu_leases.try_lease(self.healthy, count, holder, self._queue_entry)
        if lease is not None and self.sick_among(lease.gpus):
            with lease:  # its previous job reported it sick and released it after `healthy` was read
                return None
        if lease is not None and lease.gpus and job_id == self._queued_job:
            self.leave_queue()  # runs that joined meanwhile are ahead of this run's next job
        return lease

    def wait_in_queue(self, job_id: str) -> None:
        """Hold a place in the host-wide queue for a job; call it at each poll, or the place expires."""
        self._queued_job = job_id
        if self._queue_entry is None:
            self._queue_entry = gpu_leases.stand_in_line(self.healthy)
        self._queue_entry.touch()

    def leave_queue(self) -> None:
        """Give up the place in the queue, if there is one."""
        if self._queue_entry is not None:
            self._queue_entry.leave()
            self._queue_entry = None

    def report_sick(self, gpus: Iterable[str]) -> None:
        """Lease these GPUs no more. Call it from any thread, before the lease that showed it ends."""
        self._sick.update(gpus)

    def report_checked(self, gpus: Iterable[str], environment: JobEnvironment) -> None:
        """Record that these GPUs have computed with this Python: later jobs need not check them. From any thread."""
        self._checked.update((gpu, environment) for gpu in gpus)

    def forget_checks(self, gpus: Iterable[str]) -> None:
        """Have the next job with one of these GPUs check it again. From any thread."""
        forgotten = frozenset(gpus)
        self._checked = {(gpu, environment) for gpu, environment in self._checked if gpu not in forgotten}

    def unchecked(self, gpus: Iterable[str], environment: JobEnvironment) -> list[str]:
        """Those of the GPUs that have not been seen to compute with this Python."""
        return [gpu for gpu in gpus if (gpu, environment) not in self._checked]
