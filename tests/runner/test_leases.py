"""Leases on GPUs, by several processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from allranks.runner.gpu_leases import Holder, count_free, holders, try_lease

GPUS = tuple(f"GPU-{number}" for number in range(4))

HOLDER = """
import sys
from pathlib import Path
from allranks.runner import gpu_leases as gpus

gpus.lock_folder = lambda: Path(sys.argv[1])
lease = gpus.try_lease(["GPU-0"], 1)
print("held", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.usefixtures("locks")


@pytest.fixture
def holder(locks):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(locks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_lease_has_the_requested_number_of_gpus():
    with try_lease(GPUS, 3) as lease:
        assert lease.gpus == GPUS[:3]
        assert len(lease.descriptors) == 3


def test_a_lease_may_have_no_gpus():
    with try_lease((), 0) as lease:
        assert (lease.gpus, lease.descriptors) == ((), ())


def test_a_lease_takes_the_gpus_that_are_free():
    with try_lease(GPUS, 2), try_lease(GPUS, 2) as second:
        assert second.gpus == GPUS[2:]


def test_too_few_free_gpus_are_no_lease():
    with try_lease(GPUS, 3):
        assert try_lease(GPUS, 2) is None
        with try_lease(GPUS, 1) as rest:
            assert rest.gpus == ("GPU-3",)


def test_a_lease_that_ended_is_free_again():
    with try_lease(GPUS, 4):
        assert try_lease(GPUS, 1) is None
    with try_lease(GPUS, 4) as lease:
        assert lease.gpus == GPUS


@pytest.mark.usefixtures("holder")
def test_a_gpu_of_another_process_cannot_be_leased():
    assert try_lease(["GPU-0"], 1) is None


def test_a_killed_owner_frees_its_gpus(holder):
    holder.kill()
    holder.wait()
    with try_lease(["GPU-0"], 1) as lease:
        assert lease.gpus == ("GPU-0",)


def test_a_child_that_inherited_the_lock_keeps_the_gpu_when_the_owner_ends():
    with try_lease(["GPU-0"], 1) as lease:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=lease.descriptors
        )
    with child:
        assert try_lease(["GPU-0"], 1) is None
    with try_lease(["GPU-0"], 1) as lease:
        assert lease.gpus == ("GPU-0",)


def test_an_owners_other_children_do_not_keep_the_gpu():
    with try_lease(["GPU-0"], 1):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with child, try_lease(["GPU-0"], 1) as lease:
        assert lease.gpus == ("GPU-0",)


def test_counting_free_gpus_leases_none(holder, locks):
    before = set(Path("/proc/self/fd").iterdir())
    assert count_free(GPUS) == 3
    holder.kill()
    holder.wait()
    assert count_free(GPUS) == 4
    assert try_lease(GPUS, 5) is None
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert len(list(locks.iterdir())) == 4


def test_the_holder_of_a_lease_is_known():
    mine = Holder(run_id="r1", job_id="cell/suite", pid=7, since=5.0)
    with try_lease(GPUS[:2], 1, mine) as lease:
        assert holders(GPUS[:2]) == {lease.gpus[0]: mine, GPUS[1]: None}
        assert holders(()) == {lease.gpus[0]: mine}
    assert holders(GPUS[:1]) == {GPUS[0]: None}
    assert holders(()) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpu": "GPU-0", "colour": "red"}'])
def test_a_lease_without_a_written_holder_has_an_unknown_holder(locks, text):
    with try_lease(GPUS, 1):
        (locks / "gpu-GPU-0").write_text(text)
        assert holders(GPUS[:1]) == {GPUS[0]: Holder()}


def test_lock_files_of_strange_gpu_names_are_in_the_lock_folder(locks):
    with try_lease(["../../etc/x y"], 1):
        assert [path.name for path in locks.iterdir()] == ["gpu-..%2F..%2Fetc%2Fx%20y"]
