"""``allranks bisect --git``: finds the commit that makes a test fail, with the requested confidence."""

import json
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from allranks.cli.printing import say, say_json, warn
from allranks.errors import EngineError, ExitCode, UsageError, counted
from allranks.interruption import interruptible
from allranks.matrix.model import Job, Matrix
from allranks.plugins.stress.commit_search import suspects
from allranks.plugins.stress.git_worktree import GitHistory
from allranks.plugins.stress.repeated_cells import ENOUGH, JobTally, Repeater, repeat_until
from allranks.protocol.rates import chance_of_passes, needed, percent, unseen_rate
from allranks.protocol.xml_text import clipped

_FEWEST: Final = 3
"""The fewest repetitions, all passed, after which a commit counts as good: rates vary with the load of the machine."""

_SHOWN: Final = 10

_IMPORT_FOLDERS: Final = """
import importlib.metadata as metadata, json, sys
urls = (json.loads(package.read_text("direct_url.json") or "{}") for package in metadata.distributions())
editable = (url["url"].removeprefix("file://") for url in urls if url.get("dir_info", {}).get("editable"))
print(json.dumps([sys.prefix, *filter(None, sys.path), *editable]))
"""
"""Prints an interpreter's prefix and the folders that it imports from; editable installs may not be on its path."""


@dataclass(kw_only=True)
class Commits:
    """The results of the test at commits."""

    repository: GitHistory  # the user's
    tree: GitHistory  # the worktree in which the test runs
    repeater: Repeater  # repeats the test there
    job: Job
    tallies: dict[str, JobTally] = field(default_factory=dict)  # by the full name of each commit that was tried
    risk: float = 0.0  # the probability that a commit counted as good so far is bad

    def measure(self, commit: str) -> JobTally:
        """Repeat the test at the bad commit until its rate is known.

        Raises:
            EngineError: It could not be run, due to the infrastructure.
            UsageError: It could not be run, or it never failed.
        """
        found = self._at(commit)
        code = repeat_until(lambda: found.bad >= ENOUGH, self.repeater, [found])
        self._report_tally(commit)
        if found.bad:
            return found
        where = f"the bad commit ({self.repository.subject(commit)})"
        if not found.runs:
            kind = EngineError if code is ExitCode.INFRASTRUCTURE else UsageError
            msg = f"The test could not be run at {where}."
            raise kind(msg, why=f"{found.why}.")
        bound = 100 * unseen_rate(found.runs, 1 - self.repeater.options.confidence)
        msg = f"The test never failed at {where}, in {counted(found.runs, 'repetition')}."
        remedy = "Repeat it more often (--most), delay ranks (--skew heavy), or name a commit at which it fails."
        raise UsageError(msg, why=f"A rate of {bound:.2g} % or more would have shown.", remedy=remedy)

    def is_bad(self, commit: str, rate: JobTally, risk: float) -> bool | None:
        """Whether the test fails at a commit; None if it cannot be run there.

        Args:
            commit: Its full name.
            rate: The results at the bad commit.
            risk: The highest acceptable probability that a bad commit counts as good.
        """
        found = self._at(commit)
        passes = max(_FEWEST, needed(rate.bad, rate.runs, risk))
        self.repeater.repeat([found], min(passes, self.repeater.options.most), until_failure=True)
        self._report_tally(commit)
        if not found.runs:
            return None
        if not found.bad:
            self.risk += chance_of_passes(rate.bad, rate.runs, found.runs)
        return bool(found.bad)

    def _at(self, commit: str) -> JobTally:
        self.tree.check_out(commit)
        return self.tallies.setdefault(commit, JobTally(job=self.job))

    def _report_tally(self, commit: str) -> None:
        found = self.tallies[commit]
        result = f"{found.bad:,} of {found.runs:,} failed" if found.runs else f"skipped: {found.why}"
        subject = clipped(self.repository.subject(commit), 72)
        (warn if self.repeater.options.json else say)(f"  {subject:<72} {result}")


def find_commit(repeater: Repeater, jobs: Sequence[Job], text: str) -> ExitCode:
    """Find the first bad commit in a range ``GOOD..BAD``, and print it.

    Raises:
        UsageError: The range is invalid, its ends are not good and bad, or several cells are selected.
    """
    options, matrix = repeater.options, repeater.expansion.matrix
    if len(jobs) > 1:
        msg = f"{len(jobs)} cells are selected, but --git repeats the test in only one."
        raise UsageError(msg, remedy=f"Name the one in which it fails: allranks bisect {jobs[0].cell.id} ...")
    repository = GitHistory.around(matrix.root)
    good, bad = _ends(repository, text)
    count = len(repository.between([good], bad))
    if options.engine != "docker":
        _reject_editable_install(matrix, jobs[0], repository)
    with interruptible(), repository.worktree(bad) as tree, _worktree_python_path(repository.top, tree.top):
        moved = _moved(matrix, repository.top, tree.top)
        in_tree = replace(repeater, expansion=replace(repeater.expansion, matrix=moved))
        commits = Commits(repository=repository, tree=tree, repeater=in_tree, job=jobs[0])
        rate = commits.measure(bad)
        risk = (1 - options.confidence) / (2 + math.ceil(math.log2(count)))
        _check_good(commits, good, rate, risk)
        found = suspects(good, bad, repository.between, lambda commit: commits.is_bad(commit, rate, risk))
    return _answer(commits, rate, found)


