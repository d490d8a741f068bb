"""Reads testcases that are alike in the files of many ranks without expat, which nearly all are.

A million testcases take expat's handlers five seconds. The text between two of their times is mostly the same as in
the file of another rank, and is then known. A run of known testcases is replaced by one element for expat, which thus
still decides whether the document is well-formed and whether a testcase counts: within a failure's text it does not.
Text that is not exactly in pytest's form is left to expat.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from allranks.report.case_details import CaseDetails
from allranks.report.results import ABSENT, Key

_TEXT: Final = r"[ !#-%'-;=-~]*+"  # printable ASCII without double quotes, ampersands and angle brackets
_NUMBER: Final = r"[0-9]{{1,{digits}}}(?:\.[0-9]{{1,12}})?"
_END: Final = " />"
_TIME: Final = re.compile(f' time="({_NUMBER.format(digits=9)})"'.encode("ascii"))
_ARRIVAL: Final = re.compile(f'allranks.at" value="({_NUMBER.format(digits=12)})"'.encode("ascii"))
_PROPERTIES: Final = "".join(
    f'<property name="allranks.{name}" value="{value}" />'
    for name, value in (
        ("nodeid", f"({_TEXT})"),
        ("outcome", "passed"),
        ("world_size", "([1-9][0-9]{0,3})"),
        ("at", "0"),
    )
)
_PIECE: Final = re.compile(
    f"( ?/>|><properties>{_PROPERTIES}</properties></testcase>|><(?s:.)*>)"
    f'<testcase classname="({_TEXT})" name="({_TEXT})"'.encode("ascii")
)
_HIDING: Final = re.compile(rb"<[!?]")  # comments and the like: a testcase inside them does not count
_ENCODINGS: Final = frozenset({"ascii", "us-ascii", "utf-8"})
_MOST_BYTES: Final = 16 << 20
_MOST_SEEN: Final = 1 << 16


class Piece(NamedTuple):
    """The text between the times of two testcases: the rest of the first one, and the beginning of the second.

    Attributes:
        rest: The number of bytes that belong to the first one.
        said: The node id in the first one; empty if it has none.
        world_size: The world size in the first one; 0 if it has none.
        at: When the first one's outcome arrived; :data:`~allranks.report.results.ABSENT` if it is not given.
        more: The other content of the first one; None for a plain pass.
        key: Class name and name of the second one, without a stated node id.
    """

    rest: int
    said: str
    world_size: int
    at: float
    more: CaseDetails | None
    key: Key


class KnownPieces:
    """The pieces of the files so far.

    Args:
        parse: Parses a testcase from the end of its attributes to its end tag into the node id and all details;
            returns None if the text is not such a testcase.
    """

    def __init__(self, parse: Callable[[bytes], tuple[str, CaseDetails] | None]) -> None:
        self._parse = parse
        self._known: dict[bytes, Piece] = {}
        self._bytes = 0
        self._seen: set[int] = set()

    def read(self, pieces: Sequence[bytes]) -> list[Piece | None]:
        """The parsed pieces; None for each that expat has to read."""
        found = list(map(self._known.get, pieces))
        if None in found:
            found = [piece or self._with_arrival(text) for piece, text in zip(found, pieces, strict=True)]
        return found

    def _with_arrival(self, piece: bytes) -> Piece | None:
        """Look up an unknown piece as if it had arrived at 0: its time of arrival differs in every testcase."""
        arrival = _ARRIVAL.search(piece)
        if arrival is None:
            return self._learn(piece)
        usual = piece[: arrival.start(1)] + b"0" + piece[arrival.end(1) :]
        found = self._known.get(usual) or self._learn(usual)
        if found is None:
            return None
        rest = found.rest - 1 + len(arrival[1])
        return Piece(rest, found.said, found.world_size, float(arrival[1]), None, found.key)

    def _learn(self, piece: bytes) -> Piece | None:
        match = _PIECE.fullmatch(piece)
        if match is None:
            return None
        rest = match[1]
        said, size, classname, name = (group.decode("ascii") for group in match.groups(b"")[1:])
        more = None
        if not size and len(rest) > len(_END):
            inside = self._inside(rest)
            if inside is None:
                return None
            said, more = inside
        found = Piece(len(rest), said, int(size or 0), 0.0 if size else ABSENT, more, Key(classname, name))
        self._remember(piece, found)
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

    def _remember(self, piece: bytes, found: Piece) -> None:
        self._bytes += len(piece)
        if self._bytes > _MOST_BYTES:
            self._known.clear()
            self._bytes = len(piece)
        self._known[piece] = found


class Run(NamedTuple):
    """Consecutive testcases.

    Attributes:
        begins: The piece in which each of them begins.
        ends: The piece in which each of them ends.
    """

    times: list[float]
    begins: list[Piece]
    ends: list[Piece]


class PlainCases:
    """Takes runs of known testcases out of one document.

    Attributes:
        marker: The tag of the elements that replace runs; it is random, so no document can forge it.
    """

    def __init__(self, known: KnownPieces) -> None:
        self.marker = f"run-{secrets.token_hex(8)}"
        self._known = known
        self._runs: dict[str, Run] = {}
        self._number = 0
        self._last: bytes | None = None
        self._takes = True
        self._has_lines = False

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
        self._has_lines = b"\n" in chunk
        return b"".join(self._without_runs(_TIME.split(chunk))) if self._takes else chunk

    def _without_runs(self, parts: list[bytes]) -> Iterator[bytes]:
        """The text that is left for expat.

        Args:
            parts: The chunk's texts and times, alternating. A testcase is known if the texts on either side of its
                time are; the first and the last text are incomplete, so they are never known.
        """
        pieces = self._known.read(parts[2:-1:2])
        done = 0  # parts
        cut = 0  # bytes of the next part
        for first, stretch in _stretches(pieces):
            begins, ends = stretch[:-1], stretch[1:]
            before, after = 2 + 2 * first, 2 + 2 * (first + len(ends))  # the parts of the first and the last of them
            yield parts[done][cut:]
            yield from _rejoined([*parts[done + 1 : before], parts[before][: begins[0].rest]])
            taken = (parts[before][begins[0].rest :], *parts[before + 1 : after], parts[after][: ends[-1].rest])
            lines = sum(part.count(b"\n") for part in taken) if self._has_lines else 0
            yield self._leave(Run(list(map(float, parts[before + 1 : after : 2])), begins, ends), lines)
            done, cut = after, ends[-1].rest
        yield parts[done][cut:]
        yield from _rejoined(parts[done + 1 :])

    def _leave(self, run: Run, lines: int) -> bytes:
        """The element for a run, with as many line feeds as the run had, so that expat's line numbers stay right."""
        self._number += 1
        self._runs[str(self._number)] = run
        newlines = "\n" * lines
        return f'<{self.marker} n="{self._number}"{newlines}/>'.encode("ascii")

    def run(self, attributes: Mapping[str, str]) -> Run:
        """The testcases that the element with these attributes replaces."""
        return self._runs.pop(attributes["n"])


def _rejoined(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Times and texts, alternating, in their original form."""
    return (part if place % 2 else b' time="%b"' % part for place, part in enumerate(parts))


def _stretches(pieces: Sequence[Piece | None]) -> Iterator[tuple[int, list[Piece]]]:
    """Sequences of at least two known pieces, each with the position of its first piece."""
    unknown = [place for place, piece in enumerate(pieces) if piece is None]
    for before, after in pairwise((-1, *unknown, len(pieces))):
        if after - before > 2:
            yield before + 1, [piece for piece in pieces[before + 1 : after] if piece]
