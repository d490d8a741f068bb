"""Checks out commits of the user's repository in a temporary worktree."""

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

_HOOK_VARIABLES: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""Variables that git sets for hooks: a bisection in a hook still uses the repository of the current folder."""

_NO_HOOKS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")


@dataclass(frozen=True)
class GitHistory:
    """A repository, or a worktree of it."""

    top: Path  # the top-level folder

    @classmethod
    def around(cls, folder: Path) -> "GitHistory":
        """The repository that a folder is in.

        Raises:
            UsageError: There is none.
        """
        try:
            return cls(Path(cls(folder).git("rev-parse", "--show-toplevel")))
        except UsageError as error:
            msg = f"{folder} is not in a readable git repository."
            raise UsageError(msg, why=error.why, remedy="Run in the project's repository, or drop --git.") from error

    def git(self, *arguments: str) -> str:
        """Run git, and return its standard output.

        Raises:
            UsageError: git failed, or is not installed.
        """
        command = ["git", *_NO_HOOKS, "-C", str(self.top), *arguments]
        variables = {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
        try:
            # In a separate session, so that Ctrl-C interrupts only allranks, and git completes the worktree.
            done = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False, start_new_session=True
            )
        except OSError as error:
            msg = "git cannot be run."
            raise UsageError(msg, why=f"{error}.", remedy="Install git, or drop --git.") from error
        if done.returncode:
            msg = f"git {arguments[0]} failed in {self.top}."
            raise UsageError(msg, why=next(iter(done.stderr.strip().splitlines()), "It printed no error."))
        return done.stdout.strip()

    def commit(self, name: str) -> str:
        """The full name of a commit.

        Raises:
            UsageError: There is no such commit.
        """
        try:
            return self.git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        except UsageError:
            msg = f"There is no commit {name!r} in {self.top}."
            raise UsageError(msg, remedy="Name commits, branches or tags: --git v1.2..HEAD") from None

    def between(self, good: Collection[str], bad: str) -> Sequence[str]:
        """The ancestors of `bad` that are not ancestors of a good commit; the best ones to test next come first."""
        output = self.git("rev-list", "--bisect-all", bad, *(f"^{commit}" for commit in good))
        return [line.split()[0] for line in output.splitlines()]

    def subject(self, commit: str) -> str:
        """The short name and the subject of a commit."""
        return self.git("show", "--no-patch", "--format=%h %s", commit)

    def check_out(self, commit: str) -> None:
        """Check out a commit in a temporary worktree, and remove all other files."""
        self.git("checkout", "--quiet", "--force", "--detach", commit)
        # Also ignored files: Python would use a stale __pycache__ for a file of the same age and size.
        self.git("clean", "--quiet", "-ffdx")

    @contextmanager
    def worktree(self, commit: str) -> Iterator["GitHistory"]:
        """A temporary worktree with the files of a commit; the user's checkout is not changed."""
        scratch = Path(tempfile.mkdtemp(prefix="allranks-bisect-")).resolve()
        tree = scratch / self.top.name
        try:
            self.git("worktree", "add", "--quiet", "--detach", str(tree), commit)
            yield GitHistory(tree)
        finally:
            with block_signals():
                with suppress(UsageError):  # it was never added
                    self.git("worktree", "remove", "--force", "--force", str(tree))
                shutil.rmtree(scratch, ignore_errors=True)
