"""The engine ``slurm``: a job is one ``sbatch`` with a supervisor on each node; its files lie in a shared folder.

::

    submitted ──> queued ──> placed ──────────────────> ended
               sbatch    a supervisor has begun    exit.json is there, or SLURM has lost it

States of SLURM explain an end, and decide nothing else: while its controller is away a job is what its files say.
"""

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from allranks.engine.agent_output import Damage, RecordReader
from allranks.engine.agents import JobOfAgents, bring_home, make_token
from allranks.engine.ownership import HOST_VARIABLE, RUN_VARIABLE, host_id, is_dead
from allranks.engine.process import environment, remove_tree
from allranks.engine.protocol import JobExit, JobSpec, NodeExit, Placement, RecordSink
from allranks.engine.slurm_queue import POLL, QueuedJob, SlurmQueue, outside_of_jobs
from allranks.errors import EngineError
from allranks.harness import node_supervisor as files
from allranks.harness.config import NodeConfig
from allranks.harness.evidence import read
from allranks.harness.linux import Timer
from allranks.harness.node_supervisor import AgentExit, NodeOrder, write_whole
from allranks.matrix.model import Slurm
from allranks.records import Record

_OWNER: Final = "owner.json"
"""File of a job's folder that names the job, and its owner's run and host."""

_LOOK_AGAIN: Final = 0.25
"""Seconds between two looks at the files of a node."""

_PIECE: Final = 1 << 20

_LATE_FILES: Final = 10.0
"""Seconds that files of an ended job may take to be seen here: NFS keeps names for up to 30, and looks for new ones
after 3 to 5 where a folder changes."""

_ABSENCES: Final = 2
"""Answers without a job until it counts as lost: an answer may miss one that is just being submitted."""

_LOGS: Final = ("batch.log", "srun.log")
_LOG_END: Final = 4000


