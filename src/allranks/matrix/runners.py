"""``[[runners]]``: which CI machines take which cells, and whether they can run them."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from allranks.errors import MatrixError, UsageError, shown
from allranks.matrix.model import Cell, Matrix, RunnerRule
from allranks.matrix.toml_file import Table, location

HOSTED_MINUTES: Final = 360
OWN_MINUTES: Final = 5 * 24 * 60
"""The time limit of a job: six hours on all of GitHub's machines; five days on self-hosted ones, where GitHub allows 35
(https://docs.github.com/actions/reference/limits)."""

FEWEST_CORES: Final = 4
CORES_OF_A_GPU: Final = 8
"""Cores if the file does not set them: GitHub's ubuntu-latest has four, and its larger runner with one T4 has four as
well; machines of one's own have eight or more per GPU."""

UBUNTU: Final = RunnerRule(labels=("ubuntu-latest",), hosted=True)
"""The machine for cells without GPUs if the file has no rule."""

_HOSTED_LABEL: Final = re.compile(r"(ubuntu|windows|macos)-(latest|\d+(\.\d+)?)(-[a-z0-9-]+)?")
_STANDARD_LABEL: Final = re.compile(r"(ubuntu|windows|macos)-(latest|\d+(\.\d+)?)(-arm)?")
"""Any other label of GitHub's is the name of a larger runner, which an organisation chooses and which may have GPUs."""

_SELF_HOSTED: Final = "self-hosted"


def checked_runner(table: Table, rule: RunnerRule) -> RunnerRule:
    """A rule as read from ``[[runners]]``, with what its labels say of the machine's owner."""
    labels = [label.lower() for label in rule.labels]
    is_own = _SELF_HOSTED in labels
    if "hosted" not in table.values:
        rule = replace(rule, hosted=not is_own and any(map(_HOSTED_LABEL.fullmatch, labels)))
    if rule.hosted and is_own:
        what = f"a machine with the label {shown(_SELF_HOSTED)} is not one of GitHub's"
        table.reject("hosted", what, "Remove hosted, or that label.")
    if rule.gpus and rule.hosted and any(map(_STANDARD_LABEL.fullmatch, labels)):
        what = f"GitHub's standard machines have no GPUs, and this one should have {rule.gpus}"
        remedy = "Remove gpus, name a larger runner with GPUs, or write hosted = false for a machine of your own."
        table.reject("gpus", what, remedy)
    return rule


def check_runners(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Refuses a rule that sends a cell to machines that lack its GPUs."""
    for rule in matrix.runners:
        for cell in cells:
            if cell.matches(rule.when) and cell.gpu_count > rule.gpus:
                raise _lacks_gpus(matrix, rule, cell)
        cells = [cell for cell in cells if not cell.matches(rule.when)]


def _lacks_gpus(matrix: Matrix, rule: RunnerRule, cell: Cell) -> MatrixError:
    where = location(matrix.path, rule.line, "runners")
    what = f"{where}: the cell {cell.id} needs {cell.gpu_count} GPUs, and goes to machines ({rule.runs_on}) with"
    if rule.hosted and not rule.gpus:
        remedy = 'Add `gpu_count == 0` to its when, and a rule of machines with GPUs: labels = ["self-hosted", …].'
        return MatrixError(f"{what} none.", why="GitHub's standard machines have no GPUs.", remedy=remedy)
    remedy = f"Say how many they have (gpus = {cell.gpu_count}), or add `gpu_count <= {rule.gpus}` to the rule's when."
    return MatrixError(f"{what} {rule.gpus or 'none'}.", why="All of its tests would be skipped.", remedy=remedy)


def runner_for(matrix: Matrix, cell: Cell) -> RunnerRule:
    """The machines that run a cell: those of the first rule that holds."""
    rule = next((rule for rule in matrix.runners if cell.matches(rule.when)), None)
    if rule is None and (matrix.runners or cell.gpu_count):
        raise _no_machine(matrix, cell)
    return rule or UBUNTU


def _no_machine(matrix: Matrix, cell: Cell) -> UsageError:
    if cell.gpu_count:
        needs = f'when = "gpu_count > 0"  labels = ["self-hosted", "linux", "gpu"]  gpus = {cell.gpu_count}'
    else:
        needs = 'labels = ["ubuntu-latest"]'
    what = f"No CI machine takes the cell {cell.id}."
    why = "The matrix file has no rule for runners, and GitHub's standard machines have no GPUs."
    if matrix.runners:
        why = f"None of the {len(matrix.runners)} rules for runners holds there."
    return UsageError(what, why=why, remedy=f"Add to {matrix.path.name}:  [[runners]]  {needs}")


def cores_of(rule: RunnerRule) -> int:
    """The CPU cores of a rule's machines; a guess if the file does not set them."""
    return rule.cores or max(FEWEST_CORES, (FEWEST_CORES if rule.hosted else CORES_OF_A_GPU) * rule.gpus)


def minutes_of(rule: RunnerRule) -> int:
    """The time limit, in minutes, of a CI job on a rule's machines."""
    return HOSTED_MINUTES if rule.hosted else OWN_MINUTES
