import json
from pathlib import Path

import pytest

from allranks.engines.base import FileCopy, resources

MIB = 1 << 20


def test_json_form_survives_a_round_trip_through_json(make_spec):
    spec = make_spec(files=(FileCopy(source=Path("/a/b"), target=Path("b")),), gpus=("GPU-1",), environment={"A": "1"})
    plain = spec.to_json()
    assert json.loads(json.dumps(plain)) == plain


def test_json_form_has_all_fields(make_spec):
    spec = make_spec(files=(FileCopy(source=Path("/a/b"), target=Path("b")),), gpus=("GPU-1", "GPU-2"))
    plain = spec.to_json()
    assert plain["files"] == [{"source": "/a/b", "target": "b", "root": None}]
    assert plain["gpus"] == ["GPU-1", "GPU-2"]
    assert plain["agent"]["limits"]["peer_grace"] == 1
    assert set(plain) == set(spec.__dataclass_fields__)


def test_labels_name_run_cell_job_and_attempt(make_spec):
    assert make_spec(attempt=3, run_id="r").labels == {
        "allranks": "1",
        "allranks.run": "r",
        "allranks.cell": "gloo-w2-g0-env",
        "allranks.job": "gloo-w2-g0-env/tiny",
        "allranks.attempt": "3",
    }


def test_default_resources_grow_with_the_world():
    small, large = (resources(world_size=size, memory_mib=None, seconds=10) for size in (1, 8))
    assert small.memory_bytes == 3072 * MIB
    assert large.memory_bytes - small.memory_bytes == 7 * 1024 * MIB
    assert large.shm_bytes - small.shm_bytes == 7 * 256 * MIB
    assert large.pids > small.pids


def test_tests_that_overlap_have_room_for_the_ranks_of_each():
    """torch's RPC suite with `overlap = 6` has 24 ranks with 40 threads each, but 768 were allowed."""
    one, six = (resources(world_size=2, memory_mib=None, seconds=10, overlap=overlap) for overlap in (1, 6))
    assert six.pids >= 6 * 4 * 512
    assert six.shm_bytes - one.shm_bytes == (24 - 2) * 256 * MIB
    assert six.memory_bytes == 8192 * MIB


@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_fork_bomb_has_no_more_processes_before_it_has_no_more_memory(size):
    """With 3072 processes in 4 GiB, the kernel killed forks one by one for half a minute."""
    limits = resources(world_size=size, memory_mib=None, seconds=10)
    assert limits.pids * 1.5 * MIB < limits.memory_bytes


def test_memory_of_the_matrix_file_wins():
    assert resources(world_size=8, memory_mib=512, seconds=10).memory_bytes == 512 * MIB


@pytest.mark.parametrize(("limit", "engine"), [(10, 31), (100, 130), (1800, 1860)])
def test_the_engine_allows_the_agent_some_time_to_keep_its_own_limit(limit, engine):
    assert resources(world_size=1, memory_mib=None, seconds=limit).seconds == engine
