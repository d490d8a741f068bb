"""A job whose nodes share a folder with this host: its agents are what the files there show.

::

    submitted ──> queued ──> placed ──────────────────> ended
                        a supervisor has begun    exit.json is there, or the queue has lost it
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from allranks.agent.evidence import open_start, read, remove_tree
from allranks.agent.linux import Timer
from allranks.engines.agent_output import Damage, RecordReader
from allranks.engines.agents import JobOfAgents, bring_home, make_token
from allranks.engines.archive import copy_files
from allranks.engines.base import JobExit, JobSpec, NodeExit, Placement, RecordSink
from allranks.engines.process import environment
from allranks.errors import EngineError
from allranks.ownership import HOST_VARIABLE, RUN_VARIABLE
from allranks.plugins.slurm.agent import node_files as files
from allranks.plugins.slurm.agent.node_files import AgentExit, NodeOrder, write_whole
from allranks.plugins.slurm.allocation import Allocation, told_in
from allranks.plugins.slurm.file_calls import answered
from allranks.protocol.config import NodeConfig
from allranks.protocol.records import Record
from allranks.protocol.typed_json import RecordError, from_object

_LOOK_AGAIN: Final = 0.25
"""Seconds between two looks at the files of a node."""

_PIECE: Final = 1 << 20

_MOST_BYTES: Final = 1 << 36
"""Of a stream: far more than any agent writes, but a sparse file may seem to have a million times as many."""

_STATUSES: Final = range(-(2**31), 2**31)

_SOON: Final = 0.5
"""Seconds that a look at the files of a node may take until other work is done first."""

_SILENT: Final = 4 * files.BEAT
"""Seconds by which a node's last sign of life precedes the leading node's, until nothing more is expected of it."""

_FILES: Final = 10.0
"""Seconds for the answer of a shared file system when a job has ended."""

_ANSWER: Final = 60.0
"""Seconds for its answer before a job begins."""

_COPYING: Final = 600.0
"""Seconds for copies of the results of a job."""

_LOGS: Final = ("batch.log", "srun.log")
_LOG_END: Final = 4000


def make_folder(folder: Path, spec: JobSpec, order: NodeOrder, texts: Mapping[str, str]) -> None:
    """Make the folder of a job, with what its nodes need.

    Args:
        folder: The folder, which all nodes see. One that is already there is another job's, and stays.
        spec: The job.
        order: What each node runs.
        texts: Other files, by name.

    Raises:
        EngineError: It cannot be made.
    """
    try:
        answered(lambda: folder.parent.mkdir(parents=True, exist_ok=True), _ANSWER)
        folder.mkdir(mode=0o700)
        try:
            for name, text in {**texts, files.ORDER: json.dumps(asdict(order))}.items():
                write_whole(folder / name, text)
            _fill(folder, spec)
        except OSError:
            remove_tree(folder)
            raise
    except OSError as error:
        msg = f"A folder for {spec.job_id} could not be made in {folder.parent}."
        remedy = "Free some space there, or name another shared folder: [slurm] spool, or --results with --inside."
        raise EngineError(msg, why=str(error), remedy=remedy) from error


def _fill(folder: Path, spec: JobSpec) -> None:
    (folder / files.SHARED).mkdir()
    # Beside the shared folder, where tests of other engines find it.
    (folder / files.RESULTS).symlink_to(f"node-0/{files.RESULTS}")
    token = make_token()
    for node in range(spec.agent.nodes):
        own = folder / f"node-{node}"
        (own / files.RESULTS).mkdir(parents=True)
        for copy in spec.carried:
            copy_files(copy, own / files.RESULTS)
        post = NodeConfig(node=node, leader="", port=0, token=token) if spec.agent.nodes > 1 else None
        # GPUs with names are this host's: other nodes find out their own.
        checks = () if node else spec.agent.check_gpus
        write_whole(own / files.CONFIG, replace(spec.agent, node_config=post, check_gpus=checks).to_json())
        for name in (files.PLACED, files.EXIT):
            files.reserve(own / name)


def variables_of_job(spec: JobSpec, folder: Path, package: Path, host: Mapping[str, str]) -> dict[str, str]:
    """The variables of a job on other nodes, without those that each node sets for itself.

    Whoever starts a node's processes owns them, and gives them their GPUs.
    """
    own = {"TMPDIR", RUN_VARIABLE, HOST_VARIABLE, *(["CUDA_VISIBLE_DEVICES"] if spec.agent.gpu_count else [])}
    return {name: value for name, value in environment(spec, folder, package, host).items() if name not in own}


class _NodeAgent:
    """The agent of one node, as the files of its supervisor show it."""

    def __init__(self, allocation: Allocation, node: int) -> None:
        self._allocation = allocation
        self._node = node
        self._look: Future[list[Record | Damage | Placement]] | None = None
        self._changed: tuple[float, int] | None = None
        self._is_at_end = self._is_silent = False
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
        return (self._timer.fileno(),)

    def hear(self, _ready: Collection[int]) -> Iterator[Record | Damage | Placement]:
        self._timer.has_gone_off()
        place = self._allocation
        if self._look is None:
            self._look = place.calls.begin(lambda: list(self._look_at_files()))
        if not wait([self._look], 0.0 if place.unheard > _SOON else _SOON).done:
            place.asked = place.asked or time.monotonic()
            if (news := place.silence()) is not None:
                yield news
            self.has_ended = place.is_unreachable
            return
        look, self._look, place.asked = self._look, None, None
        yield from look.result()
        self.has_ended = self._is_at_end  # not before all that came with it has been told

    def _look_at_files(self) -> Iterator[Record | Damage | Placement]:
        place = self._allocation
        if self._node == 0 and (news := place.news()) is not None:
            yield news
        if place.is_queued:  # each look at a shared file system has its price, and a hundred jobs may wait
            return
        # Before the stream: what the agent wrote before its end is there once its end is.
        ended = self._look_for_end()
        yield from self._read()
        if self._node == 0 and place.placed is not None and (place.gone is not None or place.deserted < math.inf):
            self._look_for_life()
        if ended is not None:
            yield from self._check()
            self.ended, self._is_at_end = ended, True
        elif place.is_lost or (place.is_ours and (place.placed is None or self._fell_silent())):
            self._is_at_end = True

    def _look_for_life(self) -> None:
        """See whether the node has written anything since the last look, where the queue or the others have ended."""
        if (at := last_change(self.folder / files.PLACED)) is not None:
            if self._changed not in {None, (at, self._offset)}:
                self._allocation.lives = time.monotonic()
            self._changed = at, self._offset

    def _fell_silent(self) -> bool:
        """Whether this node's last sign of life is old, by the clock that dates those of the leading one, too."""
        own, leading = (
            last_change(folder / files.PLACED) for folder in (self.folder, self._allocation.folder / "node-0")
        )
        self._is_silent = own is not None and leading is not None and own < leading - _SILENT
        return self._is_silent

    def _look_for_end(self) -> AgentExit | None:
        path = self.folder / files.EXIT
        if not files.is_there(path):
            return None
        with suppress(RecordError):
            ended = from_object(AgentExit, told_in(path))
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
        with suppress(OSError):
            return self._allocation.calls.ask(self._host, _FILES)
        return f"node {self._node}"

    def _host(self) -> str:
        return str(told_in(self.folder / files.PLACED).get("host") or f"node {self._node}")

    def go(self) -> None:
        self._allocation.go()

    def hang_up(self) -> None:
        if not self.has_ended:
            self._allocation.hang_up()

    def resume(self) -> None:
        """See :meth:`allranks.engines.agents.Agent.resume`: its supervisor cannot be stopped from here."""

    def end(self, deadline: float) -> None:
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN)
            self._look_again(deadline - time.monotonic())
        if not self.has_ended or self._is_silent or (self.ended is None and self._allocation.is_deserted):
            self._allocation.cancel()
            self._look_again(_LOOK_AGAIN)
            self.has_ended = True

    def _look_again(self, seconds: float) -> None:
        with suppress(OSError):
            if (ended := self._allocation.calls.ask(self._look_for_end, max(_LOOK_AGAIN, seconds))) is not None:
                self.ended, self.has_ended = ended, True

    def exit(self) -> NodeExit:
        status = self.ended.status if self.ended else None
        said = [self.ended.output if self.ended else "", self._reader.output, self._said() if status != 0 else ""]
        memory = bool(self.ended and self.ended.memory_kills)
        return NodeExit(status=status, out_of_memory=memory, output="\n".join(filter(None, said)))

    def _said(self) -> str:
        try:
            return self._allocation.calls.ask(self._logs, _FILES)
        except OSError as error:
            return f"{self._allocation.folder}: {error.strerror}"

    def _logs(self) -> str:
        """The end of what the cluster's own processes wrote, such as why a step could not start."""
        paths = [*(self._allocation.folder / name for name in _LOGS), self.folder / files.LOG]
        texts = [read(path)[-_LOG_END:].strip() for path in paths]
        return "\n".join(filter(None, texts))

    def close(self) -> None:
        """Release the timer."""
        self._timer.close()


