"""What goes wrong in rank 1 of two that a test starts; also a program, whose rank is in its environment."""

import ctypes
import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path


def run(rank, fault, folder, *, has_torch=False):
    """Be a rank of two."""
    os.environ["RANK"] = str(rank)
    if fault == "peer":
        (fail_beside_gloo if has_torch else fail_beside_a_pipe)(rank, Path(folder))
    elif fault == "after":
        outlive_the_test(Path(folder))
    elif rank == 1:
        FAULTS[fault]()


def run_with_torch(rank, fault, folder):
    run(rank, fault, folder, has_torch=True)


def run_of_environment(fault, folder):
    run(int(os.environ["RANK"]), fault, folder, has_torch=True)


def raise_it():
    msg = "boom"
    raise ValueError(msg)  # raises


def leave():
    sys.exit(3)  # leaves


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def hang():
    time.sleep(3600)  # hangs


def fail_beside_a_pipe(rank, folder):
    pipe = (folder / "pipe").open("rb" if rank == 0 else "wb")
    if rank == 1:
        threading.Timer(0.3, pipe.close).start()  # the worker of a pool goes on
        raise_it()
    pipe.read()
    msg = "lost its peer"
    raise EOFError(msg)


def fail_beside_gloo(rank, folder):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        raise_it()
    dist.all_reduce(torch.ones(1))


def outlive_the_test(folder):
    with (folder / f"lives-{os.getpid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (folder / f"started-{os.getpid()}").touch()
        while not (folder / "passed").exists():
            time.sleep(0.01)
        crash()


def wait_for_both(folder):
    while len(list(folder.glob("started-*"))) < 2:
        time.sleep(0.01)


def wait_for_the_end_of_both(folder):
    (folder / "passed").touch()
    for path in folder.glob("lives-*"):
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)


FAULTS = {"raise": raise_it, "exit": leave, "kill": die, "crash": crash, "hang": hang, "expected": raise_it}

if __name__ == "__main__":
    run(int(os.environ["RANK"]), *sys.argv[1:])
