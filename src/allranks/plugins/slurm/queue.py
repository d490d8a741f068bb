"""SLURM's queue of one user: submits and cancels jobs, and polls the states of all at once."""

import math
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from allranks.errors import EngineError
from allranks.plugins.slurm.allocation import SILENT, Place, minutes

POLL: Final = 5.0
"""Seconds between two polls, for any number of jobs: each costs the controller a lock on all of its jobs."""

_ANSWER: Final = 40.0
"""Seconds for a command's answer: with the controller away, squeue gives up after 18, sbatch and scancel after 9."""

_ABSENCES: Final = 2
"""Answers without a job until it counts as lost: an answer may miss one that is just being submitted."""

_ENDED: Final = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)

_WAITING: Final = frozenset(["PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"])


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job as one answer of SLURM shows it."""

    number: str  # SLURM's number for it, for people: after a crash of its controller another job may get it
    state: str  # the name of its state, in full (``squeue -o %T``)
    reason: str = ""  # why it waits, or has failed; empty for none
    nodes: str = ""  # its nodes, as SLURM writes them; empty before it has any

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self.state in _ENDED

    @property
    def is_waiting(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in _WAITING

    @property
    def cause(self) -> str:
        """What ended it, if that was the cluster and not the job, as in "was canceled"; else empty."""
        where = f" ({self.nodes})" if self.nodes else ""
        return {
            "CANCELLED": "was canceled (scancel)",
            "PREEMPTED": "was preempted: a job of higher priority has its nodes",
            "NODE_FAIL": f"lost a node{where}",
            "BOOT_FAIL": f"got a node that could not boot{where}",
            "TIMEOUT": "was ended by SLURM's time limit",
            "DEADLINE": "was ended by SLURM's deadline",
            "REVOKED": "was revoked",
        }.get(self.state, "")


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What is known of a job."""

    job: QueuedJob | None = None  # the job when it was last seen; None if it never was
    absences: int = 0  # how many answers in a row, up to the newest, have not had it
    answered: float = -math.inf  # when the newest answer was asked for, on the monotonic clock; minus infinity for none
    watched: float = math.inf  # since when answers have been asked for, on the monotonic clock; infinity if nobody asks

    @property
    def place(self) -> Place:
        """What it means for the job."""
        job, silent = self.job, time.monotonic() - max(self.answered, self.watched)
        waiting = f"unknown: the controller has not answered for {minutes(silent)} min" if silent > SILENT else ""
        if job is None or self.absences:
            end = "not in the queue" if self.absences >= _ABSENCES else ""
            return Place(waiting=waiting, end=end, cause=job.cause if job else "")
        return Place(
            waiting=waiting or (f"queued ({job.reason or 'no reason yet'})" if job.is_waiting else ""),
            nodes=job.nodes,
            is_running=job.state == "RUNNING",
            end=job.state if job.has_ended else "",
            cause=job.cause,
        )


