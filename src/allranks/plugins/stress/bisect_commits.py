"""``allranks bisect --git``: the commit after which a test fails, as surely as was asked."""

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
from allranks.errors import EngineError, ExitCode, UsageError
from allranks.interruption import interruptible
from allranks.matrix.model import Job, Matrix
from allranks.plugins.stress.commit_search import suspects
from allranks.plugins.stress.git_worktree import GitHistory
from allranks.plugins.stress.repeated_cells import ENOUGH, Counted, Trial, repeat_until
from allranks.protocol.rates import missed, needed, percent, unseen_rate
from allranks.protocol.xml_text import clipped

_FEWEST: Final = 3
"""Passes of a good commit at least: a machine has bad moments."""

_SHOWN: Final = 10

_PLACES: Final = """
import importlib.metadata as metadata, json, sys
installed = (json.loads(each.read_text("direct_url.json") or "{}") for each in metadata.distributions())
urls = (each["url"].removeprefix("file://") for each in installed if each.get("dir_info", {}).get("editable"))
print(json.dumps([sys.prefix, *filter(None, sys.path), *urls]))
"""
"""Prints an interpreter's own folder, and those that it imports from: an editable install need not be on its path."""


@dataclass(kw_only=True)
class Commits:
    """What the test has come to at commits.

    Attributes:
        repository: The user's.
        tree: The worktree in which the test runs.
        trial: What repeats it there.
        seen: Each commit that was tried, by its full name.
        risk: The probability so far that a commit that counts as good is bad.
    """

    repository: GitHistory
    tree: GitHistory
    trial: Trial
    job: Job
    seen: dict[str, Counted] = field(default_factory=dict)
    risk: float = 0.0

    def measure(self, commit: str) -> Counted:
        """Repeat the test at the bad commit until its rate is known.

        Raises:
            EngineError: It could not be run, for the infrastructure.
            UsageError: It could not be run, or it never failed.
        """
        found = self._at(commit)
        code = repeat_until(lambda: found.bad >= ENOUGH, self.trial, [found])
        self._tell(commit)
        if found.bad:
            return found
        where = f"the bad commit ({self.repository.subject(commit)})"
        if not found.runs:
            kind = EngineError if code is ExitCode.INFRASTRUCTURE else UsageError
            msg = f"The test could not be run at {where}."
            raise kind(msg, why=f"{found.why}.")
        bound = 100 * unseen_rate(found.runs, 1 - self.trial.options.confidence)
        msg = f"The test never failed at {where}, in {found.runs:,} repetitions."
        remedy = "Repeat it more often (--most), delay ranks (--skew heavy), or name a commit at which it fails."
        raise UsageError(msg, why=f"A rate of {bound:.2g} % or more would have shown.", remedy=remedy)

    def is_bad(self, commit: str, rate: Counted, risk: float) -> bool | None:
        """Whether the test fails at a commit; None if it cannot be run there.

        Args:
            commit: Its full name.
            rate: How often it fails at the bad one.
            risk: The highest probability that a bad commit counts as good.
        """
        found = self._at(commit)
        passes = max(_FEWEST, needed(rate.bad, rate.runs, risk))
        self.trial.repeat([found], min(passes, self.trial.options.most), until_failure=True)
        self._tell(commit)
        if not found.runs:
            return None
        if not found.bad:
            self.risk += missed(rate.bad, rate.runs, found.runs)
        return bool(found.bad)

    def _at(self, commit: str) -> Counted:
        self.tree.check_out(commit)
        return self.seen.setdefault(commit, Counted(job=self.job))

    def _tell(self, commit: str) -> None:
        found = self.seen[commit]
        what = f"{found.bad:,} of {found.runs:,} failed" if found.runs else f"skipped: {found.why}"
        (warn if self.trial.options.json else say)(f"  {clipped(self.repository.subject(commit), 72):<72} {what}")


def find_commit(trial: Trial, jobs: Sequence[Job], text: str) -> ExitCode:
    """Find the first bad one of some commits, ``GOOD..BAD``, and say it.

    Raises:
        UsageError: The range is none, its commits are not good and bad, or several cells are selected.
    """
    options, matrix = trial.options, trial.expansion.matrix
    if len(jobs) > 1:
        msg = f"{len(jobs)} cells are selected, and --git repeats the test in one."
        raise UsageError(msg, remedy=f"Name the one in which it fails: allranks bisect {jobs[0].cell.id} ...")
    repository = GitHistory.around(matrix.root)
    good, bad = _ends(repository, text)
    count = len(repository.between([good], bad))
    if options.engine != "docker":
        _refuse_own_code(matrix, jobs[0], repository)
    with interruptible(), repository.worktree(bad) as tree, _own_path(repository.top, tree.top):
        moved = _moved(matrix, repository.top, tree.top)
        here = replace(trial, expansion=replace(trial.expansion, matrix=moved))
        commits = Commits(repository=repository, tree=tree, trial=here, job=jobs[0])
        rate = commits.measure(bad)
        risk = (1 - options.confidence) / (2 + math.ceil(math.log2(count)))
        _check_good(commits, good, rate, risk)
        found = suspects(good, bad, repository.between, lambda commit: commits.is_bad(commit, rate, risk))
    return _answer(commits, rate, found)


