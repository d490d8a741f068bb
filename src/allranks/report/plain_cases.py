"""Reads testcases without expat if the files of other ranks have the same ones, as nearly all do.

A million testcases take expat's handlers five seconds. A testcase that was read before, with other times in the file of
another rank, is *known*. Consecutive known testcases are replaced by one element before expat reads the document. Expat
still checks that the document is well-formed, and where testcases are: one inside the text of a failure does not count.
Text that is not exactly in pytest's form is left to expat.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from sys import intern
from typing import Final, NamedTuple

from allranks.report.case_details import CaseDetails
from allranks.report.results import NO_ARRIVAL, Key


def _begin(text: str) -> str:
    """A testcase up to its time."""
    return f'<testcase classname="{text}" name="{text}" time="'


def _passed(text: str, size: str) -> str:
    """A plain pass as allranks writes it, from its time to its time of arrival."""
    values = {"nodeid": text, "outcome": "passed", "world_size": size}
    properties = "".join(f'<property name="allranks.{name}" value="{value}" />' for name, value in values.items())
    return f'"><properties>{properties}<property name="allranks.at" value="'


_TEXT: Final = r"([ !#-%'-;=-~]*+)"  # printable ASCII without double quotes, ampersands and angle brackets
_ANY: Final = '[^"]*+'
_SECONDS: Final = r"([0-9]{1,9}(?:\.[0-9]{1,12})?)"
_ARRIVAL: Final = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
_SIZE: Final = "[1-9][0-9]{0,3}"
_BEGINNINGS: Final = re.compile(f"({_begin(_ANY)}){_SECONDS}(?:({_passed(_ANY, _SIZE)}){_ARRIVAL})?".encode("ascii"))
"""Splits a document: the text before the first testcase, then the begin, time, middle, arrival and rest of each."""

_PARTS: Final = 5
_PASS: Final = f'{_passed(_TEXT, f"({_SIZE})")}\0" /></properties></testcase>'
_CASE: Final = re.compile(f'{_begin(_TEXT)}\0(?:{_PASS}|\0" ?/>|\0"(><(?s:.)*>))'.encode("ascii"))
"""A testcase whose time and time of arrival are each replaced by a null character, which XML cannot have."""

_HIDING: Final = re.compile(rb"<[!?]")  # comments and similar: a testcase inside them does not count
_ENCODINGS: Final = frozenset({"ascii", "us-ascii", "utf-8"})
_BYTES_LIMIT: Final = 16 << 20
_KEPT_LIMIT: Final = 1 << 20  # bytes that are kept from one job to the next
_SEEN_LIMIT: Final = 1 << 16


class Case(NamedTuple):
    """A testcase without its times."""

    key: Key
    world_size: int  # 0 if it states none
    details: CaseDetails | None  # None for a plain pass


class KnownCases:
    """The testcases of the files so far.

    Args:
        parse: Parses a testcase from the end of its attributes to its end tag, and returns node id and details; None if
            the text is not such a testcase.
    """

    def __init__(self, parse: Callable[[bytes], tuple[str, CaseDetails] | None]) -> None:
        self._parse = parse
        self._known: dict[bytes, Case] = {}
        self._bytes = 0
        self._seen: set[int] = set()

    def end_job(self) -> None:
        """Forget the testcases if they take much memory: they are needed while the files of one job are read."""
        if self._bytes > _KEPT_LIMIT:
            self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0

    def read(self, begin: bytes, middle: bytes | None, rest: bytes) -> Case | None:
        """The testcase with these texts around its times; None if expat has to read it."""
        text = b"\0".join((begin, middle or b"", rest))
        return self._known.get(text) or self._add(text)

    def _add(self, text: bytes) -> Case | None:
        match = _CASE.fullmatch(text)
        if match is None:
            return None
        classname, name, nodeid, size = (group.decode("ascii") for group in match.groups(b"")[:4])
        details = None
        if match[5]:
            inside = self._inside(match[5])
            if inside is None:
                return None
            nodeid, details = inside
        if self._bytes + len(text) > _BYTES_LIMIT:
            self._forget()
        self._bytes += len(text)
        self._known[text] = case = Case(Key(intern(classname), name, nodeid), int(size or 0), details)
        return case

    def _inside(self, rest: bytes) -> tuple[str, CaseDetails] | None:
        """Parse a testcase that is not a plain pass, if another rank has reported the same."""
        seen = hash(rest)
        if seen in self._seen:
            return self._parse(rest)
        if len(self._seen) >= _SEEN_LIMIT:
            self._seen.clear()
        self._seen.add(seen)
        return None


class CaseRun(NamedTuple):
    """Consecutive testcases."""

    cases: Sequence[Case]
    seconds: Sequence[float]
    at: Sequence[float]  # times of arrival; :data:`~allranks.report.results.NO_ARRIVAL` if not stated


class PlainCases:
    """Replaces runs of known testcases in one document."""

    def __init__(self, known: KnownCases) -> None:
        # The tag of the elements that replace runs; it is random, so that no document can forge it.
        self.marker = f"run-{os.urandom(8).hex()}"
        self._known = known
        self._number = 0
        self._runs: dict[str, CaseRun] = {}
        self._last: bytes | None = None
        self._is_enabled = True

    def check_encoding(self, encoding: str | None) -> None:
        """Leave a document in another encoding to expat: a byte may be another letter there."""
        self._is_enabled = self._is_enabled and (encoding or "utf-8").lower() in _ENCODINGS

    def check(self, chunk: bytes) -> None:
        """Check the next chunk without replacing anything in it."""
        text = chunk[2:] if self._last is None else self._last + chunk  # the XML declaration also begins with <?
        self._is_enabled = self._is_enabled and not _HIDING.search(text)
        self._last = chunk[-1:]

    def replace(self, chunk: bytes) -> bytes:
        """The next chunk, with each run replaced by an element of the tag :attr:`marker`."""
        self.check(chunk)
        return b"".join(self._without_runs(_BEGINNINGS.split(chunk))) if self._is_enabled else chunk

    def _without_runs(self, fragments: list[bytes]) -> Iterator[bytes]:
        """The text that is left for expat, which always includes the last testcase: it may be incomplete.

        The fragments are those of :data:`_BEGINNINGS`, with None for a middle or an arrival that a testcase lacks.
        """
        begins, middles, rests = (fragments[offset:-_PARTS:_PARTS] for offset in (1, 3, 5))
        done = 0
        for index, cases in _known_runs(list(map(self._known.read, begins, middles, rests))):
            start, end = (1 + _PARTS * number for number in (index, index + len(cases)))
            seconds, arrivals = fragments[start + 1 : end : _PARTS], fragments[start + 3 : end : _PARTS]
            run = CaseRun(cases, list(map(float, seconds)), [float(at) if at else NO_ARRIVAL for at in arrivals])
            yield from filter(None, fragments[done:start])
            yield self._element(run, b"".join(fragments[start + 4 : end : _PARTS]).count(b"\n"))
            done = end
        yield from filter(None, fragments[done:])

    def _element(self, run: CaseRun, lines: int) -> bytes:
        """The element for a run, with as many line feeds as the run, so that expat's line numbers stay correct."""
        self._number += 1
        self._runs[str(self._number)] = run
        newlines = "\n" * lines
        return f'<{self.marker} n="{self._number}"{newlines}/>'.encode("ascii")

    def run(self, attributes: Mapping[str, str]) -> CaseRun:
        """The testcases that the element with these attributes replaced."""
        return self._runs.pop(attributes["n"])


def _known_runs(cases: Sequence[Case | None]) -> Iterator[tuple[int, list[Case]]]:
    """Sequences of known testcases, each with the index of its first one."""
    unknown = [index for index, case in enumerate(cases) if case is None]
    for before, after in pairwise((-1, *unknown, len(cases))):
        if after - before > 1:
            yield before + 1, [case for case in cases[before + 1 : after] if case]
