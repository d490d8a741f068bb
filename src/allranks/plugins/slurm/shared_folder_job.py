"""A job whose nodes share a folder with this host: files in it show the state of its agents.

::

    submitted ──> queued ──> placed ──────────────────> ended
                        a supervisor has started  exit.json exists, or the queue has lost the job
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
from allranks.engines.agents import JobOfAgents, collect_results, make_token
from allranks.engines.archive import copy_files
from allranks.engines.base import JobExit, JobSpec, NodeExit, Placement, RecordSink
from allranks.engines.process import environment
from allranks.errors import EngineError
from allranks.ownership import HOST_VARIABLE, RUN_VARIABLE
from allranks.plugins.slurm.agent import node_files as files
from allranks.plugins.slurm.agent.node_files import AgentExit, NodeOrder, write_whole
from allranks.plugins.slurm.allocation import Allocation, read_object
from allranks.plugins.slurm.file_calls import call_in_thread
from allranks.protocol.config import NodeConfig
from allranks.protocol.records import Record
from allranks.protocol.typed_json import RecordError, from_object

_POLL_INTERVAL: Final = 0.25
"""Seconds between two looks at the files of a node."""

_PIECE: Final = 1 << 20

_MOST_BYTES: Final = 1 << 36
"""The largest size of a stream: far more than any agent writes, but a sparse file may seem much larger."""

_STATUSES: Final = range(-(2**31), 2**31)

_POLL_TIMEOUT: Final = 0.5
"""Seconds to wait for a look at the files of a node; the result of a slower one is used later."""

_SILENT: Final = 4 * files.HEARTBEAT
"""Seconds without a heartbeat, compared to the lead node, after which nothing more is expected of a node."""

_FILES: Final = 10.0
"""Seconds for the answer of a shared file system when a job has ended."""

_ANSWER: Final = 60.0
"""Seconds for the answer of a shared file system before a job starts."""

_COPYING: Final = 600.0
"""Seconds to copy the results of a job."""

_LOGS: Final = ("batch.log", "srun.log")
_LOG_END: Final = 4000


def make_folder(folder: Path, spec: JobSpec, order: NodeOrder, texts: Mapping[str, str]) -> None:
    """Make the folder of a job, with everything that its nodes need.

    Args:
        folder: The folder, which all nodes share. It must not exist.
        spec: The job.
        order: What each node runs.
        texts: The contents of other files, by name.

    Raises:
        EngineError: The folder cannot be made.
    """
    try:
        call_in_thread(lambda: folder.parent.mkdir(parents=True, exist_ok=True), _ANSWER)
        folder.mkdir(mode=0o700)
        try:
            for name, text in {**texts, files.ORDER: json.dumps(asdict(order))}.items():
                write_whole(folder / name, text)
            _fill(folder, spec)
        except OSError:
            remove_tree(folder)
            raise
    except OSError as error:
        msg = f"A folder for {spec.job_id} could not be created in {folder.parent}."
        remedy = "Free some space there, or set another shared folder: [slurm] spool, or --results with --inside."
        raise EngineError(msg, why=str(error), remedy=remedy) from error


def _fill(folder: Path, spec: JobSpec) -> None:
    (folder / files.SHARED).mkdir()
    # Next to the shared folder, as with the other engines.
    (folder / files.RESULTS).symlink_to(f"node-0/{files.RESULTS}")
    token = make_token()
    for node in range(spec.agent.nodes):
        own = folder / f"node-{node}"
        (own / files.RESULTS).mkdir(parents=True)
        for copy in spec.carried:
            copy_files(copy, own / files.RESULTS)
        config = NodeConfig(node=node, leader="", port=0, token=token) if spec.agent.nodes > 1 else None
        # The leased GPUs are on this host; other nodes detect theirs.
        checks = () if node else spec.agent.check_gpus
        write_whole(own / files.CONFIG, replace(spec.agent, node_config=config, check_gpus=checks).to_json())
        for name in (files.PLACED, files.EXIT):
            files.reserve(own / name)


def job_environment(spec: JobSpec, folder: Path, package: Path, host: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job on other nodes, without the variables that each node sets for itself."""
    own = {"TMPDIR", RUN_VARIABLE, HOST_VARIABLE, *(["CUDA_VISIBLE_DEVICES"] if spec.agent.gpu_count else [])}
    return {name: value for name, value in environment(spec, folder, package, host).items() if name not in own}


