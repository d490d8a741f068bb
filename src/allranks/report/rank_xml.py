"""Reads the JUnit XML of one rank: ours, and what plain pytest or a unittest runner writes.

The file is streamed through expat, so that a truncated one yields every testcase before the cut. Nothing in it can make
the reader fetch or expand anything: a document type declaration, the only way to declare an entity, is refused.
"""

import os
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, Final, TypeVar
from xml.parsers import expat

from allranks.protocol.outcomes import Outcome
from allranks.protocol.records import MOST_RANKS
from allranks.protocol.xml_text import cut
from allranks.report.declared import CaseDetails, Declarations
from allranks.report.folder import ROOTS, ResultFile, is_merged_report, stray_text
from allranks.report.outcome_words import (
    OUTPUT_TAGS,
    SILENT,
    element_said,
    has_value,
    is_bad,
    is_of_interest,
    outcomes_said,
)
from allranks.report.plain_cases import KnownPieces, PlainCases, Run
from allranks.report.results import ABSENT, Key, RankFile, RankResult, fold
from allranks.report.untrusted import durations, number, open_regular, whole_number

_Number = TypeVar("_Number", int, float)

_CHUNK: Final = 1 << 18
_FIRST_CHUNK: Final = 1 << 10  # the chunk with the declaration and the root goes to expat whole
_OUTCOME_TAGS: Final = ("failure", "error", "skipped")
_OF_PROPERTY: Final = frozenset({"name", "value"})
_STRUCTURE: Final = frozenset({*ROOTS, "testcase"})
_END_OF_CASE: Final = b"</testcase>"
_OF_ONE_RANK: Final = b"allranks.at"  # not worth caching
_NO_KEY: Final = Key("", "", "-")

PASSED_OUTPUT: Final = 256 * 1024
"""Characters kept of passing tests' output in one file: it is shown if another rank went wrong."""


class _RefusedError(Exception):
    """The document is well-formed so far, but not one that a rank would write."""


