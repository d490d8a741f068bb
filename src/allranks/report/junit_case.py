"""One testcase of the merged report, its form, and names that stay distinct in every client.

Clients do not compare names exactly. Allure identifies a test by ``classname.name``, stripped of white space at its
ends; xunit-viewer by a 32-bit hash of name and class name, under which ``[Aa]`` equals ``[BB]``. If a client takes two
tests for the same, one is lost from its counts. The later one therefore gets a number that makes it unique.

Clients dictate the order and the shape of the elements (``tests/report/clients`` shows each with the client itself):
one outcome element, with attributes and a text; and, before the retries of a test that passed in the end, a text with
its earlier failures, because xunit-viewer takes the first element that it does not recognize for the outcome.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from operator import mul, ne
from typing import Final, Literal

from allranks.protocol.outcomes import numbers
from allranks.protocol.xml_text import (
    MESSAGE_LIMIT,
    TEXT_LIMIT,
    attribute,
    clean_cut,
    cut,
    element_text,
    readable,
)
from allranks.report.judge.rules import own_text, sections
from allranks.report.judged import JobSummary
from allranks.report.results import PassedRanks, RankResult, TestVerdict, Verdict, VerdictKind, VerdictRule, compact

ClassNames = Literal["pytest", "cell"]
"""``pytest``: testcases have pytest's class names. ``cell``: these are prefixed with cell and suite, for clients that
identify a test only by class name and name and would take its results in two cells for two attempts."""

FILE_LIMIT: Final = 30_000_000
"""Bytes that no file of the report reaches: GitLab refuses JUnit files larger than 30 MB."""


@dataclass(frozen=True, kw_only=True)
class JUnitForm:
    """The form of the merged report."""

    classname: ClassNames = "pytest"
    file_limit: int = FILE_LIMIT  # bytes below which each file stays, unless a single testcase is as large


NAME_LIMIT: Final = 2000
"""The most characters of a name: names include parameters, for which pytest has no limit."""

NAMELESS: Final = "(no name)"

_BITS: Final = 0xFFFFFFFF
_BASE: Final = 31
_STRIDE: Final = 128
"""Units at the beginning of a name that are summed at once; longer names are rare."""

_POWERS: Final = tuple(pow(_BASE, place, _BITS + 1) for place in reversed(range(_STRIDE)))
_PLAIN: Final = re.compile(r"[!-~]+").fullmatch

Name = tuple[str, str]
"""Class name and name of a testcase."""

Identities = tuple[str, int]
"""The keys by which clients identify a testcase: its full name, and xunit-viewer's hash."""


def unique_names(suite: JobSummary, tests: Sequence[TestVerdict], form: JUnitForm) -> Iterator[Name]:
    """The class name and the name of each testcase, readable and unique in the suite.

    The first of several equal names stays unchanged, and no numbered name collides with another test's own name.
    """
    prefix = shown(f"{suite.cell}.{suite.suite}") if form.classname == "cell" else ""
    classes = _Classes(prefix)

    names = [(classes.shown(test.classname), shown(test.name)) for test in tests]
    # Of equal full names Python's hashes are equal, too, and take less memory.
    are_unique = _are_unique(hash(classes.full(name)) for name in names) and _are_unique(map(classes.hash, names))
    return iter(names) if are_unique else _numbered_names(names, classes)


def _are_unique(keys: Iterable[int]) -> bool:
    """Whether no key is there twice; a set would take three times the memory."""
    ordered = sorted(keys)
    return all(map(ne, ordered, ordered[1:]))


def _numbered_names(names: Sequence[Name], classes: "_Classes") -> Iterator[Name]:
    reserved: set[str | int] = set(chain.from_iterable(map(classes.identities, names)))
    taken: set[str | int] = set()
    numbers: dict[str, Iterator[int]] = {}  # by a name as clients identify it: the next that may be free
    for name in names:
        found, identities = name, classes.identities(name)
        tries = numbers.setdefault(identities[0], count(2)) if not taken.isdisjoint(identities) else ()
        for number in tries:
            found = (name[0], f"{name[1]} #{number}")
            identities = classes.identities(found)
            if taken.isdisjoint(identities) and reserved.isdisjoint(identities):
                break
        taken.update(identities)
        yield found


