"""Reads the JUnit XML of one rank: ours, and what plain pytest or a unittest runner writes.

The file is streamed through expat, so that a truncated one gives every testcase before the cut, and nothing in it can
make the reader fetch or expand anything: a document type declaration, the only way to declare an entity, is refused.
"""

import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from xml.parsers import expat

from allranks.harness.outcome import Outcome, SkipKind
from allranks.records import MOST_RANKS
from allranks.report.columns import ABSENT, Key, RankFile
from allranks.report.declared import Declarations, counted, outcome_of, outcomes_said
from allranks.report.folder import stray_text
from allranks.report.model import RankResult, Rerun
from allranks.report.plain_cases import KnownPieces, PlainCases, Run
from allranks.report.severity import fold, severity
from allranks.report.untrusted import open_regular
from allranks.report.xml_text import cut

_Number = TypeVar("_Number", int, float)

_CHUNK: Final = 1 << 18
_FIRST_CHUNK: Final = 1 << 10  # nothing can be taken out of the one with the declaration and the root
_ROOTS: Final = ("testsuites", "testsuite")
_RANK_TOKEN: Final = re.compile(r"rank[-_.]?([0-9]+)", re.IGNORECASE)
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
_TO_THE_END: Final = frozenset({"rerunFailure", "rerunError"})
"""A try of a test that failed in all of them: of one that passed in the end it is a ``flakyFailure``."""

_OUTPUT_TAGS: Final = ("system-out", "system-err")
_TOLD_TAGS: Final = frozenset({*_OUTCOME_TAGS, *_RERUN_TAGS, *_OUTPUT_TAGS})
_ELEMENT_OF: Final[Mapping[Outcome, Outcome | None]] = {
    Outcome.PASSED: None,
    Outcome.XPASSED: None,
    Outcome.SKIPPED: Outcome.SKIPPED,
    Outcome.XFAILED: Outcome.SKIPPED,
    Outcome.FAILED: Outcome.FAILED,
}  # all else is written as an error
_OUTCOMES: Final[Mapping[str, Outcome]] = {outcome.value: outcome for outcome in Outcome}
_SKIP_KINDS: Final[Mapping[str, SkipKind]] = {kind.value: kind for kind in SkipKind}
_PLAIN: Final = frozenset(
    f"allranks.{name}" for name in ("nodeid", "outcome", "at", "world_size")
)  # what a pass says without being worth a value of its own

_DIGITS: Final = 18
MOST_SECONDS: Final = 1e9
"""Seconds that a test may take, 31 years: a few of 1e308, which are numbers, too, add up to none."""

