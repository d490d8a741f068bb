"""Ranks that allranks did not start: those of torchrun, srun and mpirun, or one alone.

Nothing is opened before a test asks for it: a suite whose tests need no group runs without a rendezvous.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from allranks.testing.environment import RankEnvironment
from allranks.testing.shared_files import DEFAULT_TIMEOUT, PeerTimeoutError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]  # as all of its stores, not exported for mypy

TIMEOUT_VARIABLE: Final = "ALLRANKS_RENDEZVOUS_TIMEOUT"
"""Seconds for all ranks to ask for their first group or shared folder, and the time limit of its collectives."""

_LAST_WAIT: Final = 10.0
"""Seconds for peers to end their session, while rank 0 still serves their store."""

_STEP_IDS: Final = ("SLURM_STEP_ID", "SLURM_STEPID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
_FIRST_HOST: Final = re.compile(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)")
"""Of SLURM's list of nodes, such as ``gpu[07-09,12],login``: the first one's prefix, number and suffix."""


class NoRendezvousError(RuntimeError):
    """The ranks of several nodes have no address at which to meet."""


class PlainWorld:
    """Creates the default process group when a test asks for it, and a folder that the ranks share.

    Args:
        place: This rank's place.
        environ: Variables of the launcher.

    Attributes:
        timeout: Seconds for all ranks to come.
    """

    def __init__(self, place: RankEnvironment, environ: Mapping[str, str] = os.environ) -> None:
        self._place = place
        self._environ = environ
        self.timeout = float(environ.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
        self._opened: Store | None = None
        self._groups = 0
        self._group: ProcessGroup | None = None

    def join(self) -> "ProcessGroup":
        """The default process group; all ranks make it, once."""
        import torch
        from torch import distributed
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        if distributed.group.WORLD is not None:
            return distributed.group.WORLD
        place, self._groups = self._place, self._groups + 1
        self._meet(f"group {self._groups}")
        if place.backend == "nccl" and torch.cuda.is_available():  # without a GPU, torch says so below
            torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
        distributed.init_process_group(
            place.backend,
            store=PrefixStore(f"group {self._groups}", self.open()),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=self.timeout),
        )
        self._group = cast("ProcessGroup", distributed.group.WORLD)
        return self._group

    def leave(self) -> None:
        """Destroy the group if :meth:`join` made it, and it is still there."""
        if self._group is None:
            return
        from torch import distributed

        if distributed.group.WORLD is self._group:
            distributed.destroy_process_group()
        self._group = None

    def shared_folder(self, make: Callable[[], Path]) -> Path:
        """A folder that all ranks share; rank 0 makes it. Ranks on several nodes cannot have one."""
        if self._place.local_world_size < self._place.world_size:
            msg = (
                f"the {self._place.world_size} ranks of this world are on several nodes, and have no folder that they "
                "share\nSet ALLRANKS_SHARED to a folder of a file system that all nodes share."
            )
            raise NoRendezvousError(msg)
        if self._place.rank == 0:
            folder = make()
            self.open().set("shared folder", str(folder))
        self._meet("shared folder")
        return Path(os.fsdecode(self.open().get("shared folder")))

    def close(self) -> None:
        """End the group and the store. Rank 0, which may serve the store, waits for its peers to end, too."""
        self.leave()
        store, self._opened = self._opened, None
        if store is None:
            return
        with suppress(RuntimeError):  # peers that are gone, or do not come: nobody needs the store then
            store.set(f"end {self._place.rank}", "")
            if self._place.rank == 0:
                ends = [f"end {rank}" for rank in range(self._place.world_size)]
                store.wait(ends, timedelta(seconds=min(self.timeout, _LAST_WAIT)))

    def _meet(self, what: str) -> None:
        """Wait until all ranks have asked for the same."""
        store, size = self.open(), self._place.world_size
        keys = [f"{what} {rank}" for rank in range(size)]
        try:
            store.set(keys[self._place.rank], "")
            store.wait(keys, timedelta(seconds=self.timeout))
        except RuntimeError as error:
            absent = ", ".join(str(rank) for rank in range(size) if not _is_there(store, keys[rank]))
            why = f"nothing came from rank {absent}"
            raise self._too_late(why) from error

    def _too_late(self, why: str) -> PeerTimeoutError:
        place = self._place
        msg = (
            f"the ranks did not meet within {self.timeout:g} s: {why}\n"
            f"This is rank {place.rank} of {place.world_size}, as {place.launcher} says. Every rank must run the same "
            f"tests in the same order; {TIMEOUT_VARIABLE} changes the limit."
        )
        return PeerTimeoutError(msg)

    def open(self) -> "Store":
        """The store of all ranks; the first call opens it, with those of the other ranks."""
        if self._opened is None:
            try:
                self._opened = self._open()
            except RuntimeError as error:
                if isinstance(error, NoRendezvousError):
                    raise
                why = f"the store at {':'.join(self._address() or ())} cannot be reached ({error})"
                raise self._too_late(why) from error
        return self._opened

    def _open(self) -> "Store":
        from torch.distributed import FileStore, HashStore, rendezvous  # type: ignore[attr-defined]

        place = self._place
        if place.world_size == 1:
            return HashStore()
        if (address := self._address()) is not None:
            url = f"env://?rank={place.rank}&world_size={place.world_size}"
            # The rendezvous reads them, and so do tests that make groups of their own.
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address
            store: Store = next(rendezvous(url, timeout=timedelta(seconds=self.timeout)))[0]
            return store
        if place.local_world_size == place.world_size:
            return FileStore(str(self._meeting_file()), place.world_size)
        msg = (
            f"the {place.world_size} ranks of this world are on several nodes, and nothing says where they meet\n"
            "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port there, for all ranks."
        )
        raise NoRendezvousError(msg)

    def _address(self) -> tuple[str, str] | None:
        """Where rank 0 serves the store: the launcher's own words, or the first node of SLURM's step."""
        if "MASTER_ADDR" in self._environ and "MASTER_PORT" in self._environ:
            return self._environ["MASTER_ADDR"], self._environ["MASTER_PORT"]
        nodes = self._environ.get("SLURM_STEP_NODELIST", "")
        if self._place.launcher != "srun" or self._place.local_world_size == self._place.world_size or not nodes:
            return None
        found = _FIRST_HOST.match(nodes)
        first = "".join(part or "" for part in found.groups()) if found else ""
        # Below the ports that kernels hand out, and another one for each step.
        port = 15_000 + int(hashlib.blake2b(self._step().encode(), digest_size=4).hexdigest(), 16) % 15_000
        return self._environ.get("MASTER_ADDR", first), self._environ.get("MASTER_PORT", str(port))

    def _meeting_file(self) -> Path:
        """A file that the ranks of one start on one node, and no others, agree on."""
        name = hashlib.blake2b(self._step().encode(), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"allranks-world-{os.getuid()}-{name}"

    def _step(self) -> str:
        """What tells this start of ranks from all others: the launcher's job, or the process that started them."""
        ids = [self._environ[name] for name in _STEP_IDS if name in self._environ]
        if ids:
            return " ".join([self._environ.get("SLURM_JOB_ID", ""), *ids])
        parent = os.getppid()
        return f"{parent} {_start_of(parent)}"


def _start_of(pid: int) -> str:
    """When a process started, in ticks since boot: another process may get its number later (proc(5), field 22)."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]


def _is_there(store: "Store", key: str) -> bool:
    with suppress(RuntimeError):
        return bool(store.check([key]))
    return False