class SlurmEngine:
    """Submits jobs.

    Args:
        settings: ``[slurm]`` of the matrix file, and of the user's own.
        spool: The folder of the jobs' folders, which this host and all nodes share.
        package: A folder that they share, too: it holds the package ``allranks`` and nothing else.
    """

    name = "slurm"

    def __init__(self, settings: Slurm, spool: Path, package: Path) -> None:
        self._settings = settings
        self._spool = spool
        self._package = package
        self._queue = SlurmQueue()

    @contextmanager
    def start(self, spec: JobSpec, _held: Sequence[int] = ()) -> Iterator["SlurmJob"]:
        """See :meth:`allranks.engine.protocol.Engine.start`."""
        folder = self._make_folder(spec)
        try:
            job = SlurmJob(self._submit(spec, folder), spec)
            try:
                yield job
            finally:
                job.stop()
                job.close()
        finally:
            self._queue.forget(folder.name)
            _remove(folder)

    def _make_folder(self, spec: JobSpec) -> Path:
        folder = self._spool / job_name(spec)
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            owner = {"host": host_id(), "run": spec.run_id}
            (folder / _OWNER).write_text(json.dumps(owner), encoding="utf-8")
            (folder / files.SHARED).mkdir()
            order = NodeOrder(python=spec.python or "", code=str(spec.code))
            (folder / files.ORDER).write_text(
                json.dumps({"python": order.python, "code": order.code}), encoding="utf-8"
            )
            token = make_token()
            for node in range(spec.agent.nodes):
                own = folder / f"node-{node}"
                (own / files.RESULTS).mkdir(parents=True)
                for copy in spec.carried:
                    shutil.copytree(copy.source, own / files.RESULTS / copy.target)
                post = NodeConfig(node=node, leader="", port=0, token=token) if spec.agent.nodes > 1 else None
                write_whole(own / files.CONFIG, replace(spec.agent, post=post).to_json())
            (folder / "job.sh").write_text(script(spec, folder, self._package), encoding="utf-8")
        except OSError as error:
            remove_tree(folder)
            msg = f"A folder for {spec.job_id} could not be made in {self._spool}."
            remedy = "Free some space there, or name another shared folder: [slurm] spool."
            raise EngineError(msg, why=str(error), remedy=remedy) from error
        return folder

    def _submit(self, spec: JobSpec, folder: Path) -> "_Allocation":
        if spec.python is None:
            msg = f"job {spec.job_id} names no interpreter"
            raise EngineError(msg)
        allocation = _Allocation(self._queue, folder)
        variables = environment(spec, folder, self._package, outside_of_jobs(os.environ))
        # SLURM is the owner of the processes, and gives them their GPUs; the node has its own folder and interface.
        own = ["TMPDIR", RUN_VARIABLE, HOST_VARIABLE, *(["CUDA_VISIBLE_DEVICES"] if spec.agent.gpu_count else [])]
        for name in own:
            variables.pop(name, None)
        try:
            allocation.number = self._queue.submit(request(spec, folder, self._settings), variables, folder.name)
        except EngineError:
            with suppress(EngineError):  # it may have taken the job and not answered in time
                self._queue.cancel(folder.name)
            raise
        return allocation

    def remains(self) -> list[str]:
        """See :meth:`allranks.engine.protocol.Engine.remains`."""
        return [f"SLURM job {folder.name}" for folder, owner in self._folders() if owner.is_dead]

    def unjudged(self) -> list[str]:
        """See :meth:`allranks.engine.protocol.Engine.unjudged`."""
        return [f"SLURM job {folder.name}" for folder, owner in self._folders() if not owner.is_here]

    def vacate(self, gpus: Sequence[str]) -> None:
        """See :meth:`allranks.engine.protocol.Engine.vacate`: SLURM leases its GPUs itself."""

    def reap(self) -> list[str]:
        """Cancel the jobs of this host's dead runs, and remove their folders."""
        reaped = []
        for folder, owner in self._folders():
            if owner.is_dead:
                with suppress(EngineError):
                    self._queue.cancel(folder.name)
                    remove_tree(folder)
                    reaped.append(f"SLURM job {folder.name}")
        return reaped

    def _folders(self) -> Iterator[tuple[Path, "_Owner"]]:
        for folder in sorted(self._spool.glob(f"*/{_OWNER}")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if folder.stat().st_uid == os.geteuid():
                    told = json.loads(folder.read_text(encoding="utf-8"))
                    yield folder.parent, _Owner(str(told["run"]), str(told["host"]))


@dataclass(frozen=True)
class _Owner:
    """The owner of a job's folder."""

    run_id: str
    host: str

    @property
    def is_here(self) -> bool:
        """Whether its lock is visible from here: else whether it lives is unknown."""
        return self.host == host_id()

    @property
    def is_dead(self) -> bool:
        """Whether it is certain to be dead."""
        return self.is_here and is_dead(self.run_id)


def _remove(folder: Path) -> None:
    """Remove a job's folder; a node that is just ending may write into it until then."""
    deadline = time.monotonic() + 2.0
    while folder.exists() and time.monotonic() < deadline:
        remove_tree(folder)
        if folder.exists():
            time.sleep(0.05)


def job_name(spec: JobSpec) -> str:
    """The name of an attempt's job and of its folder, unique among all of this user's jobs."""
    text = f"{spec.run_id}.{spec.job_id}.{spec.attempt}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"allranks-{re.sub(r'[^A-Za-z0-9.@-]+', '_', text)[:120]}-{digest}"


def script(spec: JobSpec, folder: Path, package: Path) -> str:
    """The batch script: a supervisor on each node, started at once; one that ends does not end the others."""
    supervisor = package / "allranks" / "harness" / "node_supervisor.py"
    step = [
        *("srun", "--no-kill", "--kill-on-bad-exit=0", "--input=none", "--export=ALL"),
        *(f"--nodes={spec.agent.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_cores(spec)}"),
        f"--output={folder / 'srun.log'}",
        *(spec.python or "python3", "-I", "-S", str(supervisor), str(folder)),
    ]
    return f"#!/bin/sh\nexec {shlex.join(step)}\n"


def _cores(spec: JobSpec) -> int:
    """The cores that a job asks for on each of its nodes: those of the node with the most ranks."""
    return max(spec.resources_on(node).cpus for node in range(spec.agent.nodes))


def request(spec: JobSpec, folder: Path, settings: Slurm) -> list[str]:
    """The arguments of sbatch for a job. The user's own come last, and win."""
    agent = spec.agent
    memory = max(spec.resources_on(node).memory_bytes for node in range(agent.nodes)) >> 20
    # Our own limit begins when the job is placed; SLURM's is the last resort.
    minutes = math.ceil((spec.resources.seconds + agent.limits.assembly) / 60) + 2
    chosen = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
    return [
        *("--parsable", "--no-requeue", "--no-kill", "--export=ALL"),
        f"--job-name={folder.name}",
        f"--chdir={folder}",
        f"--output={folder / 'batch.log'}",
        *(f"--nodes={agent.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_cores(spec)}"),
        *(f"--mem={memory}M", f"--time={minutes}"),
        *([f"--gpus-per-node={agent.gpu_count // agent.nodes}"] if agent.gpu_count else []),
        *(f"--{name}={value}" for name, value in chosen.items() if value),
        *settings.extra,
        str(folder / "job.sh"),
    ]


@dataclass(eq=False)
class _Allocation:
    """A submitted job, as its agents share it.

    Attributes:
        number: SLURM's number for it.
        told: What was last said of its place in the queue.
        is_ours: This process has asked for its end.
        placed: When its first node began, in seconds since the epoch; None while it is queued.
        gone: When SLURM was first seen to have lost or ended it, on the monotonic clock.
    """

    queue: SlurmQueue
    folder: Path
    number: str = ""
    told: str = ""
    is_ours: bool = False
    placed: float | None = None
    gone: float | None = None
    on_placed: Callable[[], None] = field(default=lambda: None)

    def news(self) -> Placement | None:
        """What has changed in its place since the last call, in words."""
        if self.placed is None and (self.folder / "node-0" / files.PLACED).exists():
            at = _json(self.folder / "node-0" / files.PLACED).get("at")
            self.placed = at if isinstance(at, float) else time.time()
            self.on_placed()
        job = self.queue.look(self.folder.name).job
        if self.placed is not None:
            told = f"placed on {job.nodes} (SLURM job {self.number})" if job and job.nodes else ""
        else:
            told = f"queued ({job.reason or 'no reason yet'})" if job and job.is_waiting else ""
        if not told or told == self.told:
            return None
        self.told = told
        return Placement(told, is_placed=self.placed is not None)

    @property
    def has_vanished(self) -> bool:
        """Whether SLURM has ended or lost it, and files that it may have left are overdue."""
        sighting = self.queue.look(self.folder.name)
        ended = sighting.job.has_ended if sighting.job else sighting.absences >= _ABSENCES
        if not ended:
            self.gone = None
        elif self.gone is None:
            self.gone = time.monotonic()
        return self.gone is not None and time.monotonic() > self.gone + _LATE_FILES

    def hang_up(self) -> None:
        """Ask its supervisors to end their agents; take it out of the queue if it has none yet."""
        self.is_ours = True
        with suppress(OSError):
            (self.folder / files.HANG_UP).touch()
        self.news()
        if self.placed is None:
            self.cancel()

    def cancel(self) -> None:
        """Have SLURM end it, unless SLURM does not answer."""
        self.is_ours = True
        with suppress(EngineError):
            self.queue.cancel(self.folder.name)

    def cause(self, leader: AgentExit | None) -> str:
        """What ended it, if that was the cluster; else empty."""
        if self.is_ours or (leader is not None and not leader.signals and leader.status is not None):
            return ""
        name = self.folder.name
        sighting = self.queue.look(name)
        if leader is not None:  # SLURM's answers may be older than the signal
            sighting = self.queue.look_after(name, time.monotonic(), 2 * POLL + 1.0)
        job = sighting.job or sighting.last
        if job is not None and job.cause:
            return f"{job.cause}; it was SLURM job {self.number}"
        if leader is not None:
            return f"was told to end from outside ({', '.join(leader.signals)}); it was SLURM job {self.number}"
        return f"has left no exit status: SLURM job {self.number} {_lost(job)}"


def _lost(job: QueuedJob | None) -> str:
    return f"is {job.state}" if job else "is not in the queue"


def _json(path: Path) -> dict[str, object]:
    """The object in a file of a node; empty if it is not whole."""
    try:
        told = json.loads(read(path))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


class _NodeAgent:
    """The agent of one node, as the files of its supervisor show it."""

    def __init__(self, allocation: _Allocation, node: int) -> None:
        self._allocation = allocation
        self._node = node
        self.folder = allocation.folder / f"node-{node}"
        self._timer = Timer(_LOOK_AGAIN)
        self._reader = RecordReader()
        self._offset = 0
        self._digest = hashlib.sha256()
        self._is_changed = False
        self.ended: AgentExit | None = None
        self.has_ended = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        """See :class:`allranks.engine.agents.Agent`."""
        return (self._timer.fileno(),)

    def hear(self, _ready: Collection[int]) -> Iterator[Record | Damage | Placement]:
        """See :meth:`allranks.engine.agents.Agent.hear`."""
        self._timer.has_gone_off()
        if self._node == 0 and (news := self._allocation.news()) is not None:
            yield news
        # Before the stream: what the agent wrote before its end is there once its end is.
        ended = self._look_for_end()
        yield from self._read()
        if ended is not None:
            yield from self._check()
            self.ended, self.has_ended = ended, True
        elif self._allocation.has_vanished or (self._allocation.is_ours and self._allocation.placed is None):
            self.has_ended = True

    def _look_for_end(self) -> AgentExit | None:
        path = self.folder / files.EXIT
        if not path.exists():
            return None
        told = _json(path)
        try:
            return AgentExit(**{**told, "signals": tuple(told.get("signals", ()))})  # type: ignore[arg-type]
        except TypeError:
            return AgentExit(status=None, output=f"{path.name} is not readable")

    def _read(self) -> Iterator[Record | Damage]:
        """The records that have come since the last look; each byte is read once."""
        try:
            with (self.folder / files.STREAM).open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < self._offset and not self._is_changed:
                    self._is_changed = True
                    yield Damage(f"its stream has shrunk from {self._offset} bytes to {size}")
                stream.seek(self._offset)
                while not self._is_changed and (data := stream.read(_PIECE)):
                    self._offset += len(data)
                    self._digest.update(data)
                    yield from self._reader.feed(data)
        except FileNotFoundError:
            return

    def _check(self) -> Iterator[Damage]:
        """Compare the stream with what was read of it, once, at its end."""
        digest, left = hashlib.sha256(), self._offset
        with suppress(OSError), (self.folder / files.STREAM).open("rb") as stream:
            while left and (data := stream.read(min(_PIECE, left))):
                digest.update(data)
                left -= len(data)
        if not self._is_changed and digest.digest() != self._digest.digest():
            self._is_changed = True
            yield Damage("its stream was changed after it had been read")

    @property
    def host(self) -> str:
        """The name of the node, or its number if it has not begun."""
        return str(_json(self.folder / files.PLACED).get("host") or f"node {self._node}")

    def go(self) -> None:
        """See :meth:`allranks.engine.agents.Agent.go`."""
        with suppress(OSError):
            (self._allocation.folder / files.GO).touch()

    def hang_up(self) -> None:
        """See :meth:`allranks.engine.agents.Agent.hang_up`."""
        if not self.has_ended:
            self._allocation.hang_up()

    def resume(self) -> None:
        """See :meth:`allranks.engine.agents.Agent.resume`: SLURM sends CONT with each signal that ends."""

    def end(self, deadline: float) -> None:
        """See :meth:`allranks.engine.agents.Agent.end`."""
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN)
            self._look_again()
        if not self.has_ended:
            self._allocation.cancel()
            self._look_again()
            self.has_ended = True

    def _look_again(self) -> None:
        if (ended := self._look_for_end()) is not None:
            self.ended, self.has_ended = ended, True

    def exit(self) -> NodeExit:
        """See :meth:`allranks.engine.agents.Agent.exit`."""
        status = self.ended.status if self.ended else None
        said = [self.ended.output if self.ended else "", self._reader.output, self._logs() if status != 0 else ""]
        memory = bool(self.ended and self.ended.memory_kills)
        return NodeExit(status=status, out_of_memory=memory, output="\n".join(filter(None, said)))

    def _logs(self) -> str:
        """The end of what SLURM's own processes wrote, such as why a step could not start."""
        texts = [read(self._allocation.folder / name)[-_LOG_END:].strip() for name in _LOGS]
        return "\n".join(filter(None, texts))

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()


