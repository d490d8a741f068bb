"""The whole contract between a run and an engine."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from allranks.engine.spec import JobSpec
from allranks.engine.stream import Damage
from allranks.records import Record

RecordSink = Callable[[int, Record | Damage], None]
"""Takes what the agent of a node reports: the node's number (0 leads), and a record or why there is none."""


@dataclass(frozen=True, kw_only=True)
class NodeExit:
    """How the agent of one node ended.

    Attributes:
        status: Its exit status, negative for a signal; None where nobody knows.
        out_of_memory: The kernel killed something of it for want of memory.
        output: The end of what it printed beside its records: why it could not even start, say.
    """

    status: int | None
    out_of_memory: bool = False
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class JobExit(NodeExit):
    """How a job ended: its agent or, of several, the leading one, and the others.

    Attributes:
        timed_out: The engine's own time limit ended it.
        followers: Those of the nodes from 1 on.
    """

    timed_out: bool = False
    followers: tuple[NodeExit, ...] = ()


class RunningJob(Protocol):
    """A job that has been started and waits, collected, for its turn."""

    def go(self) -> None:
        """Give the job its turn: its time begins now. The agent has imported and collected by itself, or still does."""

    def wait(self, sink: RecordSink) -> JobExit:
        """Wait for the agent's end, giving `sink` each record as it comes.

        Raises:
            EngineError: The engine lost the job.
        """

    def hang_up(self) -> None:
        """Have the job end soon, and :meth:`wait` return; from any thread, while another one waits."""

    def stop(self) -> None:
        """Have the agent stop its ranks and write its results; kill it when it does not. Idempotent."""

    def collect(self, results: Path) -> None:
        """Put the job's results into an existing folder.

        Raises:
            EngineError: They cannot be had.
        """


class Engine(Protocol):
    """A place where jobs run."""

    @property
    def name(self) -> str:
        """``process`` or ``docker``."""

    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> AbstractContextManager[RunningJob]:
        """Start a job; leaving the context removes everything that was made for it, whatever happened.

        Args:
            spec: The job.
            held: Locked descriptors of the job's leases. A process inherits them, so that a lease lasts as long
                as any process of its job; a container cannot, and ends with its owner instead.

        Raises:
            EngineError: It could not be started; nothing of it is left.
        """

    def remains(self) -> list[str]:
        """What dead owners left behind on this host, by name; nothing is touched.

        Raises:
            EngineError: Nobody can tell.
        """

    def unjudged(self) -> list[str]:
        """What is of owners on another host, or in another name space of this one, by name; nothing is touched.

        From here nobody can tell whether they live.

        Raises:
            EngineError: Nobody can tell what there is.
        """

    def vacate(self, gpus: Sequence[str]) -> None:
        """Remove what still has one of these GPUs: the lease is ours, so its owner has died, or lost sight of it.

        Raises:
            EngineError: Nobody can tell what has them.
        """

    def reap(self) -> list[str]:
        """Remove what dead owners left behind on this host; names of what was removed."""
