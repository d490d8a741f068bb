"""The folders that all ranks of a gang share, and that no other gang and no other test uses."""

import hashlib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

_NAME_LIMIT = 40


@dataclass(frozen=True)
class FolderOfTest:
    """What the ranks share in one test.

    Args:
        path: The folder of the test.
    """

    path: Path

    @property
    def of_the_author(self) -> Path:
        """Where the test itself may put what it likes."""
        return self._made("files")

    @property
    def of_the_barrier(self) -> Path:
        """Where ranks wait for each other."""
        return self._made("barrier")

    @property
    def of_notices(self) -> Path:
        """Where rank 0 tells its peers things."""
        return self._made("notices")

    def _made(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass(frozen=True)
class FolderOfGang:
    """What the ranks share as long as their gang lives.

    Args:
        path: A folder that is the same for all ranks, and was empty when the gang began.
    """

    path: Path

    @property
    def of_the_author(self) -> Path:
        """Where tests and fixtures may put what they like."""
        folder = self.path / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def of_test(self, nodeid: str, number: int) -> FolderOfTest:
        """The folder of one run of one test.

        Args:
            nodeid: Its node id, which may hold anything.
            number: How many tests the gang has run, so that the same test gets another folder when it runs again.
        """
        digest = hashlib.blake2b(nodeid.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        words = re.sub(r"\W+", "-", nodeid.rpartition("::")[2], flags=re.ASCII)[:_NAME_LIMIT].strip("-")
        return FolderOfTest(self.path / "tests" / "-".join(filter(None, (str(number), words, digest))))


def remove(folder: FolderOfTest) -> None:
    """Remove what a test has left; what resists stays, as the job's folder goes with the job."""
    shutil.rmtree(folder.path, ignore_errors=True)
