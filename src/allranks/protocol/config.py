"""The configuration of an agent: one JSON file, written by the orchestrator."""

import dataclasses
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self

from allranks.protocol.choices import ChildStart, Isolation, UncheckedChildren
from allranks.protocol.typed_json import RecordError, from_object, to_object

RESULTS_BYTES: Final = 512 << 20
"""Bytes that each node of a job may write to its results folder; rank logs have their own limit."""

PYTEST_CACHE = "pytest-cache"
"""The folder of pytest's cache in a job's results folder: an earlier job's cache, which this job updates."""

PORTS = "ALLRANKS_PORTS"
"""The variable with ports, separated by commas, for process groups that a suite creates; the first is MASTER_PORT."""

COVERAGE = "coverage"
"""The folder of pytest-cov's data and reports in a job's results folder."""

EARLIER_COVERAGE = "coverage-before"
"""The folder with the coverage data of the attempt that this one continues."""


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """A time limit, and the setting that it comes from."""

    value: float  # seconds
    setting: str  # the key of the matrix file, marker, option or variable with which a user can change it
    margin: float = 0.0  # seconds that are added for work that the setting does not cover

    @property
    def seconds(self) -> float:
        """The value with the margin."""
        return self.value + self.margin

    def plus(self, seconds: float) -> Self:
        return dataclasses.replace(self, margin=self.margin + seconds)

    def words(self, since: str = "") -> str:
        """The limit in messages: ``60 s (limits.test)``, or ``65 s (limits.test = 60, plus 5 s)``.

        Args:
            since: The event from which the seconds count, or the activity during which they do.
        """
        more = f" = {self.value:g}, plus {self.margin:g} s" if self.margin else ""
        return f"{self.seconds:g} s {since}".rstrip() + f" ({self.setting}{more})"


LimitName = Literal["process_group", "test", "job", "peer_grace", "assembly", "silence"]


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Time limits in seconds, from the innermost to the outermost."""

    process_group: float  # timeout of the operations of the cell's process group
    test: float  # from the start of a test to the report of its last rank
    job: float  # from the job's start to the end of the collection, and again from there to the agent's end
    peer_grace: float  # after a rank has failed, for its peers to end on their own
    # With several nodes: from the lead agent's start until the last agent has joined, and from the lead agent's
    # collection until the last agent has collected.
    assembly: float = 120.0
    silence: float = 20.0  # with several nodes: an agent that has not answered for this long counts as lost
    gpu_check: float = 60.0  # for a small computation on all GPUs of a job; a first context takes a second or two
    # The settings that limits come from, by name of the limit; by default ``limits.NAME`` in the matrix file.
    settings: Mapping[str, str] = field(default_factory=dict)

    def limit(self, name: LimitName) -> TimeLimit:
        """One of the limits, with its setting."""
        return TimeLimit(value=float(getattr(self, name)), setting=self.settings.get(name, f"limits.{name}"))


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """An agent's number and connection in a job on several nodes."""

    node: int  # from 0, which is the lead node
    leader: str  # the host name or address at which the lead agent listens
    port: int
    token: str = field(repr=False)  # the secret that authenticates the agents of this job; only in the config files


