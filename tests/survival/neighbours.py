"""What belongs to somebody else, and must be as it was whatever becomes of a run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from world import HostDaemon

from allranks.ownership import HOST_LABEL, HOST_VARIABLE, RUN_LABEL, RUN_VARIABLE, host_id, own_run
from allranks.runner.gpu_leases import Holder, holders, try_lease

LIVING = "survival-neighbour"
GPU = "GPU-of-the-neighbour"
GONE = "a-dead-run"


class Neighbours:
    """A living run of this host, a run of another host, and somebody who knows nothing of allranks.

    Args:
        daemon: Where they have a container, a volume and a network each; None for nowhere.
        temporary: The folder of temporary files that runs of this world use.
        images: The image of their containers, where they have some.
    """

    def __init__(self, daemon: HostDaemon | None, temporary: Path, images: Sequence[str] = ()) -> None:
        self._images = images
        self._daemon = daemon
        self._temporary = temporary
        self._labels = {
            "living": {"allranks": "1", HOST_LABEL: host_id(), RUN_LABEL: LIVING},
            "elsewhere": {"allranks": "1", HOST_LABEL: "0123456789abcdef", RUN_LABEL: GONE},
        }
        if daemon is not None and daemon.is_own:
            # On the host's daemon others count what has no label.
            self._labels["stranger"] = {}
        self._made: frozenset[str] = frozenset()
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def here(self) -> Iterator["Neighbours"]:
        """Have them while the context lasts."""
        with ExitStack() as stack:
            stack.enter_context(own_run(LIVING))
            holder = Holder(run_id=LIVING, job_id="a-cell/a-suite", pid=os.getpid(), since=1.0)
            lease = try_lease([GPU], 1, holder)
            assert lease is not None
            stack.enter_context(lease)
            command = [sys.executable, "-c", "import signal; signal.pause()"]
            self._process = subprocess.Popen(
                command, env={RUN_VARIABLE: LIVING, HOST_VARIABLE: host_id()}, start_new_session=True
            )
            stack.callback(self._process.wait)
            stack.callback(self._process.kill)
            self._folder.mkdir(parents=True)
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            stack.callback(self._remove)
            self._make()
            self._made = frozenset(self._found())
            yield self

    @property
    def _folder(self) -> Path:
        return self._temporary / f"allranks-job-{LIVING}.abc"

    @property
    def pids(self) -> frozenset[int]:
        """Their processes outside of containers."""
        return frozenset([self._process.pid] if self._process else [])

    def _make(self) -> None:
        if self._daemon is None:
            return
        with closing(self._daemon.connect()) as client:
            for name, labels in self._labels.items():
                own = f"survival-{os.getpid()}-{name}"
                client.containers.create(self._images[0], ["sleep", "9"], name=own, labels=labels, network_mode="none")
                client.volumes.create(own, labels=labels)
                client.networks.create(own, labels=labels, internal=True)

    def _remove(self) -> None:
        if self._daemon is None:
            return
        with closing(self._daemon.connect()) as client:
            for name in self._labels:
                own = f"survival-{os.getpid()}-{name}"
                client.containers.get(own).remove(force=True)
                client.volumes.get(own).remove()
                client.networks.get(own).remove()

    def _found(self) -> Iterator[str]:
        if self._daemon is None:
            return
        own = f"survival-{os.getpid()}-"
        with closing(self._daemon.connect()) as client:
            yield from (f"container {item.id}" for item in client.containers.list(all=True, filters={"name": own}))
            yield from (f"volume {item.name}" for item in client.volumes.list(filters={"name": own}))
            yield from (f"network {item.id}" for item in client.networks.list(filters={"name": own}))

    def harm(self) -> Iterator[str]:
        """What is not as it was."""
        yield from (f"gone, and somebody else's: {name}" for name in sorted(self._made - set(self._found())))
        if self._process is not None and self._process.poll() is not None:
            yield "gone, and somebody else's: a process of a living run"
        if not self._folder.is_dir():
            yield "gone, and somebody else's: the folder of a living run"
        holder = holders([GPU])[GPU]
        if holder is None or holder.run_id != LIVING:
            yield f"the lease of a living run is {holder}"