_MOST: Final = 1e15
_SILENT: Final = frozenset({"classname", "name", "time", "file", "line", "timestamp"})
_END_OF_CASE: Final = b"</testcase>"
_OF_ONE_RANK: Final = b"allranks.at"  # not worth to be remembered
_NO_KEY: Final = Key("", "", "-")

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
    has_failed_to_the_end: bool = False
    output: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def has_passed(self) -> bool:
        """Whether it says nothing but that it passed, when, and in how large a world."""
        said = self.properties
        passed = not self.outcomes and said.get("allranks.outcome", "passed") == "passed"
        return passed and not self.output and not self.reruns and said.keys() <= _PLAIN

    def add(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        """Take in an element that says how a test went, or what it printed."""
        message = cut(attributes.get("message", ""))
        if tag in _OUTPUT_TAGS:
            self.output[tag] = self.output.get(tag, "") + text
        elif tag in _RERUN_TAGS:
            self.reruns.append(Rerun(outcome=_RERUN_TAGS[tag], message=message, text=text))
            self.has_failed_to_the_end |= tag in _TO_THE_END
        else:
            self.outcomes.append((_outcome_of_element(tag, attributes), message, text))

    def say(self, said: Sequence[tuple[Outcome, str]]) -> None:
        """Take in what the attributes of a testcase say, unless its elements, which say more, are as bad."""
        worst = max((severity(outcome) for outcome, _, _ in self.outcomes), default=0)
        is_bad = any(outcome.is_bad for outcome, _, _ in self.outcomes)
        self.outcomes.extend(
            (outcome, words, "") for outcome, words in said if severity(outcome) > worst and not is_bad
        )


class _Reader:
    """The expat handlers, and what they have gathered.

    Args:
        known: The tests of a file that was read before. Where this one has the same, no name is kept twice.
    """

    def __init__(self, known: tuple[Key, ...], pieces: "KnownPieces[_More]") -> None:
        self.times: list[str | float | None] = []
        self.at = array("d")
        self.world_sizes = array("H")
        self.more: dict[int, _More] = {}
        self.properties: dict[str, str] = {}
        self.claim = ""
        self._known = known
        self._keys: list[Key] | None = None
        self._room = PASSED_OUTPUT
        self._suite = ""
        self.declared = Declarations()
        self._more: _More | None = None
        self._plain = PlainCases(pieces)
        self._has_begun = False
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.XmlDeclHandler = lambda _, encoding, __: self._plain.see_encoding(encoding)
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._root

    @property
    def keys(self) -> tuple[Key, ...]:
        """The tests so far."""
        if self._keys is not None:
            return tuple(self._keys)
        return self._known if len(self.times) == len(self._known) else self._known[: len(self.times)]

    def feed(self, chunk: bytes) -> int:
        """Take in the next bytes of the document; how many of them were left for expat."""
        if self._has_begun:
            chunk = self._plain.take(chunk)
        else:
            self._plain.see(chunk)
        self.parser.Parse(chunk, False)
        return len(chunk)

    def _refuse_doctype(self, *_: object) -> None:
        msg = "it declares a document type, which can declare entities"
        raise _RefusedError(msg)

    def _root(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag not in _ROOTS:
            msg = f"its root element is <{tag[:40]}>, and JUnit XML begins with <testsuites> or <testsuite>"
            raise _RefusedError(msg)
        self._has_begun = True
        self.declared.begin(attributes, 0)
        self._listen()

    def _listen(self) -> None:
        """Set the handlers for what is below the root.

        They run for every one of a million testcases, which nearly all have a name that is known and nothing inside:
        hence functions that share their variables, which is a third quicker than methods that share an object's.
        """
        case: Mapping[str, str] | None = None
        known, times, marker = self._known, self.times, self._plain.marker
        cases = frozenset({"testcase", marker})

        def start(tag: str, attributes: Mapping[str, str]) -> None:
            nonlocal case
            if case is not None and tag in cases:
                self.declared.contradiction("a testcase stands in another one")
            if tag == "testcase":
                case, self._more = attributes, None
            elif tag == marker:
                case, self._more = None, None
                self._add_run(self._plain.run(attributes))
            elif case is not None:
                self._inside(tag, attributes)
            else:
                self._outside(tag, attributes)

        def end(tag: str) -> None:
            nonlocal case
            if tag != "testcase" or case is None:
                if case is None and tag in _ROOTS:
                    self.declared.end(len(times), is_of_allranks="allranks.rank" in self.properties)
                return
            ended, case = case, None
            place = len(times)
            times.append(ended.get("time"))
            key = known[place] if place < len(known) else _NO_KEY
            if (
                self._more is not None
                or self._keys is not None
                or key[1] != ended.get("name", "")
                or key[0] != ended.get("classname", "")
                or key[2]
                or not ended.keys() <= _SILENT
            ):
                self._end_case(place, ended, self._more)

        self._start, self._end = start, end
        self.parser.StartElementHandler, self.parser.EndElementHandler = start, end

    def _add_run(self, run: "Run[_More]") -> None:
        place = len(self.times)
        self.times.extend(run.times)
        said, at = [each.said for each in run.ends], [each.at for each in run.ends]
        keys: list[tuple[str, str, str]] = [each.key for each in run.begins]
        if any(said):
            keys = [(classname, name, nodeid) for (classname, name, _), nodeid in zip(keys, said, strict=True)]
        if self._keys is not None or self._known[place : place + len(keys)] != tuple(keys):
            for number, key in enumerate(keys, place):
                self._name(number, Key(*key))
        if at.count(ABSENT) < len(at):
            _fill(self.at, place, ABSENT).extend(at)
            _fill(self.world_sizes, place, 0).extend(each.world_size for each in run.ends)
        for number, more in [(number, each.more) for number, each in enumerate(run.ends, place) if each.more]:
            self.declared.case(more.counts)
            self._keep(number, more)

    def _outside(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element begins that is in no testcase: what went wrong with a whole suite is written there by some."""
        if tag == "property":
            self.properties[attributes.get("name", "")] = attributes.get("value", "")
        elif tag in _ROOTS:
            self._suite = attributes.get("name", "")
            self.declared.begin(attributes, len(self.times))
        elif tag in _OUTCOME_TAGS:
            self._tell(tag, attributes, self._add_suite)

    def _add_suite(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        more = _More()
        more.add(tag, attributes, text)
        self.declared.suite(more.outcomes[0][0])
        self.times.append(None)
        self._name(len(self.times) - 1, Key(self._suite, "(suite)"))
        self._keep(len(self.times) - 1, more)

    def _inside(self, tag: str, attributes: Mapping[str, str]) -> None:
        """An element within a testcase begins."""
        if self._more is None:
            self._more = _More()
        if tag == "property":
            self._more.properties[attributes.get("name", "")] = attributes.get("value", "")
        elif tag in _TOLD_TAGS or outcome_of(tag) not in {None, Outcome.PASSED}:
            self._tell(tag, attributes, self._more.add)

    def _tell(
        self, tag: str, attributes: Mapping[str, str], add: Callable[[str, Mapping[str, str], str], None]
    ) -> None:
        """Take in all that an element says, up to its end; elements within it are its text."""
        text: list[str] = []

        def end(ended: str) -> None:
            if ended == tag:
                self.parser.CharacterDataHandler = None
                self.parser.StartElementHandler, self.parser.EndElementHandler = self._start, self._end
                add(tag, attributes, cut("".join(text)))

        self.parser.StartElementHandler, self.parser.EndElementHandler = None, end
        self.parser.CharacterDataHandler = text.append

    def _end_case(self, place: int, case: Mapping[str, str], more: _More | None) -> None:
        """A testcase has ended that has a name of its own, or something inside, or attributes that are seldom."""
        nodeid = more.properties.get("allranks.nodeid", "") if more else ""
        self._name(place, Key(case.get("classname", ""), case.get("name", ""), nodeid))
        said = [told for told in outcomes_said(case) if told[0] is not Outcome.PASSED]
        if more and more.has_failed_to_the_end:
            said.append((more.reruns[-1].outcome, "a rerun of a test that failed to its end, and nothing of that end"))
        if said:
            more = more or _More()
        if more:
            elements = [outcome for outcome, _, _ in more.outcomes]
            more.say(said)
            added = [outcome for outcome, _, _ in more.outcomes[len(elements) :]]
            more.counts = counted(elements, added, len(more.reruns))
            self.declared.case(more.counts)
            self._keep(place, more)

    def _name(self, place: int, key: Key) -> None:
        if self._keys is None and (place >= len(self._known) or key != self._known[place]):
            self._keys = list(self._known[:place])
        if self._keys is not None:
            self._keys.append(key)

    def _keep(self, place: int, more: _More) -> None:
        said = more.properties.get
        if (at := _number(said("allranks.at"))) is not None:
            _fill(self.at, place, ABSENT).append(at)
        if (size := self._world_size(said("allranks.world_size"))) is not None:
            _fill(self.world_sizes, place, 0).append(size)
        if not more.outcomes and not self._has_room(more):
            more = replace(more, output={})
        if not more.has_passed:
            self.more[place] = more

    def _world_size(self, said: str | None) -> int | None:
        size = _integer(said)
        if size is None or size <= MOST_RANKS:
            return size
        self.claim = f"claims a world of {size} ranks: no run has as many"
        return None

    def _has_room(self, more: _More) -> bool:
        self._room -= sum(map(len, more.output.values()))
        return self._room >= 0


class RankReader:
    """Reads files of ranks, and remembers the tests of the last one: the next rank's are mostly the same."""

    def __init__(self) -> None:
        self._known: tuple[Key, ...] = ()
        self._pieces = KnownPieces(_inside)

    def read(self, path: Path, texts: dict[str, str] | None = None) -> RankFile:
        """The results in one XML file.

        Never raises for what is in the file: a broken, truncated, empty, binary or foreign file becomes a
        :attr:`RankFile.problem <allranks.report.columns.RankFile.problem>`, with the testcases before the break kept.
        Several testcases of one test (pytest writes a failed call and a failed tear-down as two) are folded into one,
        the worst.

        Args:
            path: The file.
            texts: Texts of other ranks, each by itself: what goes wrong on one rank, others mostly say too, and equal
                texts are in memory once. Those of this file are added.
        """
        reader = _Reader(self._known, self._pieces)
        problem = _feed(reader, path)
        problem = f"cannot be read to its end: {problem}" if problem else _implausible(reader, path)
        contradiction = f"contradicts itself: {reader.declared.problem}" if reader.declared.problem else ""
        problem = problem or contradiction
        rank = _plausible(_rank(reader.properties, path))
        texts = {} if texts is None else texts
        keys, seconds = reader.keys, _seconds(reader.times)
        details = {
            place: _result(keys[place], rank or 0, seconds[place], more, texts) for place, more in reader.more.items()
        }
        file = RankFile(
            path=path,
            rank=rank,
            properties=reader.properties,
            keys=keys,
            seconds=seconds,
            at=_fill(reader.at, len(keys) if reader.at else 0, ABSENT),
            world_sizes=_fill(reader.world_sizes, len(keys) if reader.world_sizes else 0, 0),
            details=details,
            problem=f"{path.name} {problem}." if problem else "",
            note=reader.declared.note,
        )
        if keys is not self._known and len({key.nodeid for key in keys}) != len(keys):
            return _folded(file)
        self._known = keys
        return file


def stray_file(path: Path) -> RankFile:
    """What stands for a file that is not read, because it lies outside of the folder that it seems to lie in."""
    return RankFile(path=path, rank=_rank({}, path), problem=stray_text(path))


def read_rank_xml(path: Path) -> RankFile:
    """The results in one XML file, as :meth:`RankReader.read` gives them."""
    return RankReader().read(path)


def _inside(inside: bytes) -> tuple[str, _More] | None:
    """What a testcase says from the end of its attributes on; None for what expat has to see in its place."""
    is_one = inside.endswith(_END_OF_CASE) and inside.count(b"testcase") == 1 and b"testsuite" not in inside
    if not is_one or not inside.isascii() or _OF_ONE_RANK in inside:
        return None
    reader = _Reader((), KnownPieces(lambda _: None))
    try:
        reader.feed(b"<testsuite><testcase%b" % inside)
        reader.parser.Parse(b"</testsuite>", True)
    except expat.ExpatError:
        return None
    more = reader.more.get(0)
    return (more.properties.get("allranks.nodeid", ""), more) if more else None


def _feed(reader: _Reader, path: Path) -> str:
    """Parses the file into ``reader``; the cause when that did not work to its end, else nothing."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return "it is empty"
            _parse(reader, file)
    except _RefusedError as error:
        return str(error)
    except expat.ExpatError as error:
        return f"it is broken or cut short at line {error.lineno} ({expat.ErrorString(error.code)})"
    except (LookupError, ValueError) as error:
        return f"its encoding cannot be read ({error})"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _parse(reader: _Reader, file: BinaryIO) -> None:
    # An older expat begins anew with each chunk while an attribute goes on, so that 50 MB of one would take minutes:
    # while nothing comes out, what goes in doubles.
    size, fed = _FIRST_CHUNK, 0
    while chunk := file.read(size):
        fed += reader.feed(chunk)
        size = max(size * 2, _CHUNK) if fed - reader.parser.CurrentByteIndex > _CHUNK else _CHUNK
    reader.parser.Parse(b"", True)


def _rank(properties: Mapping[str, str], path: Path) -> int | None:
    """The rank: what the file says, else the last number of a ``rank`` token in its name."""
    said = _integer(properties.get("allranks.rank"))
    if said is not None:
        return said
    tokens = _RANK_TOKEN.findall(path.stem)
    return _integer(tokens[-1]) if tokens else None


def _plausible(rank: int | None) -> int | None:
    return None if rank is not None and rank >= MOST_RANKS else rank


def _implausible(reader: _Reader, path: Path) -> str:
    """What the file claims that cannot be, and would have every missing rank of it accounted for; empty for nothing."""
    rank, size = _rank(reader.properties, path), _integer(reader.properties.get("allranks.world_size"))
    if rank is not None and rank >= MOST_RANKS:
        return f"claims to be rank {rank}: no run has as many"
    if size is not None and size > MOST_RANKS:
        del reader.properties["allranks.world_size"]
        return f"claims a world of {size} ranks: no run has as many"
    return reader.claim


def _outcome_of_element(tag: str, attributes: Mapping[str, str]) -> Outcome:
    if attributes.get("type") == "pytest.xfail":
        return Outcome.XFAILED
    return _OUTCOME_TAGS.get(tag) or outcome_of(tag) or Outcome.ERRORED


def _result(key: Key, rank: int, duration: float, more: _More, texts: dict[str, str]) -> RankResult:
    outcome, message, text = max(more.outcomes, key=_severity_of_element, default=(Outcome.PASSED, "", ""))
    said = more.properties.get
    nodeid, stdout, stderr = key.nodeid, more.output.get("system-out", ""), more.output.get("system-err", "")
    return RankResult(
        nodeid=texts.setdefault(nodeid, nodeid),
        classname=key.classname,
        name=key.name,
        rank=rank,
        outcome=_outcome(said("allranks.outcome", ""), outcome, more),
        at=_number(said("allranks.at")),
        consequence=said("allranks.consequence") == "1",
        caused_by=_integer(said("allranks.caused_by")),
        skip_kind=_SKIP_KINDS.get(said("allranks.skip_kind", "")),
        skip_code=_integer(said("allranks.skip_code")),
        phase=said("allranks.phase", ""),
        message=texts.setdefault(message, message),
        text=texts.setdefault(text, text),
        duration=duration,
        stdout=texts.setdefault(stdout, stdout),
        stderr=texts.setdefault(stderr, stderr),
        world_size=_plausible_size(said("allranks.world_size")),
        reruns=tuple(more.reruns),
    )


def _plausible_size(said: str | None) -> int | None:
    size = _integer(said)
    return size if size and size <= MOST_RANKS else None


def _outcome(said: str, shown: Outcome, more: _More) -> Outcome:
    """What the property says, which knows more words than the elements, unless it contradicts them."""
    outcome = _OUTCOMES.get(said)
    if outcome is None or (
        more.outcomes and _ELEMENT_OF.get(outcome, Outcome.ERRORED) != _ELEMENT_OF.get(shown, Outcome.ERRORED)
    ):
        return shown
    return outcome


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
        note=file.note,
    )


def _severity_of_element(element: tuple[Outcome, str, str]) -> int:
    return severity(element[0])


def _seconds(times: Sequence[str | float | None]) -> "array[float]":
    """The durations that testcases state: 0 where one states none, or none that can be."""
    try:
        seconds = array("d", map(float, times))  # type: ignore[arg-type]  # what is None is a TypeError
    except (TypeError, ValueError):
        return array("d", map(_duration, times))
    if min(seconds, default=0.0) >= 0 and sum(seconds) <= MOST_SECONDS:  # false where one is no number
        return seconds
    return array("d", map(_duration, times))


def _duration(time: str | float | None) -> float:
    seconds = _number(time) or 0.0 if isinstance(time, str) else time or 0.0
    return seconds if 0 < seconds <= MOST_SECONDS else 0.0


def _fill(column: "array[_Number]", length: int, nothing: _Number) -> "array[_Number]":
    """The same column, with nothing for tests that said nothing."""
    column.extend(repeat(nothing, length - len(column)))
    return column


def _integer(value: str | None) -> int | None:
    """A whole number; of one that is beyond counting, its first digits are beyond counting, too."""
    return int(value[:_DIGITS]) if value and re.fullmatch("[0-9]+", value) else None


def _number(value: str | None) -> float | None:
    """A number that a clock may show; commas as thousands separators, which some runners write, are left out."""
    try:
        number = float((value or "").replace(",", ""))
    except ValueError:
        return None
    return number if abs(number) <= _MOST else None