def shown(name: str) -> str:
    """A name for display: readable, never empty, and not much longer than :data:`NAME_LIMIT`."""
    if len(name) > NAME_LIMIT:
        half = NAME_LIMIT // 2
        name = f"{name[:half]}[... {len(name) - 2 * half} characters cut here ...]{name[-half:]}"
    name = readable(name)
    return name if name.strip() else NAMELESS


class _Classes:
    """The class names of a suite, each processed once: a suite has few, with many tests in each."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._shown: dict[str, str] = {}
        self._hashes: dict[str, tuple[int, int]] = {}

    def shown(self, classname: str) -> str:
        """A class name for display; it stays empty for a module that was skipped as a whole."""
        if classname not in self._shown:
            own = shown(classname) if classname else ""
            self._shown[classname] = ".".join(part for part in (self._prefix, own) if part)
        return self._shown[classname]

    def identities(self, name: Name) -> Identities:
        """The keys by which clients identify a testcase."""
        return self.full(name), self.hash(name)

    def full(self, name: Name) -> str:
        """The full name, as Allure compares it."""
        full = ".".join(name)
        return full if _PLAIN(full) else ".".join(map(_folded, name))

    def hash(self, name: Name) -> int:
        """The hash of xunit-viewer."""
        classname, own = name
        if classname not in self._hashes:
            self._hashes[classname] = pow(_BASE, len(_units(classname)), _BITS + 1), _hash(classname)
        shift, rest = self._hashes[classname]
        return (_hash(own) * shift + rest) & _BITS


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _hash(text: str) -> int:
    """Java's string hash before its truncation, as in xunit-viewer (src/cli/parse.js)."""
    units = _units(text)
    number: int = sum(map(mul, units[:_STRIDE], _POWERS[-len(units) :]))
    for unit in units[_STRIDE:]:
        number = (number * _BASE + unit) & _BITS
    return number


def _units(text: str) -> bytes | memoryview:
    """The UTF-16 units of a text, as JavaScript counts them."""
    return text.encode() if text.isascii() else memoryview(text.encode("utf-16-le")).cast("H")


RETRY_LIMIT: Final = 16 * 1024
"""The most characters of a text of an earlier attempt."""

RETRIES: Final = 20
"""Earlier attempts that are reported in full: rerunning until a pass may produce thousands."""

Fact = tuple[str, object]
"""A property's name and value; a value that is None or empty is left out."""


def render_case(test: TestVerdict, name: Name) -> str:
    """A testcase as XML; its name is unique in the suite."""
    classname, own = name
    start = f'<testcase classname={attribute(classname)} name={attribute(own)}{_place(test)} time="{test.time:.6g}">\n'
    return f"{start}{_body(test)}</testcase>\n"


def _place(test: TestVerdict) -> str:
    """Where a test is, as clients link to it: its file, and of a bad one the line that its traceback leads to."""
    file, line = test.source
    return (f" file={attribute(file)}" if file else "") + (f' line="{line}"' if line else "")


def properties(said: Iterable[Fact]) -> str:
    """A ``properties`` element with the facts that have a value; empty if none has."""
    lines = "".join([property_line(name, value) for name, value in said if is_told(value)])
    return f"<properties>{lines}</properties>\n" if lines else ""


def property_line(name: str, value: object) -> str:
    """A fact as a ``property`` element."""
    text = str(value)
    shown = attribute(text if len(text) <= TEXT_LIMIT else clean_cut(text))
    return f'<property name="allranks.{name}" value={shown}/>'


@lru_cache(maxsize=64)
def _passed(ranks: str) -> str:
    """The properties of each plain pass of a job."""
    return property_line("ranks", ranks) + property_line("rule", VerdictRule.PASSED.value)


def _seconds(said: str) -> str:
    """Different in nearly each test: it is not worth remembering, nor needs it escapes."""
    return f'<property name="allranks.seconds" value="{said}"/>' if said else ""


def is_told(value: object) -> bool:
    """True if a value is not None and not empty; zero counts."""
    return value is not None and value != ""


