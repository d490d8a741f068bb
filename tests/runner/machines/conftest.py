"""A matrix with two kinds of machines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.matrix.declaration import load
from allranks.matrix.expand import Expansion

DOCUMENT = """\
[matrix]
backend = ["gloo", "nccl"]
world_size = [1, 2]
gpu_count = [0, 1, 2]

[[matrix.exclude]]
when = "backend == 'nccl' and gpu_count != world_size"
reason = "a GPU for each rank"

[[matrix.exclude]]
when = "backend == 'gloo' and gpu_count > 0"
reason = "gloo is tested on CPU tensors"

[suites.tiny]
path = "suite"

[suites.split]
path = "suite"
shards = 2

[images.cpu]
when = "gpu_count == 0"
torch = "2.13.0"

[images.cuda]
when = "gpu_count > 0"
torch = "2.14.1"

[[runners]]
when = "gpu_count == 0"
labels = ["ubuntu-latest"]

[[runners]]
labels = ["self-hosted", "gpu"]
gpus = 2
engine = "docker"
"""

LoadText = Callable[[str], Expansion]


@pytest.fixture
def load_text(tmp_path: Path) -> LoadText:
    """Write and load the text of a matrix file."""

    (tmp_path / "suite").mkdir()

    def load_written(text: str) -> Expansion:
        (tmp_path / "matrix.toml").write_text(text)
        return load(tmp_path)

    return load_written


@pytest.fixture
def document() -> str:
    """The text of the matrix file."""
    return DOCUMENT


@pytest.fixture
def expansion(load_text: LoadText) -> Expansion:
    """The expanded matrix."""
    return load_text(DOCUMENT)
