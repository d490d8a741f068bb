"""Selects cells by values of axes (``--where``, nox's signatures), or by a cell's id or a prefix of it.

A selection that matches no cell is an error: for an unknown axis or value, with a suggestion; for an excluded cell,
with the rule that dropped it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from allranks.errors import UsageError, did_you_mean, listed, nearest
from allranks.matrix.axes import ALWAYS_NAMED, AXES, NO_TORCH, AxisValue, written_type
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Cell, Rule
from allranks.matrix.toml_file import location
from allranks.protocol.grouping import by_key

SESSION = "dist"
"""The name of the nox session whose parameters are a cell's axes."""

_ID = re.compile(
    r"(?P<backend>[a-zA-Z]\w*)(-w(?P<world_size>\d{1,10})(-g(?P<gpu_count>\d{1,10})(-(?P<init_method>[a-z]+)"
    r"(-n(?P<nodes>\d{1,10}))?(-t(?P<torch>\d[A-Za-z0-9.+]*))?)?)?)?",
    re.ASCII,
)
"""An id or a prefix."""

Selection = Mapping[str, tuple[AxisValue, ...]]
"""The selected values of each axis; axes without an entry are not restricted."""

LIST_CELLS = "`allranks plan` lists the cells."
FORMS = f"Write backend=gloo,world_size=2, or {SESSION}(backend='gloo', world_size=2)."


@dataclass(frozen=True)
class Prefix:
    """The cells that have the same values on the first few axes."""

    signature: str  # as nox would write it: ``dist(backend='gloo', world_size=2)``
    values: Mapping[str, AxisValue]
    cells: tuple[Cell, ...]


def select(expansion: Expansion, *texts: str) -> tuple[Cell, ...]:
    """The cells that match all of these texts. If an axis is given several times, each of its values matches.

    Args:
        expansion: The expanded matrix.
        texts: Values of axes (``backend=nccl,world_size=2|4``), the signature of a nox session
            (``dist(backend='nccl', world_size=4)``), or a cell's id or a prefix (``nccl-w4``). An id without a number
            of nodes selects a cell on one node.
    """
    selection: dict[str, tuple[AxisValue, ...]] = {}
    for text in texts:
        for axis, value in _values(expansion, text.strip()):
            selection[axis] = (*selection.get(axis, ()), value)
    for axis, values in selection.items():
        _check_values(expansion, axis, values)
    cells = tuple(cell for cell in expansion.cells if _matches(cell, selection))
    if not cells:
        raise _no_match(expansion, selection)
    return cells


def _values(expansion: Expansion, text: str) -> Iterable[tuple[str, AxisValue]]:
    """The axes and values in a text."""
    if text.startswith(f"{SESSION}(") and text.endswith(")"):
        text = text[len(SESSION) + 1 : -1].strip()
        return _terms(text) if text else ()
    if "=" in text or "(" in text:
        return _terms(text)
    if text == SESSION:
        return ()
    if text in AXES:
        raise UsageError(what=f"The selection has no value for {text}.", remedy=FORMS)
    parts = _ID.fullmatch(text)
    known = expansion.matrix.axes["backend"]
    if parts is None or (parts["world_size"] is None and parts["backend"] not in known):
        close = nearest(text, (*(cell.id for cell in expansion.cells[:10_000]), *map(str, known)))
        remedy = f"Did you mean {close}?" if close else f"An id looks like {expansion.cells[0].id}."
        raise UsageError(what=f"There is no cell {text!r}.", remedy=f"{remedy} {LIST_CELLS}")
    given = {axis: parts[axis] for axis in AXES if parts[axis]}
    if "init_method" in given:
        given.setdefault("nodes", "1")
    return ((axis, written_type(axis)(value)) for axis, value in given.items())


def _terms(text: str) -> Iterator[tuple[str, AxisValue]]:
    """Parse ``axis=value,axis=value|value``."""
    for term in text.split(","):
        axis, _, values = term.partition("=")
        yield from (_value(term, axis.strip(), value.strip()) for value in values.split("|"))


