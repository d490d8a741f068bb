"""A debugger in one rank, on the terminal of the run; the other ranks ignore ``breakpoint()``.

If no rank has the debugger, ``breakpoint()`` is an error with a remedy. A rank has its own session, so the terminal
does not control it: the rank opens the terminal by its path, and Ctrl-C still interrupts the run. While the debugger
waits for a command, the gang's time limits are paused.
"""

import bdb
import inspect
import pdb  # noqa: T100 - the debugger of this module
from dataclasses import dataclass
from typing import Any

from allranks.agent.channel import Debugging
from allranks.agent.rank import rank_setup
from allranks.protocol.config import AgentConfig


@dataclass
class _Debugging:
    own: int = 0
    rank: int | None = None
    terminal: str = ""


_debugging = _Debugging()


class NoTerminalError(RuntimeError):
    """A debugger was requested without a terminal."""


def install(config: AgentConfig) -> None:
    """Replace ``breakpoint()`` and ``pdb.set_trace()`` with :func:`break_here`, in this process and its forks."""
    _debugging.rank, _debugging.terminal = config.pdb_rank, config.pdb_terminal
    # `breakpoint()` calls pdb.set_trace, unless PYTHONBREAKPOINT names another function.
    pdb.set_trace = break_here


def set_rank(number: int) -> None:
    """Set the rank of this process: torch's multi-process tests remove it from the environment."""
    _debugging.own = number


def break_here(**_: object) -> None:
    """Stop at the caller if this rank has the debugger; its peers continue until they wait for it."""
    if _debugging.rank is None:
        rank = _debugging.own
        msg = (
            f"rank {rank} has no terminal for breakpoint(). Run one job on a terminal with --pdb-rank {rank}, as in "
            f"`allranks run CELL --suite SUITE --pdb-rank {rank} -- -k TEST`, or attach debugpy: docs/debuggers.md."
        )
        raise NoTerminalError(msg)
    frame = inspect.currentframe()
    if _has_debugger() and frame is not None and frame.f_back is not None:
        _Debugger(_debugging.terminal).set_trace(frame.f_back)


def post_mortem(error: BaseException) -> None:
    """Stop where an exception was raised, if this rank has the debugger."""
    if not _has_debugger() or error.__traceback__ is None or isinstance(error, bdb.BdbQuit):
        return
    debugger = _Debugger(_debugging.terminal)
    debugger.message(f"\n{type(error).__name__}: {error}")
    debugger.reset()
    debugger.interaction(None, error.__traceback__)


def _has_debugger() -> bool:
    return _debugging.rank == _debugging.own


class _Debugger(pdb.Pdb):
    """pdb on a terminal, which reports to the supervisor when it waits for commands, and when the user quits."""

    def __init__(self, terminal: str) -> None:
        reads, writes = (open(terminal, mode, encoding="utf-8") for mode in ("r", "w"))  # noqa: PTH123, SIM115 - pdb's
        super().__init__(stdin=reads, stdout=writes, nosigint=True)
        self.use_rawinput = False
        self.prompt = f"(rank {_debugging.rank}) "

    def interaction(self, *where: Any) -> None:  # noqa: ANN401 - pdb changes its parameters from version to version
        """Report the wait; pdb calls this at every stop."""
        rank_setup.send(Debugging(is_waiting=True))
        try:
            super().interaction(*where)
        finally:
            rank_setup.send(Debugging(is_waiting=False, has_quit=bool(self.quitting)))
