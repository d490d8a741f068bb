"""Finds the CI machines for each cell (``[[runners]]``), and checks that they can run it."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from allranks.errors import MatrixError, UsageError, counted, shown
from allranks.matrix.model import Cell, Matrix, RunnerRule
from allranks.matrix.toml_file import Table, location

HOSTED_MINUTES: Final = 360
OWN_MINUTES: Final = 5 * 24 * 60
"""Time limits of a job: six hours on GitHub's machines; five days on self-hosted ones, for which GitHub allows 35
(https://docs.github.com/actions/reference/limits)."""

FEWEST_CORES: Final = 4
CORES_OF_A_GPU: Final = 8
"""Default numbers of cores: GitHub's ubuntu-latest and its runner with one T4 have four; self-hosted machines usually
have at least eight per GPU."""

UBUNTU: Final = RunnerRule(labels=("ubuntu-latest",), hosted=True)
"""The default machine for cells without GPUs."""

_HOSTED_LABEL: Final = re.compile(r"(ubuntu|windows|macos)-(latest|\d+(\.\d+)?)(-[a-z0-9-]+)?")
_STANDARD_LABEL: Final = re.compile(r"(ubuntu|windows|macos)-(latest|\d+(\.\d+)?)(-arm)?")
"""Other labels of GitHub's machines are names of larger runners, which may have GPUs."""

_SELF_HOSTED: Final = "self-hosted"


def checked_runner(table: Table, rule: RunnerRule) -> RunnerRule:
    """Check a rule, and derive from its labels whether GitHub owns the machine."""
    labels = [label.lower() for label in rule.labels]
    is_self_hosted = _SELF_HOSTED in labels
    if "hosted" not in table.values:
        rule = replace(rule, hosted=not is_self_hosted and any(map(_HOSTED_LABEL.fullmatch, labels)))
    if rule.hosted and is_self_hosted:
        what = f"a machine with the label {shown(_SELF_HOSTED)} is not one of GitHub's"
        table.reject("hosted", what, "Remove hosted, or that label.")
    if rule.gpus and rule.hosted and any(map(_STANDARD_LABEL.fullmatch, labels)):
        what = f"GitHub's standard machines have no GPUs, but gpus is {rule.gpus}"
        remedy = "Remove gpus, use a larger runner with GPUs, or set hosted = false for a machine of your own."
        table.reject("gpus", what, remedy)
    return rule


def check_runners(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Reject a rule that sends a cell to machines without enough GPUs."""
    for rule in matrix.runners:
        for cell in cells:
            if cell.matches(rule.when) and cell.gpu_count > rule.gpus:
                raise _lacks_gpus(matrix, rule, cell)
        cells = [cell for cell in cells if not cell.matches(rule.when)]


def _lacks_gpus(matrix: Matrix, rule: RunnerRule, cell: Cell) -> MatrixError:
    where = location(matrix.path, rule.line, "runners")
    what = f"{where}: the cell {cell.id} needs {counted(cell.gpu_count, 'GPU')}, but its machines ({rule.runs_on}) have"
    if rule.hosted and not rule.gpus:
        remedy = 'Add `gpu_count == 0` to its `when`, and a rule for machines with GPUs: labels = ["self-hosted", …].'
        return MatrixError(f"{what} none.", why="GitHub's standard machines have no GPUs.", remedy=remedy)
    remedy = f"Set their number (gpus = {cell.gpu_count}), or add `gpu_count <= {rule.gpus}` to the rule's when."
    return MatrixError(f"{what} {rule.gpus or 'none'}.", why="All of its tests would be skipped.", remedy=remedy)


def runner_for(matrix: Matrix, cell: Cell) -> RunnerRule:
    """The first rule that matches a cell."""
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
        why = "No [[runners]] rule matches it."
    return UsageError(what, why=why, remedy=f"Add to {matrix.path.name}:  [[runners]]  {needs}")


def cores_of(rule: RunnerRule) -> int:
    """The CPU cores of a rule's machines; an estimate if the file does not set them."""
    return rule.cores or max(FEWEST_CORES, (FEWEST_CORES if rule.hosted else CORES_OF_A_GPU) * rule.gpus)


def minutes_of(rule: RunnerRule) -> int:
    """The time limit, in minutes, of a CI job on a rule's machines."""
    return HOSTED_MINUTES if rule.hosted else OWN_MINUTES
