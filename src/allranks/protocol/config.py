"""An agent's configuration of its job: one JSON file, written by the orchestrator."""

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
"""Bytes that each node of a job may write to its results folder; each rank's log has a limit of its own."""

PYTEST_CACHE = "pytest-cache"
"""The folder of pytest's cache in a job's results folder: an earlier job's cache, which this job updates."""

PORTS = "ALLRANKS_PORTS"
"""The variable with ports for process groups that a suite makes itself: by commas, and the first is MASTER_PORT."""

COVERAGE = "coverage"
"""The folder of pytest-cov's data and reports in a job's results folder."""

EARLIER_COVERAGE = "coverage-before"
"""The folder with the coverage data of the attempt that this one continues."""


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """A time limit, and what sets it."""

    value: float  # the seconds that are set
    # What sets them, in the form in which a user can change it: a key of the matrix file, a marker, an option, or a
    # variable.
    setting: str
    margin: float = 0.0  # seconds that are added, for work that the setting is not about

    @property
    def seconds(self) -> float:
        """When the time is up."""
        return self.value + self.margin

    def plus(self, seconds: float) -> Self:
        """The same limit with more time."""
        return dataclasses.replace(self, margin=self.margin + seconds)

    def words(self, since: str = "") -> str:
        """The limit as messages name it, as in ``60 s (limits.test)`` or ``65 s (limits.test = 60, plus 5 s)``.

        `since` says what the seconds are counted from, or during which activity.
        """
        more = f" = {self.value:g}, plus {self.margin:g} s" if self.margin else ""
        return f"{self.seconds:g} s {since}".rstrip() + f" ({self.setting}{more})"


LimitName = Literal["process_group", "test", "job", "peer_grace", "assembly", "silence"]


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Seconds, each limit inside the next."""

    process_group: float  # time limit of the operations of the cell's process group
    test: float  # from the release of a test to the report of its last rank
    job: float  # from the job's turn (the agent has imported and collected, maybe long before) to the agent's end
    peer_grace: float  # for the peers of the first bad rank to end by themselves
    # With several nodes, from the leading agent's start to the last other agent's arrival, and again from the leader's
    # collection to the last other agent's.
    assembly: float = 120.0
    silence: float = 20.0  # with several nodes, for an agent's answer before the agent counts as lost
    # For all GPUs of a job together to compute something; a first context takes a second or two.
    gpu_check: float = 60.0
    # What sets a limit, by its name, where that is not ``limits.NAME`` in the matrix file.
    settings: Mapping[str, str] = field(default_factory=dict)

    def limit(self, name: LimitName) -> TimeLimit:
        """One of the limits, with what sets it."""
        return TimeLimit(value=float(getattr(self, name)), setting=self.settings.get(name, f"limits.{name}"))


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The place of one agent among those of a job on several nodes."""

    node: int  # its node, from 0; node 0 leads
    leader: str  # where the leading agent listens: a host's name or address
    port: int  # its port there
    # The secret by which the agents of this job recognise each other; only the config files contain it.
    token: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobShard:
    """This job's part of the suite's tests, where several jobs share the suite."""

    number: int  # from 1
    count: int  # the number of jobs
    # Earlier durations of tests, by node id: the same for all of these jobs.
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuToCheck:
    """A GPU to test with a small computation before the job runs."""

    gpu: str  # its id
    visible: str  # the value of CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES that shows this GPU alone
    name: str  # its name in messages


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One job as its agent sees it."""

    cell: str  # the cell's id, for the report
    suite: str  # the suite's name, for the report; with the shard's number where the suite is shared
    paths: tuple[str, ...]  # the suite's files and folders, relative to the code folder
    backend: str
    world_size: int
    gpu_count: int  # GPUs that the cell asks for, over all nodes
    init_method: str
    isolation: Isolation  # how long a gang lives
    limits: TimeLimits  # time limits
    seed: int  # the seeds of all tests derive from it
    ignored: tuple[str, ...] = ()  # files and folders below these paths that are not collected
    pytest_args: tuple[str, ...] = ()  # arguments for pytest, after the suite's paths
    master_addr: str = "127.0.0.1"  # the address of the ranks' rendezvous
    mixed_skip: tuple[str, ...] = ()  # Node ids (``fnmatch`` patterns) of tests that some ranks may skip alone
    nodes: int = 1  # how many nodes the ranks are spread over, in blocks
    overlap: int = 1  # how many launcher tests may run at a time, or how many gangs of repeated tests
    # By name, the node ids (``fnmatch`` patterns) of launcher tests that never overlap one another.
    test_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Whether the cell's process group is made for every test; None to decide by the test.
    process_group: bool | None = None
    launches_ranks: bool = False  # tests start ranks themselves, as many as the cell has: one process runs each test
    # What becomes of processes that a test has started and that fail while the test passes; a crash is always an error.
    unchecked_children: UncheckedChildren = "notice"
    # How the processes start that a test wants by ``spawn`` or ``forkserver``.
    start_children: ChildStart = "cold"
    # This agent's place among those of the nodes, set by the engine; None for a single node.
    node_config: NodeConfig | None = None
    share: JobShard | None = None  # None where this job runs the whole suite
    # Node ids of the tests that an attempt runs again; None to run all collected tests.
    only: tuple[str, ...] | None = None
    shuffle: int | None = None  # the seed of the tests' random order; None for the order of collection
    torch: str = ""  # the torch version that the cell asks for; empty for any
    # The GPUs that this agent checks first; empty if that was done, or another agent does it.
    check_gpus: tuple[GpuToCheck, ...] = ()
    gpu_device: str = "cuda"  # torch's name of the type of these devices
    pdb_rank: int | None = None  # the rank to debug; None for none
    pdb_terminal: str = ""  # the path of the debugger's terminal
    # The plug-ins that take part in the job, each with its own settings of JSON types.
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def node(self) -> int:
        """The node that this agent is on."""
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
        """The text of the file that :meth:`read` reads."""
        return json.dumps(to_object(self), indent=1)

    def without_secrets(self) -> Self:
        """A copy without the token of its node."""
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
    """One node's block of things spread over all nodes; the first nodes get one more each if they do not divide."""
    each, more = divmod(total, nodes)
    start = node * each + min(node, more)
    return range(start, start + each + (node < more))


def seed_of_test(seed: int, nodeid: str) -> int:
    """The seed of one test in a job, the same on all ranks and in every run."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders of a job."""

    code: Path  # the base of the suite's paths
    results: Path  # files that outlive the job
    shared: Path  # scratch space that all ranks see

    def of_gang(self, number: int) -> Path:
        """The folder that the ranks of one gang share, which goes with the gang."""
        return self.shared / f"gang-{number}"
