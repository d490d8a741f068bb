"""Renders one testcase of the merged report, with a name that is unique in every client.

Clients do not compare names exactly. Allure identifies a test by ``classname.name``, stripped of white space at its
ends; xunit-viewer by a 32-bit hash of name and class name, under which ``[Aa]`` equals ``[BB]``. A client that treats
two tests as one loses a test from its counts, so the later test gets a number that makes it unique.

Clients also determine the order and the form of the elements; ``tests/report/clients`` runs these clients. Each test
has at most one outcome element, with attributes and a text. If a test passed in the end, an output with its earlier
failures precedes its retries, because xunit-viewer treats the first element that it does not know as the outcome.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from operator import mul, ne
from typing import Final, Literal

from allranks.protocol.outcomes import compact_numbers
from allranks.protocol.xml_text import (
    MESSAGE_LIMIT,
    TEXT_LIMIT,
    attribute,
    clean_cut,
    cut,
    element_text,
    readable,
)
from allranks.report.judge.rules import sections
from allranks.report.judged import JobSummary
from allranks.report.results import PassedRanks, RankResult, TestVerdict, Verdict, VerdictKind, VerdictRule, compact

ClassNames = Literal["pytest", "cell"]
"""``pytest``: pytest's class names. ``cell``: class names prefixed with cell and suite, for clients that identify a
test only by class name and name and would treat its results in two cells as two attempts."""

FILE_LIMIT: Final = 30_000_000
"""Bytes: GitLab rejects JUnit files that are larger than 30 MB."""


@dataclass(frozen=True, kw_only=True)
class JUnitForm:
    """Options of the merged report."""

    classname: ClassNames = "pytest"
    file_limit: int = FILE_LIMIT  # the size in bytes that each file stays below, unless one testcase is larger


NAME_LIMIT: Final = 2000
"""The most characters of a name: names include parameters, which pytest does not limit."""

NAMELESS: Final = "(no name)"

_BITS: Final = 0xFFFFFFFF
_BASE: Final = 31
_STRIDE: Final = 128
"""UTF-16 units at the beginning of a name that are summed at once; longer names are rare."""

_POWERS: Final = tuple(pow(_BASE, power, _BITS + 1) for power in reversed(range(_STRIDE)))
_PLAIN: Final = re.compile(r"[!-~]+").fullmatch

Name = tuple[str, str]
"""Class name and name of a testcase."""

Identities = tuple[str, int]
"""The keys by which clients identify a testcase: its full name, and xunit-viewer's hash."""


def unique_names(suite: JobSummary, tests: Sequence[TestVerdict], form: JUnitForm) -> Iterator[Name]:
    """The readable and unique class name and name of each testcase of a suite.

    The first of several equal names stays unchanged, and no numbered name is equal to another test's own name.
    """
    prefix = shown(f"{suite.cell}.{suite.suite}") if form.classname == "cell" else ""
    classes = _Classes(prefix)

    names = [(classes.shown(test.classname), shown(test.name)) for test in tests]
    # Hashes take less memory than names, and are equal for equal names.
    are_unique = _are_unique(hash(classes.full(name)) for name in names) and _are_unique(map(classes.hash, names))
    return iter(names) if are_unique else _numbered_names(names, classes)


def _are_unique(keys: Iterable[int]) -> bool:
    """Whether all keys are distinct; a set would take three times the memory."""
    ordered = sorted(keys)
    return all(map(ne, ordered, ordered[1:]))


def _numbered_names(names: Sequence[Name], classes: "_Classes") -> Iterator[Name]:
    reserved: set[str | int] = set(chain.from_iterable(map(classes.identities, names)))
    taken: set[str | int] = set()
    numbers: dict[str, Iterator[int]] = {}  # the next numbers to try, by the name as clients identify it
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
    """A name for display: readable, not empty, and not much longer than :data:`NAME_LIMIT`."""
    if len(name) > NAME_LIMIT:
        half = NAME_LIMIT // 2
        name = f"{name[:half]}[... {len(name) - 2 * half} characters cut here ...]{name[-half:]}"
    name = readable(name)
    return name if name.strip() else NAMELESS


class _Classes:
    """Processes each class name of a suite once: a suite has few, each with many tests."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._shown: dict[str, str] = {}
        self._hashes: dict[str, tuple[int, int]] = {}

    def shown(self, classname: str) -> str:
        """A class name for display; empty for a module that was skipped as a whole."""
        if classname not in self._shown:
            own = shown(classname) if classname else ""
            self._shown[classname] = ".".join(part for part in (self._prefix, own) if part)
        return self._shown[classname]

    def identities(self, name: Name) -> Identities:
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
    """The UTF-16 units of a text."""
    return text.encode() if text.isascii() else memoryview(text.encode("utf-16-le")).cast("H")


RETRY_LIMIT: Final = 16 * 1024
"""The most characters of a text of an earlier attempt."""

RETRIES: Final = 20
"""Earlier attempts that are reported in full: there may be thousands, if a test is rerun until it passes."""

Fact = tuple[str, object]
"""A property's name and value; if the value is None or empty, the property is omitted."""


