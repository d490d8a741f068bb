"""A rank in a new Python process, which imports torch and the test files again.

It is needed if importing those files, or a hook that ran earlier, starts threads: a fork would not have them. The fork
server forks as usual, so the supervisor sees no difference, and then the fork executes a new Python.
"""

import gc
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from allranks.agent import evidence, linux
from allranks.agent.channel import RankEnd, StepEnded
from allranks.agent.collect.fork_server import Supervisor
from allranks.agent.orphans import Mark
from allranks.agent.program import Reply, ServerStart, StartRanks
from allranks.agent.rank import rank_setup
from allranks.protocol.outcomes import Phase
from allranks.protocol.records import AgentFailed, CollectionFailed
from allranks.protocol.typed_json import by_name, decode_line, encode_line

_LOG = "agent.log"


@dataclass(frozen=True, kw_only=True)
class FreshRank:
    """The data that the fork passes to the new Python."""

    start: ServerStart
    request: StartRanks
    rank: int
    connection: int  # file descriptor of the connection to the supervisor
    call_log: int  # file descriptor of the call log
    digests: Mapping[str, str]  # digests of the tests' parameter values, by node id


def become_fresh(rank: FreshRank) -> NoReturn:
    """Replace this fork with a new Python that becomes the rank. Never returns."""
    rank_setup.bind_to_parent(rank.start.supervisor)
    file = os.memfd_create("rank")
    linux.write_all(file, encode_line(rank))
    os.lseek(file, 0, os.SEEK_SET)
    for descriptor in (file, rank.connection, rank.call_log):
        os.set_inheritable(descriptor, True)
    os.environ.update(Mark.of_gang(rank.request.gang).environment(rank.rank))
    os.execv(  # noqa: S606 - this process becomes the rank
        sys.executable, [sys.executable, "-m", "allranks.agent.collect.fresh_rank", str(file)]
    )


def main(arguments: Sequence[str]) -> NoReturn:
    """Read the rank's data from the file descriptor in ``arguments``, and become the rank."""
    with os.fdopen(int(arguments[0]), "rb") as file:
        rank = decode_line(file.read(), by_name((FreshRank,)))
    rank_setup.write_stacks_to(rank.request.results / f"rank-{rank.rank}.stacks.txt")
    for descriptor in (rank.connection, rank.call_log):
        os.set_inheritable(descriptor, False)
    gc.disable()
    rank_setup.announce_exits()
    failures = Failures(rank.start.supervisor)
    try:
        _collect(rank, failures)
    except BaseException:  # noqa: BLE001 - the last frame of this process has no caller to raise to
        failures.texts.append(traceback.format_exc())
    _report(rank, failures.texts)
    os._exit(1)


class Failures(Supervisor):
    """Collects error messages in place of the supervisor connection, which only the fork server has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.texts: list[str] = []

    def write(self, reply: Reply) -> None:
        """Keep an error message; the fork server has already reported everything else."""
        if isinstance(reply, CollectionFailed):
            self.texts.append(reply.text)
        elif isinstance(reply, AgentFailed):
            self.texts.append("\n".join(filter(None, (reply.message, reply.text))))


def _collect(rank: FreshRank, failures: Failures) -> None:
    """Collect the gang's files, and run as the rank; returns only if that fails."""
    outputs = [os.dup(1), os.dup(2)]
    log = evidence.open_end(rank.start.folders.results / _LOG)
    for target in (1, 2):
        os.dup2(log, target)
    from allranks.agent.collect.fresh_session import FreshSession  # noqa: PLC0415 - needs torch and pytest

    try:
        FreshSession(rank, failures, outputs).run()
    finally:
        os.close(log)


def _report(rank: FreshRank, texts: Sequence[str]) -> None:
    text = "\n".join(texts)
    lines = [line for line in text.splitlines() if line.strip()]
    message = f"the test's files could not be imported again in a new process: {''.join(lines[-1:])}"
    with suppress(OSError):
        RankEnd(rank.connection).send(StepEnded(phases=(Phase.of_error("setup", message, text or message),)))


if __name__ == "__main__":
    main(sys.argv[1:])
