"""Reads testcases that are alike in the files of many ranks without expat, which nearly all are.

A million testcases take expat's handlers five seconds. Apart from its times, a testcase is mostly the same as in the
file of another rank, and is then known. A run of known testcases is replaced by one element for expat, which thus
still decides whether the document is well-formed and whether a testcase counts: within a failure's text it does not.
Text that is not exactly in pytest's form is left to expat.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from sys import intern
from typing import Final, NamedTuple

from allranks.report.case_details import CaseDetails
from allranks.report.results import ABSENT, Key


def _begin(text: str) -> str:
    """A testcase up to its time."""
    return f'<testcase classname="{text}" name="{text}" time="'


def _passed(text: str, size: str) -> str:
    """A plain pass of ours, from its time to its time of arrival."""
    values = {"nodeid": text, "outcome": "passed", "world_size": size}
    properties = "".join(f'<property name="allranks.{name}" value="{value}" />' for name, value in values.items())
    return f'"><properties>{properties}<property name="allranks.at" value="'


_TEXT: Final = r"([ !#-%'-;=-~]*+)"  # printable ASCII without double quotes, ampersands and angle brackets
_ANY: Final = '[^"]*+'
_SECONDS: Final = r"([0-9]{1,9}(?:\.[0-9]{1,12})?)"
_ARRIVAL: Final = r"([0-9]{1,12}(?:\.[0-9]{1,12})?)"
_SIZE: Final = "[1-9][0-9]{0,3}"
_BEGINNINGS: Final = re.compile(f"({_begin(_ANY)}){_SECONDS}(?:({_passed(_ANY, _SIZE)}){_ARRIVAL})?".encode("ascii"))
"""Splits a document: the text before the first testcase, and of each its beginning, time, middle, arrival and rest."""

_PARTS: Final = 5
_PASS: Final = f'{_passed(_TEXT, f"({_SIZE})")}\0" /></properties></testcase>'
_CASE: Final = re.compile(f'{_begin(_TEXT)}\0(?:{_PASS}|\0" ?/>|\0"(><(?s:.)*>))'.encode("ascii"))
"""A testcase with a null, which XML cannot have, for each of its times and of its times of arrival."""

_HIDING: Final = re.compile(rb"<[!?]")  # comments and the like: a testcase inside them does not count
_ENCODINGS: Final = frozenset({"ascii", "us-ascii", "utf-8"})
_MOST_BYTES: Final = 16 << 20
_MOST_KEPT: Final = 1 << 20  # from one job to the next
_MOST_SEEN: Final = 1 << 16


class Case(NamedTuple):
    """A testcase without its times."""

    key: Key
    world_size: int  # 0 if it states none
    more: CaseDetails | None  # None for a plain pass


class KnownCases:
    """The testcases of the files so far.

    ``parse`` takes a testcase from the end of its attributes to its end tag, and returns node id and details; None if
    the text is not such a testcase.
    """

    def __init__(self, parse: Callable[[bytes], tuple[str, CaseDetails] | None]) -> None:
        self._parse = parse
        self._known: dict[bytes, Case] = {}
        self._bytes = 0
        self._seen: set[int] = set()

    def end_job(self) -> None:
        """Forget all if that is much: it is needed only while the files of a job are read."""
        if self._bytes > _MOST_KEPT:
            self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._bytes = 0

    def read(self, begin: bytes, middle: bytes | None, rest: bytes) -> Case | None:
        """The testcase that the texts around its times make up; None if expat has to read it."""
        text = b"\0".join((begin, middle or b"", rest))
        return self._known.get(text) or self._learn(text)

    def _learn(self, text: bytes) -> Case | None:
        match = _CASE.fullmatch(text)
        if match is None:
            return None
        classname, name, said, size = (group.decode("ascii") for group in match.groups(b"")[:4])
        more = None
        if match[5]:
            inside = self._inside(match[5])
            if inside is None:
                return None
            said, more = inside
        if self._bytes + len(text) > _MOST_BYTES:
            self._forget()
        self._bytes += len(text)
        self._known[text] = found = Case(Key(intern(classname), name, said), int(size or 0), more)
        return found

    def _inside(self, rest: bytes) -> tuple[str, CaseDetails] | None:
        """Parse a testcase that is not a plain pass: worth caching if another rank reports the same."""
        seen = hash(rest)
        if seen in self._seen:
            return self._parse(rest)
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(seen)
        return None


class Run(NamedTuple):
    """Consecutive testcases."""

    cases: Sequence[Case]
    seconds: Sequence[float]
    at: Sequence[float]  # when their outcomes arrived; :data:`~allranks.report.results.ABSENT` where it is not given


class PlainCases:
    """Takes runs of known testcases out of one document."""

    def __init__(self, known: KnownCases) -> None:
        # The tag of the elements that replace runs; it is random, so no document can forge it.
        self.marker = f"run-{os.urandom(8).hex()}"
        self._known = known
        self._number = 0
        self._runs: dict[str, Run] = {}
        self._last: bytes | None = None
        self._takes = True

    def see_encoding(self, encoding: str | None) -> None:
        """Check the declared encoding of the document: in other encodings, a byte may be another letter."""
        self._takes = self._takes and (encoding or "utf-8").lower() in _ENCODINGS

    def see(self, chunk: bytes) -> None:
        """Inspect the next chunk without taking anything from it."""
        seen = chunk[2:] if self._last is None else self._last + chunk  # a declaration begins like an instruction
        self._takes = self._takes and not _HIDING.search(seen)
        self._last = chunk[-1:]

    def take(self, chunk: bytes) -> bytes:
        """The next chunk, with each run replaced by an element of the tag :attr:`marker`."""
        self.see(chunk)
        return b"".join(self._without_runs(_BEGINNINGS.split(chunk))) if self._takes else chunk

    def _without_runs(self, parts: list[bytes]) -> Iterator[bytes]:
        """The text that is left for expat: the last testcase, which may be incomplete, is always part of it.

        The parts are those of :data:`_BEGINNINGS`, None for a middle or an arrival that a testcase does not have.
        """
        begins, middles, rests = (parts[place:-_PARTS:_PARTS] for place in (1, 3, 5))
        done = 0
        for place, cases in _stretches(list(map(self._known.read, begins, middles, rests))):
            start, end = (1 + _PARTS * number for number in (place, place + len(cases)))
            seconds, arrivals = parts[start + 1 : end : _PARTS], parts[start + 3 : end : _PARTS]
            run = Run(cases, list(map(float, seconds)), [float(at) if at else ABSENT for at in arrivals])
            yield from filter(None, parts[done:start])
            yield self._leave(run, b"".join(parts[start + 4 : end : _PARTS]).count(b"\n"))
            done = end
        yield from filter(None, parts[done:])

    def _leave(self, run: Run, lines: int) -> bytes:
        """The element for a run, with as many line feeds as the run had, so that expat's line numbers stay right."""
        self._number += 1
        self._runs[str(self._number)] = run
        newlines = "\n" * lines
        return f'<{self.marker} n="{self._number}"{newlines}/>'.encode("ascii")

    def run(self, attributes: Mapping[str, str]) -> Run:
        """The testcases that the element with these attributes replaces."""
        return self._runs.pop(attributes["n"])


def _stretches(cases: Sequence[Case | None]) -> Iterator[tuple[int, list[Case]]]:
    """Sequences of known testcases, each with the position of its first one."""
    unknown = [place for place, case in enumerate(cases) if case is None]
    for before, after in pairwise((-1, *unknown, len(cases))):
        if after - before > 1:
            yield before + 1, [case for case in cases[before + 1 : after] if case]