class _NodeAgent:
    """The agent of one node, through the files of its supervisor."""

    def __init__(self, allocation: Allocation, node: int) -> None:
        self._allocation = allocation
        self._node = node
        self._poll: Future[list[Record | Damage | Placement]] | None = None
        self._last_change: tuple[float, int] | None = None
        self._is_at_end = self._is_silent = False
        self.folder = allocation.folder / f"node-{node}"
        self._timer = Timer(_POLL_INTERVAL)
        self._reader = RecordReader()
        self._offset = 0
        self._digest = hashlib.sha256()
        self._is_changed = False
        self.ended: AgentExit | None = None
        self.has_ended = False

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self._timer.fileno(),)

    def read(self, _ready: Collection[int]) -> Iterator[Record | Damage | Placement]:
        self._timer.has_expired()
        job = self._allocation
        if self._poll is None:
            self._poll = job.calls.submit(lambda: list(self._poll_files()))
        if not wait([self._poll], 0.0 if job.unanswered_for > _POLL_TIMEOUT else _POLL_TIMEOUT).done:
            job.unanswered_since = job.unanswered_since or time.monotonic()
            if (placement := job.poll_silence()) is not None:
                yield placement
            self.has_ended = job.is_unreachable
            return
        poll, self._poll, job.unanswered_since = self._poll, None, None
        yield from poll.result()
        self.has_ended = self._is_at_end  # only after everything that this poll found has been handled

    def _poll_files(self) -> Iterator[Record | Damage | Placement]:
        job = self._allocation
        if self._node == 0 and (placement := job.poll()) is not None:
            yield placement
        if job.is_queued:  # looking at a shared file system is expensive, and a hundred jobs may wait
            return
        # The exit first: once it exists, the stream is complete.
        ended = self._read_exit()
        yield from self._read_stream()
        should_end = job.gone_since is not None or job.followers_ended_at < math.inf
        if self._node == 0 and job.placed_at is not None and should_end:
            self._check_alive()
        if ended is not None:
            yield from self._check_stream()
            self.ended, self._is_at_end = ended, True
        elif job.is_lost or (job.is_stopping and (job.placed_at is None or self._fell_silent())):
            self._is_at_end = True

    def _check_alive(self) -> None:
        """Note whether the lead node has written since the last poll, once the queue or all other nodes have ended."""
        if (at := last_change(self.folder / files.PLACED)) is not None:
            if self._last_change not in {None, (at, self._offset)}:
                self._allocation.alive_at = time.monotonic()
            self._last_change = at, self._offset

    def _fell_silent(self) -> bool:
        """Whether this node's last heartbeat is old, compared to the lead node's by the file server's clock."""
        own, lead = (last_change(folder / files.PLACED) for folder in (self.folder, self._allocation.folder / "node-0"))
        self._is_silent = own is not None and lead is not None and own < lead - _SILENT
        return self._is_silent

    def _read_exit(self) -> AgentExit | None:
        path = self.folder / files.EXIT
        if not files.is_there(path):
            return None
        with suppress(RecordError):
            ended = from_object(AgentExit, read_object(path))
            if ended.status is None or ended.status in _STATUSES:
                return ended
        return AgentExit(status=None, output=f"{path.name} is not readable")

    def _read_stream(self) -> Iterator[Record | Damage]:
        """The records written since the last poll; each byte is read once."""
        if (stream := open_start(self.folder / files.STREAM)) is None:
            return
        with suppress(OSError), stream:
            size = os.fstat(stream.fileno()).st_size
            if not self._offset <= size <= _MOST_BYTES and not self._is_changed:
                self._is_changed = True
                how = "shrunk" if size < self._offset else "grown"
                yield Damage(f"its stream has {how} from {self._offset} bytes to {size}")
            stream.seek(self._offset)
            # Only up to this size, or a fast writer could keep this process in the loop.
            while not self._is_changed and (data := stream.read(min(_PIECE, size - self._offset))):
                self._offset += len(data)
                self._digest.update(data)
                yield from self._reader.feed(data)

    def _check_stream(self) -> Iterator[Damage]:
        """At the end, check that the stream still has the bytes that were read."""
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
        """The name of the node, or its number if it has not started."""
        with suppress(OSError):
            return self._allocation.calls.call(self._host, _FILES)
        return f"node {self._node}"

    def _host(self) -> str:
        return str(read_object(self.folder / files.PLACED).get("host") or f"node {self._node}")

    def go(self) -> None:
        self._allocation.go()

    def request_stop(self) -> None:
        if not self.has_ended:
            self._allocation.request_stop()

    def resume(self) -> None:
        pass  # its supervisor cannot be suspended from here

    def end(self, deadline: float) -> None:
        while not self.has_ended and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
            self._check_exit(deadline - time.monotonic())
        if not self.has_ended or self._is_silent or (self.ended is None and self._allocation.is_orphaned):
            self._allocation.cancel()
            self._check_exit(_POLL_INTERVAL)
            self.has_ended = True

    def _check_exit(self, seconds: float) -> None:
        with suppress(OSError):
            if (ended := self._allocation.calls.call(self._read_exit, max(_POLL_INTERVAL, seconds))) is not None:
                self.ended, self.has_ended = ended, True

    def exit(self) -> NodeExit:
        status = self.ended.status if self.ended else None
        logs = self._read_logs() if status != 0 else ""
        output = [self.ended.output if self.ended else "", self._reader.output, logs]
        memory = bool(self.ended and self.ended.memory_kills)
        return NodeExit(status=status, out_of_memory=memory, output="\n".join(filter(None, output)))

    def _read_logs(self) -> str:
        try:
            return self._allocation.calls.call(self._logs, _FILES)
        except OSError as error:
            return f"{self._allocation.folder}: {error.strerror}"

    def _logs(self) -> str:
        """The ends of the logs of the cluster's own processes, such as why a step could not start."""
        paths = [*(self._allocation.folder / name for name in _LOGS), self.folder / files.LOG]
        texts = [read(path)[-_LOG_END:].strip() for path in paths]
        return "\n".join(filter(None, texts))

    def close(self) -> None:
        """Close the timer."""
        self._timer.close()


