"""The supervisor of one node of a cluster's job: runs the agent by files of a shared folder.

No connection to the orchestrator is needed, which may be suspended, killed or started again meanwhile::

    job folder
        order.json      the orchestrator: what to run (NodeOrder)
        go, hang-up     the orchestrator: empty files, in the place of the agent's standard input
        meeting.json    node 0: where its agent listens
        shared/         the ranks of all nodes
        node-N/
            config.json     the orchestrator: the agent's configuration, which the agent removes
            placed.json     this process: it has begun (Placed)
            stream          the agent: its records
            supervisor.log  this process: what it prints, where its parent sends it there
            results/        the agent
            exit.json       this process, last of all: how the agent ended (AgentExit)
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final, NoReturn

if not __package__:
    sys.path.insert(0, str(Path(__file__).parents[2]))

from allranks.harness import linux
from allranks.harness.config import AgentConfig, GpuToCheck, NodeConfig
from allranks.harness.container_init import COMMAND, STOP_GRACE, end_orphans
from allranks.harness.node_container import (
    INSIDE,
    AgentFolders,
    AgentLaunch,
    agent_command,
    contained,
    make_mount_points,
)

ORDER, GO, HANG_UP, MEETING, SHARED = "order.json", "go", "hang-up", "meeting.json", "shared"
CONFIG, PLACED, STREAM, RESULTS, EXIT = "config.json", "placed.json", "stream", "results", "exit.json"
LOG = "supervisor.log"

ADDRESS_VARIABLE: Final = "ALLRANKS_NODE_ADDRESS"
"""Names an address at which other nodes may reach this one; it counts only where it is this node's."""

_SCRATCH: Final = "allranks-node-"

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_SETTLED: Final = 60.0
"""Seconds after which a new folder has its lock, if it ever gets one."""

_LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at the orders, which cost two look-ups in the shared folder."""

_SIOCGIFADDR: Final = 0x8915


@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """What every node of a job runs.

    Attributes:
        python: The interpreter.
        code: The folder that the suite's paths are relative to.
        container: What the agent runs in, as ``RUNTIME:IMAGE``; empty for nothing, or if this process is in it as well.
    """

    python: str
    code: str
    container: str = ""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A node's supervisor has begun.

    Attributes:
        at: When, in seconds since the epoch.
        host: The name of the node.
    """

    at: float
    host: str


@dataclass(frozen=True, kw_only=True)
class AgentExit:
    """How the agent of a node ended.

    Attributes:
        status: Its exit status, negative for a signal; None if it was never started.
        signals: The signals by which the cluster told this node to end, in their order.
        memory_kills: How many processes the kernel killed for want of memory, in this job's time.
        output: Why the agent was not started.
    """

    status: int | None
    signals: tuple[str, ...] = ()
    memory_kills: int = 0
    output: str = ""


