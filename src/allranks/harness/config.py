"""What an agent is told about its job: one JSON file, written by the orchestrator."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Isolation = Literal["test", "file", "job"]


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Seconds, each limit inside the next.

    Attributes:
        process_group: Time limit of the operations of the cell's process group.
        test: From the release of a test to the report of its last rank.
        job: From the job's turn (the agent has imported and collected, maybe long before) to the agent's end.
        peer_grace: What the peers of the first bad rank get to end by themselves.
    """

    process_group: float
    test: float
    job: float
    peer_grace: float


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """One job as its agent sees it.

    Attributes:
        cell: The cell's id, for the report.
        suite: The suite's name, for the report.
        path: The suite's path, relative to the code folder.
        gpu_count: GPUs that the cell asks for, over all nodes.
        isolation: How long a gang lives.
        limits: Time limits.
        seed: Every rank of every test starts from it.
        pytest_args: Arguments for pytest, after the suite's path.
        master_addr: The address that ranks meet at.
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

    def to_json(self) -> str:
        """The text of the file that :meth:`read` reads."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a config file.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not a config file of this version.
        """
        fields = json.loads(path.read_text(encoding="utf-8"))
        try:
            limits = TimeLimits(**fields.pop("limits"))
            arguments = tuple(fields.pop("pytest_args"))
            return cls(limits=limits, pytest_args=arguments, **fields)
        except (KeyError, TypeError) as error:
            msg = f"{path} is not an agent config of this version of allranks: {error}"
            raise ValueError(msg) from error


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
