"""A job whose nodes share a folder with this host: its agents are what the files there show.

::

    submitted ──> queued ──> placed ──────────────────> ended
                        a supervisor has begun    exit.json is there, or the queue has lost it

A queue's words explain an end, and decide nothing else: while it does not answer, a job is what its files say.
"""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from allranks.engine.agent_output import Damage, RecordReader
from allranks.engine.agents import JobOfAgents, bring_home, make_token
from allranks.engine.protocol import JobExit, JobSpec, NodeExit, Placement, RecordSink
from allranks.engine.slurm_queue import QueuedJob, Sighting
from allranks.errors import EngineError
from allranks.harness import node_supervisor as files
from allranks.harness.config import NodeConfig
from allranks.harness.evidence import open_start, read
from allranks.harness.linux import Timer
from allranks.harness.node_supervisor import AgentExit, NodeOrder, write_whole
from allranks.records import Record
from allranks.typed_json import RecordError, build

_LOOK_AGAIN: Final = 0.25
"""Seconds between two looks at the files of a node."""

_PIECE: Final = 1 << 20

_MOST_BYTES: Final = 1 << 36
"""Of a stream: far more than any agent writes, but a sparse file may seem to have a million times as many."""

_STATUSES: Final = range(-(2**31), 2**31)

_LATE_FILES: Final = 10.0
"""Seconds that files of an ended job may take to be seen here: NFS keeps names for up to 30, and looks for new ones
after 3 to 5 where a folder changes."""

_ABSENCES: Final = 2
"""Answers without a job until it counts as lost: an answer may miss one that is just being submitted."""

_LOGS: Final = ("batch.log", "srun.log")
_LOG_END: Final = 4000


def fill_folder(folder: Path, spec: JobSpec, order: NodeOrder) -> None:
    """Write what the nodes of a job need into its folder, which exists.

    Args:
        folder: The folder, which all nodes see.
        spec: The job.
        order: What each node runs.

    Raises:
        OSError: It cannot be written.
    """
    (folder / files.SHARED).mkdir()
    # Beside the shared folder, where tests of other engines find it.
    (folder / files.RESULTS).symlink_to(f"node-0/{files.RESULTS}")
    write_whole(folder / files.ORDER, json.dumps(asdict(order)))
    token = make_token()
    for node in range(spec.agent.nodes):
        own = folder / f"node-{node}"
        (own / files.RESULTS).mkdir(parents=True)
        for copy in spec.carried:
            shutil.copytree(copy.source, own / files.RESULTS / copy.target)
        post = NodeConfig(node=node, leader="", port=0, token=token) if spec.agent.nodes > 1 else None
        # GPUs with names are this host's: other nodes find out their own.
        checks = () if node else spec.agent.check_gpus
        write_whole(own / files.CONFIG, replace(spec.agent, post=post, check_gpus=checks).to_json())


class Queue(Protocol):
    """The place where jobs wait for their nodes, and what it tells of each by its name."""

    def look(self, name: str) -> Sighting:
        """What is known of a job."""

    def look_at_end(self, name: str) -> Sighting:
        """What is known of a job whose leading agent has ended, which the queue may notice a while later."""

    def cancel(self, name: str) -> None:
        """End a job; one that is not there needs none.

        Raises:
            EngineError: The queue does not answer.
        """


