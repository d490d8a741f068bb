"""Holds locks of a daemon's host for a run in a container: the program of a container of its own.

It reads requests as lines of JSON, and answers each with a line. It ends with its input, which ends with the run, in
whatever way that ends: the kernel then releases the locks, as if the run itself had held them. An image has no
allranks, so :mod:`allranks.engine.host_locks` sends the text of this module and of those that it imports.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TextIO

from allranks.engine.ownership import is_dead, locks_place, own_run
from allranks.schedule.gpu_leases import Holder, Lease, QueueEntry, count_free, stand_in_line, try_lease
from allranks.schedule.sick_gpus import quarantined, report_failures, report_successes


class LockKeeper:
    """The locks of one run; leases and queue entries have numbers for their owner."""

    def __init__(self, runs: ExitStack) -> None:
        self._runs = runs
        self._leases: dict[int, Lease] = {}
        self._entries: dict[int, QueueEntry] = {}
        self._numbers = iter(range(1, 1 << 62))

    @property
    def requests(self) -> Mapping[str, Callable[..., object]]:
        """What can be asked for, by name."""
        names = ("own", "dead", "lease", "end_lease", "join_queue", "touch", "leave_queue", "count_free", "report_gpus")
        return {"quarantined": quarantined, **{name: getattr(self, name) for name in names}}

    def own(self, run_id: str) -> str:
        """Own a run as long as this process lives; an empty name owns none. The place of the locks."""
        if run_id:
            self._runs.enter_context(own_run(run_id))
        return locks_place()

    def report_gpus(self, run_id: str, sick: Mapping[str, str], well: Sequence[str]) -> None:
        """See :meth:`allranks.schedule.host.Host.report_gpus`."""
        report_successes(well)
        report_failures(run_id, sick)

    def dead(self, run_ids: Iterable[str]) -> list[str]:
        """Those of the runs that no process owns."""
        return [run_id for run_id in run_ids if is_dead(run_id)]

    def lease(
        self, gpus: Sequence[str], count: int, holder: Mapping[str, Any], entry: int | None
    ) -> tuple[int, tuple[str, ...]] | None:
        """See :func:`allranks.schedule.gpu_leases.try_lease`."""
        lease = try_lease(gpus, count, Holder(**holder), self._entries.get(entry or 0))
        if lease is None:
            return None
        number = next(self._numbers)
        self._leases[number] = lease
        return number, lease.gpus

    def end_lease(self, number: int) -> None:
        """Give its GPUs back."""
        with self._leases.pop(number):
            pass

    def join_queue(self, gpus: Sequence[str]) -> int:
        """See :func:`allranks.schedule.gpu_leases.stand_in_line`."""
        number = next(self._numbers)
        self._entries[number] = stand_in_line(gpus)
        return number

    def touch(self, number: int) -> None:
        """See :meth:`allranks.schedule.gpu_leases.QueueEntry.touch`."""
        self._entries[number].touch()

    def leave_queue(self, number: int) -> None:
        """See :meth:`allranks.schedule.gpu_leases.QueueEntry.leave`."""
        self._entries.pop(number).leave()

    def count_free(self, gpus: Sequence[str], entry: int | None) -> int:
        """See :func:`allranks.schedule.gpu_leases.count_free`."""
        return count_free(gpus, self._entries.get(entry or 0))


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until their stream ends."""
    with ExitStack() as runs:
        known = LockKeeper(runs).requests
        for line in requests:
            name, *arguments = json.loads(line)
            print(json.dumps(known[name](*arguments)), file=answers, flush=True)