def last_change(path: Path) -> float | None:
    """When a file last changed, in seconds since the epoch; it is opened, so that a file server tells what is new."""
    if (file := open_start(path)) is not None:
        with suppress(OSError), file:
            return os.fstat(file.fileno()).st_mtime
    return None


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
        self._leader.go()

    def wait(self, sink: RecordSink) -> JobExit:
        ending = super().wait(sink)
        disturbed = any(agent.ended and agent.ended.trouble for agent in self._agents)
        return replace(ending, began=self._allocation.placed, ended_by=self._ended_by, is_disturbed=disturbed)

    def _stop_all(self, sink: RecordSink) -> None:
        # Nodes that are still there when the job's time is up end because of that.
        is_first, is_ours = not self._has_stopped, self._allocation.is_ours or not self._is_over()
        self._has_stopped = True
        if is_first and (self._leader.has_ended or self._allocation.is_lost):
            self._ended_by = self._allocation.cause(self._leader.ended)
        super()._stop_all(sink)
        if is_first and self._allocation.placed is None:
            # Not in hang_up(), whose caller ends all jobs: without a controller each call takes seconds to fail.
            self._allocation.cancel()
        if is_first and not (self._ended_by or is_ours):
            self._ended_by = self._cause_on_nodes()

    def _is_over(self) -> bool:
        others = self._followers
        if others and self._allocation.deserted == math.inf and all(agent.has_ended for agent in others):
            self._allocation.deserted = time.monotonic()
        return super()._is_over()

    def _cause_on_nodes(self) -> str:
        """What ended the job on one of its nodes; empty if nothing did."""
        ends = [(agent.host, agent.ended) for agent in self._agents]
        if lost := [host for host, ended in ends if ended is None]:
            return self._allocation.named(f"lost {', '.join(lost)}")
        if troubles := [f"{host}: {ended.trouble}" for host, ended in ends if ended and ended.trouble]:
            return self._allocation.could_not_write("; ".join(troubles))
        told = [f"{host} ({', '.join(ended.signals)})" for host, ended in ends if ended and ended.signals]
        return self._allocation.named(f"was told to end from outside on {', '.join(told)}") if told else ""

    def collect(self, results: Path) -> None:
        leader, folders = self._leader, [agent.folder / files.RESULTS for agent in self._agents]
        seconds = _FILES if self._allocation.unheard else _COPYING

        def bring() -> None:
            if leader.ended is not None or not files.is_gone(leader.folder):  # else its end tells so
                bring_home(folders, results)

        try:
            self._allocation.calls.ask(bring, seconds)
        except OSError as error:
            msg = f"The results of a job could not be copied to {results}."
            remedy = "Check the permissions and free space of that folder, and of the one that the nodes share."
            raise EngineError(msg, why=str(error), remedy=remedy) from error

    def close(self) -> None:
        """Release what this object holds."""
        for agent in self._agents:
            agent.close()
        self._allocation.calls.close()
        super().close()


@contextmanager
def running(allocation: Allocation, spec: JobSpec) -> Iterator[SharedFolderJob]:
    """A submitted job until the context ends, which ends the job."""
    job = SharedFolderJob(allocation, spec)
    try:
        yield job
    finally:
        job.stop()
        job.close()
