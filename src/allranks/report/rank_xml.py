"""Reads the JUnit XML of one rank: ours, and what plain pytest or a unittest runner writes.

The file is streamed through expat, so that a truncated one gives every testcase before the cut, and nothing in it can
make the reader fetch or expand anything: a document type declaration, the only way to declare an entity, is refused.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.parsers import expat

from allranks.harness.outcome import Outcome, SkipKind
from allranks.report.model import RankResult
from allranks.report.severity import fold, severity
from allranks.report.xml_text import cut

_CHUNK: Final = 1 << 18
_ROOTS: Final = ("testsuites", "testsuite")
_RANK_TOKEN: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_OUTCOME_TAGS: Final[Mapping[str, Outcome]] = {
    "failure": Outcome.FAILED,
    "error": Outcome.ERRORED,
    "skipped": Outcome.SKIPPED,
}
_OUTPUT_TAGS: Final = ("system-out", "system-err")
_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}


@dataclass(frozen=True, kw_only=True)
class RankFile:
    """The results of one rank, as far as its file could be read.

    Attributes:
        rank: None where neither the file nor its name says.
        properties: The properties of the test suite, by name.
        problem: One sentence that says why the file could not be read to its end; empty when it could.
    """

    path: Path
    rank: int | None
    properties: Mapping[str, str]
    results: tuple[RankResult, ...]
    problem: str = ""


@dataclass(kw_only=True)
class _Case:
    """A testcase while its element is open."""

    attributes: Mapping[str, str]
    properties: dict[str, str] = field(default_factory=dict)
    outcomes: list[tuple[Outcome, str, str]] = field(default_factory=list)
    output: dict[str, str] = field(default_factory=dict)


class _RefusedError(Exception):
    """The document is well-formed so far, and nothing that a rank would write."""


class _Reader:
    """The expat handlers, and what they have gathered."""

    def __init__(self) -> None:
        self.cases: list[_Case] = []
        self.properties: dict[str, str] = {}
        self._case: _Case | None = None
        self._attributes: Mapping[str, str] = {}
        self._text: list[str] | None = None
        self._depth = 0
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters

    def _refuse_doctype(self, *_: object) -> None:
        msg = "it declares a document type, which can declare entities"
        raise _RefusedError(msg)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._depth == 0 and tag not in _ROOTS:
            msg = f"its root element is <{tag[:40]}>, and JUnit XML begins with <testsuites> or <testsuite>"
            raise _RefusedError(msg)
        self._depth += 1
        if tag == "testcase":
            self._case = _Case(attributes=attributes)
        elif tag == "property":
            self._property(attributes)
        elif self._case is not None and (tag in _OUTCOME_TAGS or tag in _OUTPUT_TAGS):
            self._attributes, self._text = attributes, []

    def _property(self, attributes: Mapping[str, str]) -> None:
        target = self.properties if self._case is None else self._case.properties
        target[attributes.get("name", "")] = attributes.get("value", "")

    def _characters(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def _end(self, tag: str) -> None:
        self._depth -= 1
        if self._case is None:
            return
        if tag == "testcase":
            self.cases.append(self._case)
            self._case = None
        elif self._text is not None and tag in _OUTCOME_TAGS:
            outcome = _outcome_of_element(tag, self._attributes)
            self._case.outcomes.append((outcome, self._attributes.get("message", ""), cut("".join(self._text))))
            self._text = None
        elif self._text is not None and tag in _OUTPUT_TAGS:
            self._case.output[tag] = self._case.output.get(tag, "") + cut("".join(self._text))
            self._text = None


def read_rank_xml(path: Path) -> RankFile:
    """The results in one XML file.

    Never raises for what is in the file: a broken, truncated, empty, binary or foreign file becomes a
    :attr:`RankFile.problem`, with the testcases before the break kept. Several testcases of one test (pytest writes a
    failed call and a failed tear-down as two) are folded into one, the worst.
    """
    reader = _Reader()
    problem = _feed(reader, path)
    rank = _rank(reader.properties, path)
    results = [_result(case, rank or 0) for case in reader.cases]
    return RankFile(
        path=path,
        rank=rank,
        properties=reader.properties,
        results=_folded(results),
        problem=f"{path.name} cannot be read to its end: {problem}." if problem else "",
    )


def _feed(reader: _Reader, path: Path) -> str:
    """Parses the file into ``reader``; the cause when that did not work to its end, else nothing."""
    try:
        if path.stat().st_size == 0:
            return "it is empty"
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                reader.parser.Parse(chunk, False)
        reader.parser.Parse(b"", True)
    except _RefusedError as error:
        return str(error)
    except expat.ExpatError as error:
        return f"it is broken or cut short at line {error.lineno} ({expat.ErrorString(error.code)})"
    except (LookupError, ValueError) as error:
        return f"its encoding cannot be read ({error})"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _rank(properties: Mapping[str, str], path: Path) -> int | None:
    """The rank: what the file says, else the last number of a ``rank`` token in its name."""
    said = _integer(properties.get("allranks.rank"))
    if said is not None:
        return said
    tokens = _RANK_TOKEN.findall(path.stem)
    return int(tokens[-1]) if tokens else None


def _outcome_of_element(tag: str, attributes: Mapping[str, str]) -> Outcome:
    return Outcome.XFAILED if attributes.get("type") == "pytest.xfail" else _OUTCOME_TAGS[tag]


def _result(case: _Case, rank: int) -> RankResult:
    classname, name = case.attributes.get("classname", ""), case.attributes.get("name", "")
    outcome, message, text = max(case.outcomes, key=_severity_of_element, default=(Outcome.PASSED, "", ""))
    said = case.properties.get
    return RankResult(
        nodeid=said("allranks.nodeid") or (f"{classname}::{name}" if classname else name),
        classname=classname,
        name=name,
        rank=rank,
        outcome=_OUTCOMES.get(said("allranks.outcome", "")) or outcome,
        at=_number(said("allranks.at")),
        consequence=said("allranks.consequence") == "1",
        caused_by=_integer(said("allranks.caused_by")),
        skip_kind=_SKIP_KINDS.get(said("allranks.skip_kind", "")),
        skip_code=_integer(said("allranks.skip_code")),
        phase=said("allranks.phase", ""),
        message=message,
        text=text,
        duration=max(_number(case.attributes.get("time")) or 0.0, 0.0),
        stdout=case.output.get("system-out", ""),
        stderr=case.output.get("system-err", ""),
        world_size=_integer(said("allranks.world_size")),
    )


def _folded(results: list[RankResult]) -> tuple[RankResult, ...]:
    """One result for each node id, in the order of their first appearance."""
    by_test: dict[str, list[RankResult]] = {}
    for result in results:
        by_test.setdefault(result.nodeid, []).append(result)
    return tuple(fold(same) for same in by_test.values())


def _severity_of_element(element: tuple[Outcome, str, str]) -> int:
    return severity(element[0])


def _integer(value: str | None) -> int | None:
    return int(value) if value and re.fullmatch(r"\d{1,9}", value) else None


def _number(value: str | None) -> float | None:
    """A finite number; commas as thousands separators, which some runners write, are left out."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
