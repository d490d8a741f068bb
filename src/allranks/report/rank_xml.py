"""Reads the JUnit XML of one rank: ours, and what plain pytest or a unittest runner writes.

The file is streamed through expat, so that a truncated one gives every testcase before the cut, and nothing in it can
make the reader fetch or expand anything: a document type declaration, the only way to declare an entity, is refused.
"""

import math
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.parsers import expat

from allranks.harness.outcome import Outcome, SkipKind
from allranks.report.columns import Key, RankFile
from allranks.report.model import RankResult, Rerun
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
_RERUN_TAGS: Final[Mapping[str, Outcome]] = {
    "rerun": Outcome.FAILED,  # torch's test/conftest.py, in its repository
    "flakyFailure": Outcome.FAILED,  # Surefire's schema 3.0
    "flakyError": Outcome.ERRORED,
    "rerunFailure": Outcome.FAILED,
    "rerunError": Outcome.ERRORED,
}
_OUTPUT_TAGS: Final = ("system-out", "system-err")
_TOLD_TAGS: Final = frozenset({*_OUTCOME_TAGS, *_RERUN_TAGS, *_OUTPUT_TAGS})
_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}
_PLAIN: Final = frozenset(
    f"allranks.{name}" for name in ("nodeid", "outcome", "at", "world_size")
)  # what a pass says without being worth a value of its own

PASSED_OUTPUT: Final = 256 * 1024
"""Characters of what passing tests printed that are kept of a file: they are shown where another rank went wrong."""


class _RefusedError(Exception):
    """The document is well-formed so far, and nothing that a rank would write."""


@dataclass(kw_only=True)
class _More:
    """What a testcase has besides its attributes, while its element is open."""

    properties: dict[str, str] = field(default_factory=dict)
    outcomes: list[tuple[Outcome, str, str]] = field(default_factory=list)
    reruns: list[Rerun] = field(default_factory=list)
    output: dict[str, str] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """Whether it says nothing but that it passed, when, and in how large a world."""
        said = self.properties
        passed = not self.outcomes and said.get("allranks.outcome", "passed") == "passed"
        return passed and not self.output and not self.reruns and said.keys() <= _PLAIN