class _Reader:
    """The expat handlers and the data they have collected.

    Args:
        known: The tests of a file that was read before. If this one has the same tests, it shares their names.
    """

    def __init__(self, known: tuple[Key, ...], pieces: KnownPieces) -> None:
        self.times: list[str | float | None] = []
        self.at = array("d")
        self.world_sizes = array("H")
        self.more: dict[int, CaseDetails] = {}
        self.properties: dict[str, str] = {}
        self.claimed_world = 0
        self._known = known
        self._keys: list[Key] | None = None
        self._room = PASSED_OUTPUT
        self._suite = ""
        self.declared = Declarations()
        self._more: CaseDetails | None = None
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
        """Parse the next bytes of the document; return how many of them were left for expat."""
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
        if tag not in ROOTS:
            msg = f"its root element is <{tag[:40]}>, and JUnit XML begins with <testsuites> or <testsuite>"
            raise _RefusedError(msg)
        self._has_begun = True
        self.declared.begin(attributes, 0)
        self._listen()

    def _listen(self) -> None:
        """Set the handlers for the elements below the root.

        They run for each of a million testcases, nearly all of which have a known name and no content: hence
        closures with shared variables, which are a third faster than methods with attributes.
        """
        case: Mapping[str, str] | None = None
        known, times, marker = self._known, self.times, self._plain.marker
        cases = frozenset({*ROOTS, "testcase", marker})

        def start(tag: str, attributes: Mapping[str, str]) -> None:
            nonlocal case
            if case is not None and tag in cases:
                self.declared.contradiction(f"a {'suite' if tag in ROOTS else 'testcase'} is nested in a testcase")
                case = None
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
                if case is None and tag in ROOTS:
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
                or not ended.keys() <= SILENT
            ):
                self._end_case(place, ended, self._more)

        self._start, self._end = start, end
        self.parser.StartElementHandler, self.parser.EndElementHandler = start, end

    def _add_run(self, run: Run) -> None:
        place = len(self.times)
        self.times.extend(run.times)
        said, at = [each.said for each in run.ends], [each.at for each in run.ends]
        keys: list[tuple[str, str, str, str, int]] = [each.key for each in run.begins]
        if any(said):
            keys = [(key[0], key[1], nodeid, "", 0) for key, nodeid in zip(keys, said, strict=True)]
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
        """Handle the start of an element outside testcases: some writers put the errors of a whole suite there."""
        if tag == "property":
            self._add_property(self.properties, attributes)
        elif tag in ROOTS:
            self._suite = attributes.get("name", "")
            self.declared.begin(attributes, len(self.times))
        elif tag in _OUTCOME_TAGS:
            self._tell(tag, attributes, self._add_suite)
        elif tag.rpartition(":")[2].lower() in _STRUCTURE or is_bad(tag) or any(element_said(tag, attributes, "")):
            self.declared.contradiction(f"<{tag[:40]}> is in no testcase, and not known")

    def _add_property(self, known: dict[str, str], attributes: Mapping[str, str]) -> None:
        name, value = attributes.get("name", ""), attributes.get("value", "")
        if known.setdefault(name, value) != value and name.startswith("allranks."):
            self.declared.contradiction(f"{name[:40]} is {known[name][:40]} and {value[:40]}")

    def _add_suite(self, tag: str, attributes: Mapping[str, str], text: str) -> None:
        more = CaseDetails()
        more.add(tag, attributes, text)
        self.declared.suite(more.outcomes[0][0])
        self.times.append(None)
        self._name(len(self.times) - 1, Key(self._suite, "(suite)"))
        self._keep(len(self.times) - 1, more)

    def _inside(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an element within a testcase."""
        if self._more is None:
            self._more = CaseDetails()
        if tag == "property":
            self._add_property(self._more.properties, attributes)
        if (tag != "property" or attributes.keys() - _OF_PROPERTY) and is_of_interest(tag, attributes):
            self._tell(tag, attributes, self._more.add)

    def _tell(
        self, tag: str, attributes: Mapping[str, str], add: Callable[[str, Mapping[str, str], str], None]
    ) -> None:
        """Collect the text of an element up to its end, including the text of nested elements."""
        text: list[str] = []

        def start(nested: str, said: Mapping[str, str]) -> None:
            went_wrong = is_bad(nested) or any(element_said(nested, said, ""))
            if has_value(tag) and went_wrong:
                add(nested, said, "")
            elif tag not in OUTPUT_TAGS and went_wrong and not is_bad(tag):
                self.declared.contradiction(f"<{nested[:40]}> is nested in <{tag}>")

        def end(ended: str) -> None:
            if ended == tag:
                self.parser.CharacterDataHandler = None
                self.parser.StartElementHandler, self.parser.EndElementHandler = self._start, self._end
                add(tag, attributes, cut("".join(text)))

        self.parser.StartElementHandler, self.parser.EndElementHandler = start, end
        self.parser.CharacterDataHandler = text.append

    def _end_case(self, place: int, case: Mapping[str, str], more: CaseDetails | None) -> None:
        """Handle the end of a testcase that has a new name, content, or unusual attributes."""
        nodeid = more.properties.get("allranks.nodeid", "") if more else ""
        line = whole_number(case.get("line")) or 0
        line += self._suite == "pytest" and "line" in case  # pytest counts lines from 0
        self._name(place, Key(case.get("classname", ""), case.get("name", ""), nodeid, case.get("file", ""), line))
        said = [told for told in outcomes_said(case) if told[0] is not Outcome.PASSED]
        if more or said:
            more = more or CaseDetails()
            more.end(said)
            self.declared.case(more.counts)
            self._keep(place, more)

    def _name(self, place: int, key: Key) -> None:
        if self._keys is None and (place >= len(self._known) or key != self._known[place]):
            self._keys = list(self._known[:place])
        if self._keys is not None:
            self._keys.append(key)

    def _keep(self, place: int, more: CaseDetails) -> None:
        said = more.properties.get
        if (at := number(said("allranks.at"))) is not None:
            _fill(self.at, place, ABSENT).append(at)
        if (size := whole_number(said("allranks.world_size"))) is not None:
            if size <= MOST_RANKS:
                _fill(self.world_sizes, place, 0).append(size)
            else:
                self.claimed_world = size
        if not more.outcomes:
            self._room -= sum(map(len, more.output.values()))
            more = more if self._room >= 0 else replace(more, output={})
        if not more.has_passed:
            self.more[place] = more


class RankReader:
    """Reads files of ranks, and caches the tests of the last one: those of the next rank are mostly the same."""

    def __init__(self) -> None:
        self._known: tuple[Key, ...] = ()
        self._pieces = KnownPieces(_inside)

    def read(self, path: Path, texts: dict[str, str] | None = None, *, rank: int | None = None) -> RankFile:
        """The results in one XML file.

        Never raises for the content of the file: a broken, truncated, empty, binary or foreign file becomes a
        :attr:`RankFile.problem <allranks.report.results.RankFile.problem>`, and the testcases before the break stay.
        Several testcases of one test (pytest writes a failed call and a failed tear-down as two) are folded into one,
        the worst. Equal texts become one object, kept in ``texts``.

        Args:
            path: The file.
            texts: The texts of files that were read before.
            rank: The rank by the file's path; None if only the file itself may state it.
        """
        reader = _Reader(self._known, self._pieces)
        problem = _feed(reader, path)
        said = whole_number(reader.properties.get("allranks.rank"))
        problem = f"cannot be read to its end: {problem}" if problem else _implausible(reader, said, rank)
        rank = said if rank is None else rank
        if not problem and reader.declared.problem:
            problem = f"contradicts itself: {reader.declared.problem}"
        rank = None if rank is not None and rank >= MOST_RANKS else rank
        texts = {} if texts is None else texts
        keys, seconds = reader.keys, durations(reader.times)
        details = {
            place: more.result(keys[place], rank or 0, seconds[place], texts) for place, more in reader.more.items()
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


def stray_file(file: ResultFile) -> RankFile:
    """A placeholder for a file that is not read, because it is not a regular file inside the results folder."""
    return RankFile(path=file.path, rank=file.rank, problem=stray_text(file.path))


def _inside(inside: bytes) -> tuple[str, CaseDetails] | None:
    """Parse a testcase from the end of its attributes on; None if expat must read it in place."""
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
    if more is None or reader.declared.problem:
        return None
    return more.properties.get("allranks.nodeid", ""), more


def _feed(reader: _Reader, path: Path) -> str:
    """Parses the file into ``reader``; returns why that failed, or an empty text."""
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
    # An older expat rescans an unfinished attribute with each chunk, so that one of 50 MB would take minutes: the
    # chunk size doubles until expat reports something.
    size, fed = _FIRST_CHUNK, 0
    while chunk := file.read(size):
        fed += reader.feed(chunk)
        size = max(size * 2, _CHUNK) if fed - reader.parser.CurrentByteIndex > _CHUNK else _CHUNK
    reader.parser.Parse(b"", True)


def _implausible(reader: _Reader, said: int | None, rank: int | None) -> str:
    """Why the file's rank or world size is implausible: each missing rank would get a result; empty if it is not."""
    most = max(said or 0, rank or 0)
    if most >= MOST_RANKS:
        return f"claims to be rank {most}: no run has that many"
    if said is not None and rank is not None and said != rank:
        return f"states in allranks.rank that it is of rank {said}, and its path states rank {rank}"
    size = whole_number(reader.properties.get("allranks.world_size")) or 0
    if size > MOST_RANKS:
        del reader.properties["allranks.world_size"]
    else:
        size = reader.claimed_world
    return f"claims a world of {size} ranks: no run has that many" if size else ""


def _folded(file: RankFile) -> RankFile:
    """The file with each test once, in order of first appearance."""
    by_test: dict[str, list[RankResult]] = {}
    for result in file.results:
        by_test.setdefault(result.nodeid, []).append(result)
    results = [fold(same) for same in by_test.values()]
    places = {key.nodeid: key for key in reversed(file.keys)}
    return replace(
        file,
        keys=tuple(places[result.nodeid]._replace(said=result.nodeid) for result in results),
        seconds=array("d", (result.duration for result in results)),
        at=array("d"),
        world_sizes=array("H"),
        details=dict(enumerate(results)),
    )


def _fill(column: "array[_Number]", length: int, nothing: _Number) -> "array[_Number]":
    """The same column, filled up with ``nothing`` for tests without a value."""
    column.extend(repeat(nothing, length - len(column)))
    return column


def problem_of(report: Path) -> str:
    """Why the XML of another writer cannot be trusted, as where ranks' XML is merged; empty if it can."""
    return "" if is_merged_report(report) else RankReader().read(report).problem