def _value(term: str, axis: str, value: str) -> tuple[str, AxisValue]:
    """Parse the value of an axis, with or without quotes."""
    value = value[1:-1] if re.fullmatch(r"'[^']*'|\"[^\"]*\"", value) else value
    if not axis.isidentifier() or not value:
        raise UsageError(what=f"The selection cannot be read at {term.strip()!r}.", remedy=FORMS)
    if axis not in AXES:
        raise UsageError(what=f"There is no axis {axis!r}.", remedy=did_you_mean(axis, AXES))
    if written_type(axis) is str:
        return axis, value
    if not re.fullmatch(r"\d{1,10}", value, re.ASCII):
        raise UsageError(what=f"{axis}={value} is not a whole number.", remedy=f"Write for example {axis}=2.")
    return axis, int(value)


def signature_axes(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The axes in the signatures of these cells; ``nodes`` and ``torch`` only if a cell needs them."""
    cells = tuple(cells)
    nodes = ("nodes",) if any(cell.nodes != 1 for cell in cells) else ()
    torch = ("torch",) if any(cell.torch for cell in cells) else ()
    return (*ALWAYS_NAMED, *nodes, *torch)


def signature(cell: Cell, axes: Sequence[str] = ALWAYS_NAMED) -> str:
    """A cell as a nox session: ``dist(backend='gloo', world_size=2, gpu_count=0, init_method='tcp')``."""
    return _written({axis: getattr(cell, axis) for axis in axes})


def prefixes(cells: Sequence[Cell]) -> tuple[Prefix, ...]:
    """Every proper prefix of the cells' signatures, shortest first, then in matrix order."""
    axes = signature_axes(cells)
    return tuple(prefix for length in range(1, len(axes)) for prefix in _prefixes(cells, axes[:length]))


def _prefixes(cells: Iterable[Cell], axes: Sequence[str]) -> Iterable[Prefix]:
    groups = by_key((tuple(getattr(cell, axis) for axis in axes), cell) for cell in cells)
    for values, members in groups.items():
        common = dict(zip(axes, values, strict=True))
        yield Prefix(_written(common), common, tuple(members))


def _written(values: Mapping[str, AxisValue]) -> str:
    return f"{SESSION}({', '.join(f'{axis}={value!r}' for axis, value in values.items())})"


def _check_values(expansion: Expansion, axis: str, values: Iterable[AxisValue]) -> None:
    known = expansion.matrix.axes[axis]
    if known == (NO_TORCH,):
        remedy = f'Remove it, or add {axis} = ["2.13.0", "2.14.1"] to [matrix].'
        raise UsageError(what=f"This matrix has no axis {axis}.", remedy=remedy)
    for value in values:
        if value not in known:
            why = f"Values of {axis}: {listed(known)}."
            close = nearest(value, map(str, known)) if isinstance(value, str) else None
            remedy = f"Did you mean {close!r}?" if close else LIST_CELLS
            raise UsageError(what=f"The matrix has no cell with {axis} {value!r}.", why=why, remedy=remedy)


def _matches(cell: Cell, selection: Selection) -> bool:
    return all(getattr(cell, axis) in values for axis, values in selection.items())


def _no_match(expansion: Expansion, selection: Selection) -> UsageError:
    """The error for a selection that matches only dropped cells, with the rules that dropped them."""
    rules = [rule for rule, cells in expansion.dropped.items() if any(_matches(cell, selection) for cell in cells)]
    why = " ".join(_described(expansion, rule) for rule in rules)
    remedy = "Select another cell (`allranks plan` lists them), or change [[matrix.exclude]]."
    return UsageError(f"The matrix excludes {_in_words(selection)}.", why=why, remedy=remedy)


def _in_words(selection: Selection) -> str:
    """The selection, as the object of a sentence."""
    if selection.keys() | {"torch"} == set(AXES) and all(len(values) == 1 for values in selection.values()):
        return f"the cell {Cell.at(selection.get(axis, (NO_TORCH,))[0] for axis in AXES).id}"
    return "the cells with " + ", ".join(f"{axis}={value}" for axis, values in selection.items() for value in values)


def _described(expansion: Expansion, rule: Rule) -> str:
    where = location(expansion.matrix.path, rule.line, "matrix.exclude")
    return f"{where}: {rule.when.source} (reason: {rule.reason})."