class _Reader:
    """The expat handlers, and what they have gathered."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.times: list[str | None] = []
        self.at: dict[int, float] = {}
        self.world_sizes: dict[int, int] = {}
        self.more: dict[int, _More] = {}
        self.properties: dict[str, str] = {}
        self._room = PASSED_OUTPUT
        self._case: Mapping[str, str] | None = None
        self._more: _More | None = None
        self._attributes: Mapping[str, str] = {}
        self._text: list[str] = []
        self._open = ""
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._root
        self.parser.EndElementHandler = self._end

    def _refuse_doctype(self, *_: object) -> None:
        msg = "it declares a document type, which can declare entities"
        raise _RefusedError(msg)

    def _root(self, tag: str, _: Mapping[str, str]) -> None:
        if tag not in _ROOTS:
            msg = f"its root element is <{tag[:40]}>, and JUnit XML begins with <testsuites> or <testsuite>"
            raise _RefusedError(msg)
        self.parser.StartElementHandler = self._start

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "testcase":
            self._case, self._more, self._open = attributes, None, ""
        elif tag == "property":
            self._property(attributes)
        elif self._case is not None and not self._open and tag in _TOLD_TAGS:
            self._open, self._attributes, self._text = tag, attributes, []
            self.parser.CharacterDataHandler = self._text.append

    def _property(self, attributes: Mapping[str, str]) -> None:
        target = self.properties if self._case is None else self._of_case().properties
        target[attributes.get("name", "")] = attributes.get("value", "")

    def _of_case(self) -> _More:
        if self._more is None:
            self._more = _More()
        return self._more

    def _end(self, tag: str) -> None:
        if tag == "testcase":
            self._end_case()
        elif tag == self._open:
            self._open, self.parser.CharacterDataHandler = "", None
            self._add(tag, self._attributes, cut("".join(self._text)), self._of_case())

    @staticmethod
    def _add(tag: str, attributes: Mapping[str, str], text: str, case: _More) -> None:
        message = attributes.get("message", "")
        if tag in _OUTPUT_TAGS:
            case.output[tag] = case.output.get(tag, "") + text
        elif tag in _RERUN_TAGS:
            case.reruns.append(Rerun(outcome=_RERUN_TAGS[tag], message=message, text=text))
        else:
            case.outcomes.append((_outcome_of_element(tag, attributes), message, text))

    def _end_case(self) -> None:
        case, more = self._case, self._more
        if case is None:
            return
        self._case = None
        classname, name = case.get("classname", ""), case.get("name", "")
        nodeid = more.properties.get("allranks.nodeid") if more else None
        self.keys.append(Key(classname, name, nodeid or (f"{classname}::{name}" if classname else name)))
        self.times.append(case.get("time"))
        if more:
            self._keep(len(self.keys) - 1, more)

    def _keep(self, place: int, more: _More) -> None:
        said = more.properties.get
        if (at := _number(said("allranks.at"))) is not None:
            self.at[place] = at
        if (size := _integer(said("allranks.world_size"))) is not None:
            self.world_sizes[place] = size
        if not more.outcomes:
            self._bound_output(more)
        if not more.has_passed:
            self.more[place] = more

    def _bound_output(self, more: _More) -> None:
        self._room -= sum(map(len, more.output.values()))
        if self._room < 0:
            more.output.clear()


class RankReader:
    """Reads files of ranks, and remembers the tests of the last one: the next rank's are mostly the same."""

    def __init__(self) -> None:
        self._known: tuple[Key, ...] = ()

    def read(self, path: Path) -> RankFile:
        """The results in one XML file.

        Never raises for what is in the file: a broken, truncated, empty, binary or foreign file becomes a
        :attr:`RankFile.problem <allranks.report.columns.RankFile.problem>`, with the testcases before the break kept.
        Several testcases of one test (pytest writes a failed call and a failed tear-down as two) are folded into one,
        the worst.
        """
        reader = _Reader()
        problem = _feed(reader, path)
        rank = _rank(reader.properties, path)
        seconds = _seconds(reader.times)
        details = {
            place: _result(reader.keys[place], rank or 0, seconds[place], more) for place, more in reader.more.items()
        }
        file = RankFile(
            path=path,
            rank=rank,
            properties=reader.properties,
            keys=self._shared(reader.keys),
            seconds=seconds,
            at=reader.at,
            world_sizes=reader.world_sizes,
            details=details,
            problem=f"{path.name} cannot be read to its end: {problem}." if problem else "",
        )
        return file if len({key.nodeid for key in file.keys}) == len(file.keys) else _folded(file)

    def _shared(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        found = tuple(keys)
        if found != self._known:
            self._known = found
        return self._known


def read_rank_xml(path: Path) -> RankFile:
    """The results in one XML file, as :meth:`RankReader.read` gives them."""
    return RankReader().read(path)


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


def _result(key: Key, rank: int, duration: float, more: _More) -> RankResult:
    outcome, message, text = max(more.outcomes, key=_severity_of_element, default=(Outcome.PASSED, "", ""))
    said = more.properties.get
    return RankResult(
        nodeid=key.nodeid,
        classname=key.classname,
        name=key.name,
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
        duration=duration,
        stdout=more.output.get("system-out", ""),
        stderr=more.output.get("system-err", ""),
        world_size=_integer(said("allranks.world_size")),
        reruns=tuple(more.reruns),
    )


def _folded(file: RankFile) -> RankFile:
    """A file whose tests are each there once, in the order of their first appearance."""
    by_test: dict[str, list[RankResult]] = {}
    for result in file.results:
        by_test.setdefault(result.nodeid, []).append(result)
    results = [fold(same) for same in by_test.values()]
    return RankFile(
        path=file.path,
        rank=file.rank,
        properties=file.properties,
        keys=tuple(Key(result.classname, result.name, result.nodeid) for result in results),
        seconds=array("d", (result.duration for result in results)),
        details=dict(enumerate(results)),
        problem=file.problem,
    )


def _severity_of_element(element: tuple[Outcome, str, str]) -> int:
    return severity(element[0])


def _seconds(times: Sequence[str | None]) -> "array[float]":
    """The durations that testcases state: 0 where one states none, or none that can be."""
    try:
        seconds = array("d", [float(time) for time in times if time is not None])
    except ValueError:
        seconds = array("d")
    if len(seconds) == len(times) and all(map(_is_duration, seconds)):
        return seconds
    return array("d", map(_duration, times))


def _is_duration(seconds: float) -> bool:
    return 0 <= seconds < math.inf


def _duration(time: str | None) -> float:
    return max(_number(time) or 0.0, 0.0)


def _integer(value: str | None) -> int | None:
    return int(value) if value and re.fullmatch(r"\d{1,9}", value) else None


def _number(value: str | None) -> float | None:
    """A finite number; commas as thousands separators, which some runners write, are left out."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
