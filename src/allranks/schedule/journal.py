"""What the events of a job say about the job as a whole."""

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allranks.engine.protocol import JobExit, NodeExit
from allranks.errors import AllranksError
from allranks.harness.events import Event

_LEFT_SHOWN = 5

_UNWRITABLE = re.compile(rf"\[Errno (?:{errno.ENOSPC}|{errno.EDQUOT}|{errno.EROFS})\].*")
"""What Python says of a disk that is full, or read-only."""

_SEE_THE_OTHER_AGENTS = "See agent.log, and agent-1.log and so on, in the job's results folder."


@dataclass(frozen=True, kw_only=True)
class JobError:
    """Why a job did not do all its work.

    Attributes:
        kind: ``infrastructure``, ``timeout``, ``interrupted``, ``stopped``, ``collection`` or ``agent``.
    """

    kind: str
    what: str
    why: str = ""
    remedy: str = ""

    @classmethod
    def from_exception(cls, error: AllranksError) -> "JobError":
        """A failure of the engine's, or of anything else that a job needs."""
        return cls(kind="infrastructure", what=error.what, why=error.why, remedy=error.remedy)


def find(events: Sequence[Event], kind: str) -> Event | None:
    """The first event of a kind."""
    return next((event for event in events if event["event"] == kind), None)


def collected(events: Sequence[Event]) -> tuple[list[str] | None, int]:
    """The collected tests (None when the collection never ended), and how many were deselected."""
    event = find(events, "collected")
    return (None, 0) if event is None else (list(event["tests"]), int(event["deselected"]))


def shared(events: Sequence[Event]) -> dict[str, Any]:
    """How the agent split the suite that its job has a share of: a digest, and how many tests are other jobs'."""
    event = find(events, "shared")
    return {} if event is None else {"split": event["split"], "elsewhere": int(event["elsewhere"])}


def not_run(events: Sequence[Event]) -> dict[str, Any]:
    """The tests that ``-x`` or ``--maxfail`` kept from running, and that reason."""
    event = find(events, "not_run")
    return {} if event is None else {"not_run": event["tests"], "stop_reason": event["reason"]}


def notes(events: Sequence[Event]) -> list[str]:
    """What a reader of the report should know about a job and no testcase says."""
    notices = [event for event in events if event["event"] == "notice"]
    said = [f"{event['nodeid']}: {event['text']}" if event["nodeid"] else event["text"] for event in notices]
    return [*(text.rstrip(".") for text in said), *_left_behind(events)]


def _left_behind(events: Sequence[Event]) -> list[str]:
    """The processes that outlived their ranks and were killed, in words."""
    found = [event for event in events if event["event"] == "left_behind"]
    words = [
        f"{_whose(event)} left a process behind in {event['nodeid']}, which was killed: {event['command'][:200]}"
        for event in found[:_LEFT_SHOWN]
    ]
    rest = len(found) - len(words)
    return [*words, f"{rest} more processes were left behind and killed"] if rest else words


def _whose(event: Event) -> str:
    return "a rank" if event["rank"] is None else f"rank {event['rank']}"


def job_error(events: Sequence[Event], ending: JobExit) -> JobError | None:
    """What went wrong with a job as a whole; None when its agent did all its work."""
    if (early := _error_before_tests(events)) is not None:
        return early
    if (apart := find(events, "nodes_failed") or find(events, "node_lost")) is not None:
        return JobError(kind="agent", what=apart["message"], why=_ends_of(ending), remedy=_SEE_THE_OTHER_AGENTS)
    if (failed := find(events, "agent_failed")) is not None:
        return _agent_failure(failed)
    if ending.timed_out or find(events, "job_timed_out"):
        return _timeout_error(events)
    if find(events, "interrupted"):
        return JobError(kind="interrupted", what="The job was interrupted.")
    return None if find(events, "agent_finished") else _death(ending)


