"""The embedded engine: a job is a process on this host, in a session and a scratch folder of its own."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

from allranks.agent.container_init import COMMAND, ISOLATED
from allranks.agent.evidence import read, remove_tree
from allranks.agent.linux import is_readable, processes, signal_group, signal_pidfd, variables_of
from allranks.engines.agent_output import Damage, RecordReader
from allranks.engines.agents import STOP_GRACE, JobOfAgents, Rendezvous, collect_results, gpus_of, reserve_rendezvous
from allranks.engines.archive import copy_files
from allranks.engines.base import (
    Engine,
    Finding,
    JobSpec,
    Leftovers,
    MakeEnvironment,
    NodeExit,
    Progress,
    RunningJob,
)
from allranks.engines.gpus import Inventory
from allranks.engines.package import package_path
from allranks.errors import EngineError
from allranks.matrix.model import Matrix
from allranks.ownership import (
    HOST_VARIABLE,
    RUN_VARIABLE,
    Owner,
    host_id,
    process_namespace,
    remove_dead_locks,
)
from allranks.protocol.launcher_variables import RANK_VARIABLES
from allranks.protocol.records import Record
from allranks.user_cache import cache_folder

_PLAN_VARIABLES: Final = ("ALLRANKS_PLAN_FILE", "ALLRANKS_BATCH")

_PEER: Final = "::ffff:127.0.0.1"
_SLOW_NAME: Final = 0.1
"""Seconds for a lookup to count as slow: /etc/hosts takes less than a millisecond, and a nearby DNS server a few."""

_SCRATCH_PREFIX = "allranks-job-"

_OWNER = "owner"
"""The file of a scratch folder that contains its owner's :func:`host_id <allranks.ownership.host_id>`."""


