"""The GPU queue, with real processes that compete, stop and die."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from allranks.runner import gpu_leases
from allranks.runner.gpu_leases import claimed, count_free, enqueue, try_lease

GPUS = tuple(f"GPU-{number}" for number in range(4))
LIMIT = 60.0

pytestmark = pytest.mark.usefixtures("locks")

# Leases `count` GPUs repeatedly, like a run; if they are not available, it joins the queue.
COMPETITOR = """
import json, os, sys, time
from pathlib import Path
from allranks.runner import gpu_leases

folder, name, count, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
gpu_leases.lock_folder = lambda: folder
gpus = [f"GPU-{number}" for number in range(4)]
book = os.open(folder.parent / "book", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

def note(what):
    os.write(book, (json.dumps([time.monotonic_ns(), name, what, os.getpid()]) + "\\n").encode())

def wait_for_lease():
    entry = None
    while (lease := gpu_leases.try_lease(gpus, count, None, entry)) is None:
        if entry is None:
            entry = gpu_leases.enqueue(gpus)
            note("waits")
        entry.touch()
        time.sleep(0.002)
    note("has")
    if entry:
        entry.leave()
    return lease

print("ready", flush=True)
sys.stdin.readline()
for _ in range(rounds):
    with wait_for_lease() as lease:
        for gpu in lease.gpus:
            # Fails if another process holds it: the kernel creates it exclusively.
            os.close(os.open(folder.parent / f"in-{gpu}", os.O_CREAT | os.O_EXCL))
        time.sleep(0.02)  # its job
        for gpu in lease.gpus:
            os.unlink(folder.parent / f"in-{gpu}")
"""

WAITER = """
import sys, time
from pathlib import Path
from allranks.runner import gpu_leases

gpu_leases.lock_folder = lambda: Path(sys.argv[1])
entry = gpu_leases.enqueue(["GPU-0"])
print("waits", flush=True)
while True:
    entry.touch()
    time.sleep(0.01)
"""


@pytest.fixture
def compete(locks):
    """Runs competitors ``(name, count, rounds)`` concurrently, and returns their log."""

    def run(*competitors):
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-c", COMPETITOR, locks, name, str(count), str(rounds)],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    )
                )
                for name, count, rounds in competitors
            ]  # fmt: skip
            for process in processes:
                assert process.stdout.readline() == "ready\n"
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in processes:
                _, errors = process.communicate(timeout=LIMIT)
                assert process.returncode == 0, errors
        book = (locks.parent / "book").read_text().splitlines()
        return sorted(json.loads(entry) for entry in book)

    return run


def overtaken_by(book, name):
    """For each wait, the number of leases that others got meanwhile."""
    counts, waits = [], None
    for _, who, what, _ in book:
        if who == name and what == "waits":
            waits = 0
        elif who == name and waits is not None:
            counts.append(waits)
            waits = None
        elif waits is not None and what == "has":
            waits += 1
    return counts


@pytest.mark.thorough
def test_a_run_that_needs_all_gpus_waits_for_at_most_one_job_of_each_other_run(compete):
    small = [(f"small-{number}", 1, 40) for number in range(5)]
    found = overtaken_by(compete(("large", 4, 3), *small), "large")
    # Each of the others may have read the queue just before.
    assert found
    assert max(found) <= len(small)


def test_two_runs_that_need_all_gpus_take_turns(compete):
    book = compete(("one", 4, 15), ("two", 4, 15), ("small", 1, 15))
    for name in ("one", "two"):
        assert [what for _, who, what, _ in book if who == name].count("has") == 15
        assert max(overtaken_by(book, name), default=0) <= 2


@pytest.fixture
def waiter(locks):
    with subprocess.Popen([sys.executable, "-c", WAITER, locks], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"waits\n"
        yield process
        process.kill()


def wait_until(is_so):
    deadline = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("waiter")
def test_gpus_of_an_earlier_entry_are_not_leased():
    assert claimed() == {"GPU-0"}
    assert (count_free(GPUS), try_lease(GPUS[:1], 1)) == (3, None)
    with try_lease(GPUS, 3) as lease:
        assert lease.gpus == GPUS[1:]


def test_the_entry_of_a_dead_run_is_ignored(waiter, locks):
    waiter.kill()
    waiter.wait()
    assert claimed() == frozenset()
    assert list(locks.glob("queue-*")) == []


def test_a_suspended_run_blocks_no_other_and_keeps_its_position(waiter, monkeypatch):
    monkeypatch.setattr(gpu_leases, "ENTRY_TIMEOUT", 0.2)
    wait_until(lambda: claimed() == {"GPU-0"})
    os.kill(waiter.pid, signal.SIGSTOP)
    wait_until(lambda: claimed() == frozenset())
    with try_lease(GPUS, 4) as lease:
        assert lease.gpus == GPUS
    os.kill(waiter.pid, signal.SIGCONT)
    wait_until(lambda: claimed() == {"GPU-0"})


def test_the_queue_is_first_in_first_out(locks):
    first, second = enqueue(GPUS[:2]), enqueue(GPUS[1:])
    assert (claimed(first), claimed(second), claimed()) == (frozenset(), {*GPUS[:2]}, {*GPUS})
    with try_lease(GPUS, 4, entry=first) as lease:
        assert lease is not None
    assert try_lease(GPUS, 3, entry=second) is None
    first.leave()
    with try_lease(GPUS, 3, entry=second) as lease:
        assert lease is not None
    second.leave()
    assert list(locks.glob("queue-*")) == []


def test_every_user_may_read_and_remove_an_entry():
    mask = os.umask(0o077)
    entry = enqueue(GPUS)
    os.umask(mask)
    assert entry.path.stat().st_mode & 0o777 == 0o666
    entry.leave()


def test_an_entry_that_another_run_removed_before_it_was_locked_is_made_again(locks, monkeypatch):
    fchmod, removed = os.fchmod, []

    def remove_the_first(descriptor, mode):
        if not removed:
            removed.extend(locks.glob("queue-*"))
            removed[0].unlink()
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", remove_the_first)
    entry = enqueue(GPUS)
    assert (list(locks.glob("queue-*")), claimed()) == ([entry.path], {*GPUS})
    entry.leave()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"gpus": 3}'])
def test_an_entry_without_gpus_claims_nothing(text):
    entry = enqueue(GPUS)
    entry.path.write_text(text)
    entry.touch()
    assert claimed() == frozenset()
    entry.leave()


@pytest.mark.usefixtures("waiter")
def test_reading_the_queue_leaves_no_file_open():
    before = set(Path("/proc/self/fd").iterdir())
    claimed()
    enqueue(GPUS).leave()
    assert set(Path("/proc/self/fd").iterdir()) == before
