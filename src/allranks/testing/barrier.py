"""A barrier of files: it needs a folder that all ranks can see, and no process group."""

from pathlib import Path

from allranks.testing.waiting import wait_until

DEFAULT_TIMEOUT = 60.0
"""Seconds: as long as the operations of the cell's process group get, where the matrix sets nothing else."""


class PeerTimeoutError(TimeoutError):
    """This rank waited for peers, and some did not come: the trouble is with them and not with this rank."""

    allranks_symptom = True  # by which the agent knows not to blame this rank: see allranks.harness.ranks.symptoms


class FileBarrier:
    """Holds each rank until all have come; may be used any number of times, by all ranks alike.

    A rank that comes for the k-th time leaves the file ``k-rank`` behind. It takes the file of the time before away
    once all have come again, because nobody can be waiting for that one any more.

    Args:
        folder: Exists, is the same for all ranks, and is used by no other barrier.
        rank: This rank, from 0.
        world_size: How many ranks come.
    """

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self._folder = folder
        self._rank = rank
        self._world_size = world_size
        self._round = 0

    def __call__(self, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Wait until every rank has made this call as often as this one.

        Args:
            timeout: Seconds to wait for the last rank.

        Raises:
            PeerTimeoutError: Some rank did not come in time; the message names all that are missing.
        """
        self._round += 1
        self._file(self._round, self._rank).touch()
        if not wait_until(lambda: not self._missing(), timeout) and (missing := self._missing()):
            raise PeerTimeoutError(self._complaint(missing, timeout))
        self._file(self._round - 1, self._rank).unlink(missing_ok=True)

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._world_size) if not self._file(self._round, rank).exists()]

    def _file(self, number: int, rank: int) -> Path:
        return self._folder / f"{number}-{rank}"

    def _complaint(self, missing: list[int], timeout: float) -> str:
        ranks = f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))}"
        return (
            f"rank {self._rank} waited {timeout:g} s at the file barrier and {ranks} did not come "
            f"(call {self._round} of this test)"
        )