def _ends(repository: GitHistory, text: str) -> tuple[str, str]:
    good, dots, bad = text.partition("..")
    if not (good and dots) or bad.startswith("."):
        msg = f"{text!r} is no range of commits."
        raise UsageError(msg, remedy="Write GOOD..BAD: --git v1.2..HEAD")
    ends = repository.commit(good), repository.commit(bad or "HEAD")
    if ends[0] == ends[1] or ends[0] not in repository.git("merge-base", "--all", *ends).split():
        msg = f"{good} does not lead to {bad or 'HEAD'}: there is no commit between them to find."
        raise UsageError(msg, remedy="Name a good commit among the ancestors of the bad one; see `git merge-base`.")
    return ends


def _check_good(commits: Commits, good: str, rate: Counted, risk: float) -> None:
    is_bad = commits.is_bad(good, rate, risk)
    if is_bad is False:
        return
    found, where = commits.seen[good], f"the good commit ({commits.repository.subject(good)})"
    if is_bad:
        msg = f"The test fails at {where}, too: {found.bad:,} of {found.runs:,} times."
        raise UsageError(msg, why="Nothing between both can have begun that.", remedy="Name an older good commit.")
    remedy = "Name a commit that has the test and can run it."
    msg = f"The test could not be run at {where}."
    raise UsageError(msg, why=f"{found.why}.", remedy=remedy)


def _refuse_own_code(matrix: Matrix, job: Job, repository: GitHistory) -> None:
    """Refuse an interpreter that imports the project from the user's checkout: every commit would run the same code.

    Raises:
        UsageError: It does.
    """
    python = _absolute(matrix)
    if python is None or job.image.project is not None:
        return
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [python, "-c", _PLACES], env=variables, capture_output=True, text=True, check=True, cwd="/"
        )
        prefix, *places = [Path(place).resolve() for place in json.loads(done.stdout)]
    except (OSError, ValueError, subprocess.SubprocessError):
        return  # the run itself says better what is wrong with it
    top = repository.top
    for place in places:
        is_its_own = prefix.is_relative_to(top) and place.is_relative_to(prefix)
        if place.is_relative_to(top) and not is_its_own:
            msg = f"{python} imports from your checkout ({place}), whichever commit is tested."
            remedy = (
                'Name the project in the matrix file, so that each commit has its own: [images.NAME]  project = "."'
            )
            raise UsageError(msg, why="An editable install leads there.", remedy=remedy)


def _absolute(matrix: Matrix) -> str | None:
    """The interpreter of the matrix file, which is not looked for in the worktree."""
    python = matrix.process.python
    return str(matrix.root.resolve() / python) if python and "/" in python else python


def _moved(matrix: Matrix, top: Path, tree: Path) -> Matrix:
    """The same matrix for the files of a worktree."""
    path = tree / matrix.root.resolve().relative_to(top) / matrix.path.name
    return replace(matrix, path=path, process=replace(matrix.process, python=_absolute(matrix)))


@contextmanager
def _own_path(top: Path, tree: Path) -> Iterator[None]:
    """Let what ``PYTHONPATH`` has of the checkout be that of the worktree, as far as it is committed."""
    before = os.environ.get("PYTHONPATH")
    if before is None:
        yield
        return
    places = [Path(place).resolve() for place in before.split(os.pathsep) if place]
    moved = [tree / place.relative_to(top) if place.is_relative_to(top) else place for place in places]
    own = (new if new.exists() else place for place, new in zip(places, moved, strict=True))
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, own))
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before


def _answer(commits: Commits, rate: Counted, found: Sequence[str]) -> ExitCode:
    options, subject = commits.trial.options, commits.repository.subject
    sure, nodeid = percent(1 - commits.risk), next(each.nodeid for each in commits.seen.values() if each.nodeid)
    if len(found) == 1:
        code, passes = ExitCode.OK, sum(each.runs for each in commits.seen.values() if not each.bad)
        words = (
            f"begins to fail with {subject(found[0])}: it failed {rate.bad:,} of {rate.runs:,} times at BAD, "
            f"and none of {passes:,} times at commits before this one, confidence {sure}"
        )
    else:
        code = ExitCode.TESTS_FAILED
        told = "; ".join(map(subject, found[:_SHOWN]))
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        words = f"begins to fail with one of {len(found)} commits, of which the others cannot run it: {told}{more}"
    if options.json:
        tried = [
            {"commit": commit, "subject": subject(commit), "bad": e.bad, "runs": e.runs, "why": e.why or None}
            for commit, e in commits.seen.items()
        ]
        confidence = round(1 - commits.risk, 6)
        say_json(
            exit_code=int(code), test=nodeid, answer=words, suspects=list(found), confidence=confidence, commits=tried
        )
        return code
    say(f"{nodeid} {words}")
    say(f"exit code {code:d}: {'only skipped commits are left' if code else 'the commit is found'}")
    return code
