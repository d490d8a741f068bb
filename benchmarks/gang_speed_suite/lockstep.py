"""The plainest lockstep loop: fork once, run pytest's protocol for a test in each rank, wait for all, release the next.

No supervision, no capture, no results: a rank that fails ends the benchmark, and one that hangs would hang it.
Prints ``{"seconds": …, "tests": …}``, the seconds from before the forks to the end of the last rank, so that forking
the ranks, joining the process group and leaving it are in them, and importing and collecting are not.

    BENCHMARK_COPIES=8 python -m gang_speed_suite.lockstep WORLD_SIZE
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from torch import distributed

END = b"\xff\xff\xff\xff"
"""In the place of a test's number: there are no more."""


class Lockstep:
    """A pytest plugin that takes the place of pytest's own loop over the tests."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._failed = False
        self.seconds = 0.0
        self.tests = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Lead the ranks through the tests."""
        began = time.perf_counter()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
        ranks = [self._fork(session, rank) for rank in range(self._world_size)]
        for index in range(len(session.items)):
            for commands, _, _ in ranks:
                os.write(commands, index.to_bytes(4))
            if any(os.read(reports, 1) != b"." for _, reports, _ in ranks):
                sys.exit(f"{session.items[index].nodeid} failed")
        for commands, _, _ in ranks:
            os.write(commands, END)
        for _, _, pid in ranks:
            os.waitpid(pid, 0)
        self.seconds, self.tests = time.perf_counter() - began, len(session.items)
        return True

    def _fork(self, session: pytest.Session, rank: int) -> tuple[int, int, int]:
        # The plainest loop lets every fork inherit every pipe.
        commands_in, commands_out = os.pipe()
        reports_in, reports_out = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._be_rank(session, rank, commands_in, reports_out)
        return commands_out, reports_in, pid

    def _be_rank(self, session: pytest.Session, rank: int, commands: int, reports: int) -> NoReturn:
        distributed.init_process_group("gloo", rank=rank, world_size=self._world_size)
        items = session.items
        while (command := os.read(commands, 4)) != END:
            index = int.from_bytes(command)
            following = items[index + 1] if index + 1 < len(items) else None
            items[index].config.hook.pytest_runtest_protocol(item=items[index], nextitem=following)
            os.write(reports, b"F" if self._failed else b".")
        distributed.destroy_process_group()
        os._exit(0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure."""
        self._failed |= report.failed


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Run the tests beside this file."""
    lockstep = Lockstep(int(sys.argv[1]))
    sys.stdout.flush()
    shown = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = pytest.main(
        ["-s", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_bodies.py"))], plugins=[lockstep]
    )
    if code != 0 or not lockstep.tests:
        sys.exit(f"pytest ended with {code}")
    os.write(shown, json.dumps({"seconds": lockstep.seconds, "tests": lockstep.tests}).encode() + b"\n")


if __name__ == "__main__":
    main()
