"""The matrix files of the acceptance's runs: a suite in a few cells, under this interpreter or in an image."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_acceptance.machine import Machine

LIMITS = {"process_group": 30, "test": 60, "job": 240, "peer_grace": 2}
"""Seconds, for what a suite does not say itself."""

MATRIX = """\
[matrix]
backend = ["{backend}"]
world_size = {world_sizes}
gpu_count = [{gpus}]
init_method = {init_methods}

[suites.{suite}]
path = "{path}"
isolation = "{isolation}"
overlap = {overlap}
{group}pytest_args = {plugins}

[images.any]
{image}

[process]
python = {python}

[limits]
{limits}

[[env]]
when = "world_size > 0"
set = {{ {variables} }}
"""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells of a run."""

    backend: str
    world_sizes: tuple[int, ...]
    gpus: int
    init_methods: tuple[str, ...] = ("env",)

    @property
    def ids(self) -> dict[str, int]:
        """The world size of each, by its id."""
        return {
            f"{self.backend}-w{size}-g{self.gpus}-{method}": size
            for size in self.world_sizes
            for method in self.init_methods
        }


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The suite of a run.

    Attributes:
        source: Its folder.
        path: What of it is run.
        process_group: Whether a process group is made for every test; False for tests that make their own.
        variables: What its ranks find in their environment.
        image: The prebuilt image that it runs in; empty for processes of this host.
    """

    source: Path
    path: str = ""
    isolation: str = "file"
    overlap: int = 1
    process_group: bool = True
    limits: Mapping[str, float] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    image: str = ""


def matrix_file(machine: Machine, cells: Cells, suite: Suite) -> str:
    """The text of a matrix file that has these cells and this suite, and nothing else."""
    limits = {**LIMITS, **suite.limits}
    # torch's test modules would have Numba initialize CUDA in the process that forks the ranks.
    own = {"NCCL_DEBUG": "WARN", "NUMBA_DISABLE_CUDA": "1", **suite.variables}
    torch = machine.torch.partition("+")[0]
    return MATRIX.format(
        backend=cells.backend,
        world_sizes=list(cells.world_sizes),
        gpus=cells.gpus,
        init_methods=json.dumps(cells.init_methods),
        suite=suite.source.name,
        path=f"{suite.source.name}/{suite.path}".rstrip("/"),
        isolation=suite.isolation,
        overlap=suite.overlap,
        group="" if suite.process_group else "process_group = false\n",
        plugins=json.dumps(["-p", "gpu_acceptance.pretence.plugin"] if machine.pretended else []),
        image=f"image = {json.dumps(suite.image)}" if suite.image else f'torch = "{torch}"',
        python=json.dumps(sys.executable),
        limits="\n".join(f"{name} = {value}" for name, value in limits.items()),
        variables=", ".join(f"{name} = {json.dumps(value)}" for name, value in own.items()),
    )