class SlurmQueue:
    """All jobs of this process's run."""

    def __init__(self) -> None:
        self._sightings: dict[str, Sighting] = {}
        self._changed = threading.Condition()
        self._poller: threading.Thread | None = None
        self._next_poll = -math.inf

    def submit(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
        """Submit a job; return SLURM's number for it.

        Raises:
            EngineError: SLURM refuses it, or does not answer. It may be in the queue all the same: cancel it.
        """
        told = _answer(["sbatch", *arguments], "SLURM did not take the job.", environment)
        return told.strip().partition(";")[0]

    def watch(self, name: str) -> None:
        """Begin to look for a job in SLURM's answers."""
        with self._changed:
            self._sightings[name] = Sighting(watched=time.monotonic())
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="squeue", daemon=True)
                self._poller.start()

    def look(self, name: str) -> Place:
        return self.look_after(name, -math.inf, 0.0).place

    def look_after(self, name: str, moment: float, timeout: float) -> Sighting:
        """What an answer that was asked for after this moment says; what is known if none comes in time."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._sightings.get(name, Sighting()).answered < moment and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._sightings.get(name, Sighting())

    def cause_at_end(self, name: str) -> str:
        """What the answers say once they show that a job has ended, or after three of them.

        SLURM hides what ended a job (CANCELLED) as long as it cleans up after it (COMPLETING).
        """
        deadline = time.monotonic() + 3 * POLL
        while True:
            sighting = self.look_after(name, time.monotonic(), deadline - time.monotonic())
            job = sighting.job
            if job is None or sighting.absences or job.has_ended or time.monotonic() >= deadline:
                return job.cause if job else ""

    def forget(self, name: str) -> None:
        """Watch a job no longer."""
        with self._changed:
            self._sightings.pop(name, None)
            self._changed.notify_all()

    def cancel(self, name: str) -> None:
        """End a job; one that is not there needs none.

        By its name, and not by its number, which may be another job's after a crash of the controller.

        Raises:
            EngineError: SLURM does not answer.
        """
        _answer(["scancel", "--me", f"--name={name}"], "SLURM did not take the job back.")

    def _poll(self) -> None:
        """Ask every few seconds while there are jobs to watch."""
        while True:
            with self._changed:
                left = self._next_poll - time.monotonic()
                if self._changed.wait_for(lambda: not self._sightings, max(0.0, left)):
                    self._poller = None
                    return
                began = time.monotonic()
                self._next_poll = began + POLL
            found = _ask()
            with self._changed:
                if found is not None:
                    for name, before in self._sightings.items():
                        self._sightings[name] = _seen(before, found.get(name), began)
                self._changed.notify_all()


def _seen(before: Sighting, job: QueuedJob | None, moment: float) -> Sighting:
    absences = 0 if job else before.absences + 1
    return replace(before, job=job or before.job, absences=absences, answered=moment)


def _ask() -> Mapping[str, QueuedJob] | None:
    """This user's jobs by name, those that have just ended included; None if SLURM does not answer."""
    command = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%N|%j"]
    try:
        done = _run(command, outside_of_jobs(os.environ))
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(told: str) -> Mapping[str, QueuedJob]:
    """The jobs in an answer of squeue, by name."""
    found: dict[str, QueuedJob] = {}
    for line in told.splitlines():
        number, _, rest = line.strip().partition("|")
        state, _, rest = rest.partition("|")
        reason, _, rest = rest.partition("|")
        nodes, _, name = rest.partition("|")
        reason = "" if reason in {"None", "(null)"} else reason
        job = QueuedJob(number=number, state=state, reason=reason, nodes=nodes)
        # SLURM shows ended jobs for minutes: one of an attempt that was canceled before it began may have this name.
        if name not in found or not job.has_ended:
            found[name] = job
    return found


def _run(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",  # names of the user's other jobs may be of any encoding
        timeout=_ANSWER,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


_REFUSED: Final = "Check [slurm] in the matrix file and in your own, and what its partitions have: sinfo -l."


def _answer(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> str:
    remedy = "See whether it answers: sinfo; and allranks doctor."
    try:
        done = _run(command, environment if environment is not None else outside_of_jobs(os.environ))
    except subprocess.TimeoutExpired as error:
        raise EngineError(what, why=f"{command[0]} gave no answer in {_ANSWER:g} s.", remedy=remedy) from error
    except OSError as error:
        raise EngineError(what, why=f"{command[0]}: {error.strerror}.", remedy=remedy) from error
    if done.returncode != 0:
        why = done.stderr.strip() or f"{command[0]} exited with {done.returncode}."
        raise EngineError(what, why=why, remedy=_REFUSED if command[0] == "sbatch" else remedy)
    return done.stdout


def outside_of_jobs(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those of an allocation that this process may be in: jobs would be its steps.

    And without the defaults of squeue and scancel, which may hide jobs, such as all those of other partitions.
    """
    dropped = ("SLURM_", "SQUEUE_", "SCANCEL_")
    return {name: value for name, value in environ.items() if not name.startswith(dropped) or name == "SLURM_CONF"}