def render_case(test: TestVerdict, name: Name) -> str:
    """A testcase as XML, under its unique name."""
    classname, own = name
    start = f'<testcase classname={attribute(classname)} name={attribute(own)}{_source(test)} time="{test.time:.6g}">\n'
    return f"{start}{_body(test)}</testcase>\n"


def _source(test: TestVerdict) -> str:
    """The file and line to which clients link."""
    file, line = test.source
    return (f" file={attribute(file)}" if file else "") + (f' line="{line}"' if line else "")


def properties(facts: Iterable[Fact]) -> str:
    """A ``properties`` element with the facts that have a value; empty if there are none."""
    lines = "".join([property_line(name, value) for name, value in facts if value is not None and value != ""])
    return f"<properties>{lines}</properties>\n" if lines else ""


def property_line(name: str, value: object) -> str:
    """A fact as a ``property`` element."""
    text = str(value)
    shown = attribute(text if len(text) <= TEXT_LIMIT else clean_cut(text))
    return f'<property name="allranks.{name}" value={shown}/>'


@lru_cache(maxsize=64)
def _passed(ranks: str) -> str:
    """The properties that all plain passes of a job have in common."""
    return property_line("ranks", ranks) + property_line("rule", VerdictRule.PASSED.value)


def _body(test: TestVerdict) -> str:
    """Properties, outcome, output, earlier attempts."""
    if _is_plain_pass(test):
        own = f"{property_line('nodeid', test.nodeid)}{_passed(compact(test.ranks))}"
        seconds = seconds_of(test.ranks)  # digits, which need no escapes
        own += f'<property name="allranks.seconds" value="{seconds}"/>' if seconds else ""
        return f"<properties>{own}</properties>\n"
    parts = [properties(_facts(test))]
    if test.verdict.kind is not VerdictKind.PASSED or test.earlier:
        parts.extend((*outcome_element(test), *_output(test), *_earlier_failures(test), *_retries(test)))
    return "".join(parts)


def _is_plain_pass(test: TestVerdict) -> bool:
    """True for nearly every test, which can then be rendered quickly."""
    return test.verdict.rule is VerdictRule.PASSED and test.verdict.kind is VerdictKind.PASSED and not test.earlier


def _facts(test: TestVerdict) -> Iterator[Fact]:
    yield "nodeid", test.nodeid
    yield "ranks", compact(test.ranks)
    yield "rule", str(test.verdict.rule.value)
    yield "seconds", seconds_of(test.ranks)
    if test.verdict.is_bad:
        yield "texts", locations_of_texts(test, _text(test.verdict, TEXT_LIMIT))
    if test.verdict.rule is not VerdictRule.PASSED:
        yield from _facts_of_verdict(test.verdict)
    if test.earlier:
        causes = (f"{attempt.number}:{_reason(attempt.verdict).replace(' ', '_')}" for attempt in test.earlier)
        yield "earlier", " ".join(causes)
        yield "earlier_left_out", max(len(test.earlier) - RETRIES, 0) or None


def _facts_of_verdict(verdict: Verdict) -> Iterator[Fact]:
    yield "leading", verdict.leading
    yield "skip_kind", verdict.skip_kind
    yield "skip_code", verdict.skip_code
    if verdict.is_skip_but_pass:
        yield "skip_but_pass", clean_cut(verdict.message, MESSAGE_LIMIT) or "skipped"


_RULES_WITH_PRIMARY_FAILURE: Final = frozenset({VerdictRule.PRIMARY_FAILURE, VerdictRule.UNACCOUNTED})


def seconds_of(ranks: Sequence[RankResult]) -> str:
    """``0.25 0.31``: the duration on each rank, by rank; empty if the durations differ by at most 0.01 s or 5 %.

    Ranks run in lockstep, so nearly all tests have none. With 64 ranks, they would make up half of the report.
    """
    if isinstance(ranks, PassedRanks):
        group, index = ranks.group, ranks.test_index
        are_close = _are_close(group.fastest[index], group.slowest[index])
        return "" if are_close else _written([file.seconds[index] for file in group.files])
    times = [rank.duration for rank in ranks]
    return "" if not times or _are_close(min(times), max(times)) else _written(times)


