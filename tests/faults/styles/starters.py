"""The ways in which public suites start ranks within a test.

Each starts two ranks, waits for them, and raises if one failed; with ``waits`` false it leaves them running.
"""

import multiprocessing
import os
import subprocess
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor

import faults


def check(statuses):
    if any(statuses):
        msg = f"exit statuses {statuses}"
        raise ChildProcessError(msg)


def fork(fault, folder, waits):
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                faults.run(rank, fault, folder)
            except SystemExit as error:
                os._exit(error.code)
            except Exception:  # noqa: BLE001 - whatever goes wrong in the rank
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    if waits:
        check([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])


def processes(method):
    def start(fault, folder, waits):
        context = multiprocessing.get_context(method)
        started = [context.Process(target=faults.run, args=(rank, fault, folder)) for rank in range(2)]
        for process in started:
            process.start()
        if waits:
            for process in started:
                process.join()
            check([process.exitcode for process in started])

    return start


def torch_processes(method):
    def start(fault, folder, waits):
        import torch.multiprocessing as mp

        mp.start_processes(faults.run_with_torch, args=(fault, folder), nprocs=2, join=waits, start_method=method)

    return start


def pool(fault, folder, waits):
    workers = multiprocessing.get_context("forkserver").Pool(2)
    results = [workers.apply_async(faults.run, (rank, fault, folder)) for rank in range(2)]
    if waits:
        with workers:
            for result in results:
                result.get()
    else:
        LEFT.append(workers)


def executor(fault, folder, waits):
    workers = ProcessPoolExecutor(2, multiprocessing.get_context("forkserver"))
    futures = [workers.submit(faults.run, rank, fault, folder) for rank in range(2)]
    if waits:
        with workers:
            for future in futures:
                future.result()
    else:
        LEFT.append(workers)


def programs(fault, folder, waits):
    command = [sys.executable, faults.__file__, fault, folder]
    started = [subprocess.Popen(command, env={**os.environ, "RANK": str(rank)}) for rank in range(2)]
    if waits:
        check([process.wait() for process in started])
    else:
        LEFT.extend(started)


def torchrun(fault, folder, waits):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    started = subprocess.Popen([*command, "--monitor-interval=0.1", faults.__file__, fault, folder])
    if waits:
        check([started.wait()])
    else:
        LEFT.append(started)


def elastic(fault, folder, waits):
    if waits:
        launch(fault, folder)
    else:
        multiprocessing.get_context("fork").Process(target=launch, args=(fault, folder)).start()


def launch(fault, folder):
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id="none",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        start_method="fork",
    )
    elastic_launch(config, faults.run_of_environment)(fault, folder)


def debug_launcher(fault, folder, waits):
    import torch.multiprocessing as mp

    mp.start_processes(launched, args=(fault, folder), nprocs=2, join=waits, start_method="fork")


def launched(index, fault, folder):
    """A rank as accelerate's launcher prepares it."""
    os.environ.update(LOCAL_RANK=str(index), RANK=str(index), WORLD_SIZE="2")
    faults.run_of_environment(fault, folder)


LEFT = []
"""What tests have left, which would end with its object."""

STYLES = {
    "fork": fork,
    "process-fork": processes("fork"),
    "process-spawn": processes("spawn"),
    "process-forkserver": processes("forkserver"),
    "torch-spawn": torch_processes("spawn"),
    "torch-fork": torch_processes("fork"),
    "pool": pool,
    "executor": executor,
    "programs": programs,
    "torchrun": torchrun,
    "elastic": elastic,
    "debug-launcher": debug_launcher,
}

LIMITS = dict.fromkeys(("process-spawn", "process-forkserver", "pool", "executor"), 8) | dict.fromkeys(
    ("torch-spawn", "torchrun", "elastic"), 30
)
"""Seconds for the tests of styles whose ranks start slowly, or import torch; those of the others have five."""


def limit_of(style):
    return LIMITS.get(style, 5)
