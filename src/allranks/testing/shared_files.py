"""Files that ranks share: folders of a gang, a barrier, and short texts of rank 0."""

import hashlib
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll a condition, ever less often, until it holds or the time is up.

    Only polling works on every file system that ranks can share: FIFOs and inotify are limited to one host's kernel,
    and locks need a first owner. Each pause is a tenth of the time waited so far, between 0.2 and 5 ms, so that a short
    wait ends soon and a long one costs little. A barrier built on it took 0.1 ms at world size 2, 0.4 ms at 4 and
    0.9 ms at 8 (medians, two cores; with FIFOs 0.03, 0.05 and 0.12 ms), the same on ext4 as in memory.

    Args:
        condition: Checked at least once, and a last time when the time is up.
        timeout: Seconds.

    Returns:
        Whether the condition held.
    """
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        if waited >= timeout:
            return condition()
        pause = min(max(waited / 10, 0.0002), 0.005)
        time.sleep(min(pause, timeout - waited))
    return True


DEFAULT_TIMEOUT = 60.0
"""Seconds; equal to the default time limit of operations of the cell's process group."""


class PeerTimeoutError(TimeoutError):
    """This rank waited for peers, and some did not come: the fault is theirs, not this rank's."""

    allranks_symptom = True  # tells the agent not to blame this rank: see allranks.agent.rank.reports


class FileBarrier:
    """Blocks each rank until all have arrived; reusable any number of times, by all ranks alike.

    On its k-th arrival, a rank creates the file ``k-rank``. It removes its previous file once all have arrived again,
    because then no rank waits for that one.

    Args:
        folder: An existing folder, the same for all ranks, that no other barrier uses.
        rank: This rank, from 0.
        world_size: The number of ranks.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._round = 0

    def __call__(self, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until every rank has made this call as often as this rank.

        Args:
            timeout: Seconds to wait for the last rank.

        Raises:
            PeerTimeoutError: A rank did not arrive in time; the message names all missing ranks.
        """
        self._round += 1
        self._file(self._round, self._rank).touch()
        if not wait_until(lambda: not self._missing(), timeout) and (missing := self._missing()):
            ranks = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
            call = f"(call {self._round} of this test)"
            msg = f"rank {self._rank} waited {timeout:g} s at the file barrier and {ranks} did not come {call}"
            raise PeerTimeoutError(msg)
        self._file(self._round - 1, self._rank).unlink(missing_ok=True)

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._world_size) if not self._file(self._round, rank).exists()]

    def _file(self, number: int, rank: int) -> Path:
        return self._folder / f"{number}-{rank}"


def publish(notice: Path, text: str) -> None:
    """Publish a text atomically: if the file is visible, so is all of the text."""
    draft = notice.with_name(f"{notice.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.rename(notice)


def read_published(notice: Path, what: str, timeout: float = DEFAULT_TIMEOUT) -> str:
    """Wait for a published text, and return it; a :class:`PeerTimeoutError` says that it did not come in time."""
    if not wait_until(notice.exists, timeout):
        msg = f"rank 0 did not tell {what} within {timeout:g} s"
        raise PeerTimeoutError(msg)
    return notice.read_text(encoding="utf-8")


_NAME_LIMIT = 40


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class TestFolder:
    """The folder that the ranks share in one test."""

    path: Path

    @property
    def files(self) -> Path:
        """The folder for the test's own files."""
        return _made(self.path / "files")

    @property
    def barrier(self) -> Path:
        """The folder of the barrier."""
        return _made(self.path / "barrier")

    @property
    def published(self) -> Path:
        """The folder of the texts that rank 0 publishes."""
        return _made(self.path / "notices")


@dataclass(frozen=True)
class GangFolder:
    """The folder that the ranks share while their gang lives."""

    path: Path

    @property
    def files(self) -> Path:
        """The folder for files of tests and fixtures."""
        return _made(self.path / "files")

    def test_folder(self, nodeid: str, number: int) -> TestFolder:
        """The folder of one run of one test: the number of tests that the gang has run tells repetitions apart."""
        digest = hashlib.blake2b(nodeid.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        words = re.sub(r"\W+", "-", nodeid.rpartition("::")[2], flags=re.ASCII)[:_NAME_LIMIT].strip("-")
        return TestFolder(self.path / "tests" / "-".join(filter(None, (str(number), words, digest))))


def remove(folder: TestFolder) -> None:
    """Remove the files of a test; errors are ignored, because the job's folder is removed with the job."""
    shutil.rmtree(folder.path, ignore_errors=True)