class ProcessEngine(Engine):
    """Runs agents as processes on this host, in Python environments that allranks makes.

    Args:
        package: A folder that contains the package ``allranks`` and no other module; None to create one in the user's
            cache when a job needs it.
    """

    name = "process"

    def __init__(self, package: Path | None = None) -> None:
        self._package = package

    @classmethod
    def detect(cls, *, is_requested: bool = True) -> Self:  # noqa: ARG003
        return cls()

    def prepare(self, matrix: Matrix, progress: Progress, _uses: ExitStack | None) -> MakeEnvironment:
        from allranks.engines.process_environments import environment_of  # noqa: PLC0415 - not needed for clean-up

        self._package = self._package_path  # created once, before jobs start concurrently
        return partial(environment_of, root=matrix.root, process=matrix.process, progress=progress)

    @property
    def _package_path(self) -> Path:
        return self._package or package_path(cache_folder() / "package")

    def check(self, _inventory: Inventory) -> Iterator[Finding]:
        yield _check_names()

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator[RunningJob]:
        scratch = _make_scratch(spec)
        try:
            job = self._spawn(spec, scratch, held)
            try:
                yield job
            finally:
                job.stop()
                job.close()
        finally:
            remove_tree(scratch)

    def _spawn(self, spec: JobSpec, scratch: Path, held: Sequence[int]) -> "ProcessJob":
        if spec.python is None:
            msg = f"{spec.job_id} has no interpreter"
            raise EngineError(msg)
        with ExitStack() as undo:
            try:
                (scratch / "shared").mkdir()
                rendezvous = undo.enter_context(closing(reserve_rendezvous())) if spec.agent.nodes > 1 else None
                agents: list[_Agent] = []
                for node in range(spec.agent.nodes):
                    config = rendezvous.agent_config(spec.agent, node) if rendezvous else spec.agent
                    agents.append(self._start_agent(replace(spec, agent=config), spec.python, scratch, held))
                    undo.callback(agents[-1].close)
                    undo.callback(agents[-1].end, 0.0)
                job = ProcessJob(agents, spec.resources.seconds, rendezvous)
            except OSError as error:
                msg = f"The agent of {spec.job_id} could not be started."
                raise EngineError(msg, why=str(error), remedy="Check process.python in the matrix file.") from error
            undo.pop_all()
        return job

    def _start_agent(self, spec: JobSpec, python: str, scratch: Path, held: Sequence[int]) -> "_Agent":
        """Start the agent of one node, which `spec.agent` specifies."""
        own = scratch / f"node-{spec.agent.node}" if spec.agent.node else scratch
        for name in ("results", "tmp"):
            (own / name).mkdir(parents=True)
        for copy in spec.carried:
            copy_files(copy, own / "results")
        _write_private(own / "config.json", spec.agent.to_json())
        process = subprocess.Popen(
            command(python, self._package_path, spec.code, own, scratch / "shared"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=scratch / "shared",
            env=environment(spec, own, self._package_path, os.environ),
            start_new_session=True,
            pass_fds=tuple(held),
        )
        return _Agent(process, own)

    def clean_up(self, *, is_dry_run: bool = False) -> Leftovers:
        """Kill the processes of dead runs on this host, and remove their scratch folders."""
        unknown = [name for name, owner in _owned() if not owner.is_here]
        if is_dry_run:
            return Leftovers([name for name, owner in _owned() if owner.is_dead], unknown)
        dead = [f"process {pid}" for pid in _kill_all(_processes_of_dead_runs)]
        left = [folder for folder, owner in _scratch_folders() if owner.is_dead]
        for folder in left:
            remove_tree(folder)
        remove_dead_locks()
        return Leftovers([*dead, *(f"folder {folder}" for folder in left)], unknown)


def _check_names() -> Finding:
    """Measure the reverse lookup of a peer on this host: torch's stores do one to log the peer's name."""
    started = time.monotonic()
    with suppress(OSError):
        socket.getnameinfo((_PEER, 0, 0, 0), 0)
    seconds = time.monotonic() - started
    text = f"the lookup of {_PEER} takes {seconds:.2f} s"
    if seconds < _SLOW_NAME:
        return Finding("names", text)
    remedy = f"Each process group waits for it. Add a line to /etc/hosts: {_PEER} localhost"
    return Finding("names", f"{text}: DNS is slow or does not answer", remedy)


class _Agent:
    """The agent of one node."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.pidfd = os.pidfd_open(process.pid)
        self._stdin, self._stdout = _pipe(process.stdin), _pipe(process.stdout)
        self.output = self._stdout.fileno()
        self.stream = RecordReader()
        self.has_ended = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Its output and its pidfd, since a child that survives it may hold the output open."""
        return self.output, self.pidfd

    def read(self, ready: Collection[int]) -> Iterator[Record | Damage]:
        data = os.read(self.output, 1 << 16) if self.output in ready else b""
        yield from self.stream.feed(data)
        self.has_ended = not data

    def go(self) -> None:
        with suppress(BrokenPipeError):  # it has ended; `exit` reports how
            os.write(self._stdin.fileno(), b"go\n")

    def request_stop(self) -> None:
        self._stdin.close()

    def resume(self) -> None:
        if self.process.returncode is None:
            signal_pidfd(self.pidfd, signal.SIGCONT)

    def end(self, deadline: float) -> None:
        """Wait for it to exit, or kill it; then kill processes that it left behind."""
        if self.process.returncode is not None:
            return
        if not is_readable(self.pidfd, max(0.0, deadline - time.monotonic())):
            self.process.kill()
            is_readable(self.pidfd, None)
        # The agent is a zombie, so no other process group can have its id yet.
        signal_group(self.process.pid, signal.SIGKILL)
        if self.process.wait() != 0:
            # The agent may not have cleaned up: its ranks died with it, but not the processes that they started.
            _kill_all(lambda: _processes_with(temporary_folder(self.folder)))

    def exit(self) -> NodeExit:
        return NodeExit(status=self.process.returncode, output=self.stream.output)

    def close(self) -> None:
        self._stdin.close()
        self._stdout.close()
        os.close(self.pidfd)


class ProcessJob(JobOfAgents[_Agent]):
    """A job whose agents run on this host; a job on one node has no rendezvous."""

    def __init__(self, agents: Sequence[_Agent], limit: float, rendezvous: Rendezvous | None = None) -> None:
        super().__init__(agents, limit)
        self._rendezvous = rendezvous

    def collect(self, results: Path) -> None:
        try:
            collect_results([agent.folder / "results" for agent in self._agents], results)
        except OSError as error:
            msg = f"The results of a job could not be copied to {results}."
            raise EngineError(msg, why=str(error), remedy="Check the folder's permissions and free space.") from error

    def close(self) -> None:
        for agent in self._agents:
            agent.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        super().close()


def _make_scratch(spec: JobSpec) -> Path:
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH_PREFIX}{spec.run_id}."))
        (scratch / _OWNER).write_text(host_id(), encoding="ascii")
    except OSError as error:
        if scratch is not None:  # without an owner, no clean-up would remove it
            remove_tree(scratch)
        msg = f"A temporary folder for {spec.job_id} could not be created."
        raise EngineError(msg, why=str(error), remedy="Free some space, or set TMPDIR.") from error
    return scratch


