"""The fork server: the process of a job that imports torch and the suite, and forks ranks.

It starts no threads, never initializes CUDA and never runs a test itself, so its forks start in a clean state. It is a
separate process, so code that runs when the suite is imported cannot harm the supervisor. The supervisor is a
subreaper, and becomes the parent of the forked ranks immediately.
"""

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import BinaryIO, NoReturn

from allranks.agent import clock, linux
from allranks.agent.gangs.forks import STACKS
from allranks.agent.gangs.local_ranks import RankMain, fork_rank
from allranks.agent.program import Forked, Reply, Request, encode_message, parse_request, parse_selection, parse_start
from allranks.agent.rank import rank_setup
from allranks.agent.rank.rank_setup import seed_generators
from allranks.protocol.config import AgentConfig, Folders, Selection
from allranks.protocol.records import AgentFailed, FailureKind, Imported
from allranks.protocol.refusals import too_old
from allranks.protocol.typed_json import RecordError


class Supervisor:
    """The fork server's connection to its supervisor."""

    def __init__(self, control: socket.socket, lines: BinaryIO, handover: socket.socket, pid: int) -> None:
        self.pid = pid
        self._control = control
        self._lines = lines
        self._handover = handover

    def write(self, reply: Reply) -> None:
        """Send a message to the supervisor.

        Raises:
            BrokenPipeError: The supervisor is gone.
        """
        self._control.sendall(encode_message(reply))

    def next_request(self) -> Request:
        """Wait for the next request; exit when the supervisor has closed the connection."""
        return parse_request(self._next_line())

    def selection(self) -> Selection:
        """Wait for the tests to collect; exit when the supervisor has closed the connection."""
        return parse_selection(self._next_line())

    def _next_line(self) -> bytes:
        line = self._lines.readline()
        if not line:
            rank_setup.announce_and_exit(0)
        return line

    def start_ranks(self, ranks: Iterable[int], rank_main: RankMain) -> None:
        """Receive the file descriptors of the ranks, fork the ranks, and report their process ids."""
        descriptors: list[tuple[int, ...]] = []
        for _ in ranks:
            _, received, _, _ = socket.recv_fds(self._handover, 16, 4)
            for descriptor in received:
                os.set_inheritable(descriptor, False)
            descriptors.append(tuple(received))
        reply = self._fork_all(ranks, descriptors, rank_main)
        for descriptor in chain.from_iterable(descriptors):
            os.close(descriptor)
        self.write(reply)

    def _fork_all(self, ranks: Iterable[int], descriptors: list[tuple[int, ...]], rank_main: RankMain) -> Forked:
        sockets = (self._control.fileno(), self._handover.fileno())
        pids: list[int] = []
        try:
            for rank, ends in zip(ranks, descriptors, strict=True):
                others = chain.from_iterable(other for other in descriptors if other is not ends)
                pids.append(fork_rank(rank, ends, rank_main, [*sockets, *others]))
        except OSError as error:
            for pid in pids:
                linux.signal_process(pid, signal.SIGKILL)
            return Forked(error=str(error))
        return Forked(pids=tuple(pids))


def main(arguments: list[str]) -> NoReturn:
    """Serve a supervisor."""
    control, handover = (socket.socket(fileno=int(number)) for number in arguments)
    lines = control.makefile("rb")
    line = lines.readline()
    linux.die_with_parent()
    if not line:
        os._exit(1)
    try:
        start = parse_start(line)
    except RecordError as error:
        _report(Supervisor(control, lines, handover, os.getppid()), error)
        os._exit(1)
    if os.getppid() != start.supervisor:
        os._exit(1)
    # Ranks would inherit buffered output and print it again, and a killed process would lose it.
    _streams = rank_setup.unbuffer_output()
    rank_setup.write_stacks_to(start.folders.results / STACKS)
    # Imported and collected objects exist as long as the job. Scanning them for garbage would only cost time and, in
    # the forks, memory. Ranks turn the collector on again.
    gc.disable()
    rank_setup.announce_exits()
    supervisor = Supervisor(control, lines, handover, start.supervisor)
    status = 1
    try:
        status = serve(start.config, start.folders, supervisor)
    except BrokenPipeError:
        pass
    except BaseException as error:  # noqa: BLE001 - the last frame of this process has no caller to raise to
        _report(supervisor, error)
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    # With torch loaded, a regular interpreter exit takes 0.1 s and can hang. Everything has been reported by now.
    rank_setup.announce_and_exit(status)


def _report(supervisor: Supervisor, error: BaseException) -> None:
    text = traceback.format_exc()
    with suppress(OSError):
        if isinstance(error, ImportError) and error.name:
            message = f"this job's Python cannot import {error.name}: {error}"
            supervisor.write(AgentFailed(message=message, kind=FailureKind.CANNOT_IMPORT))
        elif isinstance(error, RecordError):
            supervisor.write(AgentFailed(message=f"the supervisor's request {error}", text=text))
        else:
            supervisor.write(AgentFailed(message="internal error in the fork server", text=text))


def serve(config: AgentConfig, folders: Folders, supervisor: Supervisor) -> int:
    """Import torch, collect the suite, and serve the supervisor's requests; returns the exit status."""
    version = _import_torch(supervisor)
    if not is_torch_of(config.torch, version):
        message = f"the matrix file requires torch {config.torch}, but this job's Python has torch {version}"
        supervisor.write(AgentFailed(message=message, kind=FailureKind.OTHER_TORCH))
        return 1
    if config.check_gpus:
        from allranks.agent.gpus import check_gpus  # noqa: PLC0415 - needs torch

        if not check_gpus(config.check_gpus, config.gpu_device, config.limits.gpu_check, supervisor):
            return 1
    from allranks.agent.gpus import query_gpus_in_forks  # noqa: PLC0415 - needs torch

    query_gpus_in_forks()
    import pytest  # noqa: PLC0415 - after torch, whose import is measured

    if refusal := too_old(pytest.__version__):
        supervisor.write(AgentFailed(message=refusal, kind=FailureKind.USAGE))
        return 1
    from allranks.agent.collect.pytest_session import run_session  # noqa: PLC0415 - needs torch and pytest

    if config.selection_file:
        config = replace(config, **vars(supervisor.selection()))
    seed_generators(config.seed & 0xFFFFFFFF)
    ended = run_session(config, folders, supervisor)
    if ended is not None:
        supervisor.write(ended)
    return 0


def _import_torch(supervisor: Supervisor) -> str:
    began = clock.monotonic()
    import torch  # noqa: PLC0415 - imported here, before anything else, to measure the import

    supervisor.write(Imported(seconds=round(clock.monotonic() - began, 6), torch=str(torch.__version__)))
    return str(torch.__version__)


def is_torch_of(required: str, installed: str) -> bool:
    """Compare two versions of torch by PEP 440; a local version (``+cpu``) counts only if it is required."""
    from torch.torch_version import TorchVersion  # noqa: PLC0415 - needs torch

    public = installed if "+" in required else installed.partition("+")[0]
    return not required or bool(TorchVersion(public) == required)


if __name__ == "__main__":
    main(sys.argv[1:])
