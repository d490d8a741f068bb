"""Attacks on the files of a job."""

import fcntl
import os
import shutil
import socket
import stat
import time
from contextlib import suppress
from itertools import cycle

import pytest
import reach
from reach import attack


@attack("honest", "any", engines=["docker"])
def changes_the_code(rank):
    """Rank 1 empties every file of Python that it may write, the harness's among them, for processes to come."""
    for folder in reach.folders() if rank == 1 else ():
        for root, _, names in os.walk(folder):
            for name in names:
                with suppress(OSError):
                    if name.endswith(".py"):
                        os.truncate(os.path.join(root, name), 0)


@attack("honest", "any")
def damages_files(rank):
    """Rank 1 writes what no reader expects over the first bytes of every file of the job, and after the last."""
    for path in reach.files() if rank == 1 else ():
        if path.is_file():
            with path.open("r+b") as file:
                file.write(b"\x00\xff{[<")
                file.seek(0, 2)
                file.write(reach.IMPLAUSIBLE)


@attack("honest", "any")
def deep_folders(rank):
    """Rank 1 leaves folders in folders, 3,000 deep."""
    if rank == 1:
        os.chdir(reach.results()[-1])
        for _ in range(3000):
            os.mkdir("deep")
            os.chdir("deep")


@attack("honest", "any")
def folders_named_like_results(rank):
    """Rank 1 puts folders where results are expected."""
    for folder in reach.results() if rank == 1 else ():
        for name in reach.RESULT_NAMES:
            (folder / name).unlink(missing_ok=True)
            (folder / name / name).mkdir(parents=True)


@attack("honest", "any")
def forbids_folders(rank):
    """Rank 1 takes all rights from every file and folder of the job."""
    if rank == 1:
        for path in [*reach.files(), *reversed(reach.results())]:
            os.chmod(path, 0)


@attack("honest", "any", engines=["docker"])
def full_disk(rank):
    """Rank 1 fills every disk of the job."""
    for folder in reach.results() if rank == 1 else ():
        with suppress(OSError), (folder / "full").open("wb", 0) as file:
            while file.write(bytes(reach.MIB)):
                pass


@attack("honest", "any")
def links_named_like_results(rank):
    """Rank 1 puts links that lead round in circles, outside and nowhere where results are expected."""
    for folder in reach.results() if rank == 1 else ():
        for name, target in zip(reach.RESULT_NAMES, cycle(["/etc/passwd", "", "/dev/zero", "..", "/proc/self/mem"])):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(target or name)


@attack("honest", "any")
def locks_files(rank):
    """Rank 1 locks every file of the job, and leases a daemon that keeps the locks."""
    if rank == 1 and reach.daemonise():
        kept = []
        for path in reach.files():
            with suppress(OSError):
                kept.append(open(path, "r+b"))  # noqa: SIM115 - kept open
                fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.lockf(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(20)
        os._exit(0)


@attack("honest", "any", limits={"job": 120})
@pytest.mark.time_limit(60)
def many_files(rank):
    """Rank 1 leaves 100,000 files."""
    if rank == 1:
        os.chdir(reach.results()[-1])
        for number in range(100_000):
            os.close(os.open(f"file-{number}", os.O_CREAT | os.O_WRONLY))


@attack("honest", "any")
def pipes_named_like_results(rank):
    """Rank 1 puts pipes where results are expected: to open one for reading never returns."""
    for folder in reach.results() if rank == 1 else ():
        for name in reach.RESULT_NAMES:
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)


@attack("honest", "any")
def poisons_the_cache(rank, request):
    """Rank 1 writes what pytest's cache never holds into it."""
    if rank == 1:
        folder = reach.Path(str(request.config.cache.mkdir("hostile"))).parent.parent
        for name in ("lastfailed", "nodeids", "stepwise"):
            path = folder / "v" / "cache" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b'{"\xff": [[[NaN')


@attack("honest", "any")
def removes_files(rank):
    """Rank 1 removes every file of the job."""
    for path in reach.files() if rank == 1 else ():
        path.unlink()


@attack("honest", "any")
def removes_folders(rank):
    """Rank 1 removes every folder of the job, that in which it works among them."""
    for folder in [*reach.results(), os.getcwd()] if rank == 1 else ():
        shutil.rmtree(folder, ignore_errors=True)


@attack("honest", "any")
def replaces_files_by_links(rank):
    """Rank 1 makes of every file a link: to outside, to itself, to nothing, to a device that has no end."""
    for path, target in zip(reach.files() if rank == 1 else (), cycle(["/etc/passwd", "", "/nowhere", "/dev/zero"])):
        path.unlink()
        path.symlink_to(target or path.name)


@attack("honest", "any")
def replaces_folders_by_links(rank):
    """Rank 1 puts links to the root of the file system where the job's folders of results were."""
    for folder in reach.folders() if rank == 1 else ():
        for path in list(folder.iterdir()):
            if path.is_dir() and path.name not in ("code", "agent", "shared"):
                shutil.rmtree(path, ignore_errors=True)
                path.symlink_to("/", target_is_directory=True)


@attack("honest", "any", is_sample=True)
def rewrites_outcomes(rank):
    """Rank 1 makes every outcome in every file of the job a pass."""
    for path in reach.files() if rank == 1 else ():
        if path.is_file() and path.stat().st_size < reach.MIB:
            path.write_bytes(reach.better(path.read_bytes()))


@attack("honest", "any")
def rewrites_outcomes_in_a_loop(rank):
    """A daemon of rank 1 makes every outcome in every file of the job a pass, until the job is over."""
    if rank == 1 and reach.daemonise():
        end = time.monotonic() + 20
        while time.monotonic() < end and reach.results():
            for path in reach.files():
                with suppress(OSError):
                    if path.is_file() and path.stat().st_size < reach.MIB:
                        path.write_bytes(reach.better(path.read_bytes()))
        os._exit(0)


@attack("honest", "any")
def sockets_and_devices_named_like_results(rank):
    """Rank 1 puts sockets and, where it may, devices where results are expected."""
    for folder in reach.results() if rank == 1 else ():
        os.chdir(folder)  # the address of a socket is short
        for name, device in zip(reach.RESULT_NAMES, cycle([None, os.makedev(1, 5)])):
            (folder / name).unlink(missing_ok=True)
            if device is not None:
                with suppress(OSError):
                    os.mknod(name, stat.S_IFCHR | 0o666, device)  # /dev/zero
                    continue
            socket.socket(socket.AF_UNIX).bind(name)


@attack("honest", "any")
def sparse_files(rank):
    """Rank 1 leaves files that seem to have 800 MiB each, and have no byte."""
    for folder in reach.results() if rank == 1 else ():
        with (folder / "sparse").open("wb") as file:
            file.truncate(800 * reach.MIB)


@attack("honest", "any")
def sparse_results(rank):
    """Rank 1 makes every file of the job seem to have 200 MiB."""
    for path in reach.files() if rank == 1 else ():
        if path.is_file():
            os.truncate(path, 200 * reach.MIB)


@attack("honest", "any")
def truncates_files(rank):
    """Rank 1 truncates every file of the job."""
    for path in reach.files() if rank == 1 else ():
        if path.is_file():
            os.truncate(path, 0)
