"""Reads the JUnit XML of one rank, which allranks or another runner wrote, into columns.

A truncated file yields every testcase before the cut.
"""

from array import array
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Final
from xml.parsers import expat

from allranks.protocol.grouping import by_key
from allranks.protocol.records import MOST_RANKS
from allranks.report.case_details import CaseDetails
from allranks.report.folder import ResultFile, rejection
from allranks.report.junit_reader import JUnitReader, UnreadableError
from allranks.report.plain_cases import CaseRun, KnownCases, PlainCases
from allranks.report.results import NO_ARRIVAL, Arrivals, Durations, Key, RankFile, fold
from allranks.report.untrusted import number, whole_number
from allranks.report.vocabulary import UnknownError

_END_OF_CASE: Final = b"</testcase>"
_OF_ONE_RANK: Final = b"allranks.at"  # differs between ranks, so caching the testcase is useless
_OF_PYTEST: Final = "pytest"

PASSED_OUTPUT: Final = 256 * 1024
"""Characters of passed tests' output that are kept of one file: the output is shown if another rank failed."""


class _Columns(JUnitReader):
    """The columns of one file; it shares ``known``, the keys of the previous file, as long as its own are equal."""

    def __init__(self, known: tuple[Key, ...], cases: KnownCases, at: Arrivals, allowed: Collection[str]) -> None:
        super().__init__(allowed)
        self.seconds = Durations()
        self.at = at
        self.world_sizes = array("H")
        self.details: dict[int, CaseDetails] = {}
        self.properties: dict[str, str] = {}
        self.claimed_world = 0
        self._known = known
        self._keys: list[Key] | None = None
        self._output_left = PASSED_OUTPUT
        self._plain = PlainCases(cases)
        self.parser.XmlDeclHandler = lambda _, encoding, __: self._plain.check_encoding(encoding)

    @property
    def keys(self) -> tuple[Key, ...]:
        """The tests so far."""
        if self._keys is not None:
            return tuple(self._keys)
        return self._known if len(self.seconds) == len(self._known) else self._known[: len(self.seconds)]

    def for_expat(self, chunk: bytes) -> bytes:
        if self.suites and not self.is_of_googletest:
            return self._plain.replace(chunk)
        self._plain.check(chunk)
        return chunk

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Begin an element, or add the testcases that it replaces."""
        if tag == self._plain.marker:
            self.enter("testcase", {})
            self._add_run(self._plain.run(attributes))
        else:
            super().start(tag, attributes)

    def end(self, tag: str) -> None:
        if tag == self._plain.marker:
            self.tags.pop()
        else:
            super().end(tag)

    def _add_run(self, run: CaseRun) -> None:
        index = len(self.seconds)
        self.seconds.extend(run.seconds)
        self.suites[-1].own["tests"] += len(run.cases)
        keys = tuple([case.key for case in run.cases])
        if self._keys is not None or self._known[index : index + len(keys)] != keys:
            for number, key in enumerate(keys, index):
                self._add_key(number, key)
        if run.at.count(NO_ARRIVAL) < len(run.at):
            self.at.resize(index)
            self.at.extend(run.at)
            _fill(self.world_sizes, index).extend([case.world_size for case in run.cases])
        for number, details in [(number, case.details) for number, case in enumerate(run.cases, index) if case.details]:
            self.suites[-1].add(details, is_disabled=False)
            self._add_details(number, details)

    def add_case(self, case: Mapping[str, str], seconds: float, details: CaseDetails | None) -> None:
        index = len(self.seconds)
        self.seconds.extend([seconds])
        nodeid = details.properties.get("allranks.nodeid", "") if details else ""
        line = whole_number(case.get("line")) or 0
        line += self.suites[-1].name == _OF_PYTEST and "line" in case  # pytest counts lines from 0
        self._add_key(index, Key(case.get("classname", ""), case.get("name", ""), nodeid, case.get("file", ""), line))
        if details:
            self._add_details(index, details)

    def add_property(self, name: str, value: str) -> None:
        self.set_property(self.properties, name, value)

    def _add_key(self, index: int, key: Key) -> None:
        if self._keys is None and (index >= len(self._known) or key != self._known[index]):
            self._keys = list(self._known[:index])
        if self._keys is not None:
            self._keys.append(key)

    def _add_details(self, index: int, details: CaseDetails) -> None:
        if (at := number(details.properties.get("allranks.at"))) is not None:
            self.at.resize(index)
            self.at.extend([at])
        if (size := whole_number(details.properties.get("allranks.world_size"))) is not None:
            if size <= MOST_RANKS:
                _fill(self.world_sizes, index).append(size)
            else:
                self.claimed_world = size
        if not details.outcomes:
            self._output_left -= sum(map(len, details.output.values()))
            details = details if self._output_left >= 0 else replace(details, output={})
        if not details.has_passed:
            self.details[index] = details


class RankReader:
    """Reads files of ranks, and caches the tests of the last file: those of the next one are mostly the same."""

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = allowed
        self._known: tuple[Key, ...] = ()
        self._world_sizes = array("H")
        self._cases = KnownCases(_inside)
        self._texts: dict[str, str] = {}
        self._first_arrivals = array("d")

    def end_job(self) -> None:
        """Forget what only the files of one job have in common, and anything else that takes much memory."""
        self._texts = {}
        self._first_arrivals = array("d")
        self._cases.end_job()

    def read(self, path: Path, *, rank: int | None = None) -> RankFile:
        """Read one XML file; ``rank`` is the rank that its path states, or None if only the content states it.

        Never raises for the content of the file: a broken, truncated, empty, binary or foreign file has a
        :attr:`RankFile.problem <allranks.report.results.RankFile.problem>` and the testcases before the error. Several
        testcases of one test (pytest writes a failed call and a failed tear-down as two) are folded into the worst one.
        """
        reader = _Columns(self._known, self._cases, Arrivals(self._first_arrivals), self._allowed)
        problem, remedy = _read(reader, path)
        stated = whole_number(reader.properties.get("allranks.rank"))
        problem = problem or _implausible(reader, stated, rank)
        rank = stated if rank is None else rank
        if not problem and reader.problem:
            problem = f"contradicts itself: {reader.problem}"
        rank = None if rank is not None and rank >= MOST_RANKS else rank
        keys, seconds = reader.keys, reader.seconds
        details = {
            index: details.result(keys[index], rank or 0, seconds[index], self._texts)
            for index, details in reader.details.items()
        }
        if reader.at:
            reader.at.resize(len(keys))
        if (sizes := _fill(reader.world_sizes, len(keys) if reader.world_sizes else 0)) != self._world_sizes:
            self._world_sizes = sizes
        file = RankFile(
            path=path,
            rank=rank,
            properties=reader.properties,
            keys=keys,
            seconds=seconds,
            at=reader.at,
            world_sizes=self._world_sizes,
            details=details,
            problem="\n".join(filter(None, (f"{path.name} {problem}.", remedy))) if problem else "",
            note=reader.note,
        )
        if keys is not self._known and len({key.nodeid for key in keys}) != len(keys):
            return _folded(file)
        self._known = keys
        return file


def rejected_file(file: ResultFile) -> RankFile:
    """The placeholder for a file that is not a regular file inside the results folder."""
    return RankFile(path=file.path, rank=file.rank, problem=rejection(file.path))


def _inside(inside: bytes) -> tuple[str, CaseDetails] | None:
    """Parse a testcase from the end of its attributes on; None if expat must read it in place."""
    is_one = inside.endswith(_END_OF_CASE) and inside.count(b"testcase") == 1 and b"testsuite" not in inside
    if not is_one or not inside.isascii() or _OF_ONE_RANK in inside:
        return None
    reader = _Columns((), KnownCases(lambda _: None), Arrivals(array("d")), ())
    try:
        reader.parser.Parse(b"<testsuite><testcase%b" % inside, False)
        reader.parser.Parse(b"</testsuite>", True)
    except (expat.ExpatError, UnknownError):
        return None
    details = reader.details.get(0)
    if details is None or reader.problem:
        return None
    return details.properties.get("allranks.nodeid", ""), details


def _read(reader: _Columns, path: Path) -> tuple[str, str]:
    """Read the file; return why that failed and the remedy, or empty texts."""
    try:
        for _ in reader.feed(path):
            pass
    except UnreadableError as error:
        return f"cannot be read to the end: {error.why}", error.remedy
    except OSError as error:
        return f"cannot be read to the end: {error.strerror or error}", ""
    return "", ""


def _implausible(reader: _Columns, stated: int | None, rank: int | None) -> str:
    """Why the file's rank or world size is implausible; a huge one would create as many missing results."""
    largest = max(stated or 0, rank or 0)
    if largest >= MOST_RANKS:
        return f"states rank {largest}, but no run has that many ranks"
    if stated is not None and rank is not None and stated != rank:
        return f"states rank {stated} in allranks.rank, but its path states rank {rank}"
    size = whole_number(reader.properties.get("allranks.world_size")) or 0
    if size > MOST_RANKS:
        del reader.properties["allranks.world_size"]
    else:
        size = reader.claimed_world
    return f"states a world size of {size}, but no run has that many ranks" if size else ""


def _folded(file: RankFile) -> RankFile:
    """Fold several results of one test; tests stay in the order of their first result."""
    results = [fold(same) for same in by_key((result.nodeid, result) for result in file.results).values()]
    keys = {key.nodeid: key for key in reversed(file.keys)}
    return replace(
        file,
        keys=tuple(keys[result.nodeid]._replace(stated_nodeid=result.nodeid) for result in results),
        seconds=Durations.of([result.duration for result in results]),
        at=Arrivals(array("d")),
        world_sizes=array("H"),
        details=dict(enumerate(results)),
    )


def _fill(sizes: "array[int]", length: int) -> "array[int]":
    """Fill up the column for tests that state no world size, and return it."""
    sizes.extend(repeat(0, length - len(sizes)))
    return sizes