def _error_before_tests(events: Sequence[Event]) -> JobError | None:
    if failures := [event for event in events if event["event"] == "gpu_failed"]:
        return _gpu_error(failures)
    if failures := [event for event in events if event["event"] == "collection_failed"]:
        return _collection_error(failures)
    return None


def _gpu_error(failures: Sequence[Event]) -> JobError:
    what = "; ".join(f"{event['name']} is sick: {event['message']}" for event in failures)
    why = "Before a job's tests each of its GPUs multiplies two small matrices."
    remedy = "See agent.log there, and dmesg and nvidia-smi -q on its host; or leave it out: --gpus."
    return JobError(kind="infrastructure", what=f"{what}.", why=why, remedy=remedy)


def sick_gpus(events: Sequence[Event]) -> frozenset[str]:
    """The GPUs of the job that did not compute, by id."""
    return frozenset(event["gpu"] for event in events if event["event"] == "gpu_failed")


def well_gpus(events: Sequence[Event]) -> frozenset[str]:
    """The GPUs of the job that did, as far as it had them try."""
    return frozenset(gpu for event in events if event["event"] == "gpus_checked" for gpu in event["gpus"])


def _agent_failure(failed: Event) -> JobError:
    what, why = failed["message"], failed.get("text", "")
    if "cannot_import" in failed:
        remedy = "Add the package to the cell's image in the matrix file, or to the interpreter of process.python."
        return JobError(kind="infrastructure", what=what, why=why, remedy=remedy)
    if "out_of_memory" in failed:
        return JobError(kind="infrastructure", what=what, why=why, remedy="Raise limits.memory_mib in the matrix file.")
    if "other_torch" in failed:
        remedy = (
            "Let the cell's image, or the interpreter of process.python, have the torch that the cell is named after."
        )
        return JobError(kind="infrastructure", what=what, why=why, remedy=remedy)
    if full := _UNWRITABLE.search(f"{what}\n{why}"):
        remedy = "Free space where jobs run (Docker's own folder, or TMPDIR), then go on: allranks run --resume."
        return JobError(kind="infrastructure", what="The agent could not write.", why=full[0], remedy=remedy)
    return JobError(kind="agent", what=what, why=why, remedy="Please report this as a bug of allranks.")


def _collection_error(failures: Sequence[Event]) -> JobError:
    names = ", ".join(dict.fromkeys(event["nodeid"] for event in failures if event["nodeid"])) or "the suite"
    why = "\n\n".join(event["text"] for event in failures)
    return JobError(kind="collection", what=f"{names} cannot be collected.", why=why)


def _timeout_error(events: Sequence[Event]) -> JobError:
    last = next((event for event in reversed(events) if event["event"] == "arrived"), None)
    where = f"after {last['nodeid']}" if last else "before the first test ended"
    remedy = "Raise limits.job in the matrix file, or split the suite."
    return JobError(kind="timeout", what=f"The job's time was up {where}.", remedy=remedy)


def _death(ending: JobExit) -> JobError:
    why = "\n".join(filter(None, (f"{_memory(ending)}{ending.output}", _ends_of(ending))))
    remedy = _SEE_THE_OTHER_AGENTS if ending.followers else "See agent.log in the job's results folder."
    whose = " of node 0" if ending.followers else ""
    what = f"The agent{whose} ended before its work was done, {_how(ending)}."
    return JobError(kind="agent", what=what, why=why, remedy=remedy)


def _ends_of(ending: JobExit) -> str:
    """How the agents of the nodes from 1 on ended, a line each; those of which there is nothing to say are left out."""
    said = (
        f"The agent of node {node} ended {_how(end)}. {_memory(end)}{end.output}".strip()
        for node, end in enumerate(ending.followers, start=1)
        if end.status != 0 or end.out_of_memory or end.output
    )
    return "\n".join(said)


def _how(end: NodeExit) -> str:
    return "nobody knows how" if end.status is None else f"with status {end.status}"


def _memory(end: NodeExit) -> str:
    words = "The kernel killed it, or a part of it, for want of memory (limits.memory_mib). "
    return words if end.out_of_memory else ""
