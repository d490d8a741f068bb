"""The supervisor of one node of a cluster's job: runs the agent by files of a shared folder.

No connection to the orchestrator is needed, which may be suspended, killed or started again meanwhile. The files:
:mod:`allranks.plugins.slurm.agent.node_files`.
"""

import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, NoReturn

if not __package__:
    sys.path.insert(0, str(Path(__file__).parents[4]))

from allranks.agent import linux
from allranks.agent.container_init import COMMAND, STOP_GRACE, end_orphans
from allranks.agent.evidence import FULL
from allranks.agent.rendezvous import hold_port
from allranks.plugins.slurm.agent import node_docker
from allranks.plugins.slurm.agent.node_container import (
    INSIDE,
    AgentFolders,
    AgentLaunch,
    agent_command,
    contained,
    make_mount_points,
)
from allranks.plugins.slurm.agent.node_docker import NodeContainer
from allranks.plugins.slurm.agent.node_files import (
    BEAT,
    CONFIG,
    EXIT,
    GO,
    HANG_UP,
    MEETING,
    ORDER,
    PLACED,
    RESULTS,
    SHARED,
    STREAM,
    AgentExit,
    NodeOrder,
    Placed,
    is_gone,
    is_there,
    write_reserved,
    write_whole,
)
from allranks.plugins.slurm.agent.node_scratch import scratch_folder
from allranks.plugins.slurm.agent.record_forwarder import PATIENCE, SLOW, RecordForwarder
from allranks.protocol.config import AgentConfig, GpuToCheck, NodeConfig, TimeLimit
from allranks.protocol.outcomes import MESSAGE_LIMIT, shorten

ADDRESS_VARIABLE: Final = "ALLRANKS_NODE_ADDRESS"
"""Names an address at which other nodes may reach this one; it counts only where it is this node's."""

_LOOK_AGAIN: Final = 0.2
"""Seconds between two looks at the orders, which cost two look-ups in the shared folder."""

_LAST_WRITES: Final = 5.0
"""Seconds for the last records of a node that was told to end: SLURM kills it after 30, or what KillWait says."""

_OF_THE_DISK: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])

_SIOCGIFADDR: Final = 0x8915


