"""The supervisor of one node of a cluster's job: runs the agent, controlled through files in a shared folder.

It needs no connection to the orchestrator, which may be suspended, killed or restarted in the meantime. For the files
see :mod:`allranks.plugins.slurm.agent.node_files`.
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
    CONFIG,
    EXIT,
    GO,
    HEARTBEAT,
    ORDER,
    PLACED,
    RENDEZVOUS,
    RESULTS,
    SHARED,
    STOP,
    STREAM,
    AgentExit,
    NodeOrder,
    Placed,
    is_gone,
    is_there,
    write_in_reserved_space,
    write_whole,
)
from allranks.plugins.slurm.agent.node_scratch import scratch_folder
from allranks.plugins.slurm.agent.record_forwarder import SLOW, WRITE_LIMIT, RecordForwarder
from allranks.protocol.config import AgentConfig, GpuToCheck, NodeConfig, TimeLimit
from allranks.protocol.outcomes import MESSAGE_LIMIT, shorten

ADDRESS_VARIABLE: Final = "ALLRANKS_NODE_ADDRESS"
"""An address at which other nodes may reach this node; it is ignored if it is another node's address."""

_POLL_INTERVAL: Final = 0.2
"""Seconds between two polls for `go` and `stop`, which cost two look-ups in the shared folder."""

_LAST_WRITES: Final = 5.0
"""Seconds to write the last records of a node that was terminated: SLURM kills it after KillWait, by default 30 s."""

_STORAGE_ERRORS: Final = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT])

_SIOCGIFADDR: Final = 0x8915