def _pipe(file: IO[bytes] | None) -> IO[bytes]:
    if file is None:
        msg = "the agent was started without pipes"
        raise ValueError(msg)
    return file


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user may read, since it contains the agents' token."""
    with open(path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def command(python: str, package_path: Path, code: Path, scratch: Path, shared: Path) -> list[str]:
    """The command line of an agent on this host."""
    return [
        python,
        *(*ISOLATED, str(package_path / "allranks" / "agent" / COMMAND.name)),
        *("--config", str(scratch / "config.json")),
        *("--code", str(code)),
        *("--results", str(scratch / "results")),
        *("--shared", str(shared)),
    ]


def environment(spec: JobSpec, scratch: Path, package_path: Path, host: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of an agent: the host's, the job's, and some that isolate the job.

    Ranks use the loopback interface, since the host's name may not resolve. Only the GPUs that the job has leased for
    this node are visible.
    """
    python_path = (str(package_path), *map(str, spec.python_path), host.get("PYTHONPATH", ""))
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, python_path)),
        **dict([temporary_folder(scratch)]),
        **_visible_gpus(spec),
        RUN_VARIABLE: spec.run_id,
        HOST_VARIABLE: host_id(),
    }
    return {
        **without_rank_variables(host),
        "GLOO_SOCKET_IFNAME": "lo",
        "TP_SOCKET_IFNAME": "lo",
        **spec.environment,
        **own,
    }


def _visible_gpus(spec: JobSpec) -> dict[str, str]:
    """The variables that make only the job's GPUs visible to CUDA or HIP, in their order."""
    node, nodes = spec.agent.node, spec.agent.nodes
    if spec.passthrough.driver != "rocm":
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus_of(node, spec.gpus, nodes))}
    own = ",".join(gpus_of(node, tuple(map(str, spec.passthrough.numbers)), nodes)) or "-1"
    return {"HIP_VISIBLE_DEVICES": own, "CUDA_VISIBLE_DEVICES": own}


def without_rank_variables(host: Mapping[str, str]) -> dict[str, str]:
    """The host's variables without those of torchrun and of a plan, in case allranks runs inside a rank or a test.

    With ``TORCHELASTIC_USE_AGENT_STORE``, for example, torch's rank 0 would wait for a store of another process. A
    plan's variables select the jobs of this machine, which do not concern a run that a test starts.
    """
    return {
        name: value
        for name, value in host.items()
        if not RANK_VARIABLES.fullmatch(name) and name not in _PLAN_VARIABLES
    }


def temporary_folder(scratch: Path) -> tuple[str, str]:
    """The variable for a job's own folder of temporary files, which also identifies its processes."""
    return "TMPDIR", str(scratch / "tmp")


def _owned() -> Iterator[tuple[str, Owner]]:
    """The processes and folders of runs on this host, with their names in messages."""
    yield from ((f"process {pid}", owner) for pid, owner in _processes_of_runs())
    yield from ((f"folder {folder}", owner) for folder, owner in _scratch_folders())


def _processes_of_runs() -> Iterator[tuple[int, Owner]]:
    """Yield the id and the owner of every process of a run that this user may inspect.

    There are none if ``/proc`` belongs to another pid namespace (after ``unshare --pid``), where ids differ.
    """
    is_own_proc = Path("/proc/self").readlink() == Path(str(os.getpid()))
    for pid in processes() if is_own_proc else ():
        if owner := _owner_of(pid):
            yield pid, owner


def _processes_of_dead_runs() -> dict[int, tuple[str, str]]:
    """The processes of dead runs, each with the variable that identifies it."""
    return {pid: (RUN_VARIABLE, owner.run_id) for pid, owner in _processes_of_runs() if owner.is_dead}


def _processes_with(variable: tuple[str, str]) -> dict[int, tuple[str, str]]:
    """The processes that have this environment variable."""
    return {pid: variable for pid in processes() if "=".join(variable) in variables_of(pid)}


def _kill_all(find: Callable[[], dict[int, tuple[str, str]]]) -> list[int]:
    """Kill processes, each identified by a variable, until no new ones are found; return their ids.

    After :data:`STOP_GRACE`, processes that fork faster than they are killed are left to a later clean-up.
    """
    killed: dict[int, tuple[str, str]] = {}
    deadline = time.monotonic() + STOP_GRACE
    while new := {pid: variable for pid, variable in find().items() if pid not in killed}:
        if time.monotonic() > deadline:
            break
        for pid, variable in new.items():
            _kill(pid, variable)
        killed |= new
    return list(killed)


def _owner_of(pid: int) -> Owner | None:
    """The owner of a process; None if it belongs to no run, or runs in a container, which the docker engine removes."""
    variables = dict(item.partition("=")[::2] for item in variables_of(pid))
    run_id, host = variables.get(RUN_VARIABLE, ""), variables.get(HOST_VARIABLE, "")
    with suppress(OSError):
        is_local = process_namespace(Path(f"/proc/{pid}")) == process_namespace(Path("/proc/self"))
        return Owner(run_id, host) if run_id and (is_local or host) else None
    return None


def _scratch_folders() -> Iterator[tuple[Path, Owner]]:
    """The scratch folders of this user's jobs, each with its owner."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*"):
        run_id = folder.name.removeprefix(_SCRATCH_PREFIX).rpartition(".")[0]
        with suppress(FileNotFoundError):  # its job may be ending
            if run_id and folder.stat().st_uid == os.geteuid():
                yield folder, Owner(run_id, read(folder / _OWNER))


def _kill(pid: int, variable: tuple[str, str]) -> None:
    """Kill a process that has this variable, and wait for its end: until then, it may write to its scratch folder."""
    with suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            # It may have ended since it was found, and another process may have its id.
            if "=".join(variable) in variables_of(pid):
                signal_pidfd(descriptor, signal.SIGKILL)
                is_readable(descriptor, STOP_GRACE)
        finally:
            os.close(descriptor)