class SlurmJob(JobOfAgents[_NodeAgent]):
    """A job in SLURM's queue or on its nodes; its time begins when it is placed."""

    def __init__(self, allocation: _Allocation, spec: JobSpec) -> None:
        super().__init__([_NodeAgent(allocation, node) for node in range(spec.agent.nodes)], spec.resources.seconds)
        self._allocation = allocation
        self._deadline = math.inf
        self._ended_by = ""
        self._has_stopped = False
        allocation.on_placed = self._begin

    def _begin(self) -> None:
        if self._deadline == math.inf:
            self._deadline = self._now() + self._limit

    def go(self) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.go`."""
        self._leader.go()

    def wait(self, sink: RecordSink) -> JobExit:
        """See :meth:`allranks.engine.protocol.RunningJob.wait`."""
        ending = super().wait(sink)
        return replace(ending, began=self._allocation.placed, ended_by=self._ended_by)

    def _stop_all(self, sink: RecordSink) -> None:
        is_first, is_ours = not self._has_stopped, self._allocation.is_ours
        self._has_stopped = True
        if is_first and self._leader.has_ended:
            self._ended_by = self._allocation.cause(self._leader.ended)
        super()._stop_all(sink)
        lost = [agent.host for agent in self._followers if agent.ended is None]
        if is_first and lost and self._leader.ended and not (self._ended_by or is_ours):
            self._ended_by = f"lost {', '.join(lost)}; it was SLURM job {self._allocation.number}"

    def collect(self, results: Path) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.collect`."""
        try:
            bring_home([agent.folder / files.RESULTS for agent in self._agents], results)
        except OSError as error:
            msg = f"The results of a job could not be copied to {results}."
            remedy = "Check the permissions and free space of that folder, and of [slurm] spool."
            raise EngineError(msg, why=str(error), remedy=remedy) from error

    def close(self) -> None:
        """Release what this object holds."""
        for agent in self._agents:
            agent.close()
        super().close()