def last_change(path: Path) -> float | None:
    """When a file last changed, in seconds since the epoch. Opening it makes an NFS client refresh its cache."""
    if (file := open_start(path)) is not None:
        with suppress(OSError), file:
            return os.fstat(file.fileno()).st_mtime
    return None


class SharedFolderJob(JobOfAgents[_NodeAgent]):
    """A job in a queue or on its nodes; its time limit starts when it is placed."""

    def __init__(self, allocation: Allocation, spec: JobSpec) -> None:
        super().__init__([_NodeAgent(allocation, node) for node in range(spec.agent.nodes)], spec.resources.seconds)
        self._allocation = allocation
        self._deadline = math.inf
        self._ended_by = ""
        self._has_stopped = False
        allocation.on_placed = self._start_clock

    def _start_clock(self) -> None:
        if self._deadline == math.inf:
            self._deadline = self._now() + self._limit

    def go(self) -> None:
        self._leader.go()

    def wait(self, sink: RecordSink) -> JobExit:
        ending = super().wait(sink)
        disturbed = any(agent.ended and agent.ended.storage_error for agent in self._agents)
        return replace(ending, began=self._allocation.placed_at, ended_by=self._ended_by, is_disturbed=disturbed)

    def _stop_all(self, sink: RecordSink) -> None:
        # If nodes are left when the job's time is up, the time limit is the expected reason for their end.
        is_first, is_expected = not self._has_stopped, self._allocation.is_stopping or not self._is_over()
        self._has_stopped = True
        if is_first and (self._leader.has_ended or self._allocation.is_lost):
            self._ended_by = self._allocation.cause(self._leader.ended)
        super()._stop_all(sink)
        if is_first and self._allocation.placed_at is None:
            # Not in request_stop(), whose caller ends all jobs: without a controller, each call takes seconds to fail.
            self._allocation.cancel()
        if is_first and not (self._ended_by or is_expected):
            self._ended_by = self._cause_on_nodes()

    def _is_over(self) -> bool:
        others = self._followers
        if others and self._allocation.followers_ended_at == math.inf and all(agent.has_ended for agent in others):
            self._allocation.followers_ended_at = time.monotonic()
        return super()._is_over()

    def _cause_on_nodes(self) -> str:
        """What ended the job on one of its nodes; empty if nothing did."""
        ends = [(agent.host, agent.ended) for agent in self._agents]
        if lost := [host for host, ended in ends if ended is None]:
            return self._allocation.with_number(f"lost {', '.join(lost)}")
        if errors := [f"{host}: {ended.storage_error}" for host, ended in ends if ended and ended.storage_error]:
            return self._allocation.storage_failure("; ".join(errors))
        signals = [f"{host} ({', '.join(ended.signals)})" for host, ended in ends if ended and ended.signals]
        return self._allocation.with_number(f"was terminated from outside on {', '.join(signals)}") if signals else ""

    def collect(self, results: Path) -> None:
        leader, folders = self._leader, [agent.folder / files.RESULTS for agent in self._agents]
        seconds = _FILES if self._allocation.unanswered_for else _COPYING

        def copy() -> None:
            # If the lead node's folder is gone before its agent has ended, the end of the job reports that.
            if leader.ended is not None or not files.is_gone(leader.folder):
                collect_results(folders, results)

        try:
            self._allocation.calls.call(copy, seconds)
        except OSError as error:
            msg = f"The results of a job could not be copied to {results}."
            remedy = "Check the permissions and free space of that folder and of the folder that the nodes share."
            raise EngineError(msg, why=str(error), remedy=remedy) from error

    def close(self) -> None:
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