def _body(test: TestVerdict) -> str:
    """Facts are properties; output follows an outcome and precedes retries."""
    if _has_just_passed(test):
        own = f"{property_line('nodeid', test.nodeid)}{_passed(compact(test.ranks))}"
        return f"<properties>{own}{_seconds(seconds_of(test.ranks))}</properties>\n"
    parts = [properties(_facts(test))]
    if test.verdict.kind is not VerdictKind.PASSED or test.earlier:
        parts.extend((*outcome_element(test), *_output(test), *_before(test), *_retries(test)))
    return "".join(parts)


def _has_just_passed(test: TestVerdict) -> bool:
    """True for a plain pass: nearly every test, and quick to render."""
    return test.verdict.rule is VerdictRule.PASSED and test.verdict.kind is VerdictKind.PASSED and not test.earlier


def _facts(test: TestVerdict) -> Iterator[Fact]:
    yield "nodeid", test.nodeid
    yield "ranks", compact(test.ranks)
    yield "rule", str(test.verdict.rule.value)
    yield "seconds", seconds_of(test.ranks)
    if test.verdict.is_bad:
        yield "texts", places_of_texts(test, _text(test.verdict, TEXT_LIMIT))
    if test.verdict.rule is not VerdictRule.PASSED:
        yield from _facts_of_verdict(test.verdict)
    if test.earlier:
        yield "earlier", " ".join(f"{attempt.number}:{_type(attempt.verdict)}" for attempt in test.earlier)
        yield "earlier_left_out", max(len(test.earlier) - RETRIES, 0) or None


def _facts_of_verdict(verdict: Verdict) -> Iterator[Fact]:
    yield "leading", verdict.leading
    yield "skip_kind", verdict.skip_kind
    yield "skip_code", verdict.skip_code
    if verdict.is_skip_but_pass:
        yield "skip_but_pass", clean_cut(verdict.message, MESSAGE_LIMIT) or "skipped"


_LEADS_THE_TEXT: Final = frozenset({VerdictRule.LEADING_OUTCOME, VerdictRule.UNACCOUNTED})


def seconds_of(ranks: Sequence[RankResult]) -> str:
    """``0.25 0.31``: what the test took on each rank, by rank; empty if they differ by 0.01 s or 5 % at most.

    Ranks run in lockstep, so that nearly all tests have none. Of 64 ranks they would be half of the report.
    """
    if isinstance(ranks, PassedRanks):
        team, place = ranks.team, ranks.place
        is_alike = _is_alike(team.fastest[place], team.slowest[place])
        return "" if is_alike else _written([file.seconds[place] for file in team.files])
    times = [rank.duration for rank in ranks]
    return "" if not times or _is_alike(min(times), max(times)) else _written(times)


def _is_alike(fastest: float, slowest: float) -> bool:
    return slowest - fastest <= 0.01 or fastest >= 0.95 * slowest


def _written(times: Sequence[float]) -> str:
    return ("%.3g " * len(times) % tuple(times))[:-1]  # in one call: a report may have millions


def places_of_texts(test: TestVerdict, text: str) -> str:
    """``1@52+310 0,2@420+80``: the ranks whose own text, or else message, stands in a text from there, so long.

    Any text may look like the beginning of another rank's, so its readers cannot find these places by themselves. A
    text that was cut has none.
    """
    return " ".join(_places(test, text))


def _places(test: TestVerdict, text: str) -> Iterator[str]:
    at = 0
    lead = test.lead if test.verdict.rule in _LEADS_THE_TEXT else None
    for ranks, section in sections(test.ranks, lead):
        start = text.find(section, at)
        if start < 0:
            continue
        at = start + len(section)
        own = own_text(ranks[0])
        yield f"{numbers(rank.rank for rank in ranks).replace(' ', '')}@{at - len(own)}+{len(own)}"


def _type(verdict: Verdict) -> str:
    return (verdict.reason or verdict.kind.value).replace(" ", "_")


