"""The packed list of all testcases, which the browser searches, filters and shows.

The browser's own ``DecompressionStream`` unpacks it (Chrome 80, Firefox 113, Safari 16.4).

A block of rows is one line of JSON: names (each with how much of its beginning it shares with the one before), verdict
letters, milliseconds, and what only a few rows have. A test that passed on all ranks costs a letter, a number and, the
first time, its name.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

_LEVEL: Final = 6


class Packer:
    """Packs lines of JSON as they come; keeps no more than the packed bytes."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL)
        self._packed = bytearray()

    @property
    def size(self) -> int:
        """Packed bytes so far."""
        return len(self._packed)

    def add(self, value: object) -> None:
        """Pack a value as one line."""
        self._packed += self._deflate.compress(dumps(value) + b"\n")
        # Without this the size would lag behind by what zlib holds back, which may be most of a small page.
        self._packed += self._deflate.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> str:
        """Everything, in base64; nothing can be added after it."""
        self._packed += self._deflate.flush()
        return base64.b64encode(self._packed).decode()


def pack(value: object) -> str:
    """One value, packed by itself."""
    return base64.b64encode(zlib.compress(dumps(value), _LEVEL)).decode()


def dumps(value: object) -> bytes:
    """Compact JSON in ASCII: no character of it means anything to HTML's or JavaScript's line ends."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()


BUDGET: Final = 640 * 1024
"""Packed bytes from which on tests that simply passed are counted and no longer listed."""

MOST_NAMES: Final = 60_000
"""Different names that tests which simply passed may bring in: names are held in memory until the page is written."""

_BLOCK: Final = 1000


@dataclass(frozen=True)
class _Stem:
    """What the next name is likely to begin with: file and class of the one before.

    Attributes:
        units: Its length as JavaScript counts it.
    """

    text: str = ""
    units: int = 0

    @classmethod
    def of(cls, nodeid: str) -> Self:
        text = nodeid[: nodeid.rfind("::") + 2] if "::" in nodeid else ""
        return cls(text, len(text.encode("utf-16-le")) // 2)


class Index:
    """Takes the testcases of a run, job by job."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._names: dict[str, int] = {}
        self._stem = _Stem()
        self._left_out: dict[int, int] = {}
        self._begin(0)

    @property
    def left_out(self) -> Mapping[int, int]:
        """For each job, how many of its tests simply passed and are not listed."""
        return self._left_out

    def add_passed(self, job: int, nodeid: str, seconds: float, extra: Mapping[str, Any] | None) -> bool:
        """A test that simply passed; False where there is no room for it."""
        full = self._packer.size > BUDGET or (len(self._names) >= MOST_NAMES and nodeid not in self._names)
        if full:
            self._left_out[job] = self._left_out.get(job, 0) + 1
            return False
        self.add(job, nodeid, "P", seconds, extra)
        return True

    def add(self, job: int, nodeid: str, letter: str, seconds: float, extra: Mapping[str, Any] | None) -> None:
        """A testcase, whatever room there is.

        Args:
            job: Number of its job.
            nodeid: Made readable.
            letter: Of its verdict.
            seconds: Of its slowest rank.
            extra: What only a few testcases have, for the script.
        """
        if job != self._job or len(self._letters) >= _BLOCK:
            self._flush()
            self._begin(job)
        if extra:
            self._extras[len(self._letters)] = extra
        self._numbers.append(self._number(nodeid))
        self._letters.append(letter)
        self._times.append(round(seconds * 1000))

    def name_number(self, nodeid: str) -> int | None:
        """The number by which the script knows a name; None for one that is not listed."""
        return self._names.get(nodeid)

    def finish(self, rest: Mapping[str, Any]) -> str:
        """All rows and, as the last line, the rest of what the script needs."""
        self._flush()
        self._packer.add(rest)
        return self._packer.finish()

    def _begin(self, job: int) -> None:
        self._job = job
        self._letters: list[str] = []
        self._numbers: list[int] = []
        self._times: list[int] = []
        self._extras: dict[int, Mapping[str, Any]] = {}
        self._shared: list[int] = []
        self._endings: list[str] = []

    def _number(self, nodeid: str) -> int:
        number = self._names.get(nodeid)
        if number is None:
            number = self._names[nodeid] = len(self._names)
            if self._stem.text and nodeid.startswith(self._stem.text):
                self._shared.append(self._stem.units)
                self._endings.append(nodeid[len(self._stem.text) :])
            else:
                self._stem = _Stem.of(nodeid)
                self._shared.append(0)
                self._endings.append(nodeid)
        return number

    def _flush(self) -> None:
        if self._letters:
            block = {
                "j": self._job,
                "n": _runs(self._numbers),
                "v": "".join(self._letters),
                "t": self._times,
                "p": self._shared,
                "s": self._endings,
                "x": self._extras,
            }
            self._packer.add(block)


def _runs(numbers: list[int]) -> list[int]:
    """``[first, count, first, count, ...]``: names mostly come in the order in which they came the first time."""
    runs: list[int] = []
    for number in numbers:
        if runs and number == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += [number, 1]
    return runs