@dataclass(eq=False)
class Allocation:
    """A submitted job, as its agents share it.

    Attributes:
        number: The queue's name for it, for people, as in "SLURM job 12"; empty for none.
        told: What was last said of its place in the queue.
        is_ours: This process has asked for its end.
        placed: When its first node began, in seconds since the epoch; None while it is queued.
        gone: When the queue was first seen to have lost or ended it, on the monotonic clock.
    """

    queue: Queue
    folder: Path
    number: str = ""
    told: str = ""
    is_ours: bool = False
    placed: float | None = None
    gone: float | None = None
    on_placed: Callable[[], None] = field(default=lambda: None)

    def news(self) -> Placement | None:
        """What has changed in its place since the last call, in words."""
        if self.placed is None and files.is_there(self.folder / "node-0" / files.PLACED):
            at, now = _json(self.folder / "node-0" / files.PLACED).get("at"), time.time()
            self.placed = at if isinstance(at, float) and 0.0 < at <= now else now  # by another clock
            self.on_placed()
        job = self.queue.look(self.folder.name).job
        if self.placed is not None:
            told = f"placed on {job.nodes}{self._in_brackets}" if job and job.nodes else ""
        else:
            told = f"queued ({job.reason or 'no reason yet'})" if job and job.is_waiting else ""
        if not told or told == self.told:
            return None
        self.told = told
        return Placement(told, is_placed=self.placed is not None)

    @property
    def _in_brackets(self) -> str:
        return f" ({self.number})" if self.number else ""

    def named(self, cause: str) -> str:
        """A cause with the queue's name for the job."""
        return f"{cause}; it was {self.number}" if self.number else cause

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its nodes, which have left no files then."""
        return self.placed is None and not self.is_ours and not self.has_vanished

    @property
    def has_vanished(self) -> bool:
        """Whether the queue has ended or lost it, and files that it may have left are overdue."""
        sighting = self.queue.look(self.folder.name)
        ended = sighting.job.has_ended if sighting.job else sighting.absences >= _ABSENCES
        if not ended:
            self.gone = None
        elif self.gone is None:
            self.gone = time.monotonic()
        return self.gone is not None and time.monotonic() > self.gone + _LATE_FILES

    def hang_up(self) -> None:
        """Ask its supervisors to end their agents."""
        self.is_ours = True
        with suppress(OSError):
            (self.folder / files.HANG_UP).touch()
        self.news()

    def cancel(self) -> None:
        """Have the queue end it, unless it does not answer."""
        self.is_ours = True
        with suppress(EngineError):
            self.queue.cancel(self.folder.name)

    def cause(self, leader: AgentExit | None) -> str:
        """What ended it, if that was the cluster; else empty."""
        if self.is_ours or (leader is not None and not leader.signals and leader.status is not None):
            return ""
        name = self.folder.name
        # The queue's answers may be older than the end of the leading agent.
        sighting = self.queue.look(name) if leader is None else self.queue.look_at_end(name)
        job = sighting.job or sighting.last
        if job is not None and job.cause:
            return self.named(job.cause)
        if leader is not None:
            told = f"was told to end from outside ({', '.join(leader.signals)})"
            return self.named(told if leader.signals else "has left no exit status of its agent")
        if files.is_gone(self.folder / "node-0"):
            return self.named(f"lost its files: {self.folder} was emptied, or removed")
        return f"has left no exit status: {self.number or 'the job'} {_lost(job)}"


def _lost(job: QueuedJob | None) -> str:
    return f"is {job.state}" if job else "is not in the queue"


def _json(path: Path) -> dict[str, object]:
    """The object in a file of a node; empty if it is not whole."""
    try:
        told = json.loads(read(path))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


class _NodeAgent:
    """The agent of one node, as the files of its supervisor show it."""

    def __init__(self, allocation: Allocation, node: int) -> None:
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
        if self._allocation.is_queued:  # each look at a shared file system has its price, and a hundred jobs may wait
            return
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
        if not files.is_there(path):
            return None
        with suppress(RecordError):
            ended = build(AgentExit, _json(path))
            if ended.status is None or ended.status in _STATUSES:
                return ended
        return AgentExit(status=None, output=f"{path.name} is not readable")

    def _read(self) -> Iterator[Record | Damage]:
        """The records that have come since the last look; each byte is read once."""
        if (stream := open_start(self.folder / files.STREAM)) is None:
            return
        with suppress(OSError), stream:
            size = os.fstat(stream.fileno()).st_size
            if not self._offset <= size <= _MOST_BYTES and not self._is_changed:
                self._is_changed = True
                how = "shrunk" if size < self._offset else "grown"
                yield Damage(f"its stream has {how} from {self._offset} bytes to {size}")
            stream.seek(self._offset)
            # No more than it had, or a fast writer could keep this process here.
            while not self._is_changed and (data := stream.read(min(_PIECE, size - self._offset))):
                self._offset += len(data)
                self._digest.update(data)
                yield from self._reader.feed(data)

    def _check(self) -> Iterator[Damage]:
        """Compare the stream with what was read of it, once, at its end."""
        digest, left = hashlib.sha256(), self._offset
        if (stream := open_start(self.folder / files.STREAM)) is not None:
            with suppress(OSError), stream:
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
        """See :meth:`allranks.engine.agents.Agent.resume`: its supervisor cannot be stopped from here."""

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
        """The end of what the cluster's own processes wrote, such as why a step could not start."""
        paths = [*(self._allocation.folder / name for name in _LOGS), self.folder / files.LOG]
        texts = [read(path)[-_LOG_END:].strip() for path in paths]
        return "\n".join(filter(None, texts))

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()


class SharedFolderJob(JobOfAgents[_NodeAgent]):
    """A job in a queue or on its nodes; its time begins when it is placed."""

    def __init__(self, allocation: Allocation, spec: JobSpec) -> None:
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
        # Nodes that are still there when the job's time is up end because of that.
        is_first, is_ours = not self._has_stopped, self._allocation.is_ours or not self._is_over()
        self._has_stopped = True
        if is_first and self._leader.has_ended:
            self._ended_by = self._allocation.cause(self._leader.ended)
        super()._stop_all(sink)
        if is_first and self._allocation.placed is None:
            # Not in hang_up(), whose caller ends all jobs: without a controller each call takes seconds to fail.
            self._allocation.cancel()
        if is_first and self._leader.ended and not (self._ended_by or is_ours):
            self._ended_by = self._cause_elsewhere()

    def _cause_elsewhere(self) -> str:
        """What ended the job on another node than the leading one; empty if nothing did."""
        ends = [(agent.host, agent.ended) for agent in self._followers]
        if lost := [host for host, ended in ends if ended is None]:
            return self._allocation.named(f"lost {', '.join(lost)}")
        told = [f"{host} ({', '.join(ended.signals)})" for host, ended in ends if ended and ended.signals]
        return self._allocation.named(f"was told to end from outside on {', '.join(told)}") if told else ""

    def collect(self, results: Path) -> None:
        """See :meth:`allranks.engine.protocol.RunningJob.collect`."""
        if self._leader.ended is None and files.is_gone(self._leader.folder):  # its end tells so
            return
        try:
            bring_home([agent.folder / files.RESULTS for agent in self._agents], results)
        except OSError as error:
            msg = f"The results of a job could not be copied to {results}."
            remedy = "Check the permissions and free space of that folder, and of the one that the nodes share."
            raise EngineError(msg, why=str(error), remedy=remedy) from error

    def close(self) -> None:
        """Release what this object holds."""
        for agent in self._agents:
            agent.close()
        super().close()
