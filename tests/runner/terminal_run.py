"""``allranks run`` with a scripted engine, whose jobs continue on command.

``python terminal_run.py LOCKS WORDS ARGUMENT ...``: WORDS is the descriptor of a pipe from which each step that waits
reads one word.
"""

import fcntl
import os
import sys
import termios
from pathlib import Path

from scripted_engine import FINISHED, PASSED, ScriptedEngine, failed

from allranks import ownership
from allranks.cli import main as cli
from allranks.engines.base import JobEnvironment
from allranks.engines.gpus import Inventory
from allranks.protocol.records import Collected, TestStarted
from allranks.runner import gpu_leases, run_jobs
from allranks.runner.host import Host

ONE, TWO, THREE = "gloo-w1-g0-env", "gloo-w2-g0-env", "nccl-w2-g2-env"
BAD = failed("suite/test_a.py::test_b[x]", 1, "no [bold]good")
GPUS = ("GPU-a", "GPU-b", "GPU-c")


class Engine(ScriptedEngine):
    """The first and the third job wait for a word after their records."""

    def __init__(self, words):
        super().__init__()
        # os.read of a whole word, since two threads read from the pipe.
        self.acts["wait", ONE] = self.acts["wait", THREE] = lambda: os.read(words, len("go\n"))
        self.records[ONE] = (Collected(tests=("t", BAD.nodeid, "u")), PASSED, BAD, TestStarted(nodeid="u"), FINISHED)


def main():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C on this terminal interrupts this process
    locks, words, *arguments = sys.argv[1:]
    ownership.lock_folder = gpu_leases.lock_folder = lambda: Path(locks)
    engine = Engine(int(words))
    if "--endless" in arguments:
        arguments.remove("--endless")
        engine.acts.clear()
        engine.endless.add(ONE)

    def choose_host(_name, _matrix, say, *_):
        say("engine: scripted")
        environment = JobEnvironment(image="image:1")
        inventory = Inventory(gpus=GPUS)
        return Host(engine=engine, cores=8, memory=99999, environment_of=lambda _: environment, inventory=inventory)

    run_jobs.choose_host = choose_host
    run_jobs.take_inventory = lambda _: Inventory(gpus=GPUS)
    return cli.main(["run", "--seed", "1", *arguments])


if __name__ == "__main__":
    sys.exit(main())
