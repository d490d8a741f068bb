"""``[[runners]]``: which CI machines take which cells, and whether they can run them."""

import re
from collections.abc import Iterable
from typing import Final

from allranks.errors import MatrixError, UsageError, shown
from allranks.matrix.axes import Known
from allranks.matrix.model import Cell, Matrix, RunnerRule
from allranks.matrix.toml_file import Table, place

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
_LONGEST_NAME: Final = 256


def read_runner(table: Table, known: Known) -> RunnerRule:
    """Reads one ``[[runners]]``.

    Raises:
        MatrixError: A key is wrong, or two of them contradict each other.
    """
    table.only("when", "labels", "group", "gpus", "cores", "hosted", "engine", "minutes")
    labels = _labels(table)
    hosted = _hosted(table, labels)
    return RunnerRule(
        when=table.optional_condition(known),
        labels=labels,
        group=_name(table, "group", table.text("group", RunnerRule.group, "gpu-machines")),
        gpus=_gpus(table, labels, hosted=hosted),
        cores=table.whole("cores", RunnerRule.cores, at_least=1),
        hosted=hosted,
        engine=table.text("engine", None, "docker"),
        minutes=_minutes(table, hosted=hosted),
        line=table.line,
    )


def _labels(table: Table) -> tuple[str, ...]:
    if "labels" not in table and "group" not in table:
        table.needs("labels", 'labels = ["self-hosted", "linux", "gpu-4"]')
    if table.values.get("labels") == []:
        remedy = 'Write for example labels = ["self-hosted", "linux"], or leave the key out where group says enough.'
        raise table.error(name="labels", what="the list is empty", remedy=remedy)
    labels = table.texts("labels")
    lowered = [label.lower() for label in labels]
    for label in labels:
        if lowered.count(label.lower()) > 1:
            raise table.error(
                name="labels", what=f"{shown(label)} is there twice", remedy="Write each label once, in whatever case."
            )
    return tuple(_name(table, "labels", label) for label in labels)


def _name(table: Table, key: str, name: str) -> str:
    """A name that GitHub accepts: on one line, and not too long."""
    if len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip() or "," in name:
        remedy = f"Write it as in the settings of your runners: one line of up to {_LONGEST_NAME} characters, no comma."
        raise table.error(key, f"{shown(name)} cannot be the name of a label or a group", remedy)
    return name


def _hosted(table: Table, labels: tuple[str, ...]) -> bool:
    """True if the file says so, or else if the labels do: GitHub's own machines have labels like ubuntu-24.04."""
    is_own = any(label.lower() == _SELF_HOSTED for label in labels)
    like_github = any(_HOSTED_LABEL.fullmatch(label.lower()) for label in labels)
    hosted = table.flag("hosted", like_github and not is_own)
    if hosted and is_own:
        what = f"a machine with the label {shown(_SELF_HOSTED)} is not one of GitHub's"
        raise table.error(name="hosted", what=what, remedy="Remove hosted, or that label.")
    return hosted


def _gpus(table: Table, labels: tuple[str, ...], *, hosted: bool) -> int:
    gpus = table.whole("gpus", RunnerRule.gpus, at_least=0)
    if gpus and hosted and any(_STANDARD_LABEL.fullmatch(label.lower()) for label in labels):
        remedy = (
            "Remove gpus, name a larger runner with GPUs, or write hosted = false if this is a machine of your own."
        )
        what = f"GitHub's standard machines have no GPUs, and this one should have {gpus}"
        raise table.error(name="gpus", what=what, remedy=remedy)
    return gpus


def _minutes(table: Table, *, hosted: bool) -> int | None:
    minutes = table.whole("minutes", RunnerRule.minutes, at_least=1)
    most = HOSTED_MINUTES if hosted else OWN_MINUTES
    if minutes is not None and minutes > most:
        whose = "on GitHub's machines" if hosted else "on machines of your own"
        remedy = f"Write a whole number from 1 to {most}."
        raise table.error(name="minutes", what=f"{minutes} minutes are more than a job may take {whose}", remedy=remedy)
    return minutes


def check_runners(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Refuses a rule that sends a cell to machines that lack its GPUs.

    Raises:
        MatrixError: For the first cell of the first such rule.
    """
    for rule in matrix.runners:
        for cell in cells:
            if cell.matches(rule.when) and cell.gpu_count > rule.gpus:
                raise _lacks_gpus(matrix, rule, cell)
        cells = [cell for cell in cells if not cell.matches(rule.when)]


def _lacks_gpus(matrix: Matrix, rule: RunnerRule, cell: Cell) -> MatrixError:
    where = place(matrix.path, rule.line, "runners")
    what = f"{where}: the cell {cell.id} needs {cell.gpu_count} GPUs, and goes to machines ({rule.runs_on}) with"
    if rule.hosted and not rule.gpus:
        remedy = 'Add `gpu_count == 0` to its when, and a rule of machines with GPUs: labels = ["self-hosted", …].'
        return MatrixError(f"{what} none.", why="GitHub's standard machines have no GPUs.", remedy=remedy)
    remedy = f"Say how many they have (gpus = {cell.gpu_count}), or add `gpu_count <= {rule.gpus}` to the rule's when."
    return MatrixError(f"{what} {rule.gpus or 'none'}.", why="All of its tests would be skipped.", remedy=remedy)


def runner_for(matrix: Matrix, cell: Cell) -> RunnerRule:
    """The machines that run a cell: those of the first rule that holds.

    Raises:
        UsageError: No rule does.
    """
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
    return rule.minutes or (HOSTED_MINUTES if rule.hosted else OWN_MINUTES)