def _ends(repository: GitHistory, text: str) -> tuple[str, str]:
    good, dots, bad = text.partition("..")
    if not (good and dots) or bad.startswith("."):
        msg = f"{text!r} is not a range of commits."
        raise UsageError(msg, remedy="Write GOOD..BAD: --git v1.2..HEAD")
    ends = repository.commit(good), repository.commit(bad or "HEAD")
    if ends[0] == ends[1] or ends[0] not in repository.git("merge-base", "--all", *ends).split():
        msg = f"There are no commits to search between {good} and {bad or 'HEAD'}."
        why = "The good commit must be an ancestor of the bad one."
        raise UsageError(msg, why=why, remedy="Name another good commit; see `git merge-base`.")
    return ends


def _check_good(commits: Commits, good: str, rate: JobTally, risk: float) -> None:
    is_bad = commits.is_bad(good, rate, risk)
    if is_bad is False:
        return
    found, where = commits.tallies[good], f"the good commit ({commits.repository.subject(good)})"
    if is_bad:
        msg = f"The test also fails at {where}: {found.bad:,} of {found.runs:,} times."
        why = "So no commit after it can have introduced the failure."
        raise UsageError(msg, why=why, remedy="Name an older good commit.")
    remedy = "Name a commit that has the test and can run it."
    msg = f"The test could not be run at {where}."
    raise UsageError(msg, why=f"{found.why}.", remedy=remedy)


def _reject_editable_install(matrix: Matrix, job: Job, repository: GitHistory) -> None:
    """Reject an interpreter that imports the project from the user's checkout: every commit would run the same code."""
    python = _absolute(matrix)
    if python is None or job.image.project is not None:
        return
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [python, "-c", _IMPORT_FOLDERS], env=variables, capture_output=True, text=True, check=True, cwd="/"
        )
        prefix, *folders = [Path(folder).resolve() for folder in json.loads(done.stdout)]
    except (OSError, ValueError, subprocess.SubprocessError):
        return  # the run itself gives a better message
    top = repository.top
    for folder in folders:
        is_in_prefix = prefix.is_relative_to(top) and folder.is_relative_to(prefix)
        if folder.is_relative_to(top) and not is_in_prefix:
            msg = f"{python} imports from your checkout ({folder}), whichever commit is tested."
            remedy = 'Set the project in the matrix file, to install it for each commit: [images.NAME]  project = "."'
            raise UsageError(msg, why="It has an editable install.", remedy=remedy)


def _absolute(matrix: Matrix) -> str | None:
    """The interpreter of the matrix file, as a path outside of the worktree."""
    python = matrix.process.python
    return str(matrix.root.resolve() / python) if python and "/" in python else python


def _moved(matrix: Matrix, top: Path, tree: Path) -> Matrix:
    """The same matrix for the files of a worktree."""
    path = tree / matrix.root.resolve().relative_to(top) / matrix.path.name
    return replace(matrix, path=path, process=replace(matrix.process, python=_absolute(matrix)))


@contextmanager
def _worktree_python_path(top: Path, tree: Path) -> Iterator[None]:
    """In ``PYTHONPATH``, replace folders of the checkout by those of the worktree, if they exist there."""
    before = os.environ.get("PYTHONPATH")
    if before is None:
        yield
        return
    folders = [Path(folder).resolve() for folder in before.split(os.pathsep) if folder]
    moved = [tree / folder.relative_to(top) if folder.is_relative_to(top) else folder for folder in folders]
    existing = (new if new.exists() else folder for folder, new in zip(folders, moved, strict=True))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, existing))
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


def _answer(commits: Commits, rate: JobTally, found: Sequence[str]) -> ExitCode:
    subject, tallies = commits.repository.subject, commits.tallies.values()
    sure, nodeid = percent(1 - commits.risk), next(tally.nodeid for tally in tallies if tally.nodeid)
    if len(found) == 1:
        code, passes = ExitCode.OK, sum(tally.runs for tally in tallies if not tally.bad)
        answer = (
            f"starts to fail with {subject(found[0])}: it failed {rate.bad:,} of {rate.runs:,} times at BAD, "
            f"and none of {passes:,} times at commits before this one, confidence {sure}"
        )
    else:
        code = ExitCode.TESTS_FAILED
        shown = "; ".join(map(subject, found[:_SHOWN]))
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        answer = f"starts to fail with one of {len(found)} commits, some of which cannot run it: {shown}{more}"
    if commits.repeater.options.json:
        say_json(
            exit_code=int(code),
            test=nodeid,
            answer=answer,
            suspects=list(found),
            confidence=round(1 - commits.risk, 6),
            commits=[
                {"commit": commit, "subject": subject(commit), "bad": t.bad, "runs": t.runs, "why": t.why or None}
                for commit, t in commits.tallies.items()
            ],
        )
        return code
    say(f"{nodeid} {answer}")
    say(f"exit code {code:d}: {'only skipped commits are left' if code else 'the commit is found'}")
    return code
