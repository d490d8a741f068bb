import os
import signal
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks import ownership
from allranks.errors import UsageError
from allranks.ownership import (
    exclusive_lock,
    host_id,
    image_lock,
    is_dead,
    is_held,
    is_of_earlier_boot,
    lock_folder,
    open_lock,
    own_run,
    remove_dead_locks,
    shared_lock,
)

OWNER = """
import sys
from pathlib import Path
from allranks import ownership
ownership.lock_folder = lambda: Path(sys.argv[1])
with ownership.own_run("r") as owned:
    print(*(owned.try_own(job) for job in sys.argv[2:]), flush=True)
    print("owned", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def start_owner(locks):
    """Start a process that owns the run ``r`` until its standard input ends."""
    with ExitStack() as stack:

        def start(*jobs: str) -> subprocess.Popen[bytes]:
            arguments = [sys.executable, "-c", OWNER, str(locks), *jobs]
            owner = stack.enter_context(
                subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            )
            stack.callback(owner.kill)
            assert owner.stdout.readline() == b" ".join([b"True"] * len(jobs)) + b"\n"
            assert owner.stdout.readline() == b"owned\n"
            return owner

        yield start


def test_a_run_is_alive_while_it_is_owned_and_dead_after():
    run_id = f"test-{os.getpid()}"
    with own_run(run_id):
        assert not is_dead(run_id)
    assert is_dead(run_id)


@pytest.mark.usefixtures("locks")
def test_a_run_that_nobody_ever_owned_is_dead():
    assert is_dead("never")


def test_an_owner_that_ends_well_leaves_no_file(locks):
    with own_run("r"):
        assert [path.name for path in locks.iterdir()] == ["run-r"]
    assert list(locks.iterdir()) == []


@pytest.mark.usefixtures("locks")
def test_looking_at_a_run_does_not_kill_it():
    with own_run("r"):
        assert [is_dead("r") for _ in range(3)] == [False] * 3


def test_another_process_sees_the_owner(start_owner):
    owner = start_owner()
    assert not is_dead("r")
    owner.communicate()
    assert is_dead("r")


def test_a_run_is_dead_once_its_owner_was_killed(start_owner):
    owner = start_owner()
    owner.kill()
    owner.wait()
    assert is_dead("r")


def test_a_suspended_owner_is_alive(start_owner):
    owner = start_owner()
    owner.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WNOWAIT)
    assert not is_dead("r")


def test_a_run_lives_as_long_as_the_last_of_its_owners(start_owner, locks):
    first, second = start_owner(), start_owner()
    first.communicate()
    assert not is_dead("r")
    with own_run("r"):
        second.kill()
        second.wait()
        assert not is_dead("r")
    assert is_dead("r")
    assert list(locks.iterdir()) == []


def test_a_killed_owner_does_not_keep_others_from_joining(start_owner, locks):
    owner = start_owner()
    owner.kill()
    owner.wait()
    with own_run("r"):
        assert not is_dead("r")
    assert list(locks.iterdir()) == []


@pytest.mark.usefixtures("locks")
def test_an_owner_never_locks_a_file_that_the_last_one_has_just_removed(monkeypatch):
    opened = []

    def open_then_lose(path):
        descriptor = open_lock(path)
        if not opened:
            Path(path).unlink()
        opened.append(descriptor)
        return descriptor

    monkeypatch.setattr(ownership, "open_lock", open_then_lose)
    with own_run("r"):
        assert len(opened) == 2
        assert not is_dead("r")


def test_files_of_killed_owners_are_forgotten_and_those_of_the_living_are_not(start_owner, locks):
    owner = start_owner()
    owner.kill()
    owner.wait()
    with own_run("alive"):
        remove_dead_locks()
        assert [path.name for path in locks.iterdir()] == ["run-alive"]
        assert not is_dead("alive")


def test_an_owner_that_ends_removes_no_file_but_its_own(locks):
    with own_run("r"):
        (locks / "run-r").unlink()
        (locks / "run-r").write_text("of the next owner")
    assert (locks / "run-r").exists()


def test_forgetting_survives_a_file_that_goes_at_that_moment(locks, monkeypatch):
    monkeypatch.setattr(Path, "glob", lambda *_: iter([locks / "run-gone"]))
    remove_dead_locks()
    assert list(locks.iterdir()) == []


def test_a_job_of_a_run_has_one_owner_and_other_jobs_have_others(start_owner):
    start_owner("a", "b")
    with own_run("r") as owned:
        assert [owned.try_own(job) for job in ("a", "b", "c")] == [False, False, True]
        with own_run("r") as other:
            assert [other.try_own(job) for job in ("a", "c", "d")] == [False, False, True]


def test_a_job_of_a_killed_owner_is_free_and_that_of_a_suspended_one_is_not(start_owner):
    owner = start_owner("a")
    with own_run("r") as owned:
        owner.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WNOWAIT)
        assert not owned.try_own("a")
        owner.kill()
        owner.wait()
        assert owned.try_own("a")


@pytest.mark.usefixtures("locks")
def test_a_job_is_owned_as_long_as_its_run_or_until_it_is_given_back():
    with own_run("r") as first:
        with own_run("r") as second:
            assert second.try_own("a")
            assert not first.try_own("a")
            second.disown("a")
            assert first.try_own("a")
            first.disown("a")
            assert second.try_own("a")
        assert first.try_own("a")


@pytest.mark.usefixtures("locks")
def test_looking_whether_a_run_is_dead_frees_none_of_its_jobs():
    with own_run("r") as owned, own_run("r") as other:
        assert owned.try_own("a")
        assert not is_dead("r")
        assert not other.try_own("a")


def test_who_waits_for_a_job_goes_on_when_its_owner_ends(start_owner):
    owner = start_owner("a")
    with own_run("r") as owned, own_run("r") as other:
        owner.stdin.close()
        owned.wait_for("a")
        assert other.try_own("a")


@given(st.lists(st.text(max_size=20), unique=True, max_size=30))
def test_no_two_jobs_have_one_lock(jobs):
    with own_run(f"test-{os.getpid()}") as first, own_run(f"test-{os.getpid()}") as second:
        assert all(first.try_own(job) for job in jobs[::2])
        assert all(second.try_own(job) for job in jobs[1::2])


@pytest.mark.usefixtures("locks")
def test_a_lock_that_somebody_shares_nobody_holds_alone():
    lock = image_lock("allranks/cpu:1")
    with shared_lock(lock), shared_lock(lock):
        assert is_held(lock)
        with exclusive_lock(lock) as is_mine:
            assert not is_mine
        assert is_held(lock)


def test_a_lock_that_nobody_shares_is_held_alone_and_leaves_no_file(locks):
    lock = image_lock("allranks/cpu:1")
    with exclusive_lock(lock) as is_mine:
        assert is_mine
        assert is_held(lock)
        with exclusive_lock(lock) as is_also_mine:
            assert not is_also_mine
    assert not is_held(lock)
    assert list(locks.iterdir()) == []


def test_who_shares_waits_for_who_holds_alone(locks):
    lock = image_lock("allranks/cpu:1")
    program = (
        "import sys; from pathlib import Path; from allranks.ownership import shared_lock\n"
        "print('asks', flush=True)\nwith shared_lock(Path(sys.argv[1])): print('has', flush=True)"
    )
    with exclusive_lock(lock):
        process = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"asks\n"
        assert process.poll() is None
    output, _ = process.communicate(timeout=30)
    assert output == b"has\n"
    assert list(locks.iterdir()) == []


def test_locks_are_for_every_user(tmp_path):
    descriptor = open_lock(tmp_path / "lock")
    os.close(descriptor)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o666


def test_a_lock_file_of_another_user_is_opened_without_making_it(tmp_path, monkeypatch):
    (tmp_path / "lock").touch()
    flags = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flag, *mode: flags.append(flag) or real(path, flag, *mode))
    os.close(open_lock(tmp_path / "lock"))
    assert not any(flag & os.O_CREAT for flag in flags)


def test_opening_a_lock_survives_its_removal_at_any_moment(tmp_path, monkeypatch):
    """A process removes the file while another opens it, and neither may fail."""
    real = os.open
    path = tmp_path / "lock"
    moves = iter([path.touch, path.unlink])

    def interfere(name, flag, *mode):
        try:
            return real(name, flag, *mode)
        finally:
            next(moves, lambda: None)()

    monkeypatch.setattr(os, "open", interfere)
    os.close(open_lock(path))
    assert path.exists()


def test_the_lock_folder_is_the_same_whatever_tmpdir_says(monkeypatch, tmp_path):
    before = lock_folder()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert lock_folder() == before


def test_a_variable_names_another_folder_of_locks(monkeypatch, tmp_path):
    before = host_id()
    monkeypatch.setenv("ALLRANKS_LOCKS", str(tmp_path / "a" / "b"))
    assert lock_folder() == tmp_path / "a" / "b"
    assert lock_folder().is_dir()
    assert host_id() != before  # so that runs with different folders leave each other alone


def test_a_folder_of_locks_that_cannot_be_used_is_refused(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ALLRANKS_LOCKS", str(tmp_path / "file"))
    with pytest.raises(UsageError, match=r"(?s)ALLRANKS_LOCKS=.*file.*unset ALLRANKS_LOCKS") as raised:
        lock_folder()
    assert "exists" in raised.value.why


def test_everybody_may_lock_and_nobody_may_remove_the_locks_of_others():
    mode = lock_folder().stat().st_mode
    assert mode & stat.S_IWOTH
    assert mode & stat.S_ISVTX


def test_a_host_keeps_its_name_and_the_name_says_nothing():
    assert host_id() == host_id()
    parts = host_id().split(".")
    assert [len(part) for part in parts] == [16, 16, 16]
    assert all(int(part, 16) >= 0 for part in parts)


def test_containers_that_share_a_machine_have_different_names(monkeypatch):
    before = host_id()
    monkeypatch.setattr(ownership, "process_namespace", lambda _process: Path("pid:[4026539999]"))
    assert host_id() != before


def test_who_looks_for_locks_in_another_folder_has_another_name(monkeypatch, tmp_path):
    before = host_id()
    monkeypatch.setattr(ownership, "lock_folder", lambda: tmp_path)
    assert host_id() != before


def test_machines_of_one_disk_image_have_different_names(monkeypatch, tmp_path):
    """They share /etc/machine-id and the number of the pid namespace, but not the boot id."""
    before = host_id()
    boot = tmp_path / "boot_id"
    boot.write_text("another\n")
    monkeypatch.setattr(ownership, "_BOOT_ID", boot)
    assert host_id() != before


MADE = st.floats(min_value=0, max_value=2e9)


@given(MADE, st.text("0123456789abcdef.", max_size=60))
def test_nothing_of_another_machine_or_of_a_nameless_one_is_of_an_earlier_boot(made, host):
    assert not is_of_earlier_boot(host, made)


@given(MADE)
def test_what_this_boot_made_is_of_no_earlier_one(made):
    assert not is_of_earlier_boot(host_id(), made)


def test_what_an_earlier_boot_made_is_told_by_its_age():
    machine, _, spaces = host_id().split(".")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    earlier = f"{machine}.{'0' * 16}.{spaces}"
    assert is_of_earlier_boot(earlier, booted - 60)
    assert not is_of_earlier_boot(earlier, booted + 60)  # of another machine with the same id
    assert not is_of_earlier_boot(machine, booted - 60)  # as allranks named hosts before, whatever their boot