class NodeSupervisor:
    """One node of a job."""

    def __init__(self, folder: Path, node: int, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._own = folder / f"node-{node}"
        self._node = node
        self._environ = environ
        self._signals: list[str] = []
        self._storage_error = ""

    def run(self) -> int:
        """Run the agent to its end; return its exit status as a shell encodes it."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            is_requested = number in (signal.SIGTERM, signal.SIGUSR1)  # the engine and SLURM send these
            if is_requested or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        linux.adopt_orphans()
        kills_before = linux.killed_for_memory()  # if SLURM gives jobs no cgroups, other jobs count as well
        placed = Placed(at=time.time(), host=socket.gethostname())
        write_in_reserved_space(self._own / PLACED, placed)
        try:
            with scratch_folder(self._folder) as (scratch, lock):  # sockets need short paths
                ended = self._run(scratch, lock)
                end_orphans()
        except (OSError, ValueError) as error:
            code = error.errno if isinstance(error, OSError) else None
            storage_error = os.strerror(code) if code is not None and code in _STORAGE_ERRORS else ""
            output = shorten(f"{type(error).__name__}: {error}", MESSAGE_LIMIT)
            ended = AgentExit(status=None, output=output, storage_error=storage_error)
        finally:
            end_orphans()
        kills = linux.killed_for_memory() - kills_before
        ended = replace(ended, signals=tuple(self._signals), memory_kills=kills)
        write_in_reserved_space(self._own / EXIT, ended)
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
            own, held = self._rendezvous(config.node_config, config.limits.limit("assembly"))
            config = replace(config, node_config=own, master_addr=own.leader)
            if interface := interface_towards(own.leader):
                variables.update(GLOO_SOCKET_IFNAME=interface, TP_SOCKET_IFNAME=interface)
        write_whole(self._own / CONFIG, config.to_json())
        (self._own / RESULTS).mkdir(exist_ok=True)
        try:
            return self._run_agent(self._launch(order, scratch, variables), lock)
        finally:
            if held is not None:
                held.close()

    def _rendezvous(self, own: NodeConfig, limit: TimeLimit) -> tuple[NodeConfig, socket.socket | None]:
        """Complete the node's configuration with the address of node 0, which also returns its reserved port.

        Raises:
            OSError: Node 0 has not published its address within the limit.
        """
        path = self._folder / RENDEZVOUS
        held = None
        if self._node == 0:
            held = hold_port(host=own_address(self._environ))
            address, port = held.getsockname()
            write_whole(path, json.dumps({"leader": address, "port": port}))
        deadline = time.monotonic() + limit.seconds
        while not path.exists():
            if time.monotonic() > deadline or self._should_end():
                msg = f"node 0 has not published its address within {limit.words()}"
                raise OSError(msg)
            time.sleep(_POLL_INTERVAL)
        return replace(own, **json.loads(path.read_text(encoding="utf-8"))), held

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
                # Docker's client copies the two streams in chunks, which would tear records apart.
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
        """Forward `go` and `stop` until the agent ends; kill it if it does not end after its input was closed."""
        pidfd = os.pidfd_open(agent.pid)
        deadline: float | None = None
        has_started = False
        last_heartbeat = time.monotonic()
        while not linux.is_readable(pidfd, _POLL_INTERVAL):
            now = time.monotonic()
            if now > last_heartbeat + HEARTBEAT:
                last_heartbeat = now
                self._heartbeat()
            if not has_started and deadline is None and is_there(self._folder / GO):
                has_started = True
                with suppress(BrokenPipeError):
                    _pipe(agent).write(b"go\n")
                    _pipe(agent).flush()
            if deadline is None and (self._should_end() or records.stuck > WRITE_LIMIT):
                deadline = now + STOP_GRACE
                with suppress(BrokenPipeError):
                    _pipe(agent).close()
            if deadline is not None and now > deadline:
                agent.kill()
        # The agent is not reaped yet, so no other process group can have its id.
        linux.signal_group(agent.pid, signal.SIGKILL)
        os.close(pidfd)
        with suppress(BrokenPipeError):
            _pipe(agent).close()
        status = agent.wait()
        end_orphans()  # they may hold the pipe
        self._heartbeat()
        records.finish(max(_LAST_WRITES, 0.0 if deadline else WRITE_LIMIT - records.stuck))
        return AgentExit(status=status, storage_error=records.storage_error or self._storage_error)

    def _heartbeat(self) -> None:
        """Touch the heartbeat file, and check whether the shared file system is full: tests write there, too."""
        began = time.monotonic()
        with suppress(OSError):
            os.utime(self._own / PLACED)
            if (seconds := time.monotonic() - began) > SLOW:
                self._storage_error = f"no answer for {seconds:.0f} s"
            found = os.statvfs(self._own)
            if found.f_bavail * found.f_frsize < FULL:
                self._storage_error = os.strerror(errno.ENOSPC)

    def _should_end(self) -> bool:
        return bool(self._signals) or is_there(self._folder / STOP) or is_gone(self._own)


def _pipe(agent: subprocess.Popen[bytes]) -> IO[bytes]:
    if agent.stdin is None:
        msg = "the agent was started without a pipe"
        raise ValueError(msg)
    return agent.stdin


def own_address(environ: Mapping[str, str]) -> str:
    """The address at which other nodes reach this node: from a variable, if it is its own, or from its host name."""
    found = ""
    names = (environ.get(ADDRESS_VARIABLE), environ.get("SLURM_LAUNCH_NODE_IPADDR"), socket.gethostname())
    for name in filter(None, names):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((name, 0))
            found = str(probe.getsockname()[0])
            break
    if not found.startswith("127."):
        return found or "127.0.0.1"
    # Debian gives a host's own name a loopback address.
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: the address is reserved for documentation (RFC 5737)
        found = str(probe.getsockname()[0])
    return found


def interface_towards(address: str) -> str:
    """The network interface through which this node reaches an address; empty if it is not found."""
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
    """The GPUs that the cluster gave to this node's step, by UUID: their numbers may start at 0 in each job.

    Empty without nvidia-smi: then GPUs are not checked, and ``CUDA_VISIBLE_DEVICES`` stays as the cluster has set it.
    """
    numbers = [part for part in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    try:
        command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    ids = dict(line.split(", ", 1) for line in output.splitlines() if ", " in line)
    host = socket.gethostname()
    chosen = [(number, ids.get(number, number)) for number in numbers]
    return tuple(GpuToCheck(gpu=gpu, visible=gpu, name=f"GPU {number} of {host} ({gpu})") for number, gpu in chosen)


def main(arguments: Sequence[str]) -> NoReturn:
    """Run one node of a job, given the job's folder and the number of the node.

    Under SLURM, there is no number: the node is in ``SLURM_NODEID``, and SLURM ends this process with its step. With a
    number, this process ends with its parent.
    """
    folder, *node_argument = arguments
    if node_argument:
        linux.die_with_parent(signal.SIGTERM)
    node = int(node_argument[0] if node_argument else os.environ["SLURM_NODEID"])
    sys.exit(NodeSupervisor(Path(folder), node, os.environ).run())


if __name__ == "__main__":
    main(sys.argv[1:])
