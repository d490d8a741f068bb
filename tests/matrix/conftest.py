import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from allranks.matrix.declaration import load
from allranks.matrix.expand import Expansion, expand
from allranks.matrix.model import Matrix

sys.path.insert(0, str(Path(__file__).parent))  # the strategies, which pytest's importlib mode does not find

DOCUMENT = """\
[matrix]
custom_backends = ['mine']
backend = ["gloo", "nccl"]
world_size = [1, 2]
gpu_count = [0, 1, 2]
[[matrix.exclude]]
when = "backend == 'nccl' and gpu_count != world_size"
reason = "a GPU for each rank"

[[matrix.exclude]]
when = "backend == 'gloo' and gpu_count > 0"
reason = "gloo is tested on CPU tensors"

[suites.collectives]
path = "suites/collectives"

[images.cpu]
when = "gpu_count == 0"
torch = "2.13.0"

[images.cuda]
when = "gpu_count > 0"
torch = "2.14.1"

[[env]]
when = "backend == 'nccl'"
set = { NCCL_DEBUG = "WARN" }
"""

Load = Callable[[str], Matrix]


@pytest.fixture(scope="session")
def document() -> str:
    return DOCUMENT


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "suites" / "collectives").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def load_text(repository: Path) -> Load:
    def load_written(text: str) -> Matrix:
        (repository / "matrix.toml").write_text(text)
        return load(repository).matrix

    return load_written


@pytest.fixture
def expansion(load_text: Load, document: str) -> Expansion:
    return expand(load_text(document))
