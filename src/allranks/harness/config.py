"""An agent's configuration of its job: one JSON file, written by the orchestrator."""

import dataclasses
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

Isolation = Literal["test", "file", "job"]

RESULTS_BYTES: Final = 512 << 20
"""What each node of a job may write to its results folder: each rank's log has a limit of its own."""

PYTEST_CACHE = "pytest-cache"
"""Where pytest's cache is in a job's results folder: one that an earlier job left, and what becomes of it."""

COVERAGE = "coverage"
"""Where data and reports of pytest-cov are in a job's results folder."""

EARLIER_COVERAGE = "coverage-before"
"""Where the data of the attempt is that this one goes on with."""


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Seconds, each limit inside the next.

    Attributes:
        process_group: Time limit of the operations of the cell's process group.
        test: From the release of a test to the report of its last rank.
        job: From the job's turn (the agent has imported and collected, maybe long before) to the agent's end.
        peer_grace: What the peers of the first bad rank get to end by themselves.
        assembly: With several nodes, from the leading agent's start to the last other agent's coming, and again from
            the leader's collection to the last other agent's.
        silence: With several nodes, what an agent may take for its answer before it counts as lost.
        gpu_check: What the GPUs of a job get together to compute something; a first context takes a second or two.
    """

    process_group: float
    test: float
    job: float
    peer_grace: float
    assembly: float = 120.0
    silence: float = 20.0
    gpu_check: float = 60.0


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The place of one agent among those of a job on several nodes.

    Attributes:
        node: Its node, from 0; node 0 leads.
        leader: Where the leading agent listens: a host's name or address.
        port: Its port there.
        token: By which the agents know each other: a secret of this job, which is in the config files and nowhere else.
    """

    node: int
    leader: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class JobShard:
    """The part of the suite's tests that is this job's, where several jobs share the suite.

    Attributes:
        number: From 1.
        count: The number of jobs.
        seconds: What tests have taken before, by node id: the same for all of these jobs.
    """

    number: int
    count: int
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GpuToCheck:
    """A GPU that is to compute something before the job does.

    Attributes:
        gpu: Its id.
        visible: By which it alone is seen, in CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES.
        name: What people call it.
    """

    gpu: str
    visible: str
    name: str


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One job as its agent sees it.

    Attributes:
        cell: The cell's id, for the report.
        suite: The suite's name, for the report; with the number of the share where it is shared.
        path: The suite's path, relative to the code folder.
        gpu_count: GPUs that the cell asks for, over all nodes.
        isolation: How long a gang lives.
        limits: Time limits.
        seed: Every rank of every test starts from it.
        pytest_args: Arguments for pytest, after the suite's path.
        master_addr: The address that ranks meet at.
        mixed_skip: Node ids (``fnmatch`` patterns) of tests that some ranks may skip alone.
        nodes: How many nodes the ranks are spread over, in blocks.
        overlap: How many launcher tests may run at a time.
        post: This agent's place among those of the nodes; None where there is one node. The engine makes it.
        share: None where this job runs the whole suite.
        only: Node ids of the tests that an attempt runs again; None where it runs all that are collected.
        shuffle: What the order of the tests is drawn by; None for the order of their collection.
        torch: The torch version that the cell stands for; empty where it stands for none.
        check_gpus: The GPUs that this agent is to try first; none where that has been done, or another one does.
        gpu_device: The type of these devices, as torch knows it.
        pdb_rank: The rank that a debugger has; None for none.
        pdb_terminal: The path of the debugger's terminal.
    """

    cell: str
    suite: str
    path: str
    backend: str
    world_size: int
    gpu_count: int
    init_method: str
    isolation: Isolation
    limits: TimeLimits
    seed: int
    pytest_args: tuple[str, ...] = ()
    master_addr: str = "127.0.0.1"
    mixed_skip: tuple[str, ...] = ()
    nodes: int = 1
    overlap: int = 1
    post: NodeConfig | None = None
    share: JobShard | None = None
    only: tuple[str, ...] | None = None
    shuffle: int | None = None
    torch: str = ""
    check_gpus: tuple[GpuToCheck, ...] = ()
    gpu_device: str = "cuda"
    pdb_rank: int | None = None
    pdb_terminal: str = ""

    @property
    def node(self) -> int:
        """The node that this agent is on."""
        return self.post.node if self.post else 0

    @property
    def local_ranks(self) -> range:
        """The ranks of this agent's node."""
        return share_of(self.node, total=self.world_size, nodes=self.nodes)

    def to_json(self) -> str:
        """The text of the file that :meth:`read` reads."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    def without_secrets(self) -> Self:
        """It without the token of its post."""
        post = None if self.post is None else dataclasses.replace(self.post, token="")
        return dataclasses.replace(self, post=post)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a config file.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a config file of this version.
        """
        return cls.parse(path.read_text(encoding="utf-8"), str(path))

    @classmethod
    def parse(cls, text: str, source: str = "this") -> Self:
        """What :meth:`to_json` has made.

        Args:
            text: It.
            source: Where it is from, for the error.

        Raises:
            ValueError: It is not a config of this version.
        """
        fields = json.loads(text)
        try:
            limits = TimeLimits(**fields.pop("limits"))
            lists = {name: tuple(fields[name]) for name in ("pytest_args", "mixed_skip")}
            post = NodeConfig(**fields["post"]) if fields["post"] else None
            share = JobShard(**fields["share"]) if fields["share"] else None
            only = None if fields["only"] is None else tuple(fields["only"])
            gpus = tuple(GpuToCheck(**gpu) for gpu in fields.pop("check_gpus"))
            own = {**lists, "limits": limits, "post": post, "share": share, "only": only, "check_gpus": gpus}
            return cls(**{**fields, **own})
        except (KeyError, TypeError) as error:
            msg = f"{source} is not an agent config of this version of allranks: {error}"
            raise ValueError(msg) from error


def share_of(node: int, *, total: int, nodes: int) -> range:
    """What one node has of things that are spread over all in blocks, the first nodes having one more where it must be.

    Args:
        node: The node.
        total: The number of ranks, or of GPUs.
        nodes: The number of nodes.
    """
    each, more = divmod(total, nodes)
    start = node * each + min(node, more)
    return range(start, start + each + (node < more))


def seed_of_test(seed: int, nodeid: str) -> int:
    """The seed of one test in a job, the same on all ranks and in every run."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders of a job.

    Attributes:
        code: What the suite's path is relative to.
        results: What is kept.
        shared: Scratch space that all ranks see.
    """

    code: Path
    results: Path
    shared: Path
