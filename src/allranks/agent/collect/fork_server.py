"""The fork server: the process of a job that imports torch and the suite, and forks ranks.

It starts no thread, never initialises CUDA and never runs a test itself, so its forks are clean. The supervisor starts
it by exec and asks it only to collect, to fork and to end, so it survives whatever importing the suite does here. The
supervisor adopts the forked ranks at once.
"""

import faulthandler
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO, NoReturn

from allranks.agent import clock, evidence, linux
from allranks.agent.diagnose.stacks import STACKS_SIGNAL
from allranks.agent.gangs.forks import STACKS
from allranks.agent.gangs.local_ranks import RankMain, fork_rank
from allranks.agent.program import Forked, Reply, Request, encode_message, parse_request, parse_start
from allranks.agent.rank import rank_setup
from allranks.agent.rank.rank_setup import seed_generators
from allranks.protocol.config import AgentConfig, Folders
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
        """Send a message; if the supervisor is gone, this process ends."""
        self._control.sendall(encode_message(reply))

    def next_request(self) -> Request:
        """Wait for the next request; exit when the supervisor has closed the connection."""
        line = self._lines.readline()
        if not line:
            rank_setup.announce_and_exit(0)
        return parse_request(line)

    def start_ranks(self, ranks: Iterable[int], rank_main: RankMain) -> None:
        """Receive the descriptors of ranks, fork the ranks, and report their process ids.

        The supervisor, a subreaper, becomes their parent.
        """
        ends: list[tuple[int, ...]] = []
        for _ in ranks:
            _, descriptors, _, _ = socket.recv_fds(self._handover, 16, 4)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            ends.append(tuple(descriptors))
        reply = self._fork_all(ranks, ends, rank_main)
        for descriptor in (descriptor for each in ends for descriptor in each):
            os.close(descriptor)
        self.write(reply)

    def _fork_all(self, ranks: Iterable[int], ends: list[tuple[int, ...]], rank_main: RankMain) -> Forked:
        own, pids = (self._control.fileno(), self._handover.fileno()), list[int]()
        try:
            for number, mine in zip(ranks, ends, strict=True):
                others = [*own, *(descriptor for each in ends if each is not mine for descriptor in each)]
                pids.append(fork_rank(number, mine, rank_main, others))
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
    # Ranks would inherit buffered text and print it as their own, and a killed process would lose it.
    _streams = rank_setup.unbuffer_output()
    stacks = os.fdopen(evidence.open_end(start.folders.results / STACKS), "ab")
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True)
    faulthandler.enable(file=stacks, all_threads=True)
    # Imported and collected objects live as long as the job: scanning them for garbage would only cost time
    # and, in the forks, memory. Ranks turn the collector on again.
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
    # With torch loaded, a regular interpreter exit takes a tenth of a second and can hang; everything is reported.
    rank_setup.announce_and_exit(status)


def _report(supervisor: Supervisor, error: BaseException) -> None:
    text = traceback.format_exc()
    with suppress(OSError):
        if isinstance(error, ImportError) and error.name:
            message = f"the Python of this job cannot import {error.name}: {error}"
            supervisor.write(AgentFailed(message=message, kind=FailureKind.CANNOT_IMPORT))
        elif isinstance(error, RecordError):
            supervisor.write(AgentFailed(message=f"what the supervisor asked for {error}", text=text))
        else:
            supervisor.write(AgentFailed(message="the fork server broke down", text=text))


def serve(config: AgentConfig, folders: Folders, supervisor: Supervisor) -> int:
    """Import torch, collect the suite, and fork ranks as long as the supervisor asks; the exit status."""
    version = _import_torch(supervisor)
    if not is_torch_of(config.torch, version):
        message = f"the matrix file states torch {config.torch}, and the Python of this job has torch {version}"
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

    seed_generators(config.seed & 0xFFFFFFFF)
    ended = run_session(config, folders, supervisor)
    if ended is not None:
        supervisor.write(ended)
    return 0


def _import_torch(supervisor: Supervisor) -> str:
    began = clock.monotonic()
    import torch  # noqa: PLC0415 - imported here, and first, so that the record has its time

    supervisor.write(Imported(seconds=round(clock.monotonic() - began, 6), torch=str(torch.__version__)))
    return str(torch.__version__)


def is_torch_of(wanted: str, found: str) -> bool:
    """Whether an installed torch is the stated one, by PEP 440; a local version (``+cpu``) counts only if stated."""
    from torch.torch_version import TorchVersion  # noqa: PLC0415 - needs torch

    public = found if "+" in wanted else found.partition("+")[0]
    return not wanted or bool(TorchVersion(public) == wanted)


if __name__ == "__main__":
    main(sys.argv[1:])
