"""The capability tables as text, Markdown and HTML: operations and modes by dtype."""

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from allranks.plugins.conformance.capabilities import (
    Capability,
    CapabilityTable,
    ChangedCell,
    add_tests,
    as_document,
    bad_cells,
)
from allranks.protocol.xml_text import printable, readable
from allranks.report.judged import CellSuite, MergedRun
from allranks.report.section import Section, SectionMaker
from allranks.report.summary import markdown
from allranks.report.untrusted import write_whole

NAME: Final = "conformance"
"""The stem of the files with the tables, next to the merged report."""

TABLE_NAME: Final = f"{NAME}.json"

_DTYPES: Final = {
    "bool": "bool",
    "uint8": "u8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "complex64": "c64",
    "complex128": "c128",
}
"""The columns in order, with their headings in text; other dtypes follow."""

_ANY: Final = "any"
"""The heading of the column for tests that do not depend on a dtype."""

_WORDS: Final[Mapping[Capability | None, str]] = {
    Capability.WORKS: "ok",
    Capability.UNSUPPORTED: "no",
    Capability.WRONG: "WRONG",
    Capability.HANGS: "HANGS",
    Capability.CRASHES: "CRASH",
    None: "",
}

_CLASSES: Final[Mapping[Capability, str]] = {Capability.WORKS: "t-good", Capability.UNSUPPORTED: "t-idle"}

LEGEND: Final = (
    "ok: works; no: reported as unsupported; WRONG: a wrong result or error; HANGS: over its time limit; "
    "CRASH: a rank died; empty: no test"
)

_SHOWN: Final = 50
_ROW_WIDTH: Final = 48


def _columns(table: CapabilityTable) -> list[str]:
    used = {key.dtype for key in table}
    known = [dtype for dtype in _DTYPES if dtype in used]
    return [*known, *sorted(used - {"", *known}), *([""] if "" in used else [])]


def _rows(table: CapabilityTable) -> Iterator[tuple[str, list[Capability | None]]]:
    columns = _columns(table)
    for row in dict.fromkeys(key._replace(dtype="") for key in sorted(table, key=lambda key: key.sort_key)):
        cells = (table.get(row._replace(dtype=dtype)) for dtype in columns)
        yield row.row, [cell.state if cell else None for cell in cells]


def _headings(table: CapabilityTable) -> list[str]:
    return [_DTYPES.get(dtype, dtype) or _ANY for dtype in _columns(table)]


def as_text(tables: Mapping[str, CapabilityTable]) -> str:
    """The tables, each followed by its bad entries."""
    return "\n\n".join("\n".join(_text(backend, table)) for backend, table in sorted(tables.items()))


def _text(backend: str, table: CapabilityTable) -> Iterator[str]:
    rows, headings = list(_rows(table)), _headings(table)
    width = min(_ROW_WIDTH, max(map(len, [backend, *(label for label, _ in rows)])))
    widths = [max(5, len(heading)) for heading in headings]
    yield _line(backend, headings, width, widths)
    for label, states in rows:
        yield _line(label, [_WORDS[state] for state in states], width, widths)
    yield LEGEND
    bad = list(bad_cells(table))
    for key, cell in bad[:_SHOWN]:
        first = cell.bad[0]
        where = ", ".join(dict.fromkeys(test.cell for test in cell.bad))
        yield f"{cell.state.value}: {_clean(key.name)} (in {where}): {_clean(first.message)}"
        yield f"    {_clean(first.nodeid)}"
    if len(bad) > _SHOWN:
        yield f"and {len(bad) - _SHOWN} more, in {NAME}.json"


def _line(label: str, cells: Sequence[str], width: int, widths: Sequence[int]) -> str:
    columns = (f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
    return f"{_clean(label)[:width]:<{width}}  {' '.join(columns)}".rstrip()


def _clean(text: str) -> str:
    return printable(readable(text))


def as_markdown(tables: Mapping[str, CapabilityTable]) -> str:
    """The tables as a Markdown document."""
    parts = ["\n".join(_markdown(backend, table)) for backend, table in sorted(tables.items())]
    return "\n\n".join([*parts, f"{LEGEND}."]) + "\n"


def _markdown(backend: str, table: CapabilityTable) -> Iterator[str]:
    headings = _headings(table)
    yield f"| {markdown(backend)} | {' | '.join(map(markdown, headings))} |"
    yield f"|---|{':-:|' * len(headings)}"
    for label, states in _rows(table):
        yield f"| {markdown(label)} | {' | '.join(_WORDS[state] for state in states)} |"


def as_html(tables: Mapping[str, CapabilityTable]) -> str:
    """The tables as a section of the HTML report."""
    body = "".join(_html(backend, table) for backend, table in sorted(tables.items()))
    return f"{body}<p>{escape(LEGEND)}.</p>"


def _html(backend: str, table: CapabilityTable) -> str:
    head = "".join(f'<th scope="col">{_inert(heading)}</th>' for heading in (backend, *_headings(table)))
    rows = "".join(
        f'<tr><th scope="row">{_inert(label)}</th>{"".join(map(_tile, states))}</tr>' for label, states in _rows(table)
    )
    region = f'tabindex="0" role="region" aria-label="{escape(_clean(backend))}"'
    shown = f'<table class="compact"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="wide" {region}>{shown}</div>'


def _tile(state: Capability | None) -> str:
    if state is None:
        return "<td></td>"
    return f'<td class="{_CLASSES.get(state, "t-bad")}" title="{state.value}">{_WORDS[state]}</td>'


def _inert(text: str) -> str:
    return f"<bdi>{escape(_clean(text))}</bdi>"


def change_lines(changed: Sequence[ChangedCell]) -> list[str]:
    """A line for each difference from an earlier run, bad cells first."""
    return [
        f"{cell.backend}: {_clean(cell.key.name)}: {cell.before or 'no test'} -> {cell.now or 'no test'}"
        for cell in sorted(changed, key=lambda cell: (not (cell.now and cell.now.is_bad), cell.backend))
    ]


class CapabilitySection(SectionMaker):
    """The tables in the HTML report, and in separate files next to it."""

    name = "capabilities"
    files = (TABLE_NAME,)

    def __init__(self) -> None:
        self._tables: dict[str, CapabilityTable] = {}  # by backend; empty for a run without tagged tests

    def __call__(self, suite: CellSuite) -> None:
        add_tests(self._tables, suite)

    def section(self, merged: MergedRun) -> Section | None:
        """Write the files, and return the section; None without tagged tests."""
        if not (tables := self._tables):
            return None
        write_whole(merged.folder / TABLE_NAME, f"{json.dumps(as_document(merged.run_id, tables), indent=1)}\n")
        write_whole(merged.folder / f"{NAME}.md", as_markdown(tables))
        return Section(title="Capabilities", headline="operations by dtype", html=as_html(tables), page_only=True)

    def for_unfinished_run(self) -> "CapabilitySection":
        return CapabilitySection()  # an interrupted run shows the results so far