class NodeSupervisor:
    """One node of a job.

    Args:
        environ: The variables of this process, which the cluster has set.
    """

    def __init__(self, folder: Path, node: int, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._own = folder / f"node-{node}"
        self._node = node
        self._environ = environ
        self._signals: list[str] = []
        self._trouble = ""

    def run(self) -> int:
        """Run the agent to its end; return its exit status as a shell encodes it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            is_asked_for = number in (signal.SIGTERM, signal.SIGUSR1)  # the engine and SLURM send these
            if is_asked_for or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        linux.adopt_orphans()
        kills_before = linux.killed_for_memory()  # without cgroups of its jobs, SLURM's daemon counts those of all
        placed = Placed(at=time.time(), host=socket.gethostname())
        write_reserved(self._own / PLACED, placed)
        try:
            with scratch_folder(self._folder) as (scratch, lock):  # sockets need short names
                ended = self._run(scratch, lock)
                end_orphans()
        except (OSError, ValueError) as error:
            code = error.errno if isinstance(error, OSError) else None
            trouble = os.strerror(code) if code is not None and code in _OF_THE_DISK else ""
            output = shorten(f"{type(error).__name__}: {error}", MESSAGE_LIMIT)
            ended = AgentExit(status=None, output=output, trouble=trouble)
        finally:
            end_orphans()
        kills = linux.killed_for_memory() - kills_before
        ended = replace(ended, signals=tuple(self._signals), memory_kills=kills)
        write_reserved(self._own / EXIT, ended)
        status = 1 if ended.status is None else ended.status
        return status if status >= 0 else 128 - status

    def _note(self, number: int, _frame: object) -> None:
        self._signals.append(signal.Signals(number).name)

    def _run(self, scratch: Path, lock: int) -> AgentExit:
        order = NodeOrder(**json.loads((self._folder / ORDER).read_text(encoding="utf-8")))
        config = AgentConfig.read(self._own / CONFIG)
        variables = {**self._environ, "TMPDIR": str(scratch)}
        if config.gpu_count and (gpus := gpus_to_check(self._environ)):
            config = replace(config, check_gpus=gpus)
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.visible for gpu in gpus)
        held = None
        if config.node_config is not None:
            post, held = self._meet(config.node_config, config.limits.limit("assembly"))
            config = replace(config, node_config=post, master_addr=post.leader)
            if interface := interface_towards(post.leader):
                variables.update(GLOO_SOCKET_IFNAME=interface, TP_SOCKET_IFNAME=interface)
        write_whole(self._own / CONFIG, config.to_json())
        (self._own / RESULTS).mkdir(exist_ok=True)
        try:
            return self._run_agent(self._launch(order, scratch, variables), lock)
        finally:
            if held is not None:
                held.close()

    def _meet(self, post: NodeConfig, limit: TimeLimit) -> tuple[NodeConfig, socket.socket | None]:
        """The place of this agent, with the leading one's address, and on that one's node its port, held to its end.

        Raises:
            OSError: Node 0 has not told it in this time.
        """
        path = self._folder / MEETING
        held = None
        if self._node == 0:
            held = hold_port(host=own_address(self._environ))
            address, port = held.getsockname()
            write_whole(path, json.dumps({"leader": address, "port": port}))
        deadline = time.monotonic() + limit.seconds
        while not path.exists():
            if time.monotonic() > deadline or self._is_to_end():
                msg = f"node 0 has not told its address within {limit.words()}"
                raise OSError(msg)
            time.sleep(_LOOK_AGAIN)
        return replace(post, **json.loads(path.read_text(encoding="utf-8"))), held

    def _launch(self, order: NodeOrder, scratch: Path, variables: Mapping[str, str]) -> AgentLaunch:
        outside = AgentFolders(job=self._folder, code=Path(order.code), package=COMMAND.parents[2])
        if not order.container:
            return AgentLaunch(command=agent_command(order.python, outside, self._node), variables=variables)
        make_mount_points(scratch)
        agent = agent_command(order.python, INSIDE, self._node)
        runtime, _, image = order.container.partition(":")
        if runtime == node_docker.RUNTIME:
            name = f"{self._folder.name}-node{self._node}"
            container = NodeContainer(name=name, image=image, options=order.options, variables=variables)
            return container.launch(agent, outside, scratch)
        return contained(order.container, agent, outside, scratch, variables)

    def _run_agent(self, launch: AgentLaunch, lock: int) -> AgentExit:
        with node_docker.removed_at_end(launch):
            ended = self._watch(*self._start(launch, lock))
        return replace(ended, status=node_docker.agent_status(ended.status)) if launch.container else ended

    def _start(self, launch: AgentLaunch, lock: int) -> tuple[subprocess.Popen[bytes], RecordForwarder]:
        source, target = os.pipe()
        records = RecordForwarder(source, self._own / STREAM)
        try:
            agent = subprocess.Popen(
                launch.command,
                stdin=subprocess.PIPE,
                stdout=target,
                # Docker's client copies the two in pieces, between which a record would be torn.
                stderr=None if launch.container else subprocess.STDOUT,
                env=dict(launch.variables),
                cwd=self._folder / SHARED,
                start_new_session=True,
                pass_fds=(lock,),
            )
        finally:
            os.close(target)
        return agent, records

    def _watch(self, agent: subprocess.Popen[bytes], records: RecordForwarder) -> AgentExit:
        """Pass on orders until the agent ends; kill it if it outlives the end of its standard input."""
        pidfd = os.pidfd_open(agent.pid)
        deadline: float | None = None
        has_gone = False
        beat = time.monotonic()
        while not linux.is_readable(pidfd, _LOOK_AGAIN):
            now = time.monotonic()
            if now > beat + BEAT:
                beat = now
                self._beat()
            if not has_gone and deadline is None and is_there(self._folder / GO):
                has_gone = True
                with suppress(BrokenPipeError):
                    _pipe(agent).write(b"go\n")
                    _pipe(agent).flush()
            if deadline is None and (self._is_to_end() or records.stuck > PATIENCE):
                deadline = now + STOP_GRACE
                with suppress(BrokenPipeError):
                    _pipe(agent).close()
            if deadline is not None and now > deadline:
                agent.kill()
        # Not reaped yet, so its number still names this group and no other.
        linux.signal_group(agent.pid, signal.SIGKILL)
        os.close(pidfd)
        with suppress(BrokenPipeError):
            _pipe(agent).close()
        status = agent.wait()
        end_orphans()  # they may hold the pipe
        self._beat()
        records.finish(max(_LAST_WRITES, 0.0 if deadline else PATIENCE - records.stuck))
        return AgentExit(status=status, trouble=records.trouble or self._trouble)

    def _beat(self) -> None:
        """Give a sign of life, and see whether the shared file system is full: tests write there, too."""
        began = time.monotonic()
        with suppress(OSError):
            os.utime(self._own / PLACED)
            if (seconds := time.monotonic() - began) > SLOW:
                self._trouble = f"no answer for {seconds:.0f} s"
            found = os.statvfs(self._own)
            if found.f_bavail * found.f_frsize < FULL:
                self._trouble = os.strerror(errno.ENOSPC)

    def _is_to_end(self) -> bool:
        return bool(self._signals) or is_there(self._folder / HANG_UP) or is_gone(self._own)


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