def write_whole(path: Path, text: str) -> None:
    """Write a file that no other process ever reads in part; only this user may read it."""
    draft = path.with_name(f".{path.name}.part")
    with open(draft, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    draft.replace(path)


class NodeSupervisor:
    """One node of a job.

    Args:
        folder: The job's folder.
        node: The number of this node, from 0.
        environ: The variables of this process, which the cluster has set.
    """

    def __init__(self, folder: Path, node: int, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._own = folder / f"node-{node}"
        self._node = node
        self._environ = environ
        self._signals: list[str] = []

    def run(self) -> int:
        """Run the agent to its end; return its exit status as a shell encodes it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, self._note)
        linux.adopt_orphans()
        kills_before = linux.killed_for_memory()  # without cgroups of its jobs, SLURM's daemon counts those of all
        placed = Placed(at=time.time(), host=socket.gethostname())
        write_whole(self._own / PLACED, json.dumps(asdict(placed)))
        with scratch_folder() as scratch:
            try:
                ended = self._run(scratch)
            except (OSError, ValueError) as error:
                ended = AgentExit(status=None, output=f"{type(error).__name__}: {error}")
            finally:
                end_orphans()
        kills = linux.killed_for_memory() - kills_before
        ended = replace(ended, signals=tuple(self._signals), memory_kills=kills)
        write_whole(self._own / EXIT, json.dumps(asdict(ended)))
        status = 1 if ended.status is None else ended.status
        return status if status >= 0 else 128 - status

    def _note(self, number: int, _frame: object) -> None:
        self._signals.append(signal.Signals(number).name)

    def _run(self, scratch: Path) -> AgentExit:
        order = NodeOrder(**json.loads((self._folder / ORDER).read_text(encoding="utf-8")))
        config = AgentConfig.read(self._own / CONFIG)
        variables = {**self._environ, "TMPDIR": str(scratch)}
        if config.gpu_count and (gpus := gpus_to_check(self._environ)):
            config = replace(config, check_gpus=gpus)
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.visible for gpu in gpus)
        held = None
        if config.post is not None:
            post, held = self._meet(config.post, config.limits.assembly)
            config = replace(config, post=post, master_addr=post.leader)
            if interface := interface_towards(post.leader):
                variables.update(GLOO_SOCKET_IFNAME=interface, TP_SOCKET_IFNAME=interface)
        write_whole(self._own / CONFIG, config.to_json())
        (self._own / RESULTS).mkdir(exist_ok=True)
        try:
            return self._watch(self._start(self._launch(order, scratch, variables)))
        finally:
            if held is not None:
                held.close()

    def _meet(self, post: NodeConfig, seconds: float) -> tuple[NodeConfig, socket.socket | None]:
        """The place of this agent, with the leading one's address, and on that one's node its port, held to its end.

        Raises:
            OSError: Node 0 has not told it in this time.
        """
        path = self._folder / MEETING
        held = None
        if self._node == 0:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((own_address(self._environ), 0))
            address, port = held.getsockname()
            write_whole(path, json.dumps({"leader": address, "port": port}))
        deadline = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > deadline or self._signals:
                msg = f"node 0 has not told its address in {seconds:g} s"
                raise OSError(msg)
            time.sleep(_LOOK_AGAIN)
        return replace(post, **json.loads(path.read_text(encoding="utf-8"))), held

    def _launch(self, order: NodeOrder, scratch: Path, variables: Mapping[str, str]) -> AgentLaunch:
        outside = AgentFolders(job=self._folder, code=Path(order.code), package=COMMAND.parents[2])
        if not order.container:
            return AgentLaunch(command=agent_command(order.python, outside, self._node), variables=variables)
        make_mount_points(scratch)
        agent = agent_command(order.python, INSIDE, self._node)
        return contained(order.container, agent, outside, scratch, variables)

    def _start(self, launch: AgentLaunch) -> subprocess.Popen[bytes]:
        with (self._own / STREAM).open("ab") as stream:
            return subprocess.Popen(
                launch.command,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=dict(launch.variables),
                cwd=self._folder / SHARED,
                start_new_session=True,
            )

    def _watch(self, agent: subprocess.Popen[bytes]) -> AgentExit:
        """Pass on orders until the agent ends; kill it if it outlives the end of its standard input."""
        pidfd = os.pidfd_open(agent.pid)
        deadline: float | None = None
        has_gone = False
        while not linux.is_readable(pidfd, _LOOK_AGAIN):
            now = time.monotonic()
            if not has_gone and deadline is None and is_there(self._folder / GO):
                has_gone = True
                with suppress(BrokenPipeError):
                    _pipe(agent).write(b"go\n")
                    _pipe(agent).flush()
            if deadline is None and (self._signals or is_there(self._folder / HANG_UP) or is_gone(self._own)):
                deadline = now + STOP_GRACE
                with suppress(BrokenPipeError):
                    _pipe(agent).close()
            if deadline is not None and now > deadline:
                agent.kill()
        # Not reaped yet, so its number still names this group and no other.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(agent.pid, signal.SIGKILL)
        os.close(pidfd)
        return AgentExit(status=agent.wait())


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the node's own disk, where sockets have short names; its lock shows that its supervisor lives."""
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH))
    descriptor = os.open(scratch, _FOLDER)
    try:
        with suppress(OSError):  # no locks here: no other supervisor can have it then
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        _remove_abandoned(scratch.parent)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    """Remove what supervisors of this user that were killed have left on this node, which only a next one can do."""
    for path in folder.glob(f"{_SCRATCH}*"):
        with suppress(OSError):
            descriptor = os.open(path, _FOLDER)
            try:
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and found.st_mtime < time.time() - _SETTLED:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def is_there(path: Path) -> bool:
    """Whether a file is seen; a file system that does not answer well shows none for now."""
    with suppress(OSError):
        path.stat()
        return True
    return False


def is_gone(folder: Path) -> bool:
    """Whether a folder has been removed, and is not just out of sight: nothing could be reported any more."""
    try:
        folder.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _pipe(agent: subprocess.Popen[bytes]) -> IO[bytes]:
    if agent.stdin is None:
        msg = "the agent was started without a pipe"
        raise ValueError(msg)
    return agent.stdin


def own_address(environ: Mapping[str, str]) -> str:
    """The address of this node at which others reach it: that which it was given, if it is here, or its name's."""
    found = ""
    for name in (environ.get(ADDRESS_VARIABLE, ""), environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), socket.gethostname()):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((name, 0))
            if name:
                found = str(probe.getsockname()[0])
                break
    if not found.startswith("127."):
        return found or "127.0.0.1"
    # Debian gives a host's own name a loopback address.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: it is an address of documentation (RFC 5737)
        found = str(probe.getsockname()[0])
    return found


def interface_towards(address: str) -> str:
    """The network interface from which this node reaches an address; empty if it is not found."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # nothing is sent
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if answer[20:24] == own:
                    return name
    return ""


def gpus_to_check(environ: Mapping[str, str]) -> tuple[GpuToCheck, ...]:
    """The GPUs that the cluster gave to this node's step, by their ids: its numbers may begin anew in each job.

    Without NVIDIA's tool they keep the numbers that the cluster has set, and are not checked.
    """
    numbers = [part for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    try:
        asked = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    ids = dict(line.split(", ", 1) for line in told.splitlines() if ", " in line)
    host = socket.gethostname()
    chosen = [(number, ids.get(number, number)) for number in numbers]
    return tuple(GpuToCheck(gpu=gpu, visible=gpu, name=f"GPU {number} of {host} ({gpu})") for number, gpu in chosen)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one node of the job in this folder.

    SLURM names the node by a variable, and ends this process with its step. Other parents name it by an argument, and
    their end is this process's.
    """
    folder, *named = arguments
    if named:
        linux.die_with_parent(signal.SIGTERM)
    node = int(named[0] if named else os.environ["SLURM_NODEID"])
    sys.exit(NodeSupervisor(Path(folder), node, os.environ).run())


if __name__ == "__main__":
    main(sys.argv[1:])
