"""A suite that tries what a job may not do; each test passes when it could not.

It is copied into a scratch repository, and runs after another suite; see ``test_hardening.py``.
"""

import ctypes
import errno
import os
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.isolation("test")

MIB = 1 << 20
NAME_OF_ANOTHER_JOB = "allranks-of-another-job"


@contextmanager
def refused(*numbers):
    try:
        yield
    except OSError as error:
        assert error.errno in numbers, error  # noqa: PT017 - any of several numbers
    else:
        pytest.fail("it was possible")


@pytest.mark.parametrize("folder", ["/", "/etc", "/usr/bin", "/opt", "/var/tmp"])
def test_writing_to_the_root_file_system(folder):
    with refused(errno.EROFS, errno.EACCES):
        Path(folder, "written").write_text("x")


def test_having_the_processor_before_the_supervisor():
    assert os.getpriority(os.PRIO_PROCESS, 0) == 19
    with refused(errno.EACCES, errno.EPERM):
        os.setpriority(os.PRIO_PROCESS, 0, 0)


def test_gaining_a_capability():
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    assert [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == [0] * 5
    assert status["NoNewPrivs"] == "1"
    for become_root in (os.setuid, os.setgid):
        with refused(errno.EPERM):
            become_root(0)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1
    assert ctypes.get_errno() == errno.EPERM
    with refused(errno.EPERM):
        os.chroot("/tmp")
    with refused(errno.EPERM):
        os.mknod("/tmp/disk", 0o60600, os.makedev(8, 0))


_NUMBERS = {
    "x86_64": {"unshare": 272, "keyctl": 250, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323},
    "aarch64": {"unshare": 97, "keyctl": 219, "perf_event_open": 241, "bpf": 280, "userfaultfd": 282},
}


@pytest.mark.parametrize("call", ["unshare", "keyctl", "perf_event_open", "bpf", "userfaultfd"])
def test_making_a_system_call_that_reaches_past_a_container(call):
    """A null pointer where the kernel wants one: what it lets through fails otherwise than by EPERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(_NUMBERS[os.uname().machine][call], 0, 0, 0, 0, 0) == -1
    assert ctypes.get_errno() == errno.EPERM


@pytest.mark.parametrize("call", [425, 435], ids=["io_uring_setup", "clone3"])
def test_making_a_system_call_that_no_filter_can_look_into(call):
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(call, 0, 0, 0) == -1
    assert ctypes.get_errno() == errno.ENOSYS


@pytest.mark.parametrize("family", [socket.AF_ALG, socket.AF_VSOCK, socket.AF_PACKET], ids=str)
def test_opening_a_socket_of_a_family_that_reaches_the_host(family):
    with refused(errno.EPERM, errno.ENOSYS):
        socket.socket(family, socket.SOCK_SEQPACKET if family == socket.AF_ALG else socket.SOCK_STREAM)


def test_finding_a_program_that_becomes_another_user(rank):
    if rank == 0:
        special = stat.S_ISUID | stat.S_ISGID
        files = (
            Path(above, name)
            for top in ("/bin", "/opt", "/sbin", "/usr")
            for above, _, names in os.walk(top)
            for name in names
        )
        assert [path for path in files if path.lstat().st_mode & special] == []


def test_seeing_the_hosts_control_groups():
    assert all(line.endswith(":/") for line in Path("/proc/self/cgroup").read_text().splitlines())


@pytest.mark.parametrize("address", ["1.1.1.1", "172.17.0.1"], ids=["internet", "host"])
def test_reaching_a_network(address):
    assert [path.name for path in Path("/sys/class/net").iterdir() if path.name == "eth0"] == []
    with socket.socket() as door:
        door.settimeout(5)
        with refused(errno.ENETUNREACH):
            door.connect((address, 22))


def test_seeing_processes_of_the_host():
    names = {path.joinpath("comm").read_text().strip() for path in Path("/proc").glob("[0-9]*")}
    assert Path("/proc/1/comm").read_text().strip().startswith("python")
    assert names & {"dockerd", "containerd", "systemd", "bash"} == set()
    with suppress(ProcessLookupError):
        os.kill(-1, 0)  # would be every process of the host's that its user may signal
    assert len(list(Path("/proc").glob("[0-9]*"))) < 30


def test_looking_into_those_who_report():
    """Of the process that keeps the files, and of the supervisor: memory, descriptors and environment."""
    for pid in {1, os.getppid()}:
        for name in ("mem", "environ", "maps"):
            with refused(errno.EACCES, errno.EPERM):
                Path(f"/proc/{pid}/{name}").open("rb").close()
        with refused(errno.EACCES, errno.EPERM):
            list(Path(f"/proc/{pid}/fd").iterdir())
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.ptrace(16, pid, 0, 0) == -1
        assert ctypes.get_errno() == errno.EPERM


def test_finding_the_token_of_the_job():
    assert list(Path("/job").rglob("config.json")) == []


def test_having_more_threads_than_allowed(rank):
    if rank != 0:
        return
    end, started = threading.Event(), []
    threading.stack_size(64 << 10)
    try:
        for _ in range(100_000):
            thread = threading.Thread(target=end.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass  # can't start new thread
    finally:
        end.set()
        for thread in started:
            thread.join()
    assert 100 < len(started) < 10_000


@pytest.mark.parametrize("folder", [Path("/job/shared"), Path("/tmp"), Path("/dev/shm")], ids=str)
def test_filling_a_disk(folder, rank):
    if rank == 0:
        written = 0
        with refused(errno.ENOSPC), (folder / "full").open("wb", buffering=0) as file:
            for _ in range(4096):
                written += file.write(bytes(MIB))
        (folder / "full").unlink()
        assert written <= 1100 * MIB
    dist.barrier()


def test_after_a_disk_was_full_there_is_room_again(tmp_path):
    (tmp_path / "x").write_bytes(bytes(MIB))


def test_finding_the_results_of_another_job():
    """The suite that ran before this one has written its name into every folder that it could write to."""
    for folder, folders, names in os.walk("/"):
        folders[:] = [] if folder in {"/proc", "/sys"} else folders
        assert [name for name in names if NAME_OF_ANOTHER_JOB in name] == []
    own = {line.split()[3] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " /job" in line}
    assert own == {"/"}  # file systems of this job's own, and no folder of a larger one


def test_leading_whoever_collects_the_results_astray(rank):
    if rank != 0:
        return
    results = Path("/job/results")
    (results / "passwords").symlink_to("/etc/passwd")
    (results / "rank-9.xml").symlink_to("/etc/passwd")
    (results / "elsewhere").symlink_to("/tmp")
    os.link("/job/agent/allranks/__init__.py", results / "of-the-agent")
    os.mkfifo(results / "pipe")


def test_using_more_memory_than_allowed(rank):
    if rank == 1:
        hoard = [b"x" * 64 * MIB for _ in range(64)]
        assert hoard
