import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from allranks.errors import UsageError
from allranks.schedule.gpus import Holder, chosen_gpus, count_free, holders, host_gpus, try_lease

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
    while (lease := gpus.try_lease(order, count)) is None:
        pass
    with lease:
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


def test_the_free_ones_are_counted_and_none_is_kept(holder, locks):
    before = set(Path("/proc/self/fd").iterdir())
    assert count_free(GPUS) == 3
    holder.kill()
    holder.wait()
    assert count_free(GPUS) == 4
    assert try_lease(GPUS, 5) is None
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert len(list(locks.iterdir())) == 4


def test_who_holds_what_is_known_as_long_as_it_is_held():
    mine = Holder(run_id="r1", job_id="cell/suite", pid=7, since=5.0)
    with try_lease(GPUS[:2], 1, mine) as lease:
        assert holders(GPUS[:2]) == {lease.gpus[0]: mine, GPUS[1]: None}
        assert holders(()) == {lease.gpus[0]: mine}
    assert holders(GPUS[:1]) == {GPUS[0]: None}
    assert holders(()) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpu": "GPU-0", "colour": "red"}'])
def test_a_lock_file_that_says_nothing_is_somebodys_all_the_same(locks, text):
    with try_lease(GPUS, 1):
        (locks / "gpu-GPU-0").write_text(text)
        assert holders(GPUS[:1]) == {GPUS[0]: Holder()}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("0,2-3", (0, 2, 3)),
        ("GPU-1", (1,)),
        (" 3 , GPU-0 ,3", (3, 0)),
        ("1-1", (1,)),
        ("", ()),
    ],
)
def test_gpus_are_chosen_by_number_and_by_id(wanted, found):
    assert chosen_gpus(GPUS, wanted) == tuple(GPUS[number] for number in found)


@pytest.mark.parametrize("wanted", ["4", "3-4", "2-1", "GPU-9", "-1", "all"])
def test_a_gpu_that_is_not_there_is_refused(wanted):
    with pytest.raises(UsageError, match=f"There is no GPU {wanted} on this host") as caught:
        chosen_gpus(GPUS, f"0,{wanted}")
    assert "numbers 0 to 3" in caught.value.why


def test_of_no_gpus_none_can_be_chosen():
    with pytest.raises(UsageError, match="no GPU 0") as caught:
        chosen_gpus((), "0")
    assert "There are: none" in caught.value.why


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
