"""One user's SLURM queue: submits and cancels jobs, and polls the states of all jobs at once."""

import math
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from allranks.errors import EngineError
from allranks.plugins.slurm.allocation import SILENT, JobStatus, whole_minutes

POLL: Final = 5.0
"""Seconds between two polls, for any number of jobs: each poll makes the controller lock all of its jobs."""

_ANSWER: Final = 40.0
"""Seconds for a command's answer: without a controller, squeue gives up after 18 and sbatch and scancel after 9."""

_ABSENCES: Final = 2
"""Answers without a job until it counts as lost: an answer may miss a job that is just being submitted."""

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
    """A job in one answer of squeue."""

    number: str  # SLURM's number for it, for people: another job may get it after a crash of the controller
    state: str  # the full name of its state (``squeue -o %T``)
    reason: str = ""  # why it waits, or has failed
    nodes: str = ""  # its nodes, as SLURM writes them; empty before it has any

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

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
class PolledJob:
    """What SLURM's answers show about a job. Times are on the monotonic clock."""

    job: QueuedJob | None = None  # the job when it was last listed; None if it never was
    absences: int = 0  # the number of successive answers, up to the newest, that did not list it
    polled_at: float = -math.inf  # the time of the poll that got the newest answer
    watched_since: float = math.inf  # when polling for this job started

    @property
    def status(self) -> JobStatus:
        """The state that these answers amount to."""
        job, silent = self.job, time.monotonic() - max(self.polled_at, self.watched_since)
        waiting = f"unknown: the controller has not answered for {whole_minutes(silent)} min" if silent > SILENT else ""
        if job is None or self.absences:
            end = "not in the queue" if self.absences >= _ABSENCES else ""
            return JobStatus(waiting=waiting, end=end, cause=job.cause if job else "")
        is_waiting = job.state in _WAITING
        return JobStatus(
            waiting=waiting or (f"queued ({job.reason or 'no reason yet'})" if is_waiting else ""),
            nodes=job.nodes,
            is_running=job.state == "RUNNING",
            end=job.state if job.has_ended else "",
            cause=job.cause,
        )


class SlurmQueue:
    """The jobs of this process's run."""

    def __init__(self) -> None:
        self._polled: dict[str, PolledJob] = {}
        self._changed = threading.Condition()
        self._poller: threading.Thread | None = None
        self._next_poll = -math.inf

    def submit(self, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
        """Submit a job; return SLURM's number for it.

        Raises:
            EngineError: SLURM refuses it, or does not answer. It may be in the queue nevertheless: cancel it.
        """
        output = _answer(["sbatch", *arguments], "SLURM did not accept the job.", environment)
        return output.strip().partition(";")[0]

    def watch(self, name: str) -> None:
        """Start polling for a job."""
        with self._changed:
            self._polled[name] = PolledJob(watched_since=time.monotonic())
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="squeue", daemon=True)
                self._poller.start()

    def status(self, name: str) -> JobStatus:
        return self.polled_after(name, -math.inf, 0.0).status

    def polled_after(self, name: str, moment: float, timeout: float) -> PolledJob:
        """Wait for a poll after this moment; without one in time, return the result of the last poll."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._polled.get(name, PolledJob()).polled_at < moment and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._polled.get(name, PolledJob())

    def cause_at_end(self, name: str) -> str:
        """What ended a job, once SLURM shows that it has ended, or after three polls.

        While SLURM cleans up after a job (COMPLETING), it hides why the job ended (CANCELLED).
        """
        deadline = time.monotonic() + 3 * POLL
        while True:
            polled = self.polled_after(name, time.monotonic(), deadline - time.monotonic())
            job = polled.job
            if job is None or polled.absences or job.has_ended or time.monotonic() >= deadline:
                return job.cause if job else ""

    def forget(self, name: str) -> None:
        """Stop polling for a job."""
        with self._changed:
            self._polled.pop(name, None)
            self._changed.notify_all()

    def cancel(self, name: str) -> None:
        # By name: after a crash of the controller, another job may have the job's number.
        _answer(["scancel", "--me", f"--name={name}"], "SLURM did not cancel the job.")

    def _poll(self) -> None:
        """Poll every few seconds while there are jobs to watch."""
        while True:
            with self._changed:
                left = self._next_poll - time.monotonic()
                if self._changed.wait_for(lambda: not self._polled, max(0.0, left)):
                    self._poller = None
                    return
                began = time.monotonic()
                self._next_poll = began + POLL
            jobs = _query_jobs()
            with self._changed:
                if jobs is not None:
                    for name, before in self._polled.items():
                        job = jobs.get(name)
                        absences = 0 if job else before.absences + 1
                        self._polled[name] = replace(before, job=job or before.job, absences=absences, polled_at=began)
                self._changed.notify_all()


def _query_jobs() -> Mapping[str, QueuedJob] | None:
    """This user's jobs by name, including jobs that have just ended; None if SLURM does not answer."""
    command = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%N|%j"]
    try:
        done = _run(command, without_slurm_variables(os.environ))
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def parse(output: str) -> Mapping[str, QueuedJob]:
    """The jobs in an answer of squeue, by name."""
    found: dict[str, QueuedJob] = {}
    for line in output.splitlines():
        number, _, rest = line.strip().partition("|")
        state, _, rest = rest.partition("|")
        reason, _, rest = rest.partition("|")
        nodes, _, name = rest.partition("|")
        reason = "" if reason in {"None", "(null)"} else reason
        job = QueuedJob(number=number, state=state, reason=reason, nodes=nodes)
        # SLURM lists ended jobs for minutes, and an attempt that was canceled before its start may have the same name.
        if name not in found or not job.has_ended:
            found[name] = job
    return found


def _run(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",  # the user's other jobs may have names in any encoding
        timeout=_ANSWER,
        check=False,
        stdin=subprocess.DEVNULL,
        env=environment,
    )


_REFUSED: Final = "Check [slurm] in the matrix file and in your own file, and the partitions: sinfo -l."


def _answer(command: Sequence[str], what: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command of SLURM; `what` is the message of the error if it fails."""
    remedy = "Check that SLURM answers: run `sinfo` and `allranks doctor`."
    try:
        done = _run(command, environment if environment is not None else without_slurm_variables(os.environ))
    except subprocess.TimeoutExpired as error:
        raise EngineError(what, why=f"{command[0]} gave no answer in {_ANSWER:g} s.", remedy=remedy) from error
    except OSError as error:
        raise EngineError(what, why=f"{command[0]}: {error.strerror}.", remedy=remedy) from error
    if done.returncode != 0:
        why = done.stderr.strip() or f"{command[0]} exited with {done.returncode}."
        raise EngineError(what, why=why, remedy=_REFUSED if command[0] == "sbatch" else remedy)
    return done.stdout


def without_slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables of an allocation that this process may be in: jobs would become its steps.

    The defaults of squeue and scancel are dropped, too: they may hide jobs, such as those in other partitions.
    """
    dropped = ("SLURM_", "SQUEUE_", "SCANCEL_")
    return {name: value for name, value in environ.items() if not name.startswith(dropped) or name == "SLURM_CONF"}
