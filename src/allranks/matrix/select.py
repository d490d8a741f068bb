"""Picks cells: by ``--where``, by a cell's id or its beginning, and by the text of a nox signature.

A selection that matches no cell is an error with its reason: for an unknown axis or value, the one that may have
been meant; for an excluded cell, the rule that dropped it.
"""

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from allranks.errors import UsageError, did_you_mean, listed, nearest
from allranks.matrix.axes import ALWAYS_NAMED, AXES, NO_TORCH, AxisValue, written_type
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Cell, Rule
from allranks.matrix.toml_file import place

SESSION = "dist"
"""The name of the nox session whose parameters are a cell's axes."""

_CELL_ID = re.compile(
    r"(\w+)-w(\d{1,10})-g(\d{1,10})-([a-z]+)(?:-n(\d{1,10}))?(?:-t(?P<torch>\d[A-Za-z0-9.+]*))?", re.ASCII
)

_PREFIX_OF_ID = re.compile(r"(\w+)(?:-w(\d{1,10})(?:-g(\d{1,10})(?:-([a-z]+)(?:-n(\d{1,10}))?)?)?)?", re.ASCII)

Wanted = Mapping[str, tuple[AxisValue, ...]]
"""The requested values, by axis; an absent axis may have any."""

WHERE_FORM = "Write --where backend=nccl,world_size=4; several values of one axis are backend=gloo|nccl."
LIST_CELLS = "`allranks plan` lists the cells."
SIGNATURE_FORM = f"""Write {SESSION}(backend='gloo', world_size=2)."""


@dataclass(frozen=True)
class Prefix:
    """The cells that agree on the first few axes."""

    signature: str  # as nox would write it: ``dist(backend='gloo', world_size=2)``
    values: Mapping[str, AxisValue]
    cells: tuple[Cell, ...]


def select(expansion: Expansion, text: str) -> tuple[Cell, ...]:
    """The cells that a text names, in any of the four forms: signature, values, id, beginning of ids.

    Raises:
        UsageError: It names no cell.
    """
    if "(" in text or text.strip() == SESSION:
        return select_signature(expansion, text)
    if "=" in text:
        return select_where(expansion, text)
    return select_prefix(expansion, text) or (select_id(expansion, text),)


def select_where(expansion: Expansion, *texts: str) -> tuple[Cell, ...]:
    """The cells that have the requested values: ``backend=nccl,world_size=2|4``.

    An axis that occurs more than once, in one text or in several, may have any of the values given for it.

    Raises:
        UsageError: A text cannot be read, an axis or a value is unknown, or no cell is left.
    """
    wanted: dict[str, tuple[AxisValue, ...]] = {}
    for term in (term for text in texts for term in text.split(",")):
        axis, values = _term(term)
        wanted[axis] = (*wanted.get(axis, ()), *values)
    return _cells(expansion, wanted)


def select_signature(expansion: Expansion, text: str) -> tuple[Cell, ...]:
    """The cells under a nox signature; its axes may be in any order, and any of them may be absent.

    Raises:
        UsageError: The text is no signature of :data:`SESSION`, or names no cell.
    """
    return _cells(expansion, _arguments(text))


def select_id(expansion: Expansion, cell_id: str) -> Cell:
    """The cell with this id, such as ``nccl-w4-g4-env``.

    Raises:
        UsageError: There is no such cell.
    """
    parts = _CELL_ID.fullmatch(cell_id.strip())
    if not parts or bool(parts["torch"]) is _has_no_torch(expansion):
        ids = (cell.id for cell in expansion.cells[:10_000])
        close = nearest(cell_id, (*ids, *map(str, _known(expansion, "backend"))))
        remedy = f"Did you mean {close}?" if close else f"An id looks like {expansion.cells[0].id}."
        raise UsageError(what=f"There is no cell {cell_id!r}.", remedy=f"{remedy} `allranks plan` lists them.")
    backend, world_size, gpu_count, init_method, nodes, torch = parts.groups()
    values = (backend, int(world_size), int(gpu_count), init_method, int(nodes or 1), torch or NO_TORCH)
    return _cells(expansion, {axis: (value,) for axis, value in zip(AXES, values, strict=True)})[0]


