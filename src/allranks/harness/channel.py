"""What the agent and a rank say to each other, over two pipes.

The agent sends :class:`Run` and :class:`End`; a rank answers with :class:`Report`. Each message is one
line of JSON, far below the size of a pipe's buffer: what is long goes into the rank's events file.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allranks.harness.events import write_all
from allranks.harness.outcome import Outcome

_MESSAGE_LIMIT = 400


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run the test at `index`; `following` is the gang's next test, None when this is its last."""

    index: int
    following: int | None


@dataclass(frozen=True, kw_only=True)
class End:
    """Tear down what is left and end.

    A rank that is not condemned reports when it has torn down, and leaves at the second command of this kind: until
    then its peers may need what it holds, the server of a store for one.

    Attributes:
        is_condemned: A bad outcome has ended this gang: what goes wrong from here on is its consequence.
    """

    is_condemned: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """A rank has ended a step: it is ready for tests, has run one, or has torn everything down.

    Attributes:
        outcome: What the step came to on this rank; passed for a start and an end without trouble.
        message: One line on a bad outcome.
        is_final: The step is over; without it the step has gone wrong and still tears down.
        early_skip: The test was skipped before its call.
        has_left_group: The default process group is no more the one that the gang made, or made none.
        imported: With the last report: what an agent may import once for all ranks to come.
        is_symptom: What went wrong here is that a peer did not come, or was gone: see
            :mod:`allranks.harness.gangs.symptoms`.
        starts_clock: The time limit of the test counts from now on: nothing has ended yet.
    """

    outcome: Outcome
    message: str = ""
    early_skip: bool = False
    has_left_group: bool = False
    is_symptom: bool = False
    is_final: bool = True
    starts_clock: bool = False
    imported: tuple[str, ...] = ()


def send_command(descriptor: int, command: Run | End) -> None:
    """Send a command to a rank; a rank that is gone is noticed by its process, not here."""
    line = json.dumps(dataclasses.asdict(command))
    try:
        write_all(descriptor, line.encode() + b"\n")
    except BrokenPipeError:
        return


def decode_command(line: bytes) -> Run | End:
    """The command on one line."""
    return command_of(json.loads(line))


def command_of(fields: Mapping[str, Any]) -> Run | End:
    """The command with these fields (``dataclasses.asdict``)."""
    return End(**fields) if "is_condemned" in fields else Run(**fields)


def send_report(descriptor: int, report: Report) -> None:
    """Send a report to the agent.

    Raises:
        BrokenPipeError: The agent is gone.
    """
    short = dataclasses.replace(report, message=report.message[:_MESSAGE_LIMIT])
    write_all(descriptor, json.dumps(dataclasses.asdict(short)).encode() + b"\n")


class ReportReader:
    """The agent's end of one rank's reports.

    Args:
        descriptor: The reading end of the pipe, non-blocking.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.at_end = False
        self.is_garbled = False
        self._rest = b""

    def read(self) -> list[Report]:
        """All reports that are there.

        Sets `at_end` when the rank has closed its end, and `is_garbled` too when something else than the rank's own
        loop has written into the pipe: nothing that comes after that can be believed.
        """
        self._fill()
        *lines, self._rest = self._rest.split(b"\n")
        reports: list[Report] = []
        try:
            reports.extend(_decode_report(line) for line in lines)
        except (ValueError, TypeError, KeyError, AttributeError):
            self.at_end = self.is_garbled = True
        return reports

    def _fill(self) -> None:
        try:
            while data := os.read(self.descriptor, 65536):
                self._rest += data
        except BlockingIOError:
            return
        self.at_end = True


def _decode_report(line: bytes) -> Report:
    fields = json.loads(line)
    return Report(**{**fields, "outcome": Outcome(fields["outcome"]), "imported": tuple(fields["imported"])})