def outcome_element(test: TestVerdict) -> Iterator[str]:
    """The element with the outcome of a test; none for a pass."""
    verdict = test.verdict
    if verdict.kind is VerdictKind.PASSED:
        return
    tag = verdict.kind.value
    message, text = _message(verdict, MESSAGE_LIMIT), _text(verdict, TEXT_LIMIT)
    if tag == "skipped":
        text = "\n\n".join([text, *map(_told, _shown(test.earlier))])
    yield f"<{tag} message={attribute(message)} type={attribute(_reason(verdict))}>{element_text(text)}</{tag}>\n"


def _reason(verdict: Verdict) -> str:
    return readable(verdict.reason).strip() or verdict.kind.value


def _message(verdict: Verdict, limit: int) -> str:
    return clean_cut(verdict.message, limit).strip() or _reason(verdict)


def _text(verdict: Verdict, limit: int) -> str:
    text = clean_cut(verdict.text, limit)
    return text if text.strip() else _message(verdict, limit)


def _output(test: TestVerdict) -> Iterator[str]:
    """The output of the ranks of a bad test, each under its number."""
    ranks = test.ranks if test.verdict.is_bad else ()
    out, err = _streams(ranks, test.verdict.leading, TEXT_LIMIT)
    yield from _stream("system-out", out)
    yield from _stream("system-err", err)


def _streams(ranks: Sequence[RankResult], leading: int | None, limit: int) -> tuple[str, str]:
    """Standard output and standard error, the leading rank's first, so that cuts affect the other ranks."""
    ordered = sorted(ranks, key=lambda rank: rank.rank != leading)
    printed = ([(rank.rank, rank.stdout) for rank in ordered], [(rank.rank, rank.stderr) for rank in ordered])
    out, err = (
        "\n".join(f"--- rank {rank} ---\n{output}" for rank, output in stream if output.strip()) for stream in printed
    )
    return clean_cut(out, limit), clean_cut(err, limit)


def _stream(tag: str, text: str) -> Iterator[str]:
    if text:
        yield f"<{tag}>{element_text(text)}</{tag}>\n"


def _before(test: TestVerdict) -> Iterator[str]:
    """One line for each earlier attempt at a test that passed in the end."""
    if test.earlier and test.verdict.kind is VerdictKind.PASSED:
        lines = (f"attempt {attempt.number}: {_message(attempt.verdict, MESSAGE_LIMIT)}\n" for attempt in test.earlier)
        yield from _stream("system-out", cut(f"passed in the end; before:\n{''.join(lines)}"))


def _retries(test: TestVerdict) -> Iterator[str]:
    """The earlier attempts, in Surefire's form for reruns; for a test skipped in the end, they are in its text."""
    if test.verdict.kind is VerdictKind.SKIPPED:
        # junit-to-ctrf takes a skipped test with a flaky failure for a passed one.
        return
    word = "rerun" if test.verdict.is_bad else "flaky"
    for attempt in _shown(test.earlier):
        tag = word + ("Failure" if attempt.verdict.kind is VerdictKind.FAILURE else "Error")
        yield _retry(tag, attempt)


def _shown(earlier: Sequence[TestVerdict]) -> Sequence[TestVerdict]:
    half = RETRIES // 2
    return earlier if len(earlier) <= RETRIES else (*earlier[:half], *earlier[-half:])


def _retry(tag: str, attempt: TestVerdict) -> str:
    verdict = attempt.verdict
    out, err = _streams(attempt.ranks, verdict.leading, RETRY_LIMIT)
    start = f"<{tag} message={attribute(_message(verdict, MESSAGE_LIMIT))} type={attribute(_reason(verdict))}>"
    stack = f"<stackTrace>{element_text(_text(verdict, RETRY_LIMIT))}</stackTrace>"
    streams = "".join(xml.rstrip("\n") for xml in (*_stream("system-out", out), *_stream("system-err", err)))
    return f"{start}{stack}{streams}</{tag}>\n"


def _told(attempt: TestVerdict) -> str:
    """An earlier attempt as plain text."""
    verdict = attempt.verdict
    streams = _streams(attempt.ranks, verdict.leading, RETRY_LIMIT)
    text = "\n".join(part for part in (_text(verdict, RETRY_LIMIT), *streams) if part)
    return f"attempt {attempt.number} ({_reason(verdict)}): {_message(verdict, MESSAGE_LIMIT)}\n{text}"