def select_prefix(expansion: Expansion, text: str) -> tuple[Cell, ...]:
    """The cells whose ids begin with these parts: ``gloo-w2`` are all gloo cells of world size 2.

    An id without ``-n`` is that of a cell on one node, with or without its version of torch.

    Returns:
        Nothing if the text is a whole id, or cannot be the beginning of one.

    Raises:
        UsageError: A value is unknown, or no cell is left.
    """
    parts = _PREFIX_OF_ID.fullmatch(text.strip())
    if not parts or not (parts[2] or parts[1] in _known(expansion, "backend")):
        return ()
    if parts[4] and _has_no_torch(expansion):
        return ()
    backend, world_size, gpu_count, init_method, nodes = parts.groups()
    wanted: dict[str, tuple[AxisValue, ...]] = {"backend": (backend,)}
    for axis, number in (("world_size", world_size), ("gpu_count", gpu_count), ("nodes", nodes)):
        if number:
            wanted[axis] = (int(number),)
    if init_method:
        wanted = {"nodes": (1,), **wanted, "init_method": (init_method,)}
    return _cells(expansion, wanted)


def signature_axes(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The axes in the signatures of these cells: ``nodes`` and ``torch`` only if one of them needs it."""
    cells = tuple(cells)
    nodes = ("nodes",) if any(cell.nodes != 1 for cell in cells) else ()
    torch = ("torch",) if any(cell.torch for cell in cells) else ()
    return (*ALWAYS_NAMED, *nodes, *torch)


def signature(cell: Cell, axes: Sequence[str] = ALWAYS_NAMED) -> str:
    """A cell as nox writes it: ``dist(backend='gloo', world_size=2, gpu_count=0, init_method='tcp')``.

    Args:
        cell: The cell.
        axes: See :func:`signature_axes`; the first few of them for the signature of a prefix.
    """
    return _written({axis: getattr(cell, axis) for axis in axes})


def prefixes(cells: Sequence[Cell]) -> tuple[Prefix, ...]:
    """Every proper prefix of the cells' signatures, shortest first, then in matrix order."""
    axes = signature_axes(cells)
    return tuple(prefix for length in range(1, len(axes)) for prefix in _prefixes(cells, axes[:length]))


def _prefixes(cells: Iterable[Cell], axes: Sequence[str]) -> Iterable[Prefix]:
    groups: dict[tuple[AxisValue, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(getattr(cell, axis) for axis in axes), []).append(cell)
    for values, members in groups.items():
        agreed = dict(zip(axes, values, strict=True))
        yield Prefix(_written(agreed), agreed, tuple(members))


def _written(values: Mapping[str, AxisValue]) -> str:
    return f"{SESSION}({', '.join(f'{axis}={value!r}' for axis, value in values.items())})"


def _term(term: str) -> tuple[str, list[AxisValue]]:
    """One ``axis=value|value``."""
    axis, equals, values = (part.strip() for part in term.partition("="))
    if not axis or not equals or not values:
        raise UsageError(what=f"--where cannot be read at {term.strip()!r}.", remedy=WHERE_FORM)
    _check_axis(axis)
    return axis, [_value(axis, value.strip().strip("'\"")) for value in values.split("|")]


def _check_axis(axis: str) -> None:
    if axis not in AXES:
        raise UsageError(what=f"There is no axis {axis!r}.", remedy=did_you_mean(axis, AXES))


def _value(axis: str, text: str) -> AxisValue:
    if written_type(axis) is str:
        return text
    if not re.fullmatch(r"\d{1,10}", text, re.ASCII):
        raise UsageError(what=f"{axis}={text} is not a whole number.", remedy=f"Write for example {axis}=2.")
    return int(text)


def _arguments(text: str) -> Wanted:
    """The values in a signature, read with Python's grammar and never evaluated."""
    if text.strip() == SESSION:
        return {}
    try:
        call = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError(what=f"{text!r} is not the signature of a session.", remedy=SIGNATURE_FORM) from None
    match call:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if name == SESSION:
            return {_named(keyword): (_literal(keyword),) for keyword in keywords}
        case _:
            raise UsageError(what=f"{text!r} is not a signature of the session {SESSION}.", remedy=SIGNATURE_FORM)


def _named(keyword: ast.keyword) -> str:
    axis = keyword.arg or "**"
    _check_axis(axis)
    return axis


def _literal(keyword: ast.keyword) -> AxisValue:
    axis = _named(keyword)
    value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
    if isinstance(value, str | int) and type(value) is written_type(axis):
        return value
    kind = "a name in quotes" if written_type(axis) is str else "a whole number without quotes"
    raise UsageError(what=f"The value of {axis} is not {kind}.", remedy=SIGNATURE_FORM)


def _has_no_torch(expansion: Expansion) -> bool:
    return expansion.matrix.axes["torch"] == (NO_TORCH,)


def _cells(expansion: Expansion, wanted: Wanted) -> tuple[Cell, ...]:
    """The requested cells, or an error with the reason why there are none."""
    for axis, values in wanted.items():
        _check_values(expansion, axis, values)
    cells = tuple(cell for cell in expansion.cells if _fits(cell, wanted))
    if not cells:
        raise _none_left(expansion, wanted)
    return cells


def _check_values(expansion: Expansion, axis: str, values: Iterable[AxisValue]) -> None:
    known = _known(expansion, axis)
    if set(known) == {NO_TORCH} and set(values) != {NO_TORCH}:
        remedy = f'Drop it, or add {axis} = ["2.13.0", "2.14.1"] to [matrix].'
        raise UsageError(what=f"This matrix has no axis {axis}.", remedy=remedy)
    for value in values:
        if value not in known:
            why = f"It is outside of the axes: {axis} has {listed(known)}."
            close = nearest(value, map(str, known)) if isinstance(value, str) else None
            remedy = f"Did you mean {close!r}?" if close else LIST_CELLS
            raise UsageError(what=f"The matrix has no cell with {axis} {value!r}.", why=why, remedy=remedy)


def _known(expansion: Expansion, axis: str) -> Mapping[AxisValue, None]:
    """The values of an axis in the matrix, in its order."""
    included = (include.cell.axes()[axis] for include in expansion.matrix.includes)
    return dict.fromkeys((*expansion.matrix.axes[axis], *included))


def _fits(cell: Cell, wanted: Wanted) -> bool:
    return all(getattr(cell, axis) in values for axis, values in wanted.items())


def _none_left(expansion: Expansion, wanted: Wanted) -> UsageError:
    """Why no cell has these values, although each is on its axis: the rules that dropped those points."""
    rules = [rule for rule, cells in expansion.dropped.items() if any(_fits(cell, wanted) for cell in cells)]
    if not rules:
        why = "No included cell has these values together, and the axes do not cover them."
        return UsageError(f"The matrix does not have {_asked(wanted)}.", why=why, remedy=LIST_CELLS)
    why = " ".join(_described(expansion, rule) for rule in rules)
    remedy = "Ask for another cell (`allranks plan` lists them), or change that rule."
    return UsageError(f"The matrix excludes {_asked(wanted)}.", why=why, remedy=remedy)


def _asked(wanted: Wanted) -> str:
    """The request, as the object of a sentence."""
    if len(wanted) == len(AXES) and all(len(values) == 1 for values in wanted.values()):
        return f"the cell {Cell.at(wanted[axis][0] for axis in AXES).id}"
    return "the cells with " + ", ".join(f"{axis}={'|'.join(map(str, values))}" for axis, values in wanted.items())


def _described(expansion: Expansion, rule: Rule) -> str:
    where = place(expansion.matrix.path, rule.line, "matrix.exclude")
    return f"{where}: {rule.when.source} (reason: {rule.reason})."
