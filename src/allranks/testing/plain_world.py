"""Support for ranks that allranks did not start: ranks of torchrun, srun or mpirun, or a single process.

The rendezvous takes place when the first test needs it. A suite whose tests need no process group runs without one.
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

from allranks.protocol.outcomes import named_ranks
from allranks.testing.environment import RankEnvironment
from allranks.testing.shared_files import DEFAULT_TIMEOUT, PeerTimeoutError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined]  # as all of its stores, not exported for mypy

TIMEOUT_VARIABLE: Final = "ALLRANKS_RENDEZVOUS_TIMEOUT"
"""The environment variable with the time limit in seconds of the rendezvous and of the group's collectives."""

_LAST_WAIT: Final = 10.0
"""Seconds that rank 0, which serves the store, waits at the end for its peers."""

_STEP_IDS: Final = ("SLURM_STEP_ID", "SLURM_STEPID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
_FIRST_HOST: Final = re.compile(r"([^\[,]*)(?:\[([^\],-]+)[^\]]*\])?([^,\[]*)")
"""The prefix, number and suffix of the first node in SLURM's list of nodes, such as ``gpu[07-09,12],login``."""


class NoRendezvousError(RuntimeError):
    """The ranks are on several nodes and have no address for a rendezvous."""


class PlainWorld:
    """Creates the default process group and the shared folder when a test needs them.

    Args:
        environment: The environment of this rank.
        variables: Environment variables of the launcher.

    Attributes:
        timeout: Time limit of the rendezvous and of the group's collectives, in seconds.
    """

    def __init__(self, environment: RankEnvironment, variables: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._variables = variables
        self.timeout = float(variables.get(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT))
        self._opened: Store | None = None
        self._groups = 0
        self._group: ProcessGroup | None = None

    def join(self) -> "ProcessGroup":
        """Return the default process group; the first call creates it together with all other ranks."""
        import torch
        from torch import distributed
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        if distributed.group.WORLD is not None:
            return distributed.group.WORLD
        environment, self._groups = self._environment, self._groups + 1
        self._wait_for_ranks(f"group {self._groups}")
        if environment.backend == "nccl" and torch.cuda.is_available():  # without GPUs, init_process_group raises
            torch.cuda.set_device(environment.local_rank % torch.cuda.device_count())
        distributed.init_process_group(
            environment.backend,
            store=PrefixStore(f"group {self._groups}", self.open()),
            rank=environment.rank,
            world_size=environment.world_size,
            timeout=timedelta(seconds=self.timeout),
        )
        self._group = cast("ProcessGroup", distributed.group.WORLD)
        return self._group

    def leave(self) -> None:
        """Destroy the default process group, if :meth:`join` created it."""
        if self._group is None:
            return
        from torch import distributed

        if distributed.group.WORLD is self._group:
            distributed.destroy_process_group()
        self._group = None

    def shared_folder(self, make: Callable[[], Path]) -> Path:
        """A folder that all ranks share; rank 0 creates it with `make`.

        Raises:
            NoRendezvousError: The ranks are on several nodes.
        """
        environment = self._environment
        if environment.local_world_size < environment.world_size:
            msg = (
                f"the {environment.world_size} ranks are on several nodes and have no shared folder\n"
                "Set ALLRANKS_SHARED to a folder on a file system that all nodes share."
            )
            raise NoRendezvousError(msg)
        if environment.rank == 0:
            self.open().set("shared folder", str(make()))
        self._wait_for_ranks("shared folder")
        return Path(os.fsdecode(self.open().get("shared folder")))

    def close(self) -> None:
        """Destroy the group and close the store. Rank 0, which may serve the store, first waits for its peers."""
        self.leave()
        store, self._opened = self._opened, None
        if store is None:
            return
        with suppress(RuntimeError):  # if peers have ended or do not arrive, they do not need the store
            store.set(f"end {self._environment.rank}", "")
            if self._environment.rank == 0:
                ends = [f"end {rank}" for rank in range(self._environment.world_size)]
                store.wait(ends, timedelta(seconds=min(self.timeout, _LAST_WAIT)))

    def _wait_for_ranks(self, what: str) -> None:
        """Wait until all ranks have made the same call."""
        store, size = self.open(), self._environment.world_size
        keys = [f"{what} {rank}" for rank in range(size)]
        try:
            store.set(keys[self._environment.rank], "")
            store.wait(keys, timedelta(seconds=self.timeout))
        except RuntimeError as error:
            missing = [rank for rank in range(size) if not _has_key(store, keys[rank])]
            why = f"{named_ranks(missing)} did not arrive"
            raise self._timeout_error(why) from error

    def _timeout_error(self, why: str) -> PeerTimeoutError:
        environment = self._environment
        msg = (
            f"the rendezvous of the ranks did not finish within {self.timeout:g} s: {why}\n"
            f"This is rank {environment.rank} of {environment.world_size}, according to {environment.launcher}. All "
            f"ranks must run the same tests in the same order; {TIMEOUT_VARIABLE} sets the time limit."
        )
        return PeerTimeoutError(msg)

    def open(self) -> "Store":
        """The store of all ranks; the first call opens it together with the other ranks."""
        if self._opened is None:
            try:
                self._opened = self._open()
            except RuntimeError as error:
                if isinstance(error, NoRendezvousError):
                    raise
                why = f"the store at {':'.join(self._address() or ())} cannot be reached ({error})"
                raise self._timeout_error(why) from error
        return self._opened

    def _open(self) -> "Store":
        from torch.distributed import FileStore, HashStore, rendezvous  # type: ignore[attr-defined]

        environment = self._environment
        if environment.world_size == 1:
            return HashStore()
        if (address := self._address()) is not None:
            url = f"env://?rank={environment.rank}&world_size={environment.world_size}"
            # Set for the rendezvous, and for tests that create their own groups.
            os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address
            store: Store = next(rendezvous(url, timeout=timedelta(seconds=self.timeout)))[0]
            return store
        if environment.local_world_size == environment.world_size:
            return FileStore(str(self._rendezvous_file()), environment.world_size)
        msg = (
            f"the {environment.world_size} ranks are on several nodes and have no address for a rendezvous\n"
            "For all ranks, set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port on that host."
        )
        raise NoRendezvousError(msg)

    def _address(self) -> tuple[str, str] | None:
        """The host and port where rank 0 serves the store: from the launcher, or from SLURM's list of nodes."""
        variables, environment = self._variables, self._environment
        if "MASTER_ADDR" in variables and "MASTER_PORT" in variables:
            return variables["MASTER_ADDR"], variables["MASTER_PORT"]
        nodes = variables.get("SLURM_STEP_NODELIST", "")
        if environment.launcher != "srun" or environment.local_world_size == environment.world_size or not nodes:
            return None
        match = _FIRST_HOST.match(nodes)
        first = "".join(part or "" for part in match.groups()) if match else ""
        # Below the range of ephemeral ports, and different for each step.
        port = 15_000 + int(hashlib.blake2b(self._launch_id().encode(), digest_size=4).hexdigest(), 16) % 15_000
        return variables.get("MASTER_ADDR", first), variables.get("MASTER_PORT", str(port))

    def _rendezvous_file(self) -> Path:
        """The path of a file that only the ranks of this launch use; all of them are on one node."""
        name = hashlib.blake2b(self._launch_id().encode(), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"allranks-world-{os.getuid()}-{name}"

    def _launch_id(self) -> str:
        """A name that is unique to this launch: the launcher's ids, or the process that started the ranks."""
        ids = [self._variables[name] for name in _STEP_IDS if name in self._variables]
        if ids:
            return " ".join([self._variables.get("SLURM_JOB_ID", ""), *ids])
        parent = os.getppid()
        return f"{parent} {_start_time(parent)}"


def _start_time(pid: int) -> str:
    """The start of a process in clock ticks since boot (proc(5), field 22), because process ids are reused."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]


def _has_key(store: "Store", key: str) -> bool:
    with suppress(RuntimeError):
        return bool(store.check([key]))
    return False
