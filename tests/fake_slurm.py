"""A fake SLURM of one machine: sbatch, srun, squeue and scancel in one script. Jobs start immediately.

Its folder is ``$FAKE_SLURM``. Files there steer it: ``pending`` keeps jobs in the queue, ``away`` takes the controller
away, ``NAME.state`` is the state that squeue tells of a job.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(os.environ["FAKE_SLURM"])


def value(arguments, name):
    return next((argument.partition("=")[2] for argument in arguments if argument.startswith(f"--{name}=")), "")


def is_alive(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def sbatch(arguments):
    name = value(arguments, "job-name")
    number = len(list(ROOT.glob("*.job"))) + 1
    pid = 0
    if not (ROOT / "pending").exists():
        with Path(value(arguments, "output")).open("ab") as log:
            job = subprocess.Popen(["/bin/sh", arguments[-1]], stdout=log, stderr=log, start_new_session=True)
        pid = job.pid
    (ROOT / f"{name}.job").write_text(f"{number} {pid}")
    (ROOT / "asked").open("a").write(f"{arguments}\n")
    print(number)
    return 0


def srun(arguments):
    command = arguments[next(place for place, each in enumerate(arguments) if not each.startswith("--")) :]
    nodes = [
        subprocess.Popen(
            command, env={**os.environ, "SLURM_NODEID": str(node), "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}
        )
        for node in range(int(value(arguments, "nodes")))
    ]
    return max(node.wait() for node in nodes)


def squeue(_arguments):
    (ROOT / "polls").open("a").write(".")
    for job in sorted(ROOT.glob("*.job")):
        name = job.name.removesuffix(".job")
        number, pid = job.read_text().split()
        state = "PENDING|Resources|" if pid == "0" else "RUNNING|None|n1" if is_alive(pid) else "COMPLETED|None|n1"
        if (file := ROOT / f"{name}.state").exists():
            state = file.read_text()
        print(f"{number}|{state}|{name}")
    return 0


def scancel(arguments):
    name = value(arguments, "name")
    if (job := ROOT / f"{name}.job").exists():
        (ROOT / f"{name}.state").write_text("CANCELLED|None|n1")
        pid = int(job.read_text().split()[1])
        if pid:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if (
                        name.encode() in (process / "cmdline").read_bytes()
                        and b"node_supervisor" in (process / "cmdline").read_bytes()
                    ):
                        os.kill(int(process.name), signal.SIGTERM)
    return 0


if (ROOT / "away").exists() and Path(sys.argv[0]).name != "srun":
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
sys.exit(globals()[Path(sys.argv[0]).name](sys.argv[1:]))
