"""What a test came to, in words that both runners share and that have nothing of a machine in them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast

from allranks.report.results import TestVerdict, VerdictKind

Kind = Literal["passed", "skipped", "xfailed", "failed"]

SEEN_ELSEWHERE: Final = "Test skipped at subprocess level, look at subprocess log for skip reason"
"""What torch's runner says where a rank's own reason did not reach it (TEST_SKIPS, common_distributed.py)."""

_LENGTH: Final = 160

_RAISED: Final = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Failure|Exit|Interrupt)\b.*", re.MULTILINE)
_MACHINE: Final = (
    (re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+)*/([\w.-]+\.py)\b"), r"\1"),
    (re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}"), "PATH"),
    (re.compile(r"\b0x[0-9a-fA-F]+"), "ADDRESS"),
    (re.compile(r"\[?(?:\d{1,3}(?:\.\d{1,3}){3}|localhost|::1|::ffff:[\d.]+)\]?:\d+"), "HOST:PORT"),
    (re.compile(r"\b\d+\.\d+ seconds"), "N seconds"),
    (re.compile(r"\b(pid|process|port)([ =:]+)\d{3,}", re.IGNORECASE), r"\1\2N"),
)
_SET: Final = re.compile(r"\{('[^{}]*')\}")


class Outcome(NamedTuple):
    """What a test came to.

    Attributes:
        reason: Why it was skipped or failed, in one line; empty for a pass.
    """

    kind: Kind
    reason: str = ""

    def __str__(self) -> str:
        """For a person: ``skipped: CUDA is not available.``."""
        return f"{self.kind}: {self.reason}" if self.reason else self.kind

    def agrees(self, other: "Outcome") -> bool:
        """Whether both runners have seen the same: the same kind, and of a skip the same reason.

        What a failure says is each runner's own.
        """
        reasons = {self.reason, other.reason}
        return self.kind == other.kind and (self.kind != "skipped" or len(reasons) == 1 or SEEN_ELSEWHERE in reasons)


def outcome(kind: Kind, reason: str) -> Outcome:
    """An outcome whose reason is one short line without anything of the machine."""
    if kind in {"passed", "xfailed"}:
        return Outcome(kind)
    if kind == "failed":
        raised = [match[0] for match in _RAISED.finditer(reason)]
        reason = raised[-1] if raised else reason.strip().partition("\n")[0]
    return Outcome(kind, _without_machine(" ".join(reason.split()))[:_LENGTH])


def _without_machine(text: str) -> str:
    for pattern, instead in _MACHINE:
        text = pattern.sub(instead, text)
    # The order of a set of names is another in each process.
    return _SET.sub(lambda match: f"{{{', '.join(sorted(match[1].split(', ')))}}}", text)


class Recorded(NamedTuple):
    """What torch's own runner has written down of a test.

    Attributes:
        seconds: From its start until its outcome was known.
        module: The suite's file, as it was imported.
    """

    test: str
    outcome: Outcome
    seconds: float
    module: str


def read_recording(path: Path) -> Iterator[Recorded]:
    """What ``torch_runner.py`` has written, in its order.

    A line that is not whole, of a recording that goes on or was broken off, is left out.
    """
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            output = json.loads(line)
            seen = outcome(cast("Kind", output["outcome"]), output["reason"])
            yield Recorded(output["test"], seen, output["seconds"], output.get("module", ""))


def of_verdict(test: TestVerdict) -> Outcome:
    """What allranks says of a test, over all its ranks."""
    verdict = test.verdict
    match verdict.kind:
        case VerdictKind.PASSED:
            return Outcome("passed")
        case VerdictKind.SKIPPED:
            return outcome("xfailed" if verdict.reason == "pytest.xfail" else "skipped", verdict.message)
        case _:
            return outcome("failed", f"{verdict.reason}: {verdict.message}")
