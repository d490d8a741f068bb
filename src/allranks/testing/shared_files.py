"""Files that ranks share: the folders of a gang and of a test, a barrier, and values that rank 0 publishes."""

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from allranks.protocol.outcomes import named_ranks


def wait_until(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll a condition with increasing pauses until it is true or the time is up.

    Polling is the only method that works on every file system that ranks can share: FIFOs and inotify are limited to
    one host, and a lock must be taken before a peer waits for it. Each pause is a tenth of the time waited so far,
    between 0.2 and 5 ms, so short waits end quickly and long ones use little CPU time. A barrier that uses this
    function took 0.1 ms with 2 ranks, 0.4 ms with 4 and 0.9 ms with 8 (medians, two cores, on ext4 and in memory; with
    FIFOs 0.03, 0.05 and 0.12 ms).

    Args:
        condition: Checked at least once, and once more when the time is up.
        timeout: Seconds.

    Returns:
        Whether the condition became true.
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
"""Seconds; the same as the default time limit of collectives in the cell's process group."""


class PeerTimeoutError(TimeoutError):
    """This rank waited for its peers, and some of them did not arrive in time.

    A report treats this error as a consequence: the missing peers are the cause of the failure, not this rank.
    """

    allranks_symptom = True  # read by allranks.agent.rank.reports: a secondary failure


class FileBarrier:
    """A barrier that needs no process group: it blocks each rank until all ranks have arrived.

    It can be used any number of times. On the k-th call, a rank creates the file ``k-rank``. When all ranks have
    arrived, it removes its previous file, because no rank needs that one any more.

    Args:
        folder: An existing folder that all ranks share and no other barrier uses.
        rank: This rank, from 0.
        world_size: The number of ranks.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._round = 0

    def __call__(self, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until all ranks have called the barrier as many times as this rank.

        Args:
            timeout: Seconds to wait for the last rank.

        Raises:
            PeerTimeoutError: Some ranks did not arrive in time; the message lists them.
        """
        self._round += 1
        self._file(self._round, self._rank).touch()
        if not wait_until(lambda: not self._missing(), timeout) and (missing := self._missing()):
            msg = (
                f"rank {self._rank} waited {timeout:g} s at the file barrier, "
                f"but {named_ranks(missing)} did not arrive (call {self._round} of this test)"
            )
            raise PeerTimeoutError(msg)
        self._file(self._round - 1, self._rank).unlink(missing_ok=True)

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._world_size) if not self._file(self._round, rank).exists()]

    def _file(self, number: int, rank: int) -> Path:
        return self._folder / f"{number}-{rank}"


def publish(path: Path, text: str) -> None:
    """Write a file atomically: other ranks see either no file or the complete text."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.rename(path)


def read_published(path: Path, what: str, timeout: float = DEFAULT_TIMEOUT) -> str:
    """Wait until rank 0 has published a file, and return its content.

    Args:
        path: The file.
        what: A description of the content, for the error message.
        timeout: Seconds.

    Raises:
        PeerTimeoutError: Rank 0 did not publish the file in time.
    """
    if not wait_until(path.exists, timeout):
        msg = f"rank 0 did not publish {what} within {timeout:g} s"
        raise PeerTimeoutError(msg)
    return path.read_text(encoding="utf-8")


_NAME_LIMIT = 40


def _create(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class TestFolder:
    """The folder that the ranks share during one test."""

    path: Path

    @property
    def files(self) -> Path:
        """The folder for the test's own files."""
        return _create(self.path / "files")

    @property
    def barrier(self) -> Path:
        """The folder of the file barrier."""
        return _create(self.path / "barrier")

    @property
    def published(self) -> Path:
        """The folder of the files that rank 0 publishes."""
        return _create(self.path / "published")


@dataclass(frozen=True)
class GangFolder:
    """The folder that the ranks share as long as their gang exists."""

    path: Path

    @property
    def files(self) -> Path:
        """The folder for files of tests and fixtures."""
        return _create(self.path / "files")

    def test_folder(self, nodeid: str, number: int) -> TestFolder:
        """The folder of one run of a test; `number`, how many tests the gang has run, distinguishes repetitions."""
        digest = hashlib.blake2b(nodeid.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        name = re.sub(r"\W+", "-", nodeid.rpartition("::")[2], flags=re.ASCII)[:_NAME_LIMIT].strip("-")
        return TestFolder(self.path / "tests" / "-".join(filter(None, (str(number), name, digest))))
