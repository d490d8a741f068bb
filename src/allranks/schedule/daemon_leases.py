"""GPU leases of a run in a container, which a keeper holds for it on the daemon's host."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from allranks.errors import EngineError
from allranks.schedule.gpu_leases import Holder, Lease

if TYPE_CHECKING:
    from allranks.engine.host_locks import HostLocks


@dataclass(frozen=True)
class KeptEntry:
    """A place in the host's queue; see :class:`allranks.schedule.gpu_leases.QueueEntry`."""

    locks: "HostLocks"
    number: int

    def touch(self) -> None:
        """Show that its owner still waits."""
        self.locks.ask("touch", self.number)

    def leave(self) -> None:
        """Give the place up."""
        _give_back(self.locks, "leave_queue", self.number)


@dataclass(frozen=True)
class DaemonLeases:
    """See :class:`allranks.schedule.gpu_pool.Leasing`; any of it may raise an :class:`EngineError`."""

    locks: "HostLocks"

    def try_lease(
        self, gpus: Sequence[str], count: int, holder: Holder | None = None, ticket: KeptEntry | None = None
    ) -> Lease | None:
        """See :func:`allranks.schedule.gpu_leases.try_lease`."""
        if not count:
            return Lease()
        found = self.locks.ask("lease", list(gpus), count, asdict(holder or Holder()), _number(ticket))
        if found is None:
            return None
        number, leased = found
        return Lease(gpus=tuple(leased), end=partial(_give_back, self.locks, "end_lease", number))

    def stand_in_line(self, gpus: Sequence[str]) -> KeptEntry:
        """See :func:`allranks.schedule.gpu_leases.stand_in_line`."""
        return KeptEntry(self.locks, self.locks.ask("join_queue", list(gpus)))

    def count_free(self, gpus: Iterable[str], ticket: KeptEntry | None = None) -> int:
        """See :func:`allranks.schedule.gpu_leases.count_free`; all of them until there is an image for the keeper."""
        wanted = list(gpus)
        return int(self.locks.ask("count_free", wanted, _number(ticket))) if self.locks.place else len(wanted)


def _give_back(locks: "HostLocks", request: str, number: int) -> None:
    with suppress(EngineError):  # the keeper has ended, and has given all back; the next lease reports that
        locks.ask(request, number)


def _number(ticket: KeptEntry | None) -> int | None:
    return None if ticket is None else ticket.number
