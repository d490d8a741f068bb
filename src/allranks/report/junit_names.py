"""Names of testcases that stay apart in their suite, whatever a client makes of them.

Clients do not compare names as they stand. Allure knows a test by ``classname.name``, with the white space at its ends
gone; xunit-viewer by a hash of 32 bits over name and class name, under which ``[Aa]`` is ``[BB]``; and one of two tests
that a client takes for the same is lost from its counts. The later one gets a number, until it is none of the others.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, count
from operator import mul
from typing import Final

from allranks.report.judged import JobFacts
from allranks.report.junit_form import JUnitForm
from allranks.report.model import TestVerdict
from allranks.report.xml_text import readable, remembered

NAME_LIMIT: Final = 2000
"""Characters that a name may have: parameters end up in names, and pytest has no limit for them."""

NAMELESS: Final = "(no name)"

_BITS: Final = 0xFFFFFFFF
_BASE: Final = 31
_STRIDE: Final = 128
"""Units at the beginning of a name that are summed at once: seldom is one longer."""

_POWERS: Final = tuple(pow(_BASE, place, _BITS + 1) for place in reversed(range(_STRIDE)))
_PLAIN: Final = re.compile(r"[!-~]+").fullmatch

Name = tuple[str, str]
"""Class name and name of a testcase."""

Identities = tuple[str, int]
"""What clients know a testcase by: its full name, and xunit-viewer's number."""


def unique_names(suite: JobFacts, tests: Sequence[TestVerdict], form: JUnitForm) -> Iterator[Name]:
    """The class name and the name of each testcase, readable and unique in the suite.

    The first of several that are alike keeps its name, and no number makes a name that another test has by itself.
    """
    prefix = shown(f"{suite.cell}.{suite.suite}") if form.says_cell else ""
    classes = _Classes(prefix)
    names = [(classes.shown(test.classname), shown(test.name)) for test in tests]
    natural = [classes.identities(name) for name in names]
    reserved: set[str | int] = set(chain.from_iterable(natural))
    if len(reserved) == 2 * len(names):
        yield from names  # nearly every suite
        return
    taken: set[str | int] = set()
    for name, identities in zip(names, natural, strict=True):
        if taken.isdisjoint(identities):
            taken.update(identities)
            yield name
        else:
            yield _numbered(name, classes, taken, reserved)


def shown(name: str) -> str:
    """A name as it is shown: readable, never empty, and hardly longer than :data:`NAME_LIMIT`."""
    if len(name) > NAME_LIMIT:
        half = NAME_LIMIT // 2
        name = f"{name[:half]}[... {len(name) - 2 * half} characters cut here ...]{name[-half:]}"
    name = readable(name)
    return name if name.strip() else NAMELESS


def _numbered(name: Name, classes: "_Classes", taken: set[str | int], reserved: AbstractSet[str | int]) -> Name:
    classname, stem = name
    for number in count(2):
        found = (classname, f"{stem} #{number}")
        identities = classes.identities(found)
        if taken.isdisjoint(identities) and reserved.isdisjoint(identities):
            break
    taken.update(identities)
    return found


class _Classes:
    """The class names of a suite, each looked at once: a suite has few, and many tests in each."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._shown: dict[str, str] = {}
        self._hashes: dict[str, tuple[int, int]] = {}

    def shown(self, classname: str) -> str:
        """A class name as it is shown; a module that was skipped as a whole has none, and keeps none."""
        if classname not in self._shown:
            own = shown(classname) if classname else ""
            self._shown[classname] = ".".join(part for part in (self._prefix, own) if part)
        return self._shown[classname]

    def identities(self, name: Name) -> Identities:
        """What clients know a testcase by."""
        classname, own = name
        full = f"{classname}.{own}"
        if not _PLAIN(full):
            full = f"{_folded(classname)}.{_folded(own)}"
        if classname not in self._hashes:
            self._hashes[classname] = pow(_BASE, len(_units(classname)), _BITS + 1), _hash(classname)
        shift, rest = self._hashes[classname]
        return full, (_hash(own) * shift + rest) & _BITS


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


@remembered
def _hash(text: str) -> int:
    """Java's hash of a text, before its last bits are taken, as xunit-viewer has it (src/cli/parse.js)."""
    units = _units(text)
    number: int = sum(map(mul, units[:_STRIDE], _POWERS[-len(units) :]))
    for unit in units[_STRIDE:]:
        number = (number * _BASE + unit) & _BITS
    return number


def _units(text: str) -> bytes | memoryview:
    """The units of UTF-16 that JavaScript counts a text in."""
    return text.encode() if text.isascii() else memoryview(text.encode("utf-16-le")).cast("H")
