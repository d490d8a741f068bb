"""A process of a launch other than process 0: serves its node, and ends as the run does."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from allranks.agent.evidence import remove_tree
from allranks.engines.launch_files import (
    BEAT,
    LOOK_AGAIN,
    SESSION,
    Member,
    Pulse,
    Session,
    path_of,
    read_file,
    refuse_living,
    write,
)
from allranks.engines.launch_leader import SHARE, unusable
from allranks.engines.launched_node import LaunchedNode
from allranks.errors import EngineError, ExitCode
from allranks.interruption import deaf
from allranks.protocol.config import TimeLimit

_LATER = 10.0
"""Seconds that process 0 may take longer than its own limit."""


class LaunchFollower:
    """This process, as long as the run lasts.

    Args:
        folder: The folder that all processes of the launch share.
        node: The supervisors of its node.
        assembly: Seconds that process 0 waits for all others.
        silence: Seconds without a sign of life after which process 0 counts as dead.
    """

    def __init__(self, folder: Path, own: Member, node: LaunchedNode, *, assembly: float, silence: float) -> None:
        self._folder = folder
        self._own = own
        self._node = node
        self._assembly = assembly
        self._silence = silence
        self._is_orphaned = False

    def run(self) -> ExitCode:
        """Take part until process 0 says how the run has ended.

        Raises:
            EngineError: Process 0 has not come, or is gone.
        """
        refuse_living(path_of(self._folder, self._own.rank), Member)
        try:
            self._wait_for_session()
            code = self._serve()
        except BaseException:
            with deaf():
                self._node.close()
                self._leave()
            raise
        with deaf():
            self._node.close()
            self._leave()
            # Process 0 ends first: a launcher that sees a bad end may end all that are left.
            deadline = time.monotonic() + self._silence
            while self._folder.exists() and time.monotonic() < deadline:
                time.sleep(LOOK_AGAIN / 5)
        return code

    def _session(self) -> Session | None:
        """The session, if it is that of this launch."""
        session, rank = read_file(self._folder / SESSION, Session), self._own.rank
        return session if session and session.nonces[rank : rank + 1] == (self._own.nonce,) else None

    def _wait_for_session(self) -> None:
        deadline = time.monotonic() + self._assembly + _LATER
        while self._session() is None:
            if time.monotonic() > deadline:
                msg = f"Process 0 of the launcher has not begun a run in {self._folder}."
                limit = TimeLimit(value=self._assembly, setting="limits.assembly", margin=_LATER)
                why = f"Process {self._own.rank} looked for it for {limit.words()}."
                self._is_orphaned = True
                raise EngineError(msg, why=why, remedy=SHARE)
            # Process 0 may just have emptied the folder.
            if read_file(path_of(self._folder, self._own.rank), Member) != self._own:
                self._write(self._own)
            time.sleep(LOOK_AGAIN)

    def _serve(self) -> ExitCode:
        now = time.monotonic()
        pulse, next_beat = Pulse(self._silence, now), now
        while True:
            session, now = self._session(), time.monotonic()
            if session is not None and session.exit_code is not None:
                return ExitCode(session.exit_code)
            if pulse.is_lost(session.beat if session else None, now):
                silence = TimeLimit(value=self._silence, setting="limits.silence")
                msg = f"Process 0 of the launcher is gone: it gave no sign of life for {silence.words()}."
                why = f"It has to write a file in {self._folder}, and to end the run."
                self._is_orphaned = True
                raise EngineError(msg, why=why, remedy="See its own output; go on with --resume.")
            if session is not None:
                self._node.follow(session)
            if now >= next_beat:
                next_beat = now + BEAT
                self._own = replace(self._own, beat=self._own.beat + 1)
                self._write(self._own)
            time.sleep(LOOK_AGAIN)

    def _write(self, member: Member) -> None:
        try:
            write(path_of(self._folder, member.rank), member)
        except FileNotFoundError:
            return  # process 0 is just emptying the folder
        except OSError as error:
            raise unusable(self._folder, error) from error

    def _leave(self) -> None:
        """Say that this process is gone, or remove the folder if there is no process 0 that would."""
        if self._is_orphaned:
            remove_tree(self._folder)
        elif self._folder.exists():
            with suppress(OSError, EngineError):
                self._write(replace(self._own, has_left=True))
