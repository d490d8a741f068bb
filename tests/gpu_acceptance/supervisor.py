"""Runs each part in a process group of its own, with a limit, and ends whatever is left of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from allranks.ownership import LOCKS_VARIABLE
from gpu_acceptance.child import VERDICT
from gpu_acceptance.parts import Part
from gpu_acceptance.verdict import TIME_UP, Outcome, Verdict

_REPORTING = 5.0
"""Seconds before its limit at which a part stops waiting, so that it can say for what."""

_GRACE = 10.0
"""Seconds for a part that is told to end: it interrupts its runs, and these end their ranks."""


@dataclass(kw_only=True)
class Supervisor:
    """Runs parts, each with locks of its own: parts that run at the same time do not wait for each other's GPUs.

    Attributes:
        work: Where each part gets a folder.
        machine: The file that describes the machine.
        environment: The variables of every part.
        pretended: True if stand-ins take the place of GPUs.
        image: Of containers; empty for none.
        deadline: When all is to be over, on the host's monotonic clock.
        command: What runs a part, without its arguments.
    """

    work: Path
    machine: Path
    environment: Mapping[str, str]
    pretended: bool
    image: str = ""
    deadline: float
    command: Sequence[str] = (sys.executable, "-m", "gpu_acceptance.child")
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _is_over: bool = False

    def run(self, part: Part) -> Verdict:
        """Run a part for no longer than its limit, and than the time that is left."""
        began = time.monotonic()
        left = self.deadline - began
        if left < part.least:
            return self.impossible(part, "no time was left for it (--minutes)")
        if self._is_over:
            return self.impossible(part, "interrupted before it began")
        try:
            return self._supervise(part, min(part.seconds, left), began)
        except OSError as error:
            return self._verdict(part, "wrong", f"it could not be run: {error}", time.monotonic() - began)

    def _supervise(self, part: Part, limit: float, began: float) -> Verdict:
        folder = self.folder(part)
        folder.mkdir()
        arguments = [part.name, str(folder), str(self.machine), str(limit - _REPORTING), self.image]
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                [*self.command, *arguments],
                cwd=folder,
                env={**self.environment, LOCKS_VARIABLE: str(folder / "locks")},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
                self._running.discard(process)
        seconds = time.monotonic() - began
        if self._is_over:
            return self.impossible(part, "interrupted", seconds)
        return self._late(part, "it has not ended", seconds) if code is None else self._read(part, code, seconds)

    def stop(self) -> None:
        """Have the parts that run end, and no other begin."""
        self._is_over = True
        for process in tuple(self._running):
            _end(process)

    def folder(self, part: Part) -> Path:
        """Where a part leaves all that it does."""
        return self.work / part.name

    def impossible(self, part: Part, why: str, seconds: float = 0.0) -> Verdict:
        """The verdict on a part that this machine, or the time, has no room for."""
        return self._verdict(part, "not possible here", why, seconds)

    def _late(self, part: Part, what: str, seconds: float) -> Verdict:
        """The verdict on a part that has used up its time: its own, or the little that was left."""
        if seconds < part.seconds - _REPORTING:
            return self.impossible(part, f"the time was up (--minutes) after {seconds:.0f} s: {what}", seconds)
        return self._verdict(part, "wrong", f"it took more than {part.seconds:.0f} s: {what}", seconds)

    def _read(self, part: Part, code: int, seconds: float) -> Verdict:
        """What a part that has ended says of itself; one that says nothing, or claims what it cannot, is wrong."""
        why = f"exit status {code}"
        try:
            verdict = json.loads((self.folder(part) / VERDICT).read_text())
            if verdict["outcome"] == TIME_UP:
                return self._late(part, verdict["text"], seconds)
            if code == 0:
                return Verdict(part=part.name, seconds=seconds, pretended=self.pretended, **verdict)
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = f"{why}, {type(error).__name__}: {error}"
        output = (self.folder(part) / "output.txt").read_text(errors="backslashreplace")
        return self._verdict(part, "wrong", f"the part broke down ({why}): {output.strip()[-400:]}", seconds)

    def _verdict(self, part: Part, outcome: Outcome, text: str, seconds: float) -> Verdict:
        return Verdict(part=part.name, outcome=outcome, text=text, seconds=seconds, pretended=self.pretended)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and its group, politely first."""
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