@dataclass(frozen=True, kw_only=True)
class JobShard:
    """The shard of a suite that a job runs."""

    number: int  # from 1
    count: int  # the number of shards
    # Earlier durations of tests, by node id: the same for all shards.
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuToCheck:
    """A GPU to test with a small computation before the job runs."""

    gpu: str  # its id
    visible: str  # the value of CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES that shows this GPU alone
    name: str  # its name in messages


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The tests for an agent that was started, and has imported torch, before the selection was known."""

    pytest_args: tuple[str, ...]
    only: tuple[str, ...]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(to_object(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        return from_object(cls, json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """A job, for one of its agents."""

    cell: str  # the cell's id
    suite: str  # the suite's name, with the number of the shard if there is one
    paths: tuple[str, ...]  # the suite's files and folders, relative to the code folder
    backend: str
    world_size: int
    gpu_count: int  # GPUs of the cell, over all nodes
    init_method: str
    isolation: Isolation  # how long a gang lives
    limits: TimeLimits
    seed: int  # the seeds of all tests are derived from it
    ignored: tuple[str, ...] = ()  # files and folders below these paths that are not collected
    pytest_args: tuple[str, ...] = ()  # arguments for pytest, after the suite's paths
    master_addr: str = "127.0.0.1"  # the address of the ranks' rendezvous
    mixed_skip: tuple[str, ...] = ()  # node ids (``fnmatch`` patterns) of tests that only some ranks may skip
    nodes: int = 1  # the ranks are distributed over the nodes in blocks
    overlap: int = 1  # how many multi-process tests, or gangs of repeated tests, may run at the same time
    # By name of the group, the node ids (``fnmatch`` patterns) of multi-process tests that never overlap.
    test_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    process_group: bool | None = None  # whether each test gets the cell's process group; None if the test decides
    launches_ranks: bool = False  # one process runs each test, and tests start the cell's ranks themselves
    # How to report that a test passed although its child processes failed. A crash is an error in any case, unless the
    # test is marked with children_may_fail.
    unchecked_children: UncheckedChildren = "notice"
    start_children: ChildStart = "cold"  # how child processes of tests start with ``spawn`` and ``forkserver``
    node_config: NodeConfig | None = None  # set by the engine; None for a single node
    share: JobShard | None = None  # None if this job runs the whole suite
    only: tuple[str, ...] | None = None  # the node ids of the tests to rerun; None to run all collected tests
    shuffle: int | None = None  # the seed of the tests' random order; None for the order of collection
    torch: str = ""  # the torch version of the cell; empty for any
    # The GPUs that this agent checks first; empty if they have been checked, or another agent checks them.
    check_gpus: tuple[GpuToCheck, ...] = ()
    gpu_device: str = "cuda"  # torch's name for this type of device
    pdb_rank: int | None = None  # the rank to debug
    pdb_terminal: str = ""  # the path of the debugger's terminal
    # The plug-ins that take part in the job, with their settings, which have JSON types.
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The path of a Selection that replaces `pytest_args` and `only`, written before the job starts; empty for none.
    selection_file: str = ""

    @property
    def node(self) -> int:
        """This agent's node."""
        return self.node_config.node if self.node_config else 0

    @property
    def ranks(self) -> int:
        """The number of processes that run each test, over all nodes; tests may start more."""
        return 1 if self.launches_ranks else self.world_size

    @property
    def local_ranks(self) -> range:
        """The ranks of this agent's node."""
        return share_of(self.node, total=self.ranks, nodes=self.nodes)

    def to_json(self) -> str:
        return json.dumps(to_object(self), indent=1)

    def without_secrets(self) -> Self:
        node_config = self.node_config and dataclasses.replace(self.node_config, token="")
        return dataclasses.replace(self, node_config=node_config)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a config file.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a config file of this version.
        """
        try:
            return from_object(cls, json.loads(path.read_text(encoding="utf-8")))
        except RecordError as error:
            msg = f"{path} is not an agent config of this version of allranks: it {error}"
            raise ValueError(msg) from error


def share_of(node: int, *, total: int, nodes: int) -> range:
    """A node's block of ``total`` items that are divided over all nodes; the first nodes get the remainder."""
    size, remainder = divmod(total, nodes)
    start = node * size + min(node, remainder)
    return range(start, start + size + (node < remainder))


def seed_of_test(seed: int, nodeid: str) -> int:
    """The seed of one test in a job, the same on all ranks and in every run."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders of a job."""

    code: Path  # the suite's paths are relative to it
    results: Path  # files that are kept after the job
    shared: Path  # scratch space that all ranks see

    def of_gang(self, number: int) -> Path:
        """The folder that the ranks of one gang share, which is removed with the gang."""
        return self.shared / f"gang-{number}"
