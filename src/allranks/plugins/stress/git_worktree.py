"""Commits of the user's repository, checked out one after the other in a worktree of our own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.errors import UsageError
from allranks.interruption import block_signals

_OF_OTHERS: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Variables that git sets for its hooks: a bisection in one is of this folder's repository all the same."""

_NO_HOOKS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


@dataclass(frozen=True)
class GitHistory:
    """A repository, or a worktree of one.

    Attributes:
        top: Its top folder.
    """

    top: Path

    @classmethod
    def around(cls, folder: Path) -> "GitHistory":
        """The repository that a folder is in.

        Raises:
            UsageError: It is in none.
        """
        try:
            return cls(Path(cls(folder).git("rev-parse", "--show-toplevel")))
        except UsageError as error:
            msg = f"{folder} is in no git repository that can be read."
            raise UsageError(msg, why=error.why, remedy="Run it in the project's own, or leave --git out.") from error

    def git(self, *arguments: str) -> str:
        """Run git; its standard output.

        Raises:
            UsageError: git refused, or there is none.
        """
        command = ["git", *_NO_HOOKS, "-C", str(self.top), *arguments]
        variables = {name: value for name, value in os.environ.items() if name not in _OF_OTHERS}
        try:
            # A session of its own: Ctrl-C is for allranks alone, and git does not leave half a worktree.
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False, start_new_session=True
            )
        except OSError as error:
            msg = "git cannot be run."
            raise UsageError(msg, why=f"{error}.", remedy="Install git, or leave --git out.") from error
        if done.returncode:
            told = next(iter(done.stderr.strip().splitlines()), "it gave no reason")
            msg = f"git {arguments[0]} failed in {self.top}."
            raise UsageError(msg, why=told)
        return done.stdout.strip()

    def commit(self, name: str) -> str:
        """The full name of a commit.

        Raises:
            UsageError: There is none of this name.
        """
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except UsageError:
            msg = f"There is no commit {name!r} in {self.top}."
            raise UsageError(msg, remedy="Name commits, branches or tags: --git v1.2..HEAD") from None

    def between(self, good: Collection[str], bad: str) -> Sequence[str]:
        """The commits that a test of which would tell most, best first: those that led to `bad` and to no good one."""
        told = self.git("rev-list", "--bisect-all", bad, *(f"^{commit}" for commit in good))
        return [line.split()[0] for line in told.splitlines()]

    def subject(self, commit: str) -> str:
        """A commit in a line: its short name and its subject."""
        return self.git("show", "--no-patch", "--format=%h %s", commit)

    def check_out(self, commit: str) -> None:
        """Make the files of a worktree of ours those of a commit, and no others."""
        self.git("checkout", "--quiet", "--force", "--detach", commit)
        # With all that a test has left: a stale __pycache__ would be taken for that of a file as old and as long.
        self.git("clean", "--quiet", "-ffdx")

    @contextmanager
    def worktree(self, commit: str) -> Iterator["GitHistory"]:
        """A worktree with the files of a commit, removed at the end; the checkout of the user stays as it is."""
        scratch = Path(tempfile.mkdtemp(prefix="allranks-bisect-")).resolve()
        tree = scratch / self.top.name
        try:
            self.git("worktree", "add", "--quiet", "--detach", str(tree), commit)
            yield GitHistory(tree)
        finally:
            with block_signals():
                with suppress(UsageError):  # it was never made
                    self.git("worktree", "remove", "--force", "--force", str(tree))
                shutil.rmtree(scratch, ignore_errors=True)
