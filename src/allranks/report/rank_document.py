"""Writes ``rank-N.xml``: one rank's results as pytest writes JUnit XML, with properties.

Most of the time is spent on testcases, so the parts that ranks have in common, mainly names, are built once.
"""

import math
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final

from allranks.protocol.outcomes import Outcome
from allranks.protocol.xml_text import element_text, quoted
from allranks.report.journal import read_journal
from allranks.report.results import Key, RankFile, RankResult, VerdictKind, kind_of
from allranks.report.untrusted import digest

_TYPE: Final = MappingProxyType({Outcome.SKIPPED: "pytest.skip", Outcome.XFAILED: "pytest.xfail"})


def write_rank_files(attempt: Path, journal: Path) -> dict[str, str]:
    """Write the rank XML of an attempt from the readable part of its journal; return the digests of both."""
    constant_parts, digests = _ConstantParts(), {journal.name: digest(journal)}
    for file in read_journal(journal):
        if file.rank is not None:
            target = attempt / f"rank-{file.rank}.xml"
            draft = target.with_suffix(".xml.part")
            with draft.open("w", encoding="utf-8", newline="") as out:
                out.writelines(_document(file, constant_parts.of(file)))
            digests[target.name] = digest(draft)
            draft.replace(target)
    return digests


class _ConstantParts:
    """The constant parts of passed testcases: up to the time, and from there to the time of arrival."""

    def __init__(self) -> None:
        self._keys: tuple[Key, ...] = ()
        self._sizes: Sequence[int] = ()
        self._known: list[tuple[str, str]] = []

    def of(self, file: RankFile) -> Sequence[tuple[str, str]]:
        """The parts for a rank's tests, which are mostly the same as those of the previous rank."""
        if file.keys is not self._keys or file.world_sizes is not self._sizes:
            self._keys, self._sizes = file.keys, file.world_sizes
            self._known = [_parts(key, size or None) for key, size in zip(file.keys, file.world_sizes, strict=True)]
        return self._known


def _parts(key: Key, world_size: int | None) -> tuple[str, str]:
    values = {"nodeid": key.nodeid, "outcome": Outcome.PASSED, "world_size": world_size}
    return f'<testcase classname={quoted(key.classname)} name={quoted(key.name)} time="', _properties(values)


def _document(file: RankFile, parts: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="pytest tests"><testsuite name="pytest"'
    yield "".join(f' {name}="{value}"' for name, value in _totals(file).items())
    yield f" hostname={quoted(socket.gethostname())}><properties>{_property_elements(file.properties)}</properties>"
    for index, ((start, properties), seconds) in enumerate(zip(parts, file.seconds, strict=True)):
        result = file.details.get(index)
        if result is None:
            at = file.at[index]
            yield (
                f'{start}{seconds:.3f}"><properties>{properties}<property name="allranks.at" value="{at:.6f}" />'
                "</properties></testcase>"
            )
        else:
            yield f'{start}{seconds:.3f}">{"".join(_inside(result))}</testcase>'
    yield "</testsuite></testsuites>"


def _totals(file: RankFile) -> dict[str, str]:
    kinds = Counter(kind_of(result.outcome) for result in file.details.values())
    began = min((at for at in file.at if math.isfinite(at)), default=0.0)
    return {
        "errors": str(kinds[VerdictKind.ERROR]),
        "failures": str(kinds[VerdictKind.FAILURE]),
        "skipped": str(kinds[VerdictKind.SKIPPED]),
        "tests": str(len(file.keys)),
        "time": f"{sum(file.seconds):.3f}",
        "timestamp": _timestamp(began),
    }


def _timestamp(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC).isoformat()  # the journal states an impossible time


def _inside(result: RankResult) -> Iterator[str]:
    yield f"<properties>{_properties(_values(result))}</properties>"
    if (element := kind_of(result.outcome)) is not VerdictKind.PASSED:
        kind = _TYPE.get(result.outcome)
        attributes = f" message={quoted(result.message)}{f' type={quoted(kind)}' if kind else ''}"
        yield f"<{element}{attributes}>{element_text(result.text)}</{element}>"
    for rerun in result.reruns:
        if rerun.outcome.is_bad:
            prefix = "rerun" if result.outcome.is_bad else "flaky"
            tag = f"{prefix}{'Failure' if rerun.outcome is Outcome.FAILED else 'Error'}"
            yield f"<{tag} message={quoted(rerun.message)}>{element_text(rerun.text)}</{tag}>"
    for tag, text in (("system-out", result.stdout), ("system-err", result.stderr)):
        if text:
            yield f"<{tag}>{element_text(text)}</{tag}>"


def _values(result: RankResult) -> dict[str, object]:
    return {
        "nodeid": result.nodeid,
        "outcome": result.outcome,
        "world_size": result.world_size,
        "at": None if result.at is None else f"{result.at:.6f}",
        "consequence": 1 if result.consequence else None,
        "caused_by": result.caused_by,
        "skip_kind": result.skip_kind,
        "skip_code": result.skip_code,
        "gpus_needed": result.gpus_needed,
        "phase": result.phase or None,
    }


def _properties(values: Mapping[str, object]) -> str:
    """The properties of allranks that have a value."""
    return _property_elements({f"allranks.{name}": str(value) for name, value in values.items() if value is not None})


def _property_elements(values: Mapping[str, str]) -> str:
    return "".join(f"<property name={quoted(name)} value={quoted(value)} />" for name, value in values.items())
