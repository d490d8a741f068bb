import fcntl
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from allranks.engine.ownership import open_lock
from allranks.schedule import gpus
from allranks.schedule.gpus import host_gpus, try_lease, wait_for_lease

GPUS = tuple(f"GPU-{number}" for number in range(4))

COMPETITOR = """
import os, random, sys
from pathlib import Path
from allranks.schedule import gpus

folder, seed = Path(sys.argv[1]), int(sys.argv[2])
gpus.lock_folder = lambda: folder
names = [f"GPU-{number}" for number in range(4)]
chance = random.Random(seed)
for _ in range(60):
    count = chance.randint(1, 4)
    order = chance.sample(names, 4)
    with gpus.wait_for_lease(order, count, lambda line: None) as lease:
        assert len(set(lease.gpus)) == count
        for gpu in lease.gpus:
            # Fails when somebody else is in there: the kernel makes it for one process alone.
            os.close(os.open(folder / f"in-{gpu}", os.O_CREAT | os.O_EXCL))
        for gpu in lease.gpus:
            os.unlink(folder / f"in-{gpu}")
"""

HOLDER = """
import sys
from pathlib import Path
from allranks.schedule import gpus

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


def test_a_lease_holds_as_many_gpus_as_were_asked_for():
    with try_lease(GPUS, 3) as lease:
        assert lease.gpus == GPUS[:3]
        assert len(lease.descriptors) == 3


def test_a_lease_on_no_gpu_is_a_lease():
    with try_lease((), 0) as lease:
        assert (lease.gpus, lease.descriptors) == ((), ())


def test_a_lease_takes_the_gpus_that_are_free():
    with try_lease(GPUS, 2), try_lease(GPUS, 2) as second:
        assert second.gpus == GPUS[2:]


def test_too_few_free_gpus_are_none_at_all():
    with try_lease(GPUS, 3):
        assert try_lease(GPUS, 2) is None
        with try_lease(GPUS, 1) as rest:
            assert rest.gpus == ("GPU-3",)


def test_a_lease_that_ended_is_free_again():
    with try_lease(GPUS, 4):
        assert try_lease(GPUS, 1) is None
    with try_lease(GPUS, 4) as lease:
        assert lease.gpus == GPUS


def test_two_processes_never_hold_the_same_gpu(locks):
    with ExitStack() as stack:
        competitors = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", COMPETITOR, str(locks), str(seed)], stderr=subprocess.PIPE, text=True
                )
            )
            for seed in range(4)
        ]
        for competitor in competitors:
            _, errors = competitor.communicate(timeout=60)
            assert competitor.returncode == 0, errors


@pytest.mark.usefixtures("holder")
def test_a_gpu_that_another_process_holds_is_not_to_be_had():
    assert try_lease(["GPU-0"], 1) is None


def test_a_killed_owner_frees_its_gpus(holder):
    holder.kill()
    holder.wait()
    with try_lease(["GPU-0"], 1) as lease:
        assert lease.gpus == ("GPU-0",)


def test_a_child_that_inherited_the_lock_keeps_the_gpu_when_the_owner_is_gone():
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


def test_waiting_ends_when_the_holder_does(holder, lines):
    told = threading.Event()

    def waiting(line: str) -> None:
        lines.append(line)
        told.set()

    def end() -> None:
        told.wait()
        holder.kill()

    helper = threading.Thread(target=end)
    helper.start()
    with wait_for_lease(["GPU-0", "GPU-1"], 2, waiting) as lease:
        assert lease.gpus == ("GPU-0", "GPU-1")
    helper.join()
    assert lines == ["waiting for 2 of 2 GPUs: another run holds them"]


def test_who_waits_holds_nothing(locks, monkeypatch):
    """Or two runs that each hold what the other needs would wait for ever."""
    descriptor = open_lock(locks / "gpu-GPU-1")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    free_while_waiting = []

    def look_then_release(gpus_wanted):
        with try_lease(["GPU-0"], 1) as lease:
            free_while_waiting.append((tuple(gpus_wanted), lease.gpus))
        os.close(descriptor)

    monkeypatch.setattr(gpus, "_wait_for_any", look_then_release)
    with wait_for_lease(["GPU-0", "GPU-1"], 2, lambda _line: None):
        assert free_while_waiting == [(("GPU-0", "GPU-1"), ("GPU-0",))]


def test_waiting_leaves_no_descriptor_open(locks):
    before = set(Path("/proc/self/fd").iterdir())
    with wait_for_lease(GPUS, 2, lambda _line: None):
        assert try_lease(GPUS, 3) is None
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert len(list(locks.iterdir())) == 4


def test_strange_names_of_gpus_are_files_in_the_folder_all_the_same(locks):
    with try_lease(["../../etc/x y"], 1):
        assert [path.name for path in locks.iterdir()] == ["gpu-.._.._etc_x_y"]


def test_gpus_of_a_remote_daemon_come_from_the_environment():
    assert host_gpus({"ALLRANKS_GPUS": " GPU-a, GPU-b ,"}) == ("GPU-a", "GPU-b")


def test_an_empty_list_in_the_environment_means_none():
    assert host_gpus({"ALLRANKS_GPUS": ""}) == ()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put a stand-in for nvidia-smi first on the path."""

    def install(script: str) -> None:
        tool = tmp_path / "bin" / "nvidia-smi"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")

    return install


def test_gpus_of_this_host_come_from_the_driver(driver):
    driver("printf 'GPU-a\\nGPU-b\\n'")
    assert host_gpus({}) == ("GPU-a", "GPU-b")


def test_a_driver_that_does_not_answer_has_no_gpus(driver):
    driver("echo 'NVIDIA-SMI has failed'; exit 9")
    assert host_gpus({}) == ()


def test_no_driver_is_no_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_gpus({}) == ()