def _are_close(fastest: float, slowest: float) -> bool:
    return slowest - fastest <= 0.01 or fastest >= 0.95 * slowest


def _written(times: Sequence[float]) -> str:
    return ("%.3g " * len(times) % tuple(times))[:-1]  # one call for all ranks: a report may have millions of times


def locations_of_texts(test: TestVerdict, text: str) -> str:
    """``1@52+310 0,2@420+80``: ranks, and the offset and length of their own text (or message) in the verdict's text.

    A reader cannot find these locations by itself, because any text may look like the beginning of another rank's. A
    text that was cut has no location.
    """
    return " ".join(_locations(test, text))


def _locations(test: TestVerdict, text: str) -> Iterator[str]:
    end = 0
    primary = test.primary if test.verdict.rule in _RULES_WITH_PRIMARY_FAILURE else None
    for ranks, section, own in sections(test.ranks, primary):
        start = text.find(section, end)
        if start < 0:
            continue
        end = start + len(section)
        yield f"{compact_numbers(rank.rank for rank in ranks)}@{end - len(own)}+{len(own)}"


def outcome_element(test: TestVerdict) -> Iterator[str]:
    """The element with the outcome of a test; none for a pass."""
    verdict = test.verdict
    if verdict.kind is VerdictKind.PASSED:
        return
    tag = verdict.kind.value
    message, text = _message(verdict, MESSAGE_LIMIT), _text(verdict, TEXT_LIMIT)
    if tag == "skipped":
        text = "\n\n".join([text, *map(_as_text, _shown(test.earlier))])
    yield f"<{tag} message={attribute(message)} type={attribute(_reason(verdict))}>{element_text(text)}</{tag}>\n"


def _reason(verdict: Verdict) -> str:
    return readable(verdict.reason).strip() or verdict.kind.value


def _message(verdict: Verdict, limit: int) -> str:
    return clean_cut(verdict.message, limit).strip() or _reason(verdict)


def _text(verdict: Verdict, limit: int) -> str:
    text = clean_cut(verdict.text, limit)
    return text if text.strip() else _message(verdict, limit)


def _output(test: TestVerdict) -> Iterator[str]:
    """The output of the ranks of a failed test, each under its number."""
    ranks = test.ranks if test.verdict.is_bad else ()
    out, err = _streams(ranks, test.verdict.leading, TEXT_LIMIT)
    yield from _stream("system-out", out)
    yield from _stream("system-err", err)


def _streams(ranks: Sequence[RankResult], leading: int | None, limit: int) -> tuple[str, str]:
    """Standard output and standard error, beginning with the primary failure, so that cuts affect the other ranks."""
    ordered = sorted(ranks, key=lambda rank: rank.rank != leading)
    printed = ([(rank.rank, rank.stdout) for rank in ordered], [(rank.rank, rank.stderr) for rank in ordered])
    out, err = (
        "\n".join(f"--- rank {rank} ---\n{output}" for rank, output in stream if output.strip()) for stream in printed
    )
    return clean_cut(out, limit), clean_cut(err, limit)


def _stream(tag: str, text: str) -> Iterator[str]:
    if text:
        yield f"<{tag}>{element_text(text)}</{tag}>\n"


def _earlier_failures(test: TestVerdict) -> Iterator[str]:
    """One line for each earlier attempt at a test that passed in the end."""
    if test.earlier and test.verdict.kind is VerdictKind.PASSED:
        lines = (f"attempt {attempt.number}: {_message(attempt.verdict, MESSAGE_LIMIT)}\n" for attempt in test.earlier)
        yield from _stream("system-out", cut(f"passed in the end; earlier attempts:\n{''.join(lines)}"))


def _retries(test: TestVerdict) -> Iterator[str]:
    """The earlier attempts as Surefire writes reruns; for a test that was skipped in the end, they are in its text."""
    if test.verdict.kind is VerdictKind.SKIPPED:
        # junit-to-ctrf treats a skipped test with a flaky failure as passed.
        return
    prefix = "rerun" if test.verdict.is_bad else "flaky"
    for attempt in _shown(test.earlier):
        tag = prefix + ("Failure" if attempt.verdict.kind is VerdictKind.FAILURE else "Error")
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


def _as_text(attempt: TestVerdict) -> str:
    verdict = attempt.verdict
    streams = _streams(attempt.ranks, verdict.leading, RETRY_LIMIT)
    text = "\n".join(part for part in (_text(verdict, RETRY_LIMIT), *streams) if part)
    return f"attempt {attempt.number} ({_reason(verdict)}): {_message(verdict, MESSAGE_LIMIT)}\n{text}"
